"""Penalised regressions against scikit-learn and grids; the stacked model of a table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold

from abps.data.outcome import BINARY, Outcome
from abps.data.prepare import prepare
from abps.data.split import folds_of, most_folds
from abps.lab.suite import make_federation, suite
from abps.models.newton import MOST_PENALTY, OwnRows, fit_by_evidence, of_answers
from abps.models.outcomes import concordance, foretold
from abps.models.tabular import SplineBasis, fit_table


def table(rows: int, columns: int, seed: int = 0, curved: float = 1.0):
    """A table with a linear, a curved and an interacting part; some columns have few values."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns))
    x[:, 1] = np.round(x[:, 1])
    x[:, 2] = x[:, 2] > 0.5
    z = x[:, 0] + curved * (x[:, 3] ** 2 - 1) + 0.5 * x[:, 1] * x[:, 2] - 1
    return x, (rng.random(rows) < 1 / (1 + np.exp(-z))).astype(float)


def test_without_signal_the_evidence_asks_for_the_strongest_penalty():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(60, 20)), (rng.random(60) < 0.3).astype(float)
    x -= np.linalg.lstsq(np.eye(60), x, rcond=None)[0] * 0  # nothing to explain
    x[:, :] = x - np.outer(y - y.mean(), (y - y.mean()) @ x) / ((y - y.mean()) ** 2).sum()
    rows = OwnRows(x, y, of_answers(BINARY), np.ones((1, 1)))
    assert fit_by_evidence(rows, np.zeros(21), np.zeros(20, dtype=np.int64))[1][0] == MOST_PENALTY


def test_splines_bend_inside_and_are_straight_outside():
    x, _ = table(400, 5)
    basis = SplineBasis(x)
    made = basis.of(x)
    np.testing.assert_array_equal(made[:, :5], x)
    bends = made[:, 5:]
    # What bends is no line: nothing of it is left along the columns that may bend.
    for k in (0, 3, 4):
        line = np.column_stack([np.ones(400), x[:, k]])
        own = bends[:, [0, 3, 4].index(k) * (bends.shape[1] // 3) :][:, : bends.shape[1] // 3]
        np.testing.assert_allclose(line.T @ own, 0, atol=1e-6)
    far = np.repeat(x[:1], 3, axis=0)
    for ends in ([50.0, 60.0, 70.0], [-50.0, -60.0, -70.0]):
        far[:, 3] = ends
        out = basis.of(far)
        np.testing.assert_allclose(out[2] - out[1], out[1] - out[0], atol=1e-6)


def test_boosting_finds_in_times_what_no_sum_of_columns_tells():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(900, 3))
    risk = 1.5 * np.sign(x[:, 0] * x[:, 1])
    time, ended = np.ceil(20 * rng.exponential(np.exp(-risk))), np.ceil(rng.exponential(40, len(x)))
    y = np.where(time <= ended, time, -ended).astype(np.float32)
    outcome = Outcome("survival").settled(y)
    model = fit_table(x, y.astype(float), None, 11, outcome)
    assert model.weights["boosting"] > 0.8
    z = model.held_out if outcome.outputs > 1 else model.held_out[:, 0]
    assert concordance(outcome, z, y, np.array([0, len(y)]))[0] > 0.68


def test_classes_and_numbers_are_predicted():
    x, _ = table(600, 5)
    rng = np.random.default_rng(3)
    which = np.argmax(np.stack([x[:, 0], -x[:, 3], 0 * x[:, 1]]) + rng.gumbel(size=(3, 600)), axis=0)
    outcome = Outcome("classes", names=("a", "b", "c"))
    model = fit_table(x, which.astype(float), None, 11, outcome)
    chance = foretold(outcome, model.held_out)
    assert chance.shape == (600, 3) and roc_auc_score(which, chance, multi_class="ovr") > 0.65
    number = x[:, 0] + x[:, 3] ** 2 + 0.5 * rng.normal(size=600)
    model = fit_table(x, number, None, 11, Outcome("continuous", scale=1.0))
    assert np.corrcoef(model.held_out[:, 0], number)[0, 1] > 0.85


@given(st.integers(0, 500), st.integers(2, 6))
@settings(max_examples=30, deadline=None)
def test_a_patient_is_in_one_fold_and_events_are_spread(seed, count):
    rng = np.random.default_rng(seed)
    patient = rng.integers(0, 60, 150)
    y = (rng.random(150) < 0.2).astype(float)
    count = min(count, most_folds(patient, y))
    if count < 2:
        return
    fold = folds_of(patient, y, count, seed)
    for person in np.unique(patient):
        assert len(np.unique(fold[patient == person])) == 1
    with_event = [len(np.unique(patient[(fold == k) & (y > 0)])) for k in range(count)]
    assert max(with_event) - min(with_event) <= 1 and min(with_event) >= 1
    order = rng.permutation(150)
    np.testing.assert_array_equal(folds_of(patient[order], y[order], count, seed), fold[order])


def test_the_candidate_that_predicts_best_has_the_weight():
    x, y = table(1500, 6, curved=0.0)
    straight = fit_table(x, y, None, 11)
    x, y = table(1500, 6, curved=1.0)
    curved = fit_table(x, y, None, 11)
    assert straight.weights["linear"] > 0.2 and curved.weights["linear"] < 0.05
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 4))
    y = (rng.random(1500) < 1 / (1 + np.exp(-2.5 * x[:, 0] * x[:, 1]))).astype(float)
    assert fit_table(x, y, None, 11).weights["boosting"] > 0.9


def test_rows_left_out_are_not_seen():
    """On pure noise the predictions of own rows have no skill, whatever the model learned by heart."""
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(400, 8)), (rng.random(400) < 0.3).astype(float)
    model = fit_table(x, y, np.repeat(np.arange(200), 2), 11)
    assert abs(roc_auc_score(y, model.held_out[:, 0]) - 0.5) < 0.1
    assert model.loss == pytest.approx(np.logaddexp(0, model.held_out[:, 0]).mean()
                                       - (y * model.held_out[:, 0]).mean())  # fmt: skip


def test_too_few_events_to_leave_any_out():
    x, _ = table(50, 4)
    y = np.zeros(50)
    y[7] = 1.0
    model = fit_table(x, y, None, 11)
    assert model.weights == {"linear": 1.0} and np.isnan(model.loss)
    assert np.isfinite(model.predict(x)).all()


def cross_validated(x, y, seed):
    """What one line of scikit-learn gives: a logistic regression, its penalty from weak to very strong."""
    folds = StratifiedKFold(min(5, int(y.sum()), int((1 - y).sum())), shuffle=True, random_state=seed)
    model = LogisticRegressionCV(Cs=np.logspace(-5, 1, 13), cv=folds, scoring="neg_log_loss", max_iter=2000)
    return model.fit(x, y).decision_function


@pytest.mark.slow
@pytest.mark.parametrize("name", ["heart", "rand-hie"])
def test_one_line_of_scikit_learn_does_not_beat_it_on_real_hospitals(data, name):
    description = suite()[name]
    data(description.file)
    federation = make_federation(description, data("."), 0)
    ours, theirs = [], []
    for seed in (11, 22, 33):
        prepared = prepare(federation, seed)
        for i in range(prepared.size):
            own, test = prepared.own.only(i), prepared.test.only(i)
            x, y, new = own.x.astype(float), own.y.astype(float), test.x.astype(float)
            if min(y.sum(), (1 - y).sum()) < 2 or len(np.unique(test.y)) < 2:
                continue
            ours.append(roc_auc_score(test.y, fit_table(x, y, own.patient, seed).predict(new)[:, 0]))
            theirs.append(roc_auc_score(test.y, cross_validated(x, y, seed)(new)))
    assert np.mean(ours) >= np.mean(theirs) - 0.003
