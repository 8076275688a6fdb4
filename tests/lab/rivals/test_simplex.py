"""The nearest point of the simplex, against a solver."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from abps.lab.rivals.simplex import nearest


def test_it_is_what_a_solver_finds() -> None:
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(12, 7)) * rng.choice([0.1, 1.0, 5.0], size=(12, 1))
    for row, found in zip(rows, nearest(rows)):
        solved = minimize(
            lambda g, row=row: float(((g - row) ** 2).sum()),
            np.full(7, 1 / 7),
            jac=lambda g, row=row: 2 * (g - row),
            bounds=[(0, 1)] * 7,
            constraints={"type": "eq", "fun": lambda g: g.sum() - 1},
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        np.testing.assert_allclose(found, solved.x, atol=1e-6)


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=9), st.floats(-20, 20))
def test_shares_and_a_constant_that_changes_nothing(row: list[float], shift: float) -> None:
    given_row = np.array([row])
    found = nearest(given_row)
    assert (found >= 0).all()
    np.testing.assert_allclose(found.sum(), 1.0)
    np.testing.assert_allclose(nearest(given_row + shift), found, atol=1e-9)
    # The larger stays the larger, and what is on the simplex stays where it is.
    assert (np.diff(found[0][np.argsort(row, kind="stable")]) >= 0).all()
    np.testing.assert_allclose(nearest(found), found, atol=1e-12)
