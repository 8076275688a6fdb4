"""regression: effects with intervals, from sums over hospitals; the same between sites as on one table.

Every exchange is one total of the program that each hospital runs (:func:`abps.statistics.newton.program`).
The state is the totals so far: a hospital repeats its program up to where they end, so a site that was
killed, or the next exchange, goes on from there. Only sums are needed, which run under masks by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.data.codebook import Codebook
from abps.data.federation import Federation
from abps.data.prepare import Prepared
from abps.methods.base import Context, Floats, Ints, Models, Privacy, Stopping
from abps.methods.coordinated import Broadcast, CoordinatedMethod, Upload
from abps.models.training import Training
from abps.statistics.design import KNOTS, Formula, Schema, parse_formula, schema_of
from abps.statistics.families import LIKELIHOODS, HospitalRows
from abps.statistics.newton import Fit, program
from abps.wire.number_lists import Field, NumberList

#: The likelihoods of every kind of outcome that has one, the usual first.
FAMILIES: Final = {"binary": ("logistic",), "continuous": ("linear", "poisson"), "survival": ("cox",)}

#: What happens when an approved member is absent.
ABSENT: Final = {
    "wait": "no sum is opened without every approved member; after two rounds without a sum the job ends and "
    "names the absent",
    "without": "members absent at the first sum are left out of the study, and the result names them; "
    "members absent later are waited for, and after two rounds without a sum the job ends and names them",
}


@dataclass(frozen=True, eq=False)
class RegressionState(Models):
    """totals: of all exchanges, one after the other; lengths: of each.  over: the fit is done, or refused.

    refused: why there is no fit, in a sentence.
    """

    totals: Floats
    lengths: Ints
    over: bool = False
    refused: str = ""


@dataclass(frozen=True)
class Regression(CoordinatedMethod):
    """A generalised linear or Cox regression of all hospitals' complete rows.

    formula: terms as in ``abps regress``; none: every column of the codebook.
    family: none: logistic, linear or cox, as the outcome is; poisson for counts.
    absent: wait for every approved member, or go on without those that are absent at the first sum.
    intercepts: common, fixed (one per hospital, which keeps it) or random.
    clustered: standard errors that allow for correlation within hospitals.
    """

    training: Training = field(default_factory=lambda: Training.of("linear"))
    stop: Stopping = field(default_factory=lambda: Stopping(rounds=40))
    privacy: Privacy = field(default_factory=lambda: Privacy(secure=True))
    formula: str = ""
    intercepts: str = "common"
    clustered: bool = False
    family: str = ""
    absent: str = "wait"

    #: Its coefficients come of exchanges, not of steps of local training.
    fitted: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.intercepts not in ("common", "fixed", "random"):
            raise RequestError(f"intercepts={self.intercepts}: choose common, fixed or random")
        if self.absent not in ABSENT:
            raise RequestError(f"absent={self.absent}: choose {' or '.join(ABSENT)}")
        if self.family and self.family not in LIKELIHOODS:
            raise RequestError(f"family={self.family}: choose {', '.join(LIKELIHOODS)}")
        if self.formula:
            parse_formula(self.formula)
        if "spline(" not in self.formula:  # then no common quantiles are needed before
            object.__setattr__(self, "training", replace(self.training, standardise="own"))

    def sums_only(self, t: int) -> bool:
        """Every exchange is a sum."""
        return True

    def if_absent(self) -> tuple[bool, str]:
        """Whether no sum may be without an approved member, and what happens when one is absent."""
        return self.absent == "wait", ABSENT[self.absent]

    def likelihood(self, kind: str) -> str:
        """The name of the likelihood for a kind of outcome."""
        offered = FAMILIES.get(kind, ())
        if (self.family or next(iter(offered), "")) not in offered:
            of = ", ".join(f"{name} ({kind})" for kind, names in FAMILIES.items() for name in names)
            raise RequestError(
                f"family={self.family or 'none'}: outcome {kind} has none such; there are {of}"
            )
        return self.family or offered[0]

    def finished(self, state: RegressionState) -> bool:
        """Whether the fit is done."""
        return state.over

    def derived(self, context: Context) -> tuple[Schema, list[HospitalRows]]:
        """The common design, and the complete rows of every center here."""
        return self.design(context.data)

    def design(self, data: Prepared) -> tuple[Schema, list[HospitalRows]]:
        """The common design, and the complete rows of every center of some data."""
        kind = data.outcome.kind
        self.likelihood(kind)
        assert data.book is not None and data.source is not None
        schema = book_schema(data.book, self.formula)
        return schema, [complete(data.source, center, schema, kind) for center in range(data.size)]

    def used(self, data: Prepared) -> NDArray[np.bool_]:
        """(rows,) whether a row of some data is in the regression."""
        assert data.book is not None and data.source is not None
        return complete_rows_of(data.source, book_schema(data.book, self.formula))

    def init(self, context: Context) -> RegressionState:
        """No totals yet."""
        nothing = np.zeros(0)
        return RegressionState(context.common_start(), nothing, np.zeros(0, dtype=np.int64))

    def upload(self, context: Context, state: RegressionState, t: int) -> Upload:
        """The next vector of the program of every center here."""
        vectors = []
        for i in range(context.r):
            found = self.replayed(context, state, i)
            assert isinstance(found, np.ndarray)  # an exchange is due only while programs run
            vectors.append(found)
        return Upload.encode(vectors, [(Field("double", len(v)),) for v in vectors])

    def aggregate(self, context: Context, state: RegressionState, uploads: Floats, t: int) -> Broadcast:
        """The total. A member without an upload is waited for: half a sum is none."""
        if not np.isfinite(uploads).all():
            raise ValueError("an upload is missing or not finite")
        total = uploads.sum(axis=0)
        return Broadcast(NumberList.of(total, (Field("double", len(total)),)))

    def apply_broadcast(
        self, context: Context, state: RegressionState, broadcast: Broadcast, t: int
    ) -> RegressionState:
        """The state with one more total; whether that was the last."""
        total = broadcast.common.values
        lengths = np.append(state.lengths, len(total))
        after = replace(state, totals=np.concatenate([state.totals, total]), lengths=lengths)
        found = self.replayed(context, after, 0)
        if isinstance(found, np.ndarray):
            return after
        return replace(after, over=True, refused=found if isinstance(found, str) else "")

    def replayed(self, context: Context, state: RegressionState, row: int) -> Floats | Fit | str:
        """What the program of a center here says after all totals."""
        schema, parts = context.derived
        totals = np.split(state.totals, np.cumsum(state.lengths)[:-1]) if len(state.lengths) else []
        return self.result(schema, parts[row], context.data, totals)

    def result(
        self, schema: Schema, rows: HospitalRows, data: Prepared, totals: Sequence[Floats]
    ) -> Floats | Fit | str:
        """What a center's program says after these totals: its next vector, the fit, or why there is none."""
        family = LIKELIHOODS[self.likelihood(data.outcome.kind)]
        running = program(rows, schema.names, family, self.intercepts, self.clustered, data.min_cell)
        try:
            vector = next(running)
            for total in totals:
                if len(total) != len(vector):
                    raise ValueError("a total of another length than the sum that was asked for")
                vector = running.send(total)
        except StopIteration as end:
            found: Fit = end.value
            return found
        except RequestError as error:
            return str(error)
        return vector


def formula_of(book: Codebook, formula: str) -> Formula:
    """The formula, all of whose columns the codebook has; none: every column."""
    sources = tuple(dict.fromkeys(c.source for c in book.columns))
    parsed = parse_formula(formula or " + ".join(sources))
    unknown = [column for column in parsed.columns if column not in sources]
    if unknown:
        raise RequestError(
            f"formula: {unknown[0]!r} is not among the codebook's columns ({', '.join(sources)})"
        )
    return parsed


def book_schema(book: Codebook, formula: str) -> Schema:
    """The design that a codebook's columns and levels, and its common quantiles for splines, give."""
    levels: dict[str, tuple[str, ...]] = {}
    for column in book.columns:
        if column.kind == "level":
            levels[column.source] = (*levels.get(column.source, ()), column.level)
    parsed = formula_of(book, formula)
    knots = {(f.column, f.df): _knots(book, f.column, f.df) for term in parsed.terms for f in term if f.df}
    used = {name: tuple(sorted(levels[name])) for name in parsed.columns if name in levels}
    return schema_of(parsed, used, knots)


def _knots(book: Codebook, column: str, df: int) -> tuple[float, ...]:
    """Knots at the agreed quantiles."""
    from abps.data.scales import PROBABILITIES

    if book.statistics is None or not book.statistics.scales[column].quantiles:
        raise RequestError(
            f"spline({column}, {df}): the codebook has no quantiles of it; use the column as it is"
        )
    found = np.unique(np.interp(KNOTS[df], PROBABILITIES, book.statistics.scales[column].quantiles))
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
