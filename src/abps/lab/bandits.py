"""Partner selection with known utilities: one center and its candidate peers, as the analysis has them.

The center ranks its peers by upper confidence bound on a Beta belief, swaps its first choice for a random one
with probability epsilon, fills its slots, and sees a Bernoulli utility of every partner. Regret is counted in
expectations, against the best peers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.jit import compiled
from abps.lab.guarantees import GAMMA, UNIFORM, Epsilon, Prior

Floats = NDArray[np.float64]


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
class BanditRun:
    """Regret (replicates, checkpoints) of a bandit at the rounds ``at``, and pulls (replicates, peers)."""

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
) -> list[BanditRun]:
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
        progress((b + 1) / len(bandits))
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
