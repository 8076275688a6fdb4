"""What the sites of a real federation agree on before a job: the method, the seed and the codebook. It
travels with the job as plain data; every site turns it into the configuration object of the simulation, and
refuses a job whose agreement is not the one its store was made under."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.core.goals import GOALS
from abps.data.codebook import Codebook
from abps.data.federation import Federation
from abps.data.prepare import Prepared, prepare
from abps.methods.accounting import to_count, with_noise
from abps.methods.base import Method, Wire
from abps.methods.catalog import METHODS
from abps.methods.coordinated import CoordinatedMethod
from abps.methods.fedavg import FedAvg, FedProx, StarExchange
from abps.methods.references import GlmExact, releasable_columns
from abps.methods.settings import configure, describe
from abps.methods.star import StarMethod
from abps.methods.sum_study import SumStudy
from abps.wire.codecs import CODECS

#: Methods with a server that sites can be themselves: what a center does with the answer needs nothing else.
_STARS = (FedAvg, FedProx)


@dataclass(frozen=True)
class Agreement:
    """study: the name of the common work; a site keeps one store per study.  method, settings: as on the
    command line (``abps-plus``, ``{"steps": 4}``).  rounds: the horizon of the study; one job may run
    fewer."""

    study: str
    method: str
    book: Codebook
    seed: int = 11
    rounds: int = 50
    settings: Mapping[str, Any] = field(default_factory=dict)

    def admitted(self, allowed: Collection[str]) -> Agreement:
        """The agreement, if a site that allows these packages may import what it names; else a sentence."""
        for place in self._places():
            package = place.partition(":")[0].partition(".")[0]
            if package not in (*allowed, "abps"):
                why = f"the job names {place}, and this site does not allow the package {package!r}"
                raise RequestError(f'{why}; add it to "allow" in the site\'s own file, if you trust it')
        return self

    def _places(self) -> Iterator[str]:
        """Where the names lead that are not ours: ``package.module:NAME``."""
        words = [self.method]
        for value in self.settings.values():
            words += value.replace("+", ",").split(",") if isinstance(value, str) else []
        for word in words:
            for door in (METHODS, CODECS, GOALS):
                # In this order: what is built in comprises the laboratory, which no site loads.
                if ":" in word or (word in door.others() and word not in door.builtin):
                    yield word if ":" in word else door.others()[word]

    def configured(self) -> Method:
        """The method's configuration, the same object that the simulation runs."""
        return with_noise(configure(self.method, self.settings, self.rounds))

    def config(self) -> CoordinatedMethod:
        """The method as sites run it: with a coordinator that rotates among them."""
        given = self.configured()
        config = _between_sites(self.method, given)
        if config.stop.patience or config.stop.restore_best:
            raise RequestError("patience and restore_best are for simulations: sites run all rounds")
        outcome = self.book.outcome
        if not outcome.binary and given.only_binary:
            raise RequestError(f"{self.method!r} with an outcome of {outcome.kind}: {given.only_binary}")
        if isinstance(given, SumStudy) and self.book.columns:
            given.check(self.book)  # a column that is not there is named at once
        return config

    @property
    def uncounted(self) -> tuple[str, ...]:
        """What sites count under masks before the study begins (:mod:`abps.sites.node.measuring`)."""
        return to_count(self.config(), self.book)

    def prepare(self, table: Federation) -> Prepared:
        """A site's own table as the model sees it."""
        if self.uncounted:  # alone, a site would read its columns by a scale that nobody else has
            raise RequestError("the common scales of the study have not been counted yet")
        config, how = self.config(), self.config().training
        data = prepare(table, self.seed, self.book, standardise=how.standardise, splines=how.splines)
        hidden = small_columns(data, config.privacy.secure)
        if not hidden.any():
            return data
        train, validation, test = (
            replace(rows, x=np.where(hidden, np.float32(0.0), rows.x))
            for rows in (data.train, data.validation, data.test)
        )
        return replace(data, train=train, validation=validation, test=test)

    def digest(self) -> str:
        """Equal for two sites exactly if they would run the same thing."""
        facts = [self.study, *_identity(self.configured()), self.seed, self.book.to_json()]
        content = json.dumps(facts, sort_keys=True).encode()
        return hashlib.blake2b(content, digest_size=8).hexdigest()

    def notes(self) -> dict[str, str]:
        said = {name: value for name, value in self.to_json().items() if name != "schema"}
        return {name: v if isinstance(v, str) else json.dumps(v, sort_keys=True) for name, v in said.items()}

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": "abps.agreement/1",
            "study": self.study,
            "method": self.method,
            "settings": dict(self.settings),
            "seed": self.seed,
            "rounds": self.rounds,
            "codebook": self.book.to_json(),
        }

    @staticmethod
    def from_json(data: Any) -> Agreement:
        try:
            if data["schema"] != "abps.agreement/1":
                raise ValueError(f"schema {data['schema']!r}")
            book, settings = Codebook.from_json(data["codebook"]), dict(data["settings"])
            seed, rounds = int(data["seed"]), int(data["rounds"])
            return Agreement(str(data["study"]), str(data["method"]), book, seed, rounds, settings)
        except RequestError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise RequestError(f"the agreement cannot be read ({error!r}); submit it with abps") from error


def small_columns(data: Prepared, secure: bool) -> NDArray[np.bool_]:
    """(columns,) yes/no columns (of any scale: those with two values) that a study takes as if nobody here
    had them: of fewer patients than the minimum cell, whatever codebooks list; and, where a coordinator sees
    uploads, also those with a small cell of column and outcome."""
    if not data.min_cell:
        return np.zeros(data.width, dtype=bool)
    x, least = data.train.x, int(data.min_rows[0])
    low, high = x.min(axis=0), x.max(axis=0)
    yes_no = ((x == low) | (x == high)).all(axis=0)
    some = (x == high).sum(axis=0)
    rarer = np.where(low < high, np.minimum(some, len(x) - some), 0)
    small = yes_no & (rarer > 0) & (rarer < least)
    if secure:
        return small
    flags = replace(data.train, x=np.where(yes_no & (low < high), (x == high).astype(x.dtype), x))
    return small | (yes_no & ~releasable_columns(replace(data, train=flags))[1][0])


def _between_sites(name: str, method: Method) -> CoordinatedMethod:
    why = "" if isinstance(method, CoordinatedMethod | StarMethod) else "its centers exchange no sums"
    if type(method).__module__.startswith("abps.lab."):
        why = "it is a rival for simulations"
    if method.budget is not None:
        why = "the byte budget is for simulations; every site's policy limits its own bytes"
    if isinstance(method, SumStudy) and not method.privacy.secure:
        why = "a coordinator would see exact counts of single sites; leave secure=no out"
    if isinstance(method, StarMethod) and method.participation < 1:
        why = "participation is for simulations; leave it out"
    if isinstance(method, GlmExact) and not method.privacy.secure:
        why = "a coordinator would see the sums of each site; set secure=yes"
    if isinstance(method, CoordinatedMethod) and not why:
        return method
    if isinstance(method, StarMethod) and not why:
        plain = type(method) in _STARS and method.adds is not None and method.line == Wire()
        if not method.privacy.secure:
            why = "a coordinator would see the models of each site; set secure=yes"
        elif isinstance(method, FedAvg) and plain:
            return StarExchange(method.training, method.stop, None, method.privacy, method)
        else:
            why = "it needs more than sums of whole models"
    known = "choose abps-plus, glm-exact, fedavg or fedprox"
    raise RequestError(f"{name!r} does not run between sites: {why}; {known}")


def _identity(config: Method) -> list[Any]:
    """What a method is: its settings, its class and, of somebody else's, the code of its module."""
    kind = type(config)
    code = "" if kind.__module__.startswith("abps.") else inspect.getsource(inspect.getmodule(kind) or kind)
    return [describe(config), f"{kind.__module__}:{kind.__qualname__}", code]
