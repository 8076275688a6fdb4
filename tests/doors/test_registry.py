"""Names lead to things of the right kind, or to one sentence."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from abps import registry
from abps.core.errors import RequestError
from abps.core.goals import GOALS, homogeneity
from abps.methods.catalog import METHODS, find
from abps.methods.fedavg import FedAvg
from abps.wire.codecs import CODECS, Float32


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of somebody's, importable."""
    (tmp_path / "somebodys.py").write_text(
        "from abps.methods.peers import PeerMethod\n"
        "from abps.methods.fedavg import FedAvg\n"
        "from abps.wire.codecs import Float32\n"
        "MINE = FedAvg(smoothing=0.5)\n"
        "class Half(PeerMethod):\n    pass\n"
        "BIG = Float32('big', 200)\n"
        "OURS = Float32('mine', 3)\n"
        "def older(centers, peers):\n    return centers[:, :1] - peers[None, :, 0]\n"
        "three = 3\n"
    )
    (tmp_path / "needy.py").write_text("import no_such_library\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("somebodys", "needy", "broken"):
        sys.modules.pop(name, None)


def test_a_place_in_any_module(module):
    assert find("somebodys:MINE") == FedAvg(smoothing=0.5)
    assert find("abps.methods.fedavg:FedAvg") == FedAvg()
    assert CODECS.find("somebodys:BIG") == Float32("big", 200)
    assert GOALS.find("somebodys:older").__name__ == "older"
    assert GOALS.find("homogeneity") is homogeneity


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fedavgg", "there is no method 'fedavgg' (did you mean 'fedavg'"),
        ("scafold", "there is no method 'scafold' (did you mean 'scaffold'"),
        ("no_such_module:X", "there is no module 'no_such_module'"),
        ("abps.nothing:X", "there is no module 'abps.nothing'"),
        ("needy:X", "importing needy failed: No module named 'no_such_library'"),
        ("broken:X", "importing broken failed with ZeroDivisionError: division by zero"),
        ("somebodys:MIND", "somebodys has no MIND (did you mean 'MINE'"),
        ("somebodys:three", "somebodys:three is not a method but of type int"),
        ("somebodys:Half", "Half is not a whole method"),
        ("somebodys:", "write package.module:NAME"),
        (":x", "write package.module:NAME"),
        ("a b:c", "write package.module:NAME"),
    ],
)
def test_bad_doors_get_one_sentence(module, name, said):
    with pytest.raises(RequestError) as caught:
        find(name)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_codecs_and_goals_of_the_wrong_kind(module):
    with pytest.raises(RequestError, match="three is not a codec but of type int"):
        CODECS.find("somebodys:three")
    with pytest.raises(RequestError, match="number 3; choose one from 128 to 255"):
        CODECS.find("somebodys:OURS")
    with pytest.raises(RequestError, match="is not a goal"):
        GOALS.find("somebodys:three")
    with pytest.raises(
        RequestError, match=r"there is no codec 'fp31' .did you mean 'fp32'\?\); there are fp32"
    ):
        CODECS.find("fp31")


def test_an_entry_point_is_a_name(module, monkeypatch):
    points = EntryPoints([EntryPoint("mine", "somebodys:MINE", METHODS.group)])
    monkeypatch.setattr(registry, "_entry_points", lambda group: points.select(group=group))
    assert find("mine") == FedAvg(smoothing=0.5)
    assert METHODS.names()[-1] == "mine"
    with pytest.raises(RequestError, match="did you mean 'mine'"):
        find("mime")
