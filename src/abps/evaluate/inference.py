"""The gain of one method over another in a federation, with an interval for patients and training runs.

*These hospitals*: the mean over these hospitals if their patients and the training runs were drawn anew.
*Hospitals like these*: the mean over the population that they come from. Both allow for the training runs
with degrees of freedom of their own; the squares of the half-widths add up (MOVER, Zou and Donner 2008). The
patients' part is widened because test patients of one run train the models of the others (Nadeau and Bengio
2003); by half of their factor, as the scatter of folds is already in it.
"""

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
from scipy.optimize import brentq
from scipy.special import stdtrit

from abps.evaluate.paired import Floats, PairedCells

CONFIDENCE = 0.95

#: p-values below this are printed as "below".
SMALLEST_P = 1e-12

#: One training set differs from the average one. The share of that variance which is not in the scatter of
#: folds, whose models come from the same rows (chosen on the worlds of benchmarks/inference_coverage.py).
LUCK = 0.5


class Scope(Enum):
    THESE = "these hospitals"
    LIKE_THESE = "hospitals like these"


@dataclass(frozen=True)
class AverageGain:
    """A weighted mean of so many hospitals' gains, and the parts of its variance: by patients, between the
    hospitals if they are a sample, and by training runs (NaN with a single one)."""

    estimate: float
    patients: float
    between: float
    runs: float
    run_freedom: int
    patient_freedom: float
    hospitals: int

    def half_width(self, confidence: float = CONFIDENCE, scope: Scope = Scope.THESE) -> float:
        """Half of the interval; NaN where it is not defined (one training run, one hospital)."""
        by_data, by_runs = self.parts(confidence, scope)
        return math.sqrt(by_data + by_runs) if by_data + by_runs >= 0 else math.nan

    def parts(self, confidence: float = CONFIDENCE, scope: Scope = Scope.THESE) -> tuple[float, float]:
        """The squared half-width by patients (and hospitals), and by training runs."""
        tail = (1.0 - confidence) / 2.0
        variance, freedom = self.patients, self.patient_freedom
        if scope is Scope.LIKE_THESE:
            variance, freedom = max(self.between, self.patients), self.hospitals - 1
        if not self.hospitals or freedom < 1 or math.isnan(self.runs):
            return math.nan, math.nan
        by_runs = float(stdtrit(self.run_freedom, tail)) ** 2 * self.runs if self.runs > 0 else 0.0
        return float(stdtrit(freedom, tail)) ** 2 * variance, by_runs

    def interval(self, confidence: float = CONFIDENCE, scope: Scope = Scope.THESE) -> tuple[float, float]:
        half = self.half_width(confidence, scope)
        return self.estimate - half, self.estimate + half

    def p(self, scope: Scope = Scope.THESE) -> float:
        """The level at which the interval just touches zero; NaN where there is no interval."""
        if math.isnan(self.half_width(scope=scope)):
            return math.nan
        if self.estimate == 0.0:
            return 1.0

        def beyond(log_p: float) -> float:
            return self.half_width(1.0 - math.exp(log_p), scope) - abs(self.estimate)

        lowest = math.log(SMALLEST_P)
        return math.exp(brentq(beyond, lowest, 0.0)) if beyond(lowest) > 0.0 else SMALLEST_P


def fold_inflation(folds: int) -> float:
    """The factor of the patients' variance with K folds."""
    return 1.0 + LUCK / (folds - 1.0)


def split_inflation(test_rows: float, training_rows: float) -> float:
    """The factor of the patients' variance with single splits: 1 + test rows / training rows."""
    return 1.0 + test_rows / training_rows


def average_gain(cells: PairedCells, inflation: float, weight: Floats | None = None) -> AverageGain:
    """The mean gain over hospitals with the parts of its variance.  weight: (C,); default: equal."""
    variance, freedom = cells.moderated
    known = np.isfinite(cells.gain) & np.isfinite(variance)
    count = int(known.sum())
    if not count:
        return AverageGain(math.nan, math.nan, math.nan, math.nan, 0, 0.0, 0)
    w = np.where(known, 1.0 if weight is None else weight, 0.0)
    w = w / w.sum()
    gain = np.where(known, cells.gain, 0.0)
    estimate = float(w @ gain)
    each = np.where(known, w**2 * np.nan_to_num(variance), 0.0) * inflation
    patients = max(float(each.sum()) + inflation * _shared_patients(cells, w), 0.0)
    between = count / max(count - 1, 1) * float((w**2 * (gain - estimate) ** 2).sum())
    spread = float((each[known] ** 2 / freedom[known]).sum())
    patient_freedom = max(patients**2 / spread, 1.0) if spread > 0 else float(freedom[known].sum())
    runs, run_freedom = _run_variance(cells, gain, w)
    return AverageGain(estimate, patients, between, runs, run_freedom, patient_freedom, count)


def _run_variance(cells: PairedCells, gain: Floats, w: Floats) -> tuple[float, int]:
    """The variance of the mean by training runs, and its degrees of freedom; the hospitals' own noise is
    taken out of the scatter of runs, of few runs not all, as it is known badly."""
    share = cells.weight / np.maximum(cells.weight.sum(axis=0), 1e-300) * w
    part = np.where(cells.weight > 0, share * (cells.cell - gain), 0.0)
    count = len(part)
    if count < 2:
        return math.nan, 0
    kept = 1.0 if count >= 10 else 0.8 if count >= 5 else 0.4
    scatter = float((part.sum(axis=1) ** 2).sum() - kept * (part**2).sum())
    return count / (count - 1) * max(scatter, 0.0), count - 1


def _shared_patients(cells: PairedCells, w: Floats) -> float:
    """What patients of several hospitals add to the variance of the mean."""
    if cells.influence is None:
        return 0.0
    patient, center, influence = cells.influence
    whom, at = np.unique(patient, return_inverse=True)
    if len(whom) == len(patient):
        return 0.0
    x = w[center] * influence
    return float((np.bincount(at, weights=x) ** 2).sum() - (x**2).sum())
