"""One verdict per pair of methods, one per hospital, and what would settle an open question."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from scipy.special import stdtrit

from abps.evaluate.calibration import UNKNOWN, Interval
from abps.evaluate.hospitals import HospitalGains
from abps.evaluate.inference import CONFIDENCE, AverageGain
from abps.evaluate.paired import PairedCells

ALPHA = 1.0 - CONFIDENCE

#: Two methods are equal if the 90 % interval of their difference lies within this margin.
MARGIN = 0.01

#: A gain or loss of this size matters to a hospital.
RELEVANT = 0.02

#: Posterior probability of a claim, and of a "probably".
SURE, PROBABLE = 0.95, 0.80

#: Hospitals with fewer events (or others) get no estimate of their own.
FEWEST_EVENTS = 5

#: Normal quantiles of a two-sided 5 % test with a power of 80 %.
_TEST, _POWER = 1.959964, 0.841621


class Verdict(Enum):
    BETTER = "better"
    WORSE = "worse"
    EQUAL = "equal"
    INCONCLUSIVE = "inconclusive"
    NO_INTERVAL = "no interval"
    REFERENCE = "reference"


class HospitalVerdict(Enum):
    GAINS = "gains"
    PROBABLY_GAINS = "probably gains"
    SAME = "no difference that matters"
    INCONCLUSIVE = "inconclusive"
    PROBABLY_LOSES = "probably loses"
    LOSES = "loses"
    TOO_FEW = "too few events"

    @property
    def answers(self) -> bool:
        """Whether this is an answer, if only a probable one."""
        return self not in (HospitalVerdict.INCONCLUSIVE, HospitalVerdict.TOO_FEW)


@dataclass(frozen=True)
class Settles:
    """What would settle an inconclusive comparison: so many repeats in all, or events over all hospitals."""

    repeats: int | None = None
    events: int | None = None


def alpha_at_look(look: int) -> float:
    """The level of the k-th look at a study that keeps growing: 0.05, then 0.05 / (k (k + 1)).

    >>> [round(alpha_at_look(k), 4) for k in (1, 2, 3)]
    [0.05, 0.0083, 0.0042]
    """
    return ALPHA if look <= 1 else ALPHA / (look * (look + 1))


def verdict(
    gain: AverageGain, p: float | None = None, alpha: float = ALPHA, margin: float = MARGIN
) -> Verdict:
    """The verdict on a pair: p (corrected for its family) against the level of this look; *equal* needs two
    one-sided tests at 5 %: the 90 % interval lies within the margin."""
    p = gain.p() if p is None else p
    if math.isnan(p):
        return Verdict.NO_INTERVAL
    if p < alpha:
        return Verdict.BETTER if gain.estimate > 0 else Verdict.WORSE
    low, high = gain.interval(1.0 - 2.0 * alpha)
    return Verdict.EQUAL if -margin <= low and high <= margin else Verdict.INCONCLUSIVE


def settles(
    gain: AverageGain, events: float, folds: int, alpha: float = ALPHA, margin: float = MARGIN
) -> Settles:
    """Further repeats, if training runs are the larger part of the interval and repeating can help; else
    events. The difference is taken as estimated, but not below the margin."""
    target = max(abs(gain.estimate), margin)
    by_patients, by_runs = gain.parts(1.0 - alpha)
    if math.isnan(by_patients):
        return Settles(repeats=2)
    if by_runs > by_patients and by_patients < target**2:
        runs = gain.run_freedom + 1
        per_repeat = max(folds, 1)
        for repeats in range(runs // per_repeat + 1, 51):
            more = repeats * per_repeat
            t = float(stdtrit(more - 1, alpha / 2.0))
            if by_patients + t**2 * gain.runs * runs / more <= target**2:
                return Settles(repeats=repeats)
    factor = (by_patients + by_runs) / target**2
    return Settles(events=math.ceil(events * max(factor, 1.0)))


def hospital_verdicts(gains: HospitalGains, cells: PairedCells) -> list[HospitalVerdict]:
    """(C,) verdicts. A claim needs the posterior, the hospital's own patients, and an estimate that is not
    within the margin in which two methods are called equal: the sign of less is the luck of a training set.
    """
    up, far_up, not_far_down = (gains.model.above(limit) for limit in (0.0, RELEVANT, -RELEVANT))
    enough = np.minimum(cells.events, np.where(cells.others > 0, cells.others, np.inf)) >= FEWEST_EVENTS
    estimate = np.where(np.abs(gains.model.mean) >= MARGIN, gains.measured, 0.0)
    return [
        _hospital_verdict(estimate[c], up[c], far_up[c], not_far_down[c])
        if enough[c] and np.isfinite(gains.measured[c])
        else HospitalVerdict.TOO_FEW
        for c in range(len(gains.measured))
    ]


def _hospital_verdict(estimate: float, up: float, far_up: float, not_far_down: float) -> HospitalVerdict:
    if up >= SURE and estimate > 0:
        return HospitalVerdict.GAINS
    if up <= 1.0 - SURE and estimate < 0:
        return HospitalVerdict.LOSES
    if not_far_down - far_up >= SURE:
        return HospitalVerdict.SAME
    if up >= PROBABLE:
        return HospitalVerdict.PROBABLY_GAINS
    if up <= 1.0 - PROBABLE:
        return HospitalVerdict.PROBABLY_LOSES
    return HospitalVerdict.INCONCLUSIVE


@dataclass(frozen=True)
class HospitalEvidence:
    """What is known about one hospital's gain: by its own patients alone, and with what all hospitals show.

    better, clearly_better, clearly_worse: probability of a gain, of one above 0.02, of a loss above 0.02.
    needed: events with which its own patients would show its estimated gain with a power of 80 %.
    """

    own: Interval = UNKNOWN
    gain: Interval = UNKNOWN
    better: float = math.nan
    clearly_better: float = math.nan
    clearly_worse: float = math.nan
    needed: float = math.nan
    verdict: HospitalVerdict = HospitalVerdict.TOO_FEW

    @property
    def shown(self) -> bool:
        return self.verdict is not HospitalVerdict.TOO_FEW


def hospital_evidence(
    gains: HospitalGains | None, cells: PairedCells, inflation: float
) -> list[HospitalEvidence]:
    if gains is None:
        return [HospitalEvidence()] * len(cells.gain)
    variance, freedom = cells.moderated
    half = -stdtrit(np.maximum(freedom, 1.0), 0.025) * np.sqrt(inflation * variance)
    mean, (low, high) = gains.model.mean, gains.model.interval()
    up, far_up, not_far_down = (gains.model.above(limit) for limit in (0.0, RELEVANT, -RELEVANT))
    size = np.maximum(np.abs(mean), RELEVANT)  # the gain is taken as estimated, but not below 0.02
    needed = cells.events * inflation * variance * (_TEST + _POWER) ** 2 / size**2
    intervals = gains.measured, half, mean, low, high
    about = up, far_up, 1.0 - not_far_down, needed, hospital_verdicts(gains, cells)
    return [
        HospitalEvidence(Interval(own, own - by, own + by), Interval(*shared), *rest)
        for (own, by, *shared), rest in zip(zip(*intervals), zip(*about))
    ]


class LossAgreement(Enum):
    """Whether the paired log-loss says the same as the ranking."""

    AGREES = "agrees"
    UNCLEAR = "unclear"
    DISAGREES = "disagrees"


def agreement(ranking: AverageGain, log_loss: AverageGain) -> LossAgreement:
    """Whether log-loss confirms the sign of a difference in ranking, leaves it open, or contradicts it."""
    if math.isnan(log_loss.p()) or log_loss.p() >= ALPHA:
        return LossAgreement.UNCLEAR
    same = (log_loss.estimate > 0) == (ranking.estimate > 0)
    return LossAgreement.AGREES if same else LossAgreement.DISAGREES


def holm(p: Sequence[float]) -> list[float]:
    """Holm's correction of a family of p-values; NaN stays and does not count.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    defined = sorted((value, k) for k, value in enumerate(p) if not math.isnan(value))
    adjusted, largest = [math.nan] * len(p), 0.0
    for rank, (value, k) in enumerate(defined):
        largest = max(largest, min(1.0, value * (len(defined) - rank)))
        adjusted[k] = largest
    return adjusted
