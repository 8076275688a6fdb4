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
    order = sorted(range(len(bandits)), key=lambda b: -bandits[b].horizon)  # those that end first go last
    rng = streams.generator(seed, "generate", center=streams.center_id(f"theory/{name}"))
    table = _Table([bandits[b] for b in order], replicates, rng)
    last = max(bandit.horizon for bandit in bandits)
    for t in range(1, last + 1):
        if (t - 1) % _CHUNK == 0:
            table.draw(t)
            progress(t / last)
        table.play_round(t)
    runs = table.runs()
    return [runs[order.index(b)] for b in range(len(bandits))]


class _Table:
    """All replicates of all bandits, longest first, as rows of one table: (rows, peers) arrays."""

    def __init__(self, bandits: Sequence[Bandit], replicates: int, rng: np.random.Generator) -> None:
        self.bandits, self.replicates, self.rng = bandits, replicates, rng
        self.slots = max(b.slots for b in bandits)
        rows, peers = len(bandits) * replicates, max(len(b.means) for b in bandits)
        true, accepts = np.full((rows, peers), -np.inf), np.ones((rows, peers))
        for b, bandit in enumerate(bandits):
            true[self._block(b), : len(bandit.means)] = bandit.means
            if bandit.accepts is not None:
                accepts[self._block(b), : len(bandit.means)] = bandit.accepts
        # ties go to the lower position, so every replicate has its peers in an order of its own
        self.shuffle = rng.random((rows, peers)).argsort(axis=1)
        self.true = np.take_along_axis(true, self.shuffle, axis=1)
        self.accepts = np.take_along_axis(accepts, self.shuffle, axis=1)
        self.picky = bool((accepts < 1.0).any())
        self.real = np.argsort(~np.isfinite(self.true), axis=1, kind="stable")  # real peers come first
        self.sizes = self._per_row([len(b.means) for b in bandits]).astype(np.int64)
        self.gamma = self._per_row([b.gamma for b in bandits])
        self.filled = self._per_row([b.slots for b in bandits])
        self.horizon = self._per_row([b.horizon for b in bandits]).astype(np.int64)
        self.best = self._per_row([sum(sorted(b.means)[-b.slots :]) for b in bandits])
        self.prior_a = self._per_row([b.prior[0] for b in bandits])
        self.prior_sum = self._per_row([b.prior[0] + b.prior[1] for b in bandits])
        self.count, self.total = np.zeros((rows, peers)), np.zeros((rows, peers))
        # what the score needs, kept current where something was observed instead of recomputed everywhere
        self.mean = np.where(np.isfinite(self.true), (self.prior_a / self.prior_sum)[:, None], -np.inf)
        self.width = np.ones((rows, peers))  # 1 / sqrt(count + 1)
        self.regret = np.zeros(rows)
        self.marks = [checkpoints(b.horizon) for b in bandits]
        self.record = [np.zeros((replicates, len(m))) for m in self.marks]
        self.due: dict[int, list[tuple[int, int]]] = {}  # round -> (bandit, checkpoint) to be recorded
        for b, mark in enumerate(self.marks):
            for at, when in enumerate(mark.tolist()):
                self.due.setdefault(when, []).append((b, at))
        self._resize(1)

    def _block(self, b: int) -> slice:
        return slice(b * self.replicates, (b + 1) * self.replicates)

    def _per_row(self, values: Sequence[float]) -> Floats:
        return np.repeat(np.asarray(values, np.float64), self.replicates)

    def _resize(self, t: int) -> None:
        """Rows that still play in round t, in all and per slot."""
        self.n = int((self.horizon >= t).sum())
        self.using = [np.flatnonzero(self.filled[: self.n] > s) for s in range(self.slots)]

    def draw(self, t: int) -> None:
        """The random numbers of the next rounds."""
        active = int((self.horizon >= t).sum())
        span = np.arange(t, t + _CHUNK)
        chance = np.stack([b.epsilon.at(span, b.horizon) for b in self.bandits])
        chance = chance.repeat(self.replicates, axis=0)
        self.explore = self.rng.random((_CHUNK, active)) < chance[:active].T
        self.swap = (self.rng.random((_CHUNK, active)) * self.sizes[:active]).astype(np.int64)
        self.coins = self.rng.random((_CHUNK, self.slots, active))

    def play_round(self, t: int) -> None:
        """Choose partners in every row, and learn from them."""
        if t - 1 in self.due:  # a run can only have ended at its last checkpoint
            self._resize(t)
        k, n = (t - 1) % _CHUNK, self.n
        chosen = self._chosen(t, k)
        self.regret[:n] += self.best[:n]
        for s, use in enumerate(self.using):
            peer = chosen[s] if use.size == n else chosen[s][use]
            mu = self.true[use, peer]
            self.regret[use] -= mu
            gain = self.total[use, peer] + (self.coins[k, s, use] < mu)
            seen = self.count[use, peer] + 1.0
            self.total[use, peer], self.count[use, peer] = gain, seen
            self.mean[use, peer] = (self.prior_a[use] + gain) / (self.prior_sum[use] + seen)
            self.width[use, peer] = 1.0 / np.sqrt(seen + 1.0)
        for b, at in self.due.get(t, ()):
            self.record[b][:, at] = self.regret[self._block(b)]

    def _chosen(self, t: int, k: int) -> list[NDArray[np.int64]]:
        """Per slot, the (n,) partners of round t: the best scores, and a random one where a row explores."""
        n = self.n
        score = self.width[:n] * (self.gamma[:n] * math.sqrt(2.0 * math.log(t)))[:, None]
        score += self.mean[:n]
        if self.picky:
            score[self.rng.random(score.shape) >= self.accepts[:n]] = -np.inf
        chosen = [score.argmax(axis=1)]
        for s in range(1, self.slots):
            score[self.using[s], chosen[-1][self.using[s]]] = -np.inf
            chosen.append(score.argmax(axis=1))
        # the swap brings a random peer to the front; it changes nothing if that peer was chosen anyway
        who = self.explore[k, :n].nonzero()[0]
        if who.size:
            peer = self.real[who, self.swap[k, who]]
            already = np.zeros(who.size, bool)
            for s in range(self.slots):
                already |= (chosen[s][who] == peer) & (self.filled[who] > s)
            chosen[0][who[~already]] = peer[~already]
        return chosen

    def runs(self) -> list[BanditRun]:
        """What every bandit gave."""
        pulls = np.zeros(self.count.shape, np.int64)
        np.put_along_axis(pulls, self.shuffle, self.count.astype(np.int64), axis=1)
        return [
            BanditRun(bandit, self.marks[b], self.record[b], pulls[self._block(b), : len(bandit.means)])
            for b, bandit in enumerate(self.bandits)
        ]
