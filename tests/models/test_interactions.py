"""Pair terms: their scores against statsmodels, their choice against SciPy, their place in models."""

import numpy as np
import polars as pl
import pytest
import statsmodels.api as sm
from scipy.stats import false_discovery_control, norm

import abps
from abps.data.prepare import prepare
from abps.fitted.model import network_of
from abps.models import families, interactions
from abps.models.hierarchical import CenterRows, CommonModel
from abps.models.interactions import PairTerms
from abps.models.learners import learner_for
from abps.models.training import Training

RNG = np.random.default_rng(3)


def _pairs(columns, count=2):
    return PairTerms(RNG.normal(size=(count, columns + 1)), RNG.normal(size=(count, columns + 1)))


def test_a_pair_term_is_the_smaller_effect_with_the_sign_of_the_product():
    f, g = RNG.normal(size=(2, 50))
    smaller = np.sign(f * g) * np.minimum(np.abs(f), np.abs(g))
    np.testing.assert_allclose(interactions.together(f, g), smaller, atol=1e-12)


def test_scores_are_those_of_statsmodels():
    n, p = 400, 3
    x = RNG.normal(size=(n, p)).astype(np.float32)
    y = (RNG.random(n) < 1 / (1 + np.exp(-x[:, 0] - 0.5 * x[:, 0] * x[:, 1]))).astype(float)
    mean = np.array([[0.9, 0.1, -0.2, 0.3]])
    rows = CenterRows(x, y, np.array([0, n]), families.Bernoulli(np.ones((1, 1)), np.zeros(1)))
    common = CommonModel(mean, np.array([[0.0, 0.0, 0.0, 1e6]]))
    functions = np.concatenate([np.eye(3, 4), RNG.normal(size=(3, 4))])
    score, information = interactions.pair_sums(rows, common, functions)
    fitted = sm.GLM(y, np.ones(n), family=sm.families.Binomial(), offset=x @ mean[0, :3]).fit()
    said = np.column_stack([x, np.ones(n)]) @ functions.T
    for k, (i, j) in enumerate([(0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5)]):
        term = interactions.together(said[:, i], said[:, j])
        square, _ = fitted.score_test(exog_extra=term[:, None])
        assert score[0, 0, k] ** 2 / information[0, 0, k] == pytest.approx(
            float(np.ravel(square)[0]), rel=1e-3
        )


def test_pairs_are_chosen_by_their_false_discovery_rate():
    square = np.concatenate([[30.0, 18.0, 11.0], RNG.chisquare(1, 61)])
    score, information = np.sqrt(square * 10.0)[None], np.full((1, 64), 10.0)
    adjusted = false_discovery_control(2 * norm.sf(np.sqrt(square)))
    assert set(interactions.earned(score, information)) == set(np.flatnonzero(adjusted <= 0.05))
    assert len(interactions.earned(score, np.full((1, 64), 1.0))) == 0  # too few rows to say
    score[0, 32] = 20.0  # the first pair in its other form, which is stronger
    assert interactions.earned(score, information)[:2].tolist() == [32, 1]


def test_what_columns_say_is_standardised_and_ranked_and_numbers_enter_as_they_are():
    x = np.column_stack([RNG.normal(2, 3, 5000), RNG.normal(0, 1, 5000), RNG.normal(0, 1, 5000)])
    design = np.column_stack([x, np.ones(5000)])
    curvature = (design - design.mean(axis=0)).T @ (design - design.mean(axis=0))
    mean = np.array([[0.1, 2.0, -1.0, 0.0]])  # the second and third input are of one column
    functions = interactions.column_functions(
        mean, curvature, design.mean(axis=0)[None], 5000.0, np.array([0, 1, 1]), np.array([1])
    )
    said = design @ functions.T
    np.testing.assert_allclose(said.mean(axis=0), 0.0, atol=1e-9)
    np.testing.assert_allclose(said.std(axis=0), 1.0, rtol=1e-6)
    assert abs(np.corrcoef(said[:, 0], 2 * x[:, 1] - x[:, 2])[0, 1]) == pytest.approx(1.0)
    assert np.corrcoef(said[:, 2], x[:, 1])[0, 1] == pytest.approx(1.0)
    np.testing.assert_allclose(said[:, 3], said[:, 1])  # no straight part: what it says


@pytest.mark.parametrize("kind", ["binary", "classes"])
def test_learners_and_networks_read_pair_terms_alike(kind):
    rows = 240
    x = RNG.normal(size=(rows, 3))
    y = (x[:, 0] > 0) * 1 + (x[:, 1] > 0.5) * (kind == "classes")
    frame = pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2]}).with_columns(
        y=pl.Series([f"k{v}" for v in y]), h=pl.Series(RNG.integers(0, 4, rows).astype(str))
    )
    federation = abps.federation(frame, label="y", center="h", outcome=kind)
    training = Training.of("linear")
    data = prepare(federation, 1, standardise="common")
    learner = learner_for(data, training, 1)
    terms = len(data.outcome.mix)
    base = RNG.normal(size=(data.size, learner.layout.size)).astype(np.float32)
    pairs = _pairs(data.width)
    models = pairs.appended(base, RNG.normal(size=(data.size, terms, pairs.count)))
    again, coefficients = PairTerms.read(models[1, learner.layout.size :], data.width, terms)
    np.testing.assert_allclose(again.left, pairs.left, rtol=1e-6)
    assert coefficients.shape == (terms, 2)
    found = learner.logits(models, data.test)
    plain = learner_for(data, training, 1, plain=True).logits(models, data.test)
    np.testing.assert_allclose(found.values, plain.values, atol=1e-4)
    assert np.abs(found.values - learner.logits(base, data.test).values).max() > 0.1
    for i in range(data.size):
        module = training.factory(data.width) if kind == "binary" else None
        if module is None:
            module = training.factory(data.width, outcome=data.outcome)
        network = network_of(module, models[i])
        said = network.answers(data.test.only(i).x)
        np.testing.assert_allclose(said.ravel(), np.ravel(found[i]), atol=1e-4)
    with pytest.raises(ValueError, match="no pair terms"):
        PairTerms.read(models[0, learner.layout.size + 1 :], data.width, terms)
