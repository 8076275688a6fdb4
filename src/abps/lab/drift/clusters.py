"""Two samples whose values come in clusters: patients of one hospital resemble one another.

A test that takes stays for independent finds drift where there is only a hospital more in one era than in
the other. Here the unit that varies is the cluster: the difference of two means with a cluster-robust
standard error (Liang and Zeger 1986, with the usual small-sample factor), judged by Student's t with one
degree of freedom less than there are clusters. With one value per cluster it is nearly Welch's test.

The spread of two samples is compared in the same way: the mean distance from the sample's own median
(Brown and Forsythe 1974) is a mean, and its difference has the same standard error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ClusteredDifference:
    """first mean − second mean. NaN where it is not defined (a sample is empty, or there is one cluster)."""

    difference: float
    se: float
    t: float
    df: int
    p: float
    clusters: int


def difference(
    first: ArrayLike, second: ArrayLike, first_cluster: ArrayLike, second_cluster: ArrayLike
) -> ClusteredDifference:
    """Compare the means of (n,) and (m,) values whose clusters are (n,) and (m,) labels.

    A cluster may have values in both samples; what they share then cancels, as it should.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    labels = np.concatenate([np.asarray(first_cluster), np.asarray(second_cluster)])
    clusters = len(np.unique(labels))
    nothing = ClusteredDifference(math.nan, math.nan, math.nan, max(0, clusters - 1), math.nan, clusters)
    total = len(a) + len(b)
    if min(len(a), len(b)) == 0 or clusters < 2 or total < 3:
        return nothing
    gap = float(a.mean() - b.mean())
    cluster = np.unique(labels, return_inverse=True)[1]
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
    """(n,) the distance of every value from the median of all; their mean is a measure of spread."""
    x = np.asarray(values, dtype=np.float64)
    return np.asarray(np.abs(x - np.median(x))) if len(x) else x
