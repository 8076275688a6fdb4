"""Figures as SVG for a page and a file, and as PDF. The same figure gives the same bytes."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

from abps import files

#: Text and axes are drawn in this colour and become ``currentColor``, so a page can be light or dark.
INK = "#010203"
#: Two colours that differ in lightness as well as in hue, and one for what is not the matter.
EARLY, LATE, QUIET = "#2f7fb8", "#d95f02", "#8a8f98"

_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.fonttype": "none",  # text stays text: small files, searchable, readable aloud
    "pdf.fonttype": 42,
}


@dataclass(frozen=True)
class Drawing:
    """A figure: its file name, what it shows, and its two forms."""

    name: str
    title: str
    caption: str
    svg: Markup
    pdf: bytes

    def _repr_svg_(self) -> str:
        return self.svg

    def apart(self, number: int) -> Drawing:
        """The same drawing with identifiers of its own, for a page that has another one of this name."""
        if number == 1:
            return self
        own = _prefixed(str(self.svg), str(number))  # plain text: markup would escape the quotes
        return replace(self, name=f"{number}-{self.name}", svg=Markup(own))

    def save(self, folder: Path, prefix: str = "") -> None:
        files.write_text(folder / f"{prefix}{self.name}.svg", self.svg)
        files.write_with(folder / f"{prefix}{self.name}.pdf", lambda part: part.write_bytes(self.pdf))


def draw(name: str, title: str, caption: str, make: Callable[[], Figure]) -> Drawing:
    """Draw a figure in the common style. ``make`` gives a figure with ``layout="constrained"``."""
    with mpl.rc_context(_STYLE | {"svg.hashsalt": f"abps-{name}"}):
        figure = make()
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # the layout is settled: once, not for every form
        pdf, nothing = io.BytesIO(), {"CreationDate": None, "Producer": None, "Creator": None}
        svg = Markup(_svg(figure, name))
        figure.savefig(pdf, format="pdf", facecolor="white", metadata=nothing)
        return Drawing(name, title, caption, svg, pdf.getvalue())


def blank(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")


def _svg(figure: Figure, name: str) -> str:
    """The figure as SVG that takes its ink from the page and shares no identifier with another. Styles become
    attributes, because a page that forbids inline styles would not obey them."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<(metadata|style).*?</\1>\s*", "", text, flags=re.S)
    common = 'stroke-linejoin="round" stroke-linecap="butt" font-family="DejaVu Sans, Verdana, sans-serif"'
    text = text.replace("<svg ", f"<svg {common} ", 1)
    text = re.sub(r'style="([^"]*)"', _attributes, text)
    return re.sub(r"[ \t]+$", "", _prefixed(text.replace(INK, "currentColor"), name), flags=re.M)


def _prefixed(svg: str, name: str) -> str:
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)


def _attributes(style: re.Match[str]) -> str:
    """``style="fill: none; stroke: red"`` as ``fill="none" stroke="red"``; the font is the whole figure's."""
    said = dict(part.strip().split(":", 1) for part in style[1].split(";") if part.strip())
    said.pop("font-family", None)
    return " ".join(f'{key.strip()}="{value.strip()}"' for key, value in said.items())
