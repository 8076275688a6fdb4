"""The report of a study as one page: no network, light and dark, screen, phone and paper."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from abps.data.repairs import RULES
from abps.report import study_tables, tables
from abps.report.clinical_part import within
from abps.report.drawing import Drawing
from abps.report.forest import forest, shown_in_forest
from abps.report.pages.calibration_picture import calibration_picture
from abps.report.pages.document import render
from abps.report.words import in_ten
from abps.study.plan import Request

if TYPE_CHECKING:
    from abps.report.build import Section


@dataclass(frozen=True)
class Download:
    """A file inside the page."""

    name: str
    address: str


@dataclass(frozen=True, eq=False)
class View:
    """What a section shows besides its words: the plots, the files, and what was noticed about the data."""

    forest: Markup
    whole_forest: Markup
    drawings: list[Drawing]
    clinical_drawings: list[Drawing]
    downloads: list[Download]
    warnings: list[str]


def page(
    request: Request,
    sections: Sequence[Section],
    absent: Sequence[str],
    tuned: Sequence[str] = (),
) -> str:
    """The page of a study."""
    versions = sections[0].part.lines[0].result.runs[0].versions
    names = ", ".join(section.part.data.name for section in sections)
    return render(
        "report.html",
        title=f"{names} – federated comparison",
        views=[_view(section, number) for number, section in enumerate(sections, 1)],
        request=request,
        sections=sections,
        absent=absent,
        tuned=tuned,
        versions=versions,
        rules=RULES,
        within=within,
        in_ten=in_ten,
        curve=calibration_picture,
    )


def _view(section: Section, number: int) -> View:
    part, hospitals, found = section.part, section.hospitals, section.part.primary
    drawn = whole = Markup()
    if found is not None:
        drawn = forest(hospitals, found, part.measure, number)
        if len(shown_in_forest(hospitals)) and "gap" in drawn:
            whole = forest(hospitals, found, part.measure, number, whole=True)
    sheets = [study_tables.hospitals(part, hospitals)] if hospitals else []
    sheets += [study_tables.numbers(part), study_tables.centers(part), *section.clinical.tables]
    sheets += section.privacy.tables if section.privacy is not None else []
    return View(
        drawn,
        whole,
        [drawing.apart(number) for drawing in section.drawings],
        [drawing.apart(number) for drawing in section.clinical.drawings],
        [Download(f"{sheet.name}.csv", _inline(tables.as_csv(sheet))) for sheet in sheets],
        _warnings(section),
    )


def _warnings(section: Section) -> list[str]:
    """What was noticed about the table, each thing once."""
    check = section.part.data.check
    if check is None:
        return []
    return list(dict.fromkeys(check.remarks))


def _inline(text: str) -> str:
    """A CSV file as an address that needs no network."""
    return f"data:text/csv;charset=utf-8;base64,{base64.b64encode(text.encode()).decode()}"
