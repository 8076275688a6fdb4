"""One self-contained page: a template, inline SVG figures, no network."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import matplotlib

from abps import files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Two colours that differ in lightness as well as in hue.
EARLY, LATE = "#1b5e8c", "#d95f02"
QUIET = "#8a8f98"

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: small files, searchable, readable aloud
    "svg.hashsalt": "abps",  # the same figure gives the same bytes
    "font.size": 9,
    "axes.titlesize": 9,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


def figure(width: float, height: float) -> Figure:
    """A figure that needs no display, in inches."""
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        return Figure(figsize=(width, height), layout="constrained")


def svg(drawn: Figure, title: str) -> str:
    """A figure as an inline SVG element with a name that screen readers say."""
    buffer = io.StringIO()
    _lighten(drawn)
    with matplotlib.rc_context(_STYLE):
        drawn.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # two figures in one page must not share identifiers
    tag = re.sub(r"\W+", "-", title.lower()).strip("-")
    text = re.sub(r'\bid="([^"]+)"', rf'id="{tag}-\1"', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{tag}-", text)
    label = title.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def _lighten(drawn: Figure) -> None:
    """No frame above and to the right of a plot."""
    for axes in drawn.axes:
        axes.spines[["top", "right"]].set_visible(False)


def save(drawn: Figure, path: Path) -> None:
    """Write a figure whole, as SVG or PDF by its suffix; the same figure gives the same bytes."""
    kind = path.suffix.removeprefix(".")
    _lighten(drawn)
    dateless = {"svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None}}[kind]
    with matplotlib.rc_context(_STYLE):
        files.write_with(path, lambda part: drawn.savefig(part, format=kind, metadata=dateless))


def render(template: str, **context: Any) -> str:
    """Fill a template of this package; everything but SVG is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("abps.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["thousands"] = lambda value: "" if value is None else f"{value:,}"
    environment.filters["percent"] = lambda value: f"{100 * value:.1f}"
    environment.filters["p"] = p_value
    environment.filters["number"] = lambda value, digits=3: "–" if value != value else f"{value:.{digits}g}"
    return environment.get_template(template).render(**context)


def p_value(p: float) -> str:
    """A p-value as papers write it."""
    if p != p:
        return "–"
    if p >= 0.001:
        return f"{p:.3f}"
    if p == 0:
        return "< 1e-300"
    mantissa, exponent = f"{p:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"
