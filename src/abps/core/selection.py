"""Selection: from beliefs to scores (upper confidence bounds), exploration and the order of turns."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from abps.core import streams
from abps.core.beliefs import BetaPosterior
from abps.core.errors import FROM_0, FROM_1, Limits, RequestError, validate

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Exploration schedules: the constant of the experiments, and the two of the regret proof.
EpsilonSchedule = Literal["constant", "inv_sqrt_horizon", "c_over_t"]


@dataclass(frozen=True)
class Selection:
    """How partners are chosen (defaults: the paper's settings, read literally).

    kappa: how many partners a center may have.  gamma: weight of the confidence radius.  epsilon,
    eps_schedule: exploration.  tau_acc: the score from which a proposal is accepted.  prior: Beta(alpha0,
    beta0). proposer_check: a center also asks only peers whose score reaches tau_acc (Lemma 1's reading).
    tie_break, order of turns: random or index.  policy: ucb, or random (the control: every candidate is as
    good as any other).
    """

    kappa: int = 3
    gamma: float = math.sqrt(2.0)
    epsilon: float = 0.1
    eps_schedule: EpsilonSchedule = "constant"
    tau_acc: float = 0.5
    prior: tuple[float, float] = (1.0, 1.0)
    proposer_check: bool = False
    tie_break: Literal["random", "index"] = "random"
    order: Literal["random", "index"] = "random"
    policy: Literal["ucb", "random"] = "ucb"

    limits: ClassVar[Limits] = {"kappa": FROM_1, "epsilon": FROM_0, "gamma": FROM_0}

    def __post_init__(self) -> None:
        validate(self)
        if self.epsilon > 1 and self.eps_schedule == "constant":
            raise RequestError(f"epsilon={self.epsilon}: a probability, choose 0 to 1")
        if min(self.prior) <= 0:
            raise RequestError(f"prior={self.prior}: both Beta parameters must be above 0")


def radius(count: ArrayLike, t: int, gamma: float) -> Floats:
    """Confidence radius gamma * sqrt(2 ln t / (count + 1)); zero in the first round (ln 1 = 0)."""
    return gamma * np.sqrt(2.0 * math.log(t) / (np.asarray(count, dtype=np.float64) + 1.0))


def ucb(belief: BetaPosterior, t: int, gamma: float) -> Floats:
    """Eq. (7): posterior mean plus radius, at round t = 1, 2, …"""
    return belief.mean + radius(belief.count, t, gamma)


def epsilon(schedule: EpsilonSchedule, c: float, t: int, horizon: int) -> float:
    """The probability of exploring in round t: c, c / sqrt(horizon), or min(1, c / t)."""
    if schedule == "constant":
        return min(1.0, c)
    return min(1.0, c / (math.sqrt(max(1, horizon)) if schedule == "inv_sqrt_horizon" else t))


@dataclass(frozen=True, eq=False)
class RoundKeys:
    """What the random draws of some centers in a round depend on; ids: (r,) their stream numbers."""

    ids: NDArray[np.uint64]
    seed: int
    t: int
    horizon: int


def turns(config: Selection, seed: int, t: int, ids: NDArray[np.uint64]) -> Ints:
    """(n,) the centers in the order of their turns this round."""
    if config.order == "index":
        return np.arange(len(ids))
    return np.argsort(streams.bits(seed, "proposal-order", t, ids), kind="stable")


def peer_scores(config: Selection, belief: BetaPosterior, t: int) -> Floats:
    """The scores of peers, by which they are ranked and accepted."""
    if config.policy == "random":
        return np.ones_like(belief.alpha)
    return ucb(belief, t, config.gamma)
