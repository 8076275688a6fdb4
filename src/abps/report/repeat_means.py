"""Calibration as means over repeats; an interval is the mean of the repeats' intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from abps.engine.clinical import AtCenter, Interval, Level
from abps.report.analysis import MethodResult


def mean_of(values: Iterable[float]) -> float:
    """The mean of those that are known."""
    known = [value for value in values if math.isfinite(value)]
    return float(np.mean(known)) if known else math.nan


def mean_interval(found: Iterable[Interval]) -> Interval:
    """Value and ends, each as the mean of the repeats that have one."""
    known = [each for each in found if each.known]
    return Interval(*(mean_of(getattr(each, end) for each in known) for end in ("value", "low", "high")))


def mean_level(found: Sequence[Level]) -> Level:
    """Calibration, as the mean over repeats."""
    return Level(
        mean_of(level.expected for level in found),
        mean_interval(level.in_the_large for level in found),
        mean_interval(level.slope for level in found),
    )


@dataclass(frozen=True)
class RepeatCalibration:
    """Calibration of one hospital over repeats: before and after recalibration.

    mended: in how many repeats its validation rows asked for one.  repeats: of how many.
    curves: (predicted probability, share of events) of every repeat that has one.
    """

    before: Level
    after: Level
    mended: int
    repeats: int
    curves: tuple[tuple[tuple[float, float], ...], ...]


def calibrations(result: MethodResult, center: str) -> RepeatCalibration | None:
    """A hospital's calibration under a method; None where the runs do not keep it."""
    seen: list[AtCenter] = [
        run.clinical.per_center[center] for run in result.runs if center in run.clinical.per_center
    ]
    if not seen:
        return None
    return RepeatCalibration(
        mean_level([each.before for each in seen]),
        mean_level([each.after for each in seen]),
        sum(each.recalibration != "none" for each in seen),
        len(seen),
        tuple(each.curve for each in seen if each.curve),
    )
