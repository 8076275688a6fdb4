"""What follows from an outcome: the loss of a row, what answers say, and how well they order rows.

Losses are those of :mod:`abps.models.families`; :mod:`abps.models.modules` has them for autograd.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abps.data.outcome import Outcome
from abps.machine import compiled
from abps.models.families import family_of, softmax

Floats = NDArray[np.float64]

#: Pairs of rows that are compared one by one, which costs less than sorting that few.
COMPARED_UP_TO = 1 << 14


def shaped(z: NDArray[Any]) -> NDArray[Any]:
    """(rows, outputs) of answers, which are (rows,) where there is one."""
    return z[:, None] if z.ndim == 1 else z


def row_losses(outcome: Outcome, z: NDArray[Any], y: NDArray[Any]) -> Floats:
    """(rows,) the loss of every answer, in nats or as half a squared error."""
    return family_of(outcome).loss(shaped(z).astype(np.float64), y.astype(np.float64))


def foretold(outcome: Outcome, z: NDArray[Any]) -> Floats:
    """What answers say in the outcome's own terms: (rows, classes) chances, (rows, grid) chances to live
    longer than each time of the grid, or (rows,) numbers in their own unit."""
    answers = shaped(z).astype(np.float64)
    if outcome.kind == "classes":
        return softmax(answers)
    if outcome.kind == "survival":
        with np.errstate(over="ignore"):
            return np.asarray(np.cumprod(1.0 / (1.0 + np.exp(answers)), axis=1))
    if outcome.kind == "continuous":
        return answers[:, 0] * outcome.scale + outcome.level
    return answers[:, 0]


def risk(outcome: Outcome, z: NDArray[Any]) -> Floats:
    """(rows,) who fails earlier, or has the larger number: of hazards, the time that is not lived of the
    grid's span."""
    predicted = foretold(outcome, z)
    if outcome.kind != "survival":
        return predicted
    grid = np.array(outcome.grid)
    whole = np.concatenate([np.ones((len(predicted), 1)), predicted[:, :-1]], axis=1)
    # Lived in an interval: about the mean of its two ends.
    return -np.asarray((0.5 * (whole + predicted)) @ np.diff(grid, prepend=0.0))


def concordance(outcome: Outcome, z: NDArray[Any], y: NDArray[Any], start: NDArray[np.int64]) -> Floats:
    """(groups,) the share of pairs in the right order, 0.5 by chance: AUROC, its mean over the classes that a
    group has (one against the rest), Harrell's C, or the same for numbers. NaN where it is not defined."""
    if outcome.kind == "classes":
        chances = foretold(outcome, z)
        each = (np.ascontiguousarray(column) for column in chances.T)
        stacked = np.stack([areas(c, (y == k).astype(np.float32), start) for k, c in enumerate(each)])
        known = np.isfinite(stacked)
        with np.errstate(invalid="ignore"):
            return np.asarray(np.where(known, stacked, 0.0).sum(axis=0) / known.sum(axis=0))
    if outcome.kind == "survival":
        time, event = np.abs(y).astype(np.float64), ~np.signbit(y)
    else:
        time, event = -y.astype(np.float64), np.ones(len(y), dtype=bool)
    return np.asarray(concordances(time, event, risk(outcome, z), start))


@compiled
def concordances(time, event, risk, start):
    """(groups,) of the pairs of which one surely came first: the share in which it had the larger risk, equal
    risks as half. At one time those who were only watched so long came later. NaN without such a pair."""
    found = np.full(len(start) - 1, np.nan)
    for g in range(len(found)):
        low, high = start[g], start[g + 1]
        pairs, twice = 0, 0
        for k in range(low, high):
            if event[k]:
                for j in range(low, high):
                    if time[j] > time[k] or (time[j] == time[k] and not event[j]):
                        pairs += 1
                        twice += int(risk[j] < risk[k]) + int(risk[j] <= risk[k])
        if pairs:
            found[g] = twice / (2.0 * pairs)
    return found


@compiled
def areas(score, label, start):
    """Of every pair of a positive and a negative row of a group: the share in which the positive one stands
    higher, ties as half."""
    area = np.full(len(start) - 1, np.nan)
    for g in range(len(area)):
        mine, y = score[start[g] : start[g + 1]], label[start[g] : start[g + 1]]
        high, low = mine[y > 0], mine[~(y > 0)]
        if len(high) == 0 or len(low) == 0:
            continue
        twice = 0
        if len(high) * len(low) <= COMPARED_UP_TO:
            for value in high:
                wins = np.int32(0)
                for r in range(len(low)):
                    wins += np.int32(value > low[r]) + np.int32(value >= low[r])
                twice += wins
        else:
            high.sort()
            for value in low:
                twice += 2 * len(high) - np.searchsorted(high, value, "left")
                twice -= np.searchsorted(high, value, "right")
        area[g] = twice / (2.0 * len(high) * len(low))
    return area
