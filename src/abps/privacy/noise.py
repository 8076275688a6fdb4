"""Values with Gaussian noise: how far one row can move them, and how much hides it.

A sum over rows of vectors, each cut to a length, moves by at most that length when a row comes or goes. Noise
of ``noise`` times that length makes it a Gaussian mechanism, which :mod:`abps.privacy.budget` counts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def clip_rows(rows: Floats, length: float) -> Floats:
    """(rows, k) with every row at most ``length`` long; longer ones keep their direction."""
    norm = np.linalg.norm(rows, axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return rows * np.where(norm > length, length / norm, 1.0)


def noisy_sum(rows: Floats, length: float, noise: float, random: np.random.Generator) -> Floats:
    """(k,) the sum of rows cut to ``length``, with noise of ``noise * length`` in every entry.

    random: at a site from the machine's own entropy, never from the study's seed, which all members know.
    """
    total: Floats = clip_rows(rows, length).sum(axis=0)
    return total if noise == 0 else total + noise * length * random.standard_normal(len(total))
