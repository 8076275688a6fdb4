"""Prepared rows that several runs share: prepared once per federation, seed and way of preparing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from abps.data.federation import Federation
from abps.data.prepare import Prepared, prepare
from abps.data.split import assign_folds, fold_split
from abps.methods.base import Method


class Preparations:
    """Keeps the preparations that were used last, up to so many bytes."""

    def __init__(self, most_bytes: int = 400_000_000) -> None:
        self._most = most_bytes
        self._held: dict[tuple[Any, ...], list[Prepared]] = {}

    def split(self, federation: Federation, seed: int, config: Method) -> Prepared:
        """The federation in the split of a seed, as a method wants it prepared."""
        return self._get(federation, seed, 0, config, lambda: [_prepared(federation, seed, config)])[0]

    def folds(self, federation: Federation, seed: int, folds: int, config: Method) -> list[Prepared]:
        """The federation with each fold as its test rows in turn."""
        return self._get(
            federation, seed, folds, config, lambda: prepared_folds(federation, seed, folds, config)
        )

    def _get(
        self,
        federation: Federation,
        seed: int,
        folds: int,
        config: Method,
        make: Callable[[], list[Prepared]],
    ) -> list[Prepared]:
        how = config.training
        key = (
            federation.fingerprint(), federation.name, seed, folds, how.standardise, how.splines,
            config.privacy.min_cell,
        )  # fmt: skip
        found = self._held.pop(key, None)
        self._held[key] = make() if found is None else found  # the last one used goes last
        while len(self._held) > 1 and sum(_size(each) for each in self._held.values()) > self._most:
            del self._held[next(iter(self._held))]
        return self._held[key]


def _size(parts: list[Prepared]) -> int:
    return sum(rows.x.nbytes for part in parts for rows in (part.train, part.validation, part.test))


def _prepared(federation: Federation, seed: int, config: Method, **split: Any) -> Prepared:
    how = config.training
    return prepare(
        federation,
        seed,
        standardise=how.standardise,
        splines=how.splines,
        min_cell=config.privacy.min_cell,
        **split,
    )


def prepared_folds(federation: Federation, seed: int, folds: int, config: Method) -> list[Prepared]:
    """The federation with each fold as its test rows in turn, as a method wants it prepared."""
    fold = assign_folds(federation, seed, folds)
    # All folds on one time grid and one scale, so that their answers can stand side by side.
    agreed = replace(federation, outcome=federation.outcome.settled(federation.label))
    return [_prepared(agreed, seed, config, split=fold_split(fold, k, folds)) for k in range(folds)]


#: Shared by all runs of this process.
SHARED: Final = Preparations()
