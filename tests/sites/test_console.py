"""The hospital's console in a real browser on a running network: the same decisions as by command, in the
same signed journal; what runs, what it sent, and the way out."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from abps.core.errors import RequestError
from abps.data.prepare import prepare
from abps.sites.consent import approval
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.approval import Consent
from abps.sites.consent.keys import read_root, read_signer
from abps.sites.consent.sitefile import Policy
from abps.sites.node.status import read_bundle
from abps.sites.protocol.commands import Timeouts
from abps.sites.store.audit import Journal, JournalEvent

from .network import LINEAR
from .processes import LONG, Processes
from .test_consent import ASKING, home, network, signed_study, site_file  # noqa: F401  (fixtures)

pytest.importorskip("starlette")
submit = pytest.importorskip("abps.sites.flare.submit")


class Console:
    """A person with a browser at one hospital of a running network."""

    def __init__(self, processes, address, page, axe):
        self.processes, self.page, self.axe = processes, page, axe
        self.base = address.split("/open")[0]
        self.name = processes.given.names[0]
        self.own = processes.site_file(self.name)
        page.goto(address)

    def go(self, path: str = "/") -> str:
        self.page.goto(self.base + path)
        return self.page.inner_text("main")

    def until(self, path: str, *words: str) -> str:
        """Load a page until it says all this."""
        end = time.monotonic() + LONG
        while not all(word in (text := self.go(path)) for word in words):
            assert time.monotonic() < end, (path, words, text)
            time.sleep(0.3)
        return text

    def accessible(self) -> None:
        self.page.wait_for_load_state("load")
        for width in (1200, 390):
            self.page.set_viewport_size({"width": width, "height": 850})
            assert self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), self.page.url
            found = self.axe.run(self.page).response["violations"]
            bad = [v for v in found if v["impact"] in ("serious", "critical")]
            assert not bad, (self.page.url, [(v["id"], v["nodes"][0]["html"][:200]) for v in bad])

    def decide(self, button: str, by: str, reason: str = "") -> str:
        self.page.fill("#by", by)
        self.page.fill("#reason", reason)
        with self.page.expect_navigation():
            self.page.press(f"button:has-text('{button}')", "Enter")
        return self.page.inner_text("main")

    def decisions(self):
        """The lines of the journal in which somebody decided."""
        lines = self.own.journal(self.processes.network.sites[self.name]).lines()
        return [line for line in lines if line.what in approval.DECISIONS]

    def facts(self) -> dict[str, str]:
        """The large numbers of the status page, by what they are."""
        items = [item.inner_text().split("\n") for item in self.page.query_selector_all(".facts li")]
        return {what: value for value, what in items}


@pytest.fixture(scope="module")
def console(four, tmp_path_factory, browser):
    """Four sites and a relay as processes; the first hospital asks two people, and has the console open."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))  # the engine writes there
        asking = {four.names[0]: Policy("ask", rows=1, events=1, people=2)}
        processes = Processes(tmp_path_factory.mktemp("network"), four, policies=asking)
        kit = processes.network.sites[four.names[0]]
        words = [sys.executable, "-m", "abps", "site", "console", str(kit), "--no-open"]
        served = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        context = browser.new_context(bypass_csp=True)  # axe is a script of its own
        try:
            processes.start_all(LONG)
            yield Console(processes, served.stdout.readline().split()[1], context.new_page(), axe)
        finally:
            processes.stop()
            context.close()
            served.terminate()
            served.wait(120)
            served.stdout.close()


class Submission(threading.Thread):
    """An operator who proposes a study and waits for approval, and for the end."""

    def __init__(self, console: Console, agreement: Agreement) -> None:
        super().__init__(daemon=True)
        self.console, self.agreement, self.outcome = console, agreement, None
        self.start()

    def run(self) -> None:
        timeouts = Timeouts(call=8.0, sign=8.0, approval=LONG)
        kit, rounds = self.console.processes.network.operator, self.agreement.rounds
        self.outcome = submit.submit(kit, self.agreement, rounds, 3, timeouts, wait=LONG)


def study(four, name: str, method: str, rounds: int, **settings) -> Agreement:
    agreement = four.agreement(method, rounds=rounds, **settings)
    return replace(agreement, study=name, book=replace(agreement.book, min_cell=10))


@pytest.mark.slow
def test_from_a_proposal_through_the_job_to_its_log(console, four):
    page, agreement = console.page, study(four, "icu", "abps-plus", 8, **LINEAR)
    assert "No study was proposed yet" in console.go() and "good for 360 days" in console.go()
    console.accessible()
    operator = Submission(console, agreement)
    console.until("/", "icu", "waits for a decision")
    page.click("text=Read and decide")
    text = page.inner_text("main")
    for column in agreement.book.columns:
        assert (column.name if column.kind == "level" else column.source) in text  # levels too
    console.accessible()

    page.click("text=See what would leave")
    assert "nothing is sent" in page.inner_text("main")
    table = console.own.read_table(agreement.book)
    before, used = prepare(table, agreement.seed, agreement.book), agreement.prepare(table)
    gone = before.train.x.any(axis=0) & ~used.train.x.any(axis=0)
    hidden = {name for name, small in zip(before.columns, gone) if small}  # as if nobody here had it
    marked = {row.query_selector_all("td")[1].inner_text() for row in page.query_selector_all(".marked")}
    assert marked == hidden and hidden
    console.accessible()
    page.go_back()

    page.fill("#by", "Dr. Ada <b>Example</b>")
    page.press("#by", "Enter")  # decides nothing
    assert not console.decisions()
    text = console.decide("Approve exactly this", "Dr. Ada <b>Example</b>", "read by the committee")
    assert "approved, Dr. Ada <b>Example</b>" in text and "1 of 2 people" in text  # a name is text
    assert "1 of 2 people" in console.decide("Approve exactly this", " dr. ada <B>example</B>")
    assert "people" not in console.decide("Approve exactly this", "Dr. Bo Example")
    first, _, last = console.decisions()
    assert (first.what, last.facts["by"]) == (JournalEvent.APPROVED, "Dr. Bo Example")
    assert first.facts["reason"] == "read by the committee"

    console.until("/studies/icu/status", "rounds finished")
    page.wait_for_function(
        "document.querySelector('.facts b').innerText == '8'", timeout=LONG * 1000
    )  # the page follows the job by itself
    operator.join(LONG)
    assert operator.outcome.status == "FINISHED:COMPLETED", operator.outcome
    text = console.until("/studies/icu/status", "rounds finished")
    store = console.processes.store(console.name, "icu")
    try:
        facts = console.facts()
        assert facts["bytes sent"] == f"{sum(store.sent_bytes().values()):,}"
        assert facts["privacy budget spent (epsilon)"] == "–"  # a study without noise
        entries = store.traffic()
    finally:
        store.close()
    assert ", ".join(four.names[1:]) in text
    shares = [int(item.inner_text().split()[-2]) for item in page.query_selector_all("h2 + p + p + ul li")]
    assert abs(sum(shares) - 100) <= 1 and len(shares) >= 2
    console.accessible()

    text = console.go("/studies/icu/log")
    rows = int(re.search(r"The log is in order: (\d+) rows", text)[1])
    lines = int(re.search(r"(\d+) lines, the latest first", text)[1])
    assert rows >= lines >= len(entries) > 20  # scores are rows, too; partners' last heads may come late
    page.fill("#search", "OUR UPLOAD")
    page.press("#search", "Enter")
    lines = page.inner_text("pre").splitlines()
    sent = sum(entry.why.startswith("our upload") for entry in entries)
    assert len(lines) == sent > 2 and all("our upload of round" in line for line in lines)
    assert "0 lines" in console.go("/studies/icu/log?search=%3Cscript%3Ealert(1)")
    console.accessible()
    assert "certificate" in console.go("/ready") and "TLS" in page.inner_text("main")
    console.accessible()


@pytest.mark.slow
def test_a_hospital_withdraws_from_a_running_job(console, four):
    """A private study: the budget goes down from round to round, and with the withdrawal everything stops."""
    settings = {**LINEAR, "secure": "yes", "epochs": 1, "clip": 1.0, "dp_epsilon": 8.0}
    operator = Submission(console, study(four, "long", "fedavg", 400, **settings))
    text = console.until("/", "long", "waits for a decision")
    console.page.click("li:has-text('long') >> text=Read and decide")
    for person in ("Ada", "Bo"):
        console.decide("Approve exactly this", person)
    console.until("/studies/long/status", "rounds finished")
    console.page.wait_for_function(
        "parseInt(document.querySelector('.facts b').innerText) > 5", timeout=LONG * 1000
    )
    spent, budget = console.facts()["privacy budget spent (epsilon)"].split(" / ")
    assert 0 < float(spent) < float(budget) == 8.0
    assert operator.is_alive()
    console.go("/")
    console.page.click("li:has-text('long') >> text=Read and decide")
    text = console.decide("Withdraw from the study", "Dr. Cy Example", "patients objected")
    assert "withdrawn, Dr. Cy Example" in text and "patients objected" in text
    operator.join(LONG)
    assert console.name in operator.outcome.report["error"], operator.outcome  # who is missing is said
    line = console.decisions()[-1]
    assert (line.what, line.facts["by"]) == (JournalEvent.WITHDRAWN, "Dr. Cy Example")
    store = console.processes.store(console.name, "long")
    try:
        entries = store.traffic()
        (at,) = [k for k, entry in enumerate(entries) if "withdrawn" in entry.why][:1]
        assert 5 < store.round < 400
        assert not [entry for entry in entries[at:] if entry.sent and entry.kind in ("upload", "mask")]
    finally:
        store.close()
    assert "withdrawn here by Dr. Cy Example" in console.go("/studies/long/log?search=withdrawn")
    assert "in order" in console.page.inner_text("main")


@pytest.mark.slow
def test_a_failure_bundle_is_read_and_released(console, tmp_path):
    text = console.go("/failure")
    shown = json.loads(console.page.inner_text("pre"))
    assert shown["site"] == console.name and str(console.processes.folder) not in text  # no path
    console.accessible()
    console.page.fill("#by", "Dr. Ada Example")
    console.page.evaluate("document.querySelector('[name=digest]').value = 'of another bundle'")
    console.page.press("button:has-text('Release')", "Enter")
    console.page.wait_for_selector("text=another one than you have read")
    console.go("/failure")
    console.page.fill("#by", "Dr. Ada Example")
    with console.page.expect_download() as saved:
        console.page.press("button:has-text('Release')", "Enter")
    path = tmp_path / "bundle.json"
    saved.value.save_as(path)
    kit = console.processes.network.sites[console.name]
    assert read_bundle(path, read_root(kit))["site"] == console.name  # as the operator reads it
    line = console.own.journal(kit).lines()[-1]
    assert (line.what, line.facts["by"]) == ("released", "Dr. Ada Example")


@pytest.mark.slow
def test_a_log_that_was_changed_is_not_trusted(console):
    with contextlib.closing(sqlite3.connect(console.own.store_of("long"))) as db, db:
        db.execute("DELETE FROM traffic WHERE number = 4")
    assert "cannot be trusted" in console.go("/studies/long/log")
    assert console.page.locator("[role=alert]").count() >= 1


@pytest.mark.parametrize("second", ["Dr. Bo Example", "Prof. Cy Example"])
def test_four_eyes_wait_for_a_second_person(four, network, home, second):  # noqa: F811
    signed = signed_study(four, network)
    folder = home / "local" / "studies"
    journal, study = Journal(folder, read_signer(home)), signed.proposal.study
    consent = Consent(folder, journal, Policy("ask", events=3, people=2), signed, read_root(home))
    with pytest.raises(RequestError, match="waits for approval"):
        consent.given()

    def approve(by):
        return approval.decide(folder, journal, study, JournalEvent.APPROVED, by, signed.proposal.digest())

    approve("Dr. Ada Example")
    approve(" dr. ada  EXAMPLE")  # the same person, again
    with pytest.raises(RequestError, match="1 of 2 people"):
        consent.given()
    approve(second)
    assert consent.given().facts["by"] == second
    approval.decide(folder, journal, study, JournalEvent.WITHDRAWN, second, reason="the table is wrong")
    approve(second)  # after a withdrawal both decide anew
    with pytest.raises(RequestError, match="1 of 2 people"):
        consent.given()
