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
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from abps.core import credit, goals, selection
from abps.core.arrays import Weights, lerp
from abps.core.beliefs import Beliefs
from abps.core.candidates import Candidates
from abps.core.candidates import candidates as candidates_of
from abps.core.errors import RequestError, validate
from abps.core.goals import Goal
from abps.core.matching import Plan, Rest
from abps.core.selection import Selection, Views
from abps.core.sparse_selection import select_sparsely
from abps.data.prepare import Prepared
from abps.methods.averaging import shares
from abps.methods.base import Alarm, Context, Decisions, Kind, Models, Published, Weighting, Words
from abps.methods.forgetting import Memory, Observed, Watch, keys_of
from abps.methods.pairing import Floats, Ints, Meeting, Score, judged, meet
from abps.methods.peers import PeerMethod, PeerUtility, Preferences, Received, StepResult
from abps.models.metrics import auroc, log_loss

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
    tau_scope: Literal["global_pairs", "per_center"] = "global_pairs"
    metadata: Literal["base", "full"] = "base"
    meta_scale: Literal["raw", "zscore"] = "raw"
    mutual_filter: bool = True
    candidates: Literal["all", "group"] = "all"

    def __post_init__(self) -> None:
        validate(self)
        for name in (self.goal, *self.goals):
            if name != "none":
                goals.goal(name)

    @property
    def compares(self) -> bool:
        """Whether it looks at what peers published."""
        return self.goal != "none" or bool(self.goals) or self.goal_function is not None

    def screen(self, context: Context) -> Candidates:
        """The candidate sets C_i of the members that have published their vectors, in their order."""
        told, known = context.published, context.known
        vectors = np.zeros((context.n, 0)) if told is None else told[known]
        chosen = self
        if self.goals and len(self.goals) == context.n:
            chosen = replace(self, goals=tuple(g for g, there in zip(self.goals, known) if there))
        return chosen.sets(self.read(vectors) if vectors.shape[1] else vectors, context.data.groups)

    def sets(self, vectors: Floats, groups: Sequence[str] | None = None) -> Candidates:
        """The candidate sets of centers that published these vectors (n, k)."""
        group = None
        if self.candidates == "group":
            if groups is None:
                raise RequestError(
                    "partners inside a declared group need groups; name the column with group=COL"
                )
            group = np.unique(np.array(groups), return_inverse=True)[1]
        return candidates_of(vectors, self._goals(len(vectors)), self.keep, self.tau_scope, group)

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
Utility = Literal["auroc", "log_loss"]
UTILITIES: dict[str, Score] = {
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

    utility: Utility = "auroc"
    phi_min: float = -0.1
    phi_max: float = 0.1
    undefined_utility: Literal["skip", "half"] = "skip"
    tmc_permutations: int = 8
    tmc_tol: float = 1e-3

    def __post_init__(self) -> None:
        validate(self)
        if not self.phi_min < self.phi_max:
            raise RequestError(f"phi_min={self.phi_min} must be below phi_max={self.phi_max}")

    def value(self, phi: Floats) -> Floats:
        """Shapley values as observations in [0, 1]; NaN where there was nothing to observe."""
        value = credit.clip_affine(phi, self.phi_min, self.phi_max)
        return np.where(np.isnan(value), 0.5, value) if self.undefined_utility == "half" else value


@dataclass(frozen=True, eq=False)
class State(Models):
    """Models (r, P), and beliefs of the centers here about members.

    watch: what is carried along to notice drift.  alarms: raised or heard of since the last round.
    at: the last round.
    """

    beliefs: Beliefs
    watch: Watch = field(default_factory=Watch)
    alarms: tuple[Alarm, ...] = ()
    at: int = 0

    def placed(self, place: Ints, n: int) -> State:
        """With members in other places."""
        return replace(self, beliefs=self.beliefs.placed(place, n), watch=self.watch.placed(place))


@dataclass(frozen=True, eq=False)
class Ranked(Preferences):
    """An opinion, and the beliefs that it came from."""

    beliefs: Beliefs = field(default_factory=lambda: Beliefs(0))


@dataclass(frozen=True)
class ABPS(PeerMethod):
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
    weighting: Weighting = "size"
    smoothing: float = 0.0
    discount: float = 1.0
    memory: Memory = field(default_factory=Memory)
    adopt: Literal["always", "if_helpful"] = "always"

    def __post_init__(self) -> None:
        validate(self)
        if not 0 <= self.smoothing < 1:
            raise RequestError(f"smoothing={self.smoothing}: a share, choose 0 to below 1")
        if not 0 <= self.discount <= 1:
            raise RequestError(f"discount={self.discount}: a share, choose 0 to 1")
        if self.memory.forget == "window" and self.discount < 1:
            raise RequestError(f"forget=window with discount={self.discount}: choose one way to forget")

    @property
    def kind(self) -> Kind:
        """By mutual proposals."""
        return "mutual"

    @property
    def capacity(self) -> int:
        """κ."""
        return self.selection.kappa

    @property
    def announces(self) -> bool:
        """Whether centers tell each other of alarms."""
        return self.memory.announce and self.memory.watches_utility

    @property
    def belief_prior(self) -> tuple[float, float]:
        """Beta(alpha0, beta0)."""
        return self.selection.prior

    def between_sites(self) -> str:
        """What needs code, groups or old rows stays in the simulation."""
        if self.filter.goal_function is not None:
            return "a goal function of one's own is code, and jobs carry none; name a built-in goal"
        if self.filter.candidates == "group":
            return "it takes partners from a declared group, which sites do not publish"
        old_rows = sorted(set(self.memory.watch) - {"utility"})
        if self.memory.forget == "alarm" and old_rows:
            return (
                f"watch={'+'.join(old_rows)} compares new rows with those that they took the place of, and a "
                "site has one table in a job; set watch=utility, which compares what partners bring with "
                "what they brought before"
            )
        return ""

    def init(self, context: Context) -> State:
        """The common start and prior beliefs."""
        return State(context.common_start(), Beliefs(context.n, self.selection.prior))

    def publish(self, context: Context) -> Published:
        """The metadata, unless nobody looks at them."""
        chosen = self.selection
        if chosen.policy == "random" and chosen.tie_break != "similarity" and not self.filter.compares:
            return super().publish(context)
        entries = self.filter.entries(context.data)
        return Published(context.data.metadata_names[:entries], context.data.metadata[:, :entries])

    def derived(self, context: Context) -> Candidates:
        """Who considers whom, among the members that have published."""
        return self.filter.screen(context)

    def moved(self, before: Context, context: Context, state: State, t: int) -> State:
        """New data: each center compares them with the old."""
        return replace(state, alarms=state.alarms + self.memory.look(before, context, state.models, t))

    def hear(self, state: State, alarms: tuple[Alarm, ...]) -> State:
        """Alarms of this center and of others, to reckon with in the coming round."""
        return replace(state, alarms=alarms)

    def begin(self, context: Context, state: State, t: int, alone: bool) -> Callable[[], Models]:
        """Train, while centers choose."""
        wait = context.learner.begin(state.models, t)
        return lambda: Models(wait())

    def rest(self, context: Context, state: State, trained: Models, t: int) -> State:
        """Beliefs fade all the same."""
        beliefs = self.faded(state, t)
        return replace(state, models=trained.models, beliefs=beliefs, alarms=(), at=t)

    def faded(self, state: State, t: int) -> Beliefs:
        """The beliefs as round t finds them: with the rounds since the last one and with alarms."""
        beliefs = state.beliefs
        if self.discount < 1:
            beliefs = beliefs.discount(self.discount ** (t - state.at))
        return self.memory.fade(beliefs, state.alarms)

    def turns(self, seed: int, t: int, ids: NDArray[np.uint64]) -> Ints:
        """At random, or by their names."""
        return selection.turns(self.selection, seed, t, ids)

    def rank_peers(self, context: Context, state: State, trained: Callable[[], Any], t: int) -> Ranked:
        """Rank the members by what is believed of them."""
        beliefs, found = self.faded(state, t), context.derived
        centers = len({alarm.center for alarm in state.alarms}) if self.memory.announce else 0

        def trail(plan: Plan) -> Decisions:
            return self.trail(plan, beliefs, t).after(alarm_trail(state.alarms))

        listed = found.n <= LISTED_UP_TO or (
            self.selection.tie_break == "similarity" and found.table is not None
        )
        if context.member_index is None and not listed:
            stream = (context.ids, context.seed, t, context.horizon)

            def plan() -> Plan:
                return select_sparsely(self.selection, beliefs, found, self.filter.mutual_filter, *stream)

            return Ranked(plan=plan, trail=trail, announcing=centers, beliefs=beliefs)
        seen = self.views(context, beliefs, t)
        # Views hand out their numbers one by one: few turns look beyond the first of n.
        rankings = [listed.data for listed in seen.rankings]
        return Ranked(rankings, seen.answer, seen.wanted, None, trail, centers, beliefs=beliefs)

    def views(self, context: Context, beliefs: Beliefs, t: int) -> Views:
        """What the centers here think of the members."""
        found, config = context.derived, self.selection
        known = np.flatnonzero(context.known)
        mine = np.searchsorted(known, context.local_index)
        candidate, similarity = np.zeros((context.r, context.n), dtype=bool), None
        candidate[:, known] = found.rows(mine, np.arange(len(known)))
        if config.tie_break == "similarity":
            similarity = np.zeros((context.r, context.n))
            similarity[:, known] = found.similarity[mine]
        consent = candidate if self.filter.mutual_filter else np.ones_like(candidate)
        belief = beliefs.rows(context.local_index)
        ids = context.ids[context.local_index]
        return selection.views(
            config, belief, candidate, consent, similarity, ids, context.seed, t, context.horizon
        )

    def trail(self, plan: Plan, beliefs: Beliefs, t: int) -> Decisions:
        """The audit trail of a round, with what it was decided on."""

        def numbers(center: Ints, peer: Ints) -> tuple[Floats, Floats, Floats]:
            belief = beliefs.posterior(center, peer)
            return selection.peer_scores(self.selection, belief, t), belief.mean, belief.count

        return _unlisted(plan).after(trail_of(plan, numbers))

    def learn(
        self, context: Context, state: State, trained: Models, received: Received, t: int
    ) -> StepResult:
        """Mix, give credit, and update what is believed."""
        beliefs, partners = received.preferences.beliefs, received.partners(context.r)
        say = shares(context.sizes(), self.weighting)
        meeting = self.together(context, state.models, trained.models, received.arrived, say, partners, t)
        own = tuple(replace(a, center=int(context.row[a.center])) for a in state.alarms)
        watch = self.memory.clear(state.watch, tuple(a for a in own if a.center >= 0))
        observed = self.observe(context, beliefs, meeting, t)
        watch, raised = self.memory.surprises(watch, observed, keys_of(context, t))
        watch = self.memory.remember(watch, observed)
        seen = beliefs.observe(context.local_index[observed.center], observed.peer, observed.value)
        alarms = tuple(replace(alarm, center=int(context.local_index[alarm.center])) for alarm in raised)
        after = State(
            meeting.models, self.memory.recalled(seen, watch, context.local_index), watch, alarms, t
        )
        # All go on with the average, unless a rule of their own says otherwise.
        plain = self.adopt == "always" and not self.smoothing
        answers = (meeting.validation, meeting.test) if plain else None
        worth = PeerUtility(
            observed.center, observed.peer, observed.value, np.full(len(observed.value), np.nan)
        )
        return StepResult(after, worth, alarms, answers)

    def observe(self, context: Context, beliefs: Beliefs, meeting: Meeting, t: int) -> Observed:
        """A round's observations beside what was believed before."""
        value = self.credit.value(meeting.phi)
        belief = beliefs.posterior(context.local_index[meeting.center], meeting.peer)
        surprise = np.where(belief.count > 0, value - belief.mean, np.nan)
        return Observed(meeting.center, meeting.peer, value, surprise, t)

    def together(
        self,
        context: Context,
        before: Weights,
        trained: Weights,
        arrived: Weights,
        weights: Weights,
        partners: list[Ints],
        t: int,
    ) -> Meeting:
        """What partners make of each other's models, and think of each other.

        before: (r, P) models at the start of the round.  arrived: (n, shared) what peers received.
        """
        meeting = meet(context, trained, arrived, weights, partners)
        if self.selection.policy != "random" or self.adopt == "if_helpful":
            score, budget = (
                UTILITIES[self.credit.utility],
                (self.credit.tmc_permutations, self.credit.tmc_tol),
            )
            meeting = judged(meeting, context, score, trained, arrived, weights, partners, t, *budget)
        mixed = meeting.models
        if self.adopt == "if_helpful":
            # Shapley values add up to U(all partners) - U(nobody): the worth of the whole mix.
            worth = np.bincount(meeting.center, weights=meeting.phi, minlength=len(mixed))
            mixed = np.where((worth < 0)[:, None], trained, mixed)
        if self.smoothing:
            shared = arrived.shape[1]
            met = np.array([len(mine) > 0 for mine in partners])[:, None]
            smooth = lerp(mixed[:, :shared], before[:, :shared], self.smoothing)
            mixed = np.concatenate([np.where(met, smooth, mixed[:, :shared]), mixed[:, shared:]], axis=1)
        return replace(meeting, models=mixed)

    def evidence(self, context: Context, state: State) -> tuple[Ints, Floats, Floats, Floats]:
        """Clipped utilities, for and against, and how many."""
        beliefs = state.beliefs
        mine = beliefs.key // beliefs.n == context.local_index[0]
        return beliefs.key[mine] % beliefs.n, beliefs.gain[mine], beliefs.loss[mine], beliefs.count[mine]


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
_REASONS = np.array([rest.words or None for rest in Rest], dtype=object)


def _words(word: str | None, count: int) -> Words:
    """One word over and over."""
    return np.full(count, word, dtype=object)


def trail_of(plan: Plan, numbers: Callable[[Ints, Ints], tuple[Floats, Floats, Floats]]) -> Decisions:
    """Each proposal, each answer, each rest; numbers: (center, peer) -> score, mean, count."""
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
