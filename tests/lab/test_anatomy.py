"""The anatomy of made federations is what they were made with, and of real ones what others measured."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from scipy.special import expit

from abps.data.federation import Federation
from abps.lab.anatomy import anatomy
from abps.lab.suite import make_federation, suite


def made(intercepts: float, slopes: float, seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    center = np.repeat(np.arange(50), 200).astype(np.int32)
    x = rng.normal(size=(len(center), 5))
    b = np.array([0.8, -0.6, 0.5, 0.4, -0.3]) + slopes * rng.normal(size=(50, 5))
    z = -1.0 + intercepts * rng.normal(size=50)[center] + (x * b[center]).sum(axis=1)
    label = (rng.random(len(z)) < expit(z)).astype(np.int8)
    features = pl.DataFrame({f"x{k}": x[:, k] for k in range(5)})
    return Federation("made", features, label, center, tuple(f"h{i:02d}" for i in range(50)))


def test_what_a_federation_was_made_with_is_found():
    alike, apart = anatomy("alike", made(0.0, 0.0)), anatomy("apart", made(0.6, 0.3))
    assert alike.intercept_sd < 0.15 and abs(alike.slope_z) < 3 and alike.slope_sd < 0.1
    assert apart.intercept_sd == pytest.approx(0.6, abs=0.15)
    assert apart.slope_sd == pytest.approx(0.3, abs=0.08) and apart.slope_z > 5
    federation = made(0.6, 0.3)
    assert (apart.hospitals, apart.rows, apart.median) == (50, 10_000, 200)
    assert apart.events == federation.label.sum() and apart.rate == pytest.approx(federation.label.mean())


def test_chance_is_seldom_taken_for_a_difference():
    found = [anatomy("alike", made(0.5, 0.0, seed)).slope_z for seed in range(1, 9)]
    assert np.mean(np.abs(found)) < 1.8


#: Standard deviations of intercepts and z of different effects, as measured elsewhere with other tools
#: (mixed models, center × column interactions against a bootstrap), for all of a table's centers.
MEASURED = {"dialysis-rio": (0.68, 5.7), "impact": (0.32, 3.0), "zambia": (0.39, 1.0), "rand-hie": (0.0, 0.0)}


@pytest.mark.parametrize("name", MEASURED)
def test_real_federations_are_as_others_measured(data, name):
    folder = data("hospitals").parent
    found = anatomy(name, make_federation(suite()[name], folder, 1))
    sd, z = MEASURED[name]
    assert found.intercept_sd == pytest.approx(sd, abs=0.15)
    assert found.slope_z == pytest.approx(z, abs=2.5)
