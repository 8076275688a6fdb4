"""The forest plot: every hospital's gain with its interval, best first, the average, and a further hospital.

Rows of a table with a small drawing each: positions are per cent of the cell's width, so that text keeps its
size on a phone and the drawing takes what is left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from markupsafe import Markup

from abps.evaluate.verdicts import HospitalVerdict
from abps.report.analysis import Comparison
from abps.report.hospitals import HospitalStory
from abps.report.pages.document import anchor
from abps.report.tables import signed

#: Rows of the short plot: the best and the worst.
BEST, WORST = 10, 5

#: Classes of the style sheet by verdict.
TONE = {
    HospitalVerdict.GAINS: "gain",
    HospitalVerdict.PROBABLY_GAINS: "maybe-gain",
    HospitalVerdict.PROBABLY_LOSES: "maybe-loss",
    HospitalVerdict.LOSES: "loss",
}


def shown_in_forest(hospitals: Sequence[HospitalStory]) -> list[HospitalStory]:
    """Hospitals with at least five events, from the largest estimated gain to the largest loss."""
    known = [h for h in hospitals if h.evidence.shown and math.isfinite(h.evidence.estimate)]
    return sorted(known, key=lambda h: (-h.evidence.estimate, h.name))


def forest(
    hospitals: Sequence[HospitalStory], found: Comparison, measure: str, number: int = 1, whole: bool = False
) -> Markup:
    """The plot of one comparison.  number: of the federation on its page.  whole: all rows, however many."""
    ordered = shown_in_forest(hospitals)
    if not ordered:
        return Markup()
    scale = _Scale(ordered, found)
    few = not whole and len(ordered) > BEST + WORST + 2
    top = ordered[:BEST] if few else ordered
    rows = [_row(h, scale, number) for h in top]
    if few:
        left = len(ordered) - BEST - WORST
        rows.append(f'<tr class="gap"><td colspan="4">{left} more between these</td></tr>')
        rows += [_row(h, scale, number) for h in ordered[-WORST:]]
    hidden = len(hospitals) - len(ordered)
    rows += _summary(found, scale)
    caption = f"Gain in {measure}, together minus alone, best first."
    if number == 1:
        caption += (
            " Square: a hospital's own evidence combined with that of all, with its 95 % interval; ring: its "
            "own patients alone; full colour: 95 % sure of the sign."
        )
    if hidden:
        caption += f" Not plotted: {hidden} with fewer than 5 events."
    return Markup(
        f'<table class="forest"><caption>{escape(caption)}</caption>'
        '<thead><tr><th scope="col">hospital</th><th scope="col">events</th>'
        f'<th scope="col" class="plot-head">{scale.axis()}</th><th scope="col">gain (95 % interval)</th></tr>'
        f"</thead><tbody>{''.join(rows)}</tbody></table>"
    )


class _Scale:
    """Gains as per cent of a cell's width."""

    def __init__(self, ordered: Sequence[HospitalStory], found: Comparison) -> None:
        ends = [v for h in ordered for v in (h.evidence.low, h.evidence.high)]
        ends += [v for v in found.interval if math.isfinite(v)]
        low, high = min([*ends, 0.0]), max([*ends, 0.0])
        step = next((s for s in (0.02, 0.05, 0.1, 0.2, 0.5) if (high - low) / s <= 5), 1.0)
        self.low = math.floor(low / step) * step
        self.high = max(math.ceil(high / step) * step, self.low + step)
        count = round((self.high - self.low) / step)
        self.ticks = [round(self.low + k * step, 6) for k in range(count + 1)]

    def at(self, value: float) -> float:
        """Per cent from the left, kept inside the plot."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(3 + 94 * share, 2)

    def grid(self) -> str:
        """Lines of the scale, behind a row."""
        return "".join(
            f'<line class="{"zero" if tick == 0 else "grid"}" x1="{self.at(tick)}%" x2="{self.at(tick)}%" '
            'y1="0" y2="100%"/>'
            for tick in self.ticks
        )

    def axis(self) -> str:
        """Numbers of the scale."""
        zero = self.ticks.index(0.0) if 0.0 in self.ticks else 0
        shown = self.ticks if len(self.ticks) <= 4 else self.ticks[zero % 2 :: 2]
        text = "".join(
            f'<text x="{self.at(tick)}%" y="12" text-anchor="middle">{_tick(tick)}</text>' for tick in shown
        )
        return f'<svg class="axis" height="16" aria-hidden="true">{text}</svg>'


def _tick(value: float) -> str:
    return "0" if value == 0 else f"{value:+g}".replace("-", "−")


def _row(hospital: HospitalStory, scale: _Scale, number: int) -> str:
    e, name = hospital.evidence, hospital.name
    size = round(5 + min(math.sqrt(max(hospital.events, 0.0)), 12.0) / 2, 1)
    x, half = scale.at(e.estimate), round(size / 2, 1)
    own = ""
    if scale.low <= e.measured <= scale.high:
        own = f'<circle class="own" cx="{scale.at(e.measured)}%" cy="11" r="3"/>'
    words = f"{signed(e.estimate)} <small>({signed(e.low)} to {signed(e.high)})</small>"
    return (
        f'<tr class="{TONE.get(e.verdict, "open")}"><th scope="row">'
        f'<a href="#{escape(anchor(name, number))}">{escape(name)}</a></th><td>{hospital.events:.0f}</td>'
        f'<td class="plot"><svg height="22" aria-hidden="true">{scale.grid()}'
        f'<line class="interval" x1="{scale.at(e.low)}%" x2="{scale.at(e.high)}%" y1="11" y2="11"/>{own}'
        f'<rect class="estimate" x="{x}%" y="{11 - half}" width="{size}" height="{size}" '
        f'transform="translate(-{half} 0)"/></svg></td><td>{words}</td></tr>'
    )


def _summary(found: Comparison, scale: _Scale) -> list[str]:
    """The diamond of the average, and the prediction interval of a further hospital."""
    rows = []
    low, high = found.interval
    if math.isfinite(low):
        left, right = scale.at(low), scale.at(high)
        wide = max(round(right - left, 2), 0.5)
        rows.append(
            f'<tr class="all"><th scope="row">average of these {found.gain.hospitals}</th>'
            f"<td>{found.cells.events.sum():,.0f}</td>"
            f'<td class="plot"><svg height="22" aria-hidden="true">{scale.grid()}<svg x="{left}%" y="4" '
            f'width="{wide}%" height="14" viewBox="0 0 2 2" preserveAspectRatio="none">'
            '<polygon class="diamond" points="0,1 1,0 2,1 1,2"/></svg></svg></td>'
            f"<td>{signed(found.gain.estimate)} <small>({signed(low)} to {signed(high)})</small></td></tr>"
        )
    if found.hospitals is not None:
        first, last = (float(end[0]) for end in found.hospitals.further.interval())
        rows.append(
            '<tr class="all"><th scope="row">one further hospital like these</th><td></td>'
            f'<td class="plot"><svg height="22" aria-hidden="true">{scale.grid()}<line class="further" '
            f'x1="{scale.at(first)}%" x2="{scale.at(last)}%" y1="11" y2="11"/></svg></td>'
            f"<td>{signed(first)} to {signed(last)}</td></tr>"
        )
    return rows


# ---------------------------------------------------------------- calibration of one hospital

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
