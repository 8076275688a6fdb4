"""The picture of all hospitals: alone, together, sorted and named; plain SVG, one row each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from urllib.parse import quote

from markupsafe import Markup

from abps.report.hospitals import Hospital

#: Sizes in pixels: a row, the names on the left, the plot.
ROW, NAMES, PLOT, TOP = 18, 190, 430, 26
#: Classes of the style sheet by verdict.
TONE = {"better": "gain", "worse": "loss"}


def picture(hospitals: Sequence[Hospital], alone: str, together: str) -> Markup:
    """One row per hospital: a ring for alone, a dot for together, a line between; each row is a link."""
    known = [v for h in hospitals for v in (h.alone, h.main.auroc) if math.isfinite(v)]
    low, high = (min(known), max(known) + 1e-6) if known else (0.0, 1.0)
    step = 0.1 if high - low > 0.3 else 0.05
    low = math.floor(low / step) * step
    ticks = range(math.ceil((high - low) / step - 1e-9) + 1)
    high = low + step * (len(ticks) - 1)
    height = TOP + ROW * len(hospitals) + 8

    def at(value: float) -> float:
        return round(NAMES + (value - low) / (high - low) * PLOT, 1)

    label = f"AUROC of {len(hospitals)} hospitals, {alone} (ring) and {together} (dot)"
    parts = [
        f'<svg class="hospitals" viewBox="0 0 {NAMES + PLOT + 70} {height}" role="group" '
        f'aria-label="{escape(label)}">'
    ]
    for k in ticks:
        value = low + step * k
        parts.append(f'<line class="rule" x1="{at(value)}" x2="{at(value)}" y1="{TOP - 6}" y2="{height}"/>')
        parts.append(f'<text class="axis" x="{at(value)}" y="14" text-anchor="middle">{value:.2f}</text>')
    for k, hospital in enumerate(hospitals):
        parts.append(_row(hospital, TOP + ROW * k + ROW / 2, at))
    return Markup("\n".join([*parts, "</svg>"]))


def _row(hospital: Hospital, y: float, at: Callable[[float], float]) -> str:
    main, name = hospital.main, hospital.name
    tone = TONE.get(main.verdict, "even")
    gain = f"{main.gain:+.3f}".replace("-", "\u2212") if math.isfinite(main.gain) else main.verdict
    told = f"{name}: {hospital.alone:.3f} alone, {main.auroc:.3f} together, {main.verdict}"
    short = name if len(name) <= 26 else f"{name[:25]}\u2026"
    marks = ""
    if math.isfinite(hospital.alone) and math.isfinite(main.auroc):
        a, b = at(hospital.alone), at(main.auroc)
        marks = (
            f'<line class="way" x1="{a}" x2="{b}" y1="{y}" y2="{y}"/>'
            f'<circle class="alone" cx="{a}" cy="{y}" r="3.5"/>'
            f'<circle class="together" cx="{b}" cy="{y}" r="4.5"/>'
        )
    return (
        f'<a href="#{escape(quote(name, safe=""))}" class="{tone}" aria-label="{escape(told)}">'
        f'<title>{escape(told)}</title><rect class="hit" x="0" y="{y - ROW / 2}" '
        f'width="{NAMES + PLOT + 70}" height="{ROW}"/>'
        f'<text x="{NAMES - 12}" y="{y + 4}" text-anchor="end">{escape(short)}</text>{marks}'
        f'<text class="delta" x="{NAMES + PLOT + 66}" y="{y + 4}" text-anchor="end">{escape(gain)}</text></a>'
    )
