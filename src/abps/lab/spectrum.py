"""Do centers differ in their risk, in how many dimensions, and in which columns: the spectrum of scores.

Given one model for all, every center fits its own intercept and computes its *score*: the direction in which
its own patients want the common coefficients to change. Where all centers follow one risk, scores are noise
around nothing. So the matrix of all scores, whitened by their covariance under this null, has singular values
that random matrix theory knows, and any that stick out are dimensions in which centers really differ.

The null comes along with the scores: each center also tells what its score would be if the signs of its
residuals were drawn by chance (a wild bootstrap). That needs no model to be right, and the common model need
not be at its optimum: what all centers' scores have in common is projected out. The null draws serve twice,
for the covariance and for the largest singular value to expect, each draw whitened by the others.

Arrays: n centers, k columns, B null draws of every center.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Null draws of all centers together; few centers tell more each. They are most of the bytes of a roll call,
#: and what they cannot tell apart is not looked at (:func:`directions`): so many are enough for 75 columns.
#: Of very few centers nothing could be told apart with more draws either.
DRAWS = 600
FEWEST_DRAWS, MOST_DRAWS = 6, 16

#: Directions whose null variance is below this share of the largest are left out: nothing is known there.
DIM = 0.02

#: Draws per direction that is whitened.
DRAWS_PER_DIMENSION = 8

#: With fewer centers there is nothing to be told apart.
FEWEST_CENTERS = 8

#: Mean and standard deviation of the Tracy-Widom distribution of order 1, and a gamma distribution
#: (shape, scale, shift) that agrees with it in three moments (Chiani, J. Multivariate Analysis 2014).
TW_MEAN, TW_SD = -1.2065336, 1.2679868
TW_GAMMA = (46.446, 0.186054, 9.84801)


@dataclass(frozen=True, eq=False)
class Scores:
    """What centers tell: score (n, k), null draws (n, B, k), and information (n,), the sum of their squared
    residuals, by which a score's variance grows."""

    score: Floats
    null: Floats
    information: Floats


@dataclass(frozen=True, eq=False)
class Spectrum:
    """What the scores say.

    p: the chance of a largest singular value like this one if all centers followed one risk.
    dimensions: in how many directions they differ.  values: squared singular values, largest first, and
    ``edge`` the mean of the largest under the null.
    position: (n, dimensions) where each center stands, in log-odds per standard deviation of a direction:
    the estimate has the variance 1 / information in every dimension.
    loading: (k,) how much of the difference each column carries; the shares add up to 1 (0 if none).
    """

    p: float
    dimensions: int
    values: Floats
    edge: float
    position: Floats
    information: Floats
    loading: Floats


def draws(n: int) -> int:
    """How many null draws each of n centers tells."""
    return int(np.clip(math.ceil(DRAWS / max(n, 1)), FEWEST_DRAWS, MOST_DRAWS))


def own_intercept(offset: Floats, y: Floats) -> float:
    """The intercept that a center's outcomes ask for beside the given log-odds (rows,); Newton's steps."""
    rate = float(np.clip(y.mean(), 0.5 / len(y), 1.0 - 0.5 / len(y)))
    intercept = math.log(rate / (1.0 - rate)) - float(offset.mean())
    for _ in range(50):
        p = 1.0 / (1.0 + np.exp(-(offset + intercept)))
        step = float(np.clip((rate * len(y) - p.sum()) / max((p * (1.0 - p)).sum(), 1e-9), -2.0, 2.0))
        intercept += step
        if abs(step) < 1e-10:
            break
    return intercept


def score(x: Floats, y: Floats, offset: Floats, signs: Floats) -> tuple[Floats, Floats, float]:
    """(k,) a center's score, (B, k) its null draws, and its information.

    x: (rows, k) the columns.  y: (rows,) 0 or 1.  offset: (rows,) log-odds of the common model.
    signs: (B, rows) of +1 and -1. All zeros for a center without rows or with one outcome only.
    """
    count, k = x.shape
    if count == 0 or y.min() == y.max():
        return np.zeros(k), np.zeros((len(signs), k)), 0.0
    p = 1.0 / (1.0 + np.exp(-(offset + own_intercept(offset, y))))
    weight = p * (1.0 - p)
    centred = x - (weight @ x) / weight.sum()
    residual = y - p
    flipped = signs * residual
    # The intercept would be fitted to flipped outcomes too.
    flipped -= np.outer(flipped.sum(axis=1) / weight.sum(), weight)
    return residual @ centred, flipped @ centred, float(residual @ residual)


def mixed_score(
    x: Floats, residual: Floats, weight: Floats, mix: NDArray[np.float32], signs: Floats
) -> tuple[Floats, Floats, float]:
    """The same for an outcome with several answers, from what a model at hand leaves over.

    residual, weight: (rows, outputs) minus the loss's slope in every answer, and its curvature; zero where a
    row says nothing of an answer.  mix: (terms, outputs). Every answer has an intercept, which takes one
    Newton step. (terms · k,) the score, a term after the other.
    """
    count, k = x.shape
    terms, outputs = mix.shape
    score, null = np.zeros((terms, k)), np.zeros((len(signs), terms, k))
    left = np.zeros((count, outputs))
    for j in range(outputs):
        total = weight[:, j].sum()
        if total <= 0:
            continue
        centred = x - (weight[:, j] @ x) / total
        left[:, j] = residual[:, j] - weight[:, j] * (residual[:, j].sum() / total)
        flipped = signs * left[:, j]
        flipped -= np.outer(flipped.sum(axis=1) / total, weight[:, j])
        score += np.outer(mix[:, j], left[:, j] @ centred)
        null += mix[:, j][None, :, None] * (flipped @ centred)[:, None, :]
    information = float(((left @ mix.T) ** 2).sum() / terms)
    return score.ravel(), null.reshape(len(signs), -1), information


def spectrum(told: Scores, level: float = 0.05) -> Spectrum:
    """The test of heterogeneity, and where centers stand. Centers without information stand at zero."""
    k = told.score.shape[1]
    live = told.information > 0
    n, size = int(live.sum()), np.sqrt(told.information[live])
    count = told.null.shape[1]
    nothing = Spectrum(
        1.0,
        0,
        np.zeros(0),
        math.nan,
        np.zeros((len(live), 0)),
        told.information,
        np.zeros(k),
    )
    if n < FEWEST_CENTERS or count < 2:
        return nothing
    real = told.score[live] / size[:, None]
    null = told.null[live].transpose(1, 0, 2) / size[:, None]  # (B, n, k)
    squares = np.einsum("bik,bil->bkl", null, null, optimize=True) / n
    total = squares.sum(axis=0)
    if not np.trace(total) > 0:
        return nothing
    common = size / np.linalg.norm(size)

    def seen(scores: Floats, whiten: Floats) -> Floats:
        """Whitened, without what all have in common (a step that the common model itself should take)."""
        z = scores @ whiten
        return np.asarray(z - np.outer(common, common @ z))

    # As many directions for the scores as for each draw, which is whitened by the others: the largest of more
    # would be larger by itself.
    m = directions(total / count, n * (count - 1))
    whiten = whitening(total / count, m)
    largest = np.array(
        [_squares(seen(null[b], whitening((total - squares[b]) / (count - 1), m)))[0] for b in range(count)]
    )
    z = seen(real, whiten)
    values, vectors = np.linalg.eigh(z.T @ z)
    values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
    p = p_values(values, largest, n - 1, z.shape[1])
    above = int(np.argmax(np.append(p >= level, True)))
    position = np.zeros((len(live), above))
    position[live] = (z @ vectors[:, :above]) / size[:, None]
    # How far a column moves when one moves along a direction, in units of its own null deviation.
    moves = (whiten_back(total / count, whiten) @ vectors[:, :above]) ** 2 * np.maximum(
        values[:above] - largest.mean(), 0.0
    )
    share = moves.sum(axis=1) / np.maximum(np.diag(total / count), 1e-12)
    loading = share / share.sum() if above and share.sum() > 0 else np.zeros(k)
    return Spectrum(float(p[0]), above, values, float(largest.mean()), position, told.information, loading)


def directions(covariance: Floats, draws: int) -> int:
    """How many leading directions are looked at: those that are not too dim, and as many as the number of
    draws can tell apart."""
    values = np.linalg.eigvalsh(covariance)
    return max(1, min(int((values > DIM * values[-1]).sum()), draws // DRAWS_PER_DIMENSION))


def whitening(covariance: Floats, m: int) -> Floats:
    """(k, m) a matrix after which the given covariance is the identity, on its m leading directions."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors[:, -m:] / np.sqrt(np.maximum(values[-m:], 1e-12 * values[-1])))


def whiten_back(covariance: Floats, whiten: Floats) -> Floats:
    """(k, m) what a unit step in each whitened direction is in the scores' own units."""
    return np.asarray(covariance @ whiten)


def p_values(values: Floats, largest: Floats, n: int, k: int) -> Floats:
    """P-values of squared singular values (n × k, unit noise), each as if it were the largest of a null.

    largest: (B,) the largest squared singular values of null draws. They place the Tracy-Widom distribution,
    whose spread is known from n and k; the error of their mean, and more spread than expected, widen it.
    """
    roots = math.sqrt(max(n - 0.5, 0.5)) + math.sqrt(max(k - 0.5, 0.5))
    centre = roots**2
    spread = roots * (1 / math.sqrt(max(n - 0.5, 0.5)) + 1 / math.sqrt(max(k - 0.5, 0.5))) ** (1 / 3)
    scale = largest.mean() / (centre + TW_MEAN * spread)
    sd = max(TW_SD * spread, largest.std(ddof=1) / scale) * math.sqrt(1.0 + 1.0 / len(largest))
    z = (values - largest.mean()) / scale / sd
    return tracy_widom_sf(TW_MEAN + TW_SD * z)


def tracy_widom_sf(x: Floats) -> Floats:
    """P(X > x) for the Tracy-Widom distribution of order 1, to about 0.002."""
    shape, scale, shift = TW_GAMMA
    from scipy import stats  # takes long to load, and is needed here alone

    return np.asarray(stats.gamma.sf(np.asarray(x) + shift, shape, scale=scale))


def _squares(z: Floats) -> Floats:
    """Squared singular values, largest first."""
    small = z @ z.T if len(z) < z.shape[1] else z.T @ z
    return np.asarray(np.linalg.eigvalsh(small)[::-1])
