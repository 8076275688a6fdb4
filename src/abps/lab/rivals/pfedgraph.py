"""pFedGraph (Ye et al. 2023): a server mixes every center a model of its own, by how alike they moved.

With d_ij = -cos(x_i - θ⁰, x_j - θ⁰) (values below -0.9 being -1), row i of the graph are the shares g on the
simplex that minimise alpha |g - p|² + <d_i, g>, p_j = N_j / sum of N: the nearest point of the simplex to p -
d_i / (2 alpha). Center i goes on from sum_j g_ij x_j. The authors' regulariser, which turns a center towards
its aggregate while it trains, is left out: in their code it has the wrong sign.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from abps.core.arrays import Weights
from abps.core.errors import POSITIVE
from abps.methods.base import Context, Floats, Models, Wire
from abps.methods.star import Server, StarMethod

#: Models that point this much the same way count as pointing exactly the same way.
SAME = 0.9


def likeness(moved: Weights, centre: bool = False) -> Floats:
    """(n, n) cosines between rows (n, columns), those above 0.9 set to 1; 0 where a row is zero.  centre: the
    mean of all rows is taken out first."""
    rows = moved.astype(np.float64)
    if centre:
        rows = rows - rows.mean(0)
    length = np.linalg.norm(rows, axis=1)
    unit = rows / np.where(length > 0, length, np.ones_like(length))[:, None]
    cosine: Floats = unit @ unit.T
    return np.where(cosine > SAME, 1.0, cosine)


def collaboration(alike: Floats, sizes: Floats, alpha: float) -> Floats:
    """(r, n) rows of the graph from likenesses (r, n) and training rows (n,)."""
    return nearest_shares(sizes / sizes.sum() + alike / (2.0 * alpha))


def nearest_shares(rows: Floats) -> Floats:
    """(k, n) for every row the nearest point of the simplex: max(row - c, 0), c such that it sums to one."""
    falling = -np.sort(-rows, axis=1)
    beyond = np.cumsum(falling, axis=1) - 1.0
    # As many of the largest entries stay as can without one of them falling below zero.
    kept = (falling * np.arange(1, rows.shape[1] + 1) > beyond).sum(axis=1)
    cut = np.take_along_axis(beyond, kept[:, None] - 1, axis=1) / kept[:, None]
    return np.asarray(np.maximum(rows - cut, 0.0))


@dataclass(frozen=True)
class PFedGraph(StarMethod):
    """alpha: how near shares stay to those of size.  centre: take the mean movement out before cosines are
    taken (not the authors')."""

    wire: Wire = field(default_factory=Wire)
    alpha: float = 0.8
    centre: bool = False

    limits: ClassVar = {"alpha": POSITIVE}
    searched: ClassVar = {"centre": (False, True)}

    def serve(
        self, start: Weights, server: Server, sent: tuple[Weights, ...], sizes: Weights, t: int
    ) -> tuple[tuple[Weights, ...], None]:
        models = sent[0]
        alike = likeness(models - start[: models.shape[1]], self.centre)
        share = collaboration(alike, sizes.astype(np.float64), self.alpha).astype(np.float32)
        return (share @ models,), None

    def receive(
        self, context: Context, state: Models, trained: Models, down: tuple[Weights, ...], t: int
    ) -> Models:
        mine = np.atleast_2d(down[0])
        return Models(np.concatenate([mine, trained.models[:, mine.shape[1] :]], axis=1))
