"""Every method that only averages is local training when there is nobody to average with."""

from __future__ import annotations

import numpy as np
import pytest

from abps.methods.catalog import CATALOG
from abps.methods.fedavg import FedAvg, FedProx
from abps.methods.references import Local
from abps.methods.settings import with_settings

AVERAGING = ["fedavg", "fedavg-p", "fedper", "decefl", "dpsgd", "defta", "gossip"]
AVERAGING += ["random-k1", "random-k3", "abps", "abps-p", "abps-pq-k1"]


@pytest.mark.parametrize("name", AVERAGING)
def test_alone_it_is_local_training(ready, context, play, name) -> None:
    config = CATALOG[name].config
    alone = context(config.training, ready.only(3))
    local = play(Local(training=config.training), alone, 3)[-1].models
    np.testing.assert_allclose(play(config, alone, 3)[-1].models, local, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "config", [FedAvg(), FedProx(mu=0.0), with_settings(CATALOG["moon"].config, {"mu": 0.0})]
)
def test_exactly(ready, context, play, config) -> None:
    alone = context(config.training, ready.only(3))
    assert np.array_equal(
        play(config, alone, 3)[-1].models, play(Local(training=config.training), alone, 3)[-1].models
    )


@pytest.mark.parametrize("name", ["wpfed", "scaffold", "feddyn", "moon", "bnn", "ditto", "fedavgm", "fedrep"])
def test_one_center_runs(ready, context, play, name) -> None:
    config = CATALOG[name].config
    assert np.isfinite(play(config, context(config.training, ready.only(3)), 2)[-1].models).all()
