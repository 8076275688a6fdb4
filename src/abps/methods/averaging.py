"""Averages of models: the weighted mean, and robust ones that a few bad senders cannot move far.

All take what centers sent (senders, columns) and their weights (senders,), and return one row (columns,).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from abps.core.arrays import Weights, weighted_sum
from abps.methods.base import Weighting

#: How a server aggregates models.
Aggregate = Literal["mean", "median", "trimmed", "krum", "trusted"]

#: The share of bad senders that trimmed means and Krum assume.
BAD = 0.2


def weighted_mean(models: Weights, weights: Weights) -> Weights:
    """(P,) mean of (n, P) rows with the given (n,) weights."""
    return weighted_sum((weights / weights.sum()).astype(models.dtype), models)


def shares(sizes: Weights, weighting: Weighting) -> Weights:
    """(n,) the weight of every center in an average, from its number of training rows."""
    return sizes if weighting == "size" else np.ones(len(sizes), dtype=np.float32)


def median(sent: Weights, weights: Weights) -> Weights:
    """The median of every column (Yin et al. 2018), unweighted, because senders could claim any size."""
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
    exact = sent.astype(np.float64)
    far = np.stack([np.square(exact - row).sum(axis=1) for row in exact])
    near = np.sort(far, axis=1)[:, 1 : max(2, n - bad - 1)].sum(axis=1)
    return sent[near.argsort(kind="stable")[: max(1, n - bad)]].mean(axis=0)


def trusted(sent: Weights, weights: Weights, before: Weights) -> Weights:
    """The last average plus steps weighted by their cosine with the median step, and no longer than it.

    After FLTrust (Cao et al. 2021), whose server computes the reference step on its own rows; here it is the
    median of the received steps.
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
