"""Masked sums between sites: the simulation's models, and a relay that sees no summand and cannot lie."""

from __future__ import annotations

import numpy as np
import pytest

from abps.core.errors import RequestError
from abps.engine.simulate import simulate
from abps.privacy.secure_sum import Member
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.approval import Consent
from abps.sites.consent.keys import read_signer
from abps.sites.consent.proposal import Proposal, SignedProposal
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.protocol.commands import Command, DeclineCode, DeclineError, Failure, Timeouts
from abps.sites.protocol.masking import MaskedSums
from abps.sites.store.audit import Journal
from abps.sites.store.rows import EntryKind
from abps.sites.store.store import Store

from .loopback import LoopbackNetwork
from .network import OPEN, close, open_site

QUICK = Timeouts(poll=0.0)
PLUS = {"model": "linear", "standardise": "own", "secure": "yes"}


class Relay(LoopbackNetwork):
    """Keeps everything that goes through the relay, and may change or lose it."""

    def __init__(self, change=lambda name, what, value: value):
        super().__init__()
        self.seen, self.change = [], change

    def ask(self, sites, what, *arguments, seconds):
        said, failed = super().ask(sites, what, *arguments, seconds=seconds)
        self.seen += [(what, name, value) for name, value in said.items()]
        changed = {name: self.change(name, what, value) for name, value in said.items()}
        lost = {name for name, value in changed.items() if value is LOST}
        kept = {name: value for name, value in changed.items() if name not in lost}
        return kept, failed | dict.fromkeys(lost, Failure(DeclineCode.UNREACHABLE, "lost"))


LOST = object()


class Looking(Relay):
    """Also keeps the summands as they were before they were masked, which only sites see."""

    def __init__(self, change=lambda name, what, value: value):
        super().__init__(change)
        self.taken = {}

    def ask(self, sites, what, *arguments, seconds):
        if what == "sum_masked":
            self.taken.update({name: self.sites[name].exchanges.summand.copy() for name in sites})
        return super().ask(sites, what, *arguments, seconds=seconds)


def job(given, agreement, folder, rounds, network=None, **more):
    network = network or Relay()
    for name in given.names:
        open_site(given, name, agreement, folder, network, **more.get(name, {}))
    return network, Scheduler(network, agreement, rounds, QUICK).run(given.names)


def alike_points(network, names):
    """Whether all sites have the same common model of abps-plus."""
    return len({network.sites[name].context.state.fit.point.tobytes() for name in names}) == 1


def alike(network, names):
    """Whether all sites have the same model."""
    return len({network.sites[name].models.tobytes() for name in names}) == 1


@pytest.mark.parametrize(
    ("method", "settings", "rounds"),
    [
        ("fedavg", {}, 2),
        ("fedavg", {"smoothing": "0.5", "model": "linear", "standardise": "own"}, 4),
        ("fedavg", {"weighting": "uniform", "model": "linear", "standardise": "own"}, 3),
        ("fedprox", {"mu": "0.5"}, 3),
    ],
)
def test_sites_do_what_the_simulation_does(four, tmp_path, method, settings, rounds):
    """A star's server is every member: what each makes of the sum is the server's answer."""
    agreement = four.agreement(method, rounds=rounds, secure="yes", **settings)
    network, report = job(four, agreement, tmp_path, 1)
    close(network)
    network, report = job(four, agreement, tmp_path, rounds)
    run = simulate(four.together, method, 11, rounds, {"secure": "yes", **settings})
    models = np.stack([network.sites[name].models[0] for name in four.names])
    np.testing.assert_allclose(models, run.models, atol=2e-5)
    np.testing.assert_allclose(report.rounds[-1].validation, run.history.validation_auroc[-1], atol=1e-4)
    assert alike(network, four.names)
    close(network)


def test_the_relay_gets_no_summand_and_no_upload(four, tmp_path):
    agreement = four.agreement("fedavg", rounds=1, secure="yes")
    network, _ = job(four, agreement, tmp_path, 1, Looking())
    taken = network.taken
    masked = {name: np.frombuffer(value, "<u8") for what, name, value in network.seen if what == "sum_masked"}
    assert set(masked) == set(taken) == set(four.names)
    for name, words in masked.items():
        plain = np.rint(taken[name] * 2.0**20).astype(np.int64).view(np.uint64)
        assert len(words) == 1 + len(plain) and not np.any(words[:-1] == plain)
        # A summand is small: its words begin with zeros or ones. Masked ones do not.
        assert np.mean((words >> np.uint64(56)) % np.uint64(255) == 0) < 0.05
        assert np.mean((plain >> np.uint64(56)) % np.uint64(255) == 0) > 0.95
    for site in network.sites.values():
        assert {e.kind for e in site.store.traffic()} >= {"mask", "upload"}
    assert not network.carried  # nothing goes from site to site
    close(network)


@pytest.mark.parametrize("step", ["begin", "sum_introduce", "sum_meet", "sum_keep"])
def test_a_site_that_is_away_at_the_first_sum_is_left_out(six, tmp_path, step):
    gone = six.names[3]
    agreement = six.agreement("fedavg", rounds=1, secure="yes")

    def lose(name, what, value):
        return LOST if (name, what) == (gone, step) else value

    network, _ = job(six, agreement, tmp_path, 1, Looking(lose))
    assert set(network.taken) == set(six.names) - {gone}
    rest = np.stack(list(network.taken.values()))
    mean = rest.sum(axis=0)[:-1] / rest.sum(axis=0)[-1]
    for name in network.taken:
        np.testing.assert_allclose(network.sites[name].models[0], mean, atol=1e-5)
    close(network)


def test_without_one_summand_there_is_no_sum(six, tmp_path):
    gone, words = six.names[3], []
    agreement = six.agreement("fedavg", rounds=1, secure="yes")
    network = Relay(lambda name, what, value: LOST if (name, what) == (gone, "sum_masked") else value)
    for name in six.names:
        open_site(six, name, agreement, tmp_path, network)
    Scheduler(network, agreement, 1, QUICK, log=words.append).run(six.names)
    assert any(f"no sum (5 of 6 summands came ({gone}: lost))" in line for line in words)
    assert not any(site.store.broadcasts() for site in network.sites.values())
    close(network)


@pytest.mark.parametrize("jobs", [1, 2])
def test_who_was_away_as_the_first_sum_failed_does_not_hold_the_study_up(six, tmp_path, jobs):
    """The others hold to the members with whom they began, and it gets the model."""
    agreement = six.agreement("glm-exact", rounds=30, secure="yes", standardise="own")
    away, lost, once = six.names[5], six.names[0], iter([True, *[False] * 99])

    def lose(name, what, value):
        if (name, what) == (away, "begin"):
            return LOST if not any(step == "sum_masked" for step, _, _ in network.seen) else value
        return LOST if (name, what) == (lost, "sum_masked") and next(once) else value

    words, network = [], Relay(lose)
    for name in six.names:
        open_site(six, name, agreement, tmp_path, network)
    if jobs == 2:
        Scheduler(network, agreement, 1, QUICK, log=words.append).run(six.names)
        close(network)
        for name in six.names:
            open_site(six, name, agreement, tmp_path, network)
    report = Scheduler(network, agreement, 29, QUICK, log=words.append).run(six.names)
    assert sum("no sum" in line for line in words) == 1 and report.stopped_early
    assert {name for what, name, _ in network.seen if what == "sum_masked"} == set(six.names[:5])
    assert alike(network, six.names) and away in report.rounds[-1].present
    close(network)


@pytest.mark.parametrize("what", ["sum_introduce", "sum_meet", "sum_masked"])
def test_a_relay_that_alters_what_it_carries_gets_no_sum(four, tmp_path, what):
    """A key of its own in a member's name, sealed bytes that were changed, a vector that was changed."""
    agreement = four.agreement("fedavg", rounds=1, secure="yes")

    def alter(name, step, value):
        if step != what or name != four.names[0]:
            return value
        if step == "sum_introduce":
            return [Member(name, "").public, *value[1:]]
        if step == "sum_meet":
            return {k: v[:-1] + bytes([v[-1] ^ 1]) for k, v in value.items()}
        return value[:-1] + bytes([value[-1] ^ 1])

    words = []
    network = Relay(alter)
    for name in four.names:
        open_site(four, name, agreement, tmp_path, network)
    Scheduler(network, agreement, 1, QUICK, log=words.append).run(four.names)
    assert any("no sum" in line for line in words)
    assert not any(site.store.broadcasts() for site in network.sites.values())
    close(network)


def sums_of(names, folder, **more):
    """Sites' masked sums of ones, without sites; in a rehearsal, unless there are signers."""
    found = {}
    for name in names:
        store = Store.open(folder / f"{name}.sqlite", name, "x")
        said = []

        def write(kind, size, why, number, sent=True, said=said):
            said.append((kind, why))

        one = MaskedSums(
            Member(name, "study/job"), store, write, lambda number, group: np.ones(3), EntryKind.UPLOAD
        )
        one.said = said
        found[name] = one
    return found


def test_no_sum_is_begun_twice_and_strangers_have_no_part(tmp_path):
    names = ("a", "b", "c")
    sites = sums_of(names, tmp_path)
    introductions = {name: site.introduction() for name, site in sites.items()}
    sealed = {name: site.meet(introductions) for name, site in sites.items()}
    for name, site in sites.items():
        site.keep({sender: each[name] for sender, each in sealed.items() if sender != name})
    sites["a"].masked(2, names)
    for number, group in ((2, names), (1, names), (3, ("a", "b")), (3, ("a", "b", "b")), (3, 7)):
        with pytest.raises(RequestError):
            sites["a"].masked(number, group)
    with pytest.raises(RequestError, match="no sum of round 5"):
        sites["a"].total(5, bytes(32))
    for group in (("b", "c", "d"), ("a", "b", "stranger")):
        with pytest.raises(RequestError, match=r"without a proven key|other members|have not come"):
            sites["a"].masked(4, group)


@pytest.mark.parametrize("group", [("site-1", "site-5", "site-6"), ("site-1", "site-2", "site-3", "site-4")])
def test_a_relay_with_two_members_opens_no_sum_of_its_own_choice(six, tmp_path, group):
    """It names a group of its friends and one victim: once, their sum showed the victim's numbers."""

    class Choosing(Relay):
        def ask(self, sites, command, *arguments, seconds):
            if command is Command.SUM_MASKED:
                sites, arguments = [n for n in sites if n in group], (arguments[0], list(group))
            return super().ask(sites, command, *arguments, seconds=seconds)

    words = []
    network = Choosing()
    agreement = six.agreement("fedavg", rounds=1, secure="yes")
    for name in six.names:
        open_site(six, name, agreement, tmp_path, network)
    Scheduler(network, agreement, 1, QUICK, log=words.append).run(six.names)
    assert any("no sum" in line for line in words)
    assert not any(command == "sum_masked" for command, _, _ in network.seen)
    close(network)


@pytest.mark.parametrize("named", [2, 5, 6])
def test_a_site_joins_no_job_with_a_few_of_the_approved_members(six, tmp_path, named):
    signed = SignedProposal(Proposal(six.agreement("fedavg", rounds=1), six.names))
    consent = Consent(tmp_path, Journal(tmp_path / "journal"), OPEN, signed, None)
    roster = six.names[:named]
    if named >= 5:  # more than two thirds: members may have been revoked since
        consent.members(roster)
        return
    with pytest.raises(DeclineError, match="2 of the 6 members"):
        consent.members(roster)


def test_a_relay_cannot_stand_in_for_a_site(four, tmp_path):
    """With certificates, a key that the site's own kit has not signed is not taken."""
    kits = pytest.importorskip("abps.sites.flare.kits")
    network = kits.provision(tmp_path / "kits", four.names, "localhost", 18997)
    root = (network.sites[four.names[0]] / "startup" / "rootCA.pem").read_bytes()

    def signed(name, folder, context="study/job"):
        found = sums_of([name], tmp_path / folder)[name]
        found.member.context = context
        found.signer, found.authority = read_signer(network.sites[name]), root
        return found

    sites = {name: signed(name, "all") for name in four.names}
    introductions = {name: site.introduction() for name, site in sites.items()}
    first, second = four.names[:2]
    forged = sums_of([second], tmp_path / "forged")[second].introduction()
    assert (
        sites[first].meet(introductions).keys() == set(four.names) - {first} and not sites[first].said[1:-1]
    )
    for number, lie in enumerate((
        forged,  # a key of its own, unsigned
        [forged[0], *introductions[second][1:]],  # with its certificate
        introductions[four.names[2]],  # another member's
        signed(second, "another", "another/job").introduction(),  # of another job
    )):  # fmt: skip
        fresh = signed(first, f"fresh-{number}")
        assert second not in fresh.meet({**introductions, second: lie})
        assert f"came as {second}'s is not its own" in fresh.said[0][1]
        with pytest.raises(RequestError, match=r"without a proven key|have not come"):  # no sum with it
            fresh.masked(1, four.names)


@pytest.mark.parametrize("entry", [0, 7, -1])
@pytest.mark.parametrize("by", [1, 1 << 20, -3])
def test_a_relay_that_falsifies_a_total_is_found(four, tmp_path, entry, by):
    """It adds something to a number, or to the check: no site takes the total, and all keep their models."""

    class Falsifying(Relay):
        def ask(self, sites, command, *arguments, seconds):
            if command is Command.START and arguments[0] is Command.SUM_TOTAL:
                ring = np.frombuffer(arguments[2], "<i8").copy()
                ring[entry] += by
                arguments = (*arguments[:2], ring.tobytes())
            return super().ask(sites, command, *arguments, seconds=seconds)

    agreement = four.agreement("glm-exact", rounds=2, secure="yes", standardise="own")
    network, report = job(four, agreement, tmp_path, 1, Falsifying())
    assert set(report.rounds[0].missing) == set(four.names)
    assert all("it was changed on its way" in why for why in report.rounds[0].missing.values())
    assert all(not site.store.broadcasts() for site in network.sites.values())
    close(network)


@pytest.mark.parametrize("away", [[2], [2, 3]])
def test_a_sum_of_other_members_than_before_is_not_opened(six, tmp_path, away):
    """The relay leaves a site out of later sums: the difference would show what the site adds."""
    left, rounds = six.names[1], set(away)

    class Leaving(Relay):
        def ask(self, sites, command, *arguments, seconds):
            if command is Command.SUM_MASKED and arguments[0] in rounds:
                sites = [name for name in sites if name != left]
                arguments = (arguments[0], sites)
            return super().ask(sites, command, *arguments, seconds=seconds)

    agreement = six.agreement("abps-plus", rounds=12, **PLUS)
    words, network = [], Leaving()
    for name in six.names:
        open_site(six, name, agreement, tmp_path, network)
    run = Scheduler(network, agreement, 12, QUICK, log=words.append)
    if len(away) > 1:  # a job does not wait for ever
        with pytest.raises(RequestError, match="all sums of a study are of the same members"):
            run.run(six.names)
    else:
        assert run.run(six.names).stopped_early and alike_points(network, six.names)
    added = [name for what, name, _ in network.seen if what == "sum_masked"]
    assert added.count(left) == added.count(six.names[0])
    assert sum("no sum" in line for line in words) == len(away)
    close(network)


@pytest.mark.parametrize("method", ["abps-plus", "glm-exact"])
def test_a_newcomer_gets_the_model_and_is_in_no_sum(six, tmp_path, method):
    """A sum with it would show, beside the one without it, what it added."""
    settings = PLUS if method == "abps-plus" else {"secure": "yes", "standardise": "own"}
    agreement = six.agreement(method, rounds=30, **settings)
    early, new = six.names[:5], six.names[5]
    network = Relay()
    for name in early:
        open_site(six, name, agreement, tmp_path, network)
    Scheduler(network, agreement, 2, QUICK).run(six.names)
    site = open_site(six, new, agreement, tmp_path, network)
    report = Scheduler(network, agreement, 28, QUICK).run(six.names)
    assert new in report.rounds[-1].present and site.context.method.finished(site.context.state)
    assert {name for what, name, _ in network.seen if what == "sum_masked"} == set(early)
    assert list(site.store.broadcasts()) == list(network.sites[early[0]].store.broadcasts())
    close(network)


def test_what_does_not_run_between_sites_gets_one_sentence(four):
    for method, why in (
        ("abps-pq-k1", "does not run between sites: its centers exchange no sums"),
        ("local", "choose abps-plus, glm-exact, fedavg or fedprox"),
        ("fedavg-p", "more than sums of whole models"),
        ("centralized", "exchange no sums"),
        ("scaffold", "a rival for simulations"),
        ("glmm", "a rival for simulations"),
    ):
        agreement = Agreement("test", method, four.book(11), 11, 1, {"secure": "yes"})
        with pytest.raises(RequestError, match=why):
            agreement.config()
    with pytest.raises(RequestError, match="set secure=yes"):
        four.agreement("fedavg", rounds=1).config()
