"""Common scales counted under masks between sites: the simulation's, and nobody sees what one site has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from abps.core.errors import RequestError
from abps.data.prepare import codebook, numeric_rows, prepare
from abps.data.scales import FIRST, PASSES, bin_counts
from abps.data.split import assign_splits
from abps.engine.simulate import simulate
from abps.methods.accounting import counting_of
from abps.methods.settings import configure
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.proposal import Proposal
from abps.sites.coordinator.scheduler import Scheduler, measure
from abps.sites.node import measuring
from abps.sites.node.context import JobTerms, account_of
from abps.sites.protocol.commands import Timeouts
from abps.sites.store.store import Store

from .network import close, open_site
from .test_masking import LOST, Relay

QUICK = Timeouts(poll=0.0)


class Desks(Relay):
    """Sites that open what the conductor names, as their processes do: counts first, then the study."""

    def __init__(self, given, agreement, folder, change=lambda name, what, value: value) -> None:
        super().__init__(change)
        self.given, self.agreement, self.folder, self.open = given, agreement, folder, None

    def ask(self, sites, what, *arguments, seconds):
        if what == "start" and arguments[0] == "open":
            wanted = arguments[1:]
            if wanted != self.open:
                close(self)
                self.open = wanted
                for name in self.given.names:
                    self.sites[name] = self._counter(name) if wanted == ([measuring.MEASURE],) else None
                    if self.sites[name] is None:
                        study = measuring.resolved(self.agreement, wanted[1], self._kept(name))
                        open_site(self.given, name, study, self.folder, self)
        return super().ask(sites, what, *arguments, seconds=seconds)

    def _counter(self, name):
        store = Store.open(self.path(name), name, self.agreement.digest(), self.agreement.notes())
        table = self.given.table(name, self.agreement.book)
        return measuring.ScaleCounting(name, self.agreement, table, store, JobTerms(secret=7))

    def path(self, name):
        return self.folder / f"{name}-scales.sqlite"

    def _kept(self, name):
        store = Store.look(self.path(name))
        try:
            return measuring.kept_in(store)
        finally:
            store.close()

    def measured(self, names=None, log=lambda line: None):
        return measure(self, self.agreement, names or self.given.names, QUICK, log)


def uncounted(given, method, rounds=2, **settings):
    settings = {"secure": "yes", **settings}
    return Agreement("test", method, codebook(given.together, 11), 11, rounds, settings)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("abps-plus", {"model": "linear"}),
        ("fedavg", {"model": "gam"}),
        ("glm-exact", {"model": "gam"}),
    ],
)
def test_sites_do_what_the_simulation_does(four, tmp_path, method, settings):
    """Scales are counted under masks, and the codebook tells nothing but names."""
    agreement = uncounted(four, method, **settings)
    network = Desks(four, agreement, tmp_path)
    scales = network.measured()
    study = measuring.with_scales(agreement, scales)
    report = Scheduler(network, study, 2, QUICK, scales=scales).run(four.names)
    run = simulate(four.together, method, 11, 2, {"secure": "yes", **settings})
    assert not report.left_out
    models = np.stack([network.sites[name].models[0] for name in four.names])
    np.testing.assert_allclose(models, run.models, atol=2e-5)
    close(network)


def test_nobody_sees_a_site_s_counts(four, tmp_path):
    """What the conductor gets of each site is noise; the totals are right; and it is in the site's log."""
    agreement = uncounted(four, "fedavg", model="linear")
    network = Desks(four, agreement, tmp_path)
    network.measured()
    split = assign_splits(four.together, 11, agreement.book.shared_patients)
    values, start, _ = numeric_rows(four.together, split, agreement.uncounted)
    owner = np.repeat(np.arange(4), np.diff(start))
    exact = bin_counts(values, owner, 4, np.tile(FIRST, (len(values), 1))).reshape(4, -1)
    masked = [(name, value) for what, name, value in network.seen if what == "sum_masked"]
    assert len(masked) == PASSES * 4
    for place, (name, value) in enumerate(masked[:4]):
        words = np.frombuffer(value, "<u8")
        plain = (exact[four.names.index(name)] * 2**20).astype(np.uint64)
        assert place < 4 and len(words) == 1 + len(plain) and not np.any(words[:-1] == plain)
        assert np.mean((words >> np.uint64(56)) == 0) < 0.02 and np.mean((plain >> np.uint64(56)) == 0) == 1
    for site in network.sites.values():
        log = site.store.traffic()
        assert sum(e.kind == "statistics" and e.sent for e in log) == PASSES
        assert {e.kind for e in log if e.sent} == {"report", "mask", "statistics"}
    told = [value for what, _, value in network.seen if what == "measure"]
    assert all(set(each) == {"agreement", "rows", "scales"} and each["scales"] is None for each in told)
    close(network)


def test_a_site_that_falls_away_is_left_out_and_the_rest_have_their_scales(six, tmp_path):
    gone = six.names[2]
    agreement = uncounted(six, "fedavg", model="linear")
    network = Desks(
        six, agreement, tmp_path, lambda name, what, v: LOST if (name, what) == (gone, "sum_introduce") else v
    )
    words: list[str] = []
    found = network.measured(log=words.append)
    assert (
        any(f"{gone} does not count" in line for line in words) and gone not in found["summarised"]["bytes"]
    )
    rest = [k for k, name in enumerate(six.names) if name != gone]
    split = assign_splits(six.together, 11, agreement.book.shared_patients)
    values, start, _ = numeric_rows(six.together, split, agreement.uncounted)
    kept = np.concatenate([np.arange(start[k], start[k + 1]) for k in rest])
    for name, column in zip(agreement.uncounted, values[:, kept]):
        scale, known = found["statistics"][name], column[np.isfinite(column)]
        if scale["spread"]:
            assert abs(scale["center"] - known.mean()) < 0.2 * known.std()
    # Who was away joins the study with the scales of the others.
    study = measuring.resolved(agreement, found, None)
    assert study.uncounted == () and study.digest() == measuring.with_scales(agreement, found).digest()
    close(network)


def test_a_conductor_cannot_choose_bins_nor_name_scales(four, tmp_path):
    agreement = uncounted(four, "fedavg", model="linear")
    network = Desks(four, agreement, tmp_path)
    ask = network.ask

    def lying(sites, what, *arguments, seconds):
        if what == "start" and arguments[0] == "sum_total":  # as if nobody had any value
            arguments = (*arguments[:2], bytes(len(arguments[2])))
        return ask(sites, what, *arguments, seconds=seconds)

    network.ask = lying
    with pytest.raises(RequestError, match="could not be counted"):
        network.measured()
    assert all(measuring.kept_in(site.store) is None for site in network.sites.values())
    close(network)
    honest = Desks(four, agreement, tmp_path / "honest")
    found = honest.measured()
    other = {**found, "statistics": {k: {**v, "spread": 1e-6} for k, v in found["statistics"].items()}}
    with pytest.raises(RequestError, match="other common scales"):
        measuring.resolved(agreement, other, found)
    fewer = {**found, "statistics": dict(list(found["statistics"].items())[1:])}
    for wrong in (fewer, {}, {**found, "summarised": {"seed": 12, "bytes": {}}}, None):
        with pytest.raises(RequestError):
            measuring.resolved(agreement, wrong, None)
    # Without scales nothing is prepared: a site would read its columns by its own.
    with pytest.raises(RequestError, match="not been counted"):
        agreement.prepare(four.table(four.names[0], agreement.book))
    close(honest)
    again = Desks(four, agreement, tmp_path / "honest")
    assert again.measured() == found and not any(what.startswith("sum_") for what, _, _ in again.seen)
    close(again)


def test_two_totals_that_differ_by_a_site_are_not_opened(six, tmp_path):
    """A relay that loses a job after the first total, and counts again without one site, would learn it."""
    agreement = uncounted(six, "fedavg", model="linear")
    network = Desks(six, agreement, tmp_path)
    ask = network.ask

    def breaking(sites, what, *arguments, seconds):
        if what == "start" and arguments[0] == "sum_total":
            raise RequestError("the job is lost")
        return ask(sites, what, *arguments, seconds=seconds)

    network.ask = breaking
    with pytest.raises(RequestError, match="the job is lost"):
        network.measured()
    close(network)
    later = Desks(six, agreement, tmp_path)
    with pytest.raises(RequestError, match="could not be counted"):
        later.measured(six.names[1:])
    assert not any(what == "sum_masked" for what, _, _ in later.seen)
    close(later)
    same = Desks(six, agreement, tmp_path)
    assert same.measured()["statistics"]
    close(same)


def test_a_site_that_adds_what_it_has_not_is_found(four, tmp_path):
    agreement = uncounted(four, "fedavg", model="linear")
    network = Desks(four, agreement, tmp_path)
    liar = four.names[1]
    ask = network.ask

    def adding(sites, what, *arguments, seconds):
        if what == "sum_masked" and liar in sites:
            site = network.sites[liar]
            counts = site._counts
            site._counts = lambda: counts() + 1e6
        return ask(sites, what, *arguments, seconds=seconds)

    network.ask = adding
    with pytest.raises(RequestError, match="adds what it has not"):
        network.measured()
    close(network)


def test_counts_are_paid_for(four, tmp_path):
    """With a budget, counts have noise of the site's own, and its account begins with them."""
    settings = {"model": "linear", "clip": "1", "dp_epsilon": "8", "epochs": "1"}
    agreement = uncounted(four, "fedavg", rounds=2, **settings)
    network = Desks(four, agreement, tmp_path)
    network.measured()
    noise = agreement.config().training.noise_multiplier
    for site in network.sites.values():
        account = account_of(site.store)
        assert [r.what for r in account.releases] == ["statistics"] * PASSES and account.spent() > 0
        assert {r.noise for r in account.releases} == {noise}
    plain = counting_of(configure("fedavg", {**settings, "secure": "yes"}, 2), 11)
    assert plain is not None and plain.masked
    close(network)


def test_the_proposal_says_what_is_counted(four):
    agreement = uncounted(four, "fedavg", model="linear")
    terms = Proposal(agreement).terms()
    assert terms["counted by all sites under masks before"] == list(agreement.uncounted)
    assert agreement.uncounted == agreement.book.numbers
    told = replace(agreement, book=four.book(11, "common"))
    assert told.uncounted == ()
    own = replace(agreement, settings={"secure": "yes", "model": "linear", "standardise": "own"})
    assert own.uncounted == () and prepare(four.table(four.names[0], own.book), 11, own.book).size == 1
