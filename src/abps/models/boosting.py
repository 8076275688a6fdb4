"""Gradient boosting of small trees on values sorted into bins; compiled. For outcomes of 0 and 1, and for any
loss whose slopes are given.

The algorithm of the libraries that everybody uses (Newton steps on the loss, histograms of gradients, at most
2³ leaves), written for tables of a few hundred rows: there a library spends its time on
starting up, and one model for each of hundreds of centers takes minutes instead of seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abps.jit import compiled

Floats = NDArray[np.float64]

DEPTH = 3
MOST_BINS = 32
RATE = 0.1
#: Of a leaf: added to the curvature below the fraction, and the fewest rows it may stand for.
PENALTY = 1.0
FEWEST = 10

_NODES = 2**DEPTH - 1


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees of one depth, in the order they were grown.

    edges: (columns, bins - 1) the upper bound of every bin but the last, NaN behind the last one used.
    column, bin: (trees, nodes) rows with a code up to ``bin`` go left; column -1: all go left.
    leaf: (trees, leaves) what a tree adds to the logit.  base: the logit before any tree.
    """

    edges: Floats
    column: NDArray[np.int64]
    bin: NDArray[np.int64]
    leaf: Floats
    base: float

    def logits(self, x: Floats, trees: NDArray[np.int64]) -> Floats:
        """(len(trees), rows) logits of the first so many trees."""
        return _predict(codes(x, self.edges), self.column, self.bin, self.leaf, self.base, trees)


def bin_edges(x: Floats) -> Floats:
    """(columns, bins - 1) bounds between bins: between all values where they are few, else at quantiles."""
    edges = np.full((x.shape[1], MOST_BINS - 1), np.nan)
    for k in range(x.shape[1]):
        values = np.unique(x[:, k])
        if len(values) <= MOST_BINS:
            found = (values[1:] + values[:-1]) / 2
        else:
            at = np.arange(1, MOST_BINS) / MOST_BINS
            found = np.unique(np.quantile(x[:, k], at, method="averaged_inverted_cdf"))
        edges[k, : len(found)] = found
    return edges


def codes(x: Floats, edges: Floats) -> NDArray[np.uint8]:
    """(columns, rows) the bin of every value."""
    found = [np.searchsorted(e[~np.isnan(e)], x[:, k], side="left") for k, e in enumerate(edges)]
    return np.array(found, dtype=np.uint8).reshape(len(edges), len(x))


def boost(x: Floats, y: Floats, trees: int) -> Forest:
    """A forest for x (rows, columns) and y (rows,)."""
    edges = bin_edges(x)
    rate = np.clip(y.mean(), 0.5 / len(y), 1 - 0.5 / len(y))
    base = float(np.log(rate / (1 - rate)))
    column = np.full((trees, _NODES), -1)
    cut = np.zeros((trees, _NODES), dtype=np.int64)
    leaf = np.zeros((trees, _NODES + 1))
    _grow(codes(x, edges), np.ascontiguousarray(y, dtype=np.float64), base, column, cut, leaf)
    return Forest(edges, column, cut, leaf, base)


#: (rows, outputs) answers to what is left over of every row, and the loss's curvature there.
Slopes = Callable[[Floats], tuple[Floats, Floats]]


def boost_any(x: Floats, slopes: Slopes, base: Floats, trees: int) -> tuple[Forest, ...]:
    """A forest for each answer, grown side by side: after every tree of all, slopes are asked for anew.

    base: (outputs,) the answers before any tree.
    """
    edges, count = bin_edges(x), len(base)
    code = codes(x, edges)
    grown = [
        Forest(
            edges, np.full((trees, _NODES), -1), np.zeros((trees, _NODES), np.int64),
            np.zeros((trees, _NODES + 1)), float(start),
        )
        for start in base
    ]  # fmt: skip
    z = np.tile(base, (len(x), 1)).astype(np.float64)
    node, sums = np.empty(len(x), dtype=np.int64), np.empty((2**DEPTH, MOST_BINS, 3))
    for tree in range(trees):
        left, curvature = slopes(z)
        for k in range(count):
            forest = grown[k]
            gradient, bent = np.ascontiguousarray(-left[:, k]), np.ascontiguousarray(curvature[:, k])
            _plant(code, gradient, bent, node, sums, forest.column[tree], forest.bin[tree], forest.leaf[tree])
            z[:, k] += forest.leaf[tree][node]
    return tuple(grown)


@compiled
def _plant(code, gradient, curvature, node, sums, column, cut, leaf):
    """Grow one tree: column and cut (nodes,), leaf (leaves,) are filled in; node (rows,): each row's leaf."""
    columns, rows = code.shape
    node[:] = 0
    for level in range(DEPTH):
        width = 2**level
        best = np.zeros(width)
        total = np.zeros((width, 3))
        for i in range(rows):
            total[node[i], 0] += gradient[i]
            total[node[i], 1] += curvature[i]
            total[node[i], 2] += 1.0
        for k in range(columns):
            sums[:width] = 0.0
            for i in range(rows):
                into = sums[node[i], code[k, i]]
                into[0] += gradient[i]
                into[1] += curvature[i]
                into[2] += 1.0
            for v in range(width):
                g, h, m = total[v]
                whole = g * g / (h + PENALTY)
                lg, lh, lm = 0.0, 0.0, 0.0
                for b in range(MOST_BINS - 1):
                    lg += sums[v, b, 0]
                    lh += sums[v, b, 1]
                    lm += sums[v, b, 2]
                    if lm < FEWEST or sums[v, b, 2] == 0.0:
                        continue
                    if m - lm < FEWEST:
                        break
                    gain = lg * lg / (lh + PENALTY) + (g - lg) ** 2 / (h - lh + PENALTY) - whole
                    if gain > best[v] + 1e-9:
                        best[v] = gain
                        column[width - 1 + v] = k
                        cut[width - 1 + v] = b
        for i in range(rows):
            at = width - 1 + node[i]
            k = column[at]
            node[i] = 2 * node[i] + (1 if k >= 0 and code[k, i] > cut[at] else 0)
    ends = np.zeros((2**DEPTH, 2))
    for i in range(rows):
        ends[node[i], 0] += gradient[i]
        ends[node[i], 1] += curvature[i]
    for v in range(2**DEPTH):
        leaf[v] = -RATE * ends[v, 0] / (ends[v, 1] + PENALTY)


@compiled
def _grow(code, y, base, column, cut, leaf):
    """Grow all trees of 0 and 1: column and cut (trees, nodes), leaf (trees, leaves) are filled in."""
    rows = code.shape[1]
    z = np.full(rows, base)
    gradient, curvature = np.empty(rows), np.empty(rows)
    node = np.empty(rows, dtype=np.int64)
    sums = np.empty((2**DEPTH, MOST_BINS, 3))
    for tree in range(len(leaf)):
        for i in range(rows):
            chance = 1.0 / (1.0 + np.exp(-z[i]))
            gradient[i] = chance - y[i]
            curvature[i] = chance * (1.0 - chance)
        _plant(code, gradient, curvature, node, sums, column[tree], cut[tree], leaf[tree])
        for i in range(rows):
            z[i] += leaf[tree, node[i]]


@compiled
def _predict(code, column, cut, leaf, base, trees):
    """(len(trees), rows) logits after so many trees, in rising order."""
    rows = code.shape[1]
    out = np.empty((len(trees), rows))
    for i in range(rows):
        z, tree = base, 0
        for s in range(len(trees)):
            while tree < trees[s]:
                v = 0
                for level in range(DEPTH):
                    at = 2**level - 1 + v
                    k = column[tree, at]
                    v = 2 * v + (1 if k >= 0 and code[k, i] > cut[tree, at] else 0)
                z += leaf[tree, v]
                tree += 1
            out[s, i] = z
    return out
