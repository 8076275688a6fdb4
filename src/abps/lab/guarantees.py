"""The guarantees of adaptive Bayesian partner selection, as functions that can be checked.

The observations of a peer are the clipped Shapley values phi_bar in [0, 1], their expectation is mu*, the
belief is a Beta posterior. Theorem 1 (:func:`concentration`): how far the posterior mean can be from mu*.
Theorem 2 (:func:`regret_bound`): what choosing partners by upper confidence bound costs. Lemma 1
(:func:`negative_transfer_threshold`, :func:`rest_dominates`): when resting is best.

Some of the original text does not hold as printed. Each correction is a function: the constant of the regret
(:func:`leading_constant`), the gaps of several slots (:func:`slot_gaps`), the exploration that remains
(:meth:`Epsilon.total`), clipping (:func:`clipped_mean`), the first rejection (:func:`first_rejection`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import digamma, zeta

from abps.core import streams
from abps.core.credit import clip_affine
from abps.core.selection import EpsilonSchedule, radius
from abps.machine import compiled

Floats = NDArray[np.float64]
Prior = tuple[float, float]

#: Uniform belief; the text never states its prior.
UNIFORM: Final[Prior] = (1.0, 1.0)
#: The exploration weight of the text.
GAMMA: Final = math.sqrt(2.0)
#: 1 + pi^2 / 3, what the failures of the confidence bounds add per unit of gap.
TAIL: Final = 1.0 + math.pi**2 / 3.0


# --------------------------------------------------------------------------- Theorem 1


@dataclass(frozen=True)
class Concentration:
    """The three terms of Theorem 1; arrays of the shape of the counts."""

    noise: Floats
    prior: Floats
    drift: Floats

    @property
    def total(self) -> Floats:
        """|posterior mean - mu*| stays below this with probability at least 1 - delta."""
        return np.asarray(self.noise + self.prior + self.drift)


def posterior_mean(total: ArrayLike, count: ArrayLike, prior: Prior = UNIFORM) -> Floats:
    """Mean of the Beta belief after ``count`` observations that sum to ``total``."""
    a, b = prior
    return np.asarray((a + np.asarray(total, np.float64)) / (a + b + np.asarray(count, np.float64)))


def concentration(
    count: ArrayLike,
    delta: float,
    *,
    drift: float = 0.0,
    prior: Prior = UNIFORM,
    at_all_times: bool = False,
) -> Concentration:
    """Theorem 1: Hoeffding noise + pull of the prior + drift, for one count or an array of counts K.

    K is fixed in advance. A belief that is looked at after every round has no fixed K: with ``at_all_times``
    the failure probability is spent as delta / (K (K + 1)), and the bound holds for all K together. A
    *discounted* belief may be put in with its discounted count: weights w <= 1 have sum(w^2) <= sum(w).
    """
    a, b = prior
    k = np.asarray(count, np.float64)
    with np.errstate(divide="ignore"):
        level = math.log(2.0 / delta) + (np.log(np.maximum(k, 1.0) * (k + 1.0)) if at_all_times else 0.0)
        noise = np.sqrt(level / (2.0 * k))
    return Concentration(np.asarray(noise), np.asarray((a + b) / (a + b + k)), np.full(k.shape, float(drift)))


# --------------------------------------------------------------------------- the score


def score(total: ArrayLike, count: ArrayLike, t: int, gamma: float = GAMMA, prior: Prior = UNIFORM) -> Floats:
    """Of a peer in round t that was met ``count`` times and gave ``total``: mean plus confidence radius."""
    return posterior_mean(total, count, prior) + radius(count, t, gamma)


def lowest_ucb(t: int, gamma: float = GAMMA, prior: Prior = UNIFORM, value: float = 0.0) -> float:
    """The score in round t of a peer that was met in every earlier round and always gave ``value``; with 0,
    how far down the score *can* be."""
    return float(score((t - 1) * value, t - 1, t, gamma, prior))


def first_rejection(
    gamma: float = GAMMA, prior: Prior = UNIFORM, threshold: float = 0.5, value: float = 0.0
) -> int | None:
    """The first round in which such a peer scores below the threshold; None if that is beyond 10^7."""
    a, b = prior
    start = 1
    while start < 10**7:
        t = np.arange(start, 4 * start, dtype=np.float64)
        below = (a + (t - 1) * value) / (a + b + t - 1) + gamma * np.sqrt(2.0 * np.log(t) / t) < threshold
        if below.any():
            return int(t[int(np.argmax(below))])
        start *= 4
    return None


def untried_wins(t: int, count: int, gamma: float = GAMMA, prior: Prior = UNIFORM) -> bool:
    """Does an untried peer outscore *every* peer tried ``count`` times in round t, whatever it gave?"""
    return bool(score(0.0, 0, t, gamma, prior) > score(count, count, t, gamma, prior))


# --------------------------------------------------------------------------- Theorem 2

Constant = Literal["printed", "gamma"]
Gaps = Literal["best", "slots"]


@dataclass(frozen=True)
class Epsilon:
    """How often the first choice is swapped for a random peer: ``constant``: value. ``inv_sqrt_horizon``:
    min(1, value / sqrt T) in a run of T rounds. ``c_over_t``: min(1, value / t) in round t."""

    schedule: EpsilonSchedule = "constant"
    value: float = 0.1

    def at(self, t: ArrayLike, horizon: float) -> Floats:
        t = np.asarray(t, np.float64)
        if self.schedule == "constant":
            return np.full(t.shape, self.value)
        if self.schedule == "inv_sqrt_horizon":
            return np.full(t.shape, min(1.0, self.value / math.sqrt(horizon)))
        return np.asarray(np.minimum(1.0, self.value / t))

    def total(self, horizon: int) -> float:
        """Expected number of swaps in a run: value T, value sqrt T, or about value ln T."""
        if self.schedule == "c_over_t":
            sure = min(int(self.value), horizon)  # rounds in which value / t is 1 or more
            return sure + self.value * (_harmonic(horizon) - _harmonic(sure))
        return float(horizon * self.at(1.0, horizon))


@dataclass(frozen=True)
class RegretBound:
    greedy: Floats
    explore: Floats

    @property
    def total(self) -> Floats:
        return np.asarray(self.greedy + self.explore)


def leading_constant(gamma: float = GAMMA, constant: Constant = "gamma") -> float:
    """What stands before ln T / gap: the confidence radius is sqrt(c ln t / n) with c = 2 gamma^2, and the
    analysis of UCB1 gives 4 c. The printed 8 is the case gamma = 1; the text's own gamma = sqrt 2 gives 16.
    """
    return 8.0 if constant == "printed" else 8.0 * gamma**2


def tail_constant(gamma: float = GAMMA, constant: Constant = "gamma") -> float:
    """What stands before each gap: 1 + 2 sum over t of t^(2 - 4 gamma^2), at most 1 + pi^2/3 if gamma >= 1;
    infinite below gamma = sqrt(3)/2, where the analysis proves nothing."""
    if constant == "printed" or gamma >= 1.0:
        return TAIL
    power = 4.0 * gamma**2 - 2.0
    return 1.0 + 2.0 * float(zeta(power)) if power > 1.0 else math.inf


def slot_gaps(means: ArrayLike, slots: int, gaps: Gaps = "best") -> tuple[float, float]:
    """(factor of the leading constant times ln T, factor of the tail constant) for ``slots`` slots.

    ``best``, as printed: slots * sum 1/gap and slots * sum gap, gaps to the best peer. ``slots``: regret is
    counted against the best ``slots`` peers. With D_k the gap of peer j to the k-th best, the factor of j is
    1/D_1 + sum_k D_k (1/D_k^2 - 1/D_(k-1)^2) (the greedy argument for matroids: Kveton et al., Matroid
    bandits, UAI 2014), which is 1/gap for one slot and at most 2/D_slots.
    """
    mu = -np.sort(-np.asarray(means, np.float64))
    if gaps == "best":
        d = mu[0] - mu
        d = d[d > 0.0]
        return slots * float((1.0 / d).sum()), slots * float(d.sum())
    leading = tail = 0.0
    for low in mu[slots:]:
        d = mu[:slots] - low
        d = d[d > 0.0]
        if d.size:
            inverse = 1.0 / d**2
            leading += float((d * np.diff(inverse, prepend=0.0)).sum())
            tail += float(d.sum())
    return leading, tail


def regret_bound(
    means: ArrayLike,
    horizon: ArrayLike,
    *,
    slots: int = 1,
    gamma: float = GAMMA,
    epsilon: Epsilon | None = None,
    constant: Constant = "gamma",
    gaps: Gaps = "best",
) -> RegretBound:
    """Theorem 2 for candidate peers with true utilities ``means`` and one or many horizons T.

    ``constant="printed", gaps="best"`` is the text's formula; the others are the corrections.
    """
    mu = np.asarray(means, np.float64)
    t = np.asarray(horizon)
    leading, tail = slot_gaps(mu, slots, gaps)
    greedy = leading * leading_constant(gamma, constant) * np.log(t.astype(np.float64))
    greedy = greedy + (tail * tail_constant(gamma, constant) if tail else 0.0)
    swaps = np.array([(epsilon or Epsilon()).total(int(each)) for each in t.ravel()]).reshape(t.shape)
    return RegretBound(np.asarray(greedy), np.asarray(swaps * float(mu.max() - mu.mean())))


def first_informative_round(
    means: ArrayLike, *, slots: int = 1, gamma: float = GAMMA, epsilon: Epsilon | None = None
) -> int | None:
    """The first T at which Theorem 2 is below slots * T * (largest gap to the top), which any policy
    satisfies; None if that is not before 10^12 rounds."""
    mu = -np.sort(-np.asarray(means, np.float64))
    worst = float(mu[:slots].sum() - mu[-slots:].sum())

    def informative(t: int) -> bool:
        return float(regret_bound(mu, t, slots=slots, gamma=gamma, epsilon=epsilon).total) < worst * t

    high = 1
    while not informative(high):
        high *= 2
        if high > 10**12:
            return None
    low = high // 2
    while high - low > 1:  # informative stays true once it is: the bound grows slower than its rival
        middle = (low + high) // 2
        low, high = (low, middle) if informative(middle) else (middle, high)
    return high


# --------------------------------------------------------------------------- Lemma 1


def negative_transfer_threshold(phi_min: float = -0.1, phi_max: float = 0.1) -> float:
    """c_neg: the mu* at which a peer neither helps nor harms, if no utility was ever clipped."""
    return -phi_min / (phi_max - phi_min)


def clipped_mean(
    values: ArrayLike, weights: ArrayLike, phi_min: float = -0.1, phi_max: float = 0.1
) -> tuple[float, float]:
    """(E[phi], E[phi_bar]) of a utility that takes ``values`` with probabilities ``weights``: E[phi] < 0 and
    E[phi_bar] < c_neg are the same only while every value lies between phi_min and phi_max."""
    v, w = np.asarray(values, np.float64), np.asarray(weights, np.float64)
    return float((v * w).sum()), float((clip_affine(v, phi_min, phi_max) * w).sum())


#: A peer that helps a little four times in five and does great harm once: (values, probabilities).
#: E[phi] = -0.10, but the belief converges to 0.60 > c_neg: the rule collaborates for ever.
HARMFUL_YET_ACCEPTED: Final = ((0.05, -0.70), (0.8, 0.2))
#: Its mirror image: helps on average (+0.10), believed harmful (0.40 < c_neg), never chosen.
HELPFUL_YET_REJECTED: Final = ((-0.05, 0.70), (0.8, 0.2))


def rest_dominates(expected: ArrayLike, slack: float = 0.0) -> bool:
    """Lemma 1: is resting strictly better than working with peers of these expected utilities E[phi]?

    ``slack``, the largest error of an estimated Shapley value: every E[phi] must lie below -slack. That every
    mu* lies below c_neg is not enough (E[phi] = -slack/2 is the counterexample).
    """
    phi = np.asarray(expected, np.float64)
    return phi.size > 0 and bool((phi < -slack).all())


def _harmonic(n: int) -> float:
    return float(digamma(n + 1.0) + np.euler_gamma)


# ---------------------------------------------------------------- bandits


@dataclass(frozen=True)
class Bandit:
    """True utilities of the candidates, and how the center chooses.  accepts: the probability that a peer is
    free and willing in a round (1: always, as the analysis has it)."""

    means: tuple[float, ...]
    horizon: int
    slots: int = 1
    gamma: float = GAMMA
    epsilon: Epsilon = field(default_factory=Epsilon)
    prior: Prior = UNIFORM
    accepts: tuple[float, ...] | None = None


@dataclass(frozen=True)
class BanditRun:
    """Regret (replicates, checkpoints) of a bandit at the rounds ``at``, and pulls (replicates, peers)."""

    bandit: Bandit
    at: NDArray[np.int64]
    regret: Floats
    pulls: NDArray[np.int64]


def checkpoints(horizon: int, per_decade: int = 8) -> NDArray[np.int64]:
    count = max(2, round(per_decade * np.log10(horizon / 10)) + 1)
    return np.unique(np.geomspace(10, horizon, count).round().astype(np.int64))


def play(bandits: Sequence[Bandit], replicates: int, seed: int, name: str) -> list[BanditRun]:
    """Play every bandit ``replicates`` times. ``name`` keeps the random numbers of two studies apart."""
    runs = []
    for b, bandit in enumerate(bandits):
        rng = streams.generator(seed, "generate", center=streams.center_id(f"theory/{name}/{b}"))
        at, peers = checkpoints(bandit.horizon), len(bandit.means)
        regret, pulls = np.zeros((replicates, len(at))), np.zeros((replicates, peers), np.int64)
        chance = bandit.epsilon.at(np.arange(1, bandit.horizon + 1), bandit.horizon)
        for k in range(replicates):
            # Ties go to the lower position, so every replicate has its peers in an order of its own.
            order = rng.permutation(peers)
            accepts = np.ones(peers) if bandit.accepts is None else np.array(bandit.accepts)
            how = (np.array(bandit.means)[order], accepts[order], bandit.slots, bandit.gamma, bandit.prior)
            met = np.zeros(peers)
            _play_one(rng, how, chance, at, regret[k], met)
            pulls[k, order] = met
        runs.append(BanditRun(bandit, at, regret, pulls))
    return runs


@compiled
def _play_one(rng: Any, how: Any, chance: Floats, at: Any, regret: Floats, count: Floats) -> None:
    """One run; fills regret at the rounds ``at`` and count, how often every peer was met."""
    true, accepts, slots, gamma, prior = how
    peers, lost, mark = len(true), 0.0, 0
    best = np.sort(true)[peers - slots :].sum()
    total, score = np.zeros(peers), np.zeros(peers)
    chosen = np.zeros(slots, np.int64)
    for t in range(1, len(chance) + 1):
        bonus = gamma * np.sqrt(2.0 * np.log(t))
        for j in range(peers):
            belief = (prior[0] + total[j]) / (prior[0] + prior[1] + count[j])
            score[j] = belief + bonus / np.sqrt(count[j] + 1.0)
            if accepts[j] < 1.0 and rng.random() >= accepts[j]:
                score[j] = -np.inf
        for s in range(slots):
            chosen[s] = np.argmax(score)
            score[chosen[s]] = -np.inf
        if rng.random() < chance[t - 1]:
            # The swap brings a random peer to the front; nothing changes if that peer was chosen anyway.
            peer = int(rng.random() * peers)
            if not (chosen == peer).any():
                chosen[0] = peer
        lost += best
        for j in chosen:
            lost -= true[j]
            count[j] += 1.0
            if rng.random() < true[j]:
                total[j] += 1.0
        if t == at[mark]:
            regret[mark] = lost
            mark += 1
