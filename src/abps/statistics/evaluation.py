"""Evaluation of models at every hospital: discrimination, calibration and benefit, and how far they vary.

A model is a column of probabilities, a fitted folder, an ONNX file, or coefficients. A hospital reports
figures only above the minimum cell of events and non-events; the summary over hospitals is a random-effects
one. Hospitals that took no part in a model's making can be compared with what the others predict for a
further one.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import expit, logit

from abps import files
from abps.core.errors import RequestError
from abps.evaluate.calibration import calibration
from abps.evaluate.performance import area, at_threshold
from abps.statistics.families import LIKELIHOODS, Floats, HospitalRows
from abps.statistics.heterogeneity import EffectHeterogeneity, dersimonian_laird, random_effects, summarise
from abps.statistics.newton import LEAST_AVERAGED, SumProgram, program, split_total

#: Half the width of a 95 % interval in standard errors; and the most levels of a column of subgroups.
NORMAL: Final = 1.959963984540054
MOST_LEVELS: Final = 12

#: Whom figures are of where they are of no subgroup.
ALL: Final = "all"


@dataclass(frozen=True)
class AtHospital:
    """One model at one hospital; nothing but its name where it has too few events or non-events.  auroc_se:
    by DeLong.  intercept, slope: of calibration.  benefit: net benefit at each threshold.  subgroup:
    column=level, or all."""

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
    subgroup: str = ALL


@dataclass(frozen=True)
class HospitalEvaluation:
    """Every model at every hospital, and by model and subgroup the random-effects summary of log-odds of
    AUROC over hospitals that are not ``outside``."""

    results: tuple[AtHospital, ...]
    summaries: Mapping[tuple[str, str], EffectHeterogeneity | None]
    thresholds: tuple[float, ...]
    min_cell: int
    outside: tuple[str, ...] = ()

    def frame(self) -> pl.DataFrame:
        """One row per model, subgroup and hospital; null where suppressed."""
        benefit = [f"net benefit at {t:g}" for t in self.thresholds]
        rows = [
            {
                **{k: v for k, v in vars(one).items() if k != "benefit"},
                **dict(zip(benefit, one.benefit or [None] * len(benefit))),
                "took_part": one.hospital not in self.outside,
            }
            for one in self.results
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    def matrix(self) -> pl.DataFrame:
        """AUROC of every model (rows) at every hospital (columns), all patients; null where suppressed."""
        found = self.frame().filter(pl.col("subgroup") == ALL)
        return found.pivot("hospital", index="model", values="auroc")

    def summary(self, model: str, subgroup: str = ALL) -> dict[str, float] | None:
        """AUROC of the average hospital with its 95 % interval, and where that of a further one would lie."""
        found = self.summaries[model, subgroup]
        return None if found is None else _on_auroc_scale(found)

    def transport(self, model: str) -> list[str]:
        """A sentence for every hospital that took no part: its AUROC beside what the others predict."""
        said, expected = [], self.summary(model)
        for one in self.results:
            if one.model != model or one.subgroup != ALL or one.hospital not in self.outside:
                continue
            words = "too few events, or too few other hospitals, to say"
            if one.auroc is not None and expected is not None and np.isfinite(expected["next_low"]):
                low, high = expected["next_low"], expected["next_high"]
                where = "inside" if low <= one.auroc <= high else "outside"
                others = f"{low:.3f} to {high:.3f} that the others predict for a further hospital"
                words = f"AUROC {one.auroc:.3f}, {where} the {others}"
            said.append(f"{model} at {one.hospital}: {words}")
        return said

    def to_json(self) -> dict[str, Any]:
        summaries = [
            {"model": model, "subgroup": subgroup, **(self.summary(model, subgroup) or {})}
            for model, subgroup in self.summaries
        ]
        body = {"schema": "abps.evaluation/1", "min_cell": self.min_cell, "outside": list(self.outside)}
        return dict(files.finite({**body, "summaries": summaries, "results": self.frame().to_dicts()}))


def _on_auroc_scale(found: EffectHeterogeneity) -> dict[str, float]:
    names = ("mean", "low", "high", "next_low", "next_high")
    back = {name: float(expit(getattr(found, name))) for name in names}
    return {**back, "tau2": found.tau2, "i2": found.i2, "hospitals": float(found.hospitals)}


def evaluate_models(
    probabilities: Mapping[str, Floats],
    y: Floats,
    hospital: Sequence[str],
    thresholds: Sequence[float] = (0.1, 0.2),
    min_cell: int = 10,
    subgroups: Mapping[str, Sequence[str]] | None = None,
    outside: Collection[str] = (),
) -> HospitalEvaluation:
    """Models by name, each with the (rows,) probabilities that it gives, against outcomes of 0 and 1.
    subgroups: columns by name, (rows,) text.  outside: hospitals that took no part in making the models."""
    outcome, names = np.asarray(y, dtype=np.float64), np.asarray(hospital, dtype=object)
    if not np.isin(outcome, (0.0, 1.0)).all():
        raise RequestError("the outcome has values other than 0 and 1; write the event as 1")
    places = sorted(set(names.tolist()), key=str)
    unknown = [name for name in outside if name not in places]
    if unknown:
        raise RequestError(f"{unknown[0]!r} is no hospital of the table; it has {', '.join(places[:8])}")
    results, summaries = [], {}
    masks = {ALL: np.ones(len(outcome), dtype=bool), **_masks(subgroups or {})}
    for model, p in probabilities.items():
        p = np.asarray(p, dtype=np.float64)
        if len(p) != len(outcome) or not ((p >= 0) & (p <= 1)).all():
            raise RequestError(f"{model!r}: give one probability between 0 and 1 for every row")
        for subgroup, mask in masks.items():
            at = {str(place): mask & (names == place) for place in places}
            own = [
                _at(model, place, p[here], outcome[here], thresholds, min_cell, subgroup)
                for place, here in at.items()
            ]
            results += own
            summaries[model, subgroup] = _summary([one for one in own if one.hospital not in outside])
    return HospitalEvaluation(tuple(results), summaries, tuple(thresholds), min_cell, tuple(sorted(outside)))


def _masks(subgroups: Mapping[str, Sequence[str]]) -> dict[str, NDArray[np.bool_]]:
    found: dict[str, NDArray[np.bool_]] = {}
    for column, values in subgroups.items():
        text = np.asarray(values, dtype=object)
        levels = sorted({value for value in text if value is not None})
        if len(levels) > MOST_LEVELS:
            raise RequestError(f"{column!r} has {len(levels)} levels; choose one with at most {MOST_LEVELS}")
        found |= {f"{column}={level}": np.asarray(text == level, dtype=bool) for level in levels}
    return found


def _at(
    model: str,
    hospital: str,
    p: Floats,
    y: Floats,
    thresholds: Sequence[float],
    min_cell: int,
    subgroup: str,
) -> AtHospital:
    events = int(y.sum())
    if min(events, len(y) - events) < max(min_cell, 1):
        return AtHospital(model, hospital, subgroup=subgroup)
    found, fit = area(p, y), calibration(p, y)
    # The interval is made on the log odds: its half width gives the standard error there.
    se = None
    if 0.0 < found.value < 1.0:
        half = (logit(found.high) - logit(found.low)) / 2.0
        se = float(half / NORMAL * found.value * (1.0 - found.value))
    intercept, slope = (e.value if e.known else None for e in (fit.in_the_large, fit.slope))
    benefit = tuple(at_threshold(p, y, t).net_benefit for t in thresholds)
    brier = float(np.mean((p - y) ** 2))
    return AtHospital(
        model, hospital, len(y), events, found.value, se, brier, intercept, slope, benefit, subgroup
    )


def _summary(own: Sequence[AtHospital]) -> EffectHeterogeneity | None:
    """Of the log odds of AUROC."""
    known = np.array([(r.auroc, r.auroc_se) for r in own if r.auroc is not None and r.auroc_se])
    if len(known) < 2:
        return None
    a, se = known.T
    return summarise(logit(a), (se / (a * (1.0 - a))) ** 2)


# Between sites --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvaluationTotals:
    """A model at all hospitals together, from totals.  auroc: random-effects summary of its log odds at
    hospitals with enough events and non-events; None where they are too few to average without showing one.
    intercept, slope: of calibration, with standard errors."""

    model: str
    hospitals: int
    rows: int
    events: int
    auroc: EffectHeterogeneity | None
    brier: float
    observed_expected: float
    intercept: tuple[float, float]
    slope: tuple[float, float]
    benefit: Mapping[float, float]
    notes: tuple[str, ...] = ()

    def write(self, out: Path) -> list[Path]:
        body: dict[str, Any] = {"schema": "abps.evaluation-totals/1", **asdict(self)}
        if self.auroc is not None:
            body["auroc"] = _on_auroc_scale(self.auroc)
        body["benefit"] = {f"{at:g}": value for at, value in self.benefit.items()}
        files.write_json(out / "evaluation.json", body)
        return [out / "evaluation.json"]


def evaluation_program(
    p: Floats, y: Floats, thresholds: Sequence[float], min_cell: int, model: str
) -> SumProgram[EvaluationTotals]:
    """What one hospital does for the evaluation of a model at all, from its (rows,) probabilities and
    outcomes: two totals, and those of the calibration. With too few events or non-events it adds nothing."""
    own = _at(model, "", p, y, (), min_cell, ALL)
    if own.rows is None:  # too few events or non-events: nothing of this hospital is in any total
        p, y = p[:0], y[:0]
    weight = away = 0.0
    if own.auroc is not None and own.auroc_se:
        weight = (own.auroc * (1.0 - own.auroc) / own.auroc_se) ** 2
        away = float(logit(own.auroc))
    flagged = [((p >= t) & (y == kind)).sum() for t in thresholds for kind in (1, 0)]
    sums = [own.rows is not None, len(y), y.sum(), p.sum(), ((p - y) ** 2).sum(), *flagged]
    moments = [float(weight > 0), weight, weight * away, weight * away**2, weight**2]
    total = yield from split_total(np.array([*sums, *moments], dtype=np.float64))
    hospitals, rows, events, expected, squares = total[:5]
    if min(events, rows - events) < max(min_cell, 1):
        raise RequestError(f"fewer than {min_cell} events or non-events in all hospitals together")
    count, w, wa, waa, w2 = total[-5:]
    found, q = None, waa - wa**2 / max(w, 1e-300)
    tau2 = dersimonian_laird(count, w, w2, q)
    if count >= LEAST_AVERAGED:
        weight = weight / (1.0 + tau2 * weight)
        summed = yield from split_total(np.array([weight, weight * away, weight * away**2]))
        found = random_effects(round(count), (w, w2, q), tau2, tuple(summed))
    log_odds = logit(np.clip(p, 1e-12, 1.0 - 1e-12))
    table = HospitalRows(log_odds[:, None], y, np.zeros(len(y)))
    line = yield from program(table, ["log odds"], LIKELIHOODS["logistic"], min_cell=min_cell)
    intercept, slope = zip(line.beta.tolist(), np.sqrt(np.diag(line.covariance)).tolist())
    right, wrong = total[5:-5].reshape(-1, 2).T
    odds = np.array(thresholds) / (1.0 - np.array(thresholds))
    benefit = dict(zip(thresholds, ((right - odds * wrong) / rows).tolist()))
    return EvaluationTotals(
        model, round(hospitals), round(rows), round(events), found, float(squares / rows),
        float(events / expected), intercept, slope, benefit,
    )  # fmt: skip


# Where probabilities come from -----------------------------------------------------------------------


def formula_probabilities(frame: pl.DataFrame, coefficients: Mapping[str, float]) -> Floats:
    """(rows,) probabilities of a logistic formula: ``{"intercept": -3.2, "age": 0.04, "sex[male]": 0.3}``."""
    total = np.full(frame.height, float(coefficients.get("intercept", 0.0)))
    for name, value in coefficients.items():
        column, bracket, level = name.partition("[")
        if name == "intercept":
            continue
        if column not in frame.columns:
            raise RequestError(f"the formula names {column!r}, which the table has not")
        known = _no_gaps(frame[column].cast(pl.String if bracket else pl.Float64))
        total += value * (known == level.rstrip("]") if bracket else known).cast(pl.Float64).to_numpy()
    return np.asarray(expit(total))


def _no_gaps(column: pl.Series) -> pl.Series:
    if column.null_count():
        raise RequestError(f"{column.name!r} has gaps; fill them or leave those rows out")
    return column


def onnx_probabilities(frame: pl.DataFrame, path: Path) -> Floats:
    """(rows,) probabilities of an ONNX file: one that ``abps fit`` wrote, or one with an input per column."""
    try:
        import onnxruntime
    except ImportError as error:
        raise RequestError(f"{path}: ONNX needs the package onnxruntime; install abps[onnx]") from error
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    named = json.loads(session.get_modelmeta().custom_metadata_map.get("inputs", "{}"))
    wanted = named["numbers"] if named else [one.name for one in session.get_inputs()]
    lacking = [name for name in wanted if name not in frame.columns]
    if lacking:
        raise RequestError(f"{path} needs a column {lacking[0]!r}, which the table has not")
    if named:
        numbers = frame.select(pl.col(named["numbers"]).cast(pl.Float64)).fill_null(np.nan).to_numpy()
        levels = [
            (frame[column].cast(pl.String).fill_null("") == level).to_numpy().astype(np.float64)
            for column, level in named["levels"]
        ]
        empty = np.zeros((frame.height, 0))
        feed = {"numbers": numbers, "levels": np.column_stack(levels) if levels else empty}
    else:
        kinds = {"tensor(string)": pl.String, "tensor(double)": pl.Float64, "tensor(int64)": pl.Int64}
        feed = {
            one.name: _no_gaps(frame[one.name].cast(kinds.get(one.type, pl.Float32))).to_numpy()[:, None]
            for one in session.get_inputs()
        }
    found = np.asarray(session.run(None, feed)[-1], dtype=np.float64)
    return found if found.ndim == 1 else found[:, -1]
