"""What a hospital tells of times to an event, or of numbers to predict, so that all agree on one grid.

The same summary as of numeric columns (:mod:`abps.data.scales`): how many values, their mean and variance,
and means of groups of neighbouring values. Of survival, times of events and times at which watching ended are
told apart; from the groups follow the time grid and its hazards. A center with too few events tells nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abps.data.masked_scales import Narrowing
from abps.data.outcome import Outcome, grid_hazards, time_grid
from abps.data.scales import Summary, sketched

#: By what names the summaries go; no column of a table is called so.
EVENTS, ENDS, VALUES = "(outcome) times of events", "(outcome) times of last watching", "(outcome) values"


def told_columns(outcome: Outcome) -> tuple[str, ...]:
    """What is told of an outcome that centers have still to agree on."""
    if outcome.agreed:
        return ()
    return (VALUES,) if outcome.kind == "continuous" else (EVENTS, ENDS)


def told_values(outcome: Outcome, label: NDArray[Any], name: str) -> NDArray[np.float64]:
    """(rows,) the values behind one of these names; NaN where a row has none."""
    if name == VALUES:
        return label.astype(np.float64)
    event = outcome.events(label)
    return np.where(event if name == EVENTS else ~event, np.abs(label).astype(np.float64), np.nan)


def settled_size(outcome: Outcome) -> int:
    """The bytes in which what was agreed on is told: two numbers an interval, or two in all."""
    return 8 * max(1, len(outcome.grid))


def settled_by(outcome: Outcome, told: Sequence[Summary]) -> Outcome:
    """The outcome with the grid, or the level and scale, that follow from what centers told of it."""
    if not told_columns(outcome):
        return outcome
    if outcome.kind == "continuous":
        count, mean, variance = (
            np.array([getattr(each, f)[each.names.index(VALUES)] for each in told], dtype=np.float64)
            for f in ("count", "mean", "variance")
        )
        if not count.sum():
            return outcome
        level = float((count * mean).sum() / count.sum())
        spread = float(np.sqrt((count * (variance + (mean - level) ** 2)).sum() / count.sum()))
        return replace(outcome, level=level, scale=spread if spread > 0 else 1.0)
    times = np.concatenate([_spread_out(each, EVENTS) for each in told])
    ends = np.concatenate([_spread_out(each, ENDS) for each in told])
    if not len(times):
        return outcome
    signed = np.concatenate([np.sort(times), -np.sort(ends)]).astype(np.float32)
    grid = time_grid(signed)
    return replace(outcome, grid=grid, hazards=grid_hazards(signed, grid))


def settled_by_counts(outcome: Outcome, found: Narrowing, first: int) -> Outcome:
    """The same from sums of counts, among which what is told of the outcome begins at the place ``first``."""
    if not told_columns(outcome):
        return outcome
    if outcome.kind == "continuous":
        scale = found.scales(0.0)[first]
        return replace(outcome, level=scale.center, scale=scale.spread if scale.spread > 0 else 1.0)
    times, ends = (np.maximum(found.spread_out(first + k), 0.0) for k in range(2))
    signed = np.concatenate([times, -ends]).astype(np.float32)
    grid = time_grid(signed)
    return replace(outcome, grid=grid, hazards=grid_hazards(signed, grid))


def _spread_out(told: Summary, name: str) -> NDArray[np.float64]:
    """As many values as a center has, each the mean of its group."""
    k = told.names.index(name)
    size = int(told.count[k])
    used = int(sketched(told.count[k : k + 1], told.group)[0])
    cuts = np.arange(used + 1) * size // max(used, 1)
    return np.repeat(told.groups[k, :used].astype(np.float64), np.diff(cuts))
