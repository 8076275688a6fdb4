"""A hospital's calibration as a small picture: one line for every repeat, and the one where it should be."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from markupsafe import Markup

#: Pixels: the plot, and the room for its scale.
SIZE, LEFT, BOTTOM, EDGE = 150, 34, 30, 6


def calibration_picture(curves: Sequence[Sequence[tuple[float, float]]], name: str) -> Markup:
    """Smooth curves of (predicted probability, share of events); nothing without one."""
    if not curves:
        return Markup()
    highest = max(max(point) for curve in curves for point in curve)
    top = next(t for t in (0.1, 0.2, 0.4, 0.6, 0.8, 1.0) if highest <= t or t == 1.0)

    def at(predicted: float, seen: float) -> str:
        return f"{LEFT + predicted / top * SIZE:.0f},{EDGE + SIZE - seen / top * SIZE:.0f}"

    width, height = LEFT + SIZE + EDGE, EDGE + SIZE + BOTTOM
    lines = "".join(f'<polyline points="{" ".join(at(a, b) for a, b in curve)}"/>' for curve in curves)
    words = escape(f"Calibration of {name}: share of events by predicted probability, a line per repeat")
    return Markup(
        f'<svg class="calibration" viewBox="0 0 {width} {height}" role="img" aria-label="{words}">'
        f'<path class="right" d="M{at(0, 0)}L{at(top, top)}"/>{lines}'
        f'<path class="axes" d="M{at(0, top)}L{at(0, 0)}L{at(top, 0)}"/>'
        f'<text x="{LEFT - 4}" y="{EDGE + 8}" text-anchor="end">{top:g}</text>'
        f'<text x="{LEFT - 4}" y="{EDGE + SIZE}" text-anchor="end">0</text>'
        f'<text x="{LEFT + SIZE}" y="{EDGE + SIZE + 13}" text-anchor="end">{top:g}</text>'
        f'<text x="{LEFT + SIZE / 2}" y="{EDGE + SIZE + 26}" text-anchor="middle">predicted / observed</text>'
        "</svg>"
    )
