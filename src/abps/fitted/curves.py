"""What every column of an additive model adds, and small line charts as SVG."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abps.data.scales import FARTHEST, Scale
from abps.fitted.model import FittedModel

Floats = NDArray[np.float64]

#: Points at which a curve is drawn.
POINTS = 120


@dataclass(frozen=True, eq=False)
class ColumnEffect:
    """What one column adds to the log odds.

    amount: of a yes/no column or a level, what it adds if it is so; of a number, by how much it moves the log
    odds over its range.  curve: for a number, values and what each adds.  knots: where a curve may bend.
    """

    name: str
    file: str
    amount: float
    curve: tuple[Floats, Floats] | None = None
    knots: tuple[float, ...] = ()


def is_additive(model: FittedModel) -> bool:
    """Whether the model is a sum of what its columns say, perhaps with pairs of columns beside."""
    return len(model.network.branches[0]) == 1 and model.network.outputs == 1


def effects(model: FittedModel) -> list[ColumnEffect]:
    """The effect of every encoded column, the largest first; nothing for a model that is no sum."""
    if not is_additive(model):
        return []
    weight = model.network.branches[0][0].weight[0].astype(np.float64)
    design = model.design
    owner = np.arange(len(model.book.columns)) if design is None else design.owner
    scales = {} if model.book.statistics is None else model.book.statistics.scales
    found = []
    for k, column in enumerate(model.book.columns):
        mine = weight[owner == k]
        file = "curve-" + re.sub(r"[^A-Za-z0-9]+", "-", f"{k}-{column.name}").strip("-")[:60]
        scale = scales.get(column.source)
        if column.kind != "number" or scale is None:
            found.append(ColumnEffect(column.name, file, float(mine[0])))
            continue
        if not scale.spread > 0:
            continue
        terms = None if design is None else design.terms[k]
        values = _values(model, column.source, scale)
        z = np.clip((values - scale.center) / scale.spread, -FARTHEST, FARTHEST)
        adds = z * mine[0] if terms is None else terms.of(z) @ mine
        filled = (np.array([scale.fill]) - scale.center) / scale.spread
        adds = adds - (filled * mine[0] if terms is None else terms.of(filled) @ mine)
        knots = () if terms is None else tuple((terms.knots * scale.spread + scale.center).tolist())
        found.append(ColumnEffect(column.name, file, float(np.ptp(adds)), (values, adds), knots))
    return sorted(found, key=lambda effect: (-abs(effect.amount), effect.name))


def _values(model: FittedModel, source: str, scale: Scale) -> Floats:
    """Where a column's curve is drawn: its range, where it is known."""
    span = model.ranges.get(source)
    if span is None:
        low, high = scale.center - 3 * scale.spread, scale.center + 3 * scale.spread
    else:
        low, high = span.low, span.high
    return np.linspace(low, high, POINTS)


BLUE, GRAY, ORANGE = "#0072b2", "#808080", "#d55e00"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 420, 300, 56, 12, 14, 44


@dataclass(frozen=True, eq=False)
class ChartLine:
    """One line of a chart.  low, high: a band around it."""

    name: str
    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None
    dashed: bool = False
    color: str = BLUE


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between two bounds, at most so many.

    >>> ticks(0.0, 1.0), ticks(12, 48)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [20.0, 30.0, 40.0])
    """
    if not high > low:
        return [low]
    rough = (high - low) / most
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * m for m in (1, 2, 5, 10) if size * m >= rough)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def chart(
    lines: Sequence[ChartLine], x_name: str, y_name: str, title: str, marks: Sequence[float] = ()
) -> str:
    """An SVG chart of lines.

    marks: places on the x axis to mark, such as knots.  title: what a screen reader says.
    """
    every = np.concatenate([v for line in lines for v in (line.y, line.low, line.high) if v is not None])
    across = np.concatenate([line.x for line in lines])
    x0, x1 = _span(across)
    y0, y1 = _span(every)

    def px(x: float) -> float:
        return round(LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT), 2)

    def py(y: float) -> float:
        return round(HEIGHT - BOTTOM - (y - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM), 2)

    def path(x: Floats, y: Floats) -> str:
        return " ".join(f"{px(a)},{py(b)}" for a, b in zip(x.tolist(), y.tolist()))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="11" fill="currentColor"><title>{html.escape(title)}</title>'
    ]
    for value in ticks(x0, x1):
        parts.append(
            f'<line x1="{px(value)}" x2="{px(value)}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" '
            f'stroke="currentColor" stroke-opacity=".12"/><text x="{px(value)}" y="{HEIGHT - BOTTOM + 14}" '
            f'text-anchor="middle">{value:g}</text>'
        )
    for value in ticks(y0, y1):
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{py(value)}" y2="{py(value)}" stroke="currentColor" '
            f'stroke-opacity=".12"/><text x="{LEFT - 6}" y="{py(value) + 4}" text-anchor="end">'
            f"{value:g}</text>"
        )
    for value in marks:
        if x0 <= value <= x1:
            parts.append(
                f'<line x1="{px(value)}" x2="{px(value)}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM - 6}" '
                'stroke="currentColor"/>'
            )
    for line in lines:
        if line.low is not None and line.high is not None:
            band = path(line.x, line.low) + " " + path(line.x[::-1], line.high[::-1])
            parts.append(f'<polygon points="{band}" fill="{line.color}" fill-opacity=".18"/>')
        dash = ' stroke-dasharray="4 3"' if line.dashed else ""
        parts.append(
            f'<polyline points="{path(line.x, line.y)}" fill="none" stroke="{line.color}" stroke-width="2"'
            f"{dash}><title>{html.escape(line.name)}</title></polyline>"
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{html.escape(x_name)}</text>')
    parts.append(
        f'<text transform="translate(13 {(HEIGHT - BOTTOM + TOP) / 2}) rotate(-90)" text-anchor="middle">'
        f"{html.escape(y_name)}</text></svg>"
    )
    return "".join(parts)


def _span(values: Floats) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)
