"""The picture of all hospitals: alone, together, sorted and named; plain SVG, one row each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from markupsafe import Markup

from abps.report.hospitals import Hospital
from abps.report.pages.document import anchor
from abps.report.statistics import BETTER, WORSE
from abps.report.tables import number, signed

#: Sizes in pixels: a row, the names on the left, the plot, the words on the right, the scale above.
ROW, NAMES, PLOT, WORDS, TOP = 18, 190, 300, 130, 26
WIDTH = NAMES + PLOT + WORDS
#: Where the number of events ends, beside the name; letters of a name that fit.
EVENTS, LETTERS = 34, 21
#: Classes of the style sheet, and the word at the end of a row, by verdict.
TONE = {BETTER: "gain", WORSE: "loss"}
SAID = {BETTER: "gains", WORSE: "loses"}


def picture(
    hospitals: Sequence[Hospital],
    alone: str,
    together: str,
    other: str = "",
    measure: str = "AUROC",
    number: int = 1,
) -> Markup:
    """One row per hospital: a ring for alone, a dot for together, a line between; each row is a link.

    other: a method that is marked by a cross besides (FedAvg, where the page is about another one).
    number: of the federation on its page.
    """
    known = [v for h in hospitals for v in _levels(h, other) if math.isfinite(v)]
    low, high = (min(known), max(known) + 1e-6) if known else (0.0, 1.0)
    step = 0.1 if high - low > 0.3 else 0.05
    low = math.floor(low / step) * step
    ticks = range(math.ceil((high - low) / step - 1e-9) + 1)
    high = low + step * (len(ticks) - 1)
    height = TOP + ROW * len(hospitals) + 8

    def at(value: float) -> float:
        return round(NAMES + (value - low) / (high - low) * PLOT, 1)

    marks = f"{alone} (ring), {together} (dot)" + (f" and {other} (cross)" if other else "")
    parts = [
        f'<svg class="hospitals" viewBox="0 0 {WIDTH} {height}" role="group" '
        f'aria-label="{escape(f"{measure} of {len(hospitals)} hospitals, {marks}")}">'
    ]
    if any(h.scored.known for h in hospitals):
        parts.append(f'<text class="axis" x="{NAMES - 18}" y="14" text-anchor="end">events</text>')
    for k in ticks:
        value = low + step * k
        parts.append(f'<line class="rule" x1="{at(value)}" x2="{at(value)}" y1="{TOP - 6}" y2="{height}"/>')
        parts.append(f'<text class="axis" x="{at(value)}" y="14" text-anchor="middle">{value:.2f}</text>')
    for k, hospital in enumerate(hospitals):
        parts.append(_row(hospital, TOP + ROW * k + ROW / 2, at, other, number))
    return Markup("\n".join([*parts, "</svg>"]))


def _levels(hospital: Hospital, other: str) -> tuple[float, ...]:
    """What a row shows: alone, together, and under the other method."""
    beside = hospital.under(other)
    return (hospital.alone, hospital.main.auroc, math.nan if beside is None else beside.auroc)


def _row(hospital: Hospital, y: float, at: Callable[[float], float], other: str, part: int) -> str:
    main, name = hospital.main, hospital.name
    alone, together, beside = _levels(hospital, other)
    tone = TONE.get(main.verdict, "even")
    seen = f"{signed(main.measured)} " if math.isfinite(main.measured) else ""
    told = f"{name}: {number(alone)} alone, {number(together)} together{hospital.on_events}"
    told += f", {hospital.words(main)}"
    if math.isfinite(beside):
        told += f"; {number(beside)} with {other}"
    short = name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}\u2026"
    events = ""
    if hospital.scored.known:
        count = f"{hospital.scored.events:.0f}"
        events = f'<text class="axis" x="{NAMES - 12}" y="{y + 4}" text-anchor="end">{count}</text>'
    marks = ""
    if math.isfinite(alone) and math.isfinite(together):
        a, b = at(alone), at(together)
        marks = (
            f'<line class="way" x1="{a}" x2="{b}" y1="{y}" y2="{y}"/>'
            f'<circle class="alone" cx="{a}" cy="{y}" r="3.5"/>'
            f'<circle class="together" cx="{b}" cy="{y}" r="4.5"/>'
        )
    if math.isfinite(beside):
        c, lost = at(beside), hospital.under(other)
        surely = " loss" if lost is not None and lost.verdict == WORSE else ""
        marks += (
            f'<path class="beside{surely}" d="M{c - 3:.1f} {y - 3}L{c + 3:.1f} {y + 3}'
            f'M{c - 3:.1f} {y + 3}L{c + 3:.1f} {y - 3}"/>'
        )
    return (
        f'<a href="#{escape(anchor(name, part))}" class="{tone}" aria-label="{escape(told)}">'
        f'<title>{escape(told)}</title><rect class="hit" x="0" y="{y - ROW / 2}" '
        f'width="{WIDTH}" height="{ROW}"/>'
        f'<text x="{NAMES - 12 - EVENTS}" y="{y + 4}" text-anchor="end">{escape(short)}</text>{events}{marks}'
        f'<text class="delta" x="{WIDTH - 4}" y="{y + 4}" text-anchor="end">'
        f"{seen}{SAID.get(main.verdict, main.verdict)}</text></a>"
    )
