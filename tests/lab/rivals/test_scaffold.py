"""SCAFFOLD."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from abps.core.arrays import repeated
from abps.data.prepare import Prepared, Rows
from abps.lab.rivals.corrected import Scaffold
from abps.methods.fedavg import FedAvg
from abps.models.training import Training
from federations import tiny


@pytest.fixture
def alike(ready: Prepared) -> Prepared:
    """Three centers that hold the same training rows."""
    rows = ready.train.only(5)
    train = Rows(np.tile(rows.x, (3, 1)), np.tile(rows.y, 3), np.arange(4) * len(rows.y))
    part = {"validation": ready.validation, "test": ready.test}
    cut = {k: Rows(v.x[: v.start[3]], v.y[: v.start[3]], v.start[:4]) for k, v in part.items()}
    return replace(
        ready, centers=ready.centers[:3], train=train, groups=None, metadata=ready.metadata[:3], **cut
    )


def test_equal_centers_need_no_correction(context, play, alike, one_step) -> None:
    """One full-batch step: streams differ between centers, the batch does not."""
    here = context(one_step, alike)
    states = play(Scaffold(training=one_step), here, 3)
    for state in states[1:]:
        assert np.abs(state.common).max() > 1e-3
        np.testing.assert_allclose(state.own, repeated(state.common, 3), rtol=1e-4, atol=1e-6)
    plain = play(FedAvg(training=one_step), here, 3)[-1]
    np.testing.assert_allclose(states[-1].models, plain.models, rtol=1e-4, atol=1e-6)


def test_corrected_steps_of_all_centers_are_the_mean_step(context, play, one_step) -> None:
    """In round 2 every center's first step follows g_i - c_i + c, by hand."""
    here = context(one_step)
    method = Scaffold(training=one_step, weighting="uniform")
    first, second = play(method, here, 2)[1:]
    slope = here.learner.gradient(first.models, here.data.train)
    step = (slope - first.own + first.common).mean(0)
    np.testing.assert_allclose(second.models[0], first.models[0] - 0.1 * step, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(second.own, slope)
    np.testing.assert_allclose(second.common, second.own.mean(0), rtol=1e-4, atol=1e-6)


def test_the_first_round_is_fedavg(context, play) -> None:
    here = context(Training())
    np.testing.assert_allclose(
        play(Scaffold(), here, 1)[-1].models, play(FedAvg(), here, 1)[-1].models, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("step", [1.0, 10.0, 100.0])
def test_solved_models_approach_the_optimum_of_all_rows_in_every_round(context, play, step) -> None:
    """Hospitals with fewer rows than columns: the distance in models and control variates never grows, and
    the models end at scikit-learn's penalised regression of all rows."""
    data, decay = tiny(sizes=(12, 9, 15, 150), width=20), 0.02
    training = Training.of("linear", weight_decay=decay, epochs=40)
    here = context(training, data)
    x, y = data.train.x.astype(float), data.train.y.astype(float)
    oracle = LogisticRegression(C=1 / (decay * len(y)), tol=1e-12, max_iter=10_000).fit(x, y)
    best = np.concatenate([oracle.coef_[0], oracle.intercept_])
    error = oracle.predict_proba(x)[:, 1] - y
    share, optimal = data.train.sizes / len(y), np.empty((data.size, len(best)))
    for i in range(data.size):
        mine = slice(data.train.start[i], data.train.start[i + 1])
        slope = (x[mine] * error[mine, None]).mean(0) + decay * best[:-1]
        optimal[i] = [*slope, error[mine].mean()]
    np.testing.assert_allclose(share @ optimal, 0.0, atol=1e-5)
    distance = [
        ((state.models[0] - best) ** 2).sum() + step**2 * share @ ((state.own - optimal) ** 2).sum(1)
        for state in play(Scaffold(training=training, step=step), here, 400)
    ]
    assert (np.diff(distance) <= 1e-6 * distance[0]).all()
    assert distance[-1] < 1e-3 * distance[0]
