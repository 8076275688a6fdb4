"""Common scales from sums alone: every center counts its values in bins that all know, and counts are added.

Summaries (:mod:`abps.data.scales`) show what a single center has. Here a server sees totals: of masked counts
(:mod:`abps.privacy.secure_sum`), or of counts with noise. Three counts, each of narrower bins: of powers of
ten, of forty bins where the values are, of thirty-two where nearly all are. Mean, deviation and quantiles
follow from the last one; values beyond it count at its ends.

One row moves one count of every column by one: a count of k columns has the sensitivity root k.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.data.scales import FEWEST, PROBABILITIES, Scale
from abps.privacy.fixed_point import masked_bytes

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


class Narrowing:
    """Where the bins of the next count are, from the totals so far; after the last one, what follows from it.

    columns: how many are counted.  edges: (columns, bins + 1) of the next count, or of the last one.
    """

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.taken = 0
        self.edges = np.tile(FIRST, (columns, 1))
        self.counts = np.zeros((columns, FIRST.size + 1))

    @property
    def entries(self) -> int:
        """How many numbers the next count has: of every bin, and of what is below and above all."""
        return self.columns * (self.edges.shape[1] + 1)

    @property
    def done(self) -> bool:
        """Whether all counts were taken."""
        return self.taken == COUNTS

    def take(self, total: Floats, doubt: float) -> None:
        """The total of a count, (columns, bins + 2); doubt: what may be nothing but noise."""
        self.counts = np.where(total > doubt, total, 0.0) if self.taken == 0 else total
        self.taken += 1
        if not self.done:  # of many bins most are empty
            bins, outside = BINS[self.taken - 1], OUTSIDE[self.taken - 1]
            self.edges = np.stack([_narrower(e, c, bins, outside) for e, c in zip(self.edges, self.counts)])

    def scales(self, doubt: float) -> list[Scale]:
        """The scale of every column."""
        return [_scale(edges, counts, doubt) for edges, counts in zip(self.edges, self.counts)]

    def spread_out(self, column: int) -> Floats:
        """(values,) a column's values as its last count knows them: each in the middle of its bin."""
        edges = self.edges[column]
        middle = np.concatenate([edges[:1], (edges[1:] + edges[:-1]) / 2, edges[-1:]])
        return np.repeat(middle, np.maximum(np.rint(self.counts[column]), 0).astype(np.int64))


def told_counts(values: Floats, owner: Ints, n: int, edges: Floats, least: Ints | None) -> Floats:
    """What centers tell: their counts; nothing of a column with fewer values than they may tell of."""
    counts = counts_of(values, owner, n, edges)
    if least is None:
        return counts
    enough = counts.sum(axis=2) >= np.maximum(least, FEWEST)[:, None]
    return np.asarray(np.where(enough[:, :, None], counts, 0.0))


def counted(
    values: Floats,
    start: Ints,
    centers: tuple[str, ...],
    counting: Counting,
    least: Ints | None = None,
) -> tuple[Narrowing, int]:
    """All three counts of columns (k, rows), of which center i owns the rows start[i]:start[i+1], and the
    bytes that they took.

    least: (n,) of how many values a center may tell something; None: of any number.
    """
    n, k, ids = len(centers), len(values), streams.center_ids(centers)
    owner = np.repeat(np.arange(n), np.diff(start))
    found, spent = Narrowing(k), 0
    while not found.done:
        told = counting.noisy(told_counts(values, owner, n, found.edges, least), ids, found.taken)
        spent += masked_bytes(n, found.entries) if counting.masked else 8 * n * found.entries
        found.take(np.asarray(told.sum(axis=0)), counting.doubt(k, n))
    return found, spent


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
