"""The mean of a (seeds, centers) table of differences, with an interval for other centers and other seeds.

Every difference is taken for a sum: a mean, an effect of its center, an effect of its seed, and a rest.
Centers and seeds are drawn from many, so the mean is uncertain for three reasons, and seeds, of which there
are few, must be paid for with their own degrees of freedom. The components come from the two analyses of
variance (Henderson's third method, which allows for empty cells); each part of the uncertainty has a t
quantile of its own, and the squares of the two half-widths are added (as in the MOVER intervals of Zou and
Donner, Statistics in Medicine 27, 2008).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import stdtrit

Floats = NDArray[np.float64]

#: Number of seeds -> (factor of the center part, share of the rest that the center part answers for).
#: With few seeds the rest cannot be told from the seeds' own effect: the less it is taken for granted that
#: it averages out, the more of it is left to the seed part. The pairs keep the rate of false positives
#: between 3 and 7 % wherever it was simulated (benchmarks/false_positives.py); the last serves more seeds.
BALANCE = {2: (0.60, 0.05), 3: (0.85, 0.40), 4: (0.90, 0.60), 5: (0.95, 0.80)}

#: The normal equations are integers over small integers: what is smaller than this is zero, rounded.
SINGULAR = 1e-9


@dataclass(frozen=True)
class Crossed:
    """A mean over seeds of means over centers.

    center_part, seed_part: the two parts of the variance of the mean; NaN where seeds or centers are too few.
    center_freedom, seed_freedom: their degrees of freedom.
    center, seed, rest: the components of variance of one difference (not below 0).
    """

    mean: float
    seeds: int
    centers: int
    center_part: float
    seed_part: float
    center_freedom: float
    seed_freedom: float
    center: float
    seed: float
    rest: float

    def half_width(self, confidence: float) -> float:
        """Half of the interval; NaN where there is none."""
        if math.isnan(self.center_part):
            return math.nan
        factor = BALANCE[min(self.seeds, max(BALANCE))][0]
        tail = (1.0 - confidence) / 2.0
        by_centers = (factor * stdtrit(self.center_freedom, tail)) ** 2 * self.center_part
        by_seeds = stdtrit(self.seed_freedom, tail) ** 2 * self.seed_part
        return math.sqrt(by_centers + by_seeds)

    @property
    def p(self) -> float:
        """The level at which the interval just touches zero; NaN where there is no interval."""
        if math.isnan(self.center_part):
            return math.nan
        if self.center_part + self.seed_part == 0.0 or self.mean == 0.0:
            return 1.0 if self.mean == 0.0 else 0.0

        def over(log_p: float) -> float:
            return self.half_width(1.0 - math.exp(log_p)) - abs(self.mean)

        lowest = math.log(1e-15)  # below it 1 - p is 1
        return math.exp(brentq(over, lowest, 0.0)) if over(lowest) > 0.0 else 1e-15


def crossed(values: Floats) -> Crossed:
    """Analyse (seeds, centers) differences; NaN where a center has no score.

    A seed without any score, and a center without any, do not count.
    """
    defined = np.isfinite(values)
    values = values[defined.any(axis=1)][:, defined.any(axis=0)]
    known = np.isfinite(values)
    seeds, centers = values.shape
    if not values.size:
        return _only_a_mean(math.nan, seeds, centers)
    d = np.where(known, values, 0.0)
    per_seed, per_center = known.sum(axis=1), known.sum(axis=0)
    mean = float((d.sum(axis=1) / per_seed).mean())
    cells = int(known.sum())

    # seeds given centers: normal equations in the seed effects, centers taken out
    share = known / per_center
    normal = np.diag(per_seed.astype(np.float64)) - share @ known.T
    within = np.where(known, values - d.sum(axis=0) / per_center, 0.0)
    right = within.sum(axis=1)
    seed_freedom = int(np.linalg.matrix_rank(normal, rtol=SINGULAR, hermitian=True)) if seeds > 1 else 0
    rest_freedom = cells - centers - seed_freedom
    center_freedom = cells - seeds - rest_freedom
    if seed_freedom < 1 or rest_freedom < 1 or center_freedom < 1:
        return _only_a_mean(mean, seeds, centers)
    by_seeds = float(right @ np.linalg.pinv(normal, rtol=SINGULAR, hermitian=True) @ right)
    rest_squares = max(float((within**2).sum()) - by_seeds, 0.0)
    about_seeds = np.where(known, values - (d.sum(axis=1) / per_seed)[:, None], 0.0)
    by_centers = max(float((about_seeds**2).sum()) - rest_squares, 0.0)

    rest = rest_squares / rest_freedom
    center = (by_centers - center_freedom * rest) / (cells - seeds)
    seed = (by_seeds - seed_freedom * rest) / (cells - centers)

    # the variance of the mean is of_center * center + seed / seeds + of_rest * rest
    weight = known / (per_seed[:, None] * seeds)
    of_center, of_rest = float((weight.sum(axis=0) ** 2).sum()), float((weight**2).sum())
    kept = BALANCE[min(seeds, max(BALANCE))][1]
    return Crossed(
        mean,
        seeds,
        centers,
        max(of_center * center + of_rest * rest, 0.0),
        max(by_seeds - kept * seed_freedom * rest, 0.0) / (cells - centers) / seeds,
        center_freedom,
        seed_freedom,
        max(center, 0.0),
        max(seed, 0.0),
        rest,
    )


def _only_a_mean(mean: float, seeds: int, centers: int) -> Crossed:
    nothing = math.nan
    return Crossed(mean, seeds, centers, *[nothing] * 7)
