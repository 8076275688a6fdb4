"""Prepared rows that several runs share: prepared once per federation, seed and way of preparing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from abps.data.federation import Federation
from abps.data.prepare import Prepared, prepare
from abps.data.split import assign_folds, fold_split
from abps.methods.accounting import counting_of
from abps.methods.base import Method

#: Bytes of the preparations that are kept, the last used ones.
MOST_BYTES: Final = 400_000_000

_HELD: Final[dict[tuple[Any, ...], list[Prepared]]] = {}


def shared_rows(federation: Federation, seed: int, config: Method, folds: int = 0) -> list[Prepared]:
    """The federation as a method wants it prepared: in the split of a seed, or with each of so many folds as
    its test rows in turn."""
    how: dict[str, Any] = {"standardise": config.training.standardise, "splines": config.training.splines}
    how |= {"min_cell": config.privacy.min_cell, "histograms": counting_of(config, seed)}
    key = (federation.fingerprint(), federation.name, seed, folds, *how.values())
    found = _HELD.pop(key, None)
    if found is None and folds:
        fold = assign_folds(federation, seed, folds)
        # All folds on one time grid and one scale, so that their answers can stand side by side.
        agreed = replace(federation, outcome=federation.outcome.settled(federation.label))
        found = [prepare(agreed, seed, split=fold_split(fold, k, folds), **how) for k in range(folds)]
    _HELD[key] = found or [prepare(federation, seed, **how)]  # the last one used goes last
    while len(_HELD) > 1 and sum(map(_size, _HELD.values())) > MOST_BYTES:
        del _HELD[next(iter(_HELD))]
    return _HELD[key]


def _size(parts: list[Prepared]) -> int:
    return sum(rows.x.nbytes for part in parts for rows in (part.train, part.validation, part.test))
