"""Which rows are in force in which round: a federation that stands still, or moves from window to window.

A federation with windows of time is seen through one of them (or the last few) at a time. Every window
has the same columns, agreed on in the first; each center standardises on the training rows of the
window in force, or by the common statistics of the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.data.codebook import Codebook
from abps.data.federation import Federation
from abps.data.histograms import HistogramSum
from abps.data.prepare import Prepared, codebook, prepare
from abps.data.split import assign_splits


@dataclass(eq=False)
class Timeline:
    """starts: the first round of every window.  ``at(t)`` is the data in force in round t.

    options: those of :func:`~abps.data.prepare.prepare`.
    """

    starts: tuple[int, ...]
    federation: Federation | Prepared
    seed: int
    options: dict[str, Any]
    _split: NDArray[np.int8] | None = None
    _book: Codebook | None = None
    _now: tuple[int, Prepared] | None = field(default=None)

    def at(self, t: int) -> Prepared:
        """The window in force in round t = 1, 2, …; the same object until the window moves on."""
        era = int(np.searchsorted(self.starts, t, side="right")) - 1
        if self._now is None or self._now[0] != era:
            self._now = era, self._window(era)
        return self._now[1]

    def _window(self, era: int) -> Prepared:
        federation = self.federation
        if isinstance(federation, Prepared):
            return federation
        if federation.era is None:
            return prepare(federation, self.seed, **self.options)
        how = self.options
        if self._split is None or self._book is None:
            self._split = assign_splits(federation, self.seed)
            first = federation.era == 0
            self._book = codebook(
                federation.only(first), self.seed, self._split[first], how["standardise"], how["min_cell"]
            )
        rows = federation.era == era
        return prepare(
            federation.only(rows),
            self.seed,
            self._book,
            self._split[rows],
            how["standardise"],
            how["splines"],
        )


def timeline(
    federation: Federation | Prepared,
    seed: int,
    rounds: int,
    standardise: str = "own",
    splines: bool = False,
    min_cell: int = 0,
    histograms: HistogramSum | None = None,
) -> Timeline:
    """The windows of a run of so many rounds; options as in :func:`~abps.data.prepare.prepare`."""
    options = {"standardise": standardise, "splines": splines, "min_cell": min_cell, "histograms": histograms}
    if isinstance(federation, Prepared):
        _check_prepared(federation, standardise, splines, min_cell)
        return Timeline((1,), federation, seed, options)
    eras = federation.eras
    if histograms is not None and federation.era is not None and standardise == "common":
        raise RequestError(
            "secure or dp_epsilon with a common scale: choose a federation without windows of time, or "
            "standardise=own"
        )
    if federation.every is not None:
        starts = tuple(1 + federation.every * era for era in range(eras))
    elif rounds < eras:
        raise RequestError(f"{eras} windows of time in {rounds} round(s): choose at least {eras} rounds")
    else:
        starts = tuple(1 + rounds * era // eras for era in range(eras))
    return Timeline(starts, federation, seed, options)


def _check_prepared(data: Prepared, standardise: str, splines: bool, min_cell: int) -> None:
    """Refuse rows that were prepared in another way than the model needs; rows without a codebook pass."""
    book = data.book
    made = "own" if book is None or book.statistics is None else "common"
    if book is not None and (made, data.splines) != (standardise, splines):
        raise RequestError(
            f"{data.name} was not prepared with standardise={standardise!r}, splines={splines}, as the model "
            "needs it; prepare it so, or give the federation itself"
        )
    if data.min_cell < min_cell:
        raise RequestError(
            f"{data.name} has min_cell={data.min_cell}, not {min_cell}; prepare it so, or give the "
            "federation itself"
        )
