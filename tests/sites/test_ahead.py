"""A site trains for the next round while others are busy: the same models, and nothing else is different."""

import numpy as np
import pytest

from abps.sites.coordinator.loopback import LoopbackNetwork
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.protocol.steps import Timeouts

from .network import close, hospitals, open_site

QUICK = Timeouts(poll=0.0)
SMALL = {"model": "linear", "standardise": "own", "epochs": 1, "clip": 1.0, "dp_epsilon": 5.0}


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return hospitals(tmp_path_factory.mktemp("ahead"), 4, 800)


def ran(four, agreement, folder, ahead):
    folder.mkdir()
    network = LoopbackNetwork()
    for name in four.names:
        open_site(four, name, agreement, folder, network, ahead=ahead)
    Scheduler(network, agreement, agreement.rounds, QUICK).run(four.names)
    models = np.stack([network.sites[name].models[0] for name in four.names])
    used = [network.sites[name].learning.used_ahead for name in four.names]
    close(network)
    return models, used


@pytest.mark.parametrize(
    ("method", "settings", "expected"),
    [
        ("abps-pq-k1", {"model": "gam"}, 2),
        ("fedavg", {}, 2),
        # What peers tell before a round changes what it starts from, and a privacy account is paid first.
        ("abps-x", {"forget": "alarm", "watch": "utility"}, 0),
        ("abps-pq-k1-hom", SMALL, 0),
    ],
)
def test_training_ahead_changes_no_model(four, tmp_path, method, settings, expected):
    agreement = four.agreement(method, rounds=3, **settings)
    plain, none = ran(four, agreement, tmp_path / "plain", False)
    early, used = ran(four, agreement, tmp_path / "early", True)
    assert none == [0] * 4 and used == [expected] * 4
    np.testing.assert_array_equal(plain, early)


def test_who_comes_in_between_makes_the_training_ahead_void(four, tmp_path):
    agreement, network = four.agreement("abps-pq-k1", rounds=3, model="gam"), LoopbackNetwork()
    sites = [open_site(four, name, agreement, tmp_path, network, ahead=True) for name in four.names[:3]]
    for site in sites:
        site.join(four.names, 1)
        site.introduce(1)
    site = sites[0]
    site.train(1, live=four.names)
    site.conclude(1)
    late = open_site(four, four.names[3], agreement, tmp_path, network)
    late.join(four.names, 2)
    late.introduce(2)  # another vector: the world is not what it was
    site.train(2, live=four.names)
    site.conclude(2)
    assert site.learning.used_ahead == 0
    site.train(3, live=four.names)
    assert site.learning.used_ahead == 1
    close(network)
