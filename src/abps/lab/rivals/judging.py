"""Peer methods whose centers judge the models of others on their own rows: DAC, PENS, FedFomo and DPFL."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.arrays import Weights
from abps.core.errors import FROM_0, FROM_1, RequestError
from abps.core.ledger import Traffic
from abps.lab.rivals.choosing import by_size, combine, drawn, losses, losses_of, own_losses, trail_with
from abps.methods.base import Context, Floats, Ints, Models, tried
from abps.methods.peers import PeerMethod, Preferences, Received, StepResult

#: A loss of zero has no inverse.
LEAST = 1e-6


@dataclass(frozen=True, eq=False)
class DacState(Models):
    """models: (r, P).  score: (r, n), 0 where nothing is known.  count: (r, n) how often it was measured."""

    score: Floats
    count: Floats


@dataclass(frozen=True)
class DAC(PeerMethod):
    """DAC (Zec et al. 2022): peers drawn by how well their models do on a center's own rows.

    A center draws ``peers`` others from softmax(tau s_i), s_ij = 1 / loss of j's model on i's rows (0:
    unknown), and averages its model with theirs. Two-hop: of members that it has never drawn it takes over
    the score that the best of these has for them; a row of n numbers travels with every model, booked as
    control bytes.

    ``standardise`` compares z-scores of known scores, the unknown counting as average: losses of hospitals
    differ by hundredths, and with tau = 30 raw scores leave one choice.
    """

    peers: int = 5
    tau: float = 30.0
    two_hop: bool = True
    standardise: bool = False

    limits: ClassVar = {"peers": FROM_1, "tau": FROM_0}

    @property
    def grid(self) -> Mapping[str, tuple[Any, ...]]:
        return tried(self, tau=(1.0, 4.0) if self.standardise else (3.0, 30.0))

    kind = "pull"

    @property
    def capacity(self) -> int:
        return self.peers

    def init(self, context: Context) -> DacState:
        nothing = np.zeros((context.r, context.n))
        return DacState(context.common_start(), nothing, nothing)

    def rank_peers(
        self, context: Context, state: DacState, trained: Callable[[], Any], t: int
    ) -> Preferences:
        scaled = zscores(state.score) if self.standardise else state.score
        rankings = drawn(context, self.tau * scaled, t)
        return Preferences(rankings, trail=trail_with(state.score, state.count))

    def cost(self, context: Context, to: Ints, by: Ints) -> Traffic:
        rows = len(to) * 4 * context.n * self.two_hop
        return super().cost(context, to, by) + Traffic(control=rows)

    def learn(
        self, context: Context, state: DacState, trained: DacState, received: Received, t: int
    ) -> StepResult:
        to, by = received.receiver, received.sender
        measured = inverse(losses(context, trained.models, received.arrived, to, by, "train"))
        score, count = state.score.copy(), state.count.copy()
        score[to, by] = measured
        count[to, by] += 1
        if self.two_hop:
            sent = state.score[by]  # as it was when the model was sent
            score = passed_on(score, count > 0, to, by, sent, context.self_mask)
        mixed = combine(trained.models, received.arrived, to, by, by_size(context, to, by))
        return StepResult(DacState(mixed, score, count))


def inverse(loss: Floats) -> Floats:
    """1 / loss; 0, that is unknown, where there were no rows to measure it on."""
    return np.where(loss > 0, 1.0 / np.maximum(loss, LEAST), 0.0)


def zscores(score: Floats) -> Floats:
    """(r, n) every center's scores about their mean, in deviations; 0 for members it knows nothing of."""
    seen = score != 0
    many = np.maximum(seen.sum(axis=1, keepdims=True), 1)
    about = np.where(seen, score - score.sum(axis=1, keepdims=True) / many, 0.0)
    deviation = np.sqrt((about**2).sum(axis=1, keepdims=True) / many)
    return about / np.where(deviation > 0, deviation, 1.0)


def passed_on(
    score: Floats, measured: NDArray[np.bool_], to: Ints, by: Ints, sent: Floats, self_mask: NDArray[np.bool_]
) -> Floats:
    """Scores (r, n) with those that the best of the senders has, for members that were never measured.  sent:
    (transfers, n) the sender's own scores."""
    after, open_ = score.copy(), ~measured & ~self_mask
    # The best sender last: it overwrites what others said.
    for k in np.lexsort((by, score[to, by])).tolist():
        row = to[k]
        takes = open_[row] & (sent[k] > 0)
        after[row, takes] = sent[k, takes]
    return after


#: The share of all rounds that the first phase takes, unless its rounds are set.
FIRST_PHASE = 0.3


@dataclass(frozen=True, eq=False)
class PensState(Models):
    """models: (r, P).  chosen: (r, n) how often each center chose each member in the first phase."""

    chosen: Floats


@dataclass(frozen=True)
class PENS(PeerMethod):
    """PENS (Onoszko et al. 2021): look at many random peers first, then keep to those that were often best.

    Phase 1 (``first`` rounds; none: three in ten): a center hears ``sampled`` random peers, averages its
    model with the ``best`` of them by the loss on its own rows, and counts whom it chose. Phase 2: it hears
    ``later`` random ones of those that it chose more often than chance would have it, T₁ best / (n - 1)
    times, and averages all; without any it goes on with everybody (the authors' code would fail).

    Their code evaluates the own model on the other's patients; the text, and this, the other's model on own
    ones. With many centers and few rounds "more often than chance" means "once".
    """

    sampled: int = 10
    best: int = 2
    first: int | None = None
    later: int = 10

    limits: ClassVar = {"sampled": FROM_1, "best": FROM_1, "later": FROM_1, "first": FROM_1}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.best > self.sampled:
            raise RequestError(f"best={self.best}: no more than the {self.sampled} that are sampled")

    @property
    def grid(self) -> Mapping[str, tuple[Any, ...]]:
        return tried(self, best=(1, 2) if self.sampled > 1 else (1,))

    kind = "pull"

    @property
    def capacity(self) -> int:
        return max(self.sampled, self.later)

    def looking(self, context: Context, t: int) -> bool:
        first = max(1, round(FIRST_PHASE * context.horizon)) if self.first is None else self.first
        return t <= first

    def init(self, context: Context) -> PensState:
        return PensState(context.common_start(), np.zeros((context.r, context.n)))

    def rank_peers(
        self, context: Context, state: PensState, trained: Callable[[], Any], t: int
    ) -> Preferences:
        nobody_preferred = np.zeros((context.r, context.n))
        if self.looking(context, t):
            rankings, many = drawn(context, nobody_preferred, t), self.sampled
        else:
            rankings, many = drawn(context, nobody_preferred, t, neighbours(state.chosen)), self.later
        return Preferences([peers[:many] for peers in rankings], trail=trail_with(state.chosen))

    def learn(
        self, context: Context, state: PensState, trained: PensState, received: Received, t: int
    ) -> StepResult:
        to, by, chosen = received.receiver, received.sender, state.chosen
        if self.looking(context, t):
            loss = losses(context, trained.models, received.arrived, to, by, "train")
            kept = best_of(to, loss, context.ids[by], self.best)
            to, by, chosen = to[kept], by[kept], chosen.copy()
            chosen[to, by] += 1
        mixed = combine(trained.models, received.arrived, to, by, by_size(context, to, by))
        return StepResult(PensState(mixed, chosen))


def best_of(to: Ints, loss: Floats, tie: NDArray[np.uint64], many: int) -> NDArray[np.bool_]:
    """(transfers,) whether a model is among the ``many`` best that its receiver heard."""
    order = np.lexsort((tie, loss, to))
    sorted_to = to[order]
    place = np.arange(len(to)) - np.searchsorted(sorted_to, sorted_to, side="left")
    kept = np.zeros(len(to), dtype=bool)
    kept[order] = place < many
    return kept


def neighbours(chosen: Floats) -> NDArray[np.bool_]:
    """(r, n) the members that each center chose more often than it would by chance; all, if there is none."""
    others = max(1, chosen.shape[1] - 1)
    often = chosen > chosen.sum(axis=1, keepdims=True) / others
    return np.where(often.any(axis=1, keepdims=True), often, True)


@dataclass(frozen=True, eq=False)
class FomoState(Models):
    """models: (r, P).  preference: (r, n)."""

    preference: Floats


@dataclass(frozen=True)
class FedFomo(PeerMethod):
    """FedFomo (Zhang et al. 2021): models of others that lower the own validation loss, weighed by how much.

    A center hears the ``peers`` models of the largest preference, each place being drawn at random with a
    chance that falls from ``explore`` to 0 over the rounds. Of each, and of its own trained model, it works
    out w_j = (L(x⁻) - L(x_j)) / |x_j - x⁻| on its validation rows, x⁻ being its model before training; the
    positive ones, made to sum to one, are the weights of its new model. Without any it keeps its own trained
    model (the authors go back to x⁻ and lose the round). w / |sum of w| is added to its preferences. A server
    holds all models: 1 up and ``peers`` down.
    """

    peers: int = 5
    explore: float = 0.3

    limits: ClassVar = {"peers": FROM_1, "explore": (0.0, 1.0)}
    searched: ClassVar = {"explore": (0.1, 0.3)}

    kind = "pull"

    @property
    def capacity(self) -> int:
        return self.peers

    def init(self, context: Context) -> FomoState:
        return FomoState(context.common_start(), np.zeros((context.r, context.n)))

    def rank_peers(
        self, context: Context, state: FomoState, trained: Callable[[], Any], t: int
    ) -> Preferences:
        mine = context.ids[:, None]
        luck = streams.uniforms(context.seed, "tie-break", t, mine, context.ids[None, :])
        order = np.lexsort((luck, np.where(context.self_mask, np.inf, -state.preference)), axis=-1)[:, :-1]
        many = min(self.peers, context.n - 1)
        chance = self.explore * max(0.0, 1.0 - t / context.horizon)
        dare = streams.uniforms(context.seed, "explore", t, mine, np.arange(many)[None, :]) < chance
        # A random place of what is left: the same numbers for all who have the same peers left.
        which = streams.uniforms(context.seed, "explore-peer", t, mine, context.ids[None, :])
        rankings = []
        for i in range(context.r):
            left = order[i].tolist()
            chosen = []
            for slot in range(many):
                pick = min(left, key=lambda j: which[i, j]) if dare[i, slot] else left[0]
                left.remove(pick)
                chosen.append(pick)
            rankings.append(chosen)
        return Preferences(rankings, trail=trail_with(state.preference))

    def cost(self, context: Context, to: Ints, by: Ints) -> Traffic:
        """Over a server: one model up from everybody, and down those asked for."""
        payload = self.wire.payload(context)
        directed = (context.n + len(to)) * payload
        return Traffic((directed + 1) // 2, directed)

    def learn(
        self, context: Context, state: FomoState, trained: FomoState, received: Received, t: int
    ) -> StepResult:
        to, by, before = received.receiver, received.sender, own_losses(context, state.models, "validation")
        shared = received.arrived.shape[1]
        base = state.models[:, :shared]
        theirs = gains(
            before[to] - losses(context, trained.models, received.arrived, to, by, "validation"),
            np.linalg.norm((received.arrived[by] - base[to]).astype(np.float64), axis=1),
        )
        own = gains(
            before - own_losses(context, trained.models, "validation"),
            np.linalg.norm((trained.models[:, :shared] - base).astype(np.float64), axis=1),
        )
        weight = positive_shares(own, theirs, to)
        models = combine(trained.models, received.arrived, to, by, weight)
        total = np.abs(own + np.bincount(to, weights=theirs, minlength=context.r))
        preference = state.preference.copy()
        preference[to, by] += theirs / np.where(total[to] > 0, total[to], 1.0)
        return StepResult(FomoState(models, preference))


def gains(drop: Floats, distance: Floats) -> Floats:
    """(k,) how much each model takes off the loss for how far away it is; 0 for a model that is no other."""
    return np.where(distance > 0, drop / np.where(distance > 0, distance, 1.0), 0.0)


def positive_shares(own: Floats, theirs: Floats, to: Ints) -> Floats:
    """(transfers,) the share of each model heard among those that help, the own one (r,) included."""
    help_ = np.maximum(theirs, 0.0)
    total = np.maximum(own, 0.0) + np.bincount(to, weights=help_, minlength=len(own))
    return np.where(total[to] > 0, help_ / np.where(total[to] > 0, total[to], 1.0), 0.0)


@dataclass(frozen=True, eq=False)
class DpflState(Models):
    """models: (r, P).  kept: (r, n) 1 for the members that each center found in its first search."""

    kept: Floats
    searches: int


@dataclass(frozen=True)
class DPFL(PeerMethod):
    """DPFL (Kharrat et al. 2025): every center looks for the set of models whose average suits it best.

    Every ``period`` rounds a center hears its candidates and builds a set of at most ``most``, itself in it,
    by a randomised double greedy search on the reward (10 - validation loss of the size-weighted average) /
    10: from X = {itself} and Y = all, it goes through the candidates in random order; with a what j adds to X
    and b what its absence adds to Y (at least 0), j joins X with probability a / (a + b), and where a = b =
    0, or else leaves Y. It goes on from the average of X. First all members are candidates, later those that
    it found then. A bound from above, not a rival in bytes: the first search hears n - 1 models.
    """

    most: int = 10
    period: int = 2

    limits: ClassVar = {"most": (2, math.inf), "period": FROM_1}
    searched: ClassVar = {"most": (5, 10)}

    kind = "pull"

    @property
    def capacity(self) -> int:
        return 1 << 30

    def exchanges(self, t: int) -> bool:
        return (t - 1) % self.period == 0

    def init(self, context: Context) -> DpflState:
        return DpflState(context.common_start(), np.zeros((context.r, context.n)), 0)

    def rank_peers(
        self, context: Context, state: DpflState, trained: Callable[[], Any], t: int
    ) -> Preferences:
        known = (state.kept > 0) | (state.searches == 0)
        rankings = drawn(context, np.zeros_like(state.kept), t, known)
        return Preferences(rankings, trail=trail_with(state.kept))

    def learn(
        self, context: Context, state: DpflState, trained: DpflState, received: Received, t: int
    ) -> StepResult:
        found = self.search(context, trained.models, received, t)
        to, by = np.nonzero(found)
        models = combine(trained.models, received.arrived, to, by, by_size(context, to, by))
        kept = found.astype(np.float64) if state.searches == 0 else state.kept
        return StepResult(DpflState(models, kept, state.searches + 1))

    def search(self, context: Context, own: Weights, received: Received, t: int) -> NDArray[np.bool_]:
        """(r, n) whom the double greedy search takes into each center's set."""
        size = context.sizes().astype(np.float64)
        shared = received.arrived.shape[1]
        chosen = np.zeros((context.r, context.n), dtype=bool)
        partners = [received.sender[received.receiver == i] for i in range(context.r)]
        # Sums of weighted models: those taken, and those not yet refused.
        taken = own[:, :shared].astype(np.float64) * size[:, None]
        weight = size.copy()
        open_, open_weight = taken.copy(), weight.copy()
        for i, mine in enumerate(partners):
            open_[i] += size[mine] @ received.arrived[mine].astype(np.float64)
            open_weight[i] += size[mine].sum()

        def reward(total: Floats, weights: Floats) -> Floats:
            average = (total / weights[:, None]).astype(np.float32)
            return (10.0 - losses_of(context, own, average, "validation")) / 10.0

        luck = streams.uniforms(context.seed, "accept", t, context.ids[:, None], context.ids[None, :])
        for step in range(max((len(mine) for mine in partners), default=0)):
            active = np.array([step < len(mine) for mine in partners]) & (chosen.sum(1) + 1 < self.most)
            if not active.any():
                break
            j = np.array([mine[step] if on else 0 for mine, on in zip(partners, active)])
            part = received.arrived[j].astype(np.float64) * size[j][:, None]
            # Rounding must not turn an empty sum into a weight below zero.
            less = np.maximum(open_weight - size[j], size)
            gain = np.maximum(0.0, reward(taken + part, weight + size[j]) - reward(taken, weight))
            loss = np.maximum(0.0, reward(open_ - part, less) - reward(open_, open_weight))
            chance = np.where(gain + loss > 0, gain / np.where(gain + loss > 0, gain + loss, 1.0), 1.0)
            joins = active & (luck[np.arange(context.r), j] < chance)
            leaves = active & ~joins
            chosen[np.flatnonzero(joins), j[joins]] = True
            taken[joins] += part[joins]
            weight[joins] += size[j[joins]]
            open_[leaves] -= part[leaves]
            open_weight[leaves] -= size[j[leaves]]
        return chosen
