"""What clinicians ask of a run: calibration at every hospital, what acting on it brings, parts of the cohort.

Everything is measured on test rows. Recalibration and thresholds come from validation rows, which the method
judged by but did not learn from. Only sums and curves are kept, never a row; a part of the cohort with few
rows or events is hidden.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from abps.evaluate.calibration import (
    Calibration,
    CalibrationCurve,
    Estimate,
    Recalibration,
    calibration,
    expit,
    recalibration,
    smooth_curve,
)
from abps.evaluate.net_benefit import AtThreshold, Share, at_threshold, decision_curve, sensitive_threshold
from abps.evaluate.roc import Area, area
from abps.evaluate.subgroups import subgroups
from abps.models.metrics import Segments

Floats = NDArray[np.float64]

#: The sensitivity that a threshold is chosen for.
SENSITIVITY: Final = 0.9

#: Thresholds that are always reported.
FIXED: Final = (0.1, 0.2)

#: Points of a hospital's curve, and of the curve of all.
POINTS, MORE_POINTS = 12, 30


@dataclass(frozen=True)
class Interval:
    """A number with its 95 % interval; NaN where it is unknown."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan

    @property
    def known(self) -> bool:
        """Whether it is known."""
        return math.isfinite(self.value)


@dataclass(frozen=True)
class Level:
    """Calibration.  expected: the sum of the probabilities.  in_the_large: 0 is right.  slope: 1 is right."""

    expected: float = math.nan
    in_the_large: Interval = Interval()
    slope: Interval = Interval()


@dataclass(frozen=True)
class AtCenter:
    """Calibration of one center on its test rows: as the run gives it, and after its recalibration.

    recalibration: none, intercept, or intercept and slope; by fold where folds differ.  shift, factor: new
    log odds are shift + factor x log odds.  curve: (predicted probability, share of events), as the run gives
    it; nothing below twenty events.
    """

    before: Level = Level()
    after: Level = Level()
    recalibration: str = "none"
    shift: float = 0.0
    factor: float = 1.0
    curve: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Cut:
    """What happens if everybody at or above a threshold is called.  name: how the threshold was chosen."""

    name: str
    threshold: float
    called: Interval
    sensitivity: Interval
    specificity: Interval
    positive_value: Interval
    negative_value: Interval
    net_benefit: float


@dataclass(frozen=True)
class Subgroup:
    """One part of the cohort.  ratio: events over those expected.  hidden: why it is not shown."""

    name: str
    rows: int = 0
    events: int = 0
    auroc: Interval = Interval()
    ratio: float = math.nan
    hidden: str = ""


@dataclass(frozen=True)
class Clinical:
    """All of it, of a binary outcome.

    rows, events, auroc: of all test rows together, each by its own center's model, recalibrated.
    curve, curve_after: (predicted probability, share of events) of all rows, before and after recalibration.
    thresholds: of the decision curve.  net_benefit: of the recalibrated model.  everyone: of calling all.
    cuts: what happens at some thresholds.  subgroups: by column.
    """

    rows: int = 0
    events: int = 0
    auroc: Interval = Interval()
    per_center: dict[str, AtCenter] = field(default_factory=dict)
    curve: tuple[tuple[float, float], ...] = ()
    curve_after: tuple[tuple[float, float], ...] = ()
    thresholds: tuple[float, ...] = ()
    net_benefit: tuple[float, ...] = ()
    everyone: tuple[float, ...] = ()
    cuts: tuple[Cut, ...] = ()
    subgroups: dict[str, tuple[Subgroup, ...]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class RowProbabilities:
    """Probabilities of test rows, center by center: as the run gives them, and recalibrated.

    labels: what happened.  place: where every row stands in its federation, where that is known.
    mends: the recalibration of every center.  cuts: thresholds by how they were chosen.
    """

    before: Segments
    after: Segments
    labels: Segments
    place: NDArray[np.int64] | None
    mends: tuple[Recalibration, ...]
    cuts: Mapping[str, float]


def mends_of(logits: Segments, labels: Segments) -> tuple[Recalibration, ...]:
    """The recalibration of every center, from its validation rows."""
    return tuple(
        recalibration(expit(logits[i].astype(np.float64)), labels[i].astype(np.float64))
        for i in range(len(labels))
    )


def mended(logits: Segments, mends: Sequence[Recalibration]) -> Segments:
    """Probabilities after every center's recalibration."""
    parts = [mend.apply(expit(logits[i].astype(np.float64))) for i, mend in enumerate(mends)]
    return Segments(np.concatenate(parts) if parts else np.zeros(0), logits.start)


def chosen_cuts(probability: Floats, y: NDArray[np.floating]) -> dict[str, float]:
    """Thresholds by what they promise, from the validation rows of all centers."""
    found = {
        f"sensitivity {SENSITIVITY:.0%}": sensitive_threshold(probability, y.astype(np.float64), SENSITIVITY),
        "event rate": float(np.mean(y)) if len(y) else math.nan,
    }
    return {name: value for name, value in found.items() if math.isfinite(value)}


def row_probabilities(
    logits: Segments,
    labels: Segments,
    judged: Segments,
    judged_labels: Segments,
    place: NDArray[np.int64] | None,
) -> RowProbabilities:
    """Test rows as a clinician would see them.  judged: logits of the validation rows."""
    mends = mends_of(judged, judged_labels)
    cuts = chosen_cuts(mended(judged, mends).values.astype(np.float64), judged_labels.values)
    before = Segments(expit(logits.values.astype(np.float64)), logits.start)
    return RowProbabilities(before, mended(logits, mends), labels, place, mends, cuts)


def clinical(
    centers: Sequence[str], seen: RowProbabilities, parts: Mapping[str, Sequence[str | None]] | None = None
) -> Clinical:
    """What clinicians ask of test rows.  parts: by column, the part that every row of a federation is of."""
    y = seen.labels.values.astype(np.float64)
    after = seen.after.values.astype(np.float64)
    whole = area(after, y)
    curve = decision_curve(after, y) if len(y) else None
    cuts = dict(seen.cuts) | {f"{value:.0%}": value for value in FIXED}
    groups: dict[str, tuple[Subgroup, ...]] = {}
    if parts and seen.place is not None:
        groups = {
            column: _subgroups(after, y, [names[k] for k in seen.place.tolist()])
            for column, names in parts.items()
        }
    return Clinical(
        len(y),
        int(y.sum()),
        _interval(whole) if whole.enough else Interval(),
        {name: _center(seen, i) for i, name in enumerate(centers)},
        _points(smooth_curve(seen.before.values.astype(np.float64), y, MORE_POINTS)),
        _points(smooth_curve(after, y, MORE_POINTS)),
        () if curve is None else tuple(curve.thresholds.tolist()),
        () if curve is None else tuple(_short(v) for v in curve.model.tolist()),
        () if curve is None else tuple(_short(v) for v in curve.everyone.tolist()),
        tuple(_cut(name, at_threshold(after, y, value)) for name, value in cuts.items()) if len(y) else (),
        groups,
    )


def _center(seen: RowProbabilities, i: int) -> AtCenter:
    before, after = (part[i].astype(np.float64) for part in (seen.before, seen.after))
    y, mend = seen.labels[i].astype(np.float64), seen.mends[i]
    found = calibration(before, y)
    return AtCenter(
        _level(found),
        _level(found if mend.kind == "none" else calibration(after, y)),
        mend.kind,
        _short(mend.intercept),
        _short(mend.slope),
        _points(smooth_curve(before, y, POINTS)),
    )


def _subgroups(probability: Floats, y: Floats, names: Sequence[str | None]) -> tuple[Subgroup, ...]:
    found = []
    for part in subgroups(probability, y, names):
        a = part.area
        if a is None:
            found.append(Subgroup(part.name, hidden=part.hidden or ""))
        elif part.calibration is None or part.rows is None:  # three digits: counts do not follow from it
            rounded = Interval(*(round(value, 3) for value in (a.value, a.low, a.high)))
            found.append(Subgroup(part.name, auroc=rounded, hidden=part.hidden or ""))
        else:
            ratio = _short(part.calibration.ratio)
            found.append(Subgroup(part.name, part.rows, a.events, _interval(a), ratio))
    return tuple(found)


def _level(found: Calibration) -> Level:
    return Level(_short(found.expected), _interval(found.in_the_large), _interval(found.slope))


def _cut(name: str, at: AtThreshold) -> Cut:
    called, positive, negative = map(_interval, (at.called, at.positive_value, at.negative_value))
    sensitivity, specificity = _interval(at.sensitivity), _interval(at.specificity)
    benefit = _short(at.net_benefit)
    return Cut(name, _short(at.threshold), called, sensitivity, specificity, positive, negative, benefit)


def _points(curve: CalibrationCurve | None) -> tuple[tuple[float, float], ...]:
    if curve is None:
        return ()
    return tuple((_short(a), _short(b)) for a, b in zip(curve.at.tolist(), curve.observed.tolist()))


def _interval(found: Area | Estimate | Share | None) -> Interval:
    if found is None:
        return Interval()
    return Interval(_short(found.value), _short(found.low), _short(found.high))


def _short(value: float) -> float:
    """Five digits: more are noise, and would make a result of many centers large."""
    return float(f"{value:.5g}")
