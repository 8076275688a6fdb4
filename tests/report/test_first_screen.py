"""Thirty hospitals, three of which differ: what the first screen and their panels say, from a real study."""

import re

import numpy as np
import polars as pl
import pytest

import abps
from abps.evaluate.verdicts import HospitalVerdict, Verdict
from abps.report.build import parts_of
from abps.report.hospitals import hospitals_of
from abps.report.tables import in_ten

DIFFERENT = ("Bern", "Graz", "Lund")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A real study: what raises the risk in twenty-seven hospitals lowers it in three; one is too small."""
    rng = np.random.default_rng(1)
    per, n = 130, 30
    names = [f"H{k:02d}" for k in range(n - 3)] + list(DIFFERENT)
    hospital = np.repeat(np.arange(n), per)
    age, lactate = rng.normal(65, 12, n * per), rng.gamma(2.0, 1.2, n * per)
    risk = 0.06 * (age - 65) + 0.8 * (lactate - 2.4)
    risk = np.where(hospital >= n - 3, -risk, risk) - 0.8
    table = pl.DataFrame(
        {
            "hospital": [names[k] for k in hospital] + ["tiny"] * 4,
            "age": [f"{v:.1f}" for v in age] + ["61 years", "50", "44", "80"],
            "lactate": [*lactate.round(2), 1.0, 2.0, 3.0, 1.5],
            "stay_id": 30_000_000 + np.arange(n * per + 4),
            "died": [*(rng.random(n * per) < 1 / (1 + np.exp(-risk))).astype(int), 0, 1, 0, 1],
        }
    )
    place = tmp_path_factory.mktemp("thirty")
    table.write_csv(place / "stays.csv")
    federation = abps.read_table(place / "stays.csv", "died", "hospital")
    found = abps.compare(
        federation,
        ["local", "fedavg", "glm-exact"],
        seeds=[11, 22],
        rounds=12,
        settings={"model": "gam"},
        references=False,
    )
    return found, found.report(place / "report")


def test_the_three_lose_by_averaging_and_nobody_else(study):
    found, report = study
    (part,) = parts_of(found)
    assert part.page == "fedavg" and part.folds == 5 and part.primary.gain.run_freedom == 9
    words = {h.name: h.evidence.verdict for h in hospitals_of(part)}
    losing = {name for name, word in words.items() if word is HospitalVerdict.LOSES}
    assert losing == set(DIFFERENT)
    (section,) = report.sections
    shares = {share.words: share.count for share in section.first.shares}
    assert shares["lose"] == 3
    lund = next(h for h in section.hospitals if h.name == "Lund")
    assert "Keep your own model" in lund.advice and lund.evidence.clearly_worse > 0.9
    assert in_ten(lund.evidence.clearly_worse) in report.page.read_text()


def test_numbers_stand_once(study):
    """Levels, difference and table agree: what is shown twice has one value."""
    found, report = study
    (part,) = parts_of(found)
    screen = report.sections[0].first
    alone, together = part.find("local").mean, part.find("fedavg").mean
    assert f"{alone:.3f} alone, {together:.3f} together" in screen.lead
    assert part.primary.gain.estimate == pytest.approx(together - alone)
    rows = re.findall(r"<small>(.*?)</small></th><td>.*?</td><td>(.*?)</td>", report.page.read_text())
    shown = dict(rows)
    assert shown["fedavg"] == f"{together:.3f}" and shown["local"] == f"{alone:.3f}"
    assert "glm-exact" in shown and any("glm-exact" in sentence for sentence in screen.more)
    assert part.primary.verdict in (Verdict.BETTER, Verdict.WORSE, Verdict.EQUAL, Verdict.INCONCLUSIVE)


def test_events_and_calibration_stand_beside_every_hospital(study):
    found, report = study
    (part,) = parts_of(found)
    lund = next(h for h in hospitals_of(part) if h.name == "Lund")
    runs = [run for planned, run in found.runs if planned.label == "fedavg"]
    assert all(
        run.scored.per_center_events["Lund"] == lund.events for run in runs
    )  # every patient, every repeat
    expected = [r.clinical.per_center["Lund"].before.expected for r in runs]
    assert lund.calibration.expected == pytest.approx(np.mean(expected))
    text = report.page.read_text()
    assert f"{lund.calibration.expected:.0f} events expected" in text and "slope" in text


def test_what_the_check_found_stands_on_the_page_once(study):
    _, report = study
    text = report.page.read_text()
    assert "stay_id" in text and re.search(r"<li>tiny: [^<]*4", text) and "1 hospital left out" in text
    assert "61 years" in text  # an example of what was mended, with its rule
    warnings = re.findall(r'<p class="warning">(.*?)</p>', text)
    assert len(warnings) == len(set(warnings))


@pytest.mark.parametrize(("width", "scheme"), [(1200, "dark"), (390, "light")])
def test_a_real_page_stands_in_nobodys_way(study, browser, width, scheme):
    """With the table's check, the test of heterogeneity and calibration on it; everything opened."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)
    complaints = []
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(study[1].page.resolve().as_uri() + "#Lund")
    assert page.locator("details.hospital[open]").get_attribute("data-name") == "Lund"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    serious = [v for v in axe.run(page).response["violations"] if v["impact"] in ("serious", "critical")]
    assert not serious, [(v["id"], v["nodes"][0]["html"][:200]) for v in serious]
    assert complaints == []
    page.close()
