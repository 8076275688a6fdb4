"""Which rows are in force in which round: a federation that stands still, or moves from window to window.

A federation with windows of time is seen through one of them (or the last few) at a time. Every window
has the same columns, agreed on in the first; each center standardises on the training rows of the
window in force, or by the common statistics of the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
    """starts: the first round of every window.  ``at(t)`` is the data in force in round t."""

    starts: tuple[int, ...]
    _federation: Federation | None
    _seed: int
    _standardise: str = "own"
    _splines: bool = False
    _min_cell: int = 0
    _histograms: HistogramSum | None = None
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
        federation = self._federation
        assert federation is not None
        if federation.era is None:
            return prepare(
                federation,
                self._seed,
                standardise=self._standardise,
                splines=self._splines,
                min_cell=self._min_cell,
                histograms=self._histograms,
            )
        if self._split is None:
            self._split = assign_splits(federation, self._seed)
        if self._book is None:
            first = federation.era == 0
            self._book = codebook(
                federation.only(first), self._seed, self._split[first], self._standardise, self._min_cell
            )
        rows = federation.era == era
        return prepare(
            federation.only(rows),
            self._seed,
            self._book,
            self._split[rows],
            self._standardise,
            self._splines,
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
    """The windows of a run of so many rounds; ``min_cell`` and ``histograms`` as in
    :func:`~abps.data.prepare.prepare`."""
    if isinstance(federation, Prepared):
        book = federation.book  # rows of one's own making have none, and are taken as they are
        made_so = "own" if book is None or book.statistics is None else "common"
        if book is not None and (made_so, federation.splines) != (standardise, splines):
            raise RequestError(
                f"{federation.name} was not prepared with standardise={standardise!r}, splines={splines}, as "
                "the model wants it; prepare it so, or give the federation itself"
            )
        if federation.min_cell < min_cell:
            raise RequestError(
                f"{federation.name} has min_cell={federation.min_cell}, not {min_cell}; prepare it "
                "so, or give the federation itself"
            )
        return Timeline((1,), None, seed, _now=(0, federation))
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
    return Timeline(starts, federation, seed, standardise, splines, min_cell, histograms)
