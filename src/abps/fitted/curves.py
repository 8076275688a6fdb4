"""What every column of an additive model says: coefficients of levels, curves of numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abps.data.scales import FARTHEST, Scale
from abps.fitted.model import FittedModel

Floats = NDArray[np.float64]

#: Points at which a curve is drawn.
POINTS = 120


@dataclass(frozen=True, eq=False)
class Effect:
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
    """Whether the model is a sum of what its columns say."""
    one_sum = len(model.network.branches) == 1 and len(model.network.branches[0]) == 1
    return one_sum and model.network.outputs == 1


def effects(model: FittedModel) -> list[Effect]:
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
            found.append(Effect(column.name, file, float(mine[0])))
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
        found.append(Effect(column.name, file, float(np.ptp(adds)), (values, adds), knots))
    return sorted(found, key=lambda effect: (-abs(effect.amount), effect.name))


def _values(model: FittedModel, source: str, scale: Scale) -> Floats:
    """Where a column's curve is drawn: its range, where it is known."""
    span = model.ranges.get(source)
    if span is None:
        low, high = scale.center - 3 * scale.spread, scale.center + 3 * scale.spread
    else:
        low, high = span.low, span.high
    return np.linspace(low, high, POINTS)
