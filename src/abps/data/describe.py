"""What a table looks like: missing values, outcome rate and case mix, over all and per center."""

from __future__ import annotations

import math
from dataclasses import dataclass

import polars as pl

#: The quantile of the normal distribution for 95 % intervals.
Z95 = 1.959963984540054


def wilson(positives: int, total: int, z: float = Z95) -> tuple[float, float]:
    """The Wilson score interval of a proportion.

    >>> tuple(round(v, 4) for v in wilson(20, 140))
    (0.0944, 0.2104)
    """
    if total == 0:
        return math.nan, math.nan
    p, z2 = positives / total, z * z
    middle = (p + z2 / (2 * total)) / (1 + z2 / total)
    half = z * math.sqrt(p * (1 - p) / total + z2 / (4 * total * total)) / (1 + z2 / total)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class CenterLine:
    """One center: its size, outcome rate with a 95 % interval, and share of missing feature values."""

    center: str
    stays: int
    positives: int
    rate: float
    low: float
    high: float
    missing: float


def center_lines(table: pl.DataFrame, label: str, center: str, features: list[str]) -> list[CenterLine]:
    """One line per center, by name."""
    gaps = pl.mean_horizontal(pl.col(features).is_null().cast(pl.Float64)) if features else pl.lit(0.0)
    shares = table.select(
        pl.col(center).cast(pl.String).fill_null("unknown").alias("center"),
        pl.col(label).cast(pl.Int64).alias("label"),
        gaps.alias("gaps"),
    )
    lines = []
    grouped = shares.group_by("center").agg(
        stays=pl.len(), positives=pl.col("label").sum(), missing=pl.col("gaps").mean()
    )
    for name, stays, positives, missing in grouped.sort("center").iter_rows():
        low, high = wilson(positives, stays)
        lines.append(CenterLine(name, stays, positives, positives / stays, low, high, missing))
    return lines


@dataclass(frozen=True)
class FeatureLine:
    """One feature over all rows: how much is missing, and its distribution in words of its kind."""

    name: str
    kind: str
    missing: float
    summary: str
    mean: float | None
    sd: float | None


def feature_lines(table: pl.DataFrame, features: list[str]) -> list[FeatureLine]:
    """One line per feature: mean (SD) of numbers, share of ones, or the most frequent levels."""
    lines = []
    for name in features:
        column = table[name]
        known = column.drop_nulls()
        missing = column.null_count() / max(1, column.len())
        mean = sd = None
        if known.len() == 0:
            kind, summary = "empty", "no value"
        elif column.dtype == pl.String:
            counts = known.alias("value").value_counts().sort(["count", "value"], descending=[True, False])
            top = [f"{level} {count / known.len():.0%}" for level, count in counts.head(4).iter_rows()]
            more = counts.height - len(top)
            kind, summary = "category", ", ".join(top) + (f", {more} more" if more > 0 else "")
        elif set(known.unique().to_list()) <= {0, 1}:
            numbers = known.cast(pl.Float64)
            kind, mean, sd = "yes/no", float(numbers.mean()), None  # type: ignore[arg-type]
            summary = f"{mean:.1%}"
        else:
            numbers = known.cast(pl.Float64)
            mean, sd = float(numbers.mean()), float(numbers.std() or 0.0)  # type: ignore[arg-type]
            least, most = float(numbers.min()), float(numbers.max())  # type: ignore[arg-type]
            kind, summary = "number", f"{mean:.4g} ({sd:.3g}), {least:.4g} to {most:.4g}"
        lines.append(FeatureLine(name, kind, missing, summary, mean, sd))
    return lines


def case_mix(table: pl.DataFrame, center: str, columns: list[str]) -> pl.DataFrame:
    """Mean of numeric and yes/no columns per center (a category's first level would mislead: left out)."""
    numeric = [c for c in columns if table[c].dtype.is_numeric() or table[c].dtype == pl.Boolean]
    return (
        table.group_by(pl.col(center).cast(pl.String).fill_null("unknown").alias("center"))
        .agg(pl.col(numeric).cast(pl.Float64).mean())
        .sort("center")
    )
