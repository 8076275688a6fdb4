"""What is noted after every round of a run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core.ledger import Traffic
from abps.core.matching import CAUSES, Rest
from abps.engine.result import History, RestShares
from abps.engine.rounds import RoundResult, RunState
from abps.methods.base import Decisions
from abps.models.metrics import labels_of, log_loss, mean_over_centers
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
        frames = [
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
