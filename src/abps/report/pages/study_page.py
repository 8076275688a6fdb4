"""The report of a study as one page: no network, light and dark, screen, phone and paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from abps.report import tables
from abps.report.figures import FAMILIES, family
from abps.report.pages.document import render
from abps.report.statistics import Part
from abps.study.plan import Request

if TYPE_CHECKING:
    from abps.report.build import Section


def page(request: Request, sections: Sequence[Section], absent: Sequence[str]) -> str:
    """The page of a study."""
    versions = sections[0].part.lines[0].result.runs[0].versions
    names = ", ".join(section.part.data.name for section in sections)
    return render(
        "report.html",
        title=f"{names} – federated comparison",
        request=request,
        sections=sections,
        scale=[_scale(section.part) for section in sections],
        absent=absent,
        versions=versions,
        tint={name: colour for name, (colour, _) in FAMILIES.items()},
        family=family,
        percent=tables.percent,
        harm=tables.harm,
        verdict=tables.verdict,
    )


def _scale(part: Part) -> dict[str, float]:
    """Where the bars of the headline table begin and end."""
    means = [line.result.mean for line in part.lines]
    low, high = min(means), max(means)
    room = (high - low) * 0.12 or 0.01
    return {"low": low - room, "span": (high - low) + 2 * room}
