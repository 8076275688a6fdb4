"""What privacy a center has spent: one account over everything that leaves it, and the ε that follows.

Every release (statistics, metadata, scores, each step of training) is a Gaussian mechanism, perhaps on a
Poisson sample of the rows. An account lists them, so that a reviewer can compute its ε at a given δ again.
Neighbouring tables differ in one row, there or not.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError

SCHEMA = "abps.privacy/1"
LEDGER_SCHEMA = "abps.privacy-ledger/1"


@dataclass(frozen=True)
class Release:
    """Something that left a center.  what: statistics, metadata, scores or training.  noise: standard
    deviation over sensitivity.  sampling: the chance of a row to be used at all (1: all are).  times: how
    often, in this round."""

    round: int
    what: str
    noise: float
    sampling: float = 1.0
    times: int = 1

    def __post_init__(self) -> None:
        if not self.noise >= 0 or not 0 < self.sampling <= 1 or self.times < 1:
            given = f"noise={self.noise}, sampling={self.sampling}, times={self.times}"
            why = "is no release; noise is from 0, sampling above 0 to 1, times from 1"
            raise RequestError(f"{self.what} of round {self.round}: {given} {why}")


@dataclass(frozen=True)
class Account:
    """epsilon: the most that may be spent (infinite: no limit).  delta: the chance that ε fails."""

    epsilon: float = math.inf
    delta: float = 1e-5
    releases: tuple[Release, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise RequestError(f"epsilon={self.epsilon}: choose a number above 0, or inf")
        if not 0 < self.delta < 1:
            raise RequestError(f"delta={self.delta}: a probability, choose between 0 and 1, below 1 / rows")

    def spent(self) -> float:
        return epsilon_of(self.releases, self.delta)

    def affords(self, *more: Release) -> bool:
        return math.isinf(self.epsilon) or epsilon_of((*self.releases, *more), self.delta) <= self.epsilon

    def spend(self, *more: Release) -> Account:
        return replace(self, releases=(*self.releases, *more))

    def to_json(self) -> dict[str, Any]:
        spent = self.spent()
        return {
            "schema": SCHEMA,
            "budget": None if math.isinf(self.epsilon) else self.epsilon,
            "delta": self.delta,
            "epsilon": None if math.isinf(spent) else spent,
            "releases": [asdict(release) for release in self.releases],
        }

    @staticmethod
    def from_json(data: Any) -> Account:
        """An account as it was written; the ε that stands in it is not believed, it follows."""
        try:
            if data["schema"] != SCHEMA:
                raise ValueError(f"schema {data['schema']!r}")
            budget = math.inf if data["budget"] is None else float(data["budget"])
            releases = msgspec.convert(data["releases"], tuple[Release, ...])
            return Account(budget, float(data["delta"]), releases)
        except (KeyError, TypeError, ValueError, OverflowError, msgspec.ValidationError) as error:
            raise RequestError(f"this is not a privacy account ({error!r})") from error


@dataclass(frozen=True)
class PrivacyLedger:
    """The accounts of a run, by center, and what they do not cover, in words."""

    accounts: Mapping[str, Account]
    not_covered: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": LEDGER_SCHEMA,
            "not_covered": list(self.not_covered),
            "centers": {name: account.to_json() for name, account in self.accounts.items()},
        }

    @staticmethod
    def from_json(data: Any) -> PrivacyLedger:
        try:
            if data["schema"] != LEDGER_SCHEMA:
                raise ValueError(f"schema {data['schema']!r}")
            accounts = {str(name): Account.from_json(each) for name, each in data["centers"].items()}
            return PrivacyLedger(accounts, tuple(str(words) for words in data["not_covered"]))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RequestError(f"this is not a ledger of privacy ({error!r})") from error


@dataclass(frozen=True)
class Recount:
    """A ledger computed again.  most: the largest ε of a center.  wrong: the centers whose written ε does not
    follow from their releases."""

    most: float
    wrong: tuple[str, ...]

    @property
    def words(self) -> str:
        names = ", ".join(self.wrong[:3])
        return f"differs from what is written at {names}" if names else "as it is written"


def recount(data: Any) -> Recount:
    """A ledger's file held against its own releases, as a reviewer does."""
    again = {name: account.spent() for name, account in PrivacyLedger.from_json(data).accounts.items()}
    try:
        said = {name: data["centers"][name]["epsilon"] for name in again}
        written = {name: math.inf if each is None else float(each) for name, each in said.items()}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RequestError(f"this ledger states no ε for a center ({error!r})") from error
    # What is no number follows from nothing, so it is asked whether the two agree, not whether they differ.
    wrong = [n for n in again if not math.isclose(written[n], again[n], rel_tol=1e-6, abs_tol=1e-6)]
    return Recount(max(again.values(), default=0.0), tuple(wrong))


def epsilon_of(releases: Iterable[Release], delta: float) -> float:
    """ε of releases one after the other, at δ."""
    counted: dict[tuple[float, float], int] = {}
    for release in releases:
        key = (release.noise, release.sampling)
        counted[key] = counted.get(key, 0) + release.times
    return _epsilon(tuple(sorted(counted.items())), delta)


@functools.lru_cache(maxsize=4096)
def _epsilon(counted: tuple[tuple[tuple[float, float], int], ...], delta: float) -> float:
    if not counted:
        return 0.0
    if any(noise == 0 for (noise, _), _ in counted):
        return math.inf
    # Takes seconds to import, and only an account with entries needs it.
    try:
        import dp_accounting
        from absl import logging as library_log
        from dp_accounting import rdp
    except ImportError as error:
        why = "an account of privacy needs dp-accounting"
        raise RequestError(f"{why}; run: pip install 'abps[privacy]'") from error

    # The library's log handler keeps what is standard error now, and closes it when anybody configures
    # logging anew. It never closes the process's own.
    library_log.get_absl_handler().python_handler.setStream(sys.__stderr__)

    accountant = rdp.RdpAccountant()  # Rényi's
    for (noise, sampling), times in counted:
        event = dp_accounting.GaussianDpEvent(noise)
        if sampling < 1:
            event = dp_accounting.PoissonSampledDpEvent(sampling, event)
        try:
            accountant.compose(event, times)
        except OverflowError:  # so little noise, or so often, that nothing is hidden
            return math.inf
    return float(accountant.get_epsilon(delta))


def noise_for(epsilon: float, delta: float, plan: Mapping[str, tuple[float, int]]) -> float:
    """The smallest noise with which a whole plan (what is released -> (sampling, times)) stays within ε: the
    same for every release of it."""
    return _noise_for(epsilon, delta, tuple(sorted(plan.items())))


@functools.lru_cache(maxsize=64)
def _noise_for(epsilon: float, delta: float, plan: tuple[tuple[str, tuple[float, int]], ...]) -> float:
    def total(noise: float) -> float:
        return epsilon_of((Release(0, what, noise, q, times) for what, (q, times) in plan), delta)

    low, high = 0.05, 0.1
    while total(high) > epsilon:
        low, high = high, 2 * high
        if high > 1e6:
            raise RequestError(f"epsilon={epsilon}: no amount of noise keeps this plan within it")
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if total(middle) > epsilon else (low, middle)
    return high


Floats = NDArray[np.float64]

#: Plausible values of published entries that are no shares: the logarithm of one to a hundred million rows;
#: the year 1900 to 2300 over 2030 (published data sets shift dates into the future).
_RANGES = {"log training rows": (0.0, 18.5), "mean year / 2030": (1900 / 2030, 2300 / 2030)}


def sensitivity(names: tuple[str, ...]) -> Floats:
    """(k,) the sensitivity of every entry, times the number of rows."""
    years = np.ptp(_RANGES["mean year / 2030"])
    return np.array([years if name == "mean year / 2030" else 1.0 for name in names])


def noisy(
    names: tuple[str, ...], vector: Floats, rows: int, noise: float, random: np.random.Generator
) -> Floats:
    """(k,) a center's metadata vector through a Gaussian mechanism with ``noise`` deviations per sensitivity.
    In units of its own sensitivity every entry has sensitivity 1, so the vector has sensitivity root k.
    Entries are clipped to their plausible range."""
    if not len(names):
        return vector
    spread = noise * np.sqrt(len(names)) * sensitivity(names) / max(rows, 1)
    drawn = vector + spread * random.standard_normal(len(names))
    low, high = zip(*(_RANGES.get(name, (0.0, 1.0)) for name in names))
    kept = np.clip(drawn, low, high)
    return np.asarray(kept.astype(np.float32).astype(np.float64))
