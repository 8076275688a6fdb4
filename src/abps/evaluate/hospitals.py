"""Each hospital's own gain: its patients' evidence combined with what all hospitals show.

Model: measured gain ~ N(true gain, variance by patients); true gains ~ a normal law about mu + slope * x with
spread tau, and one hospital in fifty with five times that spread, so that a hospital that truly differs keeps
its difference. x is 1/events, standardised: small hospitals gain more from others. tau is that of a hospital
of median size, and grows with a power of 1/events that the data choose. The posterior integrates over tau,
that power and how far the variance by patients is overestimated on a grid, over mu and slope by Laplace's
approximation; it is a mixture of normal laws.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from abps.evaluate.paired import Floats, PairedCells

#: Grid of the spread between hospitals.
TAUS = np.concatenate([[0.0], np.geomspace(0.004, 0.25, 16)])

#: The share of unusual hospitals, and how many times wider their gains spread.
UNUSUAL, FACTOR = 0.02, 5.0

#: Scales of the priors of tau and of the slope.
TAU_SCALE, SLOPE_SCALE = 0.05, 0.05

#: DeLong's variance is too large where small folds are compared within themselves, and what is too much of it
#: would be missing in tau: shares of it that may be true, all equally likely (as the worlds of
#: benchmarks/inference_coverage.py show). A hospital's own interval keeps the whole.
SHARES = (0.7, 0.85, 1.0)

#: Powers of 1/events that the spread of true gains may grow with, all equally likely: hospitals of any size
#: differ alike, or as learning curves do. Sizes count within a factor of five of the median.
POWERS, MOST_RELATIVE = (0.0, 0.5, 1.0), 5.0

#: Steps of the fit of mu and slope; bisection steps of a quantile.
FIT_STEPS, QUANTILE_STEPS = 15, 50


@dataclass(frozen=True, eq=False)
class Mixture:
    """Mixtures of normal laws, one per row: weight, middle, spread of shape (rows, laws)."""

    weight: Floats
    middle: Floats
    spread: Floats

    @property
    def mean(self) -> Floats:
        return np.asarray((self.weight * self.middle).sum(axis=1))

    def above(self, limit: float) -> Floats:
        return np.asarray((self.weight * ndtr((self.middle - limit) / self.spread)).sum(axis=1))

    def quantile(self, share: float) -> Floats:
        """(rows,) the value that is not exceeded with probability ``share``."""
        low = (self.middle - 9.0 * self.spread).min(axis=1)
        high = (self.middle + 9.0 * self.spread).max(axis=1)
        for _ in range(QUANTILE_STEPS):
            half = 0.5 * (low + high)
            below = (self.weight * ndtr((half[:, None] - self.middle) / self.spread)).sum(axis=1)
            low, high = np.where(below < share, half, low), np.where(below < share, high, half)
        return np.asarray(0.5 * (low + high))

    def interval(self, confidence: float = 0.95) -> tuple[Floats, Floats]:
        tail = (1.0 - confidence) / 2.0
        return self.quantile(tail), self.quantile(1.0 - tail)


@dataclass(frozen=True, eq=False)
class HospitalGains:
    """Posterior of every hospital's true gain; NaN for hospitals that could not be compared.

    measured: (C,) by its own patients.  model: the gain of the models that it would get from one training.
    expected: the mean gain over trainings (for counts of hospitals).
    further: one row, the gain of one more hospital whose size is drawn from those of these hospitals.
    """

    measured: Floats
    model: Mixture
    expected: Mixture
    further: Mixture

    def expected_below(self, margin: float) -> float:
        """The expected number of hospitals that lose more than a margin."""
        return float(np.nansum(1.0 - self.expected.above(-margin)))


def hospital_gains(cells: PairedCells, inflation: float, run_variance: float = 0.0) -> HospitalGains | None:
    """The posterior of all hospitals; None if none could be compared.  run_variance: of the average gain by
    training runs, common to all hospitals."""
    variance, freedom = cells.moderated
    known = np.isfinite(cells.gain) & np.isfinite(variance)
    if not known.any():
        return None
    gain, f = cells.gain[known], freedom[known]
    least = np.maximum(variance[known], 1e-12)
    x = 1.0 / np.maximum(cells.events[known], 1.0)  # learning curves: what is lost falls with 1 / events
    relative = np.clip(x / np.median(x), 1.0 / MOST_RELATIVE, MOST_RELATIVE)
    x = (x - x.mean()) / (x.std() if x.std() > 1e-9 else 1.0)
    design = np.stack([np.ones_like(x), x], axis=1)
    fit = _fit(gain, least, design, relative)
    common = run_variance if run_variance > 0 else 0.0
    # A variance that is estimated makes a t law of a normal one: take the wider variance of that.
    noise = least * f / np.maximum(f - 2.0, 1.0)
    kept = 1.0 - noise / (noise + fit.between)
    middle = fit.prior + kept * (gain - fit.prior)
    uncertain = np.einsum("ci,tij,cj->tc", design, fit.covariance, design)
    square = kept * noise + (1.0 - kept) ** 2 * uncertain
    luck = (inflation - 1.0) * noise  # one training set differs from the average one

    def full(values: Floats) -> Floats:
        result = np.full((len(cells.gain), 2 * len(fit.tau)), np.nan)
        result[known] = values.reshape(-1, len(gain)).T
        return result

    def mixture(squared_spread: Floats) -> Mixture:
        return Mixture(full(fit.weight), full(middle), np.maximum(full(np.sqrt(squared_spread)), 1e-6))

    between = fit.between + uncertain + common + 1e-12
    share = np.array([1.0 - UNUSUAL, UNUSUAL])[:, None, None] * fit.tau[:, None] / len(gain)
    parts = share, fit.prior, np.sqrt(between)
    further = Mixture(*(np.broadcast_to(part, between.shape).reshape(1, -1) for part in parts))
    return HospitalGains(cells.gain, mixture(square + luck + common), mixture(square + common), further)


@dataclass(frozen=True, eq=False)
class _Fit:
    """For every point of the grid: tau (T,) its posterior; covariance (T, 2, 2) of mean and slope; prior (T,
    C) mu + slope x; usual and unusual variance between true gains, and weight of the laws: (2, T, C)."""

    tau: Floats
    covariance: Floats
    prior: Floats
    between: Floats
    weight: Floats


def _fit(gain: Floats, variance: Floats, design: Floats, relative: Floats) -> _Fit:
    """Mean and slope for every point of the grid (powers, shares, spreads), and its posterior; relative: (C,)
    1/events over that of the median hospital."""
    grid = np.meshgrid(np.array(POWERS), np.array(SHARES), TAUS, indexing="ij")
    power, part, tau = (each.ravel() for each in grid)
    cell = np.tile(np.concatenate([[TAUS[1]], np.diff(TAUS)]), len(tau) // len(TAUS))
    penalty = np.diag([0.0, 1.0 / SLOPE_SCALE**2])
    square = (tau[:, None] * relative ** power[:, None]) ** 2
    between = np.stack([square, FACTOR**2 * square])
    total = part[:, None] * variance + between
    share = np.array([1.0 - UNUSUAL, UNUSUAL])[:, None, None]
    precision = 1.0 / total[0]
    for _ in range(FIT_STEPS):
        information = np.einsum("tc,ci,cj->tij", precision, design, design) + penalty
        moment = np.einsum("tc,ci,c->ti", precision, design, gain)
        beta = np.linalg.solve(information, moment[..., None])[..., 0]
        prior = beta @ design.T
        log_law = np.log(share) - 0.5 * (gain - prior) ** 2 / total - 0.5 * np.log(total)
        log_each = np.logaddexp(log_law[0], log_law[1])
        weight = np.exp(log_law - log_each)
        precision = (weight / total).sum(axis=0)
    log_tau = log_each.sum(axis=1) - 0.5 * np.linalg.slogdet(information)[1]
    log_tau += -0.5 * (beta[:, 1] / SLOPE_SCALE) ** 2
    log_tau += 2.0 * np.log(tau + 0.002) - 0.5 * (tau / TAU_SCALE) ** 2 + np.log(cell)
    chance = np.exp(log_tau - log_tau.max())
    chance /= chance.sum()
    covariance, law = np.linalg.inv(information), chance[:, None] * weight
    return _Fit(chance, covariance, prior, between, law)
