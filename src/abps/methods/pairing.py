"""What partners do with each other's models: mix them, and judge what each was worth.

All centers at once. A center's coalition is a subset of its partners; its model is the average of its
own trained weights (exact) and its partners' weights as they arrived over the wire, on the shared
columns; the private layers are its own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from abps.cohorts.prepare import Rows
from abps.core import credit, streams
from abps.learn.metrics import Segments, labels_of
from abps.methods.base import World

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: A utility of models on the rows of their owners: (logits, labels) -> (models,), larger is better.
Score = Callable[[Segments, Segments], Floats]


def mix(trained: Tensor, arrived: Tensor, partners: list[Ints], weights: Tensor) -> Tensor:
    """(n, P) every center's average with all of its partners; a center without partners keeps its own.

    trained: (n, P) own models.  arrived: (n, shared) what each center's partners received from it.
    """
    mixed = trained.clone()
    met = np.flatnonzero([len(p) for p in partners])
    if len(met):
        found = _averages(trained, arrived, weights, met, [partners[i] for i in met])
        mixed[:, : arrived.shape[1]].index_copy_(0, torch.from_numpy(met), found)
    return mixed


def coalition_models(
    trained: Tensor, arrived: Tensor, weights: Tensor, center: Ints, members: list[Ints]
) -> Tensor:
    """(k, P) the model of ``center[k]`` if it averaged with just the peers ``members[k]``."""
    models = trained[torch.from_numpy(center)]
    # A coalition of nobody is the center's own model, untouched by rounding.
    some = np.flatnonzero([len(m) for m in members])
    if len(some):
        found = _averages(trained, arrived, weights, center[some], [members[k] for k in some])
        models[:, : arrived.shape[1]].index_copy_(0, torch.from_numpy(some), found)
    return models


def _averages(trained: Tensor, arrived: Tensor, weights: Tensor, center: Ints, members: list[Ints]) -> Tensor:
    """(k, shared) weighted means of the shared columns of ``center[k]`` and of its peers, one or more."""
    counts = np.array([len(m) for m in members])
    own, peers = torch.from_numpy(center), torch.from_numpy(np.concatenate(members))
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)[:-1]]))
    row = torch.from_numpy(np.repeat(np.arange(len(center)), counts))
    total = weights[own].index_add_(0, row, weights[peers])
    # One pass per row, no copies of the peers' models.
    sums = F.embedding_bag(
        peers, arrived, offsets, mode="sum", per_sample_weights=weights[peers] / total[row]
    )
    mine = trained[:, : arrived.shape[1]].index_select(0, own)
    return sums.addcmul_(mine, (weights[own] / total).unsqueeze(1))


def coalition(peers: Ints, mask: int) -> Ints:
    """The peers whose bit is set."""
    return peers[[p for p in range(len(peers)) if mask >> p & 1]]


def judged(
    world: World, score: Score, rows: Rows, center: Ints, make: Callable[[Ints], Tensor], block: int = 64
) -> Floats:
    """(k,) the score of model k on the rows of ``center[k]``; ``make`` gives the models of some k.

    Models are made and judged a few at a time, all cores busy, centers of like size together.
    """
    values = np.empty(len(center))
    order = np.argsort(rows.sizes[center], kind="stable")
    blocks = np.array_split(order, -(-len(order) // block)) if len(order) else []

    def work(k: int) -> None:
        own = center[blocks[k]]
        values[blocks[k]] = score(world.learner.logits(make(blocks[k]), rows, own), labels_of(rows, own))

    world.learner.each(work, len(blocks))
    return values


def utilities(
    world: World,
    score: Score,
    trained: Tensor,
    arrived: Tensor,
    weights: Tensor,
    center: Ints,
    members: list[Ints],
) -> Floats:
    """(k,) the utility U_i(S), on validation rows, of each (center, coalition)."""

    def make(some: Ints) -> Tensor:
        return coalition_models(trained, arrived, weights, center[some], [members[k] for k in some])

    return judged(world, score, world.data.validation, center, make)


def shapley_credit(
    world: World,
    score: Score,
    trained: Tensor,
    arrived: Tensor,
    weights: Tensor,
    partners: list[Ints],
    t: int,
    permutations: int,
    tolerance: float,
) -> tuple[Ints, Ints, Floats]:
    """(center, peer, phi) for every center and partner: exact up to five partners, sampled above."""
    exact = [i for i, p in enumerate(partners) if 0 < len(p) <= credit.EXACT_UP_TO]
    center, peer, phi = [], [], []
    for k in sorted({len(partners[i]) for i in exact}):
        who = np.array([i for i in exact if len(partners[i]) == k])
        owner = np.repeat(who, 1 << k)
        members = [coalition(partners[i], mask) for i in who for mask in range(1 << k)]
        value = utilities(world, score, trained, arrived, weights, owner, members)
        center.append(np.repeat(who, k))
        peer.append(np.concatenate([partners[i] for i in who]))
        phi.append(credit.shapley(value.reshape(len(who), 1 << k)).ravel())
    for i, mine in enumerate(partners):
        if len(mine) <= credit.EXACT_UP_TO:
            continue
        rng = streams.generator(world.seed, "permutations", t, int(world.ids[i]))
        orders = np.stack([rng.permutation(len(mine)) for _ in range(permutations)])

        def ask(masks: list[int], i: int = i, mine: Ints = mine) -> Floats:
            members = [coalition(mine, mask) for mask in masks]
            return utilities(world, score, trained, arrived, weights, np.full(len(masks), i), members)

        center.append(np.full(len(mine), i))
        peer.append(mine)
        phi.append(credit.sampled_shapley(orders, ask, tolerance))
    if not center:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
    return np.concatenate(center), np.concatenate(peer), np.concatenate(phi)
