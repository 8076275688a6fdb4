"""What was found in a table before anything is learned from it, and what its centers and columns look like.

The same findings are shown on the terminal, written as JSON and put on the report's page.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import polars as pl
from scipy.special import ndtri

from abps.core.errors import DataWarning
from abps.data.repairs import RULES, Repair
from abps.data.screening import ColumnFinding

SCHEMA = "abps.check/1"


@dataclass(frozen=True)
class LeftOut:
    """A center that takes no part, and why."""

    center: str
    rows: int
    reason: str


def left_out_lines(left_out: Sequence[LeftOut], shown: int = 8) -> list[str]:
    """Centers left out, one line per reason (without its count in brackets), the largest group first.

    shown: how many centers a line names.
    """
    groups: dict[str, list[LeftOut]] = defaultdict(list)
    for each in left_out:
        groups[each.reason.rsplit(" (", 1)[0]].append(each)
    lines = []
    for reason, centers in sorted(groups.items(), key=lambda pair: -len(pair[1])):
        names = ", ".join(c.center for c in centers[:shown])
        more = f" and {len(centers) - shown} more" if len(centers) > shown else ""
        rows = sum(c.rows for c in centers)
        one = f"{names}: {centers[0].reason}"
        lines.append(
            one
            if len(centers) == 1
            else f"{len(centers)} with {reason} ({rows:,} rows in all): {names}{more}"
        )
    return lines


@dataclass(frozen=True)
class ColumnCheck:
    """One column of the table.

    type: number, yes/no, category, date, empty or other.  role: label, center, patient, time, group,
    dropped, or feature.  why: why a column is not used (or used in spite of a finding).
    missing: the share of rows without a value, after repairs.
    """

    name: str
    type: str
    role: str
    used: bool
    why: str
    missing: float


@dataclass(frozen=True)
class TableCheck:
    """Everything that was noticed about one table.

    form: how the file is written.  rows: rows in the file.  copies: duplicate rows that were removed.
    positive, negative: the label's values; events: rows with the positive one.
    warnings: sentences about what may be wrong and no rule can decide; each thing is said once.
    patient: the column that looks like patient IDs, where none was named.
    """

    name: str
    form: str
    rows: int
    copies: int
    label: str
    positive: str
    negative: str
    events: int
    columns: tuple[ColumnCheck, ...]
    repairs: tuple[Repair, ...] = ()
    findings: tuple[ColumnFinding, ...] = ()
    warnings: tuple[str, ...] = ()
    centers: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    patient: str = ""

    @property
    def unused(self) -> tuple[ColumnCheck, ...]:
        """Columns without a role that are not learned from."""
        return tuple(c for c in self.columns if c.role == "feature" and not c.used)

    @property
    def remarks(self) -> tuple[str, ...]:
        """All that a reader should look at, each thing once: warnings, then columns that are not used and
        that no warning names."""
        unused = (f"{c.name!r}: not used, {c.why}" for c in self.unused)
        named = tuple(f"{c.name!r}: " for c in self.unused)
        said = {prefix for prefix in named if any(w.startswith(prefix) for w in self.warnings)}
        return (*self.warnings, *(u for u, prefix in zip(unused, named) if prefix not in said))

    def to_json(self) -> dict[str, Any]:
        """As plain data, with the rules of the repairs that were made in words."""
        used = {r.rule for r in self.repairs}
        rules = {rule: words for rule, words in RULES.items() if rule in used}
        return {"schema": SCHEMA, **asdict(self), "rules": rules}

    @staticmethod
    def from_json(data: dict[str, Any]) -> TableCheck:
        """From plain data."""
        return msgspec.convert({k: v for k, v in data.items() if k not in ("schema", "rules")}, TableCheck)


def warn_about(notes: TableCheck | None) -> None:
    """Warn of what looks wrong in data from memory or a generator, and of the centers that take no part. Of a
    file the command line prints the same."""
    if notes is not None:
        for sentence in (*notes.warnings, *(f"left out: {line}" for line in left_out_lines(notes.left_out))):
            warnings.warn(f"{notes.name}: {sentence}", DataWarning, stacklevel=3)


# --- centers and columns of a tidy table ----------------------------------------------------------------


def wilson(positives: int, total: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of a proportion."""
    if total == 0:
        return math.nan, math.nan
    # By hand: scipy.stats would take 60 MB of every process at a hospital.
    share, more = positives / total, float(ndtri(0.975)) ** 2 / total
    half = math.sqrt(more * (share * (1 - share) + more / 4))
    low, high = ((share + more / 2 + way * half) / (1 + more) for way in (-1, 1))
    return max(0.0, low), min(1.0, high)


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
        else:
            numbers = known.cast(pl.Float64).to_numpy()
            mean, kind, summary = float(numbers.mean()), "yes/no", f"{numbers.mean():.1%}"
            if not set(known.unique().to_list()) <= {0, 1}:
                sd = float(numbers.std(ddof=1)) if len(numbers) > 1 else 0.0
                span = f"{numbers.min():.4g} to {numbers.max():.4g}"
                kind, summary = "number", f"{mean:.4g} ({sd:.3g}), {span}"
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
