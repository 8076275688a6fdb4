"""From stored row scores to measures: every method's level, and paired cells of any two methods.

A frame of scores has one line per scored row: ``row, patient, center, fold, y`` and what the model said:
``logit`` for a binary outcome; else ``loss``, and ``score`` (survival), ``score_0``, ``score_1`` … (classes)
or ``base``, the loss of the center's best constant (continuous). Repeats are numbered by the caller.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from abps.evaluate.paired import (
    Floats,
    PairedCells,
    RowValues,
    ScoredRows,
    auroc_values,
    concordance_values,
    level,
    loss_values,
    paired_cells,
    placements,
)


@dataclass(frozen=True, eq=False)
class Measured:
    """Scores of several methods on the same rows: the main measure of the outcome (AUROC), and its loss."""

    rows: ScoredRows
    main: RowValues
    loss: RowValues

    def level(self, method: str) -> Floats:
        return level(self.rows, self.main, method)

    def mean_loss(self, method: str) -> Floats:
        return -level(self.rows, self.loss, method)

    def cells(self, first: str, second: str) -> PairedCells:
        """First minus second in the main measure."""
        return paired_cells(self.rows, self.main, first, second)

    def loss_cells(self, first: str, second: str) -> PairedCells:
        """What the first saves of the second's loss."""
        return paired_cells(self.rows, self.loss, first, second)


def measured(frames: Mapping[str, Sequence[pl.DataFrame]], centers: int) -> Measured:
    """The measures of methods, each with one frame per repeat (the same repeats in the same order); rows that
    not every method scored in a repeat do not count."""
    parts = {name: _stacked(each) for name, each in frames.items()}
    first = next(iter(parts.values()))
    if any(not part["key"].equals(first["key"]) for part in parts.values()):
        for part in parts.values():
            first = first.join(part, on="key", how="semi", maintain_order="left")
        parts = {n: p.join(first, on="key", how="semi", maintain_order="left") for n, p in parts.items()}
        first = next(iter(parts.values()))
    number, run = np.unique(first["repeat"].to_numpy() * 256 + first["fold"].to_numpy(), return_inverse=True)
    rows = ScoredRows(
        first["row"].to_numpy().astype(np.int64),
        first["patient"].to_numpy().astype(np.int64),
        first["center"].to_numpy().astype(np.int64),
        run.astype(np.int64),
        first["y"].to_numpy().astype(np.float64),
        centers,
        len(number),
    )
    return _measures(rows, parts)


def _stacked(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The frames of all repeats, sorted by repeat and row, with a key of both."""
    numbered = [frame.with_columns(repeat=pl.lit(k, pl.Int64)) for k, frame in enumerate(frames)]
    whole = pl.concat(numbered).with_columns(
        pl.col("fold").cast(pl.Int64), key=pl.col("repeat") * (1 << 40) + pl.col("row").cast(pl.Int64)
    )
    return whole.sort("key")


def _measures(rows: ScoredRows, parts: Mapping[str, pl.DataFrame]) -> Measured:
    columns = next(iter(parts.values())).columns

    def values(column: str) -> dict[str, Floats]:
        return {name: part[column].to_numpy().astype(np.float64) for name, part in parts.items()}

    if "logit" in columns:
        logits = values("logit")
        in_nats = {name: log_loss(z, rows.y) for name, z in logits.items()}
        return Measured(rows, auroc_values(rows, logits), loss_values(rows, in_nats))
    losses = loss_values(rows, values("loss"))
    if "base" in columns:
        explained = _explained(rows, values("loss"), next(iter(values("base").values())))
        return Measured(rows, explained, losses)
    if "score" in columns:
        time, event = np.abs(rows.y), ~np.signbit(rows.y)
        seen = replace(rows, y=event.astype(np.float64))
        return Measured(seen, concordance_values(seen, time, values("score")), losses)
    each = [values(column) for column in columns if column.startswith("score_")]
    common = np.bincount(rows.y.astype(np.int64)).argmax() if len(rows.y) else 0
    seen = replace(rows, y=(rows.y != common).astype(np.float64))
    return Measured(seen, _classes(seen, rows.y, each), losses)


def log_loss(logit: Floats, y: Floats) -> Floats:
    """(rows,) minus the log-likelihood of binary outcomes."""
    return np.asarray(np.maximum(logit, 0.0) - logit * y + np.log1p(np.exp(-np.abs(logit))))


def _explained(rows: ScoredRows, losses: Mapping[str, Floats], base: Floats) -> RowValues:
    """The share of the best constant's loss that a model saves, per center."""
    count = np.maximum(np.bincount(rows.center, minlength=rows.centers), 1)
    mean = np.bincount(rows.center, weights=base, minlength=rows.centers) / count
    scale = 1.0 / np.maximum(mean, 1e-300)[rows.center]
    scaled = loss_values(rows, {name: loss * scale for name, loss in losses.items()})
    value = {name: 1.0 + v for name, v in scaled.value.items()}
    return RowValues(scaled.weight, value, 1, scaled.support)


def _classes(rows: ScoredRows, y: Floats, scores: Sequence[Mapping[str, Floats]]) -> RowValues:
    """AUROC of every class against the rest, weighted by pairs: a row's value is the mean over its pairs."""
    weight = np.zeros(len(y))
    hits = {name: np.zeros(len(y)) for name in scores[0]}
    size = rows.runs * rows.centers
    for k, of_class in enumerate(scores):
        mine = (y == k).astype(np.float64)
        inside = np.bincount(rows.cell, weights=mine, minlength=size)[rows.cell]
        whole = np.bincount(rows.cell, minlength=size)[rows.cell]
        pairs = np.where(mine > 0, whole - inside, inside)
        weight += pairs
        for name, score in of_class.items():
            hits[name] += pairs * np.nan_to_num(placements(rows.cell, mine, score))
    value = {name: hit / np.maximum(weight, 1.0) for name, hit in hits.items()}
    counts = auroc_values(rows, {}).support
    return RowValues(weight, value, 2, counts)
