"""Published metadata with Gaussian noise, and the sensitivity of every entry.

Adding or removing a row changes a share of n rows by at most 1 / n, the logarithm of n by 1 / n, and a mean
of years between 1900 and 2300, over 2030, by 400 / 2030 / n.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from abps.wire.admission import YEAR, plausible

Floats = NDArray[np.float64]


def sensitivity(names: tuple[str, ...]) -> Floats:
    """(k,) the sensitivity of every entry, times the number of rows."""
    return np.array([YEAR.high - YEAR.low if name == "mean year / 2030" else 1.0 for name in names])


def noisy(
    names: tuple[str, ...], vector: Floats, rows: int, noise: float, random: np.random.Generator
) -> Floats:
    """(k,) a center's metadata vector through a Gaussian mechanism with ``noise`` deviations per sensitivity.

    In units of its own sensitivity every entry has sensitivity 1, so the vector has sensitivity root k.
    Entries are clipped to their plausible range.
    """
    if not len(names):
        return vector
    spread = noise * np.sqrt(len(names)) * sensitivity(names) / max(rows, 1)
    drawn = vector + spread * random.standard_normal(len(names))
    ranges = plausible(names)
    kept = np.clip(drawn, [each.low for each in ranges], [each.high for each in ranges])
    return np.asarray(kept.astype(np.float32).astype(np.float64))
