"""What every column of an additive model adds, and small line charts as SVG."""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
import numpy as np
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from abps.fitted.model import FittedModel

Floats = NDArray[np.float64]

#: Points at which a curve is drawn.
POINTS = 120


@dataclass(frozen=True, eq=False)
class ColumnEffect:
    """What one column adds to the log odds.  amount: of a yes/no column or a level, what it adds if it is so;
    of a number, by how much it moves them over its range.  curve: values and what each adds."""

    name: str
    file: str
    amount: float
    curve: tuple[Floats, Floats] | None = None
    knots: tuple[float, ...] = ()


def effects(model: FittedModel) -> list[ColumnEffect]:
    """The effect of every encoded column, the largest first; nothing for a model that is no sum."""
    if len(model.network.branches[0]) > 1 or model.network.outputs > 1:
        return []
    weight = model.network.branches[0][0].weight[0].astype(np.float64)
    design = model.design
    owner = np.arange(len(model.book.columns)) if design is None else design.owner
    scales = model.book.statistics or {}
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
        span, reach = model.ranges.get(column.source), 3 * scale.spread
        low, high = (span.low, span.high) if span else (scale.center - reach, scale.center + reach)
        values = np.linspace(low, high, POINTS)
        z, filled = scale.read(values), scale.read(np.array([scale.fill]))
        adds = z * mine[0] if terms is None else terms.of(z) @ mine
        adds = adds - (filled * mine[0] if terms is None else terms.of(filled) @ mine)
        knots = () if terms is None else tuple((terms.knots * scale.spread + scale.center).tolist())
        found.append(ColumnEffect(column.name, file, float(np.ptp(adds)), (values, adds), knots))
    return sorted(found, key=lambda effect: (-abs(effect.amount), effect.name))


BLUE, GRAY, ORANGE = "#0072b2", "#808080", "#d55e00"


@dataclass(frozen=True, eq=False)
class ChartLine:
    name: str
    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None
    dashed: bool = False
    color: str = BLUE


def chart(
    lines: Sequence[ChartLine], x_name: str, y_name: str, title: str, marks: Sequence[float] = ()
) -> str:
    """An SVG chart of lines.  marks: on the x axis, such as knots.  title: what a screen reader says."""
    x0, x1 = _span([line.x for line in lines])
    y0, y1 = _span([v for line in lines for v in (line.y, line.low, line.high) if v is not None])

    def px(x: float) -> float:
        return round(56 + (x - x0) / (x1 - x0) * 352, 2)

    def py(y: float) -> float:
        return round(256 - (y - y0) / (y1 - y0) * 242, 2)

    return template("chart.svg").render(
        lines=lines,
        title=title,
        x_name=x_name,
        y_name=y_name,
        x_ticks=_ticks(x0, x1),
        y_ticks=_ticks(y0, y1),
        marks=[value for value in marks if x0 <= value <= x1],
        px=px,
        py=py,
        path=lambda x, y: " ".join(f"{px(a)},{py(b)}" for a, b in zip(x.tolist(), y.tolist())),
    )


@functools.cache
def template(name: str) -> jinja2.Template:
    """A template of this package; everything is escaped."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(text)


def _ticks(low: float, high: float) -> list[float]:
    found = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [round(float(value), 12) for value in found if low <= value <= high]


def _span(values: Sequence[Floats]) -> tuple[float, float]:
    every = np.concatenate(values)
    finite = every[np.isfinite(every)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)
