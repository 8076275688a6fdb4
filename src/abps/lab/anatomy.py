"""The anatomy of a federation: sizes, event rates, and how much hospitals differ beyond chance.

A mixed model with random intercepts is fitted to all rows (:mod:`abps.lab.rivals.regressions`). Where
coefficients differ, too, the scores of the five strongest columns scatter more between hospitals than those
of outcomes that are drawn from the model.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from abps.core import streams
from abps.data.federation import Federation
from abps.data.prepare import Rows, prepare, side_by_side
from abps.engine.rounds import RunState
from abps.lab.rivals.regressions import MixedModel
from abps.methods.base import Context, Floats, Ints
from abps.methods.settings import with_model
from abps.models.learners import learner_for
from abps.statistics.families import LOGISTIC, own_intercept

#: Columns whose coefficients are compared, and outcomes drawn anew.
COLUMNS, DRAWS = 5, 60


@dataclass(frozen=True)
class Anatomy:
    """What a federation looks like.  smallest, median, largest: rows of a hospital.

    low_rate, high_rate: 10th and 90th percentile over hospitals of the rate of events. intercept_sd: between
    hospitals, of log-odds given the columns. slope_sd: of coefficients of standardised columns. slope_z:
    evidence that these differ, in deviations of the statistic where they do not.
    """

    federation: str
    hospitals: int
    rows: int
    smallest: int
    median: int
    largest: int
    events: int
    rate: float
    low_rate: float
    high_rate: float
    columns: int
    intercept_sd: float
    slope_sd: float
    slope_z: float


def anatomy(name: str, federation: Federation, seed: int = 11) -> Anatomy:
    """The anatomy of a federation with a binary outcome."""
    method = with_model(MixedModel(), "linear")
    data = prepare(federation, seed, standardise="common")
    data = replace(data, train=side_by_side(side_by_side(data.train, data.validation), data.test))
    context = Context(
        learner_for(data, method.training, seed), data, streams.center_ids(data.centers), seed, 25
    )
    run = RunState.start(method, context)
    for t in range(1, 26):
        run, _ = run.round(t)
        if method.finished(run.state):
            break
    rows, w, variance = data.train, run.state.w, float(run.state.variance)
    strong = np.argsort(-np.abs(w[1:]) * rows.x.std(axis=0), kind="stable")[:COLUMNS]
    slope_sd, slope_z = _slopes(rows, w, variance, strong, seed)
    sizes, events = rows.sizes, np.array([part.sum() for part in np.split(rows.y, rows.start[1:-1])])
    low, high = np.quantile(events / np.maximum(sizes, 1), [0.1, 0.9]).tolist()
    return Anatomy(
        name, len(sizes), int(sizes.sum()), int(sizes.min()), int(np.median(sizes)), int(sizes.max()),
        int(events.sum()), float(events.sum() / sizes.sum()), low, high, data.width,
        float(np.sqrt(variance)), slope_sd, slope_z,
    )  # fmt: skip


def _slopes(rows: Rows, w: Floats, variance: float, strong: Ints, seed: int) -> tuple[float, float]:
    """The deviation of coefficients between hospitals, and how far it is from what chance gives."""
    rng, parts = streams.generator(seed, "bootstrap"), range(len(rows.sizes))
    tables = [rows.only(i) for i in parts]
    predicted = [w[0] + part.x @ w[1:] for part in tables]
    chance = [
        expit(z + own_intercept(LOGISTIC, t.y.astype(np.float64), z, 1.0 / variance))
        for z, t in zip(predicted, tables)
    ]
    seen, moved, scale = 0.0, 0.0, 0.0
    for z, part in zip(predicted, tables, strict=True):
        score, information = _score(z, part.y.astype(np.float64), part.x[:, strong], variance)
        seen += _statistic(score, information)
        moved += float(score @ score - np.trace(information))
        scale += float(np.square(information).sum())
    null = []
    for _ in range(DRAWS):
        drawn = [(rng.random(len(p)) < p).astype(np.float64) for p in chance]
        each = [_score(z, y, t.x[:, strong], variance) for z, y, t in zip(predicted, drawn, tables)]
        null.append(sum(_statistic(*found) for found in each))
    sd = float(np.sqrt(max(moved / max(scale, 1e-12), 0.0)))
    return sd, (seen - float(np.mean(null))) / max(float(np.std(null, ddof=1)), 1e-12)


def _score(z: Floats, y: Floats, x: NDArray[np.float32], variance: float) -> tuple[Floats, Floats]:
    """(k,) score of a hospital's own coefficients at the common ones, and (k, k) information; intercept taken
    out."""
    chance = expit(z + own_intercept(LOGISTIC, y, z, 1.0 / variance))
    weight = np.maximum(chance * (1.0 - chance), 1e-9)
    centred = x - weight @ x / weight.sum()
    return centred.T @ (y - chance), (centred * weight[:, None]).T @ centred


def _statistic(score: Floats, information: Floats) -> float:
    """The score test of one hospital, held finite where a column is constant."""
    ridge = 1e-2 * max(float(np.trace(information)), 1e-9) / len(score)
    return float(score @ np.linalg.solve(information + ridge * np.eye(len(score)), score))
