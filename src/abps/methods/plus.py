"""abps-plus: selection that learns, and messages of a few bits.

The paper's frame (beliefs, proposals, capacity, the right to rest) with parts that can learn within fifty
rounds:

* *utility*: the received model's AUROC on all rows of the receiver, which it never saw, with its error;
* *belief*: Beta, with a prior that each center learns from public pair features and fractional evidence
  (:mod:`abps.core.usefulness`);
* *choice*: every center draws its peers' utilities from its beliefs (Thompson) and proposes to the best;
  a peer accepts if its own draw for the proposer is above its break-even;
* *rest*: a center for which no peer's expected gain is worth the price does not call, and answers no;
* *gate*: a mix is adopted only if the updated belief says that the peer helps, weighted by that belief;
* *wire*: differences from the common start, a few bits each.

A center trusts only what it measured itself: nobody's reports enter its beliefs, only public features
that it weighs by its own experience.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from abps.cohorts.prepare import Rows
from abps.core import ledger as bytes_of
from abps.core import selection as turns_of
from abps.core import streams
from abps.core.errors import RequestError
from abps.core.ledger import Ledger, Traffic
from abps.core.matching import Answer, Plan, Rest, propose
from abps.core.selection import Selection
from abps.core.usefulness import (
    Evidence,
    PriorSettings,
    Usefulness,
    auroc_se,
    closeness,
    cosines,
    learn_prior,
    standardised,
)
from abps.learn.metrics import auroc, labels_of
from abps.methods.abps import decisions_of
from abps.methods.base import Method, Outcome, Wire, World

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Public:
    """What centers publish about themselves beside model weights, and may weigh in their priors.

    metadata: outcome rate, size, year and prevalences.  association: for every feature the standardised
    difference of its mean between the outcomes, only from a center with at least ``min_positives``
    positive training rows.  sketch: a random projection of how the first layer moved, ``sketch_size``
    numbers, published after the warm-up and every ``sketch_every`` rounds.
    noise: standard deviation of Gaussian noise added to every published association.
    """

    metadata: bool = True
    association: bool = True
    sketch: bool = True
    sketch_size: int = 64
    sketch_every: int = 10
    min_positives: int = 5
    noise: float = 0.0


@dataclass(frozen=True, eq=False)
class State:
    """Models (n, P), the evidence, the fixed pair features and the latest sketches' feature.

    own: (n,) smoothed validation AUROC of each center's own model.
    """

    models: Tensor
    evidence: Evidence
    fixed: list[Floats]
    sketched: Floats | None
    own: Floats
    belief: Usefulness | None


@dataclass(frozen=True)
class ABPSPlus(Method):
    """kappa: partners at most.  warm_up: rounds of local training before the first call.

    policy: thompson (draw and rank), mean (rank by posterior mean) or random (the control).
    gate: adopt a mix only if the peer probably helps.  price: the expected gain in AUROC below which a
    call is not worth its bytes.  ambition: where break-even lies between chance (0) and the best that a
    center knows (1).  keep_evidence: the share of a pair's evidence that survives a new observation of it.
    fade: the share of all evidence that survives a round.
    every: exchange in every second, third… round only.
    """

    wire: Wire = field(default_factory=lambda: Wire("int4", private_layers=1, reference="start"))
    kappa: int = 1
    warm_up: int = 5
    policy: str = "thompson"
    gate: bool = True
    price: float = 0.002
    ambition: float = 0.5
    keep_evidence: float = 0.5
    fade: float = 0.97
    every: int = 1
    prior: PriorSettings = field(default_factory=PriorSettings)
    public: Public = field(default_factory=Public)

    def __post_init__(self) -> None:
        if self.policy not in ("thompson", "mean", "random"):
            raise RequestError(f"policy={self.policy!r}: choose thompson, mean or random")
        if self.kappa < 1 or self.every < 1 or self.warm_up < 0:
            raise RequestError(
                f"kappa={self.kappa}, every={self.every}, warm_up={self.warm_up}: choose at least 1, 1 and 0"
            )

    def init(self, world: World) -> State:
        """The common start, no evidence, and the features that do not change."""
        n = world.n
        fixed = []
        if self.public.metadata:
            fixed.append(standardised(closeness(world.data.metadata)))
        if self.public.association:
            fixed.append(standardised(cosines(associations(world, self.public))))
        start = world.common_start()
        return State(start, Evidence.none(n), fixed, None, np.full(n, np.nan), None)

    def apply(self, world: World, state: State, t: int, ledger: Ledger) -> tuple[State, Outcome]:
        """One round: train, believe, call or rest, swap, judge, adopt."""
        trained = world.learner.train(state.models, t)
        if t <= self.warm_up or (t - self.warm_up - 1) % self.every:
            return replace(state, models=trained), Outcome.alone(world.n)
        if ledger.closed:
            return replace(state, models=trained), Outcome.alone(world.n, Rest.BUDGET)
        spent = Traffic()
        sketched = state.sketched
        if self.public.sketch and (t - self.warm_up - 1) % self.public.sketch_every == 0:
            sketched = standardised(cosines(sketches(world, trained, self.public.sketch_size)))
            spent += bytes_of.directory(world.n, self.public.sketch_size)
        if t == self.warm_up + 1:
            entries = world.data.metadata.shape[1] * self.public.metadata
            entries += world.data.width * self.public.association
            spent += bytes_of.directory(world.n, entries)
        own = self.own_level(world, trained, state.own)
        evidence = state.evidence.fade(self.fade)
        features = state.fixed + ([] if sketched is None else [sketched])
        belief = self.believe(world, features, evidence)
        even = self.break_even(belief, own)
        plan, score = self.call(world, belief, even, t)
        spent += bytes_of.pairs(len(plan.pairs), self.wire.payload(world), len(plan.center))
        if not ledger.affords(spent):
            return replace(state, models=trained), Outcome.alone(world.n, Rest.BUDGET, overdrawn=True)
        shared = self.wire.shared(world)
        arrived = self.wire.deliver(world, trained[:, :shared], t)
        center = np.concatenate([plan.pairs[:, 0], plan.pairs[:, 1]])
        peer = np.concatenate([plan.pairs[:, 1], plan.pairs[:, 0]])
        value, se = judge(world, trained, arrived, center, peer)
        evidence = evidence.observe(center, peer, value, se, self.keep_evidence)
        after = self.believe(world, features, evidence)
        mixed = self.adopt(world, trained, arrived, center, peer, after.helps(self.break_even(after, own)))
        outcome = Outcome(
            spent, plan.degrees(), plan.rest, decisions_of(plan, score, belief.mean, belief.evidence.count)
        )
        return State(mixed, evidence, state.fixed, sketched, own, after), outcome

    def believe(self, world: World, features: list[Floats], evidence: Evidence) -> Usefulness:
        """Beliefs from the pair features and the evidence so far."""
        stacked = np.stack(features, axis=2) if features else np.zeros((world.n, world.n, 0))
        return Usefulness(learn_prior(stacked, evidence, self.prior), evidence)

    def own_level(self, world: World, trained: Tensor, before: Floats) -> Floats:
        """(n,) each center's own validation AUROC, smoothed over rounds; an undefined one changes nothing."""
        rows = world.data.validation
        now = auroc(world.learner.logits(trained, rows), labels_of(rows))
        smooth = np.where(np.isnan(before), now, 0.8 * before + 0.2 * now)
        return np.where(np.isnan(now), before, smooth)

    def break_even(self, belief: Usefulness, own: Floats) -> Floats:
        """(n,) the utility from which a peer helps: part of the way from chance to the best known."""
        best = np.where(np.eye(len(own), dtype=bool), 0.0, belief.mean).max(axis=1)
        level = np.fmax(best, own)
        return 0.5 + self.ambition * np.maximum(level - 0.5, 0.0)

    def call(self, world: World, belief: Usefulness, even: Floats, t: int) -> tuple[Plan, Floats]:
        """Who calls whom: proposals in the order of the draws, to peers worth their price."""
        n = world.n
        if self.policy == "thompson":
            score = np.stack(
                [
                    streams.generator(world.seed, "policy", t, int(world.ids[i])).beta(
                        belief.alpha[i], belief.beta[i]
                    )
                    for i in range(n)
                ]
            )
        elif self.policy == "mean":
            score = belief.mean
        else:
            score = streams.uniforms(world.seed, "policy", t, world.ids[:, None], np.arange(n)) + 1.0
        worth = belief.expected_gain(even) >= self.price
        if self.policy == "random":
            worth = np.ones((n, n), dtype=bool)
        willing = worth & (score >= even[:, None])
        np.fill_diagonal(willing, False)
        order = np.argsort(np.where(willing, -score, np.inf), axis=1, kind="stable")
        counts = willing.sum(axis=1)
        rankings = [order[i, : counts[i]].tolist() for i in range(n)]
        plan = propose(
            turns_of.turns(Selection(), world.seed, t, world.ids).tolist(),
            rankings,
            lambda j, i: Answer.ACCEPTED if willing[j, i] else Answer.DECLINED,
            self.kappa,
        )
        # A center that wanted nobody rests by its own decision.
        rest = np.where((plan.rest == Rest.NO_CANDIDATES) & (counts == 0), Rest.DECLINED, plan.rest)
        return replace(plan, rest=rest.astype(np.int8)), score

    def adopt(
        self,
        world: World,
        trained: Tensor,
        arrived: Tensor,
        center: NDArray[np.int64],
        peer: NDArray[np.int64],
        helps: Floats,
    ) -> Tensor:
        """(n, P) own models averaged with what was received, as far as it is believed to help."""
        shared = arrived.shape[1]
        sizes = world.sizes()
        trust = helps[center, peer]
        if self.gate and self.policy != "random":
            trust = np.where(trust >= 0.5, trust, 0.0)
        else:
            trust = np.ones_like(trust)
        say = torch.from_numpy(trust.astype(np.float32)) * sizes[torch.from_numpy(peer)]
        to = torch.from_numpy(center)
        total = sizes.clone().index_add_(0, to, say)
        sums = trained[:, :shared] * sizes[:, None]
        sums.index_add_(0, to, arrived[torch.from_numpy(peer)] * say[:, None])
        mixed = trained.clone()
        adopted = torch.from_numpy(np.unique(center[trust > 0]))
        mixed[adopted, :shared] = sums[adopted] / total[adopted, None]
        return mixed


def judge(
    world: World, trained: Tensor, arrived: Tensor, center: NDArray[np.int64], peer: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """(pairs,) AUROC, and its standard error, of each received model on all rows of its receiver.

    The model is the peer's shared layers as they arrived under the receiver's own private layers.
    """
    if not len(center):
        return np.zeros(0), np.zeros(0)
    rows = own_rows(world)
    models = trained[torch.from_numpy(center)]
    models[:, : arrived.shape[1]] = arrived[torch.from_numpy(peer)]
    value = auroc(world.learner.logits(models, rows, center), labels_of(rows, center))
    positives = rows.positives()[center].astype(np.float64)
    return value, auroc_se(value, positives, rows.sizes[center] - positives)


def own_rows(world: World) -> Rows:
    """Training and validation rows of every center, side by side."""
    train, validation = world.data.train, world.data.validation
    order = np.argsort(
        np.concatenate(
            [np.repeat(np.arange(world.n), train.sizes), np.repeat(np.arange(world.n), validation.sizes)]
        ),
        kind="stable",
    )
    return Rows(
        np.concatenate([train.x, validation.x])[order],
        np.concatenate([train.y, validation.y])[order],
        np.concatenate([[0], np.cumsum(train.sizes + validation.sizes)]),
    )


def associations(world: World, public: Public) -> Floats:
    """(n, features) standardised difference of every feature's mean between the outcomes.

    Zeros for a center with too few positives: a handful of patients must not be readable from it.
    """
    rows = world.data.train
    owner = np.repeat(np.arange(world.n), rows.sizes)
    positive = rows.y > 0
    table = np.zeros((world.n, rows.x.shape[1]))
    sums = [np.zeros_like(table), np.zeros_like(table)]
    for side, chosen in enumerate((~positive, positive)):
        np.add.at(sums[side], owner[chosen], rows.x[chosen])
    count = rows.positives().astype(np.float64)
    enough = (count >= public.min_positives) & (rows.sizes - count >= public.min_positives)
    deviation = np.zeros_like(table)
    np.add.at(deviation, owner, rows.x.astype(np.float64) ** 2)
    mean = (sums[0] + sums[1]) / rows.sizes[:, None]
    sd = np.sqrt(np.maximum(deviation / rows.sizes[:, None] - mean**2, 1e-12))
    with np.errstate(divide="ignore", invalid="ignore"):
        difference = sums[1] / count[:, None] - sums[0] / (rows.sizes - count)[:, None]
    table[enough] = (difference / np.where(sd > 1e-5, sd, np.inf))[enough]
    if public.noise:
        noise = [
            streams.generator(world.seed, "sketch", 0, int(world.ids[i])).standard_normal(table.shape[1])
            for i in range(world.n)
        ]
        table[enough] += public.noise * np.stack(noise)[enough]
    return table


def sketches(world: World, models: Tensor, size: int) -> Floats:
    """(n, size) a random projection, the same for all, of how the first layer moved since the start."""
    layout = world.learner.layout
    width = layout.layer_starts[1] if len(layout.layer_starts) > 1 else layout.size
    moved = (models[:, :width] - world.learner.start[:width]).numpy().astype(np.float64)
    projection = streams.generator(world.seed, "sketch").standard_normal((width, size)) / np.sqrt(width)
    return moved @ projection
