"""The hierarchical model against direct optimisation, closed forms and scikit-learn."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from abps.models import families, hierarchical
from abps.models.hierarchical import (
    CenterRows,
    CommonModel,
    center_curvatures,
    chance_of_gain,
    common_losses,
    common_sums,
    posterior,
)

ONE, ZERO = np.ones((1, 1)), np.zeros(1)


def _rows(n=6, p=3, seed=0, family=None, sizes=None):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(20, 60, n) if sizes is None else np.array(sizes)
    start = np.concatenate([[0], np.cumsum(sizes)])
    x = rng.standard_normal((start[-1], p)).astype(np.float32)
    level = np.repeat(rng.normal(-0.5, 0.5, n), sizes)
    chance = 1 / (1 + np.exp(-(level + x @ np.linspace(1, -1, p))))
    y = (rng.random(start[-1]) < chance).astype(float)
    return CenterRows(x, y, start, family or families.Bernoulli(ONE, ZERO))


@pytest.mark.parametrize("columns", [3, 60])  # more columns than rows: the other factorisation
@pytest.mark.parametrize("kind", ["bernoulli", "multinomial"])
def test_posterior_is_the_minimum_that_scipy_finds(columns, kind):
    rng = np.random.default_rng(5)
    rows = _rows(n=1, p=columns, seed=5, sizes=[40])
    family, y, terms = rows.family, rows.y, 1
    if kind == "multinomial":
        family, y, terms = (
            families.Multinomial(np.eye(3), np.zeros(3)),
            rng.integers(0, 3, 40).astype(float),
            3,
        )
    shape = (terms, columns + 1)
    prior = CommonModel(rng.normal(0, 0.3, shape), rng.uniform(0.05, 0.5, shape))
    x = rows.design(0)
    found = posterior(x, y, family, prior)

    def negative(flat):
        model = flat.reshape(shape)
        z = x @ model.T @ family.mix + family.baseline
        distance = (model - prior.mean) ** 2 / prior.variance
        return family.loss(z, y).sum() + 0.5 * distance.sum()

    best = minimize(negative, prior.mean.ravel(), method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-14})
    assert negative(found.model.ravel()) == pytest.approx(best.fun, abs=2e-3)
    assert found.model.ravel() == pytest.approx(best.x, abs=0.03)
    assert (found.dof >= -1e-9).all() and (found.dof <= 1 + 1e-9).all()


def test_gaussian_evidence_is_exact():
    rng = np.random.default_rng(6)
    x = np.column_stack([rng.standard_normal((30, 2)), np.ones(30)])
    y = rng.standard_normal(30)
    variance, noise = np.array([[0.4, 0.1, 2.0]]), 0.7
    family = families.Gaussian(ONE, ZERO)
    found = posterior(x, y, family, CommonModel(np.zeros((1, 3)), variance, noise))
    cov = noise * np.eye(30) + (x * variance) @ x.T
    _, logdet = np.linalg.slogdet(cov)
    exact = -0.5 * y @ np.linalg.solve(cov, y) - 0.5 * logdet + 0.5 * 30 * np.log(noise)
    assert found.evidence == pytest.approx(exact, abs=1e-6)


def test_scores_are_derivatives_of_the_summed_loss():
    rows = _rows()
    variance = np.zeros((1, 4))
    variance[0, -1] = 0.5
    mean = np.array([[0.2, -0.1, 0.3, -0.4]])
    found = common_sums(rows, CommonModel(mean, variance))
    for k in range(4):
        shift = np.zeros((1, 4))
        shift[0, k] = 1e-4
        up = common_sums(rows, CommonModel(mean + shift, variance))["loss"]
        down = common_sums(rows, CommonModel(mean - shift, variance))["loss"]
        assert found["score"][:, 0, k] == pytest.approx(-(up - down) / 2e-4, abs=2e-2)


def test_curvature_is_the_second_derivative_of_the_profiled_loss():
    rows = _rows(n=1, sizes=[50])
    variance = np.zeros((1, 4))
    variance[0, -1] = 0.5
    mean = np.array([[0.2, -0.1, 0.3, -0.4]])
    ((found, _),) = center_curvatures(rows, CommonModel(mean, variance))
    for k in range(4):
        shift = np.zeros((1, 4))
        shift[0, k] = 1e-3
        up = common_sums(rows, CommonModel(mean + shift, variance))["score"][0, 0]
        down = common_sums(rows, CommonModel(mean - shift, variance))["score"][0, 0]
        assert found[k] == pytest.approx(-(up - down) / 2e-3, abs=0.02)


def test_quasi_newton_steps_reach_the_penalised_optimum():
    linear_model = pytest.importorskip("sklearn.linear_model")
    rows = _rows(n=1, p=5, sizes=[400], seed=8)
    q = 6
    variance = np.zeros((1, q))
    variance[0, -1] = 1e-6  # one center: its intercept is the common one
    group = np.array([0] * 5 + [-1])
    ((matrix, middle),) = center_curvatures(rows, CommonModel(np.zeros((1, q)), variance))
    fit = hierarchical.FitState(
        np.zeros(q),
        hierarchical.assemble_curvature(matrix),
        np.append(np.full(5, 2.0), 1e-6),
        group,
        middle / middle[0, -1],
        np.array([1e-6]),
        np.array([0.01]),
        1,
    )
    for _ in range(8):
        sums = common_sums(rows, CommonModel(fit.point.reshape(1, q), variance))
        losses = [
            common_losses(rows, CommonModel(fit.part_of_step(part).reshape(1, q), variance))[0]
            for part in hierarchical.FRACTIONS
        ]
        assert losses[0] == pytest.approx(sums["loss"][0])
        fit = hierarchical.quasi_newton_step(fit, sums["score"][0].ravel(), np.array(losses), 400.0)
    ridge = float(fit.penalty[0])
    oracle = linear_model.LogisticRegression(C=1 / ridge, tol=1e-10, max_iter=5000).fit(rows.x, rows.y)
    assert fit.point[:5] == pytest.approx(oracle.coef_[0], abs=5e-3)
    # Sums over fewer rows count per row; their loss is smaller than the one before, and not held against it.
    score, told = sums["score"][0].ravel(), np.array(losses)
    every = hierarchical.quasi_newton_step(fit, score, told, 400.0)
    start, old, _ = fit.base
    fewer = hierarchical.quasi_newton_step(
        replace(fit, base=(start, 1.25 * old, -1e9), rows=500.0), score, told, 400.0
    )
    assert fewer.curvature == pytest.approx(every.curvature)
    assert (fewer.base[0] != start).any()


def test_a_change_of_the_gradient_that_is_not_of_the_step_does_not_count():
    rng = np.random.default_rng(0)
    curvature, step = np.diag(rng.uniform(1, 9, 12)), rng.standard_normal(12)
    change = 1.3 * curvature @ step
    assert hierarchical.bfgs(curvature, step, change) @ step == pytest.approx(change)
    aside = np.linalg.svd(step[None])[2][-1]  # orthogonal to the step
    assert (hierarchical.bfgs(curvature, step, change + 500 * aside) == curvature).all()


def test_penalties_maximise_the_evidence_of_a_linear_regression():
    linear_model = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(9)
    x = rng.standard_normal((300, 20))
    y = x @ rng.normal(0, 0.5, 20) + rng.standard_normal(300)
    oracle = linear_model.BayesianRidge(
        fit_intercept=False, tol=1e-10, max_iter=2000, alpha_1=0, alpha_2=0, lambda_1=0, lambda_2=0
    ).fit(x, y)
    noise = 1 / oracle.alpha_
    penalty, mode = hierarchical.evidence_penalties(
        x.T @ x / noise, x.T @ y / noise, np.ones(20), np.zeros(20, dtype=int)
    )
    assert penalty[0] == pytest.approx(oracle.lambda_, rel=0.03)
    assert mode == pytest.approx(oracle.coef_, abs=1e-3)


def test_variances_are_a_fixed_point_of_squares_over_degrees_of_freedom():
    sums = {"squares": np.array([0.4, 0.4]), "dof": np.array([40.0, 40.0])}
    sums |= {"shift_squares": np.array([3.0]), "shift_dof": np.array([6.0])}
    each, intercept = hierarchical.variances(sums, np.array([0.01, 0.01]))
    assert each == pytest.approx([0.01, 0.01])
    assert intercept == pytest.approx([0.5])
    larger, _ = hierarchical.variances(sums, np.array([0.005, 0.02]))
    assert larger[0] > 0.01 > larger[1]


def test_compressed_curvature_stays_near_and_positive_definite():
    rng = np.random.default_rng(10)
    x = rng.standard_normal((5000, 30))
    x[:, 1] += x[:, 0]
    x[:, 7] -= 0.5 * x[:, 3]
    correlation = hierarchical.shrunken_correlation(x.T @ x, 5000)
    size = np.sqrt(np.diag(x.T @ x))
    exact = x.T @ x / np.outer(size, size)
    kept = (correlation - np.eye(30))[1, 0] / exact[1, 0]
    assert 0.3 <= kept < 1
    assert correlation - np.eye(30) == pytest.approx(kept * (exact - np.eye(30)))
    factors, gaps, values = hierarchical.compress(correlation, 1, 60)
    assert (gaps >= 0).all() and (gaps <= hierarchical.WIDEST_GAP).all()
    again = hierarchical.decompress(factors, gaps, values)
    assert np.linalg.eigvalsh(again)[0] > 0
    assert again == pytest.approx(correlation, abs=0.05)
    everything = hierarchical.decompress(*hierarchical.compress(correlation, 1, 30 * 29 // 2))
    assert everything == pytest.approx(correlation, abs=1e-6)


@pytest.mark.parametrize("sizes", [[3, 30, 0, 40], [200, 5, 5, 5]])
def test_bad_rows_stay_finite(sizes):
    rows = _rows(n=4, p=4, sizes=sizes, seed=11)
    x = rows.x.copy()
    x[:, 1] = 0.0  # a constant column
    x[:, 2] = np.where(rows.y > 0, 5.0, -5.0)  # a column that separates
    y = rows.y.copy()
    y[rows.start[3] :] = 0.0  # a center without events
    rows = CenterRows(x, y, rows.start, rows.family)
    prior = CommonModel(np.zeros((1, 5)), np.full((1, 5), 0.5))
    sums = common_sums(rows, prior)
    assert np.isfinite(sums["score"]).all() and np.isfinite(sums["loss"]).all()
    for i in range(4):
        found = posterior(rows.design(i), rows.outcomes(i), rows.family, prior)
        assert np.isfinite(found.model).all() and np.isfinite(found.evidence)


def test_the_chance_of_a_gain_is_what_simulation_says():
    """Normal outcomes: the loss is exactly quadratic, so draws of posterior and patients must agree."""
    rng = np.random.default_rng(2)
    n, patients = 80, 30
    x = np.column_stack([rng.standard_normal((n, 3)), np.ones(n)])
    y = x @ [0.4, -0.2, 0.1, 0.3] + rng.standard_normal(n)
    family = families.Gaussian(np.ones((1, 1)), np.zeros(1))
    prior = CommonModel(np.zeros((1, 4)), np.full((1, 4), 0.05))
    own = posterior(x, y, family, prior).model
    other = own + rng.normal(0, 0.15, (1, 4))
    covariance = np.linalg.inv(x.T @ x + np.diag(1 / prior.variance[0]))
    wins = 0
    for _ in range(4000):
        truth = rng.multivariate_normal(own[0], covariance)
        new = x[rng.integers(0, n, patients)]
        outcome = new @ truth + rng.standard_normal(patients)
        wins += ((outcome - new @ own[0]) ** 2).sum() < ((outcome - new @ other[0]) ** 2).sum()
    found = chance_of_gain(x, y, family, prior, own, other, patients)
    assert found == pytest.approx(wins / 4000, abs=0.03)


def test_a_refused_step_raises_the_curvature_to_what_losses_say():
    """Of a quadratic loss three points of a line give the curvature along it exactly."""
    rng = np.random.default_rng(11)
    root = rng.standard_normal((6, 5))
    true, step = root.T @ root, rng.standard_normal(5)
    slope = float(rng.standard_normal(5) @ step)
    losses = np.array([part * slope + 0.5 * part**2 * step @ true @ step for part in hierarchical.FRACTIONS])
    known = np.diag([4.0, 3.0, 2.0, 1.0, 1e-3])
    low = known * float(step @ true @ step / (step @ known @ step)) / 5
    found = hierarchical.raised(low, step, losses)
    assert step @ found @ step == pytest.approx(step @ true @ step)
    assert np.linalg.eigvalsh(found - low).min() > -1e-9
    assert (hierarchical.raised(10 * low, step, losses) == 10 * low).all()  # it is large enough
