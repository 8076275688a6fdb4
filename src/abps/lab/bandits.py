"""Partner selection with known utilities: many bandits side by side, one NumPy row per run.

The center of the analysis, alone: it ranks its candidate peers by upper confidence bound on a Beta
belief, swaps its first choice for a random one with probability epsilon, fills its slots, and sees a
Bernoulli utility of every partner. Regret is counted in expectations, against the best peers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.lab.guarantees import GAMMA, UNIFORM, Epsilon, Prior

Floats = NDArray[np.float64]

#: Rounds whose random numbers are drawn together.
_CHUNK = 256


@dataclass(frozen=True)
class Bandit:
    """One setting: true utilities of the candidates, and how the center chooses.

    accepts: the probability that a peer is free and willing in a round (1: always, as the analysis has it).
    """

    means: tuple[float, ...]
    horizon: int
    slots: int = 1
    gamma: float = GAMMA
    epsilon: Epsilon = field(default_factory=Epsilon)
    prior: Prior = UNIFORM
    accepts: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Outcome:
    """What happened: regret (replicates, checkpoints) at the rounds ``at``; pulls (replicates, peers)."""

    bandit: Bandit
    at: NDArray[np.int64]
    regret: Floats
    pulls: NDArray[np.int64]


def checkpoints(horizon: int, per_decade: int = 8) -> NDArray[np.int64]:
    """Rounds from 10 to the horizon, evenly spaced on a logarithmic axis."""
    count = max(2, round(per_decade * np.log10(horizon / 10)) + 1)
    return np.unique(np.geomspace(10, horizon, count).round().astype(np.int64))


def play(
    bandits: Sequence[Bandit],
    replicates: int,
    seed: int,
    name: str,
    progress: Callable[[float], None] = lambda share: None,
) -> list[Outcome]:
    """Play every bandit ``replicates`` times. ``name`` keeps the random numbers of two studies apart."""
    order = sorted(range(len(bandits)), key=lambda b: -bandits[b].horizon)  # those that end first go last
    sorted_bandits = [bandits[b] for b in order]
    peers = max(len(b.means) for b in bandits)
    slots = max(b.slots for b in bandits)
    rows = len(bandits) * replicates
    rng = streams.generator(seed, "generate", center=streams.center_id(f"theory/{name}"))

    def per_row(values: list[float]) -> Floats:
        return np.repeat(np.asarray(values, np.float64), replicates)

    true = np.full((rows, peers), -np.inf)
    accepts = np.ones((rows, peers))
    for b, bandit in enumerate(sorted_bandits):
        block = slice(b * replicates, (b + 1) * replicates)
        true[block, : len(bandit.means)] = bandit.means
        if bandit.accepts is not None:
            accepts[block, : len(bandit.means)] = bandit.accepts
    # ties go to the lower position, so every replicate has its peers in an order of its own
    shuffle = rng.random((rows, peers)).argsort(axis=1)
    true = np.take_along_axis(true, shuffle, axis=1)
    accepts = np.take_along_axis(accepts, shuffle, axis=1)
    sizes = per_row([len(b.means) for b in sorted_bandits]).astype(np.int64)
    real = np.argsort(~np.isfinite(true), axis=1, kind="stable")  # positions of real peers come first
    gammas = per_row([b.gamma for b in sorted_bandits])
    filled = per_row([b.slots for b in sorted_bandits])
    horizons = per_row([b.horizon for b in sorted_bandits]).astype(np.int64)
    best = np.array([sum(sorted(b.means)[-b.slots :]) for b in sorted_bandits]).repeat(replicates)
    prior_a = per_row([b.prior[0] for b in sorted_bandits])
    prior_b = per_row([b.prior[1] for b in sorted_bandits])
    picky = bool((accepts < 1.0).any())

    count = np.zeros((rows, peers))
    total = np.zeros((rows, peers))
    # what the score needs, kept current where something was observed instead of recomputed everywhere
    mean = np.where(np.isfinite(true), (prior_a / (prior_a + prior_b))[:, None], -np.inf)
    width = np.ones((rows, peers))  # 1 / sqrt(count + 1)
    regret = np.zeros(rows)
    marks = [checkpoints(b.horizon) for b in sorted_bandits]
    record = [np.zeros((replicates, len(m))) for m in marks]
    due: dict[int, list[tuple[int, int]]] = {}  # round -> (bandit, checkpoint) to be recorded
    for b, mark in enumerate(marks):
        for at, when in enumerate(mark.tolist()):
            due.setdefault(when, []).append((b, at))
    last, n = int(horizons.max()), -1
    everyone = np.arange(rows)
    for t in range(1, last + 1):
        k = (t - 1) % _CHUNK
        if k == 0:
            active = int((horizons >= t).sum())
            span = np.arange(t, t + _CHUNK)
            chance = np.stack([b.epsilon.at(span, b.horizon) for b in sorted_bandits]).repeat(
                replicates, axis=0
            )
            explore = rng.random((_CHUNK, active)) < chance[:active].T
            swap = (rng.random((_CHUNK, active)) * sizes[:active]).astype(np.int64)
            coins = rng.random((_CHUNK, slots, active))
            progress(t / last)
        if n < 0 or t - 1 in due:  # a run can only have ended at its last checkpoint
            n = int((horizons >= t).sum())
            row = everyone[:n]
            using = [row[filled[:n] > s] for s in range(slots)]
            gammas, sums, prior_a, best = gammas[:n], (prior_a + prior_b)[:n], prior_a[:n], best[:n]
            prior_b = prior_b[:n]
        score = width[:n] * (gammas * math.sqrt(2.0 * math.log(t)))[:, None]
        score += mean[:n]
        if picky:
            score[rng.random((n, peers)) >= accepts[:n]] = -np.inf
        chosen = [score.argmax(axis=1)]
        for s in range(1, slots):
            score[using[s], chosen[-1][using[s]]] = -np.inf
            chosen.append(score.argmax(axis=1))
        # the swap brings a random peer to the front; it changes nothing if that peer was chosen anyway
        who = explore[k, :n].nonzero()[0]
        if who.size:
            peer = real[who, swap[k, who]]
            already = np.zeros(who.size, bool)
            for s in range(slots):
                already |= (chosen[s][who] == peer) & (filled[who] > s)
            chosen[0][who[~already]] = peer[~already]
        regret[:n] += best
        for s, use in enumerate(using):
            peer = chosen[s] if use.size == n else chosen[s][use]
            mu = true[use, peer]
            regret[use] -= mu
            gain = total[use, peer] + (coins[k, s, use] < mu)
            seen = count[use, peer] + 1.0
            total[use, peer], count[use, peer] = gain, seen
            mean[use, peer] = (prior_a[use] + gain) / (sums[use] + seen)
            width[use, peer] = 1.0 / np.sqrt(seen + 1.0)
        for b, at in due.get(t, ()):
            record[b][:, at] = regret[b * replicates : (b + 1) * replicates]
    pulls = np.zeros((rows, peers), np.int64)
    np.put_along_axis(pulls, shuffle, count.astype(np.int64), axis=1)
    outcomes: list[Outcome | None] = [None] * len(bandits)
    for b, bandit in enumerate(sorted_bandits):
        block = slice(b * replicates, (b + 1) * replicates)
        outcomes[order[b]] = Outcome(bandit, marks[b], record[b], pulls[block, : len(bandit.means)])
    return [each for each in outcomes if each is not None]
