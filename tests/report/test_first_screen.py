"""Thirty hospitals, three of which differ: the first screen names them and says for whom it is a bad idea."""

import math
import re

import numpy as np
import polars as pl
import pytest

import abps
from abps.report.build import parts_of
from abps.report.hospitals import hospitals_of
from abps.report.story import beside, tiles
from abps.report.words import summary

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
        ["local", "fedavg", "abps-plus"],
        seeds=[11, 22, 33],
        rounds=12,
        settings={"model": "gam"},
        references=False,
    )
    return found, found.report(place / "report")


def test_the_three_are_named_and_for_them_averaging_is_a_bad_idea(study):
    found, report = study
    (part,) = parts_of(found)
    said = beside(part, hospitals_of(part))
    bad = next(sentence for sentence in said if "bad idea" in sentence and "fedavg" in sentence)
    assert all(name in bad for name in DIFFERENT)
    assert not re.search(r"\bH\d\d\b", bad)
    worst = next(sentence for sentence in said if sentence.startswith("Largest loss"))
    assert "with abps-plus" in worst and "surely a loss" in worst and any(name in worst for name in DIFFERENT)
    page = report.page.read_text()
    assert page.index(bad.split(" for ")[0]) < page.index("For methodologists")
    assert page.index(bad.split(" for ")[0]) < page.index('class="first"')  # above the picture


def test_the_test_of_heterogeneity_is_told_and_drawn(study):
    found, report = study
    (part,) = parts_of(found)
    told = next(sentence for sentence in summary(part) if sentence.startswith("The hospitals differ"))
    assert "test of abps-plus, rejected in 3 of 3 splits" in told and "lactate" in told
    assert told in beside(part, hospitals_of(part))
    drawn = (report.page.parent / "figures" / "differences.svg").read_text()
    assert ">lactate</text>" in drawn and "largest p" in drawn


def test_events_and_calibration_stand_beside_every_hospital(study):
    found, report = study
    (part,) = parts_of(found)
    hospitals = hospitals_of(part)
    run = next(run for planned, run in found.runs if planned.label == "abps-plus" and run.seed == 11)
    lund = next(h for h in hospitals.all if h.name == "Lund")
    runs = [run for planned, run in found.runs if planned.label == "abps-plus"]
    events = [r.scored.per_center_events["Lund"] for r in runs]
    assert lund.scored.events == pytest.approx(np.mean(events))
    expected = [r.calibration.per_center_expected["Lund"] for r in runs]
    assert lund.scored.expected == pytest.approx(np.mean(expected))
    # All rows in ten groups: they are all there, and in order.
    assert sum(run.calibration.rows) == sum(run.scored.per_center_rows.values())
    assert list(run.calibration.told) == sorted(run.calibration.told)
    seen = sum(a * b for a, b in zip(run.calibration.observed, run.calibration.rows))
    assert seen == pytest.approx(sum(run.scored.per_center_events.values()))
    text = report.page.read_text()
    assert f"{lund.scored.expected:.1f} events expected" in text and "slope" in text
    assert (report.page.parent / "figures" / "calibration.svg").exists()


def test_an_unsure_verdict_says_on_what_it_stands(study):
    found, _ = study
    hospitals = hospitals_of(parts_of(found)[0])
    unsure = [h for h in hospitals.all if h.main.verdict == "cannot tell"]
    for h in unsure:
        assert re.fullmatch(r"cannot tell: \d+ events in \d+ test rows", h.words(h.main))
    for h in hospitals.all:  # nobody is called equal whose own scores say otherwise
        if h.main.verdict == "equal":
            assert abs(h.main.measured) <= 0.02
    gains = [h.main.measured for h in hospitals.by_gain() if math.isfinite(h.main.measured)]
    assert gains == sorted(gains)


def test_the_table_is_told_on_the_page(study):
    found, report = study
    (part,) = parts_of(found)
    text = report.page.read_text()
    assert "About the table" in text and "stay_id" in text and "tiny: 4 row(s)" in text
    assert "61 years" in text  # an example of what was mended, with its rule
    left, warned = tiles(part, hospitals_of(part))[1:]
    assert left.number == "1 left out" and left.details[0].startswith("tiny")
    assert any("stay_id" in detail for detail in warned.details)


@pytest.mark.parametrize(("width", "scheme"), [(1200, "dark"), (375, "light")])
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
