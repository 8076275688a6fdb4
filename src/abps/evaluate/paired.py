"""Two methods on the same patients: differences per hospital and training run, with their patients' variance.

Every measure here is a weighted mean over rows: a row in run r at hospital c has a weight (the number of
pairs it is compared in; 1 for a loss) and, for every method, a value (the share of those pairs that the
method ranks correctly; minus its loss). Only rows that were scored by the same model are compared: pairs
across folds would punish methods whose models have intercepts of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Limits of the degrees of freedom that the hospitals' common variance may count for.
LEAST_PRIOR, MOST_PRIOR = 4.0, 200.0

#: Standard deviation of the trend of variances over size before anything is seen, and steps of its fit.
TREND_SCALE, TREND_STEPS = 0.5, 8

#: Rows of a block in which all pairs are formed at once.
BLOCK = 512


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Rows with an out-of-fold score, one entry per row and repeat.

    row, patient, center, run: (entries,) which row it is (repeats share rows), whose, at which hospital, and
    by which training run (repeat and fold) it was scored.  y: (entries,) 1 for an event, else 0.
    """

    row: Ints
    patient: Ints
    center: Ints
    run: Ints
    y: Floats
    centers: int
    runs: int

    @property
    def cell(self) -> Ints:
        return self.run * self.centers + self.center


@dataclass(frozen=True, eq=False)
class RowValues:
    """What every entry contributes to a measure.

    weight: (entries,), the same for all methods.  value: by method, (entries,); larger is better.
    order: rows of one comparison: 2 for pairs, 1 for losses.
    support: (2, centers) rows of the two classes that pairs are formed of; of a loss, rows twice.
    """

    weight: Floats
    value: dict[str, Floats]
    order: int
    support: Floats


@dataclass(frozen=True, eq=False)
class PairedCells:
    """First method minus second, C hospitals, G training runs: all that inference needs.

    gain: (C,) NaN where nothing could be compared.  events, others: (C,) distinct rows scored.
    cell, weight: (G, C) the difference of one run at one hospital, and what it counts for there.
    variance: (C,) of ``gain`` by its own patients.  freedom: (C,) its degrees of freedom.
    unit: (C,) the variance is a common factor times this (1/events + 1/others; 1/rows for a loss).
    influence: patient, hospital and summed influence of every patient at a hospital.
    """

    gain: Floats
    events: Floats
    others: Floats
    cell: Floats
    weight: Floats
    variance: Floats
    freedom: Floats
    unit: Floats
    influence: tuple[Ints, Ints, Floats] | None = None

    @cached_property
    def moderated(self) -> tuple[Floats, Floats]:
        """(C,) variances drawn towards what hospitals of a size have in common, and their degrees of freedom:
        empirical Bayes (Smyth 2004) with a trend, because models of small hospitals differ more."""
        own = np.maximum(self.freedom, 0.0)
        known = (own > 0) & np.isfinite(self.gain)
        if not known.any():
            return np.full(len(self.gain), np.nan), own
        per_unit = np.where(known, np.nan_to_num(self.variance) / self.unit, 0.0)
        common = variance_trend(per_unit, own * known, np.log(self.unit))
        prior = prior_freedom(per_unit[known], own[known], common[known])
        variance = (prior * common + own * per_unit) / (prior + own) * self.unit
        return np.where(np.isfinite(self.gain), variance, np.nan), prior + own

    @property
    def patient_weight(self) -> Floats:
        """(C,) weights of an average over patients: proportional to the information of a hospital's rows."""
        total = np.maximum(self.events + self.others, 1.0)
        return np.where(self.others > 0, self.events * self.others / total, self.events)


def variance_trend(per_unit: Floats, freedom: Floats, x: Floats) -> Floats:
    """(C,) common variances exp(a + b x) by gamma regression; the slope b ~ N(0, 0.5²), 0 of few hospitals;
    variances with 0 degrees of freedom do not count."""
    mean = float(freedom @ per_unit / freedom.sum())
    if (freedom > 0).sum() < 3 or mean <= 0:
        return np.full(len(per_unit), mean)
    design = np.stack([np.ones_like(x), x - freedom @ x / freedom.sum()], axis=1)
    beta, penalty = np.array([np.log(mean), 0.0]), np.diag([0.0, 1.0 / TREND_SCALE**2])
    information = (0.5 * freedom[:, None] * design).T @ design + penalty
    for _ in range(TREND_STEPS):
        residual = per_unit / np.exp(design @ beta) - 1.0
        step = np.linalg.solve(information, 0.5 * design.T @ (freedom * residual) - penalty @ beta)
        beta = beta + np.clip(step, -1.0, 1.0)
    return np.asarray(np.exp(design @ beta))


def prior_freedom(per_unit: Floats, freedom: Floats, common: Floats) -> float:
    """Degrees of freedom that the common variances count for: few if hospitals' variances truly differ."""
    if len(per_unit) < 3 or not (common > 0).all():
        return LEAST_PRIOR
    excess = float(freedom @ ((per_unit / common - 1.0) ** 2 - 2.0 / freedom) / freedom.sum())
    return float(np.clip(2.0 / excess, LEAST_PRIOR, MOST_PRIOR)) if excess > 0 else MOST_PRIOR


def placements(cell: Ints, y: Floats, score: Floats) -> Floats:
    """(entries,) DeLong's placement values within cells: for an event the share of non-events below it, for a
    non-event the share of events above it. Ties count half; NaN where the other class is absent.
    """
    order = np.lexsort((score, cell))
    c, s, positive = cell[order], score[order], y[order]
    starts_tie = (
        np.concatenate([[True], (c[1:] != c[:-1]) | (s[1:] != s[:-1])]) if len(c) else np.empty(0, bool)
    )
    tie = np.cumsum(starts_tie) - 1
    cells = int(cell.max(initial=-1)) + 1
    result = np.empty(len(c))
    for own, other in ((positive, 1.0 - positive), (1.0 - positive, positive)):
        in_tie = np.bincount(tie, weights=other)
        below = (np.cumsum(in_tie) - 0.5 * in_tie)[tie]
        total = np.bincount(c, weights=other, minlength=cells)
        below -= (np.cumsum(total) - total)[c]
        mine = own > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            share = below[mine] / total[c[mine]]
        result[order[mine]] = share if own is positive else 1.0 - share
    return result


def auroc_values(rows: ScoredRows, scores: Mapping[str, Floats]) -> RowValues:
    """Values of the area under the ROC curve: weight is the number of rows of the other class in the cell."""
    cell = rows.cell
    events = np.bincount(cell, weights=rows.y, minlength=rows.runs * rows.centers)
    others = np.bincount(cell, weights=1.0 - rows.y, minlength=rows.runs * rows.centers)
    weight = np.where(rows.y > 0, others[cell], events[cell])
    value = {name: np.nan_to_num(placements(cell, rows.y, score)) for name, score in scores.items()}
    return RowValues(weight, value, 2, _class_counts(rows, weight > 0))


def concordance_values(rows: ScoredRows, time: Floats, risks: Mapping[str, Floats]) -> RowValues:
    """Values of the concordance index: ``rows.y`` is whether the event happened at ``time``. A pair counts if
    one row has its event while the other is still observed; at equal times the event comes first."""
    weight = np.zeros(len(time))
    hits = {name: np.zeros(len(time)) for name in risks}
    order = np.argsort(rows.cell, kind="stable")
    bounds = np.flatnonzero(np.diff(rows.cell[order])) + 1
    for members in np.split(order, bounds):
        t, died = time[members], rows.y[members] > 0
        for first in range(0, len(members), BLOCK):
            part = slice(first, first + BLOCK)
            later = (t > t[part, None]) | ((t == t[part, None]) & ~died)
            pair = later & died[part, None]
            weight[members[part]] += pair.sum(axis=1)
            weight[members] += pair.sum(axis=0)
            for name, risk in risks.items():
                r = risk[members]
                right = np.where(pair, (r[part, None] > r) + 0.5 * (r[part, None] == r), 0.0)
                hits[name][members[part]] += right.sum(axis=1)
                hits[name][members] += right.sum(axis=0)
    value = {name: hit / np.maximum(weight, 1.0) for name, hit in hits.items()}
    return RowValues(weight, value, 2, _class_counts(rows, weight > 0))


def loss_values(rows: ScoredRows, losses: Mapping[str, Floats]) -> RowValues:
    """Values of a loss per row (log-loss, Brier, squared error): minus the loss, every row with weight 1."""
    count = _class_counts(rows, np.ones(len(rows.y), dtype=bool)).sum(axis=0)
    value = {name: -np.asarray(loss, dtype=np.float64) for name, loss in losses.items()}
    return RowValues(np.ones(len(rows.y)), value, 1, np.stack([count, count]))


def _class_counts(rows: ScoredRows, used: NDArray[np.bool_]) -> Floats:
    """(2, centers) distinct rows with and without the event, among entries that are compared with others."""
    _, first = np.unique(rows.row[used], return_index=True)
    center, y = rows.center[used][first], rows.y[used][first]
    return np.stack([np.bincount(center, weights=part, minlength=rows.centers) for part in (y, 1.0 - y)])


def level(rows: ScoredRows, values: RowValues, method: str) -> Floats:
    """(C,) the measure of one method at every hospital, over all its runs; NaN where it is not defined."""
    total = np.bincount(rows.center, weights=values.weight, minlength=rows.centers)
    summed = np.bincount(rows.center, weights=values.weight * values.value[method], minlength=rows.centers)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total > 0, summed / total, np.nan)


def paired_cells(rows: ScoredRows, values: RowValues, first: str, second: str) -> PairedCells:
    difference = values.value[first] - values.value[second]
    shape, size = (rows.runs, rows.centers), rows.runs * rows.centers
    counted = np.bincount(rows.cell, weights=values.weight, minlength=size).reshape(shape)
    summed = np.bincount(rows.cell, weights=values.weight * difference, minlength=size).reshape(shape)
    total = counted.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        cell = np.where(counted > 0, summed / counted, 0.0)
        gain = np.where(total > 0, summed.sum(axis=0) / total, np.nan)
        influence = values.order * values.weight * (difference - gain[rows.center]) / total[rows.center]
    used = values.weight > 0
    events, others = values.support
    patient, center, summed_influence = _by_patient(rows, np.where(used, influence, 0.0), used, values)
    if values.order == 2:
        freedom = np.minimum(events, others) - 1.0
        unit = 1.0 / np.maximum(events, 1.0) + 1.0 / np.maximum(others, 1.0)
    else:
        freedom, unit, others = events - 1.0, 1.0 / np.maximum(events, 1.0), np.zeros(rows.centers)
    squares = np.bincount(center, weights=summed_influence**2, minlength=rows.centers)
    variance = np.where((freedom > 0) & np.isfinite(gain), squares, np.nan)
    weight, by_patient = counted / values.order, (patient, center, summed_influence)
    return PairedCells(gain, events, others, cell, weight, variance, freedom, unit, by_patient)


def _by_patient(
    rows: ScoredRows, influence: Floats, used: NDArray[np.bool_], values: RowValues
) -> tuple[Ints, Ints, Floats]:
    """Influence summed over repeats and over a patient's rows at a hospital, corrected for small samples."""
    count = np.where(rows.y > 0, values.support[0][rows.center], values.support[1][rows.center])
    scale = np.sqrt(count / np.maximum(count - 1.0, 1.0))
    number = np.unique(rows.patient, return_inverse=True)[1]
    whom, at = np.unique((number * rows.centers + rows.center)[used], return_inverse=True)
    summed = np.bincount(at, weights=(influence * scale)[used]).astype(np.float64)
    return whom // rows.centers, whom % rows.centers, summed
