"""What is noted after every round of a run."""

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
from abps.models.metrics import Segments, labels_of, log_loss, main_score, mean_over_centers

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
    """The numbers of all rounds so far.  validation, test: (rounds, centers) the main score.  rest: (rounds,
    centers) a :class:`Rest` each.  partners: (rounds,) the mean.  judged: (rounds,) what the method goes by.
    best: the best round by it."""

    validation: NDArray[np.float64]
    test: NDArray[np.float64]
    rest: NDArray[np.int8]
    partners: NDArray[np.float64]
    judged: NDArray[np.float64]
    best: int = 1


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
    def __init__(self, centers: tuple[str, ...]) -> None:
        self.centers = centers
        scores, none = np.zeros((0, len(centers))), np.zeros(0)
        self.record = TrackRecord(scores, scores, scores.astype(np.int8), none, none)
        self.decided: list[pl.DataFrame] = []

    @property
    def rounds(self) -> int:
        return len(self.record.judged)

    def add(self, state: RunState, result: RoundResult) -> bool:
        """Note a round; True if it is the best so far on validation rows, by what the method goes by."""
        config, context, data = state.method, state.context, state.context.data
        answers = result.answers
        if answers is None:  # both splits in one pass over the models
            answers = config.logits(context, state.state, data.held_out).split(data.validation.sizes)
        validation = main_score(answers[0], labels_of(data.validation))
        test = main_score(answers[1], labels_of(data.test))
        judged = mean_over_centers(validation)[0]
        if config.stop.metric == "loss":
            judged = -mean_over_centers(log_loss(answers[0], labels_of(data.validation)))[0]
        before = self.record
        better = self.rounds == 0 or config.stop.better(judged, float(before.judged[before.best - 1]))
        self.record = TrackRecord(
            np.concatenate([before.validation, validation[None]]),
            np.concatenate([before.test, test[None]]),
            np.concatenate([before.rest, result.rest[None]]),
            np.append(before.partners, np.mean(result.partners)),
            np.append(before.judged, judged),
            self.rounds + 1 if better else before.best,
        )
        if result.decisions is not None:
            self.decided.append(self._frame(result.decisions))
        return better

    def report(self, state: RunState, rounds: int) -> RoundReport:
        spent, models = state.ledger.rounds[-1], getattr(state.state, "models", None)
        return RoundReport(
            self.rounds,
            rounds,
            self.centers,
            self.record.validation[-1],
            self.record.test[-1],
            tuple(_causes(self.record.rest[-1])),
            spent.directed + spent.control,
            models,
        )

    def rest_shares(self) -> RestShares:
        shares = {cause.key: float(np.mean(self.record.rest == cause)) for cause in CAUSES}
        return RestShares(share=sum(shares.values()), **shares)

    def history(self, booked: Sequence[Traffic]) -> History:
        """The means over centers of every round.  booked: the bytes of every round."""
        edge, directed, control = (
            tuple(np.cumsum([getattr(spent, kind) for spent in booked]).tolist())
            for kind in ("edge", "directed", "control")
        )
        test, validation = (
            tuple(mean_over_centers(scores)[0] for scores in each)
            for each in (self.record.test, self.record.validation)
        )
        rest = tuple(float(np.mean(r != Rest.NOT)) for r in self.record.rest)
        return History(test, validation, edge, rest, directed, control)

    def center_history(self) -> pl.DataFrame:
        """One row per round and center: its main score on validation and test rows, and why it rested."""
        return pl.DataFrame(
            {
                "round": np.repeat(np.arange(1, self.rounds + 1, dtype=np.int32), len(self.centers)),
                "center": pl.Series(list(self.centers) * self.rounds, dtype=pl.String),
                "validation": self.record.validation.ravel(),
                "test": self.record.test.ravel(),
                "rest": pl.Series(_causes(self.record.rest.ravel()), dtype=pl.String),
            }
        )

    def _frame(self, decided: Decisions) -> pl.DataFrame:
        names = np.array([*self.centers, None], dtype=object)  # -1: nobody in particular
        words = (names[decided.center], names[decided.peer], decided.decision)
        numbers = (pl.Series(each).fill_nan(None) for each in (decided.score, decided.mean, decided.count))
        columns = [np.full(len(decided.center), self.rounds), *(each.tolist() for each in words), *numbers]
        return pl.DataFrame(dict(zip(DECISIONS, [*columns, decided.reason.tolist()])), schema=DECISIONS)

    def decisions(self) -> pl.DataFrame:
        return pl.concat(self.decided) if self.decided else pl.DataFrame(schema=DECISIONS)


def _causes(rest: NDArray[np.int8]) -> list[str]:
    causes = {int(cause): cause.key for cause in CAUSES}
    return [causes.get(why, "") for why in rest.tolist()]


def row_scores(rows: Rows, logits: Segments) -> pl.DataFrame:
    """One line per row of a test split, in the columns that :mod:`abps.evaluate.measured` reads; row: its
    place in the federation, where that is known."""
    place = np.arange(len(rows.y)) if rows.place is None else rows.place
    columns: dict[str, Any] = {
        "row": place.astype(np.uint32),
        "patient": place.astype(np.int64) if rows.patient is None else rows.patient,
        "center": logits.group().astype(np.int32),
        "fold": np.zeros(len(rows.y), dtype=np.uint8),
        "y": rows.y.astype(np.uint8 if rows.outcome.kind in ("binary", "classes") else np.float32),
    }
    outcome, z = rows.outcome, logits.values
    if outcome.binary:
        return pl.DataFrame(columns | {"logit": z.astype(np.float32)})
    columns["loss"] = outcomes.row_losses(outcome, z, rows.y).astype(np.float32)
    if outcome.kind == "classes":
        chance = outcomes.foretold(outcome, z).astype(np.float32)
        columns |= {f"score_{k}": chance[:, k] for k in range(chance.shape[1])}
    elif outcome.kind == "survival":
        columns["score"] = outcomes.risk(outcome, z).astype(np.float32)
    else:
        parts = np.split(rows.y.astype(np.float64), rows.start[1:-1])
        constant = np.repeat([part.mean() if len(part) else 0.0 for part in parts], rows.sizes)
        columns["base"] = outcomes.row_losses(outcome, constant, rows.y).astype(np.float32)
    return pl.DataFrame(columns)
