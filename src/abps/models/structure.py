"""Do centers differ in ways that others share? A test, clusters, and whether clusters would pay.

All of this works on *half scores*: every center splits its rows at random, and computes the score of each
half at the common model, orthogonal to its own intercept. Halves are independent given the common model, so
products of the two have mean zero unless centers really differ; no null distribution has to be guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from abps.models.hierarchical import CenterRows, CommonModel, fit_intercepts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: From scores (n, m) with this information (n,): deviations (n, m) that a center is expected to have, by each
#: of some models of what centers share.
Expected = Callable[[Floats, Floats], list[Floats]]

#: Dimensions of the subspace in which clusters are sought, and the most clusters.
DIMENSIONS = 5
MOST_CLUSTERS = 24

#: Directions with less than this share of the largest curvature are left out.
LEAST_CURVATURE = 0.01

#: How far shared deviations from other centers are trusted when they are judged.
TRUST = 0.7

#: Scores longer than this many times the median are shortened to it.
LONGEST = 2.0

#: Steps of a mixture of clusters, and of k-means at its start.
MIXTURE_STEPS, START_STEPS = 60, 10


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
    residual = rows.family.residual(z, rows.y)[:, 0] / common.dispersion
    weight = rows.family.information(z, rows.y)[:, 0, 0] / common.dispersion
    scores, total = np.zeros((rows.n, rows.x.shape[1])), rows.totals(weight)
    for i in range(rows.n):
        part = slice(rows.start[i], rows.start[i + 1])
        x = rows.x[part].astype(np.float64)
        middle = weight[part] @ x / max(float(total[i]), 1e-9)
        scores[i] = residual[part] @ (x - middle)
    return scores, total


def standard_errors(gains: Floats) -> float:
    """By how many standard errors the mean of gains (n,) lies above zero."""
    return float(gains.mean() / max(float(gains.std()), 1e-9) * np.sqrt(len(gains)))


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


@dataclass(frozen=True, eq=False)
class HalfScores:
    """Whitened half scores of n centers.

    first, second: (n, m), each with the covariance information / 2 if centers do not differ.
    information: (n,) of all rows of a center.  variance: (m,) of the deviations that are each center's own:
    the coordinates are turned so that these are independent.  axes: (columns, m) from them into coefficients.
    """

    first: Floats
    second: Floats
    information: Floats
    variance: Floats
    axes: Floats

    @staticmethod
    def of(
        first: Floats, second: Floats, information: Floats, whitening: Whitening, variance: Floats
    ) -> HalfScores:
        """From scores (n, columns) and the variance (columns,) of own deviations."""
        value, vector = np.linalg.eigh((whitening.back.T * variance) @ whitening.back)
        turned = whitening.out @ vector
        return HalfScores(
            first @ turned, second @ turned, np.maximum(information, 1e-9), np.maximum(value, 0.0), turned
        )

    def only(self, who: NDArray[np.bool_]) -> HalfScores:
        """Of the centers ``who`` (n,)."""
        return replace(
            self, first=self.first[who], second=self.second[who], information=self.information[who]
        )

    @property
    def bounded(self) -> tuple[Floats, Floats]:
        """Both with the identity as covariance, none of them much longer than the others."""
        found = []
        for half in (self.first, self.second):
            z = half / np.sqrt(self.information / 2)[:, None]
            length = np.sqrt((z**2).sum(axis=1))
            found.append(z * np.minimum(1.0, LONGEST * np.median(length) / np.maximum(length, 1e-9))[:, None])
        return found[0], found[1]

    def difference_test(self, signs: Floats) -> float:
        """The p-value of the hypothesis that centers do not differ.

        If they do not, a center's two half scores are independent with mean zero, and the sign of one of them
        says nothing. The statistic is the sum of the largest eigenvalues of the summed products of both
        halves, against the same with random signs (draws, n). What all centers have in common was taken off
        either half: of n centers n - 1 are free, and with random signs only the sum of (1 - share)², by whose
        root products are smaller.
        """
        one, other = self.bounded
        if 2 * len(one) < one.shape[1]:  # in the space that the scores span
            basis = np.linalg.qr(np.concatenate([one, other]).T)[0]
            one, other = one @ basis, other @ basis

        def largest(signed: Floats) -> float:
            product = signed.T @ other
            return float(np.linalg.eigvalsh(product + product.T)[-DIMENSIONS:].sum())

        share = self.information / self.information.sum()
        size = np.sqrt((len(one) - 1) / ((1.0 - share) ** 2).sum())
        seen = largest(one)
        return (1 + sum(largest(size * one * sign[:, None]) >= seen for sign in signs)) / (1 + len(signs))

    def subspace(self) -> Floats:
        """(m, dimensions) loadings of the deviations that centers share; what is each center's own is taken
        off."""
        one, other = self.bounded
        product, half = one.T @ other, self.information.sum() / 2
        value, vector = np.linalg.eigh(0.5 * (product + product.T) - half * np.diag(self.variance))
        top = slice(-1, -1 - min(DIMENSIONS, len(value)), -1)
        return np.asarray(vector[:, top] * np.sqrt(np.maximum(value[top], 0.0) / half))

    def positions(
        self, score: Floats, information: Floats, loadings: Floats, precision: float = 1e-6
    ) -> tuple[Floats, Floats]:
        """(n, r) where scores (n, m) with this information (n,) lie along loadings (m, r), and (n, r) the
        variances; precision: of positions around zero, by default hardly any."""
        n, r = len(score), loadings.shape[1]
        found, doubt = np.zeros((n, r)), np.zeros((n, r))
        for i in range(n):
            weight = 1.0 / (1.0 / information[i] + self.variance)
            inverse = np.linalg.inv((loadings.T * weight) @ loadings + precision * np.eye(r))
            found[i] = inverse @ ((loadings.T * weight) @ score[i]) / information[i]
            doubt[i] = np.diag(inverse)
        return found, doubt

    def clusters(self) -> tuple[Ints, int]:
        """(n,) the cluster of every center, and how many there are."""
        place, doubt = self.positions(self.first + self.second, self.information, self.subspace())
        mixture = find_clusters(place, doubt)
        return mixture.members(place, doubt)[0].argmax(axis=1), len(mixture.share)

    def shared_deviations(self, count: int) -> Floats:
        """(count, columns) how centers deviate together, per standard deviation of their positions."""
        return np.asarray((self.axes @ self.subspace()[:, :count]).T)

    def as_continua(self) -> Expected:
        """Deviations as positions along one, two and more directions that these centers share."""
        loadings = TRUST * self.subspace()

        def expected(score: Floats, information: Floats) -> list[Floats]:
            some = [loadings[:, :count] for count in range(1, loadings.shape[1] + 1)]
            return [self.positions(score, information, each, 1.0)[0] @ each.T for each in some]

        return expected

    def as_clusters(self, count: int) -> Expected:
        """Deviations as those of so many clusters that these centers form."""
        loadings = self.subspace()
        mixture = _mixture(*self.positions(self.first + self.second, self.information, loadings), count)[0]
        return lambda score, information: [
            mixture.expected(*self.positions(score, information, loadings)) @ loadings.T
        ]

    def held_out_gains(self, fold: Ints, learn: Callable[[HalfScores], Expected]) -> Floats:
        """(models, n) by how much shared deviations lower the loss on held-out rows of every center.

        learn: from the centers of other folds (n,), what the deviations of a center are expected to be by one
        half of its rows. The posteriors of these rows, with and without them, are judged by the quadratic
        loss of its other half; both ways.
        """
        gains, info = np.zeros(len(fold)), self.information / 2
        for k in np.unique(fold).tolist():
            mine = fold == k
            expected, a = learn(self.only(~mine)), info[mine, None]
            keep = self.variance / (1.0 + a * self.variance)
            for one, other in ((self.first, self.second), (self.second, self.first)):
                own, held_out = one[mine], other[mine]
                means = (*expected(own, info[mine]), np.zeros_like(own))
                models = [mean + keep * (own - a * mean) for mean in means]
                loss = np.stack([(model * (0.5 * a * model - held_out)).sum(axis=1) for model in models])
                part = np.zeros((len(loss) - 1, len(fold)))
                part[:, mine] = loss[-1] - loss[:-1]
                gains = gains + part
        return gains


@dataclass(frozen=True, eq=False)
class ClusterMixture:
    """k clusters: centre (k, r), variance within (r,) and share (k,)."""

    centre: Floats
    within: Floats
    share: Floats

    def members(self, place: Floats, doubt: Floats) -> tuple[Floats, float]:
        """(n, k) probabilities to belong to each cluster, of places (n, r) with known variances (n, r), and
        the log-likelihood."""
        variance = doubt + self.within
        gap = place[:, None] - self.centre[None]
        density = -0.5 * (gap**2 / variance[:, None] + np.log(2 * np.pi * variance)[:, None]).sum(axis=2)
        joint = density + np.log(self.share)
        whole = np.logaddexp.reduce(joint, axis=1)
        return np.exp(joint - whole[:, None]), float(whole.sum())

    def expected(self, place: Floats, doubt: Floats) -> Floats:
        """(n, r) posterior means of positions that were measured as places with known variances (n, r)."""
        member, _ = self.members(place, doubt)
        trust = self.within / (self.within + doubt)
        return np.asarray(trust * place + (1.0 - trust) * (member @ self.centre))


def find_clusters(place: Floats, doubt: Floats) -> ClusterMixture:
    """A mixture of normal distributions of places (n, r), each with a known variance (n, r) beside the common
    one within clusters; the number of clusters by the Bayesian information criterion."""
    n, r = place.shape
    best, least = _mixture(place, doubt, 1)[0], np.inf
    for k in range(1, min(MOST_CLUSTERS, n // 3) + 1):
        found, likelihood = _mixture(place, doubt, k)
        criterion = -2.0 * likelihood + np.log(n) * (k * r + k)
        if criterion < least:
            best, least = found, criterion
    return best


def _mixture(place: Floats, doubt: Floats, k: int) -> tuple[ClusterMixture, float]:
    """A mixture started from far apart places, and its log-likelihood."""
    within = np.full(place.shape[1], 0.05 * float(place.var(axis=0).mean()) + 1e-9)
    mixture, likelihood = (
        ClusterMixture(_far_apart(place, 1.0 / doubt, k), within, np.full(k, 1.0 / k)),
        -np.inf,
    )
    for _ in range(MIXTURE_STEPS):
        member, now = mixture.members(place, doubt)
        if now < likelihood + 1e-6:
            break
        likelihood, variance = now, doubt + mixture.within
        weight = member[:, :, None] / variance[:, None]
        centre = (weight * place[:, None]).sum(axis=0) / np.maximum(weight.sum(axis=0), 1e-9)
        # Variance within clusters: what squared gaps have beyond the known variance, by their precision.
        squares = (member[:, :, None] * (place[:, None] - centre[None]) ** 2).sum(axis=1)
        trust = 1.0 / variance**2
        within = np.maximum((trust * (squares - doubt)).sum(axis=0) / trust.sum(axis=0), 1e-6)
        mixture = ClusterMixture(centre, within, np.maximum(member.mean(axis=0), 1e-6))
    return mixture, likelihood


def _far_apart(place: Floats, precision: Floats, k: int) -> Floats:
    """(k, r) starting places: the most certain, then each the farthest from those before; then k-means."""
    weight = precision.mean(axis=1)
    centre = place[[int(np.argmax(weight))]]

    def gaps() -> Floats:
        return np.asarray(((place[:, None] - centre[None]) ** 2 * precision[:, None]).sum(axis=2))

    for _ in range(k - 1):
        centre = np.concatenate([centre, place[[int(np.argmax(gaps().min(axis=1)))]]])
    for _ in range(START_STEPS):
        near = gaps().argmin(axis=1)
        for g in np.unique(near).tolist():
            centre[g] = np.average(place[near == g], axis=0, weights=weight[near == g])
    return centre
