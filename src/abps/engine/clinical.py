"""What clinicians ask of a run: calibration at every hospital, what acting on it brings, parts of the cohort.

Everything is measured on test rows; recalibration comes from validation rows. Only sums and curves are kept,
never a row; a part of the cohort with few rows or events is hidden.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from abps.evaluate.calibration import (
    UNKNOWN,
    Calibration,
    Interval,
    Recalibration,
    calibration,
    expit,
    recalibration,
    smooth_curve,
)
from abps.evaluate.performance import Subgroup, decision_curve, subgroups
from abps.models.metrics import Segments

Floats = NDArray[np.float64]

#: Points of a hospital's calibration curve.
POINTS = 12


@dataclass(frozen=True)
class Level:
    """Calibration.  expected: the sum of the probabilities.  in_the_large: 0 is right.  slope: 1 is right."""

    expected: float = math.nan
    in_the_large: Interval = UNKNOWN
    slope: Interval = UNKNOWN


@dataclass(frozen=True)
class AtCenter:
    """Calibration of one center on its test rows: as the run gives it, and after its recalibration (none,
    intercept, or intercept and slope; by fold where folds differ): shift + factor x log odds.  curve:
    (predicted probability, share of events) before; nothing below twenty events."""

    before: Level = Level()
    after: Level = Level()
    recalibration: str = "none"
    shift: float = 0.0
    factor: float = 1.0
    curve: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Clinical:
    """thresholds: of the decision curve.  net_benefit: of the recalibrated model.  everyone: calling all."""

    per_center: dict[str, AtCenter] = field(default_factory=dict)
    thresholds: tuple[float, ...] = ()
    net_benefit: tuple[float, ...] = ()
    everyone: tuple[float, ...] = ()
    subgroups: dict[str, tuple[Subgroup, ...]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class RowProbabilities:
    """Probabilities of test rows, center by center: as the run gives them, and recalibrated (mends).  place:
    where every row stands in its federation, where that is known."""

    before: Segments
    after: Segments
    labels: Segments
    place: NDArray[np.int64] | None
    mends: tuple[Recalibration, ...]


def mends_of(logits: Segments, labels: Segments) -> tuple[Recalibration, ...]:
    """The recalibration of every center, from its validation rows."""
    rows = ((logits[i].astype(np.float64), labels[i].astype(np.float64)) for i in range(len(labels)))
    return tuple(recalibration(expit(z), y) for z, y in rows)


def mended(logits: Segments, mends: Sequence[Recalibration]) -> Segments:
    parts = [mend.apply(expit(logits[i].astype(np.float64))) for i, mend in enumerate(mends)]
    return Segments(np.concatenate(parts) if parts else np.zeros(0), logits.start)


def row_probabilities(
    logits: Segments,
    labels: Segments,
    judged: Segments,
    judged_labels: Segments,
    place: NDArray[np.int64] | None,
) -> RowProbabilities:
    """Test rows as a clinician would see them.  judged: logits of the validation rows."""
    mends = mends_of(judged, judged_labels)
    before = Segments(expit(logits.values.astype(np.float64)), logits.start)
    return RowProbabilities(before, mended(logits, mends), labels, place, mends)


def clinical(
    centers: Sequence[str], seen: RowProbabilities, parts: Mapping[str, Sequence[str | None]] | None = None
) -> Clinical:
    """What clinicians ask of test rows.  parts: by column, the part that every row of a federation is of."""
    y = seen.labels.values.astype(np.float64)
    after = seen.after.values.astype(np.float64)
    groups: dict[str, tuple[Subgroup, ...]] = {}
    if parts and seen.place is not None:
        groups = {
            column: tuple(
                replace(part, auroc=_interval(part.auroc), ratio=_short(part.ratio))
                for part in subgroups(after, y, [names[k] for k in seen.place.tolist()])
            )
            for column, names in parts.items()
        }
    found = Clinical({name: _center(seen, i) for i, name in enumerate(centers)}, subgroups=groups)
    if not len(y):
        return found
    curve = decision_curve(after, y)
    model, everyone = (tuple(map(_short, each.tolist())) for each in (curve.model, curve.everyone))
    return replace(found, thresholds=tuple(curve.thresholds.tolist()), net_benefit=model, everyone=everyone)


def _center(seen: RowProbabilities, i: int) -> AtCenter:
    before, after = (part[i].astype(np.float64) for part in (seen.before, seen.after))
    y, mend = seen.labels[i].astype(np.float64), seen.mends[i]
    found, curve = calibration(before, y), smooth_curve(before, y, POINTS)
    points = [] if curve is None else zip(curve.at.tolist(), curve.observed.tolist())
    return AtCenter(
        _level(found),
        _level(found if mend.kind == "none" else calibration(after, y)),
        mend.kind,
        _short(mend.intercept),
        _short(mend.slope),
        tuple((_short(a), _short(b)) for a, b in points),
    )


def _level(found: Calibration) -> Level:
    return Level(_short(found.expected), _interval(found.in_the_large), _interval(found.slope))


def _interval(found: Interval) -> Interval:
    return Interval(_short(found.value), _short(found.low), _short(found.high))


def _short(value: float) -> float:
    """Five digits: more are noise, and would make a result of many centers large."""
    return float(f"{value:.5g}")
