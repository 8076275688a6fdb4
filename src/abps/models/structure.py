"""Do centers differ in ways that others share? A subspace of deviations, a test on held-out rows, clusters.

All of this works on *half scores*: every center splits its rows at random, and computes the score of each
half at the common model, orthogonal to its own intercept. Halves are independent given the common model, so
products of the two have mean zero unless centers really differ; no null distribution has to be guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abps.models.hierarchical import CenterRows, CommonModel, fit_intercepts, posterior

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Dimensions of the subspace, and of the part of it in which clusters are sought.
DIMENSIONS = 6
CLUSTER_DIMENSIONS = 5

#: Directions with less than this share of the largest curvature are left out.
LEAST_CURVATURE = 0.01

#: Scores longer than this many times the median are shortened to it.
LONGEST = 2.0

#: How far a tested subspace is trusted: each candidate has a number of dimensions and a scale of loadings.
CANDIDATES = ((5, 0.35), (5, 0.7), (6, 1.0))

#: The most clusters.
MOST_CLUSTERS = 24


def halves(rows: CenterRows, order: Floats) -> NDArray[np.bool_]:
    """(rows,) which rows are in the first half of their center; order: (rows,) random numbers."""
    ranked = np.lexsort((order, rows.owner))
    place = np.empty(len(ranked), dtype=np.int64)
    place[ranked] = np.arange(len(ranked)) - rows.start[rows.owner[ranked]]
    return np.asarray(place < rows.sizes[rows.owner] // 2)


def orthogonal_scores(rows: CenterRows, common: CommonModel) -> tuple[Floats, Floats]:
    """Scores (n, columns) of every center at the common model, orthogonal to its intercept, and its
    information (n,); of outcomes with one term."""
    _, _, z = fit_intercepts(rows, common)
    residual = rows.family.residual(z, rows.y, rows.start)[:, 0] / common.dispersion
    weight = rows.family.information(z, rows.y, rows.start)[:, 0, 0] / common.dispersion
    scores, total = np.zeros((rows.n, rows.x.shape[1])), rows.totals(weight)
    for i in range(rows.n):
        part = slice(rows.start[i], rows.start[i + 1])
        x = rows.x[part].astype(np.float64)
        middle = weight[part] @ x / max(float(total[i]), 1e-9)
        scores[i] = residual[part] @ (x - middle)
    return scores, total


@dataclass(frozen=True, eq=False)
class Whitening:
    """Coordinates in which a center's score has the identity as covariance, per unit of information.

    out: (columns, m) scores into them.  back: (columns, m) from them into coefficients, transposed.
    """

    out: Floats
    back: Floats

    @staticmethod
    def of(curvature: Floats) -> Whitening:
        """From the curvature (columns, columns) of one unit of information."""
        value, vector = np.linalg.eigh(curvature)
        kept = value > LEAST_CURVATURE * value[-1]
        value, vector = value[kept], vector[:, kept]
        return Whitening(vector / np.sqrt(value), vector * np.sqrt(value))


def subspace(
    first: Floats, second: Floats, information: Floats, whitening: Whitening, variance: Floats
) -> Floats:
    """(columns, r) loadings of the deviations that centers share, from the scores (n, columns) of two halves.

    variance: (columns,) of deviations that are each center's own, which are taken off.
    """
    one, other = (_whitened(score, information, whitening) for score in (first, second))
    product = one.T @ other
    half = information.sum() / 2
    product = 0.5 * (product + product.T) - half * (whitening.back.T * variance) @ whitening.back
    value, vector = np.linalg.eigh(product)
    top = slice(-1, -1 - min(DIMENSIONS, len(value)), -1)
    return np.asarray(whitening.out @ vector[:, top] * np.sqrt(np.maximum(value[top], 0.0) / half))


def _whitened(score: Floats, information: Floats, whitening: Whitening) -> Floats:
    """(n, m) half scores with the identity as covariance, none of them much longer than the others."""
    z = score @ whitening.out / np.sqrt(np.maximum(information, 1e-9) / 2)[:, None]
    length = np.sqrt((z**2).sum(axis=1))
    return np.asarray(z * np.minimum(1.0, LONGEST * np.median(length) / np.maximum(length, 1e-9))[:, None])


def difference_test(
    first: Floats, second: Floats, information: Floats, whitening: Whitening, signs: Floats
) -> float:
    """The p-value of the hypothesis that centers do not differ.

    If they do not, a center's two half scores are independent with mean zero, and the sign of one of them
    says nothing. The statistic is the sum of the largest eigenvalues of the summed products of both halves,
    against the same with random signs (draws, n).
    """
    one, other = (_whitened(score, information, whitening) for score in (first, second))
    if 2 * len(one) < one.shape[1]:  # in the space that the scores span
        basis = np.linalg.qr(np.concatenate([one, other]).T)[0]
        one, other = one @ basis, other @ basis

    def largest(signed: Floats) -> float:
        product = signed.T @ other
        return float(np.linalg.eigvalsh(product + product.T)[-CLUSTER_DIMENSIONS:].sum())

    seen = largest(one)
    return (1 + sum(largest(one * sign[:, None]) >= seen for sign in signs)) / (1 + len(signs))


def with_loadings(x: Floats, common: CommonModel, loadings: Floats) -> tuple[Floats, CommonModel]:
    """Design and prior with the positions along loadings (columns, r) of its first columns as further
    coefficients."""
    extra = x[:, : len(loadings)] @ loadings
    r = loadings.shape[1]
    mean = np.concatenate([common.mean, np.zeros((1, r))], axis=1)
    variance = np.concatenate([common.variance, np.ones((1, r))], axis=1)
    return np.concatenate([x, extra], axis=1), CommonModel(mean, variance, common.dispersion)


def candidate(loadings: Floats, k: int) -> Floats:
    """(columns, r) the loadings of candidate k."""
    dimensions, trust = CANDIDATES[k]
    return np.asarray(trust * loadings[:, :dimensions])


def held_out_gain(
    rows: CenterRows, i: int, common: CommonModel, loadings: Floats, half: NDArray[np.bool_]
) -> Floats:
    """(candidates,) by how much a subspace lowers the loss of center i on one half of its rows when it fits
    the other half, both ways."""
    x, y, family = rows.design(i), rows.outcomes(i), rows.family
    part = half[rows.start[i] : rows.start[i + 1]]
    gain = np.zeros(len(CANDIDATES))
    for fit in (part, ~part):
        if fit.sum() < 2 or (~fit).sum() < 2:
            continue
        whole = np.array([0, int((~fit).sum())])

        def loss(
            design: Floats, prior: CommonModel, fit: NDArray[np.bool_] = fit, whole: Ints = whole
        ) -> float:
            model = posterior(design[fit], y[fit], family, prior).model
            z = design[~fit] @ model.T @ family.mix + family.baseline
            return float(family.loss(z, y[~fit], whole).sum()) / common.dispersion

        plain = loss(x, common)
        for k in range(len(CANDIDATES)):
            gain[k] += plain - loss(*with_loadings(x, common, candidate(loadings, k)))
    return gain


def gain_z(total: Floats, squares: Floats, n: int) -> Floats:
    """(candidates,) how many standard errors the mean gain of n centers lies above zero, from the sums of
    gains and of their squares."""
    mean = total / n
    spread = np.sqrt(np.maximum(squares / n - mean**2, 1e-12))
    return np.asarray(mean / spread * np.sqrt(n))


def positions(
    score: Floats, information: Floats, whitening: Whitening, loadings: Floats, variance: Floats
) -> tuple[Floats, Floats]:
    """(n, r) where centers lie along loadings (columns, r), by least squares, and (n, r) the variances."""
    along = whitening.back.T @ loadings
    own = (whitening.back**2 * variance[:, None]).sum(axis=0)
    z = score @ whitening.out / np.maximum(information, 1e-9)[:, None]
    n, r = len(score), loadings.shape[1]
    found, doubt = np.zeros((n, r)), np.zeros((n, r))
    for i in range(n):
        weight = 1.0 / (1.0 / max(float(information[i]), 1e-9) + own)
        inverse = np.linalg.inv((along.T * weight) @ along + 1e-6 * np.eye(r))
        found[i] = inverse @ ((along.T * weight) @ z[i])
        doubt[i] = np.diag(inverse)
    return found, doubt


def find_clusters(place: Floats, doubt: Floats) -> Floats:
    """(n, k) probabilities to belong to each of k clusters: a mixture of normal distributions, each place
    with a known variance (n, r) beside the common one within clusters; k by the Bayesian information
    criterion."""
    n, r = place.shape
    best, least = np.ones((n, 1)), np.inf
    for k in range(1, min(MOST_CLUSTERS, n // 3) + 1):
        found, likelihood = _mixture(place, doubt, k)
        criterion = -2.0 * likelihood + np.log(n) * (k * r + k)
        if criterion < least:
            best, least = found, criterion
    return best


def _mixture(place: Floats, doubt: Floats, k: int, sweeps: int = 60) -> tuple[Floats, float]:
    """(n, k) probabilities of a mixture started from far apart places, and its log-likelihood."""
    precision = 1.0 / doubt
    centre = _far_apart(place, precision, k)
    within, share = (
        np.full(place.shape[1], 0.05 * float(place.var(axis=0).mean()) + 1e-9),
        np.full(k, 1.0 / k),
    )
    member, likelihood = np.full((len(place), k), 1.0 / k), -np.inf
    for _ in range(sweeps):
        variance = doubt + within
        gap = place[:, None] - centre[None]
        density = -0.5 * (gap**2 / variance[:, None] + np.log(2 * np.pi * variance)[:, None]).sum(axis=2)
        joint = density + np.log(share)
        top = joint.max(axis=1, keepdims=True)
        whole = top[:, 0] + np.log(np.exp(joint - top).sum(axis=1))
        member = np.exp(joint - whole[:, None])
        if whole.sum() < likelihood + 1e-6:
            break
        likelihood = float(whole.sum())
        weight = member[:, :, None] / variance[:, None]
        centre = (weight * place[:, None]).sum(axis=0) / np.maximum(weight.sum(axis=0), 1e-9)
        share = np.maximum(member.mean(axis=0), 1e-6)
        gap = place[:, None] - centre[None]
        # Variance within clusters: what squared gaps have beyond the known variance, by their precision.
        squares = (member[:, :, None] * gap**2).sum(axis=1)
        trust = 1.0 / variance**2
        within = np.maximum((trust * (squares - doubt)).sum(axis=0) / trust.sum(axis=0), 1e-6)
    return member, likelihood


def _far_apart(place: Floats, precision: Floats, k: int) -> Floats:
    """(k, r) starting places: the most certain one near the middle, then each the farthest from those before,
    then a few steps of k-means."""
    weight = precision.mean(axis=1)
    chosen = [int(np.argmax(weight))]
    for _ in range(k - 1):
        gap = ((place[:, None] - place[chosen][None]) ** 2 * precision[:, None]).sum(axis=2).min(axis=1)
        chosen.append(int(np.argmax(gap)))
    centre = place[chosen].copy()
    for _ in range(10):
        near = ((place[:, None] - centre[None]) ** 2 * precision[:, None]).sum(axis=2).argmin(axis=1)
        for g in range(k):
            own = near == g
            if own.any():
                centre[g] = np.average(place[own], axis=0, weights=weight[own])
    return centre
