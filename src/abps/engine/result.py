"""What a run leaves behind: the result as numbers, the audit trail as a table, and both on disk.

A run's folder holds ``result.json``, ``decisions.parquet``, ``scores.parquet``, ``privacy.json`` of a private
run and, where asked for, ``rounds.parquet`` and ``models.safetensors``; whole or not at all.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, get_type_hints

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from abps.core.beliefs import Beliefs
from abps.core.errors import RequestError
from abps.core.ledger import Traffic
from abps.data.federation import About
from abps.data.prepare import Prepared, Rows
from abps.engine.clinical import Clinical, RowProbabilities, clinical, row_probabilities
from abps.engine.partners import Partners
from abps.evaluate.calibration import expit
from abps.evaluate.performance import FEWEST_EVENTS
from abps.files import check_writable, folder, write_json, write_with
from abps.models.metrics import Segments, auprc, auroc, brier, labels_of, measures
from abps.models.outcomes import foretold
from abps.models.training import Training
from abps.privacy.budget import PrivacyLedger
from abps.release import VERSION
from abps.wire.codecs import codec, frame_size

SCHEMA = "abps.run/1"

#: FedAvg's rounds in the comparison of bytes.
FEDAVG_ROUNDS = 50


@dataclass(frozen=True, eq=False)
class Accuracy:
    """A metric of every center's final model on its own test rows (NaN: not defined there); honest_mean: over
    centers that do not attack, where some do."""

    mean: float
    scored_centers: int = 0
    at_best_validation: float = math.nan
    per_center: dict[str, float] = field(default_factory=dict)
    honest_mean: float = math.nan


@dataclass(frozen=True, eq=False)
class Score(Accuracy):
    """The main score of an outcome that is not binary: an accuracy with its name."""

    name: str = "AUROC"


@dataclass(frozen=True)
class ScoreSupport:
    """The rows that every center's AUROC stands on, and those with the outcome; centers with too few events
    or others for an AUROC, and why; folds: in how many parts patients were scored; 0: one split."""

    per_center_rows: dict[str, int] = field(default_factory=dict)
    per_center_events: dict[str, int] = field(default_factory=dict)
    cannot_tell: dict[str, str] = field(default_factory=dict)
    folds: int = 0


@dataclass(frozen=True)
class Bytes:
    """Bytes of the whole run; ``vs_fedavg`` is edge bytes over those of 50 fp32 rounds of FedAvg.

    all: every byte that leaves a center, both ways.  all_vs_fedavg: edge and control bytes, likewise.
    """

    edge: int
    directed: int
    control: int
    vs_fedavg: float
    all_vs_fedavg: float = math.nan
    all: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "all", self.directed + self.control)


@dataclass(frozen=True)
class RestShares:
    """Shares of center-rounds spent without a partner, in all and by cause (``core.matching.CAUSES``)."""

    share: float
    no_candidates: float
    all_full: float
    declined: float
    budget: float = 0.0
    quiet: float = 0.0
    privacy: float = 0.0


@dataclass(frozen=True)
class History:
    """One entry per round: means over centers, and bytes of all rounds so far."""

    auroc: tuple[float, ...]
    validation_auroc: tuple[float, ...]
    edge_bytes: tuple[int, ...]
    rest: tuple[float, ...]
    directed_bytes: tuple[int, ...] = ()
    control_bytes: tuple[int, ...] = ()


def versions() -> dict[str, str]:
    return {
        "abps": VERSION,
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "numpy": np.__version__,
        "polars": pl.__version__,
    }


@dataclass(frozen=True, eq=False)
class RunArtifacts:
    """What a run has beside its result: tables and models, in memory or as the files to read them from.

    decisions: the audit trail.  scores: every scored row (:mod:`abps.engine.track`).
    centers: every center's score in every round.  models: (centers, P), or (1, P) if one is for all.
    state, beliefs, answers (logits of the test rows), probabilities: of a run just computed; not on disk.
    """

    decisions: pl.DataFrame | Path | None = None
    scores: pl.DataFrame | Path | None = None
    centers: pl.DataFrame | Path | None = None
    models: NDArray[np.float32] | Path | None = None
    privacy: PrivacyLedger | None = None
    state: Any = None
    beliefs: Beliefs | None = None
    answers: Segments | None = None
    probabilities: RowProbabilities | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """One method, one seed, one federation.

    device: where centers trained and predicted; another one rounds otherwise.
    attack: members that attacked, as they were asked for; nothing where none did.
    outcome: what was predicted. Unless it is binary, ``score`` is its main score, ``measures`` are all of
    them (and the user's own), ``auroc`` is of classes only (macro), and ``history`` is of the main score.
    clinical: what clinicians ask of a binary outcome.  partners: whom models rest on, of methods that say so.
    artifacts: tables and models.
    """

    method: str
    seed: int
    rounds: int
    data: About
    config: dict[str, Any]
    auroc: Accuracy
    auprc: Accuracy
    brier: Accuracy
    bytes: Bytes
    cost_usd: float
    partners_mean: float
    rest: RestShares
    history: History
    seconds: float
    device: str = "cpu"
    attack: str = ""
    scored: ScoreSupport = field(default_factory=ScoreSupport)
    versions: dict[str, str] = field(default_factory=versions)
    outcome: str = "binary"
    score: Score | None = None
    measures: dict[str, Accuracy] = field(default_factory=dict)
    clinical: Clinical = field(default_factory=Clinical)
    partners: Partners = field(default_factory=Partners)
    artifacts: RunArtifacts = field(default_factory=RunArtifacts)

    @property
    def decisions(self) -> pl.DataFrame:
        return _table(self.artifacts.decisions, "decisions")

    @property
    def row_scores(self) -> pl.DataFrame | None:
        """Every scored row; None for results without them."""
        there = self.artifacts.scores
        if isinstance(there, Path):
            return pl.read_parquet(there) if there.is_file() else None
        return there

    @property
    def models(self) -> NDArray[np.float32] | None:
        """(centers, P) weights of the final models, or (1, P) if one is for all; None if it has none."""
        there = self.artifacts.models
        if isinstance(there, Path):
            return load_file(there)["models"] if there.is_file() else None
        return there

    @property
    def beliefs(self) -> Beliefs | None:
        """What centers believe of each other, for methods that keep beliefs; of a run just computed."""
        return self.artifacts.beliefs

    @property
    def privacy(self) -> PrivacyLedger | None:
        """What every center has spent, of a private run that was just computed."""
        return self.artifacts.privacy

    def round_history(self) -> pl.DataFrame:
        """One row per round: round, validation and test (mean main score), bytes in it, rest (share)."""
        history = self.history
        spent = np.diff(np.add(history.directed_bytes, history.control_bytes), prepend=0)
        scores = {"validation": history.validation_auroc, "test": history.auroc}
        number = np.arange(1, len(history.auroc) + 1)
        return pl.DataFrame({"round": number, **scores, "bytes": spent, "rest": history.rest})

    def center_history(self) -> pl.DataFrame:
        """One row per round and center: round, center, validation, test (the main score), rest (why); in
        folds also the fold."""
        return _table(self.artifacts.centers, "rounds")

    def predictions(self) -> pl.DataFrame:
        """Every scored row: row, center, fold, y and, of a binary outcome, the probability."""
        frame = self.row_scores
        if frame is None:
            raise RequestError("this result was read without its folder; load the folder to see its rows")
        names = pl.Series(list(self.main.per_center), dtype=pl.String)
        frame = frame.with_columns(center=names.gather(frame["center"]))
        if "logit" in frame.columns:
            return frame.select(
                "row", "center", "fold", "y", probability=1.0 / (1.0 + (-pl.col("logit")).exp())
            )
        return frame

    def save(self, out: str | Path) -> None:
        """Write the run into a folder, with its models; :func:`abps.load_run` reads it."""
        save(self, Path(out), models=True)

    @property
    def main(self) -> Accuracy:
        """The main score: AUROC, unless the outcome has another."""
        return self.auroc if self.score is None else self.score

    @property
    def measure(self) -> str:
        return "AUROC" if self.score is None else self.score.name

    def to_json(self) -> dict[str, Any]:
        """The content of ``result.json``; what only other outcomes have is not in that of a binary one."""
        names = [name for name in _WRITTEN if self.score is not None or name not in _OF_OTHERS]
        for name in ("clinical", "partners"):
            if not getattr(self, name).per_center:
                names.remove(name)
        if self.measures and "measures" not in names:
            names.append("measures")
        # JSON has no NaN: msgspec writes an undefined number as null.
        content = msgspec.json.encode({name: getattr(self, name) for name in names})
        return {"schema": SCHEMA} | msgspec.json.decode(content)

    @staticmethod
    def from_json(content: Mapping[str, Any], artifacts: RunArtifacts | None = None) -> Run:
        """A run from the content of its ``result.json``, and the files beside it."""
        if not isinstance(content, Mapping) or content.get("schema") != SCHEMA:
            raise RequestError(f"this is not a result of this version ({SCHEMA})")
        try:
            there = {name: content[name] for name in _WRITTEN if name in content}
            stated = {
                name: msgspec.convert(value if name in _NULLABLE else _undefined(value), _WRITTEN[name])
                for name, value in there.items()
            }
            return Run(**stated, artifacts=artifacts or RunArtifacts())
        except (msgspec.ValidationError, TypeError) as error:
            raise RequestError(f"this result lacks something or holds something else: {error}") from error

    def __repr__(self) -> str:
        return (
            f"<Run {self.method} on {self.data.name}, seed {self.seed}: {self.measure} {self.main.mean:.3f} "
            f"over {self.main.scored_centers} centers, {self.bytes.vs_fedavg:.3g} × FedAvg's bytes, "
            f"{self.rounds} rounds>"
        )


#: What is written, in this order, and its type; and where null says something else than "not defined".
_WRITTEN: Final = {name: kind for name, kind in get_type_hints(Run).items() if name != "artifacts"}
_NULLABLE: Final = ("data", "config")

#: What a binary outcome does not have.
_OF_OTHERS: Final = ("outcome", "score", "measures")


def _table(there: pl.DataFrame | Path | None, what: str) -> pl.DataFrame:
    if there is None or (isinstance(there, Path) and not there.is_file()):
        raise RequestError(f"this result was read without its folder; load the folder to see its {what}")
    return pl.read_parquet(there) if isinstance(there, Path) else there


def _undefined(value: Any) -> Any:
    """Null is an undefined number."""
    if isinstance(value, dict):
        return {key: _undefined(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_undefined(inner) for inner in value]
    return math.nan if value is None else value


def accuracy(
    centers: tuple[str, ...],
    values: NDArray[np.float64],
    at_best: float = math.nan,
    honest: NDArray[np.bool_] | None = None,
) -> Accuracy:
    """Values of all centers as an :class:`Accuracy`; honest: (n,) who does not attack, if anybody does."""
    scored = np.isfinite(values)

    def mean(which: NDArray[np.bool_]) -> float:
        return float(values[which].mean()) if which.any() else math.nan

    apart = math.nan if honest is None else mean(scored & honest)
    return Accuracy(mean(scored), int(scored.sum()), at_best, dict(zip(centers, values.tolist())), apart)


def named(main: Accuracy, name: str) -> Score:
    return Score(**vars(main), name=name)


def scores_of(
    centers: tuple[str, ...],
    logits: Segments,
    rows: Rows,
    train: Rows,
    at_best: float = math.nan,
    honest: NDArray[np.bool_] | None = None,
) -> dict[str, Any]:
    labels = labels_of(rows)
    if labels.outcome.binary:
        return {
            "auroc": accuracy(centers, auroc(logits, labels), at_best, honest),
            "auprc": accuracy(centers, auprc(logits, labels)),
            "brier": accuracy(centers, brier(logits, labels)),
        }
    found = measures(logits, rows, train)
    name, values = labels.outcome.measure, found[labels.outcome.measure]
    main = accuracy(centers, values, at_best, honest)
    unknown = accuracy(centers, np.full(len(centers), np.nan))
    return {
        "auroc": main if labels.outcome.kind == "classes" else unknown,
        "auprc": unknown,
        "brier": unknown,
        "outcome": labels.outcome.kind,
        "score": named(main, name),
        "measures": {each: accuracy(centers, value) for each, value in found.items()},
    }


def evaluated(
    data: Prepared,
    logits: Segments,
    judged: Segments | None,
    at_best: float,
    honest: NDArray[np.bool_] | None,
    parts: Mapping[str, Sequence[str | None]],
    metrics: Mapping[str, Callable[[Any, Any], float]],
) -> tuple[dict[str, Any], RowProbabilities | None]:
    """The fields of a run that say how accurate it is, from the logits of its test rows.

    judged: logits of the validation rows of a binary outcome.  at_best: the mean test score of the best round
    on validation rows.  metrics: the user's own.
    """
    centers, test, labels = data.centers, data.test, labels_of(data.test)
    fields = scores_of(centers, logits, test, data.train, at_best, honest)
    seen = None
    if judged is not None:
        seen = row_probabilities(logits, labels, judged, labels_of(data.validation), test.place)
        fields["clinical"] = clinical(centers, seen, parts)
    if metrics:
        fields["measures"] = fields.get("measures", {}) | own_measures(centers, logits, labels, metrics)
    fields["scored"] = scored_on(centers, labels)
    return fields, seen


def own_measures(
    centers: tuple[str, ...],
    logits: Segments,
    labels: Segments,
    metrics: Mapping[str, Callable[[Any, Any], float]],
) -> dict[str, Accuracy]:
    """The user's own metrics of every center: function(labels, predictions) to a number; NaN: not defined."""
    binary, z = labels.outcome.binary, logits.values
    said = replace(logits, values=expit(z.astype(np.float64)) if binary else foretold(labels.outcome, z))
    found = {}
    for name, metric in metrics.items():
        rows = ((labels[i], said[i]) for i in range(len(centers)))
        values = [float(metric(y, predicted)) if len(y) else np.nan for y, predicted in rows]
        found[name] = accuracy(centers, np.array(values))
    return found


def bytes_of(data: Prepared, spent: Traffic) -> Bytes:
    """The bytes of a run, also in units of FedAvg's: fifty fp32 rounds with the paper's network, whatever
    model a run has."""
    layers = itertools.pairwise((data.plain or data.width, *Training().hidden, 1))
    weights = sum(inputs * units + units for inputs, units in layers)
    unit = data.size * FEDAVG_ROUNDS * frame_size(codec("fp32"), weights)
    all_vs_fedavg = (spent.edge + spent.control) / unit
    return Bytes(spent.edge, spent.directed, spent.control, spent.edge / unit, all_vs_fedavg)


def scored_on(centers: tuple[str, ...], labels: Segments, folds: int = 0) -> ScoreSupport:
    rows = dict(zip(centers, np.diff(labels.start).tolist()))
    events = {name: int(labels.outcome.events(labels[i]).sum()) for i, name in enumerate(centers)}
    others = {name: rows[name] - events[name] for name in centers}
    few = {
        name: f"{events[name]} events and {others[name]} others; an area needs {FEWEST_EVENTS} of each"
        for name in centers
        if labels.outcome.binary and min(events[name], others[name]) < FEWEST_EVENTS
    }
    return ScoreSupport(rows, events, few, folds)


# ---------------------------------------------------------------- a run on disk


RESULT = "result.json"
DECISIONS = "decisions.parquet"
SCORES = "scores.parquet"
ROUNDS = "rounds.parquet"
MODELS = "models.safetensors"
PRIVACY = "privacy.json"


def save(run: Run, out: Path, models: bool = False) -> None:
    """Write a run into its folder; ``result.json`` last, so that its presence means completeness; models:
    also the final models, and every center's score in every round."""
    folder(out)
    weights = run.models if models else None
    if weights is not None:
        named = {"models": np.ascontiguousarray(weights)}
        write_with(out / MODELS, lambda part: save_file(named, part))
    if models and run.artifacts.centers is not None:
        write_with(out / ROUNDS, run.center_history().write_parquet)
    write_with(out / DECISIONS, run.decisions.write_parquet)
    scores = run.row_scores
    if scores is not None:
        write_with(out / SCORES, lambda part: scores.write_parquet(part, compression="zstd"))
    if run.privacy is not None:
        write_json(out / PRIVACY, run.privacy.to_json())
    write_json(out / RESULT, run.to_json())


def load_run(out: Path | str) -> Run:
    """The run in a folder, as it was saved."""
    path = Path(out) / RESULT
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        decisions, scores, rounds, models = (Path(out) / name for name in (DECISIONS, SCORES, ROUNDS, MODELS))
        return Run.from_json(content, RunArtifacts(decisions, scores, rounds, models))
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error
    except RequestError as error:
        raise RequestError(f"{path}: {error}; choose another folder") from error
    except ValueError as error:
        raise RequestError(f"{path} is damaged ({error}); delete it and run again") from error


def check_free(out: Path, identity: dict[str, Any], fingerprint: str) -> None:
    """Refuse a folder that holds another run; the same run may be redone.  identity: what must agree, by the
    names of :class:`Run`."""
    if out.exists() and not out.is_dir():
        raise RequestError(f"{out} is a file; give a folder")
    check_writable(out)
    if not (out / RESULT).exists():
        return
    there = load_run(out)
    differing = [key for key in identity if getattr(there, key) != json.loads(json.dumps(identity[key]))]
    if there.data.fingerprint != fingerprint:
        differing.append("data")
    if differing:
        raise RequestError(
            f"{out} already holds a run of {there.method!r} (seed {there.seed}) "
            f"that differs in {', '.join(differing)}; choose another folder or delete it"
        )
