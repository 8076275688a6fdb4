"""Beta beliefs about peers: what center i thinks of peer j's usefulness. Only observed pairs are stored,
sorted, so memory grows with observations and not with n²; every other pair has the prior, which is kept apart
from the evidence and may be replaced."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class BetaPosterior:
    """Beta(alpha, beta) of some pairs, and how often each was observed."""

    alpha: Floats
    beta: Floats
    count: Floats

    @property
    def mean(self) -> Floats:
        return self.alpha / (self.alpha + self.beta)


@dataclass(frozen=True, eq=False)
class Beliefs:
    """The beliefs of n centers about each other.  prior: (alpha0, beta0) of every pair that was never
    observed.  key: (m,) sorted pair numbers ``center * n + peer``; gain, loss, count: (m,) evidence for
    usefulness, against it, and number of observations."""

    n: int
    prior: tuple[float, float] = (1.0, 1.0)
    key: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    gain: Floats = field(default_factory=lambda: np.zeros(0))
    loss: Floats = field(default_factory=lambda: np.zeros(0))
    count: Floats = field(default_factory=lambda: np.zeros(0))

    def _find(self, key: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Where each pair is (or would be) stored, and whether it is there."""
        at = np.searchsorted(self.key, key)
        known = at < len(self.key)
        known[known] = self.key[at[known]] == key[known]
        return at, known

    def posterior(self, center: ArrayLike, peer: ArrayLike) -> BetaPosterior:
        """The beliefs of ``center`` about ``peer``, element by element (arrays broadcast)."""
        pair = np.asarray(center, dtype=np.int64) * self.n + np.asarray(peer, dtype=np.int64)
        at, known = self._find(pair.ravel())
        alpha = np.full(pair.size, float(self.prior[0]))
        beta = np.full(pair.size, float(self.prior[1]))
        count = np.zeros(pair.size)
        alpha[known] += self.gain[at[known]]
        beta[known] += self.loss[at[known]]
        count[known] = self.count[at[known]]
        return BetaPosterior(alpha.reshape(pair.shape), beta.reshape(pair.shape), count.reshape(pair.shape))

    def observe(self, center: ArrayLike, peer: ArrayLike, value: ArrayLike) -> Beliefs:
        """The beliefs after soft Bernoulli observations ``value`` in [0, 1], Eq. (6) of the paper: each adds
        ``value`` to alpha, ``1 - value`` to beta, and one to the count. Pairs may repeat. NaN is no
        observation."""
        i, j, v = np.broadcast_arrays(
            np.asarray(center, dtype=np.int64),
            np.asarray(peer, dtype=np.int64),
            np.asarray(value, dtype=np.float64),
        )
        seen = np.isfinite(v)
        i, j, v = i[seen], j[seen], v[seen]
        if np.any((v < 0) | (v > 1)):
            raise ValueError("observations must lie in [0, 1]")
        if np.any(i == j) or np.any((i < 0) | (i >= self.n) | (j < 0) | (j >= self.n)):
            raise ValueError("a center observes other centers of the federation only")
        key, where = np.unique(i * self.n + j, return_inverse=True)
        gain = np.bincount(where, weights=v, minlength=len(key))
        loss = np.bincount(where, weights=1.0 - v, minlength=len(key))
        count = np.bincount(where, minlength=len(key)).astype(np.float64)
        at, known = self._find(key)
        new = replace(self, gain=self.gain.copy(), loss=self.loss.copy(), count=self.count.copy())
        new.gain[at[known]] += gain[known]
        new.loss[at[known]] += loss[known]
        new.count[at[known]] += count[known]
        fresh = ~known
        return replace(
            new,
            key=np.insert(self.key, at[fresh], key[fresh]),
            gain=np.insert(new.gain, at[fresh], gain[fresh]),
            loss=np.insert(new.loss, at[fresh], loss[fresh]),
            count=np.insert(new.count, at[fresh], count[fresh]),
        )
