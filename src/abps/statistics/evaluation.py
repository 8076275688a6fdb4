"""Evaluation of models at every hospital: discrimination, calibration and benefit, and how far they vary.

A model is a column of probabilities, a fitted folder, or coefficients. A hospital reports its figures only
above the minimum cell of events and non-events; the summary over hospitals is a random-effects one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import expit, logit

from abps.core.errors import RequestError
from abps.evaluate.calibration import calibration
from abps.evaluate.net_benefit import at_threshold
from abps.evaluate.roc import area
from abps.statistics.heterogeneity import EffectHeterogeneity, summarise

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class AtHospital:
    """One model at one hospital; nothing but its name where it has too few events or non-events.

    auroc_se: by DeLong.  intercept, slope: of calibration.  benefit: net benefit at each threshold.
    """

    model: str
    hospital: str
    rows: int | None = None
    events: int | None = None
    auroc: float | None = None
    auroc_se: float | None = None
    brier: float | None = None
    intercept: float | None = None
    slope: float | None = None
    benefit: tuple[float, ...] = ()


@dataclass(frozen=True)
class HospitalEvaluation:
    """Every model at every hospital, and by model the random-effects summary of log-odds of AUROC."""

    results: tuple[AtHospital, ...]
    summaries: Mapping[str, EffectHeterogeneity | None]
    thresholds: tuple[float, ...]
    min_cell: int

    def frame(self) -> pl.DataFrame:
        """One row per model and hospital; null where suppressed."""
        rows = [
            {
                **{k: v for k, v in vars(one).items() if k != "benefit"},
                **{
                    f"net benefit at {t:g}": (one.benefit[k] if one.benefit else None)
                    for k, t in enumerate(self.thresholds)
                },
            }
            for one in self.results
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    def summary(self, model: str) -> dict[str, float] | None:
        """AUROC of the average hospital with its 95 % interval, and where that of a further one would lie."""
        found = self.summaries[model]
        if found is None:
            return None
        names = ("mean", "low", "high", "next_low", "next_high")
        back = {name: float(expit(getattr(found, name))) for name in names}
        return {**back, "tau2": found.tau2, "i2": found.i2, "hospitals": float(found.hospitals)}


def evaluate_models(
    probabilities: Mapping[str, Floats],
    y: Floats,
    hospital: Sequence[str],
    thresholds: Sequence[float] = (0.1, 0.2),
    min_cell: int = 10,
) -> HospitalEvaluation:
    """Models by name, each with the (rows,) probabilities that it gives, against outcomes of 0 and 1."""
    outcome, names = np.asarray(y, dtype=np.float64), np.asarray(hospital, dtype=object)
    if not np.isin(outcome, (0.0, 1.0)).all():
        raise RequestError("the outcome has values other than 0 and 1; write the event as 1")
    results, summaries = [], {}
    for model, p in probabilities.items():
        p = np.asarray(p, dtype=np.float64)
        if len(p) != len(outcome) or not ((p >= 0) & (p <= 1)).all():
            raise RequestError(f"{model!r}: give one probability between 0 and 1 for every row")
        own = [
            _at(model, str(name), p[names == name], outcome[names == name], thresholds, min_cell)
            for name in sorted(set(names.tolist()), key=str)
        ]
        results += own
        summaries[model] = _summary(own)
    return HospitalEvaluation(tuple(results), summaries, tuple(thresholds), min_cell)


def _at(
    model: str, hospital: str, p: Floats, y: Floats, thresholds: Sequence[float], min_cell: int
) -> AtHospital:
    events = int(y.sum())
    if min(events, len(y) - events) < min_cell:
        return AtHospital(model, hospital)
    found, fit = area(p, y), calibration(p, y)
    # The interval is made on the log odds: its half width gives the standard error there.
    se = None
    if 0.0 < found.value < 1.0:
        half = (logit(found.high) - logit(found.low)) / 2.0
        se = float(half / 1.959963984540054 * found.value * (1.0 - found.value))
    return AtHospital(
        model,
        hospital,
        len(y),
        events,
        found.value,
        se,
        float(np.mean((p - y) ** 2)),
        None if fit.in_the_large is None else fit.in_the_large.value,
        None if fit.slope is None else fit.slope.value,
        tuple(at_threshold(p, y, t).net_benefit for t in thresholds),
    )


def _summary(own: Sequence[AtHospital]) -> EffectHeterogeneity | None:
    good = [one for one in own if one.auroc is not None and one.auroc_se]
    if len(good) < 2:
        return None
    a = np.array([one.auroc for one in good], dtype=np.float64)
    se = np.array([one.auroc_se for one in good], dtype=np.float64) / (a * (1.0 - a))
    return summarise(logit(a), se**2)


def formula_probabilities(frame: pl.DataFrame, coefficients: Mapping[str, float]) -> Floats:
    """(rows,) probabilities of a logistic formula: ``{"intercept": -3.2, "age": 0.04, "sex[male]": 0.3}``."""
    total = np.full(frame.height, float(coefficients.get("intercept", 0.0)))
    for name, value in coefficients.items():
        if name == "intercept":
            continue
        column, bracket, level = name.partition("[")
        if column not in frame.columns:
            raise RequestError(f"the formula names {column!r}, which the table has not")
        if bracket:
            total += value * (frame[column].cast(pl.String) == level.rstrip("]")).to_numpy().astype(float)
        else:
            numbers = frame[column].cast(pl.Float64)
            if numbers.null_count():
                raise RequestError(f"{column!r} has gaps; fill them or leave those rows out")
            total += value * numbers.to_numpy()
    return np.asarray(expit(total))
