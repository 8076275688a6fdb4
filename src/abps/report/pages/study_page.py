"""The report of a study as one page: no network, light and dark, screen, phone and paper."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from abps.data.repairs import RULES
from abps.report import story, tables
from abps.report.clinical_part import within
from abps.report.drawing import Drawing
from abps.report.figures import FAMILIES, family
from abps.report.hospitals import Hospitals
from abps.report.pages.calibration_picture import calibration_picture
from abps.report.pages.document import render, script_json
from abps.report.pages.hospital_picture import picture
from abps.report.statistics import Part
from abps.study.plan import Request

if TYPE_CHECKING:
    from abps.report.build import Section


def page(
    request: Request,
    sections: Sequence[Section],
    absent: Sequence[str],
    running: str = "",
    tuned: Sequence[str] = (),
) -> str:
    """The page of a study. running: how far it is, while it is not finished."""
    versions = sections[0].part.lines[0].result.runs[0].versions
    names = ", ".join(section.part.data.name for section in sections)
    return render(
        "report.html",
        title=f"{names} – federated comparison",
        stories=[_story(section, number) for number, section in enumerate(sections, 1)],
        request=request,
        sections=sections,
        scale=[_scale(section.part) for section in sections],
        absent=absent,
        tuned=tuned,
        running=running,
        versions=versions,
        tint={name: colour for name, (colour, _) in FAMILIES.items()},
        family=family,
        percent=tables.percent,
        harm=tables.harm,
        verdict=tables.verdict,
        rules=RULES,
        within=within,
        standing_on=tables.standing_on,
        curve=calibration_picture,
    )


@dataclass(frozen=True)
class Download:
    """A file inside the page."""

    name: str
    address: str


@dataclass(frozen=True, eq=False)
class Story:
    """What a section shows before its methods. crossed: the method that the picture marks by a cross."""

    answer: str
    beside: list[str]
    tiles: list[story.Tile]
    steps: list[str]
    hospitals: Hospitals | None
    picture: Markup
    crossed: str
    map_json: Markup
    drawings: list[Drawing]
    clinical_drawings: list[Drawing]
    downloads: list[Download]


def _story(section: Section, number: int) -> Story:
    part = section.part
    found = section.hospitals
    drawn = drawn_map = Markup()
    if found is not None:
        label, alone = found.lead.result.label, part.alone or "alone"
        drawn = picture(found.by_gain(), alone, label, beside(found), part.measure, number)
        if found.map is not None:
            drawn_map = script_json({"centers": found.map.centers, "rounds": found.map.rounds})
    sheets = [tables.hospitals(part, found)] if found is not None else []
    sheets += [tables.numbers(part), tables.centers(part), *section.clinical.tables]
    sheets += section.privacy.tables if section.privacy is not None else []
    return Story(
        story.answer(part, found),
        story.beside(part, found),
        story.tiles(part, found),
        story.steps(part, found),
        found,
        drawn,
        beside(found) if found is not None else "",
        drawn_map,
        [drawing.apart(number) for drawing in section.drawings],
        [drawing.apart(number) for drawing in section.clinical.drawings],
        [Download(f"{sheet.name}.csv", _inline(tables.as_csv(sheet))) for sheet in sheets],
    )


def beside(found: Hospitals) -> str:
    """FedAvg, where it ran and the page is about another method."""
    label = found.lead.result.label
    return "fedavg" if label != "fedavg" and any(h.under("fedavg") for h in found.all) else ""


def _inline(text: str) -> str:
    """A CSV file as an address that needs no network."""
    return f"data:text/csv;charset=utf-8;base64,{base64.b64encode(text.encode()).decode()}"


def _scale(part: Part) -> dict[str, float]:
    """Where the bars of the headline table begin and end."""
    means = [line.result.mean for line in part.lines]
    low, high = min(means), max(means)
    room = (high - low) * 0.12 or 0.01
    return {"low": low - room, "span": (high - low) + 2 * room}
