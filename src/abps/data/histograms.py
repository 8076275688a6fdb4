"""Common scales from sums of histograms: every center counts its values in common bins, and counts are added.

Summaries (:mod:`abps.data.scales`) show what a single center has. Here a server sees totals only: of masked
counts (:mod:`abps.privacy.secure_sum`), or of counts with noise. Three passes, each with narrower bins:
powers of ten, forty bins where the values are, thirty-two where nearly all are. Mean, deviation and quantiles
follow from the last pass; values beyond its bins count at its ends.

One row changes one count of every column by one: a histogram of k columns has the sensitivity root k.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.data.outcome import Outcome
from abps.data.scales import FEWEST, PROBABILITIES, Scale, outcome_columns, with_time_grid
from abps.privacy.fixed_point import masked_bytes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Bins of the later passes, and edges of the first: powers of ten by quarters, both signs.
BINS = (40, 32)
TENS = 10.0 ** (np.arange(-16, 49) / 4)
FIRST = np.concatenate([-TENS[::-1], [0.0], TENS])

#: How often a center counts its values.
PASSES = 1 + len(BINS)

#: The share of the values, on either side, that the bins of the next count may leave out.
OUTSIDE = (0.002, 0.01)


@dataclass(frozen=True)
class HistogramSum:
    """How histograms are summed.  masked: the server sees their sum alone.

    noise: standard deviation over sensitivity of what every center adds to its own counts; 0: nothing.
    seed: of the draws; at a site with a secret in it.
    """

    masked: bool = False
    noise: float = 0.0
    seed: int = 0

    def noisy(self, counts: Floats, ids: NDArray[np.uint64], number: int) -> Floats:
        """(centers, k, bins) counts as centers publish them; number: of which pass."""
        if not self.noise:
            return counts
        spread = self.noise * np.sqrt(counts.shape[1])
        published = counts.copy()
        for i, center in enumerate(ids):
            stream = streams.generator(self.seed, "private-noise", -1 - number, int(center))
            published[i] += spread * stream.standard_normal(counts.shape[1:])
        return published

    def doubt(self, columns: int, centers: int) -> float:
        """The largest total that may be noise alone: 4.5 deviations, rarely exceeded."""
        return float(4.5 * self.noise * np.sqrt(columns * centers))


def bin_counts(values: Floats, owner: Ints, n: int, edges: Floats) -> Floats:
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


class HistogramRefinement:
    """Where the bins of the next pass are, from the totals so far; after the last pass, the scales.

    columns: how many there are.  edges: (columns, bins + 1) of the next pass, or of the last one.
    """

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.taken = 0
        self.edges = np.tile(FIRST, (columns, 1))
        self.counts = np.zeros((columns, FIRST.size + 1))

    @property
    def entries(self) -> int:
        """How many numbers the next histogram has: of every bin, and of what is below and above all."""
        return self.columns * (self.edges.shape[1] + 1)

    @property
    def done(self) -> bool:
        """Whether all passes are done."""
        return self.taken == PASSES

    def take(self, total: Floats, doubt: float) -> None:
        """The total of a pass, (columns, bins + 2); doubt: what may be noise alone."""
        self.counts = np.where(total > doubt, total, 0.0) if self.taken == 0 else total
        self.taken += 1
        if not self.done:  # of many bins most are empty
            bins, outside = BINS[self.taken - 1], OUTSIDE[self.taken - 1]
            self.edges = np.stack([_narrower(e, c, bins, outside) for e, c in zip(self.edges, self.counts)])

    def scales(self, doubt: float) -> list[Scale]:
        """The scale of every column."""
        return [_scale(edges, counts, doubt) for edges, counts in zip(self.edges, self.counts)]

    def spread_out(self, column: int) -> Floats:
        """(values,) a column's values as its last histogram has them: each in the middle of its bin."""
        edges = self.edges[column]
        middle = np.concatenate([edges[:1], (edges[1:] + edges[:-1]) / 2, edges[-1:]])
        return np.repeat(middle, np.maximum(np.rint(self.counts[column]), 0).astype(np.int64))


def published_counts(values: Floats, owner: Ints, n: int, edges: Floats, min_rows: Ints | None) -> Floats:
    """The counts that centers publish: zeros for a column with fewer values than ``min_rows``."""
    counts = bin_counts(values, owner, n, edges)
    if min_rows is None:
        return counts
    enough = counts.sum(axis=2) >= np.maximum(min_rows, FEWEST)[:, None]
    return np.asarray(np.where(enough[:, :, None], counts, 0.0))


def sum_histograms(
    values: Floats, start: Ints, centers: tuple[str, ...], how: HistogramSum, min_rows: Ints | None = None
) -> tuple[HistogramRefinement, int]:
    """All passes over columns (k, rows), of which center i owns rows start[i]:start[i+1], and their bytes.

    min_rows: (n,) from how many values on a center publishes counts; None: from any number.
    """
    n, k, ids = len(centers), len(values), streams.center_ids(centers)
    owner = np.repeat(np.arange(n), np.diff(start))
    found, spent = HistogramRefinement(k), 0
    while not found.done:
        published = how.noisy(published_counts(values, owner, n, found.edges, min_rows), ids, found.taken)
        spent += masked_bytes(n, found.entries) if how.masked else 8 * n * found.entries
        found.take(np.asarray(published.sum(axis=0)), how.doubt(k, n))
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


def settle_from_histograms(outcome: Outcome, found: HistogramRefinement, first: int) -> Outcome:
    """The outcome with its grid, or level and scale, from histograms; its columns begin at ``first``."""
    if not outcome_columns(outcome):
        return outcome
    if outcome.kind == "continuous":
        scale = found.scales(0.0)[first]
        return replace(outcome, level=scale.center, scale=scale.spread if scale.spread > 0 else 1.0)
    times, ends = (np.maximum(found.spread_out(first + k), 0.0) for k in range(2))
    return with_time_grid(outcome, times, ends)
