"""A model's performance in parts of the cohort: sex, age groups, any column; small cells are not shown."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abps.evaluate.calibration import Calibration, calibration
from abps.evaluate.roc import Area, area

Floats = NDArray[np.float64]

#: A part with fewer rows, events or non-events than these is not shown.
FEWEST_ROWS, FEWEST_EVENTS = 10, 5

#: The bounds of age groups in years.
AGE_BOUNDS = (18.0, 40.0, 60.0, 80.0)

#: The most levels of a column that are shown; the rarer ones stand together.
MOST_LEVELS = 8


@dataclass(frozen=True)
class SubgroupPart:
    """One part of the cohort.  hidden: why its numbers are not shown; None if they are.

    Of a part that is not small itself the area may be shown although its counts are hidden.
    """

    name: str
    rows: int | None
    area: Area | None
    calibration: Calibration | None
    hidden: str | None = None


def subgroups(probability: Floats, y: Floats, names: Sequence[str | None]) -> list[SubgroupPart]:
    """The parts by name, in the order of their names; rows without a name are "unknown".

    A small part is hidden. If it is the only one, the counts of the next smallest are hidden as well:
    otherwise those of the small one would follow from the total.
    """
    p, y = np.asarray(probability, dtype=np.float64), np.asarray(y, dtype=np.float64)
    group = np.array(["unknown" if name is None else name for name in names], dtype=object)
    rows = {str(name): group == name for name in sorted(set(group.tolist()))}
    size = {name: int(mine.sum()) for name, mine in rows.items()}
    small = [name for name, mine in rows.items() if _is_small(y[mine])]
    hidden = dict.fromkeys(small, "too few rows or events to show")
    if len(small) == 1 and len(rows) > 1:
        other = min((name for name in rows if name not in small), key=lambda name: (size[name], name))
        hidden[other] = f"not shown, so that {small[0]!r} does not follow from the total"
    return [
        SubgroupPart(name, None, None if name in small else area(p[mine], y[mine]), None, hidden[name])
        if name in hidden
        else SubgroupPart(name, size[name], area(p[mine], y[mine]), calibration(p[mine], y[mine]))
        for name, mine in rows.items()
    ]


def _is_small(y: Floats) -> bool:
    events = int(y.sum())
    return len(y) < FEWEST_ROWS or min(events, len(y) - events) < FEWEST_EVENTS


def age_groups(years: Floats | Sequence[float], bounds: Sequence[float] = AGE_BOUNDS) -> list[str | None]:
    """(rows,) the age group of every row; None where the age is not known.

    >>> age_groups([17, 18, 39.9, 80, float("nan")])
    ['under 18', '18 to 39', '18 to 39', '80 and over', None]
    """
    names = [f"under {bounds[0]:g}"]
    names += [f"{low:g} to {high - 1:g}" for low, high in itertools.pairwise(bounds)]
    names.append(f"{bounds[-1]:g} and over")
    values = np.asarray(years, dtype=np.float64)
    place = np.searchsorted(bounds, values, side="right")
    return [names[k] if known else None for k, known in zip(place.tolist(), np.isfinite(values).tolist())]


def thirds(values: Floats) -> list[str | None]:
    """(rows,) low, middle or high third of a numeric column; None where it is not known."""
    numbers = np.asarray(values, dtype=np.float64)
    known = np.isfinite(numbers)
    if not known.any():
        return [None] * len(numbers)
    low, high = np.quantile(numbers[known], (1 / 3, 2 / 3))
    names = [f"1: up to {low:.4g}", f"2: {low:.4g} to {high:.4g}", f"3: above {high:.4g}"]
    place = np.where(numbers <= low, 0, np.where(numbers <= high, 1, 2))
    return [names[k] if ok else None for k, ok in zip(place.tolist(), known.tolist())]


def frequent(levels: Sequence[str | None], most: int = MOST_LEVELS) -> list[str | None]:
    """(rows,) the levels of a category, the rarer ones together as "other"."""
    count: dict[str, int] = {}
    for level in levels:
        if level is not None:
            count[level] = count.get(level, 0) + 1
    kept = set(sorted(count, key=lambda level: (-count[level], level))[: most - (len(count) > most)])
    return [level if level is None or level in kept else "other" for level in levels]
