"""Run a method on a federation, in one process, all centers at once.

``engine="debug"`` runs the same method with one center at a time, a plain ``nn.Module`` and a plain
optimiser: slow, easy to step through, the same answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core import streams
from abps.core.beliefs import Beliefs
from abps.core.errors import RequestError
from abps.core.matching import CAUSES, Rest
from abps.data.federation import Federation
from abps.data.prepare import Prepared
from abps.data.subgroup_names import groups_of
from abps.data.timeline import timeline
from abps.engine.attacks import Attack, attackers_of, honest
from abps.engine.clinical import Clinical, clinical, told
from abps.engine.private_run import ledger as ledger_of
from abps.engine.result import (
    Bytes,
    Heterogeneity,
    History,
    RestShares,
    Run,
    calibrated,
    scored_on,
    scores_of,
)
from abps.engine.rounds import Outcome, RunState
from abps.engine.row_scores import row_scores
from abps.lab.guarantees import BeliefSummary, belief_summary
from abps.methods.accounting import counting_of, with_noise
from abps.methods.base import Context, Decisions, Method
from abps.methods.settings import configure, describe
from abps.models.layout import ModelFactory
from abps.models.learners import learner_for
from abps.models.metrics import labels_of, log_loss, mean_over_centers
from abps.models.native.blas import BLAS
from abps.models.outcome_scores import main_score, survived
from abps.models.training import Training
from abps.wire.codecs import codec
from abps.wire.frames import frame_size

#: FedAvg's rounds in the comparison of bytes.
FEDAVG_ROUNDS = 50

#: Centers at most whose beliefs are told.
MOST_CHECKED = 5000

ENGINES = ("simulate", "debug")

#: Called after every round with (round, rounds at most, mean validation AUROC).
Progress = Callable[[int, int, float], None]


def simulate(
    federation: Federation | Prepared,
    method: str | Method,
    seed: int = 11,
    rounds: int | None = None,
    settings: Mapping[str, Any] | None = None,
    model: str | ModelFactory | None = None,
    engine: str = "simulate",
    device: str = "cpu",
    progress: Progress | None = None,
    name: str | None = None,
    attack: str | Attack | None = None,
    subgroups: Sequence[str] = (),
) -> Run:
    """One method, one seed.

    federation: a :class:`Federation`, or one already prepared for this seed.
    method: a name of the catalog, or a configuration (also of a method of one's own).
    model: a name (mlp, linear, gam), ``package.module:FACTORY``, or a function that builds a
    ``torch.nn.Module`` for a number of inputs; default: the method's own, the paper's MLP for most.
    device: where PyTorch trains and predicts: cpu, cuda, cuda:1 and so on, mps, or auto (a GPU where there
    is one). Devices round differently, so the result names the device.
    name: what the result calls the method; default: its catalog name, or the configuration's class.
    attack: members that attack, as ``"sign-flip:share=0.2"`` (:mod:`abps.engine.attacks`).
    subgroups: columns by which accuracy is told apart, besides sex and age where they are found.
    """
    began = time.perf_counter()
    if seed < 0:
        raise RequestError(f"seed={seed}: choose a whole number from 0")
    if engine not in ENGINES:
        raise RequestError(f"engine={engine!r}: choose {' or '.join(ENGINES)}")
    parts = _parts(federation, subgroups)
    config = configure(method, ({} if model is None else {"model": model}) | dict(settings or {}), rounds)
    config = with_noise(config)
    name = name or (method if isinstance(method, str) else type(method).__name__.lower())
    training = config.training
    source = timeline(
        federation,
        seed,
        config.stop.rounds,
        training.standardise,
        training.splines,
        config.privacy.min_cell,
        counting_of(config, seed),
    )
    window = data = source.at(1)
    if not data.outcome.binary and config.only_binary:
        raise RequestError(f"{name} with an outcome of {data.outcome.kind}: {config.only_binary}")
    ids = streams.center_ids(data.centers)
    attackers = None if attack is None else attackers_of(attack, seed, ids)
    if attackers is not None:
        data = attackers.attack.on_rows(data, attackers.who)
    learner = learner_for(data, training, seed, plain=engine == "debug", device=device)
    context = Context(learner, data, ids, seed, config.stop.rounds)

    track = Track(data.centers)
    # A core each: on products this small threads would wait for each other, and round otherwise.
    with BLAS.limit(limits=1):
        course = RunState.start(config, context, attackers)
        best = course.state
        for t in range(1, config.stop.rounds + 1):
            if source.at(t) is not window:
                if attackers is not None:
                    raise RequestError(
                        "attack: choose a federation that does not change while it is attacked"
                    )
                window = data = source.at(t)
                course = course.on(replace(context, data=data, learner=context.learner.on(data)), t)
            course, outcome = course.round(t)
            if track.add(course, outcome):
                best = course.state
            if progress is not None:
                progress(t, config.stop.rounds, track.validation[-1])
            if config.stop.over(t, track.best) or config.finished(course.state):
                break
    ledger, booked = course.ledger, course.ledger.rounds
    final = best if config.stop.restore_best else course.state
    logits, labels = config.logits(course.context, final, data.test), labels_of(data.test)
    seen = None
    if data.outcome.binary:
        judged = config.logits(course.context, final, data.validation)
        seen = told(logits, labels, judged, labels_of(data.validation), data.test.place)
    fedavg = fedavg_bytes(data)
    done = len(track.validation)
    shares = {cause.key: float(np.mean([np.mean(r == cause) for r in track.rest])) for cause in CAUSES}
    return Run(
        method=name,
        seed=seed,
        rounds=done,
        data=replace(federation.about(), features=data.width),
        config=describe(config),
        device=getattr(learner, "device", "cpu"),
        attack="" if attackers is None else str(attackers.attack),
        **scores_of(
            data.centers,
            logits,
            data.test,
            data.train,
            track.test[track.best - 1],
            honest(attackers),
            # Relative risks tell absolute ones with a baseline.
            config.logits(course.context, final, data.train) if data.outcome.way == "cox" else None,
        ),
        bytes=Bytes(
            ledger.spent.edge,
            ledger.spent.directed,
            ledger.spent.control,
            ledger.spent.edge / fedavg,
            (ledger.spent.edge + ledger.spent.control) / fedavg,
        ),
        cost_usd=ledger.spent.usd,
        partners_mean=float(np.mean(track.partners)),
        rest=RestShares(share=sum(shares.values()), **shares),
        history=History(
            auroc=tuple(track.test),
            validation_auroc=tuple(track.validation),
            edge_bytes=tuple(np.cumsum([r.edge for r in booked]).tolist()),
            rest=tuple(float(np.mean(r != Rest.NOT)) for r in track.rest),
            rest_causes={
                cause.key: tuple(float(np.mean(r == cause)) for r in track.rest) for cause in CAUSES
            },
            beliefs=tuple(track.belief_summary),
        ),
        seconds=round(time.perf_counter() - began, 3),
        trail=track.trail(),
        scores=row_scores(data.test, logits),
        heterogeneity=_tested(config, course.context, final),
        models=getattr(final, "models", None),
        beliefs=config.beliefs(final),
        answers=logits,
        privacy=None if course.spending is None else ledger_of(config, course.context, course.spending),
        alive=survived(data),
        scored=scored_on(data.centers, logits, labels),
        calibration=calibrated(data.centers, logits, labels),
        clinical=Clinical() if seen is None else clinical(data.centers, seen, parts),
        told=seen,
    )


def fedavg_bytes(data: Prepared) -> int:
    """The unit of bytes: fifty fp32 rounds of FedAvg with the paper's network on this federation, whatever
    model a run has."""
    paper = Training().factory(data.plain or data.width)
    weights = sum(parameter.numel() for parameter in paper.parameters())
    return data.size * FEDAVG_ROUNDS * frame_size(codec("fp32"), weights)


def _parts(federation: Federation | Prepared, columns: Sequence[str]) -> dict[str, list[str | None]]:
    """By column, the part of the cohort that every row is of; none of rows that come in windows of time."""
    if isinstance(federation, Federation) and federation.era is None and federation.outcome.binary:
        return groups_of(federation, columns)
    if columns:
        raise RequestError(
            f"subgroups {', '.join(columns)}: they are told of binary outcomes without windows of time, and "
            "of a federation, not of rows already prepared; leave them out"
        )
    return {}


def _tested(config: Method, context: Context, state: Any) -> Heterogeneity | None:
    """The method's test of whether centers differ, if it makes one."""
    found = config.heterogeneity(context, state)
    return None if found is None else Heterogeneity(**found)


class Track:
    """What is noted after every round."""

    def __init__(self, centers: tuple[str, ...]) -> None:
        self.centers = centers
        self.validation: list[float] = []
        self.test: list[float] = []
        self.rest: list[NDArray[np.int8]] = []
        self.partners: list[float] = []
        self.belief_summary: list[BeliefSummary] = []
        self.best = 1
        self._score: list[float] = []
        self._decisions: list[tuple[int, Decisions]] = []

    def add(self, course: RunState, outcome: Outcome) -> bool:
        """Note a round; True if it is the best so far on validation rows, by what the method goes by."""
        config, context, state, data = course.method, course.context, course.state, course.context.data
        # Both splits in one pass over the models.
        answers = outcome.answers or config.logits(context, state, data.held_out).split(data.validation.sizes)
        for logits, rows, into in zip(
            answers, (data.validation, data.test), (self.validation, self.test), strict=True
        ):
            into.append(mean_over_centers(main_score(logits, labels_of(rows)))[0])
        self.rest.append(outcome.rest)
        self.partners.append(float(np.mean(outcome.partners)))
        t = len(self.validation)
        beliefs = config.beliefs(state)
        if isinstance(beliefs, Beliefs):
            known = beliefs.posterior(*np.divmod(beliefs.key, beliefs.n))
            self.belief_summary.append(belief_summary(known.mean, known.count, prior=beliefs.prior))
        if outcome.decisions is not None:
            self._decisions.append((t, outcome.decisions))
        self._score.append(self.validation[-1])
        if config.stop.metric == "loss":
            self._score[-1] = -mean_over_centers(log_loss(answers[0], labels_of(data.validation)))[0]
        better = t == 1 or config.stop.better(self._score[-1], self._score[self.best - 1])
        if better:
            self.best = t
        return better

    def trail(self) -> pl.DataFrame:
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
        return pl.concat(frames) if frames else pl.DataFrame(schema=TRAIL)


#: Columns of ``decisions.parquet``.
TRAIL = {
    "round": pl.Int32,
    "center": pl.String,
    "peer": pl.String,
    "decision": pl.String,
    "score": pl.Float64,
    "posterior_mean": pl.Float64,
    "count": pl.Float64,
    "reason": pl.String,
}
