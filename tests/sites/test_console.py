"""The hospital's console in a real browser: the same decisions as by command, in the same signed journal."""

from __future__ import annotations

import subprocess
import sys

import pytest

from abps.core.errors import RequestError
from abps.sites.consent import approval
from abps.sites.consent.approval import Consent
from abps.sites.consent.journal import Journal, JournalEvent
from abps.sites.consent.keys import read_root, read_signer
from abps.sites.consent.sitefile import Policy

from .test_consent import ASKING, home, network, signed_study, site_file  # noqa: F401  (fixtures)

pytest.importorskip("starlette")


@pytest.fixture
def proposed(four, network, home):  # noqa: F811
    """A site to which a study was proposed."""
    signed = signed_study(four, network)
    folder = home / "local" / "studies"
    approval.keep(folder, Journal(folder, read_signer(home)), signed, "operator")
    return home, signed


@pytest.fixture
def console(proposed):
    kit, _ = proposed
    words = [sys.executable, "-m", "abps", "site", "console", str(kit), "--no-open"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    yield process.stdout.readline().split()[1]
    process.terminate()
    process.wait(30)
    process.stdout.close()


@pytest.mark.slow
def test_a_hospital_reads_previews_decides_and_searches(proposed, console, browser):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    kit, signed = proposed
    journal = Journal(kit / "local" / "studies", read_signer(kit))
    study, digest = signed.proposal.study, signed.proposal.digest()
    page = browser.new_context(bypass_csp=True).new_page()

    def accessible():
        page.wait_for_load_state("load")
        for width in (1200, 390):
            page.set_viewport_size({"width": width, "height": 850})
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (page.url, width)
            bad = [v for v in axe.run(page).response["violations"] if v["impact"] in ("serious", "critical")]
            assert not bad, (page.url, [(v["id"], v["nodes"][0]["html"][:200]) for v in bad])

    page.goto(console)
    assert "waits for a decision" in page.inner_text("main")
    accessible()
    page.click("text=Is everything ready?")
    assert "certificate" in page.inner_text("main")
    accessible()
    page.go_back()
    page.click("text=Read and decide")
    text = page.inner_text("main")
    assert digest in text and signed.proposal.agreement.method in text
    for column in signed.proposal.agreement.book.columns:
        assert (column.name if column.kind == "level" else column.source) in text  # levels too
    accessible()
    page.click("text=Compute it")
    assert "nothing is sent" in page.inner_text("main") and page.locator("tbody tr").count() > 5
    accessible()
    page.go_back()
    page.fill("#by", "Dr. Ada <b>Example</b>")
    page.fill("#reason", "read by the committee")
    page.click("button:has-text('Approve exactly this proposal')")
    page.wait_for_load_state()
    assert "approved, Dr. Ada <b>Example</b>" in page.inner_text("main")
    assert page.locator("main dl ~ b, main p b b").count() == 0  # a name is text
    line = journal.lines()[-1]
    assert (line.what, line.facts["by"]) == (JournalEvent.APPROVED, "Dr. Ada <b>Example</b>")
    assert line.facts["reason"] == "read by the committee" and line.facts["proposal"] == digest
    page.fill("#by", "Dr. Bo Example")
    page.click("button:has-text('Withdraw from the study')")
    page.wait_for_load_state()
    assert "withdrawn, Dr. Bo Example" in page.inner_text("main")
    page.goto(page.url.split("/proposals")[0] + f"/studies/{study}/log")
    assert "no store here; it is made when the site's first job starts" in page.inner_text("main")
    page.context.close()


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
