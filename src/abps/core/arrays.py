"""Arrays of model weights: averages (the mean, and robust ones), and whether what arrives is plausible."""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float32]  # one model (P,), or one per row (n, P)


def repeated(row: Weights, n: int) -> Weights:
    """(n, P) one model (P,) or (1, P) in n rows, without a copy: a view that must not be written to."""
    return np.broadcast_to(row, (n, row.shape[-1]))


def compact(rows: Weights) -> Weights:
    """The same as compiled code takes it: row by row in memory, and writable."""
    return np.require(rows, np.float32, ["C", "W"])


def weighted_sum(weights: Weights, rows: Weights) -> Weights:
    """(P,) the sum of rows (n, P) times weights (n,), row after row. No BLAS: its order of summation, and so
    the last bit, differs between machines."""
    total = np.zeros(rows.shape[1:], dtype=rows.dtype)
    for weight, row in zip(weights.astype(rows.dtype), rows):
        total += weight * row
    return total


def lerp(start: Weights, end: Weights, weight: float | Weights) -> Weights:
    """``start`` moved towards ``end`` by the share ``weight`` of the way, rounded once."""
    share = np.asarray(weight, dtype=np.float32)
    near = np.abs(share) < 0.5  # from the nearer end, so that 0 and 1 give the ends themselves
    way = (end - start).astype(np.float64) * np.where(near, share, share - np.float32(1.0))
    return (np.where(near, start, end) + way).astype(np.float32)


#: How many times farther from the common start than the own model a peer's may be. Among the built-in centers
#: the largest ratio of two honest ones is 3.4; one with forty times the rows takes forty times the steps.
FARTHEST = 30.0


def distances(models: NDArray[np.float32], start: NDArray[np.float32]) -> NDArray[np.float64]:
    """(k,) how far models (k, columns) are from the common start (P,), whose columns beyond P are zero; not
    finite where a model is none."""
    known = min(models.shape[1], len(start))
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.zeros(len(models))
        for k, model in enumerate(models):  # row by row: no copy of all models at once
            step = model[:known] - start[:known]
            total[k] = np.dot(step, step) + np.dot(model[known:], model[known:])
        return np.sqrt(total)


def plausible(
    theirs: NDArray[np.float64], own: NDArray[np.float64], farthest: float = FARTHEST
) -> NDArray[np.bool_]:
    """(k,) whether models are finite and not too far out, by their distances and those of the own models."""
    with np.errstate(invalid="ignore"):
        return np.isfinite(theirs) & (theirs <= farthest * own + 1e-12)


# ---------------------------------------------------------------- averages of (senders, columns)

Weighting = Literal["size", "uniform"]  # a center's weight in an average: its training rows, or the same
Aggregate = Literal["mean", "median", "trimmed", "krum", "trusted"]  # how a server aggregates models
BAD = 0.2  # the share of bad senders that trimmed means and Krum assume


def weighted_mean(models: Weights, weights: Weights) -> Weights:
    """(P,) mean of (n, P) rows with the given (n,) weights."""
    return weighted_sum((weights / weights.sum()).astype(models.dtype), models)


def shares(sizes: Weights, weighting: Weighting) -> Weights:
    """(n,) the weight of every center in an average, from its number of training rows."""
    return sizes if weighting == "size" else np.ones(len(sizes), dtype=np.float32)


def median(sent: Weights, weights: Weights) -> Weights:
    """The median of every column (Yin et al. 2018), unweighted, because senders could claim any size."""
    ordered, n = np.sort(sent, axis=0), len(sent)
    return np.asarray((ordered[(n - 1) // 2] + ordered[n // 2]) / 2)


def trimmed(sent: Weights, weights: Weights) -> Weights:
    """The mean of every column without its largest and smallest fifths (Yin et al. 2018)."""
    cut = min(int(BAD * len(sent)), (len(sent) - 1) // 2)
    return np.asarray(np.sort(sent, axis=0)[cut : len(sent) - cut].mean(axis=0))


def krum(sent: Weights, weights: Weights) -> Weights:
    """The mean of the four fifths with the nearest neighbours (multi-Krum, Blanchard et al. 2017)."""
    n, bad = len(sent), int(BAD * len(sent))
    exact = sent.astype(np.float64)
    far = np.stack([np.square(exact - row).sum(axis=1) for row in exact])
    near = np.sort(far, axis=1)[:, 1 : max(2, n - bad - 1)].sum(axis=1)
    return np.asarray(sent[near.argsort(kind="stable")[: max(1, n - bad)]].mean(axis=0))


def trusted(sent: Weights, weights: Weights, before: Weights) -> Weights:
    """The last average plus steps weighted by their cosine with the median step, and no longer than it. After
    FLTrust (Cao et al. 2021), whose server computes the reference step on its own rows."""
    steps = sent - before
    guide = median(steps, weights)
    length, lengths = np.linalg.norm(guide), np.linalg.norm(steps, axis=1)
    trust = np.maximum(steps @ guide / np.maximum(lengths * length, 1e-12), 0.0) * weights
    if trust.sum() <= 0:
        return before
    return before + weighted_mean(steps * (length / np.maximum(lengths, 1e-12))[:, None], trust)


AGGREGATES: dict[str, Callable[[Weights, Weights], Weights]] = {
    "mean": weighted_mean, "median": median, "trimmed": trimmed, "krum": krum,
}  # fmt: skip
