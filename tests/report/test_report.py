"""Tables, figures, words and the page, from made-up runs; the page in a real browser."""

import csv
import io
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abps.core.errors import RequestError
from abps.data.federation import About
from abps.engine.partners import Partners
from abps.report import figures, study_tables, tables
from abps.report.analysis import analyse
from abps.report.answer import expectation, first_screen
from abps.report.build import page as page_of
from abps.report.build import parts_of, section_of
from abps.report.hospitals import hospitals_of
from abps.report.privacy import PrivacyPart
from abps.study.compare import load_study
from abps.study.plan import Request, Source, make_plan
from abps.study.records import RECEIPT, RESULT, StudyFolder
from made_runs import CENTERS, METHODS, ROWS, made_run, stored_study

SEEDS = (1, 2, 3, 4, 5)

#: Words that a reader meets before opening anything.
MOST_WORDS = 900


def part_of(methods=METHODS, seeds=SEEDS):
    runs = {
        name: [made_run(name, seed, level, cost, rest, kappa=kappa) for seed in seeds]
        for name, (level, cost, rest, kappa) in methods.items()
    }
    about = About("made", len(CENTERS), len(CENTERS) * ROWS, 5, "f", positive_share=0.2)
    return analyse(about, runs, {name: name for name in methods})


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    root = tmp_path_factory.mktemp("report") / "study"
    found, _ = stored_study(root)
    load_study(root).report()
    return found


# ---------------------------------------------------------------- tables and words


def test_the_headline_says_what_the_statistics_say():
    part = part_of()
    table = study_tables.headline(part)
    assert [row[0] for row in table.rows] == list(METHODS)
    assert table.columns[1] == "to local"  # what a hospital asks first
    by_name = {row[0]: dict(zip(table.columns, row)) for row in table.rows}
    assert by_name["fedavg"]["to FedAvg"] == tables.NOTHING
    assert by_name["fedavg"]["to local"].endswith("better")
    assert by_name["abps-pq-k1-div"]["to random partners"].endswith("worse")
    assert by_name["abps-pq-k1"]["to random partners"].endswith("equal within 0.01")
    assert by_name["centralized"]["to local"].endswith(")")  # a reference has an interval and no verdict
    assert by_name["fedavg"]["bytes per hospital"] == tables.volume((2 * 1000 + 7) / len(CENTERS) / 1e6)


def test_the_three_forms_hold_the_same_cells():
    part = part_of()
    for table in (study_tables.headline(part), study_tables.hospitals(hospitals_of(part))):
        rows = csv.reader(io.StringIO(tables.as_csv(table)))
        back = [tuple(cell.removeprefix("'") for cell in row) for row in rows]
        assert back == [table.columns, *table.rows]
        markdown = [line for line in tables.as_markdown(table).splitlines() if line.startswith("|")]
        assert len(markdown) == len(table.rows) + 2
        latex = tables.as_latex(table)
        assert latex.count(r"\\") == len(table.rows) + 1 and r"\toprule" in latex
        assert not set("±×−–κ") & set(latex)


def test_latex_escapes_what_it_must():
    table = tables.Table("t", "50 % & more_{x}", ("a", "b"), (("#1", r"\$~^"),))
    text = tables.as_latex(table)
    assert r"50 \% \& more\_\{x\}" in text and r"\#1 & \textbackslash{}\$\textasciitilde{}" in text


def test_the_csv_for_programs_has_every_number(study):
    rows = list(csv.DictReader((study.root / "tables" / "headline.csv").open()))
    assert [row["method"] for row in rows] == list(METHODS)
    x = next(row for row in rows if row["method"] == "abps-x")
    assert float(x["bytes_vs_fedavg"]) == pytest.approx(0.09) and x["random_control"] == "random-k1"
    assert float(x["to_fedavg_low"]) < float(x["to_fedavg"]) < float(x["to_fedavg_high"])
    per_run = list(csv.DictReader((study.root / "tables" / "runs.csv").open()))
    assert len(per_run) == len(METHODS) * len(SEEDS) and "seconds" not in per_run[0]
    per_center = list(csv.DictReader((study.root / "tables" / "centers.csv").open()))
    assert len(per_center) == len(METHODS) * len(CENTERS)
    assert len((study.root / "timing.csv").read_text().splitlines()) == 1 + len(per_run)


def screen_of(part):
    return first_screen(part, hospitals_of(part))


def test_the_first_screen_answers():
    two = {"local-best": (0.70, 0.0, 0.0, None), "glm-exact": (0.75, 0.2, 0.0, None)}
    screen = screen_of(part_of(two | {"abps-plus": (0.75, 0.05, 0.0, None)}))
    assert screen.title.startswith("Yes. Working together predicts better")
    assert "0.7" in screen.lead and "Log-loss agrees: its probabilities are better, too." in screen.lead
    assert any("as good as abps-plus" in sentence and "simpler" in sentence for sentence in screen.more)
    assert sum(share.count for share in screen.shares) == len(CENTERS)
    assert [line.label for line in screen.lines] == ["local-best", "glm-exact", "abps-plus"]
    worse = screen_of(part_of(two | {"abps-plus": (0.64, 0.05, 0.0, None)}))
    assert worse.title.startswith("No. ") and any("use it" in sentence for sentence in worse.more)
    equal = screen_of(part_of(two | {"abps-plus": (0.70, 0.05, 0.0, None)}))
    assert equal.title.startswith("It makes no difference that matters")
    alone = screen_of(part_of({"local-best": two["local-best"]}))
    assert alone.title == "No method in this study exchanged anything."


def test_what_was_expected_of_collaboration_stands_beside_what_happened():
    """Held-out losses say for how many hospitals the page's method is better than alone."""
    part = part_of({"local": (0.62, 0.0, 0.0, None), "abps": (0.75, 1.5, 0.0, 3)})
    assert expectation(part) == ""  # it expected nothing
    lead = part.find("abps")
    runs = tuple(replace(run, partners=Partners(expected_better=0.9)) for run in lead.runs)
    better = int((part.find("local").loss > lead.loss).sum())
    said = expectation(replace(part, lines=(part.find("local"), replace(lead, runs=runs))))
    assert "abps expected 90% of hospitals" in said
    assert f"here {better / len(CENTERS):.0%} of {len(CENTERS)} have" in said


def test_cells_of_a_spreadsheet_and_of_markdown_are_text():
    table = tables.Table(
        "t", "c", ("a", "b"), (("=HYPERLINK(1)", "-0.5"), ("@x", "<img src=x onerror=y>|`*_"))
    )
    rows = list(csv.reader(io.StringIO(tables.as_csv(table))))[1:]
    assert rows == [["'=HYPERLINK(1)", "-0.5"], ["'@x", "<img src=x onerror=y>|`*_"]]
    markdown = tables.as_markdown(table)
    assert "<img" not in markdown and "&lt;img src=x onerror=y&gt;\\|\\`\\*\\_" in markdown


@given(st.floats(-1, 1))
def test_a_signed_number_reads_back(value):
    text = tables.signed(value).replace("−", "-")
    assert abs(float(text) - value) <= 0.0005 + 1e-12 and text != "-0.000"


# ---------------------------------------------------------------- figures


def test_every_figure_is_drawn_in_both_forms(study):
    names = {"pareto", "rounds", "decisions"}
    found = {p.name for p in (study.root / "figures").iterdir()}
    assert found == {f"{name}.{form}" for name in names for form in ("svg", "pdf")}
    for name in names:
        svg = (study.root / "figures" / f"{name}.svg").read_text()
        assert svg.startswith("<svg") and "currentColor" in svg and figures.INK not in svg
        assert (study.root / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    curves = (study.root / "figures" / "rounds.svg").read_text()
    for method in METHODS:
        assert f">{method}</text>" in curves


def test_identifiers_are_unique_over_the_page_and_all_references_resolve(study):
    page = (study.root / "report.html").read_text()
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'href="#([^"]+)"', page)) | set(re.findall(r"url\(#([^)]+)\)", page))
    assert used and used <= set(ids)


def test_two_federations_on_one_page_share_no_identifier(paired_study, browser, tmp_path):
    found = load_study(paired_study.root)
    section = section_of(parts_of(found)[0], PrivacyPart())
    text = page_of(found.record.request, [section, section], ())
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'href="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text))
    assert used <= set(ids)
    path = tmp_path / "two.html"
    path.write_text(text, encoding="utf-8")
    page, complaints = opened(browser, path)
    for part, form in enumerate(page.locator("form.picker").all(), 1):  # each looks among its own hospitals
        form.locator("input").fill("unit 07")
        form.get_by_role("button").click()
        chosen = page.locator(f"details.hospital[open][data-part='{part}']")
        assert chosen.count() == 1 and chosen.get_attribute("data-name") == "unit 07"
    assert page.url.endswith("#2:unit%2007") and complaints == []
    page.close()


def test_figures_that_have_nothing_to_show_are_left_out():
    names = [d.name for d in figures.draw_all(part_of({"local": METHODS["local"]}))]
    assert names == ["rounds"]


# ---------------------------------------------------------------- the whole


def test_the_same_runs_give_the_same_bytes(study, tmp_path):
    load_study(study.root).report(tmp_path)
    for part in ("tables", "figures"):
        for path in (study.root / part).iterdir():
            assert path.read_bytes() == (tmp_path / part / path.name).read_bytes(), path.name
    assert (study.root / "report.html").read_bytes() == (tmp_path / "report.html").read_bytes()


def test_what_is_not_there_is_named(tmp_path):
    study, plan = stored_study(
        tmp_path / "s", {"local": METHODS["local"], "fedavg": METHODS["fedavg"]}, (1, 2)
    )
    path = study.folder(plan.runs[0]) / RESULT
    path.write_text(path.read_text().replace('"seconds": 1.5', '"seconds": 2.5'))
    shutil.rmtree(study.folder(plan.runs[1]))
    study.note_failure(plan.runs[3], "it broke")
    (study.folder(plan.runs[3]) / RECEIPT).unlink()
    (study.folder(plan.runs[3]) / RESULT).unlink()
    report = load_study(study.root).report()
    assert len(report.absent) == 3
    told = "\n".join(report.absent)
    assert str(path) in told and "not computed yet" in told and "it broke" in told
    page = (study.root / "report.html").read_text()
    assert "Not in this report" in page and "it broke" in page


def test_a_study_without_a_finished_run_is_refused(tmp_path):
    plan = make_plan(Request((Source("icu-synthetic:centers=8,stays=800"),), ("local",), (1,), 1))
    StudyFolder(tmp_path / "s").open(plan)
    with pytest.raises(RequestError, match="has no finished run"):
        load_study(tmp_path / "s").report()
    with pytest.raises(RequestError, match="holds no study"):
        load_study(tmp_path).report()


def test_names_from_the_data_cannot_become_markup(tmp_path):
    study, _ = stored_study(tmp_path / "s", {"local": METHODS["local"]}, (1,))
    found = load_study(study.root)
    data = (replace(found.record.data[0], name="<script>alert(1)</script>"),)
    found = replace(found, record=replace(found.record, data=data), absent=("<img src=x>",))
    page = found.report(tmp_path / "page").page.read_text()
    assert "<script>alert" not in page and "<img" not in page and "&lt;script&gt;alert" in page


# ---------------------------------------------------------------- in a browser


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (1200, "dark"), (390, "light")])
def test_the_page_opens_without_network_and_without_complaint(study, browser, width, scheme):
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    asked, complaints = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    address = (study.root / "report.html").resolve().as_uri()
    page.goto(address)
    assert asked == [address] and complaints == []
    cards = page.locator(".cards h2").all_inner_texts()
    assert [card.title() for card in cards] == ["How Sure", "With Whom", "Price", "Next Step"]
    assert "approval" in page.inner_text(".cards")  # what a federation costs to run
    first = page.inner_text("body").split()
    assert len(first) <= MOST_WORDS
    plot = page.locator("table.forest").first.bounding_box()
    assert plot["y"] < 2 * 800  # within the first two screens
    page.evaluate("document.querySelectorAll('details.part').forEach(d => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")  # nothing hangs out sideways
    drawn = page.evaluate(
        """() => [...document.querySelectorAll('figure svg')].map(svg => {
            const box = svg.getBoundingClientRect();
            return {width: box.width, height: box.height, marks: svg.querySelectorAll('path, use').length,
                    texts: [...svg.querySelectorAll('text')].filter(t => t.getBBox().width > 0).length};
        })"""
    )
    assert len(drawn) == 3
    for figure in drawn:
        assert (
            figure["width"] >= 500
            and figure["height"] >= 150
            and figure["marks"] > 10
            and figure["texts"] > 5
        )
    clipped = page.evaluate(
        """() => [...document.querySelectorAll('table.forest th, table.forest td, table.first td')]
            .filter(cell => cell.scrollWidth > cell.clientWidth + 1).length"""
    )
    assert clipped == 0
    ink, paper = page.evaluate(
        "() => { const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]; }"
    )
    luminance = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (ink, paper)]
    assert luminance[0] < luminance[1] if scheme == "light" else luminance[0] > luminance[1]
    axis = page.evaluate("() => getComputedStyle(document.querySelector('figure svg text')).fill")
    assert axis == ink  # figures take their ink from the page
    page.close()


def test_the_page_prints(study, browser, tmp_path):
    page = browser.new_page(color_scheme="dark")
    page.goto((study.root / "report.html").resolve().as_uri())
    page.emulate_media(media="print")
    colour = page.evaluate("() => getComputedStyle(document.body).color")
    assert colour == "rgb(0, 0, 0)"  # black on white, also when the screen is dark
    page.pdf(path=str(tmp_path / "report.pdf"), prefer_css_page_size=True)
    assert (tmp_path / "report.pdf").stat().st_size > 20_000
    page.close()


def opened(browser, path, **more):
    """A page, and the list of what it complains about."""
    page = browser.new_page(**more)
    complaints = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(path.resolve().as_uri())
    return page, complaints


def test_a_hospital_is_found_by_its_name_and_by_its_address(study, browser):
    page, complaints = opened(browser, study.root / "report.html")
    page.get_by_label("Your hospital").fill("unit 07")
    page.get_by_role("button", name="Show").click()
    chosen = page.locator("details.hospital[open]")
    assert chosen.count() == 1 and chosen.locator("summary").inner_text().startswith("unit 07")
    assert page.url.endswith("#unit%2007")
    text = chosen.inner_text()
    assert "Your patients alone" in text and "Chance that you gain" in text
    page.get_by_label("Your hospital").fill("nowhere")
    page.keyboard.press("Enter")
    assert page.locator("form.picker output").inner_text() == "no hospital of this name"
    page.close()
    page, more = opened(browser, Path(f"{study.root}/report.html"))
    page.goto((study.root / "report.html").resolve().as_uri() + "#unit%2003")
    assert page.locator("details.hospital[open] summary").inner_text().startswith("unit 03")
    page.locator("table.forest a").first.click()  # a row of the plot leads to its hospital
    page.locator("details.hospital[open]").nth(1).wait_for()  # the page follows the address a moment later
    assert page.locator("details.hospital[open]").count() == 2
    assert complaints == [] and more == []
    page.close()


@pytest.fixture(scope="module")
def paired_study(tmp_path_factory):
    """A study whose lead works in pairs, rests, and leaves one hospital far below."""
    root = tmp_path_factory.mktemp("paired") / "study"
    methods = {name: METHODS[name] for name in ("local", "fedavg", "random-k1")}
    found, _ = stored_study(root, methods | {"abps-plus": (0.77, 0.05, 0.2, 1)}, (1, 2, 3))
    load_study(root).report()
    return found


def test_partners_stand_in_the_panel_and_hospitals_in_a_table(paired_study):
    stories = hospitals_of(parts_of(load_study(paired_study.root))[0])
    assert any(story.partners for story in stories)
    assert re.search(r"\(\d+ rounds\)", (paired_study.root / "report.html").read_text())
    rows = list(csv.DictReader((paired_study.root / "tables" / "hospitals.csv").open(encoding="utf-8")))
    assert [row["hospital"] for row in rows] == CENTERS and float(rows[0]["together"]) > 0.5


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (1200, "dark"), (375, "light")])
def test_nothing_stands_in_the_way_of_a_screen_reader(paired_study, browser, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
    )  # the checker is a script of its own
    page.goto((paired_study.root / "report.html").resolve().as_uri())
    page.evaluate("document.querySelectorAll('details.part').forEach(d => { d.open = true; })")
    page.evaluate("document.querySelectorAll('details.hospital').forEach((d, k) => { d.open = k < 3; })")
    found = axe.run(page).response["violations"]
    serious = [v for v in found if v["impact"] in ("serious", "critical")]
    assert not serious, [(v["id"], v["nodes"][0]["html"][:200]) for v in serious]
    page.close()


def test_a_hospital_may_be_called_anything(tmp_path, browser, monkeypatch):
    evil = [
        "<script>alert(1)</script>",
        "</script><img src=x onerror=alert(1)>",
        "=cmd|' /C calc'!A0",
        "a#b c/ü?%41",
    ]
    names = [*evil, *CENTERS[4:]]
    monkeypatch.setattr("made_runs.CENTERS", names)
    methods = {"local": METHODS["local"], "abps-plus": (0.77, 0.05, 0.2, 1)}
    study, _ = stored_study(tmp_path / "s", methods, (1, 2))
    path = load_study(study.root).report().page
    page, complaints = opened(browser, path)
    page.on("dialog", lambda dialog: pytest.fail("a name ran"))
    assert page.locator("img").count() == 0 and complaints == []
    for name in evil:
        page.get_by_label("Your hospital").fill(name)
        page.keyboard.press("Enter")
        shown = page.locator("form.picker output").inner_text()
        assert shown == " ".join(name.split())
    chosen = page.locator("details.hospital[open]")
    assert {chosen.nth(k).get_attribute("data-name") for k in range(chosen.count())} == set(evil)
    cells = (study.root / "tables" / "centers.csv").read_text()
    assert "'=cmd" in cells
    page.close()
