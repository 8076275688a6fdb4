"""Outcome families against numerical derivatives and other libraries."""

import numpy as np
import pytest

from abps.models import families

ROWS = 40


def _cases():
    rng = np.random.default_rng(3)
    one, zero = np.ones((1, 1)), np.zeros(1)
    time = rng.exponential(2.0, ROWS).round(1) + 0.1  # rounded: there are ties
    times = np.where(rng.random(ROWS) < 0.6, time, -time)
    grid = np.array([0.5, 1.5, 3.0, 9.0])
    mix = np.stack([np.ones(4), np.linspace(-1, 1, 4)])
    return {
        "bernoulli": (families.Bernoulli(one, zero), (rng.random(ROWS) < 0.4).astype(float)),
        "gaussian": (families.Gaussian(one, zero), rng.standard_normal(ROWS)),
        "multinomial": (families.Multinomial(np.eye(3), np.zeros(3)), rng.integers(0, 3, ROWS).astype(float)),
        "hazard": (families.Hazard(mix, np.zeros(4), grid), times),
    }


CASES = _cases()


@pytest.mark.parametrize("name", CASES)
def test_residuals_are_derivatives_of_the_loss(name):
    family, y = CASES[name]
    z = np.random.default_rng(1).standard_normal((ROWS, family.mix.shape[1]))
    found = family.residual(z, y)
    step = 1e-5
    for r in range(0, ROWS, 7):
        for k in range(z.shape[1]):
            up, down = z.copy(), z.copy()
            up[r, k] += step
            down[r, k] -= step
            slope = (family.loss(up, y).sum() - family.loss(down, y).sum()) / (2 * step)
            assert found[r, k] == pytest.approx(-slope, abs=1e-6)


@pytest.mark.parametrize("name", ["bernoulli", "gaussian", "multinomial", "hazard"])
def test_information_is_the_curvature_along_terms(name):
    family, y = CASES[name]
    rng = np.random.default_rng(2)
    terms = len(family.mix)
    eta = rng.standard_normal((ROWS, terms))
    found = family.information(eta @ family.mix, y)
    step = 1e-4
    direction = rng.standard_normal(terms)

    def slope(move: float) -> np.ndarray:
        return family.residual((eta + move * direction) @ family.mix, y) @ family.mix.T

    expected = -(slope(step) - slope(-step)) / (2 * step)
    assert np.einsum("rts,s->rt", found, direction) == pytest.approx(expected, abs=1e-4)


def test_extreme_predictors_stay_finite():
    for family, y in CASES.values():
        z = np.full((ROWS, family.mix.shape[1]), 800.0)
        z[::2] = -800.0
        assert np.isfinite(family.loss(z, y)).all()
        assert np.isfinite(family.residual(z, y)).all()
        assert np.isfinite(family.information(z, y)).all()
