"""What is noted after every round of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core.ledger import Traffic
from abps.core.matching import CAUSES, Rest
from abps.data.prepare import Rows
from abps.engine.result import History, RestShares
from abps.engine.rounds import RoundResult, RunState
from abps.methods.base import Decisions
from abps.models import outcomes
from abps.models.metrics import Segments, labels_of, log_loss, mean_over_centers
from abps.models.outcome_scores import main_score

#: Columns of ``decisions.parquet``.
DECISIONS = {
    "round": pl.Int32,
    "center": pl.String,
    "peer": pl.String,
    "decision": pl.String,
    "score": pl.Float64,
    "posterior_mean": pl.Float64,
    "count": pl.Float64,
    "reason": pl.String,
}


@dataclass(frozen=True, eq=False)
class TrackRecord:
    """The numbers of all rounds so far, to write down: per round and center, or per round."""

    validation: NDArray[np.float64]
    test: NDArray[np.float64]
    rest: NDArray[np.int8]
    partners: NDArray[np.float64]
    judged: NDArray[np.float64]
    best: int


@dataclass(frozen=True, eq=False)
class RoundReport:
    """What a callback gets after a round: of ``rounds`` at most.

    validation, test: (centers,) the main score.  rest: (centers,) why a center rested, "" where it did not.
    bytes: sent and received in this round.  models: (centers, P) of methods that have weights.
    """

    round: int
    rounds: int
    centers: tuple[str, ...]
    validation: NDArray[np.float64]
    test: NDArray[np.float64]
    rest: tuple[str, ...]
    bytes: int
    models: NDArray[np.float32] | None


class Track:
    """Scores, rests, partners and decisions, round by round.

    validation, test: the mean over centers.  best: the best round so far on validation rows.
    """

    def __init__(self, centers: tuple[str, ...]) -> None:
        self.centers = centers
        self.validation: list[float] = []
        self.test: list[float] = []
        self.partners: list[float] = []
        self.best = 1
        self._rest: list[NDArray[np.int8]] = []
        self._scores: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
        self._judged: list[float] = []
        self._decisions: list[tuple[int, Decisions]] = []
        self._before: list[pl.DataFrame] = []

    def add(self, state: RunState, result: RoundResult) -> bool:
        """Note a round; True if it is the best so far on validation rows, by what the method goes by."""
        config, context, data = state.method, state.context, state.context.data
        answers = result.answers
        if answers is None:  # both splits in one pass over the models
            answers = config.logits(context, state.state, data.held_out).split(data.validation.sizes)
        validation = main_score(answers[0], labels_of(data.validation))
        test = main_score(answers[1], labels_of(data.test))
        self._scores.append((validation, test))
        self.validation.append(mean_over_centers(validation)[0])
        self.test.append(mean_over_centers(test)[0])
        self._rest.append(result.rest)
        self.partners.append(float(np.mean(result.partners)))
        t = len(self.validation)
        if result.decisions is not None:
            self._decisions.append((t, result.decisions))
        self._judged.append(self.validation[-1])
        if config.stop.metric == "loss":
            self._judged[-1] = -mean_over_centers(log_loss(answers[0], labels_of(data.validation)))[0]
        better = t == 1 or config.stop.better(self._judged[-1], self._judged[self.best - 1])
        if better:
            self.best = t
        return better

    def report(self, state: RunState, rounds: int) -> RoundReport:
        """The last round, for a callback."""
        causes = {int(cause): cause.key for cause in CAUSES}
        spent, models = state.ledger.rounds[-1], getattr(state.state, "models", None)
        return RoundReport(
            len(self._scores),
            rounds,
            self.centers,
            *self._scores[-1],
            tuple(causes.get(int(r), "") for r in self._rest[-1]),
            spent.directed + spent.control,
            models,
        )

    def record(self) -> TrackRecord:
        """All numbers so far."""
        validation, test = (np.stack(each) for each in zip(*self._scores))
        each = (np.stack(self._rest), np.array(self.partners), np.array(self._judged))
        return TrackRecord(validation, test, *each, self.best)

    def restore(self, record: TrackRecord, decisions: pl.DataFrame) -> None:
        """Go on from what was written."""
        self._scores = list(zip(record.validation, record.test))
        self.validation = [mean_over_centers(each)[0] for each in record.validation]
        self.test = [mean_over_centers(each)[0] for each in record.test]
        self._rest, self.partners = list(record.rest), record.partners.tolist()
        self._judged, self.best, self._before = record.judged.tolist(), record.best, [decisions]

    def rest_shares(self) -> RestShares:
        """Shares of center-rounds without a partner, by cause."""
        shares = {cause.key: float(np.mean([np.mean(r == cause) for r in self._rest])) for cause in CAUSES}
        return RestShares(share=sum(shares.values()), **shares)

    def history(self, booked: Sequence[Traffic]) -> History:
        """The means over centers of every round.  booked: the bytes of every round."""
        return History(
            auroc=tuple(self.test),
            validation_auroc=tuple(self.validation),
            edge_bytes=tuple(np.cumsum([r.edge for r in booked]).tolist()),
            rest=tuple(float(np.mean(r != Rest.NOT)) for r in self._rest),
            rest_causes={
                cause.key: tuple(float(np.mean(r == cause)) for r in self._rest) for cause in CAUSES
            },
            directed_bytes=tuple(np.cumsum([r.directed for r in booked]).tolist()),
            control_bytes=tuple(np.cumsum([r.control for r in booked]).tolist()),
        )

    def center_history(self) -> pl.DataFrame:
        """One row per round and center: its main score on validation and test rows, and why it rested."""
        rounds, n = len(self._scores), len(self.centers)
        causes = {int(cause): cause.key for cause in CAUSES}
        rest = np.concatenate(self._rest) if rounds else np.zeros(0, np.int8)
        return pl.DataFrame(
            {
                "round": np.repeat(np.arange(1, rounds + 1, dtype=np.int32), n),
                "center": pl.Series(list(self.centers) * rounds, dtype=pl.String),
                "validation": np.concatenate([np.zeros(0), *(v for v, _ in self._scores)]),
                "test": np.concatenate([np.zeros(0), *(t for _, t in self._scores)]),
                "rest": pl.Series([causes.get(int(r), "") for r in rest], dtype=pl.String),
            }
        )

    def decisions(self) -> pl.DataFrame:
        """The audit trail: one row per decision."""
        names = np.array([*self.centers, None], dtype=object)  # -1: nobody in particular
        frames = self._before + [
            pl.DataFrame(
                {
                    "round": np.full(len(d.center), t, dtype=np.int32),
                    "center": pl.Series(names[d.center].tolist(), dtype=pl.String),
                    "peer": pl.Series(names[d.peer].tolist(), dtype=pl.String),
                    "decision": pl.Series(d.decision.tolist(), dtype=pl.String),
                    "score": pl.Series(d.score).fill_nan(None),
                    "posterior_mean": pl.Series(d.mean).fill_nan(None),
                    "count": pl.Series(d.count).fill_nan(None),
                    "reason": pl.Series(d.reason.tolist(), dtype=pl.String),
                }
            )
            for t, d in self._decisions
        ]
        return pl.concat(frames) if frames else pl.DataFrame(schema=DECISIONS)


# ---------------------------------------------------------------- every scored row


def row_scores(rows: Rows, logits: Segments, fold: int = 0) -> pl.DataFrame:
    """One line per row of a test split, in the columns that :mod:`abps.evaluate.measured` reads.

    A row that does not know its place in the federation is numbered as it stands here.
    """
    place = np.arange(len(rows.y)) if rows.place is None else rows.place
    columns: dict[str, Any] = {
        "row": place.astype(np.uint32),
        "patient": place.astype(np.int64) if rows.patient is None else rows.patient,
        "center": logits.group().astype(np.int32),
        "fold": np.full(len(rows.y), fold, dtype=np.uint8),
        "y": rows.y.astype(np.uint8 if rows.outcome.kind in ("binary", "classes") else np.float32),
    }
    outcome, z = rows.outcome, logits.values
    if outcome.binary:
        return pl.DataFrame(columns | {"logit": z.astype(np.float32)})
    columns["loss"] = outcomes.judged(outcome, z, rows.y)[0].astype(np.float32)
    if outcome.kind == "classes":
        chance = outcomes.foretold(outcome, z).astype(np.float32)
        columns |= {f"score_{k}": chance[:, k] for k in range(chance.shape[1])}
    elif outcome.kind == "survival":
        columns["score"] = outcomes.risk(outcome, z).astype(np.float32)
    else:
        columns["base"] = _base(rows)
    return pl.DataFrame(columns)


def _base(rows: Rows) -> np.ndarray:
    """(rows,) the loss of the best constant of every center's rows."""
    base = np.zeros(len(rows.y), dtype=np.float32)
    for low, high in zip(rows.start[:-1], rows.start[1:]):
        y = rows.y[low:high].astype(np.float64)
        if len(y):
            constant = np.full(len(y), y.mean())
            base[low:high] = outcomes.judged(rows.outcome, constant, y)[0]
    return base
