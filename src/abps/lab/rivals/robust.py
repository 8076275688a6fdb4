"""Averages that a few bad messages cannot move far: medians, trimmed means, Krum, and trust by direction.

All take what centers sent (senders, columns) and their say (senders,), and give one row (columns,).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from abps.methods.base import weighted_mean
from abps.tensors import Tensor, torch

#: How a server makes one model of many.
Aggregate = Literal["mean", "median", "trimmed", "krum", "trusted"]

#: The share of bad senders that trimmed means and Krum reckon with.
BAD = 0.2


def median(sent: Tensor, weights: Tensor) -> Tensor:
    """The median of every column (Yin et al. 2018); sizes do not count, because they can be claimed."""
    ordered = sent.sort(dim=0).values
    n = len(sent)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def trimmed(sent: Tensor, weights: Tensor) -> Tensor:
    """The mean of every column without its largest and smallest fifths (Yin et al. 2018)."""
    cut = min(int(BAD * len(sent)), (len(sent) - 1) // 2)
    return sent.sort(dim=0).values[cut : len(sent) - cut].mean(dim=0)


def krum(sent: Tensor, weights: Tensor) -> Tensor:
    """The mean of the four fifths with the nearest neighbours (multi-Krum, Blanchard et al. 2017)."""
    n = len(sent)
    bad = int(BAD * n)
    far = torch.cdist(sent.double(), sent.double()).square()
    near = far.sort(dim=1).values[:, 1 : max(2, n - bad - 1)].sum(dim=1)
    return sent[near.argsort(stable=True)[: max(1, n - bad)]].mean(dim=0)


def trusted(sent: Tensor, weights: Tensor, before: Tensor) -> Tensor:
    """Steps from the last average, each as far as it points along the median step, and no longer than it.

    After FLTrust (Cao et al. 2021), whose server has rows of its own to step on; here the median stands for
    them.
    """
    steps = sent - before
    guide = median(steps, weights)
    length, lengths = guide.norm(), steps.norm(dim=1)
    trust = torch.relu(steps @ guide / (lengths * length).clamp_min(1e-12)) * weights
    if trust.sum() <= 0:
        return before
    return before + weighted_mean(steps * (length / lengths.clamp_min(1e-12))[:, None], trust)


AGGREGATES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": weighted_mean,
    "median": median,
    "trimmed": trimmed,
    "krum": krum,
}
