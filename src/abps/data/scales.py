"""Common feature statistics: one scale, one value for gaps and the same quantiles of a column everywhere.

Each center tells a little of its numeric columns, once (:func:`summarise`); from all that was told follows
one scale per column (:func:`agree`), which becomes part of the codebook. One and the same value then means
the same everywhere, and a small center borrows means and deviations that it could only guess.

What a center tells of a column: how many values it has in its training rows, their mean, their variance, and
the means of groups of neighbouring values in sorted order. A group has at least five values, so no single
one is told; a center with fewer than ten values of a column says nothing about it. Where a site has a floor,
both are of at least so many patients. Numbers are four bytes.

Both functions are pure and told in bytes, so a simulation and hospitals that send each other these bytes
come to the same numbers, bit for bit, in whatever order the centers are.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.jit import compiled

Floats = NDArray[np.float64]

#: A center with fewer values than this says nothing about a column.
FEWEST = 10

#: The fewest neighbouring values whose mean is told, and the most groups of them.
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

#: A center is told apart when its middle value lies so many typical deviations from the others' middle.
APART = 6.0

#: Values are called wild where the deviation is so many times what the inner groups of a center span.
WILD = 3.0

_HEADER = struct.Struct("<4sHH8s")

#: The bytes of a message of summaries before its columns.
HEADER_SIZE = _HEADER.size


@dataclass(frozen=True, eq=False)
class Summary:
    """What one center tells of k numeric columns, in four-byte numbers.

    count: (k,) values, 0 where the center says nothing.  mean, variance: (k,).
    groups: (k, 16) means of groups of neighbouring values, of which ``sketched(count, group)`` are in use.
    group: the fewest values of a group.
    """

    names: tuple[str, ...]
    count: NDArray[np.uint32]
    mean: NDArray[np.float32]
    variance: NDArray[np.float32]
    groups: NDArray[np.float32]
    group: int = GROUP

    def to_bytes(self) -> bytes:
        """As it is sent: a header with the size of groups and a digest of the columns' names, then column by
        column."""
        parts = [_HEADER.pack(b"ABPS", self.group, len(self.names), _digest(self.names))]
        for k, used in enumerate(sketched(self.count, self.group).tolist()):
            parts.append(struct.pack("<I", int(self.count[k])))
            if used:
                told = np.concatenate([[self.mean[k], self.variance[k]], self.groups[k, :used]])
                parts.append(told.astype("<f4").tobytes())
        return b"".join(parts)

    @staticmethod
    def from_bytes(data: bytes, names: tuple[str, ...]) -> Summary:
        """A summary of these columns as it arrived; anything else is refused."""
        k = len(names)
        try:
            magic, group, columns, digest = _HEADER.unpack_from(data)
            if (magic, columns, digest) != (b"ABPS", k, _digest(names)):
                raise ValueError("it is of other columns")
            if group < GROUP:
                raise ValueError(f"its groups are of {group} values")
            summary = _empty(names, group)
            at = _HEADER.size
            for c in range(k):
                (count,) = struct.unpack_from("<I", data, at)
                used = int(sketched(np.array([count]), group)[0])
                if 0 < count < max(FEWEST, group):
                    raise ValueError(f"{names[c]!r} is told of {count} values")
                at += 4
                numbers = np.frombuffer(data, "<f4", 2 + used if count else 0, at)
                at += numbers.nbytes
                if not np.isfinite(numbers).all():
                    raise ValueError(f"{names[c]!r} holds no numbers")
                if count:
                    summary.count[c], summary.mean[c], summary.variance[c] = count, numbers[0], numbers[1]
                    summary.groups[c, :used] = numbers[2:]
            if at != len(data) or (summary.variance < 0).any():
                raise ValueError(f"{len(data)} bytes")
        except (struct.error, ValueError) as error:
            raise RequestError(f"this is no summary of the codebook's columns ({error})") from error
        return summary


def _empty(names: tuple[str, ...], group: int) -> Summary:
    k = len(names)
    mean, variance = np.zeros((2, k), np.float32)
    groups = np.zeros((k, MOST_GROUPS), np.float32)
    return Summary(names, np.zeros(k, np.uint32), mean, variance, groups, group)


def sketched(count: NDArray[Any], group: int | NDArray[np.int64] = GROUP) -> NDArray[np.int64]:
    """How many groups are told of so many values: of at least ``group`` values each, sixteen at most.

    >>> sketched(np.array([0, 9, 10, 24, 1000])).tolist()
    [0, 0, 2, 4, 16]
    """
    many = np.asarray(count).astype(np.int64)
    return np.where(many < np.maximum(FEWEST, group), 0, np.minimum(many // group, MOST_GROUPS))


def _digest(names: Sequence[str]) -> bytes:
    return hashlib.blake2b("\n".join(names).encode(), digest_size=8).digest()


@compiled
def _tell(values, start, group, count, mean, variance, groups):
    """Summaries of columns (k, rows) for the centers start[i]:start[i+1]; gaps are not finite.

    group: (n,) the fewest values of a group.
    """
    for i in range(len(start) - 1):
        for c in range(len(values)):
            mine = values[c, start[i] : start[i + 1]]
            known = mine[np.isfinite(mine)]
            size = len(known)
            if size < max(FEWEST, group[i]):
                continue
            # In sorted order: what is told must not depend on the order of rows.
            known = np.sort(np.minimum(np.maximum(known, -LARGEST), LARGEST))
            middle = known.sum() / size
            square = 0.0
            for v in known:
                square += (v - middle) ** 2
            count[i, c], mean[i, c], variance[i, c] = size, middle, square / size
            used = min(size // group[i], MOST_GROUPS)
            for g in range(used):
                low, high = g * size // used, (g + 1) * size // used
                groups[i, c, g] = known[low:high].sum() / (high - low)


def summaries(
    names: tuple[str, ...],
    values: Floats,
    start: NDArray[np.int64],
    least: NDArray[np.int64] | None = None,
) -> tuple[Summary, ...]:
    """What each of n centers tells of columns (k, rows); center i owns the rows start[i]:start[i+1].

    Gaps are NaN. A center tells the same alone as among others.
    least: (n,) of how many values something must be told, where that is more than five.
    """
    n, k = len(start) - 1, len(names)
    group = np.full(n, GROUP) if least is None else np.maximum(least, GROUP)
    count, told = np.zeros((n, k), np.uint32), np.zeros((2, n, k), np.float32)
    groups = np.zeros((n, k, MOST_GROUPS), np.float32)
    if k:
        _tell(np.ascontiguousarray(values, dtype=np.float64), start, group, count, *told, groups)
    return tuple(Summary(names, count[i], told[0, i], told[1, i], groups[i], int(group[i])) for i in range(n))


def summarise(names: tuple[str, ...], values: Floats) -> Summary:
    """What one center tells of its columns (k, rows)."""
    return summaries(names, values, np.array([0, values.shape[1]]))[0]


@dataclass(frozen=True)
class Scale:
    """How a numeric column is read everywhere: (value - center) / spread, gaps as ``fill``.

    spread: 0 for a column that tells nothing; it is then read as 0.
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


@dataclass(frozen=True, eq=False)
class _Told:
    """All summaries side by side, centers in the order of their names.

    count, mean, variance, used: (n, k).  groups: (n, k, 16), NaN where not in use.
    """

    names: tuple[str, ...]
    centers: NDArray[np.str_]
    count: Floats
    mean: Floats
    variance: Floats
    used: NDArray[np.int64]
    groups: Floats


def _side_by_side(told: Mapping[str, Summary]) -> _Told:
    if not told:
        raise RequestError("no center told anything of its columns; at least one summary is needed")
    order = [told[name] for name in sorted(told)]
    names = order[0].names
    if any(summary.names != names for summary in order):
        raise RequestError("the summaries are of different columns; make them from one codebook")
    count = np.array([s.count for s in order], dtype=np.float64)
    used = sketched(count, np.array([[s.group] for s in order]))
    groups = np.array([s.groups for s in order], dtype=np.float64)
    groups[np.arange(MOST_GROUPS) >= used[:, :, None]] = np.nan
    mean, variance = (np.array([getattr(s, f) for s in order], np.float64) for f in ("mean", "variance"))
    return _Told(names, np.array(sorted(told)), count, mean, variance, used, groups)


def agree(told: Mapping[str, Summary], given: Statistics | None = None) -> Statistics:
    """The scales that follow from what the centers told, by their names; those that are given stay.

    Mean and deviation of all values; where a few are so far out that the deviation exceeds what the middle
    three quarters of the values span, the median and the deviation of a normal column of that span instead.
    """
    all_told = _side_by_side(told)
    total = all_told.count.sum(axis=0)
    weight = all_told.count / np.maximum(total, 1)
    middle = (weight * all_told.mean).sum(axis=0)
    deviation = np.sqrt((weight * (all_told.variance + (all_told.mean - middle) ** 2)).sum(axis=0))
    scales = {}
    for c, name in enumerate(all_told.names):
        if not total[c]:
            scales[name] = Scale(0.0, 0.0, 0.0)
            continue
        quantiles = _quantiles(all_told, c)
        center, spread = middle[c], deviation[c]
        span = quantiles[INNER[1]] - quantiles[INNER[0]]
        if 0 < span < spread:
            center, spread = np.interp(0.5, PROBABILITIES, quantiles), span / NORMAL_SPAN
        if not spread > 1e-8 * (1.0 + abs(center)):
            spread = 0.0
        short = np.array([center, spread, *quantiles], dtype=np.float32).astype(np.float64).tolist()
        scales[name] = Scale(short[0], short[1], short[0], tuple(short[2:]))
    for name, scale in ({} if given is None else given.scales).items():
        if name in scales:
            scales[name] = scale if scale.quantiles else replace(scale, quantiles=scales[name].quantiles)
    needed = [k for k, name in enumerate(all_told.names) if given is None or given.scales.get(name) is None]
    # Every center sends what it tells of the columns that nobody gave, and receives their scales.
    used = all_told.used[:, needed]
    sent = int((4 + (used > 0) * (8 + 4 * used)).sum()) + len(used) * _HEADER.size
    received = len(used) * scales_size(len(needed))
    return Statistics(scales, (0 if given is None else given.spent) + (sent + received if needed else 0))


def scales_size(columns: int) -> int:
    """The bytes in which so many scales are told."""
    return _HEADER.size + 4 * (2 + len(PROBABILITIES)) * columns


def _quantiles(told: _Told, c: int) -> Floats:
    """(20,) quantiles of column c over all centers' groups, each with the number of values it stands for."""
    real = np.isfinite(told.groups[:, c])
    values = told.groups[:, c][real]
    weight = np.repeat(told.count[:, c] / np.maximum(told.used[:, c], 1), told.used[:, c])
    rank = np.lexsort((weight, values))
    at = np.cumsum(weight[rank])
    return np.interp(PROBABILITIES, (at - weight[rank] / 2) / at[-1], values[rank])


def oddities(told: Mapping[str, Summary], statistics: Statistics) -> tuple[str, ...]:
    """What looks wrong in the columns, one sentence each, with the column and the centers it concerns."""
    every = _side_by_side(told)
    n, k = every.used.shape
    row, column = np.indices((n, k))
    # Of every center's sketch: its middle, and what lies between its outermost groups but one.
    lower, upper = np.maximum(every.used - 1, 0) // 2, every.used // 2
    middles = (every.groups[row, column, lower] + every.groups[row, column, np.minimum(upper, 15)]) / 2
    inner = every.groups[row, column, np.maximum(every.used - 2, 0)] - every.groups[row, column, 1]
    found: list[str] = []
    for c, name in enumerate(every.names):
        found += _odd_column(
            name,
            statistics.scales[name],
            every.centers,
            every.used[:, c] > 0,
            np.sqrt(every.variance[:, c]),
            middles[:, c],
            np.where(every.used[:, c] >= 4, inner[:, c], 0.0),
        )
    return tuple(found)


def _odd_column(
    name: str,
    scale: Scale,
    centers: NDArray[np.str_],
    known: NDArray[np.bool_],
    deviation: Floats,
    middle: Floats,
    inner: Floats,
) -> list[str]:
    """What looks wrong in one column, from (n,) each center's deviation, middle and inner span."""
    if not known.any():
        return [f"column {name!r}: no center has {FEWEST} values; it is read as constant"]
    found = []
    if not known.all():
        found.append(f"column {name!r}: fewer than {FEWEST} values at {_some(centers[~known])}")
    here, deviation, middle, inner = centers[known], deviation[known], middle[known], inner[known]
    if not scale.spread > 0:
        return [*found, f"column {name!r}: one value only, at {_some(here)}; it is read as constant"]
    if len(here) > 2 and (deviation > 0).any():
        apart = np.abs(middle - np.median(middle)) > APART * np.median(deviation[deviation > 0])
        if apart.any() and apart.mean() < 0.5:
            found.append(
                f"column {name!r}: the values of {_some(here[apart])} lie apart from all others (middle "
                f"{middle[apart][0]:.4g}, elsewhere {np.median(middle[~apart]):.4g}); another unit?"
            )
    wild = (inner > 0) & (deviation > WILD * inner)
    if wild.any():
        worst = here[wild][np.argmax(deviation[wild] / inner[wild])]
        found.append(
            f"column {name!r}: values far outside the rest at {_some(here[wild])}, most of all at "
            f"{str(worst)!r}; typing errors?"
        )
    return found


def _some(names: NDArray[np.str_]) -> str:
    """The first three names, and how many more there are."""
    shown = ", ".join(repr(str(name)) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
