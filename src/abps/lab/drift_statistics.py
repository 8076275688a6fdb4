"""The statistics behind ``abps drift``: Welch's t-test with the outlier rule of the paper's Appendix A, the
same with cluster-robust errors, divergence of outcomes, and the association of two partitions."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.spatial import distance
from scipy.special import stdtr

from abps.core import streams

Floats = NDArray[np.float64]


# --- Student's t ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Welch:
    """Welch's two-sample t-test, with what was compared. NaN where it is not defined."""

    count: tuple[int, int]
    mean: tuple[float, float]
    sd: tuple[float, float]
    t: float
    df: float
    p: float

    @property
    def effect(self) -> float:
        """The difference of means in units of the root mean of the two variances (Cohen's d)."""
        pooled = math.sqrt((self.sd[0] ** 2 + self.sd[1] ** 2) / 2)
        return (self.mean[0] - self.mean[1]) / pooled if pooled > 0 else math.nan


def welch(first: ArrayLike, second: ArrayLike) -> Welch:
    """Compare the means of two samples that may differ in variance; positive t: the first is larger."""
    both = [np.asarray(each, dtype=np.float64) for each in (first, second)]
    counts = (len(both[0]), len(both[1]))
    means = [float(each.mean()) if len(each) else math.nan for each in both]
    sds = [float(each.std(ddof=1)) if len(each) > 1 else math.nan for each in both]
    t = df = p = math.nan
    if min(counts) > 1 and max(sds) > 0:
        found = stats.ttest_ind(*both, equal_var=False)
        t, df, p = float(found.statistic), float(found.df), float(found.pvalue)
    return Welch(counts, (means[0], means[1]), (sds[0], sds[1]), t, df, p)


def within_deviations(values: ArrayLike, deviations: float = 3.0) -> NDArray[np.bool_]:
    """True where a value is at most so many standard deviations (ddof 1) from the mean; one pass, as in
    Appendix A."""
    x = np.asarray(values, dtype=np.float64)
    if len(x) < 2:
        return np.ones(x.shape, dtype=np.bool_)
    return np.asarray(np.abs(x - x.mean()) <= deviations * x.std(ddof=1))


# --- means with clustered values -------------------------------------------------------------------


@dataclass(frozen=True)
class ClusteredDifference:
    """first mean − second mean. NaN where it is not defined (a sample is empty, or there is one cluster)."""

    difference: float
    se: float
    t: float
    df: int
    p: float
    clusters: int


def clustered_difference(
    first: ArrayLike, second: ArrayLike, first_cluster: ArrayLike, second_cluster: ArrayLike
) -> ClusteredDifference:
    """Compare the means of (n,) and (m,) values whose clusters are (n,) and (m,) labels.

    Patients of one hospital resemble one another: the standard error is cluster-robust (Liang and Zeger 1986,
    with the usual small-sample factor), judged by Student's t with one degree of freedom less than there are
    clusters. A cluster may have values in both samples; what they share then cancels.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    labels = np.concatenate([np.asarray(first_cluster), np.asarray(second_cluster)])
    known, cluster = np.unique(labels, return_inverse=True)
    clusters, total = len(known), len(a) + len(b)
    if min(len(a), len(b)) == 0 or clusters < 2 or total < 3:
        return ClusteredDifference(math.nan, math.nan, math.nan, max(0, clusters - 1), math.nan, clusters)
    gap = float(a.mean() - b.mean())
    # what every value adds to the error of the difference, summed inside its cluster
    pull = np.concatenate([(a - a.mean()) / len(a), -(b - b.mean()) / len(b)])
    sums = np.bincount(cluster, weights=pull, minlength=clusters)
    factor = clusters / (clusters - 1) * (total - 1) / (total - 2)
    se = math.sqrt(factor * float(sums @ sums))
    if se == 0:
        return ClusteredDifference(gap, 0.0, math.nan, clusters - 1, math.nan, clusters)
    t = gap / se
    p = float(2 * stdtr(clusters - 1, -abs(t)))
    return ClusteredDifference(gap, se, t, clusters - 1, p, clusters)


def deviations(values: ArrayLike) -> Floats:
    """(n,) distance of every value from the median; their mean measures spread (Brown and Forsythe)."""
    x = np.asarray(values, dtype=np.float64)
    return np.asarray(np.abs(x - np.median(x))) if len(x) else x


# --- Jensen-Shannon ---------------------------------------------------------------------------------


def jensen_shannon(p: ArrayLike, q: ArrayLike) -> Floats:
    """Jensen-Shannon divergence in nats of distributions along the last axis; in [0, ln 2]."""
    return np.square(np.nan_to_num(distance.jensenshannon(p, q, axis=-1)))


def bernoulli_js(p: ArrayLike, q: ArrayLike) -> Floats:
    """Jensen-Shannon divergence in nats of two yes/no outcomes with rates p and q (broadcast)."""
    a, b = np.broadcast_arrays(np.asarray(p, dtype=np.float64), np.asarray(q, dtype=np.float64))
    return jensen_shannon(np.stack([a, 1 - a], axis=-1), np.stack([b, 1 - b], axis=-1))


@dataclass(frozen=True)
class OutcomeDivergence:
    """Mean pairwise divergence of the centers' outcome rates, in nats; NaN where there is no pair.

    The noise is what centers of these sizes would show with one rate: to first order (1/n₁ + 1/n₂)/8.
    """

    between: float
    within: float
    between_noise: float
    within_noise: float
    between_pairs: int
    within_pairs: int


def outcome_divergence(rates: ArrayLike, sizes: ArrayLike, groups: ArrayLike) -> OutcomeDivergence:
    """Compare (n,) outcome rates of centers of (n,) sizes between and within their (n,) groups."""
    rate = np.asarray(rates, dtype=np.float64)
    size = np.asarray(sizes, dtype=np.float64)
    group = np.unique(np.asarray(groups), return_inverse=True)[1]
    sums = np.zeros((2, 2))  # [same group?, divergence or noise]
    pairs = np.zeros(2, dtype=np.int64)
    for i in range(len(rate) - 1):  # row by row: n² numbers are never held at once
        same = (group[i + 1 :] == group[i]).astype(np.int64)
        divergence = bernoulli_js(rate[i], rate[i + 1 :])
        noise = (1 / size[i] + 1 / size[i + 1 :]) / 8
        sums[:, 0] += np.bincount(same, weights=divergence, minlength=2)
        sums[:, 1] += np.bincount(same, weights=noise, minlength=2)
        pairs += np.bincount(same, minlength=2)
    with np.errstate(invalid="ignore"):
        mean = sums / pairs[:, None]
    (between, within), (between_noise, within_noise) = mean.T.tolist()
    return OutcomeDivergence(between, within, between_noise, within_noise, int(pairs[0]), int(pairs[1]))


# --- two labellings of the same rows ----------------------------------------------------------------


@dataclass(frozen=True)
class Association:
    """How well one labelling predicts another.  v: Cramér's V.  v_corrected: without its chance part
    (Bergsma). purity: the share of the most frequent second label, mean over the first labels; chance_purity:
    its mean if the labels were dealt out at random."""

    v: float
    v_corrected: float
    purity: float
    chance_purity: float
    chi2: float
    df: int
    rows: int


#: Random deals behind the chance level of purity; its standard error is then below 0.005 for one row of one.
DEALS = 4_000


def chance_purity(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> float:
    """The mean purity of rows of these sizes whose labels are dealt at random from (c,) ``columns``: drawn
    once per size, and always the same draws."""
    rng = streams.generator(0, "bootstrap", 0, streams.center_id("chance purity"))
    sizes, often = np.unique(rows[rows > 0], return_counts=True)
    expected = [
        float(rng.multivariate_hypergeometric(columns, int(n), size=DEALS).max(axis=1).mean()) / n
        for n in sizes
    ]
    return float(np.average(expected, weights=often))


def association(table: ArrayLike) -> Association:
    """Cramér's V and purity of a (rows, columns) contingency table of counts."""
    counts = np.asarray(table, dtype=np.int64)
    counts = counts[counts.sum(axis=1) > 0][:, counts.sum(axis=0) > 0]
    total, (r, c) = int(counts.sum()), counts.shape
    if total == 0:
        return Association(math.nan, math.nan, math.nan, math.nan, math.nan, 0, 0)
    purity = float((counts.max(axis=1) / counts.sum(axis=1)).mean())
    chance = chance_purity(counts.sum(axis=1), counts.sum(axis=0))
    if min(r, c) < 2:  # one label only: nothing to be associated with
        return Association(math.nan, math.nan, purity, chance, 0.0, 0, total)
    chi2, _, df, _ = stats.chi2_contingency(counts, correction=False)
    v = float(stats.contingency.association(counts, method="cramer"))
    corrected = math.nan
    if total > 1:
        spread = min(each - (each - 1) ** 2 / (total - 1) for each in (r, c)) - 1
        if spread > 0:
            corrected = math.sqrt(max(0.0, chi2 / total - df / (total - 1)) / spread)
    return Association(v, corrected, purity, chance, float(chi2), int(df), total)
