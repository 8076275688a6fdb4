"""Common feature statistics: one scale, one value for gaps and the same quantiles of a column everywhere.

Each center publishes a short summary of its numeric columns, once (:func:`summaries`). From all summaries
follows one scale per column (:func:`agree`), which becomes part of the codebook. A value then means the same
everywhere, and a small center uses means and deviations that it could only estimate badly.

A summary holds, for each column: the number of values in the training rows, their mean and variance, and the
means of groups of neighbouring values in sorted order. A group has at least five values, so no single value
is published; a center with fewer than ten values of a column publishes nothing about it. With a minimum cell
size, both numbers are of at least that many patients. Count, mean, variance and the middle group have four
bytes each; the other groups' distances from it, in deviations, two (half precision): precise where values are
many, coarse far out. Agreed quantiles are written in the same way.

Survival times and continuous outcomes are summarised like columns; the time grid, or level and scale, of the
outcome follow from these summaries (:func:`settle_outcome`).

Both functions are pure, so a simulation and hospitals that exchange summaries get the same numbers, bit for
bit, in any order of centers.

Summaries show what a single center has. Where a server must see totals only (masked counts, or counts with
noise), scales follow from sums of histograms instead: every center counts its values in common bins, three
times, each with narrower bins (powers of ten, forty bins where the values are, thirty-two where nearly all
are). Values beyond the last bins count at their ends. One row changes one count of every column by one: a
histogram of k columns has the sensitivity root k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.errors import RequestError
from abps.data.outcome import Outcome, grid_hazards, time_grid
from abps.privacy.fixed_point import masked_bytes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: A center with fewer values than this says nothing about a column.
FEWEST = 10

#: The fewest neighbouring values whose mean is published, and the most groups of them.
GROUP, MOST_GROUPS = 5, 16

#: The probabilities of the quantiles that are agreed on.
PROBABILITIES = (np.arange(20) + 0.5) / 20

#: The quantiles between which three quarters of the values lie, and how many standard deviations of a normal
#: column that is. A few values far out cannot move them: they spoil the mean of an outermost group only.
INNER, NORMAL_SPAN = (2, 17), 2.3007

#: Values are read up to this size, so that their squares fit into four bytes; larger ones count as this.
LARGEST = 1e18

#: Standardised values are kept within so many deviations: a typing error must not own a coefficient.
FARTHEST = 10.0

#: The names of the summaries of an outcome; no column of a table is called so.
EVENT_TIMES: Final = "(outcome) times of events"
CENSORING_TIMES: Final = "(outcome) times of censoring"
OUTCOME_VALUES: Final = "(outcome) values"

#: The bytes of a message of summaries or scales before its columns.
HEADER_SIZE = 16


@dataclass(frozen=True, eq=False)
class ColumnSummary:
    """What one center publishes about k numeric columns, in four-byte numbers.

    count: (k,) values, 0 where the center publishes nothing.  mean, variance: (k,).
    groups: (k, 16) means of groups of neighbouring values, of which ``group_count(count, group)`` are in use.
    group: the fewest values of a group.
    """

    names: tuple[str, ...]
    count: NDArray[np.uint32]
    mean: NDArray[np.float32]
    variance: NDArray[np.float32]
    groups: NDArray[np.float32]
    group: int = GROUP

    @property
    def nbytes(self) -> int:
        """The size of a message with this summary: a header, and what is in use of every column."""
        used = group_count(self.count, self.group)
        return HEADER_SIZE + int((4 + (used > 0) * (12 + 2 * used)).sum())

    def to_json(self) -> dict[str, Any]:
        """Plain data for a file that people read: column by column."""
        columns = {
            self.names[k]: {
                "values": int(self.count[k]),
                "mean": float(self.mean[k]),
                "variance": float(self.variance[k]),
                "groups": [float(value) for value in self.groups[k, :used]],
            }
            for k, used in enumerate(group_count(self.count, self.group).tolist())
            if used
        }
        return {"group": self.group, "columns": columns}

    @staticmethod
    def from_json(data: Any, names: tuple[str, ...]) -> ColumnSummary:
        """The summary of these columns; ``ValueError`` says what is wrong with it."""
        columns, group = data["columns"], int(data["group"])
        if group < GROUP:
            raise ValueError(f"groups of {group} values")
        mean, variance = np.zeros((2, len(names)), np.float32)
        groups = np.zeros((len(names), MOST_GROUPS), np.float32)
        made = ColumnSummary(names, np.zeros(len(names), np.uint32), mean, variance, groups, group)
        for name, column in columns.items():
            if name not in names:
                raise ValueError(f"{name!r} is summarised and is no numeric column")
            k, used = names.index(name), int(group_count(column["values"], group))
            numbers = np.array([column["mean"], column["variance"], *column["groups"]], dtype=np.float32)
            if not used or len(numbers) != 2 + used or not np.isfinite(numbers).all() or numbers[1] < 0:
                raise ValueError(f"{name!r} is no summary of {column['values']} values")
            made.count[k], made.mean[k], made.variance[k] = column["values"], numbers[0], numbers[1]
            made.groups[k, :used] = numbers[2:]
        return made

    def of(self, names: tuple[str, ...]) -> ColumnSummary:
        """The summary for the columns of a common codebook; empty for those that it does not have."""
        plain = self.to_json()
        known = {name: column for name, column in plain["columns"].items() if name in names}
        return ColumnSummary.from_json(plain | {"columns": known}, names)


def group_count(count: NDArray[Any], group: int | NDArray[np.int64] = GROUP) -> NDArray[np.int64]:
    """How many groups summarise so many values: of at least ``group`` values each, sixteen at most.

    >>> group_count(np.array([0, 9, 10, 24, 1000])).tolist()
    [0, 0, 2, 4, 16]
    """
    many = np.asarray(count).astype(np.int64)
    return np.where(many < np.maximum(FEWEST, group), 0, np.minimum(many // group, MOST_GROUPS))


def summaries(
    names: tuple[str, ...],
    values: Floats,
    start: NDArray[np.int64],
    min_rows: NDArray[np.int64] | None = None,
) -> tuple[ColumnSummary, ...]:
    """The summary of columns (k, rows) by each of n centers; center i owns the rows start[i]:start[i+1].

    Missing values are NaN. A center alone gets the same summary as among others.
    min_rows: (n,) how many values a statistic must cover, where that is more than five.
    """
    n, k = len(start) - 1, len(names)
    group = np.full(n, GROUP) if min_rows is None else np.maximum(min_rows, GROUP)
    count, moments = np.zeros((n, k), np.uint32), np.zeros((2, n, k), np.float32)
    groups = np.zeros((n, k, MOST_GROUPS), np.float32)
    owner = np.repeat(np.arange(n), np.diff(start))
    for c in range(k):
        _summarise_column(values[c], owner, group, count[:, c], moments[:, :, c], groups[:, c])
    return tuple(
        ColumnSummary(names, count[i], moments[0, i], moments[1, i], groups[i], int(group[i]))
        for i in range(n)
    )


def _summarise_column(
    values: Floats,
    owner: NDArray[np.int64],
    group: NDArray[np.int64],
    count: NDArray[np.uint32],
    moments: NDArray[np.float32],
    groups: NDArray[np.float32],
) -> None:
    """Fill in one column's summary for all centers: count (n,), mean and variance (2, n), groups (n, 16).

    Sums run over sorted values one after the other (``bincount`` does), so neither the order of rows nor the
    presence of other centers changes a bit.
    """
    n = len(group)
    known = np.isfinite(values)
    size = np.bincount(owner[known], minlength=n)
    known &= (size >= np.maximum(FEWEST, group))[owner]
    mine, column = owner[known], np.clip(values[known], -LARGEST, LARGEST)
    order = np.lexsort((column, mine))
    mine, column = mine[order], column[order]
    size = np.bincount(mine, minlength=n)
    used = group_count(size, group)
    share = np.maximum(size, 1)
    mean = np.bincount(mine, weights=column, minlength=n) / share
    square = np.bincount(mine, weights=(column - mean[mine]) ** 2, minlength=n) / share
    rank = np.arange(len(column)) - np.concatenate([[0], np.cumsum(size)])[mine]
    # Group g of u in m values has the ranks g*m//u to (g+1)*m//u - 1.
    place = ((rank + 1) * used[mine] - 1) // share[mine]
    cell = mine * MOST_GROUPS + place
    total = np.bincount(cell, weights=column, minlength=n * MOST_GROUPS)
    each = np.maximum(np.bincount(cell, minlength=n * MOST_GROUPS), 1)
    count[:], moments[0], moments[1] = size, mean, square
    groups[:] = in_half_precision((total / each).reshape(n, MOST_GROUPS), used // 2, moments[1])


def in_half_precision(values: Floats, middle: NDArray[np.int64], variance: NDArray[np.float32]) -> Floats:
    """(n, k) values as a message has them: the one at ``middle`` (n,) in four bytes, the others by their
    distance from it, in deviations, in two."""
    centre = np.take_along_axis(values, middle[:, None], 1).astype(np.float32).astype(np.float64)
    spread = np.sqrt(variance.astype(np.float64))[:, None]
    apart = np.divide(values - centre, spread, out=np.zeros_like(values), where=spread > 0)
    apart = np.clip(apart, -6e4, 6e4)
    return np.asarray(centre + spread * apart.astype(np.float16).astype(np.float64))


@dataclass(frozen=True)
class Scale:
    """How a numeric column is read everywhere: (value - center) / spread, gaps as ``fill``.

    spread: 0 for a constant column; it is then read as 0.
    quantiles: where the federation's values lie, at ``PROBABILITIES``; knots of splines are among them.
    low, high: what is plausible; values outside count as gaps.
    """

    center: float
    spread: float
    fill: float
    quantiles: tuple[float, ...] = ()
    low: float = -np.inf
    high: float = np.inf

    def read(self, values: Floats) -> Floats:
        """(rows,) standardised values of a column with gaps (NaN), within ten deviations."""
        if not self.spread > 0:
            return np.zeros(len(values))
        known = np.isfinite(values) & (values >= self.low) & (values <= self.high)
        z = (np.where(known, values, self.fill) - self.center) / self.spread
        return np.clip(z, -FARTHEST, FARTHEST)

    def to_json(self) -> dict[str, Any]:
        """Plain data for a file."""
        plain: dict[str, Any] = {"center": self.center, "spread": self.spread, "fill": self.fill}
        if self.quantiles:
            plain["quantiles"] = list(self.quantiles)
        return plain | {k: v for k, v in (("low", self.low), ("high", self.high)) if np.isfinite(v)}

    @staticmethod
    def from_json(data: Any) -> Scale:
        """A scale from a file's content; ``ValueError`` says what is wrong with it."""
        unknown = set(data) - {"center", "spread", "fill", "quantiles", "low", "high"}
        if unknown:
            raise ValueError(f"{sorted(unknown)[0]!r} is not part of a scale")
        low, high = float(data.get("low", -np.inf)), float(data.get("high", np.inf))
        if "center" not in data and np.isfinite(high - low):
            # A range alone: its middle, and a third of its half as the deviation.
            data = {"center": (low + high) / 2, "spread": (high - low) / 6} | dict(data)
        center = float(data["center"])
        scale = Scale(
            center,
            float(data["spread"]),
            float(data.get("fill", center)),
            tuple(float(q) for q in data.get("quantiles", ())),
            low,
            high,
        )
        numbers = [scale.center, scale.spread, scale.fill, *scale.quantiles]
        if not np.isfinite(numbers).all() or scale.spread < 0 or not low < high:
            raise ValueError(f"a scale needs finite numbers, a spread from 0 and low below high: {data}")
        if len(scale.quantiles) not in (0, len(PROBABILITIES)) or list(scale.quantiles) != sorted(
            scale.quantiles
        ):
            raise ValueError(f"{len(PROBABILITIES)} quantiles in rising order are needed, or none")
        return scale


@dataclass(frozen=True)
class Statistics:
    """The scale of every numeric column, by its name.

    spent: bytes that centers sent and received to agree on them.
    """

    scales: Mapping[str, Scale]
    spent: int = field(default=0, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Plain data for a file."""
        return {name: scale.to_json() for name, scale in self.scales.items()}

    @staticmethod
    def from_json(data: Any) -> Statistics:
        """Statistics from a file's content; ``ValueError`` says what is wrong with them."""
        try:
            return Statistics({str(name): Scale.from_json(scale) for name, scale in data.items()})
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"statistics that are none: {error!r}") from error


def agree(summaries: Mapping[str, ColumnSummary], given: Statistics | None = None) -> Statistics:
    """The scales that follow from the summaries of the centers, by their names; those that are given stay.

    Mean and deviation of all values; where a few are so far out that the deviation exceeds what the middle
    three quarters of the values span, the median and the deviation of a normal column of that span instead.
    """
    if not summaries:
        raise RequestError("no center published a summary of its columns; at least one is needed")
    order = [summaries[name] for name in sorted(summaries)]
    names, known = order[0].names, {} if given is None else given.scales
    if any(summary.names != names for summary in order):
        raise RequestError("the summaries are of different columns; make them from one codebook")
    count, mean, variance, groups = (
        np.array([getattr(s, f) for s in order], np.float64) for f in ("count", "mean", "variance", "groups")
    )
    used = group_count(count, np.array([[s.group] for s in order]))
    total = count.sum(axis=0)
    weight = count / np.maximum(total, 1)
    middle = (weight * mean).sum(axis=0)
    deviation = np.sqrt((weight * (variance + (mean - middle) ** 2)).sum(axis=0))
    scales = {}
    for c, name in enumerate(names):
        if not total[c]:
            scales[name] = Scale(0.0, 0.0, 0.0)
            continue
        quantiles = _quantiles(groups[:, c], count[:, c], used[:, c])
        center, spread = middle[c], deviation[c]
        span = quantiles[INNER[1]] - quantiles[INNER[0]]
        if 0 < span < spread:
            center, spread = np.interp(0.5, PROBABILITIES, quantiles), span / NORMAL_SPAN
        if not spread > 1e-8 * (1.0 + abs(center)):
            spread = 0.0
        scales[name] = _as_sent(center, spread, quantiles)
    for name in set(known) & set(names):
        scale = known[name]
        scales[name] = scale if scale.quantiles else replace(scale, quantiles=scales[name].quantiles)
    # Every center sends its summary of the columns that nobody gave, and receives their scales.
    needed = tuple(name for name in names if name not in known)
    messages = sum(s.of(needed).nbytes for s in order) + len(order) * scales_size(len(needed))
    return Statistics(scales, (0 if given is None else given.spent) + (messages if needed else 0))


def _as_sent(center: float, spread: float, quantiles: Floats) -> Scale:
    """A scale as a message has it."""
    middle, unit = np.array([len(quantiles) // 2]), np.array([spread**2], dtype=np.float32)
    rounded = in_half_precision(quantiles[None], middle, unit)[0]
    short = np.array([center, spread, *rounded], dtype=np.float32).astype(np.float64).tolist()
    return Scale(short[0], short[1], short[0], tuple(short[2:]))


def scales_size(columns: int) -> int:
    """The size of a message with so many scales, in bytes."""
    return HEADER_SIZE + (12 + 2 * len(PROBABILITIES)) * columns


def _quantiles(groups: Floats, count: Floats, used: NDArray[np.int64]) -> Floats:
    """(20,) quantiles of a column over all centers' groups (n, 16), each with the values it stands for."""
    values = groups[np.arange(MOST_GROUPS) < used[:, None]]
    weight = np.repeat(count / np.maximum(used, 1), used)
    rank = np.lexsort((weight, values))
    at = np.cumsum(weight[rank])
    return np.interp(PROBABILITIES, (at - weight[rank] / 2) / at[-1], values[rank])


def outcome_columns(outcome: Outcome) -> tuple[str, ...]:
    """The summaries of an outcome that centers still have to agree on."""
    if outcome.agreed:
        return ()
    return (OUTCOME_VALUES,) if outcome.kind == "continuous" else (EVENT_TIMES, CENSORING_TIMES)


def outcome_values(outcome: Outcome, label: NDArray[Any], name: str) -> Floats:
    """(rows,) the values behind one of these summaries; NaN where a row has none."""
    if name == OUTCOME_VALUES:
        return label.astype(np.float64)
    event = outcome.events(label)
    return np.where(event if name == EVENT_TIMES else ~event, np.abs(label).astype(np.float64), np.nan)


def outcome_size(outcome: Outcome) -> int:
    """The bytes of what was agreed about an outcome: two numbers per interval, or two in all."""
    return 8 * max(1, len(outcome.grid))


def settle_outcome(outcome: Outcome, summaries: Sequence[ColumnSummary]) -> Outcome:
    """The outcome with the grid, or the level and scale, that follow from the centers' summaries of it."""
    if not outcome_columns(outcome):
        return outcome
    if outcome.kind == "continuous":
        count, mean, variance = (
            np.array([getattr(each, f)[each.names.index(OUTCOME_VALUES)] for each in summaries], np.float64)
            for f in ("count", "mean", "variance")
        )
        if not count.sum():
            return outcome
        level = float((count * mean).sum() / count.sum())
        spread = float(np.sqrt((count * (variance + (mean - level) ** 2)).sum() / count.sum()))
        return replace(outcome, level=level, scale=spread if spread > 0 else 1.0)
    times = np.concatenate([_spread_out(each, EVENT_TIMES) for each in summaries])
    ends = np.concatenate([_spread_out(each, CENSORING_TIMES) for each in summaries])
    return with_time_grid(outcome, np.sort(times), np.sort(ends)) if len(times) else outcome


def with_time_grid(outcome: Outcome, times: Floats, ends: Floats) -> Outcome:
    """The outcome with the grid and hazards that follow from times of events and of censoring."""
    signed = np.concatenate([times, -ends]).astype(np.float32)
    grid = time_grid(signed)
    return replace(outcome, grid=grid, hazards=grid_hazards(signed, grid))


def _spread_out(summary: ColumnSummary, name: str) -> Floats:
    """As many values as a center has, each the mean of its group."""
    k = summary.names.index(name)
    size = int(summary.count[k])
    used = int(group_count(summary.count[k : k + 1], summary.group)[0])
    cuts = np.arange(used + 1) * size // max(used, 1)
    return np.repeat(summary.groups[k, :used].astype(np.float64), np.diff(cuts))


# --- scales from sums of histograms ---------------------------------------------------------------------

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
    return _as_sent(center, spread, np.sort(np.interp(PROBABILITIES, below[:-1], edges)))


def settle_from_histograms(outcome: Outcome, found: HistogramRefinement, first: int) -> Outcome:
    """The outcome with its grid, or level and scale, from histograms; its columns begin at ``first``."""
    if not outcome_columns(outcome):
        return outcome
    if outcome.kind == "continuous":
        scale = found.scales(0.0)[first]
        return replace(outcome, level=scale.center, scale=scale.spread if scale.spread > 0 else 1.0)
    times, ends = (np.maximum(found.spread_out(first + k), 0.0) for k in range(2))
    return with_time_grid(outcome, times, ends)
