"""Many averages of models at once, given by their parts and not yet computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abps.core.arrays import Weights, compact
from abps.models.native import network as compiled


@dataclass(frozen=True, eq=False)
class Mixtures:
    """k models, each a center's own whose shared layers are averaged with what others sent.

    owner: (k,) whose own model, and so whose private layers.  own: (k,) its share of the average.
    other: (parts,) who else is in it, share: (parts,) with what share; model k owns start[k]:start[k+1].
    """

    owner: NDArray[np.int64]
    own: NDArray[np.float32]
    other: NDArray[np.int64]
    share: NDArray[np.float32]
    start: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.owner)

    def plain(self) -> tuple[NDArray[Any], ...]:
        """As compiled code takes them: owner, own, other, share, start."""
        return self.owner, self.own, self.other, self.share, self.start


def mixtures(
    owner: NDArray[np.int64],
    other: NDArray[np.int64],
    counts: NDArray[np.int64],
    weights: NDArray[np.float32],
) -> Mixtures:
    """Averages of ``owner[k]`` with its ``counts[k]`` others, by weights (n,)."""
    row = np.repeat(np.arange(len(owner)), counts)
    mine = weights[owner].astype(np.float64)
    total = mine + np.bincount(row, weights=weights[other], minlength=len(owner))
    # A model without members is the owner's, untouched.
    own = np.where(counts > 0, mine / total, 1.0)
    share = weights[other] / total[row]
    start = np.concatenate([[0], np.cumsum(counts)])
    return Mixtures(owner, own.astype(np.float32), other, share.astype(np.float32), start)


#: Runs a piece of work for 0..count-1, in any order.
Each = Callable[[Callable[[int], None], int], None]


def mixed(own: Weights, others: Weights, parts: Mixtures, each: Each) -> Weights:
    """(k, P) the models, from own models (n, P) and what was sent of the shared columns (n, shared)."""
    models = np.empty((len(parts), own.shape[1]), dtype=np.float32)
    mine, sent = compact(own), compact(others)
    pieces = np.array_split(np.arange(len(parts)), max(1, -(-len(parts) // 64)))

    def work(k: int) -> None:
        compiled.mixed_models(mine, sent, parts.plain(), pieces[k], models)

    each(work, len(pieces))
    return models
