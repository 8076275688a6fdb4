"""What centers publish of themselves, with noise: how far one row can move every entry.

A share of n rows moves by at most 1 / n when a row comes or goes, the logarithm of n by 1 / n, and a mean of
years between 1900 and 2300, over 2030, by 400 / 2030 / n. An entry without a stated bound is not published.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.wire.admission import ASSOCIATION, YEAR, plausible

Floats = NDArray[np.float64]


def sensitivity(names: tuple[str, ...]) -> Floats:
    """(k,) how far a row moves every entry, times the number of rows."""
    unbounded = [name for name in names if name.startswith(ASSOCIATION)]
    if unbounded:
        raise RequestError(
            f"{unbounded[0]!r} is published and has no bound on what one row does to it; "
            "choose another method, or leave it out (association=no)"
        )
    return np.array([YEAR.high - YEAR.low if name == "mean year / 2030" else 1.0 for name in names])


def noisy(
    names: tuple[str, ...], vector: Floats, rows: int, noise: float, random: np.random.Generator
) -> Floats:
    """(k,) what is published of one center: a Gaussian mechanism with ``noise`` deviations per sensitivity.

    Every entry, in units of what a row can do to it, has the sensitivity 1, so all k together have root k.
    What noise carries out of an entry's range is brought back to its end.
    """
    if not len(names):
        return vector
    spread = noise * np.sqrt(len(names)) * sensitivity(names) / max(rows, 1)
    told = vector + spread * random.standard_normal(len(names))
    ranges = plausible(names)
    kept = np.clip(told, [each.low for each in ranges], [each.high for each in ranges])
    return np.asarray(kept.astype(np.float32).astype(np.float64))
