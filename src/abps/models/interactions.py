"""Pair terms: what two columns say together, beyond what each of them says alone.

What a column says in a common model is one number per row, f: its levels or smooth terms times their
coefficients, in standard deviations. What it says alone need not be what it says together with another one,
so a number may enter as it is, too. The pair term of two columns is

    (|f + g| - |f - g|) / 2,

the smaller of the two with the sign of their product. Near the middle it behaves like a product, in the tails
it lies no farther out than either. Four units that cut at zero write it down, so a model with pair terms is
a network of plain layers.

A linear model's flat row may end with pair terms: both linear functions of every pair, and its coefficients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfc

from abps.core.arrays import Weights
from abps.models.hierarchical import CenterRows, CommonModel, fit_intercepts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Columns whose pairs are looked at, the strongest first, and the most pairs that are used.
MOST_COLUMNS = 16
MOST_PAIRS = 8

#: Share of false ones among the pairs that are used (Benjamini and Hochberg), and the least information of a
#: pair: with less its score is not nearly normal.
FALSE_SHARE = 0.05
LEAST_INFORMATION = 5.0


@dataclass(frozen=True, eq=False)
class PairTerms:
    """left, right: (pairs, columns + 1) linear functions of a row, the constant last."""

    left: Floats
    right: Floats

    @staticmethod
    def none(columns: int) -> PairTerms:
        """No pairs."""
        return PairTerms(np.zeros((0, columns + 1)), np.zeros((0, columns + 1)))

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.left)

    def of(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """(rows, pairs) from inputs (rows, columns)."""
        f, g = (x @ part[:, :-1].T.astype(np.float32) + part[:, -1] for part in (self.left, self.right))
        return together(f, g).astype(np.float32)

    def appended(self, models: Weights, coefficients: Floats) -> Weights:
        """(r, P') linear models (r, P) with pair terms at their end; coefficients: (r, terms, pairs)."""
        if not self.count:
            return models
        own = np.concatenate([self.left.ravel(), self.right.ravel()])
        tail = np.concatenate([np.tile(own, (len(models), 1)), coefficients.reshape(len(models), -1)], axis=1)
        return np.concatenate([models, tail.astype(np.float32)], axis=1)

    @staticmethod
    def read(tail: Weights, columns: int, terms: int) -> tuple[PairTerms, Floats]:
        """The pair terms at the end of one model, and their coefficients (terms, pairs)."""
        width = columns + 1
        pairs, left_over = divmod(len(tail), 2 * width + terms)
        if left_over:
            raise ValueError(f"{len(tail)} numbers are no pair terms of {columns} columns")
        numbers = tail.astype(np.float64)
        both = numbers[: 2 * pairs * width].reshape(2, pairs, width)
        return PairTerms(both[0], both[1]), numbers[2 * pairs * width :].reshape(terms, pairs)

    def units(self) -> tuple[Floats, Floats]:
        """(4 pairs, columns + 1) linear functions cut at zero, and (4 pairs, pairs) how they add up."""
        functions = np.concatenate([
            self.left + self.right, -self.left - self.right, self.left - self.right, self.right - self.left
        ])  # fmt: skip
        one = 0.5 * np.eye(self.count)
        return functions, np.concatenate([one, one, -one, -one])


def together(f: Floats, g: Floats) -> Floats:
    """The pair term of two columns' effects."""
    return np.asarray(0.5 * (np.abs(f + g) - np.abs(f - g)))


def pair_logits(tail: Weights, x: NDArray[np.float32], mix: NDArray[np.float32]) -> Floats:
    """(rows, outputs) what the pair terms at the end of one model add for inputs (rows, columns)."""
    pairs, coefficients = PairTerms.read(tail, x.shape[1], len(mix))
    return np.asarray(pairs.of(x) @ coefficients.T @ mix)


def column_functions(
    mean: Floats, curvature: Floats, middle: Floats, information: float, source: Ints, straight: Ints
) -> Floats:
    """(2 columns, inputs + 1) linear functions of a row in standard deviations: what each of the table's
    columns says in a common model, the strongest first, :data:`MOST_COLUMNS` at most; then the same columns
    as they are: a number's straight part, of others again what they say.

    mean: (terms, inputs + 1).  curvature: (q, q).  middle: (terms, q) mean inputs.  information: of all rows.
    source: (inputs,) the table's column of each input.  straight: inputs that are a number's straight part.
    With several terms a column says the direction in which its coefficients agree most.
    """
    terms, width = mean.shape
    within = np.einsum("tatb->ab", curvature.reshape(terms, width, terms, width)) / terms
    centre = np.einsum("tta->a", middle.reshape(terms, terms, width)) / terms

    def standardised(own: Ints, way: Floats) -> tuple[Floats, float]:
        spread = np.sqrt(max(float(way @ within[np.ix_(own, own)] @ way) / max(information, 1e-9), 0.0))
        function = np.zeros(width)
        if spread > 1e-9:
            function[own] = way / spread
            function[-1] = -float(centre[own] @ function[own])
        return function, spread

    found, strength = [], []
    for k in range(int(source.max()) + 1):
        own = np.flatnonzero(source == k)
        _, size, axes = np.linalg.svd(mean[:, own], full_matrices=False)
        way = axes[0] * np.where(axes[0][np.argmax(np.abs(axes[0]))] < 0, -1.0, 1.0)
        effect, spread = standardised(own, way)
        line = np.intersect1d(own, straight)
        found.append((effect, standardised(line, np.ones(1))[0] if len(line) == 1 else effect))
        strength.append(float(size[0]) * spread)
    order = np.argsort(-np.array(strength), kind="stable")[:MOST_COLUMNS]
    return np.concatenate(np.array(found)[order].swapaxes(0, 1))


def candidates(columns: int) -> tuple[Ints, Ints]:
    """All pairs among so many columns, by what they say and then as they are: the functions
    (:func:`column_functions`) that come first, and second."""
    used = min(columns, MOST_COLUMNS)
    first, second = np.triu_indices(used, 1)
    return np.concatenate([first, first + used]), np.concatenate([second, second + used])


def pair_sums(rows: CenterRows, common: CommonModel, functions: Floats) -> tuple[Floats, Floats]:
    """(n, terms, candidates) the score of every candidate at the common model, orthogonal to a center's
    intercept, and its information."""
    family = rows.family
    _, _, z = fit_intercepts(rows, common)
    residual = family.residual(z, rows.y) @ family.mix.T / common.dispersion
    weight = np.einsum("rtt->rt", family.information(z, rows.y)) / common.dispersion
    first, second = candidates(len(functions) // 2)
    score = np.zeros((rows.n, residual.shape[1], len(first)))
    information = np.zeros_like(score)
    for i in range(rows.n):
        part = slice(rows.start[i], rows.start[i + 1])
        each = rows.design(i) @ functions.T
        value = together(each[:, first], each[:, second])
        for t in range(residual.shape[1]):
            own, w = residual[part, t], weight[part, t]
            middle = w @ value / max(float(w.sum()), 1e-9)
            score[i, t] = own @ value - own.sum() * middle
            information[i, t] = np.maximum(w @ value**2 - w.sum() * middle**2, 0.0)
    return score, information


def earned(score: Floats, information: Floats) -> Ints:
    """Which candidates earn their place, the strongest first, one of each pair of columns: of their scores
    (terms, candidates), summed over all centers, at most a twentieth is expected to be chance (Benjamini and
    Hochberg)."""
    known = information >= LEAST_INFORMATION
    square = np.where(known, score**2 / np.maximum(information, LEAST_INFORMATION), 0.0)
    # Terms of one outcome depend on each other: Bonferroni among them.
    chance = np.minimum(len(score) * erfc(np.sqrt(square.max(axis=0) / 2.0)), 1.0)
    order = np.argsort(chance, kind="stable")
    passed = np.flatnonzero(chance[order] * len(order) <= FALSE_SHARE * np.arange(1, len(order) + 1))
    order = order[: int(passed[-1]) + 1 if len(passed) else 0]
    strongest = np.sort(np.unique(order % (score.shape[1] // 2), return_index=True)[1])
    return np.asarray(order[strongest[:MOST_PAIRS]])
