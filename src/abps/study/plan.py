"""A study's plan: data × methods × settings × seeds, each run known by the content that decides it."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType, MappingProxyType
from typing import Any, Final, TypedDict, Unpack

from abps.checks import quick_check
from abps.core.errors import RequestError, nearest
from abps.data.federation import Federation, groups_of, with_only
from abps.data.roles import Roles
from abps.data.table import load
from abps.engine.crossvalidation import FEWEST_FOLDS, FOLDS, cross_validate
from abps.engine.result import Run
from abps.engine.simulate import Progress, RunOptions, simulate
from abps.methods.base import Method
from abps.methods.catalog import CATALOG, REFERENCES, find
from abps.methods.settings import configure, describe, names
from abps.registry import imported
from abps.release import VERSION

#: The 19 rows of the paper's table in its order.
PAPER_ROWS: Final = (
    "local", "fedavg", "fedprox", "feddyn", "moon", "decefl", "defta", "wpfed", "bnn",
    "abps", "abps-p", "abps-q", "abps-pq-k1", "fedavg-pq",
    "abps-pq-k1-hom", "abps-pq-k1-div", "abps-pq-k1-align", "abps-x", "fedavg-x",
)  # fmt: skip

#: What `--methods paper` means: the rows, the upper bound, and the controls that the paper lacks.
PAPER: Final = (*PAPER_ROWS, "centralized", "random-k1", "random-k3", "group-oracle-k1")

#: Methods that need a declared group for every center.
NEEDS_GROUPS: Final = ("group-oracle-k1",)

#: Seeds to tune on, unless others are named; those of the comparison are passed over.
TUNING_SEEDS: Final = (1001, 1002, 1003, 1004)

#: No configurations besides those that have a name everywhere.
NONE: Final[Mapping[str, Method]] = MappingProxyType({})


@dataclass(frozen=True)
class Source:
    """Where a federation comes from: a built-in's name or a file, and the roles of its columns."""

    data: str = "icu-synthetic"
    roles: Roles | None = None
    min_stays: int | None = None

    def load(self) -> Federation:
        return load(self.data, self.roles, self.min_stays)


@dataclass(frozen=True)
class Request:
    """What was asked for, as a study's folder keeps it; :class:`StudyOptions` says what the fields mean.

    references: run beside the methods as they are.  folds: 1: one split; None: see :func:`folds_of`.
    tune: seeds; none: methods run as they are.  words: the methods as asked for (``paper``, ``all``).
    """

    sources: tuple[Source, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    rounds: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    references: tuple[str, ...] = ()
    folds: int | None = None
    attack: str | None = None
    tune: tuple[int, ...] = ()
    subgroups: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.methods:
            raise RequestError("no method is named; give one or more, or paper, or all")
        if not self.seeds:
            raise RequestError("no seed is named; give one whole number or more")
        for seed in (*self.seeds, *self.tune):
            if seed < 0:
                raise RequestError(f"seed {seed}: choose whole numbers from 0")
        if self.attack is not None:
            imported("abps.lab.attacks:parse")(self.attack)
        for what, values in (("seed", self.seeds), ("method", self.methods)):
            twins = [v for v in values if values.count(v) > 1]
            if twins:
                raise RequestError(f"the {what} {twins[0]} is named twice; name it once")


class StudyOptions(TypedDict, total=False):
    """What few comparisons need.

    model, settings: replaced in every method that has them.
    references: also run what a hospital alone, pooled rows and a federated regression would give; or which.
    folds: every patient is scored out of so many folds (default 5; 1: the test rows of one split).
    tune: first try every method's grid on other seeds (two, or those named), judged on validation rows.
    subgroups: columns by which accuracy is shown, besides sex and age where they are found.
    attack: members that attack, as ``"sign-flip:share=0.2"``.
    """

    rounds: int | None
    model: str | None
    settings: Mapping[str, Any] | None
    references: bool | Sequence[str]
    folds: int | None
    tune: bool | Sequence[int]
    subgroups: Sequence[str]
    attack: str | None


def request_of(
    sources: Sequence[Source],
    words: Sequence[str],
    seeds: Sequence[int],
    own: Collection[str] = (),
    **options: Unpack[StudyOptions],
) -> Request:
    """A request from what a caller says.  words: methods and sets of them.  own: names of own methods."""
    known = StudyOptions.__annotations__
    for word in options:
        if word not in known:
            raise TypeError(f"a comparison has no argument {word!r}{nearest(word, known)}")
    references, model = options.get("references", True), options.get("model")
    return Request(
        tuple(sources),
        tuple(name for word in words for name in ((word,) if word in own else expand_methods([word]))),
        tuple(seeds),
        options.get("rounds"),
        dict(options.get("settings") or {}) | ({} if model is None else {"model": model}),
        (REFERENCES if references else ()) if isinstance(references, bool) else tuple(references),
        options.get("folds"),
        options.get("attack"),
        tuning_seeds(options.get("tune", False), seeds),
        tuple(options.get("subgroups", ())),
        tuple(words),
    )


def tuning_seeds(tune: bool | Sequence[int], seeds: Sequence[int]) -> tuple[int, ...]:
    """The seeds to tune on: none, two that the comparison does not use, or those that were named."""
    if isinstance(tune, bool):
        return tuple(seed for seed in TUNING_SEEDS if seed not in seeds)[:2] if tune else ()
    if not tune:
        raise RequestError("no seed to tune on is named; give one whole number or more")
    for seed in tune:
        if seed in seeds:
            raise RequestError(
                f"seed {seed} is one to tune on and one to compare on; choose other seeds to tune on"
            )
    return tuple(tune)


@dataclass(frozen=True)
class Trial:
    """Settings that tuning tried, and their mean validation AUROC over its seeds; none: a run failed."""

    settings: Mapping[str, Any]
    validation: float | None


@dataclass(frozen=True)
class Choice:
    """What tuning chose for a method on one federation (its fingerprint), and all that it tried."""

    method: str
    data: str
    settings: Mapping[str, Any]
    tried: tuple[Trial, ...] = ()


@dataclass(frozen=True)
class PlannedRun:
    """One run: a method with its settings on one federation, by its fingerprint, with one seed.

    label: the method's name; of a trial of tuning also its settings.  key: a digest of all that decides it.
    """

    label: str
    method: str
    settings: Mapping[str, Any]
    rounds: int | None
    seed: int
    data: str
    key: str = ""
    folds: int | None = None
    attack: str | None = None
    subgroups: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The run's folder inside the study: readable, and different for every key."""
        return f"{slug(self.label)}-s{self.seed}-{self.key[:12]}"

    def config(self, own: Mapping[str, Method] = NONE) -> Method:
        """The method's configuration; ``own``: configurations that only this process knows, by name."""
        return configure(own.get(self.method, self.method), self.settings, self.rounds)

    def identity(self, config: Method, source: str | None = None) -> dict[str, Any]:
        """Everything that decides the result: the version of the package, the settings, the data, and the
        source of a method of one's own."""
        asked = {"folds": self.folds, "attack": self.attack, "subgroups": list(self.subgroups) or None}
        kind = type(config)
        asked["source"] = source or source_of(kind) or None
        return {name: value for name, value in asked.items() if value is not None} | {
            "method": self.method,
            # Where a class of ours lives decides nothing.
            "kind": f"{kind.__module__}.{kind.__name__}" if asked["source"] else kind.__name__,
            "config": describe(config),
            "data": self.data,
            "seed": self.seed,
            "version": VERSION,
        }

    def compute(self, federation: Federation, config: Method, progress: Progress | None = None) -> Run:
        seed, name, parts = self.seed, self.method, self.subgroups
        if self.folds is None:
            how: RunOptions = {"attack": self.attack, "subgroups": parts, "progress": progress, "name": name}
            return simulate(federation, config, seed, **how)
        if self.attack is not None:
            raise RequestError(f"folds={self.folds} with attack={self.attack!r}: choose one of them")
        return cross_validate(federation, config, seed, self.folds, progress, name, parts)

    def keyed(self, own: Mapping[str, Method] = NONE) -> PlannedRun:
        return replace(self, key=key_of(self.identity(self.config(own))))


@dataclass(frozen=True, eq=False)
class Plan:
    """The runs of a study, their federations, what was left out and why, and what tuning chose."""

    request: Request
    federations: Mapping[str, Federation]
    runs: tuple[PlannedRun, ...]
    left_out: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()


def slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")


def expand_methods(words: Sequence[str]) -> tuple[str, ...]:
    """Method names, each known to lead to a method; ``paper`` and ``all`` stand for many of ours."""
    chosen: list[str] = []
    for word in words:
        if word in ("paper", "all"):
            several = PAPER if word == "paper" else dict.fromkeys((*PAPER, *CATALOG))
            chosen += [name for name in several if name not in chosen]
        else:
            find(word)
            chosen.append(word)
    return tuple(chosen)


def source_of(kind: type) -> str:
    """A digest of the source of a class that is not ours; of its compiled code, where it has no file."""
    if kind.__module__.partition(".")[0] == "abps":
        return ""

    def parts(code: CodeType) -> Iterator[str]:
        yield repr((code.co_code, code.co_names, code.co_varnames))
        for each in code.co_consts:
            yield from parts(each) if isinstance(each, CodeType) else (repr(each),)

    try:
        text = inspect.getsource(kind)
    except (OSError, TypeError):
        codes = [c for v in vars(kind).values() if isinstance(c := getattr(v, "__code__", None), CodeType)]
        text = "".join(part for code in codes for part in parts(code))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def folds_of(request: Request) -> int | None:
    """In how many folds every row is scored; None: the test rows of one split, as the paper's table and
    attacks have it unless the request says otherwise."""
    asked = request.folds
    if asked is None:
        return None if "paper" in request.words or request.attack is not None else FOLDS
    if asked != 1 and asked < FEWEST_FOLDS:
        raise RequestError(f"folds={asked}: choose 1 (one split) or at least {FEWEST_FOLDS}")
    return None if asked == 1 else asked


def key_of(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def make_plan(
    request: Request,
    own: Mapping[str, Method] = NONE,
    given: Sequence[Federation] = (),
    choices: tuple[Choice, ...] = (),
) -> Plan:
    """The runs of a request, with every configuration checked before anything is computed.

    What stands in a set (``paper``, ``all``) and cannot run on this data is left out and named; what was
    asked for by its name is not.  own: configurations that only this process knows, by name.  given: the
    federations, where they need not be loaded.  choices: what tuning chose.
    """
    plain = _checked_methods(request, own)
    chosen = {(choice.data, choice.method): choice.settings for choice in choices}
    federations: dict[str, Federation] = {}
    runs: list[PlannedRun] = []
    left_out: list[str] = []
    for source, federation in zip(request.sources, given or (s.load() for s in request.sources)):
        data = federation.fingerprint()
        if data in federations:
            raise RequestError(f"{source.data}: the same federation is given twice; give it once")
        if request.subgroups:
            groups_of(federation, request.subgroups)
        federations[data] = with_only(federation, request.subgroups)
        folds = folds_of(request)
        references = {name: find(name) for name in request.references if name not in plain}
        absent = _cannot_run(plain | references, request, federation)
        left_out += absent.values()
        for seed, (method, config) in itertools.product(request.seeds, (plain | references).items()):
            if method in absent:
                continue
            settings, attack, at_once = dict[str, Any](), None, config.fitted  # it knows no rounds
            if method in plain:
                settings = known_settings(request, config) | dict(chosen.get((data, method), {}))
                attack, at_once = request.attack, config.stop.rounds == 1
            what = (method, method, settings, None if at_once else request.rounds, seed, data)
            runs.append(PlannedRun(*what, "", folds, attack, request.subgroups).keyed(own))
    return Plan(request, federations, tuple(runs), tuple(left_out), choices)


def known_settings(request: Request, config: Method) -> dict[str, Any]:
    known = names(config)
    return {name: value for name, value in request.settings.items() if name in known}


def _checked_methods(request: Request, own: Mapping[str, Method]) -> dict[str, Method]:
    """The methods' configurations as they are, once foreign ones are tried and all settings are known."""
    plain = {method: configure(own.get(method, method)) for method in request.methods}
    for method, config in plain.items():
        if method in own or method not in CATALOG:
            quick_check(config, method)
    for name in request.settings:
        if not any(name in names(config) for config in plain.values()):
            known = sorted({n for config in plain.values() for n in names(config) if "." not in n})
            raise RequestError(
                f"none of the methods has a setting {name!r}{nearest(name, known)}; "
                f"their settings are {', '.join(known)}"
            )
    return plain


def _cannot_run(methods: Mapping[str, Method], request: Request, federation: Federation) -> dict[str, str]:
    """By method that was not asked for by its name and cannot run on a federation, why."""
    found, kind = {}, federation.outcome.kind
    for name, config in methods.items():
        if name in NEEDS_GROUPS and federation.groups is None:
            found[name] = f"{name} on {federation.name}: it needs a column that groups centers"
        elif config.only_binary and kind != "binary":
            found[name] = f"{name} on {federation.name}, an outcome of {kind}: {config.only_binary}"
    return {name: why for name, why in found.items() if name not in request.words}
