"""The cohort and drift pages: whole, escaped, without network, and with the numbers of the table."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest

from abps.cohorts import cohort_page
from abps.cohorts.tidy import Cohort, Flow, SourceFile, Variable
from abps.data.roles import Roles
from abps.lab import drift_page as drift_page
from abps.lab.drift_analysis import Question, analyse
from abps.report import document as page


class Balanced(HTMLParser):
    """Every tag that opens closes, in order."""

    VOID = frozenset({"meta", "br", "img", "link", "input", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def check(html: str) -> str:
    """Balanced, self-contained; returns the text."""
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    assert not re.search(r'(?:src|href)="(?!#|data:)', html.replace('xlink:href="#', 'href="#'))
    assert not re.search(r"@import|url\((?!#|[\"']?#|data:)", html)
    assert "<script" not in html and not re.search(r"\bstyle=", html)  # the policy would not let them work
    assert page.policy(html) in unescape(html) and "unsafe" not in html
    identifiers = re.findall(r'\bid="([^"]+)"', html)
    assert len(identifiers) == len(set(identifiers))
    return " ".join(" ".join(parser.text).split())


@pytest.fixture(scope="module")
def cohort() -> Cohort:
    rng = np.random.default_rng(0)
    rows = 900
    table = pl.DataFrame(
        {
            "died": (rng.uniform(size=rows) < 0.2).astype(np.int8),
            "hospital": rng.choice([f"H{i:02d}" for i in range(70)] + ["<b>evil & co</b>"], rows),
            "patient": rng.integers(0, 600, rows),
            "stay": np.arange(rows),
            "age": np.where(rng.uniform(size=rows) < 0.1, np.nan, rng.normal(60, 10, rows)),
            "sex": rng.choice(["F", "M"], rows),
            "empty": pl.Series([None] * rows, dtype=pl.Float64),
        }
    ).with_columns(pl.col("age").fill_nan(None))
    flow = Flow.start(table, "stays in the source").keep(
        pl.col("age").is_null() | (pl.col("age") > 45), "too young"
    )
    roles = {"died": "label", "hospital": "context", "patient": "identifier", "stay": "identifier"}
    return Cohort(
        source="test",
        recipe="test/1",
        table=flow.table,
        roles=Roles("died", "hospital", "patient"),
        steps=flow.steps,
        dictionary=tuple(Variable(c, roles.get(c, "feature"), "", f"meaning of {c}") for c in table.columns),
        files=(SourceFile("a.csv", 12, "0" * 64),),
        options={"window": "24h"},
        warnings=("something <odd> happened",),
    )


def test_cohort_page(cohort: Cohort) -> None:
    html = cohort_page.report(cohort, "A cohort")
    text = check(html)
    assert f"{cohort.table.height:,} stays" in text and f"{int(cohort.table['died'].sum())} deaths" in text
    assert "something <odd> happened" in text and "<b>evil" not in html
    assert f"Left out: {cohort.steps[1].left_out:,}" in text and "too young" in text
    assert "The 60 largest of 71 centers are shown." in text
    for center in cohort.table["hospital"].unique():
        assert center in text
    missing = cohort.table["age"].null_count() / cohort.table.height
    assert re.search(rf"age number {100 * missing:.1f}", text)
    assert "empty empty 100.0 no value" in text
    assert "0" * 64 in text and "meaning of sex" in text


def test_the_same_cohort_gives_the_same_page(cohort: Cohort) -> None:
    assert cohort_page.report(cohort, "A cohort") == cohort_page.report(cohort, "A cohort")


def test_flow_is_valid_svg(cohort: Cohort) -> None:
    root = ElementTree.fromstring(cohort_page.flow_svg(cohort.steps, "died"))
    words = " ".join(element.text or "" for element in root.iter())
    assert "900 stays" in words and f"{cohort.table.height:,} stays" in words and "too young" in words
    boxes = [e for e in root.iter() if e.tag.endswith("rect")]
    assert len(boxes) == 2 + 1


@pytest.mark.parametrize("grouped", [True, False])
def test_drift_page(cohort: Cohort, grouped: bool) -> None:
    rng = np.random.default_rng(4)
    rows = cohort.table.height
    table = cohort.table.with_columns(
        year=pl.Series(rng.uniform(2110, 2120, rows)),
        era=pl.Series(rng.choice(["early <1>", "late"], rows)),
        region=pl.col("hospital").str.slice(0, 2),
    )
    found = analyse(
        table,
        Question("died", "hospital", "region" if grouped else None, "year", "era", columns=("age",)),
    )
    text = check(drift_page.report(found, drift_page.draw_all(found), "Drift & more"))
    assert f"{found.shifts[0].test.count[0]:,} | {found.shifts[0].test.count[1]:,}" in text
    assert page.p_value(found.shifts[0].test.p) in text and "early <1>" in text
    assert ("within one group" in text) == grouped
    assert found.association is not None and f"{found.association.v:.3g}" in text


def test_figures_are_the_same_bytes_each_time(cohort: Cohort, tmp_path: Path) -> None:
    table = cohort.table.with_columns(year=pl.Series(np.linspace(2110, 2119.9, cohort.table.height)))
    found = analyse(table, Question("died", time="year", columns=("age",)))
    for name in ("a", "b"):
        for drawing in drift_page.draw_all(found).values():
            drawing.save(tmp_path / name, "drift-")
    names = {path.name for path in (tmp_path / "a").iterdir()}
    assert names == {f"drift-{name}.{kind}" for name in ("histograms", "rates") for kind in ("svg", "pdf")}
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize(
    ("p", "text"),
    [(0.0384, "0.038"), (5.04e-8, "5e-8"), (float("nan"), "–"), (0.0, "< 1e-300"), (1.0, "1.000")],
)
def test_p_values_as_papers_write_them(p: float, text: str) -> None:
    assert page.p_value(p) == text
