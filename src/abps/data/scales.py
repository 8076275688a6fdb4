"""Common feature statistics: one scale, one value for gaps and the same quantiles of a column everywhere.

A value then means the same at every center, and a small center need not estimate its own. The scales become
part of the codebook; survival times and continuous outcomes are counted like columns.

Scales follow from sums of histograms: every center counts its training values in common bins, three times,
each with narrower bins (powers of ten, forty bins where the values are, thirty-two where nearly all are);
values beyond count at the ends. Between sites the counts are masked, and noise may be added: one row changes
one count of every column by one, so a histogram of k columns has the sensitivity root k. Sums do not depend
on the order of centers or rows, so a simulation and hospitals get the same numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.data.outcome import Outcome
from abps.privacy.fixed_point import masked_bytes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: A column with fewer values than this, at a center with a minimum cell size or in all, is not described.
FEWEST = 10

#: The probabilities of the quantiles that are agreed on.
PROBABILITIES = (np.arange(20) + 0.5) / 20

#: Standardised values are kept within so many deviations: a typing error must not own a coefficient.
FARTHEST = 10.0

#: The names of an outcome's counts; no column of a table is called so.
EVENT_TIMES: Final = "(outcome) times of events"
CENSORING_TIMES: Final = "(outcome) times of censoring"
OUTCOME_VALUES: Final = "(outcome) values"

#: The bytes of a message of counts or scales before its columns.
HEADER_SIZE = 16


class Scale(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a numeric column is read everywhere: (value - center) / spread, gaps as ``fill``.

    spread: 0 for a constant column, which is read as 0.  quantiles: of the federation, at ``PROBABILITIES``.
    """

    center: float
    spread: float
    fill: float
    quantiles: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not np.isfinite([self.center, self.spread, self.fill, *self.quantiles]).all() or self.spread < 0:
            raise ValueError(f"a scale needs finite numbers and a spread from 0: {self}")
        if len(self.quantiles) not in (0, len(PROBABILITIES)) or any(np.diff(self.quantiles) < 0):
            raise ValueError(f"{len(PROBABILITIES)} quantiles in rising order are needed, or none")

    def read(self, values: Floats) -> Floats:
        """(rows,) standardised values of a column with gaps (NaN), within ten deviations."""
        if not self.spread > 0:
            return np.zeros(len(values))
        z = (np.where(np.isfinite(values), values, self.fill) - self.center) / self.spread
        return np.clip(z, -FARTHEST, FARTHEST)


#: The scale of every numeric column, by its name.
Scales = Mapping[str, Scale]


def scales_from_json(data: Any) -> Scales:
    """``ValueError`` says what is wrong with the content of a file."""
    return msgspec.convert(data, dict[str, Scale])


def scales_size(columns: int) -> int:
    return HEADER_SIZE + (8 + len(PROBABILITIES)) * columns


def outcome_columns(outcome: Outcome) -> tuple[str, ...]:
    """The counts of an outcome that centers still have to agree on."""
    if outcome.agreed:
        return ()
    return (OUTCOME_VALUES,) if outcome.kind == "continuous" else (EVENT_TIMES, CENSORING_TIMES)


def outcome_values(outcome: Outcome, label: NDArray[Any], name: str) -> Floats:
    """(rows,) the values behind one of these counts; NaN where a row has none."""
    if name == OUTCOME_VALUES:
        return label.astype(np.float64)
    event = outcome.events(label)
    return np.where(event if name == EVENT_TIMES else ~event, np.abs(label).astype(np.float64), np.nan)


def outcome_size(outcome: Outcome) -> int:
    return 8 * max(1, len(outcome.grid))


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
    """How histograms are summed.  masked: the server sees their sum alone, as always between sites.

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

    def sent_bytes(self, published: Floats) -> int:
        if self.masked:
            return masked_bytes(len(published), published[0].size)
        sizes = 8 * published.size if self.noise else int(counts_size(published).sum())
        return sizes + HEADER_SIZE * len(published)

    def doubt(self, columns: int, centers: int) -> float:
        """The largest total that may be noise alone: 4.5 deviations, rarely exceeded."""
        return float(4.5 * self.noise * np.sqrt(columns * centers))


def counts_size(counts: Floats) -> Ints:
    """(n,) the bytes of plain counts (n, k, bins): of each column the first and last bin that is not empty (a
    byte each), and the counts between them in Rice codes of the mean count's width w (five bits): the lowest
    w bits, and the rest in unary with a bit that ends it."""
    used = counts > 0
    span = counts.shape[2] - used[:, :, ::-1].argmax(axis=2) - used.argmax(axis=2)
    span = np.where(used.any(axis=2), span, 0)
    width = np.log2(np.maximum(counts.sum(axis=2) / np.maximum(span, 1), 1.0)).astype(np.int64)
    rest = np.floor(counts / (1 << width)[:, :, None]).sum(axis=2).astype(np.int64)
    return np.asarray((rest + (width + 1) * span + 16 + 5).sum(axis=1) + 7) // 8


def bin_counts(values: Floats, owner: Ints, n: int, edges: Floats) -> Floats:
    """(n, k, bins + 2) how many values (k, rows; NaN: gaps) each center (owner: (rows,)) has between edges
    (k, bins + 1), and beyond."""
    bins = edges.shape[1] + 1
    found = np.zeros((n, len(values), bins))
    for c, column in enumerate(values):
        known = np.isfinite(column)
        place = np.searchsorted(edges[c], column[known], side="right")
        found[:, c] = np.bincount(owner[known] * bins + place, minlength=n * bins).reshape(n, bins)
    return found


class HistogramRefinement:
    """The bins of the next pass from the totals so far; after the last pass, the scales.

    edges: (columns, bins + 1) of the next pass, or of the last one.
    """

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.taken = 0
        self.edges = np.tile(FIRST, (columns, 1))
        self.counts = np.zeros((columns, FIRST.size + 1))

    @property
    def entries(self) -> int:
        return self.columns * (self.edges.shape[1] + 1)

    @property
    def done(self) -> bool:
        return self.taken == PASSES

    def take(self, total: Floats, doubt: float) -> None:
        """The total of a pass, (columns, bins + 2); doubt: what may be noise alone."""
        self.counts = np.where(total > doubt, total, 0.0) if self.taken == 0 else total
        self.taken += 1
        if not self.done:  # of many bins most are empty
            bins, outside = BINS[self.taken - 1], OUTSIDE[self.taken - 1]
            self.edges = np.stack([_narrower(e, c, bins, outside) for e, c in zip(self.edges, self.counts)])

    def scales(self, doubt: float) -> list[Scale]:
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

    min_rows: (n,) from how many values on a center publishes counts; None: any.
    """
    n, k, ids = len(centers), len(values), streams.center_ids(centers)
    owner = np.repeat(np.arange(n), np.diff(start))
    found, spent = HistogramRefinement(k), 0
    while not found.done:
        published = how.noisy(published_counts(values, owner, n, found.edges, min_rows), ids, found.taken)
        asked = 0 if how.masked or not found.taken else 8 * k * n  # where each column's bins begin and end
        spent += how.sent_bytes(published) + asked
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
    # As sent: center and spread in four bytes each, quantiles in one, as a share of the way between edges.
    low, span = float(edges[0]), float(edges[-1]) - float(edges[0])
    step = np.rint(255.0 * (np.interp(PROBABILITIES, below[:-1], edges) - low) / span) / 255.0
    short = np.array([center, spread, *(low + span * step)], np.float32).astype(np.float64).tolist()
    return Scale(short[0], short[1], short[0], tuple(short[2:]))


def settle_from_histograms(outcome: Outcome, found: HistogramRefinement, first: int) -> Outcome:
    """The outcome with its grid, or level and scale, from histograms; its columns begin at ``first``."""
    if not outcome_columns(outcome):
        return outcome
    if outcome.kind == "continuous":
        scale = found.scales(0.0)[first]
        return replace(outcome, level=scale.center, scale=scale.spread if scale.spread > 0 else 1.0)
    times, ends = (np.maximum(found.spread_out(first + k), 0.0) for k in range(2))
    return outcome.settled(np.concatenate([times, -ends]).astype(np.float32))
