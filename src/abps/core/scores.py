"""How candidates are scored: upper confidence bounds and the schedule of exploration."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from abps.core.beliefs import Posterior
from abps.core.errors import RequestError, nearest

Floats = NDArray[np.float64]

#: Exploration schedules: the constant of the experiments, and the two of the regret proof.
EpsilonSchedule = Literal["constant", "inv_sqrt_horizon", "c_over_t"]
EPSILON_SCHEDULES: tuple[str, ...] = get_args(EpsilonSchedule)


def radius(count: ArrayLike, t: int, gamma: float) -> Floats:
    """Confidence radius gamma * sqrt(2 ln t / (count + 1)); zero in the first round (ln 1 = 0)."""
    return gamma * np.sqrt(2.0 * math.log(t) / (np.asarray(count, dtype=np.float64) + 1.0))


def ucb(belief: Posterior, t: int, gamma: float) -> Floats:
    """Eq. (7): posterior mean plus radius, at round t = 1, 2, …"""
    return belief.mean + radius(belief.count, t, gamma)


def epsilon(schedule: str, c: float, t: int, horizon: int) -> float:
    """The probability of exploring in round t.

    ``constant``: c. ``inv_sqrt_horizon``: c / sqrt(horizon). ``c_over_t``: min(1, c / t).
    """
    if schedule == "constant":
        return min(1.0, c)
    if schedule == "inv_sqrt_horizon":
        return min(1.0, c / math.sqrt(max(1, horizon)))
    if schedule == "c_over_t":
        return min(1.0, c / t)
    raise RequestError(
        f"eps_schedule={schedule!r} is not one of {', '.join(EPSILON_SCHEDULES)}"
        f"{nearest(schedule, EPSILON_SCHEDULES)}"
    )
