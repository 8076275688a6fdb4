"""Whether a new table is one that a model can read: its columns are there, of their type, in their range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from abps.core.errors import RequestError, nearest
from abps.data.codebook import Codebook
from abps.data.repairs import Repair
from abps.data.roles import Roles
from abps.data.table import as_agreed, repair_table

#: The share of a column's values that may lie outside its range before the column is refused.
OUTSIDE = 0.05

#: The share of a category's known cells that may be none of its levels before people are warned.
STRANGE = 0.5

#: Quantiles of the rows learned from, between which a number is ordinary.
ORDINARY = (0.001, 0.999)


@dataclass(frozen=True)
class Range:
    """Where a column's numbers are ordinary: its outer quantiles in the rows that were learned from."""

    low: float
    high: float

    @property
    def allowed(self) -> tuple[float, float]:
        """The same, widened by half of what lies between; a column that is never negative stays so."""
        wide = (self.high - self.low) / 2
        return (max(self.low - wide, 0.0) if self.low >= 0 else self.low - wide), self.high + wide


@dataclass(frozen=True, eq=False)
class Readable:
    """A table's columns as a model asks for them, what was repaired, and what is unusual but was let pass."""

    features: pl.DataFrame
    repairs: tuple[Repair, ...]
    warnings: tuple[str, ...]


def ranges_of(features: pl.DataFrame, book: Codebook) -> dict[str, Range]:
    """The range of every number that a codebook reads."""
    found = {}
    for name in book.numbers:
        values = features[name].cast(pl.Float64).drop_nulls().drop_nans().to_numpy()
        if len(values):
            low, high = np.quantile(values, ORDINARY).tolist()
            found[name] = Range(low, high)
    return found


def readable(
    table: pl.DataFrame, book: Codebook, ranges: Mapping[str, Range], owner: str, anyway: bool = False
) -> Readable:
    """The columns that a model needs, or a sentence on what is wrong with them.

    anyway: columns out of range are a warning instead of an error.
    """
    needed = tuple(dict.fromkeys(column.source for column in book.columns))
    for name in needed:
        if name not in table.columns:
            raise RequestError(
                f"the model of {owner} needs the column {name!r}, which the table does not have"
                f"{nearest(name, table.columns)}; rename or add it (empty where unknown)"
            )
    if table.height == 0:
        raise RequestError("the table has no rows; give at least one")
    raw = table.select(needed)
    whole, repairs, doubts = repair_table(raw, Roles("", ""))
    levels: dict[str, set[str]] = {}
    for column in book.columns:
        if column.kind == "level":
            levels.setdefault(column.source, set()).add(column.level)
    for name in needed:
        _check_type(whole[name], levels.get(name), owner)
    # What a center publishes besides its columns is not needed to predict.
    features = as_agreed(whole, raw, Codebook(book.columns), owner)
    warnings = [
        *doubts,
        *(_outside(features[name], span, owner, anyway) for name, span in ranges.items()),
        *(_strange(features[name], known) for name, known in levels.items()),
    ]
    return Readable(features, tuple(repairs), tuple(filter(None, warnings)))


def _check_type(column: pl.Series, levels: set[str] | None, owner: str) -> None:
    """Refuse text where numbers are needed, and numbers where names are.  levels: of a category."""
    known = column.drop_nulls()
    if levels is None and column.dtype == pl.String and len(known):
        raise RequestError(
            f"the column {column.name!r} holds text ({known[0]!r}) where the model of {owner} needs numbers; "
            "mend the column"
        )
    if levels is not None and column.dtype.is_float() and column.n_unique() > 50:
        raise RequestError(
            f"the column {column.name!r} holds numbers where the model of {owner} knows names such as "
            f"{sorted(levels)[0]!r}; mend the column"
        )


def _outside(column: pl.Series, span: Range, owner: str, anyway: bool) -> str:
    """A warning if some values are out of range; many are refused, unless asked for."""
    values = column.cast(pl.Float64).to_numpy()
    known = values[np.isfinite(values)]
    low, high = span.allowed
    outside = int(((known < low) | (known > high)).sum())
    if not outside:
        return ""
    words = (
        f"{outside} of {len(known)} values of {column.name!r} lie outside {low:.4g} to {high:.4g}, "
        f"where the model of {owner} has learned (middle value here: {np.median(known):.4g})"
    )
    if outside > OUTSIDE * len(known) and not anyway:
        raise RequestError(f"{words}; is it another unit? mend the column")
    return words


def _strange(column: pl.Series, levels: set[str]) -> str:
    """A warning if most cells of a category are none of its levels."""
    cells = column.drop_nulls()
    strange = int((~cells.is_in(sorted(levels))).sum())
    # Where two levels are one column, the other level is no name that the model knows.
    if len(levels) > 1 and strange > STRANGE * len(cells):
        return f"{strange} of {len(cells)} cells of {column.name!r} are none of the levels learned"
    return ""
