"""What the sites of a real federation agree on before a job: the method, the seed and the codebook.

It travels with the job as plain data; every site turns it into the same configuration object that the
simulation uses, and refuses a job whose agreement is not the one its store was made under.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from abps.core.errors import RequestError
from abps.core.goals import GOALS
from abps.data.codebook import Codebook
from abps.data.federation import Federation
from abps.data.prepare import Prepared, prepare
from abps.data.splines import design_of
from abps.methods.accounting import sums_needed, to_count, with_noise
from abps.methods.base import Method
from abps.methods.catalog import METHODS
from abps.methods.settings import configure, describe
from abps.wire.codecs import CODECS


@dataclass(frozen=True)
class Agreement:
    """study: the name of the common work; a site keeps one store per study.

    method, settings: as on the command line (``abps-pq-k1``, ``{"gamma": 0.5}``).
    rounds: the horizon of the study; one job may run fewer.
    """

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
                raise RequestError(
                    f"the job names {place}, and this site does not allow the package {package!r}; "
                    'add it to "allow" in the site\'s own file if it is to be trusted'
                )
        return self

    def _places(self) -> Iterator[str]:
        """Where the names lead that are not ours: ``package.module:NAME``."""
        words = [self.method]
        for value in self.settings.values():
            words += value.replace("+", ",").split(",") if isinstance(value, str) else []
        for word in words:
            for door in (METHODS, CODECS, GOALS):
                if ":" in word or (word not in door.builtin and word in door.others()):
                    yield word if ":" in word else door.others()[word]

    def config(self) -> Method:
        """The method's configuration, the same object that the simulation runs."""
        config = with_noise(configure(self.method, self.settings, self.rounds))
        why = config.between_sites() or _not_between_sites(config)
        if why:
            raise RequestError(f"{self.method!r} does not run between sites: {why}")
        sums_needed(config)
        if config.stop.metric != "auroc":
            raise RequestError("metric=loss: sites report validation AUROCs; set metric=auroc")
        outcome, counted = self.book.outcome, to_count(config, self.book)
        if not outcome.binary and config.only_binary:
            raise RequestError(f"{self.method!r} with an outcome of {outcome.kind}: {config.only_binary}")
        if not outcome.agreed and not counted:
            what = "a common time grid" if outcome.kind == "survival" else "a common level and scale"
            raise RequestError(
                f"an outcome of {outcome.asked}: the codebook has not {what}; let sites publish statistics "
                "in their codebooks, count under masks (secure=yes), or write it into the codebook's outcome"
            )
        scales = {} if self.book.statistics is None else self.book.statistics.scales
        lacking = [name for name in self.book.numbers if name not in scales]
        if config.training.standardise == "common" and lacking and not counted:
            # A site that agreed with itself alone would read its columns by a scale that nobody else has.
            raise RequestError(
                f"standardise=common: the codebook has no common scale for {lacking[0]!r} (and "
                f"{len(lacking) - 1} more columns); let sites count under masks (secure=yes) or "
                "publish statistics in their codebooks, write scales into it, or set standardise=own"
            )
        took = self.book.statistics_source
        if config.training.standardise == "common" and took is not None and took.seed != self.seed:
            raise RequestError(
                f"seed {self.seed}: the codebook's scales are of the training rows under seed {took.seed}; "
                "take that one, or init the sites again"
            )
        return config

    @property
    def uncounted(self) -> tuple[str, ...]:
        """What sites have to count before the study can begin (:mod:`abps.sites.node.measuring`)."""
        return to_count(self.config(), self.book)

    @property
    def width(self) -> int:
        """How many inputs the model has."""
        if self.config().training.splines:
            return len(design_of(self.book).names)
        return len(self.book.columns)

    def prepare(self, table: Federation) -> Prepared:
        """A site's own table as the model sees it."""
        if self.uncounted:  # alone, a site would read its columns by a scale that nobody else has
            raise RequestError("the common scales of the study have not been counted yet")
        training = self.config().training
        return prepare(
            table, self.seed, self.book, standardise=training.standardise, splines=training.splines
        )

    def digest(self) -> str:
        """Equal for two sites exactly if they would run the same thing."""
        content = json.dumps(
            [self.study, *_identity(self.config()), self.seed, self.book.to_json()], sort_keys=True
        )
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()

    def notes(self) -> dict[str, str]:
        """What a site's store says about the study."""
        return {
            "study": self.study,
            "method": self.method,
            "settings": json.dumps(dict(self.settings), sort_keys=True),
            "seed": str(self.seed),
            "rounds": str(self.rounds),
            "prior": json.dumps(list(self.config().belief_prior)),
            "codebook": json.dumps(self.book.to_json(), sort_keys=True),
        }

    def to_json(self) -> dict[str, Any]:
        """Plain data for a job's configuration."""
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
        """An agreement from a job's configuration."""
        try:
            if data["schema"] != "abps.agreement/1":
                raise ValueError(f"schema {data['schema']!r}")
            return Agreement(
                str(data["study"]),
                str(data["method"]),
                Codebook.from_json(data["codebook"]),
                int(data["seed"]),
                int(data["rounds"]),
                dict(data["settings"]),
            )
        except RequestError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise RequestError(
                f"the job's agreement cannot be read ({error!r}); submit it with abps"
            ) from error


def _not_between_sites(config: Method) -> str:
    """Why sites have no protocol for a method, in half a sentence; nothing if they have."""
    if config.kind in ("graph", "pull"):
        return "sites form pairs, or exchange with a coordinator or a server"
    if getattr(config, "noted", False):
        return "a number beside the weights is sent in simulations only"
    if config.budget is not None:
        return "the byte budget is for simulations; every site's policy limits its own bytes"
    return ""


def _identity(config: Method) -> list[Any]:
    """What a method is: its settings, its class and, of somebody else's, the code of its module."""
    kind = type(config)
    code = "" if kind.__module__.startswith("abps.") else inspect.getsource(inspect.getmodule(kind) or kind)
    return [describe(config), f"{kind.__module__}:{kind.__qualname__}", code]
