"""How good a model is on rows that it has not seen, in the terms that clinicians and reviewers ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from abps.data.prepare import Rows
from abps.evaluate.calibration import Calibration, Curve, calibration, smooth_curve
from abps.evaluate.net_benefit import AtThreshold, DecisionCurve, at_threshold, decision_curve
from abps.evaluate.roc import Area, area
from abps.models.metrics import Segments
from abps.models.outcome_scores import main_score, measures

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """A score with its 95 % interval over other test rows (bootstrap); NaN where there is none."""

    value: float
    low: float = float("nan")
    high: float = float("nan")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """rows, events; the area under the ROC curve; calibration; what acting at thresholds would bring.

    measures: of an outcome that is not an event or none, its scores by name, the main one first; it has
    nothing of the rest.
    """

    rows: int
    events: int
    area: Area
    brier: float
    calibration: Calibration
    curve: Curve | None
    decisions: DecisionCurve | None
    thresholds: Mapping[str, AtThreshold]
    measures: Mapping[str, Measured] = field(default_factory=dict)


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


#: Draws of test rows for an interval, and the fewest rows that tell something to give one for.
DRAWS = 200
FEWEST = 5


def evaluate_other(answers: Floats, rows: Rows, train: Rows, seed: int = 0) -> Evaluation:
    """The scores of (rows, outputs) answers to the test rows of one center, or of all as one.

    train: the training rows that weights for censoring, and Cox's baseline, come from.
    """
    outcome = rows.outcome
    y = np.concatenate([rows.only(i).y for i in range(len(rows.sizes))])
    whole = Rows(np.empty((len(y), 0), np.float32), y, np.array([0, len(y)]), outcome=outcome)
    told = answers[:, 0] if answers.shape[1] == 1 else answers
    empty = evaluate(np.zeros(0), np.zeros(0), {})
    events = int(outcome.events(y).sum())
    if not len(y):
        return replace(empty, measures={outcome.measure: Measured(float("nan"))})
    found = measures(Segments(told, whole.start), whole, train)
    values = {name: Measured(float(value[0])) for name, value in found.items()}
    if outcome.informative(y) >= FEWEST:
        draws, rng = [], np.random.default_rng(seed)
        for _ in range(DRAWS):
            some = rng.integers(0, len(y), len(y))
            again = Segments(y[some], whole.start, outcome)
            draws.append(float(main_score(Segments(told[some], whole.start), again)[0]))
        low, high = (
            np.nanquantile(draws, [0.025, 0.975]).tolist() if np.isfinite(draws).any() else (np.nan,) * 2
        )
        values[outcome.measure] = replace(values[outcome.measure], low=low, high=high)
    return replace(empty, rows=len(y), events=events, measures=values)
