"""A method from outside the package: in the simulation, between sites, and at their doors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from abps import simulate
from abps.core.errors import RequestError
from abps.sites.consent import sitefile
from abps.sites.consent.agreement import Agreement
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.protocol.commands import Timeouts

from .loopback import LoopbackNetwork
from .network import close, open_site


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "foreign")


def test_it_is_short():
    text = (Path(__file__).parents[1] / "foreign" / "rotation.py").read_text()
    code = text[text.index("@dataclass") :]
    assert len([line for line in code.splitlines() if line.strip()]) <= 32


def test_sites_do_what_the_simulation_does(six, tmp_path):
    """Two jobs, the sites closed in between: its state is in the store, whatever it is."""
    agreement = six.agreement("rotation:ROTATION", rounds=5, share="0.3")
    spent = dict.fromkeys(("edge", "directed", "control"), 0)
    for rounds in (2, 3):
        network = LoopbackNetwork()
        for name in six.names:
            open_site(six, name, agreement, tmp_path, network)
        report = Scheduler(network, agreement, rounds, Timeouts(poll=0.0)).run(six.names)
        spent = {kind: spent[kind] + size for kind, size in report.to_json()["bytes"].items()}
        close(network)
    run = simulate(six.together, "rotation:ROTATION", seed=11, rounds=5, settings={"share": "0.3"})
    assert spent == {"edge": run.bytes.edge, "directed": run.bytes.directed, "control": run.bytes.control}
    models = np.stack([network.sites[name].models[0] for name in six.names])
    np.testing.assert_allclose(models, run.models, atol=1e-5)
    times = np.stack([network.sites[name].context.state.times[0] for name in six.names])
    np.testing.assert_array_equal(times, times.T)
    assert times.sum() == run.partners_mean * 6 * 5 and times.max() <= 2  # everybody in turn


def test_a_site_imports_only_what_it_allows(six, tmp_path):
    foreign = six.agreement("stranger:ROTATION")
    with pytest.raises(RequestError, match="does not allow the package 'stranger'"):
        foreign.admitted(("rotation",))
    assert foreign.admitted(("stranger",)) is foreign
    for settings in ({"codec": "stranger.codecs:BIG"}, {"goals": "none,stranger:older"}):
        with pytest.raises(RequestError, match="does not allow the package 'stranger'"):
            # Nothing of the settings has been looked up yet when a site asks itself this.
            replace(six.agreement("abps"), settings=settings).admitted(())
    assert six.agreement("abps", codec="bf16", goals="none,homogeneity").admitted(())
    own = sitefile.SiteFile("a", "table.csv", "died", "store", allow=("stranger",))
    assert sitefile.read(own.write(tmp_path)) == own


def test_another_code_is_another_agreement(six, monkeypatch):
    agreement = six.agreement("rotation:ROTATION")
    before = agreement.digest()
    assert replace(agreement).digest() == before == Agreement.from_json(agreement.to_json()).digest()
    monkeypatch.setattr("inspect.getsource", lambda kind: "# a newer version")
    assert agreement.digest() != before
