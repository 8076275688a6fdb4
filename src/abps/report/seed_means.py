"""What runs tell of calibration, as means over seeds; an interval is the mean of the seeds' intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from abps.engine.clinical import AtCenter, Interval, Level
from abps.report.statistics import Results


def mean_of(values: Iterable[float]) -> float:
    """The mean of those that are known."""
    known = [value for value in values if math.isfinite(value)]
    return float(np.mean(known)) if known else math.nan


def mean_interval(found: Iterable[Interval]) -> Interval:
    """Value and ends, each as the mean of the seeds that have one."""
    known = [each for each in found if each.known]
    return Interval(*(mean_of(getattr(each, end) for each in known) for end in ("value", "low", "high")))


def mean_level(found: Sequence[Level]) -> Level:
    """Calibration, as the mean over seeds."""
    return Level(
        mean_of(level.expected for level in found),
        mean_interval(level.in_the_large for level in found),
        mean_interval(level.slope for level in found),
    )


@dataclass(frozen=True)
class Calibrations:
    """Calibration of one hospital over seeds: before and after recalibration.

    mended: in how many seeds its validation rows asked for one.  seeds: of how many.
    curves: (probability told, share of events) of every seed that has one.
    """

    before: Level
    after: Level
    mended: int
    seeds: int
    curves: tuple[tuple[tuple[float, float], ...], ...]


def calibrations(result: Results, center: str) -> Calibrations | None:
    """A hospital's calibration under a method; None where the runs do not keep it."""
    seen: list[AtCenter] = [
        run.clinical.per_center[center] for run in result.runs if center in run.clinical.per_center
    ]
    if not seen:
        return None
    return Calibrations(
        mean_level([each.before for each in seen]),
        mean_level([each.after for each in seen]),
        sum(each.recalibration != "none" for each in seen),
        len(seen),
        tuple(each.curve for each in seen if each.curve),
    )
