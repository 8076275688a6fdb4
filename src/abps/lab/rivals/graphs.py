"""Who is next to whom, and averages over neighbours: what the peer-to-peer rivals share.

A graph is its edges (e, 2), every undirected edge once. A transfer is (receiver, sender).
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.arrays import Weights
from abps.methods.base import Context

Ints = NDArray[np.int64]

Graph = Literal["ring", "changing-ring", "complete"]
GRAPHS: tuple[str, ...] = get_args(Graph)


def ring(order: Ints) -> Ints:
    """Edges of a ring through the centers in the given order; two centers share one edge."""
    n = len(order)
    if n < 2:
        return np.zeros((0, 2), dtype=np.int64)
    return np.stack([order, np.roll(order, -1)], axis=1)[: n if n > 2 else 1]


def complete(n: int) -> Ints:
    """Every pair."""
    return np.stack(np.triu_indices(n, 1), axis=1).astype(np.int64)


def regular(order: Ints, degree: int) -> Ints:
    """Edges of a graph in which all have ``degree`` neighbours, or all others where there are no more: the
    nearest and, for an odd degree, the opposite on a circle in the given order (of an odd number of centers
    the last has no opposite)."""
    n, at = len(order), np.arange(len(order))
    if degree >= n - 1:
        return complete(n)
    edges = [np.stack([order, np.roll(order, -step)], axis=1) for step in range(1, degree // 2 + 1)]
    if degree % 2:
        half = at[: n // 2]
        edges.append(np.stack([order[half], order[half + n // 2]], axis=1))
    return np.concatenate(edges)


def shuffled(context: Context, t: int = 0) -> Ints:
    """(n,) the centers in random order, the same for all, whatever order they are listed in."""
    return np.argsort(streams.bits(context.seed, "graph", t, context.ids), kind="stable")


def by_size(context: Context, receiver: Ints, sender: Ints) -> NDArray[np.float64]:
    """(transfers,) the weight of each model received in a size-weighted mean with the own one."""
    say = context.sizes().astype(np.float64)
    total = say[context.local_index] + np.bincount(receiver, weights=say[sender], minlength=context.r)
    return np.asarray(say[sender] / total[receiver])


def combine(
    own: Weights, arrived: Weights, receiver: Ints, sender: Ints, weight: NDArray[np.float64]
) -> Weights:
    """(r, P) every center's own model and, with the given weights, those it received; weights sum to 1.

    own: (r, P).  arrived: (n, shared) what each member's receivers see of it; the private columns of
    ``own`` stay.  receiver: (transfers,) rows.  sender: (transfers,) places.  weight: (transfers,).
    """
    n, shared = len(own), arrived.shape[1]
    rest = 1.0 - np.bincount(receiver, weights=weight, minlength=n)
    mixed = own.copy()
    mixed[:, :shared] *= rest.astype(np.float32)[:, None]
    for to, by, scale in zip(receiver, sender, weight.astype(np.float32)):
        mixed[to, :shared] += scale * arrived[by]
    return mixed
