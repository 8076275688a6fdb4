"""ABPS: Adaptive Bayesian Partner Selection, read literally where the paper is clear.

A round: every center trains; centers propose to peers ranked by their beliefs, accept, reject or rest;
partners swap the shared part of their models and average; each center credits its partners by the
Shapley value of its validation AUROC and updates its beliefs. Resting centers train all the same.

The controls are this method with the belief taken out: partners drawn at random (``policy=random``), or
at random inside the declared group (``candidates=group``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from abps.core import credit, goals, selection
from abps.core import ledger as bytes_of
from abps.core.beliefs import Beliefs
from abps.core.candidates import Candidates
from abps.core.candidates import candidates as candidates_of
from abps.core.errors import RequestError
from abps.core.goals import Goal
from abps.core.ledger import Ledger, Traffic
from abps.core.matching import Plan, Rest
from abps.core.selection import Round, Selection
from abps.core.sparse_selection import select_sparsely
from abps.data.prepare import Prepared
from abps.learn.metrics import auroc, log_loss
from abps.methods.base import Decisions, Method, Outcome, Wire, Words, World, center_weights
from abps.methods.forgetting import Alarm, Memory, Observed, Watch, keys_of
from abps.methods.pairing import Floats, Ints, Meeting, judged, meet

#: Centers up to which every proposal is listed in the audit trail; above, those in vain are counted.
LISTED_UP_TO = 512


@dataclass(frozen=True)
class Filter:
    """Whom a center considers at all.

    goal: none, homogeneity, diversity or alignment; ``goals`` gives one per center instead, and
    ``goal_function`` is a user's own (centers (a, k), peers (b, k)) -> (a, b).
    keep: share of pairs that stays in; tau_scope: over all pairs, or of each center's peers.
    metadata: base (outcome rate, size, year) or full (with the descriptors' prevalences).
    meta_scale: raw (the paper) or zscore.  mutual_filter: the receiver's goal must admit the proposer too.
    candidates: all, or group: only peers of the same declared group (the oracle control).
    """

    goal: str = "none"
    goals: tuple[str, ...] = ()
    goal_function: Goal | None = None
    keep: float = 0.25
    tau_scope: str = "global_pairs"
    metadata: str = "base"
    meta_scale: str = "raw"
    mutual_filter: bool = True
    candidates: str = "all"

    def __post_init__(self) -> None:
        if self.metadata not in ("base", "full"):
            raise RequestError(f"metadata={self.metadata!r}: choose base or full")
        if self.candidates not in ("all", "group"):
            raise RequestError(f"candidates={self.candidates!r}: choose all or group")
        for name in (self.goal, *self.goals):
            if name != "none":
                goals.goal(name)

    def screen(self, world: World) -> Candidates:
        """C_i of every center."""
        return self.sets(self.vectors(world), world.data.groups)

    def among(self, vectors: Floats, groups: Sequence[str] | None = None) -> tuple[NDArray[np.bool_], Floats]:
        """(n, n) who considers whom, and the similarity, from the published vectors (n, k) alone: what every
        hospital computes for itself."""
        found = self.sets(vectors, groups)
        everyone = np.arange(len(vectors))
        return found.rows(everyone, everyone), found.similarity

    def sets(self, vectors: Floats, groups: Sequence[str] | None = None) -> Candidates:
        """The candidate sets of centers that published these vectors (n, k)."""
        group = None
        if self.candidates == "group":
            if groups is None:
                raise RequestError(
                    "partners inside a declared group need groups; name the column with --group COL"
                )
            group = np.unique(np.array(groups), return_inverse=True)[1]
        return candidates_of(vectors, self._goals(len(vectors)), self.keep, self.tau_scope, group)

    def vectors(self, world: World) -> Floats:
        """(n, k) the metadata that centers publish."""
        return self.read(world.data.metadata[:, : self.entries(world.data)])

    def entries(self, data: Prepared) -> int:
        """How many entries of its metadata vector a center publishes."""
        return data.base_metadata if self.metadata == "base" else data.metadata.shape[1]

    def read(self, published: Floats) -> Floats:
        """(n, k) the published vectors on the scale on which they are compared."""
        return goals.scaled(published, self.meta_scale)

    def _goals(self, n: int) -> list[Goal] | None:
        if self.goal_function is not None:
            return [self.goal_function] * n
        if self.goals:
            if len(self.goals) != n:
                raise RequestError(f"goals: {len(self.goals)} given for {n} centers; give one per center")
            return [goals.anybody if g == "none" else goals.goal(g) for g in self.goals]
        return None if self.goal == "none" else [goals.goal(self.goal)] * n


#: What a center calls useful, measured on its own validation rows.
UTILITIES = {
    "auroc": auroc,
    # Log-loss differences are of the size of AUROC differences here, and defined with one class only.
    "log_loss": lambda logits, labels: -log_loss(logits, labels),
}


@dataclass(frozen=True)
class Credit:
    """How partners are judged.

    utility: auroc or log_loss, on validation rows.  phi_min, phi_max: the range of the affine clip.
    undefined_utility: skip (no observation, as if it had not happened) or half (counts as 0.5).
    tmc_permutations, tmc_tol: sampled Shapley values above five partners.
    """

    utility: str = "auroc"
    phi_min: float = -0.1
    phi_max: float = 0.1
    undefined_utility: str = "skip"
    tmc_permutations: int = 8
    tmc_tol: float = 1e-3

    def __post_init__(self) -> None:
        if self.utility not in UTILITIES:
            raise RequestError(f"utility={self.utility!r}: choose {', '.join(UTILITIES)}")
        if self.undefined_utility not in ("skip", "half"):
            raise RequestError(f"undefined_utility={self.undefined_utility!r}: choose skip or half")
        if not self.phi_min < self.phi_max:
            raise RequestError(f"phi_min={self.phi_min} must be below phi_max={self.phi_max}")

    def value(self, phi: Floats) -> Floats:
        """Shapley values as observations in [0, 1]; NaN where there was nothing to observe."""
        value = credit.clip_affine(phi, self.phi_min, self.phi_max)
        return np.where(np.isnan(value), 0.5, value) if self.undefined_utility == "half" else value


@dataclass(frozen=True, eq=False)
class State:
    """Models (n, P), beliefs, and who admits whom (until new data change the metadata).

    watch: what is carried along to notice drift.  alarms: raised since the last round.
    published: the metadata were sent out anew before this round.
    """

    models: Tensor
    beliefs: Beliefs
    candidates: Candidates
    watch: Watch = field(default_factory=Watch)
    alarms: tuple[Alarm, ...] = ()
    published: bool = False


@dataclass(frozen=True)
class ABPS(Method):
    """selection: ranking and acceptance.  filter: goals.  credit: utility.  wire: codec, private layers.

    weighting: size or uniform, of the average with partners.
    smoothing: share of its previous trunk that a center keeps after mixing (the paper's EMA); 0 is none.
    discount: share of evidence that survives each round (1: nothing is forgotten).
    memory: what else is forgotten: after alarms of drift, or beyond a window of rounds.
    adopt: always, or if_helpful: keep the mix only where it does not lower the own validation utility.
    """

    selection: Selection = field(default_factory=Selection)
    filter: Filter = field(default_factory=Filter)
    credit: Credit = field(default_factory=Credit)
    wire: Wire = field(default_factory=Wire)
    weighting: str = "size"
    smoothing: float = 0.0
    discount: float = 1.0
    memory: Memory = field(default_factory=Memory)
    adopt: str = "always"

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise RequestError(f"smoothing={self.smoothing}: a share, choose 0 to below 1")
        if not 0 <= self.discount <= 1:
            raise RequestError(f"discount={self.discount}: a share, choose 0 to 1")
        if self.memory.forget == "window" and self.discount < 1:
            raise RequestError(f"forget=window with discount={self.discount}: choose one way to forget")
        if self.adopt not in ("always", "if_helpful"):
            raise RequestError(f"adopt={self.adopt!r}: choose always or if_helpful")

    def init(self, world: World) -> State:
        """The common start, prior beliefs, and the goal filter."""
        beliefs = Beliefs(world.n, self.selection.prior)
        return State(world.common_start(), beliefs, self.filter.screen(world))

    def moved(self, before: World, world: World, state: State, t: int) -> State:
        """New data: each center compares them with the old, and publishes its metadata anew."""
        alarms = self.memory.look(before, world, state.models, t)
        found = self.filter.screen(world)
        return replace(state, candidates=found, published=True, alarms=state.alarms + alarms)

    def apply(self, world: World, state: State, t: int, ledger: Ledger) -> tuple[State, Outcome]:
        """One round: train, propose, swap, mix, credit, update."""
        train = world.learner.begin(state.models, t)
        beliefs = state.beliefs.discount(self.discount) if self.discount < 1 else state.beliefs
        beliefs = self.memory.fade(beliefs, state.alarms)
        watch = self.memory.clear(state.watch, state.alarms)
        if ledger.closed:
            return _next(state, train(), beliefs), Outcome.alone(world.n, Rest.BUDGET)
        # Whom to ask does not depend on this round's models: centers choose while they train.
        chosen = self.choose(world, state, beliefs, t)
        trained = train()
        traffic = self.traffic(world, chosen.plan, t) + self._news(world, state)
        if not ledger.affords(traffic):
            # That the plan is too dear is known once it is made: its messages were sent.
            alone = Outcome.alone(world.n, Rest.BUDGET, overdrawn=True)
            return _next(state, trained, beliefs), replace(alone, traffic=Traffic(control=traffic.control))
        partners = chosen.plan.partners()
        shared = self.wire.shared(world)
        arrived = self.wire.deliver(world, trained[:, :shared], t)
        weights = center_weights(world, self.weighting)
        meeting = self.together(world, state.models, trained, arrived, weights, partners, t)
        observed = self.observe(beliefs, meeting.center, meeting.peer, meeting.phi)
        watch, alarms = self.memory.surprises(watch, observed, keys_of(world, t))
        watch = self.memory.remember(watch, observed)
        seen = beliefs.observe(meeting.center, meeting.peer, observed.value)
        beliefs = self.memory.recalled(seen, watch)
        trail = decisions(chosen).after(alarm_trail(state.alarms))
        # All go on with the average, unless a rule of their own says otherwise.
        plain = self.adopt == "always" and not self.smoothing
        answers = (meeting.validation, meeting.test) if plain else None
        outcome = Outcome(traffic, chosen.plan.degrees(), chosen.plan.rest, trail, answers=answers)
        return replace(_next(state, meeting.models, beliefs), watch=watch, alarms=alarms), outcome

    def observe(
        self, beliefs: Beliefs, center: NDArray[np.int64], peer: NDArray[np.int64], phi: Floats
    ) -> Observed:
        """A round's observations beside what was believed before."""
        value, belief = self.credit.value(phi), beliefs.posterior(center, peer)
        surprise = np.where(belief.count > 0, value - belief.mean, np.nan)
        return Observed(center, peer, value, surprise)

    def _news(self, world: World, state: State) -> Traffic:
        """Control bytes of metadata that were published anew, and of alarms that were told to all."""
        spent = Traffic()
        if state.published and self.selection.policy != "random":
            spent += bytes_of.directory(world.n, self.filter.vectors(world).shape[1])
        if self.memory.announce:
            told = len({alarm.center for alarm in state.alarms}) * (world.n - 1)
            spent += Traffic(control=told * bytes_of.CONTROL_MESSAGE)
        return spent

    def together(
        self,
        world: World,
        before: Tensor,
        trained: Tensor,
        arrived: Tensor,
        weights: Tensor,
        partners: list[NDArray[np.int64]],
        t: int,
    ) -> Meeting:
        """What partners make of each other's models, and think of each other.

        before: (n, P) models at the start of the round.  arrived: (n, shared) what peers received.
        """
        meeting = meet(world, trained, arrived, weights, partners)
        if self.selection.policy != "random" or self.adopt == "if_helpful":
            score, budget = (
                UTILITIES[self.credit.utility],
                (self.credit.tmc_permutations, self.credit.tmc_tol),
            )
            meeting = judged(meeting, world, score, trained, arrived, weights, partners, t, *budget)
        mixed = meeting.models
        if self.adopt == "if_helpful":
            # Shapley values add up to U(all partners) - U(nobody): the worth of the whole mix.
            worth = np.bincount(meeting.center, weights=meeting.phi, minlength=len(mixed))
            worse = torch.from_numpy(np.flatnonzero(worth < 0))
            mixed[worse] = trained[worse]
        if self.smoothing:
            shared = arrived.shape[1]
            met = torch.from_numpy(np.flatnonzero([len(p) for p in partners[: len(mixed)]]))
            mixed[met, :shared] = torch.lerp(mixed[met, :shared], before[met, :shared], self.smoothing)
        return meeting

    def choose(self, world: World, state: State, beliefs: Beliefs, t: int) -> Round:
        """This round's proposals and answers."""
        config, mutual = self.selection, self.filter.mutual_filter
        stream = (world.seed, t, world.horizon)
        plan = plan_round(config, beliefs, state.candidates, mutual, world.ids, *stream)
        return Round(plan, config, beliefs, t)

    def traffic(self, world: World, plan: Plan, t: int) -> Traffic:
        """Bytes of a round's plan; the metadata directory is paid for in the first round."""
        spent = bytes_of.pairs(len(plan.pairs), self.wire.payload(world), plan.proposals)
        if t == 1 and self.selection.policy != "random":
            spent += bytes_of.directory(world.n, self.filter.vectors(world).shape[1])
        return spent


def plan_round(
    config: Selection,
    beliefs: Beliefs,
    found: Candidates,
    mutual: bool,
    ids: NDArray[np.uint64],
    seed: int,
    t: int,
    horizon: int,
) -> Plan:
    """A round's plan: from full tables, or without them among very many centers."""
    if found.table is None or found.n > LISTED_UP_TO:
        return select_sparsely(config, beliefs, found, mutual, ids, seed, t, horizon)
    similarity = found.similarity if config.tie_break == "similarity" else None
    consent = found.table if mutual else np.ones_like(found.table)
    return selection.select(config, beliefs, found.table, consent, similarity, ids, seed, t, horizon)


def _next(state: State, models: Tensor, beliefs: Beliefs) -> State:
    return replace(state, models=models, beliefs=beliefs, alarms=(), published=False)


def alarm_trail(alarms: Sequence[Alarm]) -> Decisions:
    """Alarms as rows of the audit trail: the statistic is the reason, its p-value the score."""
    nothing = np.full(len(alarms), np.nan)
    return Decisions(
        center=np.array([alarm.center for alarm in alarms], dtype=np.int64),
        peer=np.full(len(alarms), -1),
        decision=_words("alarm", len(alarms)),
        score=np.array([alarm.p for alarm in alarms], dtype=np.float64),
        mean=nothing,
        count=nothing,
        reason=np.array([alarm.statistic for alarm in alarms], dtype=object),
    )


#: An :class:`Answer` in words.
_ANSWERS = np.array(["accepted", "full", "filtered", "declined"], dtype=object)

#: A :class:`Rest` in words.
_REASONS = np.array([None, "no candidates", "all full", "declined", "budget"], dtype=object)


def _words(word: str | None, count: int) -> Words:
    """One word over and over."""
    return np.full(count, word, dtype=object)


def decisions(chosen: Round) -> Decisions:
    """The audit trail of a round, with what it was decided on."""

    def numbers(center: Ints, peer: Ints) -> tuple[Floats, Floats, Floats]:
        score, belief = chosen.opinion(center, peer)
        return score, belief.mean, belief.count

    return _unlisted(chosen.plan).after(_trail(chosen.plan, numbers))


def decisions_of(plan: Plan, score: Floats, mean: Floats, count: Floats) -> Decisions:
    """Each proposal, each answer, each rest; score, mean and count are (n, n)."""
    return _trail(plan, lambda center, peer: (score[center, peer], mean[center, peer], count[center, peer]))


def _trail(plan: Plan, numbers: Callable[[Ints, Ints], tuple[Floats, Floats, Floats]]) -> Decisions:
    resting = np.flatnonzero(plan.rest != Rest.NOT)
    # A proposal is the center's decision, its answer the peer's: two rows, in that order.
    center = np.stack([plan.center, plan.peer], axis=1).ravel()
    peer = np.stack([plan.peer, plan.center], axis=1).ravel()
    what = np.stack([_words("proposed", len(plan.answer)), _ANSWERS[plan.answer]], axis=1).ravel()
    nothing = np.full(len(resting), np.nan)
    score, mean, count = (np.concatenate([column, nothing]) for column in numbers(center, peer))
    return Decisions(
        center=np.concatenate([center, resting]),
        peer=np.concatenate([peer, np.full(len(resting), -1)]),
        decision=np.concatenate([what, _words("rested", len(resting))]),
        score=score,
        mean=mean,
        count=count,
        reason=np.concatenate([_words(None, len(what)), _REASONS[plan.rest[resting]]]),
    )


def _unlisted(plan: Plan) -> Decisions:
    """Proposals that a plan counts and does not list: one row per center and answer, with their number."""
    listed = np.bincount(4 * plan.center + plan.answer, minlength=4 * plan.n).reshape(plan.n, 4)
    more = plan.asked - listed
    center, answer = np.nonzero(more)
    nothing = np.full(len(center), np.nan)
    return Decisions(
        center=center,
        peer=np.full(len(center), -1),
        decision=_ANSWERS[answer],
        score=nothing,
        mean=nothing,
        count=nothing,
        reason=np.array([f"{number} proposals" for number in more[center, answer].tolist()], dtype=object),
    )
