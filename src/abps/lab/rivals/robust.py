"""Averages that a few bad messages cannot move far: medians, trimmed means, Krum, and trust by direction.

All take what centers sent (senders, columns) and their say (senders,), and give one row (columns,).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from scipy.spatial.distance import cdist

from abps.core.arrays import Weights
from abps.methods.base import weighted_mean

#: How a server makes one model of many.
Aggregate = Literal["mean", "median", "trimmed", "krum", "trusted"]

#: The share of bad senders that trimmed means and Krum reckon with.
BAD = 0.2


def median(sent: Weights, weights: Weights) -> Weights:
    """The median of every column (Yin et al. 2018); sizes do not count, because they can be claimed."""
    ordered = np.sort(sent, axis=0)
    n = len(sent)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def trimmed(sent: Weights, weights: Weights) -> Weights:
    """The mean of every column without its largest and smallest fifths (Yin et al. 2018)."""
    cut = min(int(BAD * len(sent)), (len(sent) - 1) // 2)
    return np.sort(sent, axis=0)[cut : len(sent) - cut].mean(axis=0)


def krum(sent: Weights, weights: Weights) -> Weights:
    """The mean of the four fifths with the nearest neighbours (multi-Krum, Blanchard et al. 2017)."""
    n = len(sent)
    bad = int(BAD * n)
    far = cdist(sent.astype(np.float64), sent.astype(np.float64), "sqeuclidean")
    near = np.sort(far, axis=1)[:, 1 : max(2, n - bad - 1)].sum(axis=1)
    return sent[near.argsort(kind="stable")[: max(1, n - bad)]].mean(axis=0)


def trusted(sent: Weights, weights: Weights, before: Weights) -> Weights:
    """Steps from the last average, each as far as it points along the median step, and no longer than it.

    After FLTrust (Cao et al. 2021), whose server has rows of its own to step on; here the median stands for
    them.
    """
    steps = sent - before
    guide = median(steps, weights)
    length, lengths = np.linalg.norm(guide), np.linalg.norm(steps, axis=1)
    trust = np.maximum(steps @ guide / np.maximum(lengths * length, 1e-12), 0.0) * weights
    if trust.sum() <= 0:
        return before
    return before + weighted_mean(steps * (length / np.maximum(lengths, 1e-12))[:, None], trust)


AGGREGATES: dict[str, Callable[[Weights, Weights], Weights]] = {
    "mean": weighted_mean,
    "median": median,
    "trimmed": trimmed,
    "krum": krum,
}
