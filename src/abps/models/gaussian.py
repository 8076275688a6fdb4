"""Networks whose weights are Gaussians, trained by drawing them (Blundell et al. 2015).

A weight is N(m, s^2) with s = softplus(r). Every batch draws all weights once, w = m + s e, and

    loss = BCE(w) + say * KL(N(m, s^2), N(center, spread^2)).

What is trained are m and r, side by side: (n, 2P) instead of (n, P).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.tensors import Tensor, torch


@dataclass(frozen=True, eq=False)
class Gaussian:
    """The prior. center, spread: (P,) or (n, P).  say: (n,) weight of the divergence from it."""

    center: Tensor
    spread: Tensor
    say: Tensor

    def drawn(self, both: Tensor, noise: Tensor) -> Tensor:
        """(m, P) weights, from means and raw spreads (m, 2P) and standard normal numbers (m, P)."""
        mean, raw = both.chunk(2, dim=1)
        return mean + torch.nn.functional.softplus(raw) * noise

    def back(self, both: Tensor, noise: Tensor, gradient: Tensor, members: Tensor) -> Tensor:
        """(m, 2P) the whole loss's gradient for the centers ``members`` (m,), from that of the batch at the
        drawn weights (m, P)."""
        mean, raw = both.chunk(2, dim=1)
        there = both.device
        center, width = ((v if v.dim() == 1 else v[members]).to(there) for v in (self.center, self.spread))
        say, spread = self.say[members, None].to(there), torch.nn.functional.softplus(raw)
        d_mean = gradient + say * (mean - center) / width**2
        d_spread = gradient * noise + say * (spread / width**2 - 1.0 / spread)
        return torch.cat([d_mean, d_spread * torch.sigmoid(raw)], dim=1)


def noise_keys(
    seed: int, centers: NDArray[np.uint64], round: int, steps: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """(m, steps) the key of every center's noise at every step."""
    return streams.bits(seed, "sample-weights", round, centers[:, None], steps)


def noise(seed: int, centers: NDArray[np.uint64], round: int, step: int, count: int) -> Tensor:
    """(m, count) standard normal numbers of some centers for one step of a round."""
    return normals(noise_keys(seed, centers, round, np.array([step], dtype=np.uint64))[:, 0], count)


def normals(keys: NDArray[np.uint64], count: int) -> Tensor:
    """(m, count) standard normal numbers of random keys (m,).

    A random word's upper 24 bits choose one of as many parts of equal probability, and its middle is taken.
    """
    part = (streams.words(keys, count) >> np.uint32(8)).astype(np.float32)
    middle = torch.from_numpy((part - np.float32(2**23) + np.float32(0.5)) / np.float32(2**23))
    return torch.erfinv(middle) * math.sqrt(2.0)
