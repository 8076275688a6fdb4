"""Every scored row with what the model said of it: the frame that ``scores.parquet`` holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from abps.data.prepare import Rows
from abps.models import outcomes
from abps.models.metrics import Segments


def row_scores(rows: Rows, logits: Segments, fold: int = 0) -> pl.DataFrame:
    """One line per row of a test split, in the columns that :mod:`abps.evaluate.measured` reads.

    A row that does not know its place in the federation is numbered as it stands here.
    """
    place = np.arange(len(rows.y)) if rows.place is None else rows.place
    columns: dict[str, Any] = {
        "row": place.astype(np.uint32),
        "patient": place.astype(np.int64) if rows.patient is None else rows.patient,
        "center": logits.group().astype(np.int32),
        "fold": np.full(len(rows.y), fold, dtype=np.uint8),
        "y": rows.y.astype(np.uint8 if rows.outcome.kind in ("binary", "classes") else np.float32),
    }
    outcome, z = rows.outcome, logits.values
    if outcome.binary:
        return pl.DataFrame(columns | {"logit": z.astype(np.float32)})
    columns["loss"] = outcomes.judged(outcome, z, rows.y, logits.start)[0].astype(np.float32)
    if outcome.kind == "classes":
        chance = outcomes.foretold(outcome, z).astype(np.float32)
        columns |= {f"score_{k}": chance[:, k] for k in range(chance.shape[1])}
    elif outcome.kind == "survival":
        columns["score"] = outcomes.risk(outcome, z).astype(np.float32)
    else:
        columns["base"] = _base(rows)
    return pl.DataFrame(columns)


def _base(rows: Rows) -> np.ndarray:
    """(rows,) the loss of the best constant of every center's rows."""
    base = np.zeros(len(rows.y), dtype=np.float32)
    for low, high in zip(rows.start[:-1], rows.start[1:]):
        y = rows.y[low:high].astype(np.float64)
        if len(y):
            best = y.mean() if rows.outcome.way == "squared" else np.quantile(y, rows.outcome.quantile)
            constant = np.full(len(y), best)
            base[low:high] = outcomes.judged(rows.outcome, constant, y, np.array([0, len(y)]))[0]
    return base
