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
    shared = arrived.shape[1]
    owner = np.repeat(np.arange(len(partners)), [len(p) for p in partners])
    if len(owner):
        centers = torch.from_numpy(np.unique(owner))
        peers = torch.from_numpy(np.concatenate(partners))
        to = torch.from_numpy(owner)
        total = weights.clone().index_add_(0, to, weights[peers])
        sums = trained[:, :shared] * weights[:, None]
        sums.index_add_(0, to, arrived[peers] * weights[peers, None])
        mixed[centers, :shared] = sums[centers] / total[centers, None]
    return mixed


def coalition_models(
    trained: Tensor, arrived: Tensor, weights: Tensor, center: Ints, members: list[Ints]
) -> Tensor:
    """(k, P) the model of ``center[k]`` if it averaged with just the peers ``members[k]``."""
    shared = arrived.shape[1]
    models = trained[torch.from_numpy(center)]
    own = weights[torch.from_numpy(center)]
    sums = models[:, :shared] * own[:, None]
    row = np.repeat(np.arange(len(members)), [len(m) for m in members])
    total = own.clone()
    if len(row):
        to, peers = torch.from_numpy(row), torch.from_numpy(np.concatenate(members))
        sums.index_add_(0, to, arrived[peers] * weights[peers, None])
        total.index_add_(0, to, weights[peers])
    # A coalition of nobody is the center's own model, untouched by rounding.
    some = torch.from_numpy(np.array([len(m) > 0 for m in members]))
    models[some, :shared] = sums[some] / total[some, None]
    return models


def utilities(
    world: World,
    score: Score,
    trained: Tensor,
    arrived: Tensor,
    weights: Tensor,
    center: Ints,
    members: list[Ints],
    block: int = 256,
) -> Floats:
    """(k,) the utility U_i(S), on validation rows, of each (center, coalition)."""
    rows = world.data.validation
    values = []
    for at in range(0, len(center), block):
        part = center[at : at + block]
        models = coalition_models(trained, arrived, weights, part, members[at : at + block])
        values.append(score(world.learner.logits(models, rows, part), labels_of(rows, part)))
    return np.concatenate(values) if values else np.zeros(0)


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
        members = [partners[i][[p for p in range(k) if mask >> p & 1]] for i in who for mask in range(1 << k)]
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
            members = [mine[[p for p in range(len(mine)) if mask >> p & 1]] for mask in masks]
            return utilities(world, score, trained, arrived, weights, np.full(len(masks), i), members)

        center.append(np.full(len(mine), i))
        peer.append(mine)
        phi.append(credit.sampled_shapley(orders, ask, tolerance))
    if not center:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
    return np.concatenate(center), np.concatenate(peer), np.concatenate(phi)
