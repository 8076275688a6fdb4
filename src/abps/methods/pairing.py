"""What partners do with each other's models: mix them, and judge what each was worth.

All centers at once. A center's coalition is a subset of its partners; its model is the average of its
own trained weights (exact) and its partners' weights as they arrived over the wire, on the shared
columns; the private layers are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from abps.core import credit, streams
from abps.core.arrays import Weights
from abps.methods.base import Context
from abps.models.metrics import Segments, labels_of
from abps.models.mixtures import mixtures

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: A utility of models on the rows of their owners: (logits, labels) -> (models,), larger is better.
Score = Callable[[Segments, Segments], Floats]


def flat(members: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Lists side by side, and how long each is."""
    counts = np.array([len(each) for each in members], dtype=np.int64)
    return np.concatenate([np.zeros(0, dtype=np.int64), *members]), counts


def coalition(peers: Ints, mask: int) -> Ints:
    """The peers whose bit is set."""
    return peers[[p for p in range(len(peers)) if mask >> p & 1]]


def coalitions(who: Ints, partners: Ints) -> tuple[Ints, Ints, Ints]:
    """All coalitions but the whole of centers (c,) with k partners each (c, k), by mask: (owner, members,
    counts)."""
    k = partners.shape[1]
    inside, counts = flat([coalition(np.arange(k), mask) for mask in range((1 << k) - 1)])
    return np.repeat(who, (1 << k) - 1), partners[:, inside].ravel(), np.tile(counts, len(who))


@dataclass(frozen=True, eq=False)
class Meeting:
    """What came of partners' models.

    models: (r, P) every center's average with all of its partners.  validation, test: what these answer for
    their owners' rows.  phi[k]: the Shapley value of the member at place ``peer[k]`` for row ``center[k]``.
    """

    models: Weights
    validation: Segments
    test: Segments
    center: Ints
    peer: Ints
    phi: Floats


def meet(
    context: Context, trained: Weights, arrived: Weights, weights: Weights, partners: Sequence[Ints]
) -> Meeting:
    """Average all who have rows here (a hospital has its own alone) with their partners; nobody is judged.

    trained: (r, P) own models.  arrived: (n, shared) what each member's partners received from it.
    weights: (n,) of the members.  partners: of every row, by their places.
    """
    data, say = context.data, weights
    parts = mixtures(np.arange(context.r), *flat(partners), say, own_weights=say[context.local_index])
    models, answers = context.learner.settle(trained, arrived, parts, data.held_out)
    none = np.zeros(0, dtype=np.int64)
    return Meeting(models, *answers.split(data.validation.sizes), none, none, np.zeros(0))


def judged(
    meeting: Meeting,
    context: Context,
    score: Score,
    trained: Weights,
    arrived: Weights,
    weights: Weights,
    partners: Sequence[Ints],
    t: int,
    permutations: int = 8,
    tolerance: float = 1e-3,
) -> Meeting:
    """The meeting, and what every center's partners were worth to it by the score of its model on its
    validation rows: exact up to five partners, sampled above."""
    say = weights
    rows = context.data.validation

    def utility(owner: Ints, members: Ints, counts: Ints) -> Floats:
        """U_i(S) of each center and coalition."""
        models = mixtures(owner, members, counts, say, own_weights=say[context.local_index])
        answers = context.learner.mixture_logits(trained, arrived, models, rows)
        return score(answers, labels_of(rows, owner))

    whole = score(meeting.validation, labels_of(rows))
    degree = np.array([len(mine) for mine in partners], dtype=np.int64)
    center, peer, phi = [meeting.center], [meeting.peer], [meeting.phi]
    for k in np.unique(degree[(degree > 0) & (degree <= credit.EXACT_UP_TO)]).tolist():
        who = np.flatnonzero(degree == k)
        mine = np.stack([partners[i] for i in who.tolist()])
        parts = utility(*coalitions(who, mine)).reshape(len(who), -1)
        center.append(np.repeat(who, k))
        peer.append(mine.ravel())
        phi.append(credit.shapley(np.concatenate([parts, whole[who, None]], axis=1)).ravel())
    many = np.flatnonzero(degree > credit.EXACT_UP_TO)
    sampled = [np.zeros(0)] * len(many)

    def sample(k: int) -> None:
        i = int(many[k])
        rng = streams.generator(context.seed, "permutations", t, int(context.ids[context.local_index[i]]))
        orders = np.stack([rng.permutation(degree[i]) for _ in range(permutations)])

        def ask(masks: list[int]) -> Floats:
            return utility(np.full(len(masks), i), *flat([coalition(partners[i], mask) for mask in masks]))

        sampled[k] = credit.sampled_shapley(orders, ask, tolerance)

    context.learner.each(sample, len(many))
    center.append(np.repeat(many, degree[many]))
    peer += [partners[i] for i in many.tolist()]
    phi += sampled
    return replace(meeting, center=np.concatenate(center), peer=np.concatenate(peer), phi=np.concatenate(phi))
