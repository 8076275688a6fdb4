"""The penalty, chosen by the sites: as in the simulation, by four bytes of each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from abps.core.errors import RequestError
from abps.engine.simulate import simulate
from abps.sites.coordinator import trials
from abps.sites.coordinator.loopback import LoopbackNetwork
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.protocol.steps import Timeouts

from .network import close, open_site

QUICK = Timeouts(poll=0.0)
GRID = {"penalties": "3,0.03,0.001", "trial_rounds": "2", "model": "linear"}


class Desks(LoopbackNetwork):
    """Sites that open the study that the conductor names, as their processes do."""

    def __init__(self, given, agreement, folder) -> None:
        super().__init__()
        self.given, self.agreement, self.folder = given, agreement, folder
        self.open: tuple | None = None
        self.lies: dict[str, object] = {}

    def ask(self, sites, what, *arguments, seconds):
        if what == "chosen":
            return dict.fromkeys(sites, -1), {}
        if what == "start" and arguments[0] == "open":
            which = tuple(arguments[2])
            if which != self.open:
                close(self)
                self.open, wanted = which, trials.resolved(self.agreement, which)
                for name in self.given.names:
                    open_site(self.given, name, wanted, self.folder / f"{which[0]}-{which[1]}", self)
        said, failed = super().ask(sites, what, *arguments, seconds=seconds)
        return (said | {k: v for k, v in self.lies.items() if k in said} if what == "loss" else said), failed


def chosen(network, told=lambda line: None):
    """Let the sites choose, and run the study."""
    agreement = network.agreement

    def run(study, rounds, which):
        return Scheduler(network, study, rounds, QUICK, which=which).run(network.given.names)

    place = trials.choose(network, agreement, network.given.names, QUICK, run, told)
    return place, run(agreement.settled(place), agreement.rounds, (trials.CHOSEN, place))


@pytest.mark.parametrize("method", ["abps-pq-k1", "fedavg"])
def test_sites_choose_the_penalty_of_the_simulation(six, tmp_path, method):
    agreement = six.agreement(method, rounds=4, **GRID)
    network, lines = Desks(six, agreement, tmp_path), []
    place, report = chosen(network, lines.append)
    run = simulate(six.together, method, seed=11, rounds=4, settings=GRID)
    assert run.config["training"]["weight_decay"] == agreement.penalties()[place]
    models = np.stack([network.sites[name].store.model() for name in six.names])
    np.testing.assert_allclose(models, run.models, atol=1e-5)
    # The simulation goes on where the trial that won has ended; sites begin anew.
    took = sum(r.edge for r in report.rounds)
    alone = simulate(
        six.together, method, seed=11, rounds=4, settings=dict(agreement.settled(place).settings)
    )
    assert took == alone.bytes.edge and len(lines) == len(agreement.penalties()) + 1
    assert trials.known(agreement, network.sites[six.names[0]].store.facts()["agreement"]) == place
    close(network)


def test_what_a_site_tells_of_a_trial_is_four_bytes_in_its_log(six, tmp_path):
    agreement = six.agreement("abps-pq-k1", rounds=2, **{**GRID, "trial_rounds": "1"})
    network = Desks(six, agreement, tmp_path)
    seen: dict[str, list[int]] = {name: [] for name in six.names}
    ask = network.ask

    def watching(sites, what, *arguments, seconds):
        said = ask(sites, what, *arguments, seconds=seconds)
        if what == "loss":
            for name in sites:
                last = network.sites[name].store.traffic()[-1]
                assert last.kind == "told" and "validation loss" in last.why
                seen[name].append(last.bytes)
        return said

    network.ask = watching
    chosen(network)
    assert set(map(tuple, seen.values())) == {(4, 4, 4)}
    close(network)


def test_nonsense_chooses_nothing(six, tmp_path):
    """A site that lies about its loss moves a mean; what is no number does not count."""
    agreement = six.agreement("abps-pq-k1", rounds=2, **{**GRID, "trial_rounds": "1"})
    honest = Desks(six, agreement, tmp_path / "honest")
    place, _ = chosen(honest)
    close(honest)
    lying = Desks(six, agreement, tmp_path / "lying")
    lying.lies = {six.names[0]: -1e9, six.names[1]: "low"}
    told: list[str] = []
    chosen(lying, told.append)
    assert all("at 4 sites" in line for line in told[:3]) and place in range(3)
    close(lying)


def test_a_penalty_that_was_chosen_stays(six):
    agreement = six.agreement("abps-pq-k1", rounds=2, **GRID)

    class Known:
        def ask(self, sites, what, *arguments, seconds):
            assert what == "chosen"
            return dict(zip(sites, (1, 1, -1, 2, "x", 99))), {}

    def never(*arguments):
        raise AssertionError("nothing is tried again")

    assert trials.choose(Known(), agreement, six.names, QUICK, never) == 1


def test_what_cannot_be_chosen(six):
    agreement = six.agreement("abps-pq-k1", rounds=2, **GRID)
    with pytest.raises(RequestError, match="not chosen yet"):
        Scheduler(LoopbackNetwork(), agreement, 1)
    for which in (None, ("try", 3), ("best", 0), ("try", "0")):
        with pytest.raises(RequestError, match="names no penalty"):
            trials.resolved(agreement, which)
    assert trials.resolved(agreement.settled(0), None).penalties() == ()
    with pytest.raises(RequestError, match="refit"):
        six.agreement("abps-pq-k1", refit="yes").config()


def test_a_loss_is_told_once_and_in_a_trial_alone(four, tmp_path):
    """A relay with altered code asks for it after every round, and of a study without trials."""
    agreement = four.agreement("abps-pq-k1", rounds=2, **{**GRID, "trial_rounds": "1"})
    for study, floor in ((agreement.settled(0), 0), (agreement.trial(0), 0), (agreement.trial(0), 10**6)):
        network = LoopbackNetwork()
        book = replace(study.book, min_cell=floor)
        folder = tmp_path / f"{study.trying}-{floor}"
        site = open_site(four, four.names[0], replace(study, book=book), folder, network)
        if study.trying:
            assert np.isfinite(site.loss()) == (floor == 0)  # of too few patients nothing is told
        with pytest.raises(RequestError, match="told once"):
            site.loss()
        close(network)
