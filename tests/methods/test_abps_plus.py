"""abps-plus in the simulator."""

import numpy as np
import pytest

import abps
from abps.data.table import load
from abps.methods.abps_plus import ABPSPlus, Phase, column_groups
from abps.methods.settings import configure


@pytest.fixture(scope="module")
def small():
    return load("icu-synthetic:heterogeneity=0,centers=12,stays=3000,seed=5")


def test_groups_of_columns():
    penalty, variance = column_groups(("age ~1", "age ~2", "age ~3", "sex", "hr ~1", "hr ~2"), 1)
    assert penalty.tolist() == [1, 2, 2, 0, 1, 2, -1]
    assert variance.tolist() == [0, 1, 1, 2, 3, 4, -1]
    penalty, variance = column_groups(("a", "b ~1"), 2)
    assert penalty.tolist() == [0, 1, -1, 2, 3, -1]
    assert variance.tolist() == [0, 1, -1, 2, 3, -1]


def test_phases():
    method = ABPSPlus()
    phases = [method.phase(t) for t in range(1, 10)]
    assert phases == [Phase.START] + [Phase.COMMON_FIT] * 5 + [Phase.VARIANCES] * 2 + [Phase.OVER]


def test_it_beats_every_center_alone_and_a_run_repeats(small):
    run = abps.simulate(small, "abps-plus", seed=3)
    again = abps.simulate(small, "abps-plus", seed=3)
    alone = abps.simulate(small, "local-best", seed=3)
    assert run.rounds == 8
    assert run.auroc.mean > alone.auroc.mean + 0.02
    assert np.array_equal(run.models, again.models)
    assert 0 < run.bytes.all_vs_fedavg < 0.02
    assert run.bytes.edge == 0 and run.bytes.control > 0


def test_other_models_are_refused():
    with pytest.raises(abps.RequestError, match="linear or gam"):
        configure("abps-plus", {"model": "mlp"})
