"""What partners do with each other's models: mix them, and judge what each was worth.

All centers at once. A center's coalition is a subset of its partners; its model is the average of its
own trained weights (exact) and its partners' weights as they arrived over the wire, on the shared
columns; the private layers are its own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from abps.cohorts.prepare import Rows
from abps.core import credit, streams
from abps.learn.metrics import Segments, labels_of
from abps.learn.mixtures import Mixtures, mixed, mixtures
from abps.methods.base import World

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: A utility of models on the rows of their owners: (logits, labels) -> (models,), larger is better.
Score = Callable[[Segments, Segments], Floats]


def mix(world: World, trained: Tensor, arrived: Tensor, partners: list[Ints], weights: Tensor) -> Tensor:
    """(n, P) every center's average with all of its partners; a center without partners keeps its own.

    trained: (n, P) own models.  arrived: (n, shared) what each center's partners received from it.
    """
    everyone = mixtures(np.arange(len(trained)), *flat(partners), weights.numpy())
    return mixed(trained, arrived, everyone, world.learner.each)


def flat(members: list[Ints]) -> tuple[Ints, Ints]:
    """Lists side by side, and how long each is."""
    counts = np.array([len(each) for each in members], dtype=np.int64)
    return np.concatenate([np.zeros(0, dtype=np.int64), *members]), counts


def coalition(peers: Ints, mask: int) -> Ints:
    """The peers whose bit is set."""
    return peers[[p for p in range(len(peers)) if mask >> p & 1]]


def coalitions(who: Ints, partners: Ints) -> tuple[Ints, Ints, Ints]:
    """All coalitions of centers (c,) with k partners each (c, k), by mask: (owner, members, counts)."""
    k = partners.shape[1]
    inside, counts = flat([coalition(np.arange(k), mask) for mask in range(1 << k)])
    return np.repeat(who, 1 << k), partners[:, inside].ravel(), np.tile(counts, len(who))


def judged(
    world: World, score: Score, rows: Rows, trained: Tensor, arrived: Tensor, models: Mixtures
) -> Floats:
    """(k,) the score of every mixture on the rows of its owner, a few at a time, all cores busy."""
    values = np.empty(len(models))
    blocks = np.array_split(np.arange(len(models)), -(-len(models) // 128)) if len(models) else []

    def work(k: int) -> None:
        some = models.some(blocks[k])
        logits = world.learner.mixture_logits(trained, arrived, some, rows)
        values[blocks[k]] = score(logits, labels_of(rows, some.owner))

    world.learner.each(work, len(blocks))
    return values


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
    arrived = arrived.contiguous()

    def worth(owner: Ints, members: Ints, counts: Ints) -> Floats:
        """U_i(S), on validation rows, of each center and coalition."""
        models = mixtures(owner, members, counts, weights.numpy())
        return judged(world, score, world.data.validation, trained, arrived, models)

    exact = [i for i, p in enumerate(partners) if 0 < len(p) <= credit.EXACT_UP_TO]
    center, peer, phi = [], [], []
    for k in sorted({len(partners[i]) for i in exact}):
        who = np.array([i for i in exact if len(partners[i]) == k])
        value = worth(*coalitions(who, np.stack([partners[i] for i in who])))
        center.append(np.repeat(who, k))
        peer.append(np.concatenate([partners[i] for i in who]))
        phi.append(credit.shapley(value.reshape(len(who), 1 << k)).ravel())
    for i, mine in enumerate(partners):
        if len(mine) <= credit.EXACT_UP_TO:
            continue
        rng = streams.generator(world.seed, "permutations", t, int(world.ids[i]))
        orders = np.stack([rng.permutation(len(mine)) for _ in range(permutations)])

        def ask(masks: list[int], i: int = i, mine: Ints = mine) -> Floats:
            return worth(np.full(len(masks), i), *flat([coalition(mine, mask) for mask in masks]))

        center.append(np.full(len(mine), i))
        peer.append(mine)
        phi.append(credit.sampled_shapley(orders, ask, tolerance))
    if not center:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
    return np.concatenate(center), np.concatenate(peer), np.concatenate(phi)
