"""regression: effects with intervals, from sums over hospitals; the same between sites as on one table."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.data.codebook import Codebook
from abps.data.federation import Federation
from abps.data.prepare import Prepared
from abps.data.scales import PROBABILITIES
from abps.methods.sum_study import SumStudy, levels_of
from abps.statistics.design import KNOTS, Formula, Schema, parse_formula
from abps.statistics.families import LIKELIHOODS, HospitalRows
from abps.statistics.newton import Fit, SumProgram, program

#: The likelihoods of every kind of outcome that has one, the usual first.
FAMILIES: Final = {"binary": ("logistic",), "continuous": ("linear", "poisson"), "survival": ("cox",)}


@dataclass(frozen=True)
class Regression(SumStudy):
    """A generalised linear or Cox regression of all hospitals' complete rows.

    formula: terms as in ``abps regress``; none: every column of the codebook.
    family: none: logistic, linear or cox, as the outcome is; poisson for counts.
    intercepts: common, fixed (one per hospital, which keeps it) or random.
    clustered: standard errors that allow for correlation within hospitals.
    """

    formula: str = ""
    intercepts: str = "common"
    clustered: bool = False
    family: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.intercepts not in ("common", "fixed", "random"):
            raise RequestError(f"intercepts={self.intercepts}: choose common, fixed or random")
        if self.family and self.family not in LIKELIHOODS:
            raise RequestError(f"family={self.family}: choose {', '.join(LIKELIHOODS)}")
        if self.formula:
            parse_formula(self.formula)
        if "spline(" not in self.formula:  # then no common quantiles are needed before
            object.__setattr__(self, "training", replace(self.training, standardise="own"))

    def needed(self, book: Codebook) -> tuple[str, ...]:
        return formula_of(book, self.formula).columns

    def likelihood(self, kind: str) -> str:
        offered = FAMILIES.get(kind, ())
        if (self.family or next(iter(offered), "")) not in offered:
            of = ", ".join(f"{name} ({kind})" for kind, names in FAMILIES.items() for name in names)
            raise RequestError(f"family={self.family or 'none'}: not for outcome {kind}; there are {of}")
        return self.family or offered[0]

    def inputs(self, data: Prepared) -> list[tuple[Schema, HospitalRows]]:
        kind = data.outcome.kind
        self.likelihood(kind)
        assert data.book is not None and data.source is not None
        schema = book_schema(data.book, self.formula)
        return [(schema, complete(data.source, center, schema, kind)) for center in range(data.size)]

    def used(self, data: Prepared) -> NDArray[np.bool_]:
        assert data.book is not None and data.source is not None
        return complete_rows_of(data.source, book_schema(data.book, self.formula))

    def program(self, given: tuple[Schema, HospitalRows], data: Prepared) -> SumProgram[Fit]:
        family, (schema, rows) = LIKELIHOODS[self.likelihood(data.outcome.kind)], given
        return program(rows, schema.names, family, self.intercepts, self.clustered, data.min_cell)


def formula_of(book: Codebook, formula: str) -> Formula:
    """The formula; none: every column."""
    return parse_formula(formula or " + ".join(dict.fromkeys(c.source for c in book.columns)))


def book_schema(book: Codebook, formula: str) -> Schema:
    """The design that a codebook's columns and levels, and its common quantiles for splines, give."""
    parsed, levels = formula_of(book, formula), levels_of(book)
    knots = {(f.column, f.df): _knots(book, f.column, f.df) for term in parsed.terms for f in term if f.df}
    return Schema(parsed, {name: levels[name] for name in parsed.columns if name in levels}, knots)


def _knots(book: Codebook, column: str, df: int) -> tuple[float, ...]:
    if book.statistics is None or not book.statistics[column].quantiles:
        raise RequestError(f"spline({column}, {df}): the codebook lacks its quantiles; use the plain column")
    found = np.unique(np.interp(KNOTS[df], PROBABILITIES, book.statistics[column].quantiles))
    if len(found) < df + 1:
        raise RequestError(f"spline({column}, {df}): too few different values; use the column as it is")
    return tuple(float(knot) for knot in found)


def complete(source: Federation, center: int, schema: Schema, kind: str) -> HospitalRows:
    """One center's rows in which every column of the formula is known and every level is an agreed one."""
    known = complete_rows_of(source, schema) & (source.center == center)
    x, offset = schema.build(source.features.filter(pl.Series(known)))
    label = np.asarray(source.label[known], dtype=np.float64)
    if kind == "survival":
        return HospitalRows(x, (~np.signbit(label)).astype(np.float64), offset, np.abs(label))
    return HospitalRows(x, label, offset)


def complete_rows_of(source: Federation, schema: Schema) -> NDArray[np.bool_]:
    """(rows,) whether every column of the formula is known, and every level an agreed one."""
    known = np.ones(source.rows, dtype=bool)
    for name in schema.formula.columns:
        column = source.features[name]
        if name in schema.levels:
            agreed = column.cast(pl.String).is_in(list(schema.levels[name]))
            known &= agreed.fill_null(False).to_numpy()
        else:
            known &= np.isfinite(column.cast(pl.Float64).fill_null(np.nan).to_numpy())
    return known
