"""abps-plus-v1: selection that learns, and messages of a few bits.

The paper's frame (beliefs, proposals, capacity, the right to rest) with parts that can learn within fifty
rounds:

* *utility*: the received model's AUROC on all rows of the receiver, which it never saw, with its error;
* *belief*: each center's own regression on public likenesses of the pair and on all that it measured, with
  its prior beside it (:mod:`abps.core.usefulness`);
* *choice*: every center draws its peers' utilities from its beliefs (Thompson) and proposes to the best; a
  peer accepts if its own draw for the proposer reaches its break-even. Draws become less bold as the rounds
  run out, because what is learned late can no longer be used;
* *rest*: a center for which no peer's expected gain is worth the price does not call, and answers no; what
  its mixes took off its own validation loss tells it whether mixing pays at all, and what to ask of peers;
* *gate*: a mix is adopted as far as the updated belief says that the peer helps;
* *wire*: differences from the common start, a few bits each.

A center trusts only what it measured itself: nobody's reports enter its beliefs, only public features that it
weighs by its own experience.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from abps.core import credit, streams
from abps.core.choices import validate
from abps.core.errors import RequestError
from abps.core.matching import Answer, Plan
from abps.core.usefulness import (
    Expectation,
    Experience,
    Returns,
    Usefulness,
    auroc_se,
    believe,
    closeness,
    cosines,
    inconsistency,
    standardised,
)
from abps.data.prepare import Rows
from abps.methods.abps import UTILITIES, trail_of
from abps.methods.base import Decisions, Kind, Models, Published, Wire, World
from abps.methods.pairing import coalition, flat, judged, meet
from abps.methods.peers import Heard, Learned, Opinion, PeerMethod, Worth
from abps.models.metrics import Segments, auroc, gains, labels_of
from abps.models.mixtures import Mixtures, mixtures
from abps.privacy.small_counts import rounded, rounded_differences
from abps.tensors import Tensor
from abps.wire.admission import ASSOCIATION

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Beliefs are tables of all pairs: about 50 bytes each.
MOST_CENTERS = 8192

Policy = Literal["thompson", "bayes-ucb", "gumbel", "mean", "random"]


@dataclass(frozen=True)
class Public:
    """What centers publish about themselves beside model weights, and may weigh in their beliefs.

    metadata: outcome rate, size, year and prevalences.  association: for every feature the standardised
    difference of its mean between the outcomes, only from a center with at least ``min_positives`` positive
    training rows.  metadata_slope, association_slope: what one standard deviation of likeness is expected to
    add to utility where risks differ fully; it is taken in proportion to how much they do
    (:meth:`ABPSPlus.likeness`).
    noise: standard deviation of Gaussian noise added to every published association.
    """

    metadata: bool = True
    metadata_slope: float = 0.05
    association: bool = True
    association_slope: float = 0.08
    min_positives: int = 5
    noise: float = 0.0


@dataclass(frozen=True)
class Calling:
    """Whom to call, and when not to.

    policy: thompson (draw and rank), bayes-ucb (rank by an upper quantile), gumbel (rank by the log-odds of
    helping plus Gumbel noise), mean (rank by posterior mean) or random (the control: everybody, untested).
    price: the expected gain in AUROC below which a call is not worth its bytes.
    ambition: where break-even lies between chance (0) and what a center can reach (1).
    slack: AUROC above chance that may still be luck; it lowers break-even while nobody has learned much.
    renewal: rounds after which a peer that was met has half of its news again. Right after a swap two models
    are close, and another peer brings more, the more so the less risks differ; 0: it makes no difference.
    every: exchange in every second, third… round only.  warm_up: rounds alone before the first call.
    """

    policy: Policy = "thompson"
    price: float = 0.002
    ambition: float = 0.5
    slack: float = 0.05
    renewal: float = 6.0
    every: int = 1
    warm_up: int = 0

    def __post_init__(self) -> None:
        validate(self)
        if self.renewal < 0:
            raise RequestError(f"renewal={self.renewal}: choose a number of rounds from 0")
        if self.every < 1 or self.warm_up < 0:
            raise RequestError(f"every={self.every}, warm_up={self.warm_up}: choose at least 1 and 0")

    def on(self, t: int) -> bool:
        """Whether round t is one of exchange."""
        return t > self.warm_up and (t - self.warm_up - 1) % self.every == 0


@dataclass(frozen=True, eq=False)
class Likeness:
    """What all can see of the members.

    features: (r, n, k) standardised likenesses to the centers here.  slopes: (k,) what is expected of each.
    differ: from 0 to 1, how much the centers' risks differ.
    """

    features: Floats
    slopes: Floats
    differ: float


@dataclass(frozen=True, eq=False)
class State(Models):
    """Models (r, P), what was measured, what mixing brought, and the belief that follows."""

    experience: Experience
    returns: Returns
    beliefs: Usefulness | None = None

    def placed(self, place: Ints, n: int) -> State:
        """With members in other places; the belief follows from the experience again."""
        return replace(self, experience=self.experience.placed(place), beliefs=None)


@dataclass(frozen=True, eq=False)
class Weighed(Opinion):
    """An opinion, and what it came from: belief, (r,) own levels and doubts, logits on validation rows."""

    belief: Usefulness | None = None
    own: Floats = field(default_factory=lambda: np.zeros(0))
    doubt: Floats = field(default_factory=lambda: np.zeros(0))
    shown: Segments | None = None


@dataclass(frozen=True)
class ABPSPlus(PeerMethod):
    """kappa: partners at most.  utility: received (the peer's model on all own rows; with several partners
    its Shapley share of what they are worth together), or the paper's: auroc or log_loss, the mixed model's
    gain on validation rows.  gate: adopt a peer's weights only as far as it probably helps.
    """

    arithmetic: ClassVar[bool] = True

    only_binary: ClassVar[str] = "its likenesses are differences between two outcomes; choose abps-plus"

    wire: Wire = field(default_factory=lambda: Wire("int3", private_layers=1, reference="start"))
    kappa: int = 1
    utility: Literal["received", "auroc", "log_loss"] = "received"
    gate: bool = True
    calling: Calling = field(default_factory=Calling)
    expect: Expectation = field(default_factory=Expectation)
    public: Public = field(default_factory=Public)

    def __post_init__(self) -> None:
        validate(self)
        if self.kappa < 1:
            raise RequestError(f"kappa={self.kappa}: a center needs room for at least 1 partner")

    @property
    def kind(self) -> Kind:
        """By mutual proposals."""
        return "mutual"

    @property
    def capacity(self) -> int:
        """κ."""
        return self.kappa

    def exchanges(self, t: int) -> bool:
        """Not while warming up, and not in the rounds between two calls."""
        return self.calling.on(t)

    def between_sites(self) -> str:
        """Peers must be able to weigh a model, and noise must hide something."""
        if not self.public.metadata:
            return (
                "metadata=no: sites weigh a peer's model by its number of rows, which its metadata tell; "
                "publish them"
            )
        if self.public.noise:
            return (
                f"noise={self.public.noise:g} is drawn from the study's seed, which every member knows, "
                "and would hide nothing from them; it runs in the simulation only"
            )
        return ""

    def init(self, world: World) -> State:
        """The common start and no experience."""
        return State(world.common_start(), Experience.none(), Returns.none(world.r))

    def publish(self, world: World) -> Published:
        """Metadata, and how features go with the outcome."""
        if world.n > MOST_CENTERS:
            raise RequestError(
                f"abps-plus-v1 compares all pairs and takes up to {MOST_CENTERS} centers, not {world.n}; "
                "use abps-pq-k1-hom, or cut the federation"
            )
        names: tuple[str, ...] = ()
        vectors = [np.zeros((world.r, 0))]
        if self.public.metadata:
            names, vectors = world.data.metadata_names, [world.data.metadata]
        if self.public.association:
            names += tuple(f"{ASSOCIATION}{column}" for column in world.data.columns)
            vectors.append(associations(world, self.public)[0])
        return Published(names, np.concatenate(vectors, axis=1))

    def ground(self, world: World) -> Likeness:
        """What the publications say of the members that have made theirs."""
        known = np.flatnonzero(world.known)
        published = np.zeros((world.n, 0)) if world.bulletin is None else world.bulletin[known]
        entries = len(world.data.metadata_names) * self.public.metadata
        metadata, told = published[:, :entries], published[:, entries:]
        sizes = world.sizes().numpy().astype(np.float64)[known]
        # The outcome rates tell the numbers of positive rows; without metadata the data must be here.
        rates = np.rint(metadata[:, 0] * sizes) if entries else world.data.train.positives().astype(float)
        found = self.likeness(metadata, told, association_variance(rates, sizes, self.public))
        features = np.zeros((world.r, world.n, found.features.shape[2]))
        features[:, known] = found.features[np.searchsorted(known, world.here)]
        return replace(found, features=features)

    def likeness(self, metadata: Floats, told: Floats, variances: Floats) -> Likeness:
        """How alike centers are by what they published.

        metadata: (n, entries).  told, variances: of :func:`associations`. Risks differ fully where half of
        the associations' variation (I²) is more than chance, or where none are published; where they do not
        differ, it does not matter who is alike.
        """
        n, features, slopes, differ = len(metadata), [], [], 1.0
        if self.public.association:
            enough = np.isfinite(variances)
            differ = min(1.0, 2.0 * inconsistency(told[enough], variances[enough]))
            features.append(standardised(cosines(told)))
            slopes.append(self.public.association_slope * differ)
        if self.public.metadata:
            features.append(standardised(closeness(metadata)))
            slopes.append(self.public.metadata_slope * differ)
        stacked = np.stack(features, axis=2) if features else np.zeros((n, n, 0))
        return Likeness(stacked, np.array(slopes), differ)

    def opine(self, world: World, state: State, trained: Callable[[], Any], t: int) -> Weighed:
        """Draw the members' utilities and rank those worth their price."""
        seen: Likeness = world.ground
        shown = world.learner.logits(trained().models, world.data.validation)
        own, doubt = own_level(world, shown), self.doubt(state.returns)
        belief = believe(seen.features, seen.slopes, state.experience, t, self.expect)
        even = self.break_even(world, belief, own, doubt)
        score = self.scores(world, belief, even, t)
        willing = self.willing(world, belief, even, score)
        rankings = self.rankings(willing, score, even, self.news(state.experience, seen, t))

        def answer(row: int, peer: int) -> Answer:
            return Answer.ACCEPTED if willing[row, peer] else Answer.DECLINED

        def trail(plan: Plan) -> Decisions:
            return explained(plan, score, belief, even)

        # A center that wants nobody rests by its own decision.
        anybody = np.ones(world.r, dtype=bool)
        return Weighed(
            rankings, answer, anybody, trail=trail, belief=belief, own=own, doubt=doubt, shown=shown
        )

    def learn(self, world: World, state: State, trained: Models, heard: Heard, t: int) -> Learned:
        """Measure what arrived, believe anew, and adopt as far as it probably helps."""
        seen, before = world.ground, heard.opinion
        models, partners = trained.models, heard.partners(world.r)
        center, peer, value, se = self.measure(world, models, heard.arrived, partners, t)
        experience = state.experience.observe(center, peer, t, value, se)
        after = believe(seen.features, seen.slopes, experience, t, self.expect)
        helps = after.helps(self.break_even(world, after, before.own, before.doubt))
        say = helps if self.gated else np.ones_like(helps)
        mixed, after_mix = adopt(world, models, heard.arrived, partners, say)
        met = np.array([len(mine) > 0 for mine in partners])
        returns = state.returns.observe(met, *gains(world.data.validation, before.shown, after_mix))
        answers = after_mix, world.learner.logits(mixed, world.data.test)
        told = np.isfinite(value) & np.isfinite(se)
        worth = Worth(center[told], peer[told], value[told], se[told])
        return Learned(State(mixed, experience, returns, after), worth, answers=answers)

    def evidence(self, world: World, state: State) -> tuple[Ints, Floats, Floats, Floats]:
        """Beliefs as Beta distributions, of members that were measured."""
        if state.beliefs is None:
            return super().evidence(world, state)
        met = np.flatnonzero(state.beliefs.count[0])
        alpha, beta = (each[0, met] for each in state.beliefs.beta())
        return met, alpha, beta, state.beliefs.count[0, met]

    @property
    def gated(self) -> bool:
        """Whether what arrives is weighed by belief."""
        return self.gate and self.calling.policy != "random"

    def doubt(self, returns: Returns) -> Floats:
        """(r,) how sure each center is that mixing does not pay."""
        if not self.expect.returns:
            return np.zeros(len(returns.gain))
        return returns.doubt(self.expect.returns, self.expect.returns_noise)

    def break_even(self, world: World, belief: Usefulness, own: Floats, doubt: Floats) -> Floats:
        """(r,) the utility from which a peer helps: part of the way from chance to what a center can reach.

        That is what its own model surely reaches, or what it believes of the best of its peers. The more a
        center doubts that mixing pays, the longer this way and the less is put down to luck.
        """
        if self.utility != "received":
            return np.full(len(own), 0.5)  # a gain of nothing
        best = np.where(world.self_mask | ~world.known, 0.0, belief.mean).max(axis=1)
        reach = np.fmax(best, own) - 0.5 - self.calling.slack * (1.0 - doubt)
        ambition = self.calling.ambition + (1.0 - self.calling.ambition) * doubt
        return 0.5 + ambition * np.maximum(reach, 0.0)

    def news(self, experience: Experience, likeness: Likeness, t: int) -> Floats:
        """(r, n) the share of a peer's model that is new to a center since they last met.

        Where risks differ there are few peers worth meeting, and they are worth meeting again.
        """
        shape = likeness.features.shape[:2]
        if not self.calling.renewal or self.calling.policy == "random":
            return np.ones(shape)
        last = np.full(shape, -np.inf)
        np.maximum.at(last, (experience.center, experience.peer), experience.round.astype(np.float64))
        return 1.0 - (1.0 - likeness.differ) * 0.5 ** ((t - last) / self.calling.renewal)

    def willing(self, world: World, belief: Usefulness, even: Floats, score: Floats) -> NDArray[np.bool_]:
        """(r, n) whether a center would call a peer, and answer yes to it."""
        policy = self.calling.policy
        willing = belief.expected_gain(even) >= self.calling.price
        if policy == "gumbel":
            willing &= score >= 0.0
        elif policy == "random":
            willing = np.ones_like(willing)
        else:
            willing &= score >= even[:, None]
        return willing & world.known & ~world.self_mask

    def rankings(
        self, willing: NDArray[np.bool_], score: Floats, even: Floats, news: Floats
    ) -> list[list[int]]:
        """For every center the peers that it would call, best first."""
        # The score of a peer worth nothing.
        level = 0.0 if self.calling.policy in ("gumbel", "random") else even[:, None]
        order = np.argsort(np.where(willing, (level - score) * news, np.inf), axis=1, kind="stable")
        return [order[i, :count].tolist() for i, count in enumerate(willing.sum(axis=1))]

    def scores(self, world: World, belief: Usefulness, even: Floats, t: int) -> Floats:
        """(r, n) how much each center wants each member this round."""
        policy, left = self.calling.policy, 1.0 - (t - 1) / world.horizon
        first, second = _uniforms(world, t)
        # Equals are told apart by chance, not by their place in a list.
        chance = 1e-9 * first
        if policy == "mean":
            return belief.mean + chance
        if policy == "bayes-ucb":
            # Not below the 1 - 1/t quantile of a normal distribution.
            z = math.sqrt(2.0 * math.log(max(t, 2)))
            return belief.mean + z * belief.sd + chance
        if policy == "random":
            return first
        if policy == "gumbel":
            helps = belief.helps(even).clip(1e-6, 1 - 1e-6)
            return np.log(helps / (1.0 - helps)) - np.log(-np.log(first))
        drawn = np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * np.pi * second)  # Box and Muller
        return belief.mean + math.sqrt(left) * belief.sd * drawn

    def measure(
        self, world: World, trained: Tensor, arrived: Tensor, partners: list[Ints], t: int
    ) -> tuple[Ints, Ints, Floats, Floats]:
        """(row, place, utility, standard error) of all that arrived."""
        if self.utility == "received":
            return judge(world, trained, arrived, partners)
        ask, sizes = UTILITIES[self.utility], world.sizes()
        meeting = meet(world, trained, arrived, sizes, partners)
        found = judged(meeting, world, ask, trained, arrived, sizes, partners, t)
        error = error_on(world.data.validation, found.center, np.full(len(found.center), 0.7))
        return found.center, found.peer, 0.5 + found.phi, error


def explained(plan: Plan, score: Floats, belief: Usefulness, even: Floats) -> Decisions:
    """The audit trail, each decision with its prior, its evidence and its posterior."""
    trail = trail_of(plan, lambda i, j: (score[i, j], belief.mean[i, j], belief.count[i, j]))
    reasons = np.array(
        [
            why
            if j < 0
            else f"prior {belief.prior_mean[i, j]:.3f}±{belief.prior_sd[i, j]:.3f}, measured "
            f"{belief.count[i, j]:.0f}×, now {belief.mean[i, j]:.3f}±{belief.sd[i, j]:.3f}, "
            f"break-even {even[i]:.3f}"
            for i, j, why in zip(trail.center.tolist(), trail.peer.tolist(), trail.reason)
        ],
        dtype=object,
    )
    return replace(trail, reason=reasons)


def own_level(world: World, shown: Segments) -> Floats:
    """(r,) what each center's own model surely reaches: its validation AUROC less half of its error.

    shown: its logits on validation rows.
    """
    rows = world.data.validation
    now = auroc(shown, labels_of(rows))
    return now - 0.5 * error_on(rows, np.arange(world.r), now)


def adopt(
    world: World, trained: Tensor, arrived: Tensor, partners: list[Ints], helps: Floats
) -> tuple[Tensor, Segments]:
    """(r, P) own models averaged with what was received, as far as it is believed to help; and their answers
    for validation rows.

    helps: (r, n) probabilities. From one half on a peer counts fully, below one quarter not at all.
    """
    r = world.r
    peer, counts = flat(partners)
    center = np.repeat(np.arange(r), counts)
    chance, rows = helps[center, peer], world.sizes().numpy().astype(np.float64)
    say = rows[peer] * np.where(chance >= 0.25, np.minimum(1.0, 2.0 * chance), 0.0)
    own = rows[world.here]
    total = own + np.bincount(center, weights=say, minlength=r)
    parts = Mixtures(
        owner=np.arange(r),
        own=(own / total).astype(np.float32),
        other=peer,
        share=(say / total[center]).astype(np.float32),
        start=np.concatenate([[0], np.cumsum(counts)]),
    )
    return world.learner.settle(trained, arrived, parts, world.data.validation)


def judge(
    world: World, trained: Tensor, arrived: Tensor, partners: list[Ints]
) -> tuple[Ints, Ints, Floats, Floats]:
    """(row, place, utility, standard error) of each received model on all rows of its receiver.

    The model is the peers' shared layers as they arrived, averaged, under the receiver's own private layers.
    With one partner its utility is the AUROC; with k partners it is 0.5 plus k times its Shapley share of
    what the average is better than chance: what each would have, were all as useful.
    """
    rows = world.data.own
    members = [coalition(mine, mask) for mine in partners for mask in range(1, 1 << len(mine))]
    who = np.repeat(np.arange(len(partners)), [(1 << len(mine)) - 1 for mine in partners])
    received = mixtures(who, *flat(members), world.sizes().numpy(), with_own=False)
    answers = world.learner.mixture_logits(trained, arrived, received, rows)
    value = auroc(answers, labels_of(rows, who))
    utility, at = [np.zeros(0)], 0
    for mine in partners:
        coalitions = (1 << len(mine)) - 1
        worth = np.concatenate([[0.5], value[at : at + coalitions]])
        utility.append(0.5 + len(mine) * credit.shapley(worth[None])[0])
        at += coalitions
    peer, counts = flat(partners)
    center = np.repeat(np.arange(len(partners)), counts)
    found = np.concatenate(utility)
    return center, peer, found, error_on(rows, center, found)


def error_on(rows: Rows, center: Ints, value: Floats) -> Floats:
    """(k,) the standard error of an AUROC ``value[k]`` on the rows of ``center[k]``."""
    positives = rows.positives()[center].astype(np.float64)
    return auroc_se(value, positives, rows.sizes[center] - positives)


def associations(world: World, public: Public) -> tuple[Floats, Floats]:
    """(r, features) standardised difference of every feature's mean between the outcomes, and its (r,)
    variance.

    Zeros and an infinite variance for a center with too few positives: a handful of patients must not be
    readable from it. Where there is a floor, they follow from rounded counts alone.
    """
    rows = world.data.train
    if world.data.floor:
        return _coarse(world, public)
    owner = np.repeat(np.arange(world.r), rows.sizes)
    total, square, of_positives = (
        _sums(owner, values, world.r)
        for values in (rows.x, rows.x.astype(np.float64) ** 2, rows.x * rows.y[:, None])
    )
    sizes, count = rows.sizes.astype(np.float64), rows.positives().astype(np.float64)
    enough = (count >= public.min_positives) & (sizes - count >= public.min_positives)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = total / sizes[:, None]
        sd = np.sqrt(np.maximum(square / sizes[:, None] - mean**2, 1e-12))
        gap = of_positives / count[:, None] - (total - of_positives) / (sizes - count)[:, None]
        table = np.where(enough[:, None] & (sd > 1e-5), gap / sd, 0.0)
    if public.noise:
        drawn = [
            streams.generator(world.seed, "sketch", 0, int(i)).standard_normal(table.shape[1])
            for i in world.ids[world.here]
        ]
        table = np.where(table != 0, table + public.noise * np.stack(drawn), 0.0)
    # Published as four-byte numbers: what a center computes with is what its peers see.
    return table.astype(np.float32).astype(np.float64), association_variance(count, sizes, public)


def _coarse(world: World, public: Public) -> tuple[Floats, Floats]:
    """The same from counts that are multiples of the floor."""
    rows, least = world.data.train, world.data.least.astype(np.float64)
    table = np.zeros((world.r, rows.x.shape[1]))
    for i in range(world.r):
        mine = rows.only(i)
        table[i] = rounded_differences(mine.x.astype(np.float64), mine.y.astype(np.float64), float(least[i]))
    sizes, count = rows.sizes.astype(np.float64), rounded(rows.positives().astype(np.float64), least)
    variance = association_variance(count, sizes, public)
    told = np.where(np.isfinite(variance)[:, None], table, 0.0)
    return told.astype(np.float32).astype(np.float64), variance


def association_variance(positives: Floats, sizes: Floats, public: Public) -> Floats:
    """(n,) the variance of an association, from what all know: numbers of positive and of all training rows.

    Infinite where there are too few of a kind, and nothing is told.
    """
    enough = np.minimum(positives, sizes - positives) >= public.min_positives
    with np.errstate(divide="ignore"):
        variance = 1.0 / positives + 1.0 / (sizes - positives) + public.noise**2
    return np.where(enough, variance, np.inf)


def _sums(owner: Ints, values: NDArray[np.floating], n: int) -> Floats:
    """(n, columns) sums of rows by owner; owners are in order."""
    start = np.searchsorted(owner, np.arange(n))
    whole = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0, dtype=np.float64)])
    return whole[np.append(start[1:], len(owner))] - whole[start]


def _uniforms(world: World, t: int) -> tuple[Floats, Floats]:
    """Two uniform numbers in (0, 1) for every center here and member, from the names of the two."""
    bits = streams.bits(world.seed, "policy", t, world.ids[world.here][:, None], world.ids[None, :])
    halves = (bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF))
    first, second = ((half.astype(np.float64) + 0.5) / 2**32 for half in halves)
    return first, second
