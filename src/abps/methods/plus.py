"""abps-plus: selection that learns, and messages of a few bits.

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
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from abps.core import credit, streams
from abps.core import ledger as bytes_of
from abps.core import selection as turns_of
from abps.core.errors import RequestError
from abps.core.ledger import Ledger, Traffic
from abps.core.matching import Answer, Plan, Rest, propose
from abps.core.selection import Selection
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
from abps.learn.metrics import Segments, auroc, labels_of, row_losses
from abps.learn.mixtures import Mixtures, mixtures
from abps.methods.abps import UTILITIES, decisions_of
from abps.methods.base import Decisions, Method, Outcome, Wire, World
from abps.methods.pairing import coalition, flat, judged, meet

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Beliefs are tables of all pairs: about 50 bytes each.
MOST_CENTERS = 8192

POLICIES = ("thompson", "bayes-ucb", "gumbel", "mean", "random")


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

    policy: str = "thompson"
    price: float = 0.002
    ambition: float = 0.5
    slack: float = 0.05
    renewal: float = 6.0
    every: int = 1
    warm_up: int = 0

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise RequestError(f"policy={self.policy!r}: choose {', '.join(POLICIES)}")
        if self.renewal < 0:
            raise RequestError(f"renewal={self.renewal}: choose a number of rounds from 0")
        if self.every < 1 or self.warm_up < 0:
            raise RequestError(f"every={self.every}, warm_up={self.warm_up}: choose at least 1 and 0")

    def on(self, t: int) -> bool:
        """Whether round t is one of exchange."""
        return t > self.warm_up and (t - self.warm_up - 1) % self.every == 0


@dataclass(frozen=True, eq=False)
class Likeness:
    """What all can see of all pairs.

    features: (n, n, k) standardised likenesses.  slopes: (k,) what is expected of each.
    differ: from 0 to 1, how much the centers' risks differ.
    """

    features: Floats
    slopes: Floats
    differ: float


@dataclass(frozen=True, eq=False)
class State:
    """Models (n, P), what was measured, what all can see, what mixing brought, the belief.

    published: what all can see was sent out anew before this round.
    """

    models: Tensor
    experience: Experience
    likeness: Likeness
    returns: Returns
    beliefs: Usefulness | None = None
    published: bool = False


@dataclass(frozen=True)
class ABPSPlus(Method):
    """kappa: partners at most.  utility: received (the peer's model on all own rows; with several partners
    its Shapley share of what they are worth together), or the paper's: auroc or log_loss, the mixed model's
    gain on validation rows.  gate: adopt a peer's weights only as far as it probably helps.
    """

    wire: Wire = field(default_factory=lambda: Wire("int3", private_layers=1, reference="start"))
    kappa: int = 1
    utility: str = "received"
    gate: bool = True
    calling: Calling = field(default_factory=Calling)
    expect: Expectation = field(default_factory=Expectation)
    public: Public = field(default_factory=Public)

    def __post_init__(self) -> None:
        if self.kappa < 1:
            raise RequestError(f"kappa={self.kappa}: a center needs room for at least 1 partner")
        if self.utility not in ("received", *UTILITIES):
            raise RequestError(f"utility={self.utility!r}: choose received, {', '.join(UTILITIES)}")

    def init(self, world: World) -> State:
        """The common start, no experience, and what everybody published."""
        if world.n > MOST_CENTERS:
            raise RequestError(
                f"abps-plus compares all pairs and takes up to {MOST_CENTERS} centers, not {world.n}; "
                "use abps-pq-k1-hom, or cut the federation"
            )
        return State(world.common_start(), Experience.none(), self.seen(world), Returns.none(world.n))

    def moved(self, before: World, world: World, state: State, t: int) -> State:
        """New data: everybody publishes anew what it shows of itself."""
        return replace(state, likeness=self.seen(world), published=True)

    def seen(self, world: World) -> Likeness:
        """What everybody published says of all pairs."""
        told, variances = np.zeros((world.n, 0)), np.zeros(world.n)
        if self.public.association:
            told, variances = associations(world, self.public)
        return self.likeness(world.data.metadata, told, variances)

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

    def apply(self, world: World, state: State, t: int, ledger: Ledger) -> tuple[State, Outcome]:
        """One round: train, believe, call or rest, swap, judge, adopt."""
        trained = world.learner.train(state.models, t)
        if not self.calling.on(t):
            return replace(state, models=trained), Outcome.alone(world.n)
        if ledger.closed:
            return replace(state, models=trained), Outcome.alone(world.n, Rest.BUDGET)
        shown = world.learner.logits(trained, world.data.validation)
        own = own_level(world, shown)
        seen = state.likeness
        belief = believe(seen.features, seen.slopes, state.experience, t, self.expect)
        doubt = self.doubt(state.returns)
        even = self.break_even(belief, own, doubt)
        plan, score = self.call(world, belief, even, self.news(state.experience, seen, t), t)
        spent = self.traffic(world, plan, t, state.published)
        if not ledger.affords(spent):
            # That the plan is too dear is known once it is made: its messages were sent.
            alone = Outcome.alone(world.n, Rest.BUDGET, overdrawn=True)
            return replace(state, models=trained), replace(alone, traffic=Traffic(control=spent.control))
        arrived = self.wire.deliver(world, trained[:, : self.wire.shared(world)], t)
        partners = plan.partners()
        sizes = world.sizes()
        center, peer, value, se = self.measure(world, sizes, trained, arrived, partners, t)
        experience = state.experience.observe(center, peer, t, value, se)
        after = believe(seen.features, seen.slopes, experience, t, self.expect)
        helps = after.helps(self.break_even(after, own, doubt))
        say = helps if self.gated else np.ones_like(helps)
        mixed, after_mix = adopt(world, sizes, trained, arrived, partners, say)
        returns = state.returns.observe(plan.degrees() > 0, *gains(world, shown, after_mix))
        trail = explained(plan, score, belief, even)
        answers = after_mix, world.learner.logits(mixed, world.data.test)
        outcome = Outcome(spent, plan.degrees(), plan.rest, trail, answers=answers)
        return State(mixed, experience, seen, returns, after), outcome

    @property
    def gated(self) -> bool:
        """Whether what arrives is weighed by belief."""
        return self.gate and self.calling.policy != "random"

    def traffic(self, world: World, plan: Plan, t: int, published: bool = False) -> Traffic:
        """Bytes of a round's plan; what centers publish is paid for with the first calls, or when new."""
        spent = bytes_of.pairs(len(plan.pairs), self.wire.payload(world), len(plan.center))
        if published or t == self.calling.warm_up + 1:
            entries = world.data.metadata.shape[1] * self.public.metadata
            entries += world.data.width * self.public.association
            spent += bytes_of.directory(world.n, entries)
        return spent

    def doubt(self, returns: Returns) -> Floats:
        """(n,) how sure each center is that mixing does not pay."""
        if not self.expect.returns:
            return np.zeros(len(returns.gain))
        return returns.doubt(self.expect.returns, self.expect.returns_noise)

    def break_even(self, belief: Usefulness, own: Floats, doubt: Floats) -> Floats:
        """(n,) the utility from which a peer helps: part of the way from chance to what a center can reach.

        That is what its own model surely reaches, or what it believes of the best of its peers. The more a
        center doubts that mixing pays, the longer this way and the less is put down to luck.
        """
        if self.utility != "received":
            return np.full(len(own), 0.5)  # a gain of nothing
        best = np.where(np.eye(len(own), dtype=bool), 0.0, belief.mean).max(axis=1)
        reach = np.fmax(best, own) - 0.5 - self.calling.slack * (1.0 - doubt)
        ambition = self.calling.ambition + (1.0 - self.calling.ambition) * doubt
        return 0.5 + ambition * np.maximum(reach, 0.0)

    def news(self, experience: Experience, likeness: Likeness, t: int) -> Floats:
        """(n, n) the share of a peer's model that is new to a center since they last met.

        Where risks differ there are few peers worth meeting, and they are worth meeting again.
        """
        n = len(likeness.features)
        if not self.calling.renewal or self.calling.policy == "random":
            return np.ones((n, n))
        last = np.full((n, n), -np.inf)
        np.maximum.at(last, (experience.center, experience.peer), experience.round.astype(np.float64))
        return 1.0 - (1.0 - likeness.differ) * 0.5 ** ((t - last) / self.calling.renewal)

    def call(
        self, world: World, belief: Usefulness, even: Floats, news: Floats, t: int
    ) -> tuple[Plan, Floats]:
        """Who calls whom: peers worth their price, in the order of what they add that is new."""
        score = self.scores(world, belief, even, t)
        willing = self.willing(belief, even, score)
        rankings = self.rankings(willing, score, even, news)
        plan = propose(
            turns_of.turns(Selection(), world.seed, t, world.ids).tolist(),
            rankings,
            lambda j, i: Answer.ACCEPTED if willing[j, i] else Answer.DECLINED,
            self.kappa,
        )
        # A center that wanted nobody rests by its own decision.
        nobody = np.array([not ranking for ranking in rankings])
        rest = np.where((plan.rest == Rest.NO_CANDIDATES) & nobody, Rest.DECLINED, plan.rest)
        return replace(plan, rest=rest.astype(np.int8)), score

    def willing(self, belief: Usefulness, even: Floats, score: Floats) -> NDArray[np.bool_]:
        """(n, n) whether a center would call a peer, and answer yes to it."""
        policy = self.calling.policy
        willing = belief.expected_gain(even) >= self.calling.price
        if policy == "gumbel":
            willing &= score >= 0.0
        elif policy == "random":
            willing = np.ones_like(willing)
        else:
            willing &= score >= even[:, None]
        np.fill_diagonal(willing, False)
        return willing

    def rankings(
        self, willing: NDArray[np.bool_], score: Floats, even: Floats, news: Floats
    ) -> list[list[int]]:
        """For every center the peers that it would call, best first."""
        # The score of a peer worth nothing.
        level = 0.0 if self.calling.policy in ("gumbel", "random") else even[:, None]
        order = np.argsort(np.where(willing, (level - score) * news, np.inf), axis=1, kind="stable")
        return [order[i, :count].tolist() for i, count in enumerate(willing.sum(axis=1))]

    def scores(self, world: World, belief: Usefulness, even: Floats, t: int) -> Floats:
        """(n, n) how much each center wants each peer this round."""
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
        self, world: World, sizes: Tensor, trained: Tensor, arrived: Tensor, partners: list[Ints], t: int
    ) -> tuple[Ints, Ints, Floats, Floats]:
        """(center, peer, utility, standard error) of all that arrived.  sizes: (n,) everybody's rows."""
        if self.utility == "received":
            return judge(world, sizes, trained, arrived, partners)
        ask = UTILITIES[self.utility]
        meeting = meet(world, trained, arrived, sizes, partners)
        found = judged(meeting, world, ask, trained, arrived, sizes, partners, t)
        error = error_on(world.data.validation, found.center, np.full(len(found.center), 0.7))
        return found.center, found.peer, 0.5 + found.phi, error


def explained(plan: Plan, score: Floats, belief: Usefulness, even: Floats) -> Decisions:
    """The audit trail, each decision with its prior, its evidence and its posterior."""
    trail = decisions_of(plan, score, belief.mean, belief.count)
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
    """(n,) what each center's own model surely reaches: its validation AUROC less half of its error.

    shown: its logits on validation rows.
    """
    rows = world.data.validation
    now = auroc(shown, labels_of(rows))
    return now - 0.5 * error_on(rows, np.arange(world.n), now)


def gains(world: World, before: Segments, after: Segments) -> tuple[Floats, Floats]:
    """(n,) what a change of models takes off the validation log-loss, and its standard error over rows.

    before, after: the models' logits on validation rows.
    """
    rows = world.data.validation
    labels = labels_of(rows)
    gain = row_losses(before, labels).values - row_losses(after, labels).values
    owner = np.repeat(np.arange(len(rows.sizes)), rows.sizes)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.bincount(owner, weights=gain, minlength=len(rows.sizes)) / rows.sizes
        square = np.bincount(owner, weights=gain**2, minlength=len(rows.sizes)) / rows.sizes
        return mean, np.sqrt(np.maximum(square - mean**2, 0.0) / (rows.sizes - 1))


def adopt(
    world: World, sizes: Tensor, trained: Tensor, arrived: Tensor, partners: list[Ints], helps: Floats
) -> tuple[Tensor, Segments]:
    """(n, P) own models averaged with what was received, as far as it is believed to help, of all who have
    rows here; and their answers for validation rows.

    sizes: (n,) training rows.
    helps: (n, n) probabilities. From one half on a peer counts fully, below one quarter not at all.
    """
    n = world.n
    peer, counts = flat(partners[:n])
    center = np.repeat(np.arange(n), counts)
    chance, rows = helps[center, peer], sizes.numpy().astype(np.float64)
    say = rows[peer] * np.where(chance >= 0.25, np.minimum(1.0, 2.0 * chance), 0.0)
    total = rows[:n] + np.bincount(center, weights=say, minlength=n)
    parts = Mixtures(
        owner=np.arange(n),
        own=(rows[:n] / total).astype(np.float32),
        other=peer,
        share=(say / total[center]).astype(np.float32),
        start=np.concatenate([[0], np.cumsum(counts)]),
    )
    return world.learner.settle(trained, arrived, parts, world.data.validation)


def judge(
    world: World, sizes: Tensor, trained: Tensor, arrived: Tensor, partners: list[Ints]
) -> tuple[Ints, Ints, Floats, Floats]:
    """(center, peer, utility, standard error) of each received model on all rows of its receiver.

    The model is the peers' shared layers as they arrived, averaged, under the receiver's own private layers.
    With one partner its utility is the AUROC; with k partners it is 0.5 plus k times its Shapley share of
    what the average is better than chance: what each would have, were all as useful.
    """
    rows = world.data.own
    members = [coalition(mine, mask) for mine in partners for mask in range(1, 1 << len(mine))]
    who = np.repeat(np.arange(len(partners)), [(1 << len(mine)) - 1 for mine in partners])
    received = mixtures(who, *flat(members), sizes.numpy(), with_own=False)
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
    """(n, features) standardised difference of every feature's mean between the outcomes, and its (n,)
    variance.

    Zeros and an infinite variance for a center with too few positives: a handful of patients must not be
    readable from it.
    """
    rows = world.data.train
    owner = np.repeat(np.arange(world.n), rows.sizes)
    total, square, of_positives = (
        _sums(owner, values, world.n)
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
            for i in world.ids
        ]
        table = np.where(table != 0, table + public.noise * np.stack(drawn), 0.0)
    # Published as four-byte numbers: what a center computes with is what its peers see.
    return table.astype(np.float32).astype(np.float64), association_variance(count, sizes, public)


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
    """Two uniform numbers in (0, 1) for every ordered pair, from the names of the two."""
    bits = streams.bits(world.seed, "policy", t, world.ids[:, None], world.ids[None, :])
    halves = (bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF))
    first, second = ((half.astype(np.float64) + 0.5) / 2**32 for half in halves)
    return first, second
