"""Common scales from sums alone: every center counts its values in bins that all know, and counts are added.

Summaries (:mod:`abps.data.scales`) show what a single center has. Here a server sees totals: of masked counts
(:mod:`abps.privacy.secure_sum`), or of counts with noise. Three counts, each of narrower bins: of powers of
ten, of forty bins where the values are, of thirty-two where nearly all are. Mean, deviation and quantiles
follow from the last one; values beyond it count at its ends.

One row moves one count of every column by one: a count of k columns has the sensitivity root k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.data.scales import FEWEST, PROBABILITIES, Scale, Statistics, scales_size
from abps.privacy.sum_bytes import masked_bytes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Bins of each of the three counts, and those of the first: powers of ten by quarters, both signs.
BINS = (40, 32)
TENS = 10.0 ** (np.arange(-16, 49) / 4)
FIRST = np.concatenate([-TENS[::-1], [0.0], TENS])

#: How often a center counts.
COUNTS = 1 + len(BINS)

#: The share of the values, on either side, that the bins of the next count may leave out.
OUTSIDE = (0.002, 0.01)


@dataclass(frozen=True)
class Counting:
    """How counts are told.  masked: the server sees their sum alone.

    noise: standard deviation over sensitivity of what every center adds to its own counts; 0: nothing.
    seed: of the draws; at a site with a secret in it.
    """

    masked: bool = False
    noise: float = 0.0
    seed: int = 0

    def noisy(self, counts: Floats, ids: NDArray[np.uint64], number: int) -> Floats:
        """(centers, k, bins) counts as centers tell them; number: which count it is."""
        if not self.noise:
            return counts
        spread = self.noise * np.sqrt(counts.shape[1])
        told = counts.copy()
        for i, center in enumerate(ids):
            stream = streams.generator(self.seed, "private-noise", -1 - number, int(center))
            told[i] += spread * stream.standard_normal(counts.shape[1:])
        return told

    def doubt(self, columns: int, centers: int) -> float:
        """What a total of nothing but noise does not exceed once in a thousand columns: 4.5 deviations."""
        return float(4.5 * self.noise * np.sqrt(columns * centers))


def counts_of(values: Floats, owner: Ints, n: int, edges: Floats) -> Floats:
    """(n, k, bins + 2) how many values (k, rows) each center has between the edges (k, bins + 1), and beyond.

    Gaps are NaN. owner: (rows,) each row's center.
    """
    bins = edges.shape[1] + 1
    found = np.zeros((n, len(values), bins))
    for c, column in enumerate(values):
        known = np.isfinite(column)
        place = np.searchsorted(edges[c], column[known], side="right")
        found[:, c] = np.bincount(owner[known] * bins + place, minlength=n * bins).reshape(n, bins)
    return found


def agree_from_counts(
    names: tuple[str, ...],
    values: Floats,
    start: Ints,
    centers: tuple[str, ...],
    counting: Counting,
    given: Statistics | None = None,
) -> Statistics:
    """The scales of columns (k, rows) of which center i owns the rows start[i]:start[i+1]; those that are
    given stay."""
    needed = [c for c, name in enumerate(names) if given is None or name not in given.scales]
    known = {} if given is None else dict(given.scales)
    if not needed:
        return Statistics(known, 0 if given is None else given.spent)
    n, ids = len(centers), streams.center_ids(centers)
    owner = np.repeat(np.arange(n), np.diff(start))
    some, k = values[needed], len(needed)
    spent = 0

    def total(edges: Floats, number: int) -> Floats:
        nonlocal spent
        told = counting.noisy(counts_of(some, owner, n, edges), ids, number)
        entries = told.shape[1] * told.shape[2]
        spent += masked_bytes(n, entries) if counting.masked else 8 * n * entries
        return np.asarray(told.sum(axis=0))

    scales = found(total, k, counting.doubt(k, n))
    known |= {names[c]: scale for c, scale in zip(needed, scales)}
    spent += n * scales_size(k)
    return Statistics(known, spent + (0 if given is None else given.spent))


def found(total: Callable[[Floats, int], Floats], columns: int, doubt: float) -> list[Scale]:
    """The scales that follow from totals, for which centers are asked: (edges, number) -> (k, bins + 2)."""
    edges = np.tile(FIRST, (columns, 1))
    counts = total(edges, 0)
    counts = np.where(counts > doubt, counts, 0.0)  # of many bins most are empty
    for number, (bins, outside) in enumerate(zip(BINS, OUTSIDE), start=1):
        edges = np.stack([_narrower(edges[c], counts[c], bins, outside) for c in range(columns)])
        counts = total(edges, number)
    return [_scale(edges[c], counts[c], doubt) for c in range(columns)]


def _shares(counts: Floats) -> Floats:
    """(bins + 1,) the share of the values below every edge and the last; noise does not make it fall."""
    below = np.maximum.accumulate(np.cumsum(counts))
    return np.asarray(np.clip(below / max(below[-1], 1e-9), 0.0, 1.0))


def _narrower(edges: Floats, counts: Floats, bins: int, outside: float) -> Floats:
    """(bins + 1,) edges between which all values lie but a share on either side."""
    ends = np.concatenate([edges[:1], edges, edges[-1:]])
    below = _shares(counts)
    low = ends[int(np.argmax(below > outside))]
    high = ends[1 + int(np.argmax(below >= 1.0 - outside))]
    if not high > low:
        low, high = low - 1e-9 * (1 + abs(low)), low + 1e-9 * (1 + abs(low))
    return np.linspace(low, high, bins + 1)


def _scale(edges: Floats, counts: Floats, doubt: float) -> Scale:
    if counts.sum() < max(FEWEST, doubt):
        return Scale(0.0, 0.0, 0.0)
    below = _shares(counts)
    middle = np.concatenate([edges[:1], (edges[1:] + edges[:-1]) / 2, edges[-1:]])
    share = np.diff(below, prepend=0.0)
    center = float(share @ middle)
    spread = float(np.sqrt(share @ (middle - center) ** 2))
    if share.max() > 1.0 - 1e-9 or not spread > 1e-8 * (1.0 + abs(center)):
        spread = 0.0
    quantiles = np.interp(PROBABILITIES, below[:-1], edges)
    short = np.array([center, spread, *quantiles], dtype=np.float32).astype(np.float64).tolist()
    return Scale(short[0], short[1], short[0], tuple(sorted(short[2:])))
