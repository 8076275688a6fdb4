"""The report as one page: no script, no network, light and dark, screen, phone and paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from abps.report import tables
from abps.report.figures import FAMILIES, family
from abps.report.statistics import Part

if TYPE_CHECKING:
    from abps.report.build import Section


def page(document: Mapping[str, Any], sections: Sequence[Section], absent: Sequence[str]) -> str:
    """The page of a study."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("abps.report", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "number": tables.number,
        "signed": tables.signed,
        "times": tables.times,
        "svg": Markup,
        "thousands": lambda value: f"{value:,}".replace(",", "\u202f"),
    }
    template = environment.get_template("report.html")
    versions = sections[0].part.lines[0].result.runs[0]["versions"]
    return template.render(
        request=document["request"],
        sections=sections,
        scale=[_scale(section.part) for section in sections],
        absent=absent,
        versions=versions,
        tint={name: colour for name, (colour, _) in FAMILIES.items()},
        family=family,
        percent=tables.percent,
    )


def _scale(part: Part) -> dict[str, float]:
    """Where the bars of the headline table begin and end."""
    means = [line.result.mean for line in part.lines]
    low, high = min(means), max(means)
    room = (high - low) * 0.12 or 0.01
    return {"low": low - room, "span": (high - low) + 2 * room}
