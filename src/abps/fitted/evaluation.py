"""How good a model is on rows that it has not seen, in the terms that clinicians and reviewers ask for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.data.federation import Federation
from abps.stats.calibration import Calibration, Curve, calibration, smooth_curve
from abps.stats.net_benefit import AtThreshold, DecisionCurve, at_threshold, decision_curve
from abps.stats.roc import Area, area
from abps.stats.subgroups import age_groups, frequent, thirds

Floats = NDArray[np.float64]

_AGE = re.compile(r"(^|[\W_])age([\W_]|$)", re.IGNORECASE)
_SEX = re.compile(r"(^|[\W_])(sex|gender)([\W_]|$)|^(female|male|is_male|is_female)$", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """rows, events; the area under the ROC curve; calibration; what acting at thresholds would bring."""

    rows: int
    events: int
    area: Area
    brier: float
    calibration: Calibration
    curve: Curve | None
    decisions: DecisionCurve | None
    thresholds: Mapping[str, AtThreshold]


def evaluate(probability: Floats, y: Floats, thresholds: Mapping[str, float]) -> Evaluation:
    """Everything about (rows,) probabilities of (rows,) labels."""
    y = np.asarray(y, dtype=np.float64)
    return Evaluation(
        rows=len(y),
        events=int(y.sum()),
        area=area(probability, y),
        brier=float(np.mean((probability - y) ** 2)) if len(y) else float("nan"),
        calibration=calibration(probability, y),
        curve=smooth_curve(probability, y),
        decisions=decision_curve(probability, y) if len(y) else None,
        thresholds={name: at_threshold(probability, y, value) for name, value in thresholds.items()},
    )


def groups_of(federation: Federation, columns: Sequence[str]) -> dict[str, list[str | None]]:
    """By column, the part of the cohort that every row belongs to: sex, age groups, and what is asked for."""
    found = [c for c in federation.features.columns if _SEX.search(c) or _AGE.search(c)]
    return {name: part_names(federation.features[name]) for name in dict.fromkeys([*found, *columns])}


def part_names(column: pl.Series) -> list[str | None]:
    """(rows,) the part of the cohort by one column: its level, its age group, or a third of its numbers."""
    if column.dtype == pl.String:
        return frequent(column.to_list())
    values = column.cast(pl.Float64).to_numpy()
    known = values[np.isfinite(values)]
    if len(np.unique(known)) <= 5:
        return [None if not np.isfinite(v) else f"{v:g}" for v in values.tolist()]
    return age_groups(values) if _AGE.search(column.name) else thirds(values)
