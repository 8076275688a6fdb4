"""Peer methods: how centers rank peers, and what they do with the models that arrive.

How centers are linked (:attr:`Method.kind`): ``mutual``, a center ranks peers and answers their proposals
(``rank_peers``), and partners exchange models; ``pull``, it requests the models of the first in its ranking;
``graph``, transfers follow from the seed (``transfers``). Centers send the shared layers of their trained
models and, optionally, one number (``note``); the driver sends, encodes, decodes and counts.

A center's coalition is a subset of its partners; its model is the average of its own trained weights (exact)
and its partners' weights as they arrived, on the shared columns; the private layers are its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from abps.core import credit, streams
from abps.core import ledger as bytes_of
from abps.core.arrays import Weights
from abps.core.ledger import Traffic
from abps.core.matching import MatchingPlan, propose
from abps.core.selection import Selection, turns
from abps.methods.base import Context, Decisions, Floats, Ints, Method, Wire
from abps.models.learners import mixtures
from abps.models.metrics import Segments, labels_of


@dataclass(frozen=True, eq=False)
class Preferences:
    """The preferences of the centers, before any proposal.

    rankings: for every center, the peers that it would ask, best first.  plan: the matching itself, where it
    follows from more than rankings.  trail: the audit trail of a matching, or of pulls (all granted).
    publishing: entries that every center publishes in this round.
    """

    rankings: Sequence[Any] = ()
    plan: MatchingPlan | None = None
    trail: Callable[[MatchingPlan], Decisions] | None = None
    publishing: int = 0


@dataclass(frozen=True, eq=False)
class Received:
    """receiver, sender: (transfers,) the row of the receiver, which is here, and the sender's member index.

    arrived: (n, shared) each sender's model as its receivers decode it (undefined where no center here
    received it).  notes: (n,) of the senders.  preferences: those that led to the transfers.
    """

    receiver: Ints
    sender: Ints
    arrived: Weights
    notes: Floats
    preferences: Any = None

    def partners(self, r: int) -> list[Ints]:
        """The senders that each of the r centers here received from, ascending."""
        sender = self.sender[np.lexsort((self.sender, self.receiver))]
        ends = np.cumsum(np.bincount(self.receiver, minlength=r)).tolist()
        return [sender[a:b] for a, b in zip([0, *ends], ends)]


@dataclass(frozen=True, eq=False)
class StepResult:
    """The state after an exchange, and the new models' predictions for their owners' validation and test
    rows, if they were computed."""

    state: Any
    answers: tuple[Segments, Segments] | None = None


@dataclass(frozen=True)
class PeerMethod(Method, ABC):
    """wire: codec and private layers of what centers send each other."""

    wire: Wire = field(default_factory=Wire)

    #: Whether a note travels with a center's weights.
    noted: ClassVar[bool] = False

    @property
    def capacity(self) -> int:
        """How many partners a center may have, or how many models it requests."""
        return 1

    def exchanges(self, t: int) -> bool:
        """Whether centers exchange models in round t."""
        return True

    def rank_peers(self, context: Context, state: Any, trained: Callable[[], Any], t: int) -> Preferences:
        """The preferences of the centers here; ``trained()`` waits for their training, if these need it."""
        raise NotImplementedError

    def transfers(self, context: Context, t: int) -> tuple[Ints, Ints]:
        """(receivers, senders) by member index, of a graph: the same wherever it is computed."""
        raise NotImplementedError

    def sent(self, state: Any, trained: Any) -> Weights:
        """(r, P) the models whose shared layers travel."""
        models: Weights = trained.models
        return models

    def note(self, context: Context, trained: Any, listeners: Ints) -> Floats:
        """(r,) the notes; listeners: (r,) how many members receive each center's model."""
        return np.zeros(context.r)

    @abstractmethod
    def learn(self, context: Context, state: Any, trained: Any, received: Received, t: int) -> StepResult:
        """The state after what arrived."""

    def cost(self, context: Context, to: Ints, by: Ints) -> Traffic:
        """Bytes of weights and notes over links from members ``by`` to members ``to``."""
        pairs = np.unique(np.minimum(to, by) * context.n + np.maximum(to, by))
        payload = self.wire.payload(context)
        control = len(to) * bytes_of.CONTROL_MESSAGE * self.noted
        return Traffic(len(pairs) * payload, len(to) * payload, control)


def agree(method: PeerMethod, context: Context, preferences: Preferences, t: int) -> MatchingPlan:
    """The matching when all centers are here."""
    if preferences.plan is not None:
        return preferences.plan
    order = turns(Selection(), context.seed, t, context.ids).tolist()
    return propose(order, preferences.rankings, method.capacity)


# ---------------------------------------------------------------- mixing with partners, and crediting them

#: A utility of models on the rows of their owners: (logits, labels) -> (models,), larger is better.
Score = Callable[[Segments, Segments], Floats]


def flat(lists: Sequence[Ints]) -> tuple[Ints, Ints]:
    counts = np.array([len(each) for each in lists], dtype=np.int64)
    return np.concatenate([np.zeros(0, dtype=np.int64), *lists]), counts


def coalition(peers: Ints, mask: int) -> Ints:
    return peers[[p for p in range(len(peers)) if mask >> p & 1]]


def coalitions(who: Ints, partners: Ints) -> tuple[Ints, Ints, Ints]:
    """All coalitions but the whole of centers (c,) with k partners each (c, k), by mask: (owner, members,
    counts)."""
    k = partners.shape[1]
    inside, counts = flat([coalition(np.arange(k), mask) for mask in range((1 << k) - 1)])
    return np.repeat(who, (1 << k) - 1), partners[:, inside].ravel(), np.tile(counts, len(who))


@dataclass(frozen=True, eq=False)
class MixResult:
    """models: (r, P) averages with all partners.  validation, test: their predictions for owners' rows."""

    models: Weights
    validation: Segments
    test: Segments


@dataclass(frozen=True, eq=False)
class PartnerExchange:
    """What is mixed.  trained: (r, P).  arrived: (n, shared) what each member's partners received.
    weights: (n,) of members in averages.  partners: of every center here, by member index."""

    context: Context
    trained: Weights
    arrived: Weights
    weights: Weights
    partners: Sequence[Ints]

    def mix(self) -> MixResult:
        data = self.context.data
        parts = mixtures(np.arange(self.context.n), *flat(self.partners), self.weights)
        models, answers = self.context.learner.settle(self.trained, self.arrived, parts, data.held_out)
        return MixResult(models, *answers.split(data.validation.sizes))

    def utility(self, score: Score, owner: Ints, members: Ints, counts: Ints) -> Floats:
        """U_i(S): the score of every owner's average with a coalition, on the owner's validation rows."""
        rows = self.context.data.validation
        parts = mixtures(owner, members, counts, self.weights)
        answers = self.context.learner.mixture_logits(self.trained, self.arrived, parts, rows)
        return score(answers, labels_of(rows, owner))


def shapley_credit(
    exchange: PartnerExchange, mixed: MixResult, score: Score, t: int, permutations: int, tolerance: float
) -> tuple[Ints, Ints, Floats]:
    """(center, peer, phi) the Shapley value of every partner (member index) for the score of a center's (row)
    model: exact up to five partners, above sampled with so many permutations, each cut off within
    ``tolerance`` of the whole."""
    partners = exchange.partners
    whole = score(mixed.validation, labels_of(exchange.context.data.validation))
    degree = np.array([len(mine) for mine in partners], dtype=np.int64)
    none = np.zeros(0, dtype=np.int64)
    center, peer, phi = [none], [none], [np.zeros(0)]
    for k in np.unique(degree[(degree > 0) & (degree <= credit.EXACT_UP_TO)]).tolist():
        who = np.flatnonzero(degree == k)
        mine = np.stack([partners[i] for i in who.tolist()])
        parts = exchange.utility(score, *coalitions(who, mine)).reshape(len(who), -1)
        center.append(np.repeat(who, k))
        peer.append(mine.ravel())
        phi.append(credit.shapley(np.concatenate([parts, whole[who, None]], axis=1)).ravel())
    many = np.flatnonzero(degree > credit.EXACT_UP_TO)
    center.append(np.repeat(many, degree[many]))
    peer += [partners[i] for i in many.tolist()]
    phi += _sampled(exchange, many, score, t, permutations, tolerance)
    return np.concatenate(center), np.concatenate(peer), np.concatenate(phi)


def _sampled(
    exchange: PartnerExchange, many: Ints, score: Score, t: int, permutations: int, tolerance: float
) -> list[Floats]:
    context, found = exchange.context, [np.zeros(0)] * len(many)

    def sample(k: int) -> None:
        i = int(many[k])
        mine = exchange.partners[i]
        rng = streams.generator(context.seed, "permutations", t, int(context.ids[i]))
        orders = np.stack([rng.permutation(len(mine)) for _ in range(permutations)])

        def ask(masks: list[int]) -> Floats:
            some = flat([coalition(mine, mask) for mask in masks])
            return exchange.utility(score, np.full(len(masks), i), *some)

        found[k] = credit.sampled_shapley(orders, ask, tolerance)

    context.learner.each(sample, len(many))
    return found
