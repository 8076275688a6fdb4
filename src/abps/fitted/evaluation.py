"""How good models are on rows that they have not seen, in the terms that clinicians and reviewers ask for.

Every patient is scored once by a model that was trained without them (cross-fitting), and by the best model
of each hospital alone, so that a card can say what working together is worth there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.data.federation import Federation
from abps.data.prepare import Rows
from abps.engine.result import Run
from abps.evaluate.calibration import (
    Calibration,
    CalibrationCurve,
    Interval,
    Recalibration,
    calibration,
    expit,
    recalibration,
    smooth_curve,
)
from abps.evaluate.hospitals import hospital_gains
from abps.evaluate.inference import average_gain, fold_inflation
from abps.evaluate.measured import measured
from abps.evaluate.performance import (
    Area,
    AtThreshold,
    DecisionCurve,
    Subgroup,
    area,
    at_threshold,
    decision_curve,
    sensitive_threshold,
    subgroups,
)
from abps.evaluate.verdicts import HospitalEvidence, hospital_evidence
from abps.models.metrics import Segments, main_score, measures

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ModelEvaluation:
    """measures: for an outcome that is not binary, its scores by name, the main one first; it has nothing of
    the rest."""

    rows: int = 0
    events: int = 0
    area: Area = field(default_factory=Area)
    brier: float = math.nan
    calibration: Calibration = field(default_factory=Calibration)
    curve: CalibrationCurve | None = None
    decisions: DecisionCurve | None = None
    thresholds: Mapping[str, AtThreshold] = field(default_factory=dict)
    measures: Mapping[str, Interval] = field(default_factory=dict)


#: Draws of test rows for an interval, and the fewest informative rows to give one for.
DRAWS = 200
FEWEST = 5

#: The sensitivity that a threshold is chosen for.
SENSITIVITY = 0.9


def chosen_thresholds(probability: Floats, y: NDArray[np.floating]) -> dict[str, float]:
    found = {
        f"sensitivity {SENSITIVITY:.0%}": sensitive_threshold(probability, y.astype(np.float64), SENSITIVITY),
        "event rate": float(np.mean(y)) if len(y) else math.nan,
    }
    return {name: value for name, value in found.items() if math.isfinite(value)}


@dataclass(frozen=True, eq=False)
class HeldOutRows:
    """Predictions of rows by models that had not seen them, sorted by center.

    answers: (rows,) recalibrated probabilities of a binary outcome, else (rows, outputs) of the models.
    rows: their outcomes.  place: where each stands in the federation.  fold: whose model scored it.
    mends, thresholds: every center's, for models trained on all rows.  chosen: (rows,) the thresholds that
    each row is judged by; they come from other rows.
    """

    answers: Segments
    rows: Rows
    place: NDArray[np.int64]
    fold: NDArray[np.int64]
    mends: tuple[Recalibration, ...] = ()
    thresholds: Mapping[str, float] = field(default_factory=dict)
    chosen: Mapping[str, Floats] = field(default_factory=dict)

    @staticmethod
    def of(run: Run, federation: Federation) -> HeldOutRows:
        """The out-of-fold predictions of a cross-validated run; rows of a fold are recalibrated, and judged
        by thresholds, as the rows of the other folds say."""
        frame, answers = run.row_scores, run.artifacts.answers
        if frame is None or answers is None:
            raise RequestError("this run keeps no predictions of its rows; run it again")
        frame = frame.sort("center", maintain_order=True)
        outcome = federation.outcome.settled(federation.label)
        y = frame["y"].to_numpy().astype(np.float32)
        rows = Rows(np.empty((len(y), 0), np.float32), y, answers.start, outcome=outcome)
        place, fold = (frame[name].to_numpy().astype(np.int64) for name in ("row", "fold"))
        if not outcome.binary:
            return HeldOutRows(answers, rows, place, fold)
        before, labels = expit(answers.values.astype(np.float64)), y.astype(np.float64)
        after, mends = before.copy(), []
        for low, high in zip(answers.start[:-1].tolist(), answers.start[1:].tolist()):
            p, mine, own = before[low:high], labels[low:high], fold[low:high]
            mends.append(recalibration(p, mine))
            for k in np.unique(own):
                after[low:high][own == k] = recalibration(p[own != k], mine[own != k]).apply(p[own == k])
        thresholds = chosen_thresholds(after, y)
        chosen = {name: np.full(len(y), value) for name, value in thresholds.items()}
        for k in np.unique(fold):
            for name, value in chosen_thresholds(after[fold != k], y[fold != k]).items():
                chosen[name][fold == k] = value
        probability = Segments(after, answers.start)
        return HeldOutRows(probability, rows, place, fold, tuple(mends), thresholds, chosen)

    def evaluation(self, i: int | None = None) -> ModelEvaluation:
        start = self.rows.start
        part = slice(None) if i is None else slice(int(start[i]), int(start[i + 1]))
        answers = self.answers.values[part].astype(np.float64)
        if not self.rows.outcome.binary:
            return self._other(answers[:, 0] if answers.shape[1:] == (1,) else answers, self.rows.y[part])
        y = self.rows.y[part].astype(np.float64)
        return ModelEvaluation(
            rows=len(y),
            events=int(y.sum()),
            area=area(answers, y, fold=self.fold[part]),  # pairs of rows of one model
            brier=float(np.mean((answers - y) ** 2)) if len(y) else math.nan,
            calibration=calibration(answers, y),
            curve=smooth_curve(answers, y),
            decisions=decision_curve(answers, y) if len(y) else None,
            thresholds={
                name: replace(at_threshold(answers - each[part], y, 0.0), threshold=float(each[part].mean()))
                for name, each in self.chosen.items()
            },
        )

    def _other(self, answers: Floats, y: NDArray[np.float32]) -> ModelEvaluation:
        """The scores of another outcome: (rows,) or (rows, outputs) answers and (rows,) what happened;
        weights for censoring come from all rows."""
        outcome, start = self.rows.outcome, np.array([0, len(y)])
        if not len(y):
            return ModelEvaluation(measures={outcome.measure: Interval()})
        whole = Rows(np.empty((len(y), 0), np.float32), y, start, outcome=outcome)
        found = measures(Segments(answers, start), whole, self.rows)
        values = {name: Interval(float(value[0])) for name, value in found.items()}
        if outcome.informative(y) >= FEWEST:
            draws, rng = [], np.random.default_rng(0)
            for _ in range(DRAWS):
                some = rng.integers(0, len(y), len(y))
                again = Segments(y[some], start, outcome)
                draws.append(float(main_score(Segments(answers[some], start), again)[0]))
            if np.isfinite(draws).any():
                low, high = np.nanquantile(draws, [0.025, 0.975]).tolist()
                values[outcome.measure] = replace(values[outcome.measure], low=low, high=high)
        return ModelEvaluation(len(y), int(outcome.events(y).sum()), measures=values)

    def subgroups(self, names: Mapping[str, Sequence[str | None]]) -> dict[str, list[Subgroup]]:
        """By column, performance per subgroup.  names: by column, the subgroup of every row of the table."""
        probability, y = self.answers.values.astype(np.float64), self.rows.y.astype(np.float64)
        return {
            column: subgroups(probability, y, [each[k] for k in self.place.tolist()])
            for column, each in names.items()
        }


@dataclass(frozen=True)
class AloneComparison:
    together: float
    alone: float
    evidence: HospitalEvidence


def compare_alone(run: Run, alone: Run, folds: int) -> dict[str, AloneComparison]:
    """By center, a cross-validated run against that of each center alone; empty where nothing compares."""
    frames = run.row_scores, alone.row_scores
    if frames[0] is None or frames[1] is None:
        return {}
    centers = list(run.main.per_center)
    both = measured({"together": [frames[0]], "alone": [frames[1]]}, len(centers))
    cells, inflation = both.cells("together", "alone"), fold_inflation(folds)
    gains = hospital_gains(cells, inflation, average_gain(cells, inflation).runs)
    if gains is None:
        return {}
    levels = zip(both.level("together"), both.level("alone"), hospital_evidence(gains, cells, inflation))
    return {center: AloneComparison(*found) for center, found in zip(centers, levels)}
