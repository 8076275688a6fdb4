"""How well one model does: the area under its ROC curve, decisions at thresholds, parts of the cohort."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from abps.evaluate.calibration import UNKNOWN, Interval, expit
from abps.evaluate.paired import ScoredRows, auroc_values, paired_cells

Floats = NDArray[np.float64]

#: Events and non-events below which no area is shown.
FEWEST_EVENTS = 5


@dataclass(frozen=True)
class Area(Interval):
    """An AUROC, beside the events and non-events that it stands on; unknown where one of them is 0."""

    events: int = 0
    others: int = 0

    @property
    def enough(self) -> bool:
        return min(self.events, self.others) >= FEWEST_EVENTS


def area(scores: Floats, y: Floats, fold: NDArray[np.int64] | None = None) -> Area:
    """The AUROC of (rows,) scores with DeLong's variance, the interval made on the log odds of the area.

    fold: (rows,) of the model that scored a row; only pairs of one model count. An area of 0 or 1 has no
    variance: there the interval is the exact binomial's with the smaller class as its number of trials.
    """
    positive = (np.asarray(y) > 0).astype(np.float64)
    events, others = int(positive.sum()), int((1.0 - positive).sum())
    number = np.arange(len(positive))
    run = np.zeros(len(positive), np.int64) if fold is None else np.asarray(fold, np.int64)
    rows = ScoredRows(number, number, np.zeros_like(run), run, positive, 1, int(run.max(initial=0)) + 1)
    values = auroc_values(rows, {"model": np.asarray(scores, dtype=np.float64), "": np.zeros(len(run))})
    values.value[""][:] = 0.0  # against nothing: the cells are the level itself
    cells = paired_cells(rows, values, "model", "")
    value = float(cells.gain[0])
    if math.isnan(value):
        return Area(math.nan, math.nan, math.nan, events, others)
    if value in (0.0, 1.0) or min(events, others) == 1:
        away = 1.0 - 0.025 ** (1.0 / min(events, others))
        return Area(value, max(0.0, value - away), min(1.0, value + away), events, others)
    z, variance = float(ndtri(0.975)), float(cells.variance[0])
    middle, half = math.log(value / (1 - value)), z * math.sqrt(variance) / (value * (1 - value))
    low, high = expit(np.array([middle - half, middle + half])).tolist()
    return Area(value, low, high, events, others)


@dataclass(frozen=True, eq=False)
class DecisionCurve:
    """Net benefit at every threshold (k,): of the model, and of treating all; of treating none it is 0."""

    thresholds: Floats
    model: Floats
    everyone: Floats


@dataclass(frozen=True)
class AtThreshold:
    """What happens if everybody at or above a threshold is called."""

    threshold: float
    called: Interval
    sensitivity: Interval
    specificity: Interval
    positive_value: Interval
    negative_value: Interval
    net_benefit: float


def decision_curve(probability: Floats, y: Floats, thresholds: Floats | None = None) -> DecisionCurve:
    """Vickers and Elkin's decision curve of (rows,) probabilities; net benefit at threshold t: true positives
    minus false positives times t / (1 - t), per row."""
    p, y = np.asarray(probability, dtype=np.float64), np.asarray(y, dtype=np.float64)
    t = np.arange(1, 51) / 100.0 if thresholds is None else np.asarray(thresholds, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    first = np.searchsorted(p[order], t, side="left")  # rows below the threshold
    events_below = np.concatenate([[0.0], np.cumsum(y[order])])[first]
    true = y.sum() - events_below
    false = (len(y) - first) - true
    odds = t / (1.0 - t)
    rate = y.mean()
    return DecisionCurve(t, (true - false * odds) / len(y), rate - (1.0 - rate) * odds)


def at_threshold(probability: Floats, y: Floats, threshold: float) -> AtThreshold:
    called = np.asarray(probability) >= threshold
    event = np.asarray(y) > 0
    true = int((called & event).sum())
    false = int((called & ~event).sum())
    missed = int((~called & event).sum())
    spared = int((~called & ~event).sum())
    n = len(event)
    return AtThreshold(
        float(threshold),
        share(true + false, n),
        share(true, true + missed),
        share(spared, spared + false),
        share(true, true + false),
        share(spared, spared + missed),
        (true - false * threshold / (1.0 - threshold)) / n if n and threshold < 1 else float("nan"),
    )


def share(count: int, of: int) -> Interval:
    """A proportion with its Wilson interval; unknown of none.

    >>> found = share(20, 140)
    >>> round(found.value, 4), round(found.low, 4), round(found.high, 4)
    (0.1429, 0.0944, 0.2104)
    """
    if of == 0:
        return UNKNOWN
    value, z = count / of, float(ndtri(0.975))
    middle = (value + z**2 / (2 * of)) / (1 + z**2 / of)
    half = z / (1 + z**2 / of) * math.sqrt(value * (1 - value) / of + z**2 / (4 * of**2))
    return Interval(value, middle - half, middle + half)


def sensitive_threshold(probability: Floats, y: Floats, sensitivity: float = 0.9) -> float:
    """The highest threshold at which at least so many of the events are called; NaN without events."""
    events = np.sort(np.asarray(probability)[np.asarray(y) > 0])[::-1]
    if len(events) == 0:
        return float("nan")
    needed = int(np.ceil(sensitivity * len(events) - 1e-9))
    return float(events[max(needed, 1) - 1])


# ---------------------------------------------------------------- parts of the cohort

#: A part with fewer rows than these is not shown, nor one with fewer than five events or non-events.
FEWEST_ROWS = 10

#: The bounds of age groups in years, and their names.
AGE_BOUNDS = (18.0, 40.0, 60.0, 80.0)
AGE_GROUPS = ("under 18", "18 to 39", "40 to 59", "60 to 79", "80 and over")

#: The most levels of a column that are shown; the rarer ones stand together.
MOST_LEVELS = 8


@dataclass(frozen=True)
class Subgroup:
    """One part of the cohort.  ratio: events over those expected.  hidden: why its numbers are not shown; of
    a part that is not small itself the area is, with three digits, from which counts do not follow."""

    name: str
    rows: int = 0
    events: int = 0
    auroc: Interval = UNKNOWN
    ratio: float = math.nan
    hidden: str = ""


def subgroups(probability: Floats, y: Floats, names: Sequence[str | None]) -> list[Subgroup]:
    """The parts by name, in the order of their names; rows without a name are "unknown".

    A small part is hidden. If it is the only one, the counts of the next smallest are hidden as well, because
    those of the small one would follow from the total.
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
    found = []
    for name, mine in rows.items():
        if name in small:
            found.append(Subgroup(name, hidden=hidden[name]))
            continue
        a, events = area(p[mine], y[mine]), int(y[mine].sum())
        if name in hidden:
            rounded = Interval(*(round(value, 3) for value in (a.value, a.low, a.high)))
            found.append(Subgroup(name, auroc=rounded, hidden=hidden[name]))
        else:
            ratio = events / p[mine].sum() if p[mine].sum() > 0 else math.nan
            found.append(Subgroup(name, size[name], events, Interval(a.value, a.low, a.high), float(ratio)))
    return found


def _is_small(y: Floats) -> bool:
    events = int(y.sum())
    return len(y) < FEWEST_ROWS or min(events, len(y) - events) < FEWEST_EVENTS


def age_groups(years: Floats | Sequence[float]) -> list[str | None]:
    """(rows,) the age group of every row; None where the age is not known.

    >>> age_groups([17, 18, 39.9, 80, float("nan")])
    ['under 18', '18 to 39', '18 to 39', '80 and over', None]
    """
    values = np.asarray(years, dtype=np.float64)
    place = np.searchsorted(AGE_BOUNDS, values, side="right").tolist()
    return [AGE_GROUPS[k] if known else None for k, known in zip(place, np.isfinite(values).tolist())]


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


def frequent(levels: Sequence[str | None]) -> list[str | None]:
    """(rows,) the levels of a category, the rarer ones together as "other"."""
    count = Counter(level for level in levels if level is not None)
    ranked = sorted(count, key=lambda level: (-count[level], level))
    kept = set(ranked[: MOST_LEVELS - (len(count) > MOST_LEVELS)])
    return [level if level is None or level in kept else "other" for level in levels]
