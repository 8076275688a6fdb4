"""The codebook: what centers must agree on before their models can meet.

Each center encodes its own table; for the models to have the same shape, all must use the same columns in the
same order. In a simulation the codebook follows from the whole federation; between hospitals it is a small
file that people exchange and read: names of columns and levels, no counts or measurements, and common scales
of numeric columns (:mod:`abps.data.scales`) once they are agreed on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.data.outcome import BINARY, Outcome, as_plain, class_order
from abps.data.scales import FARTHEST, Scale, Scales
from abps.data.screening import MOST_LEVELS, identifying_reason, is_personal_value
from abps.privacy.small_counts import most_patients

T = TypeVar("T")

SCHEMA = "abps.codebook/3"

#: A category level rarer than this many training rows in the whole federation joins "none of the known",
#: and missing values that are rarer are filled without a column that marks them.
RARE_LEVEL = 10

#: What an encoded column holds: a standardised number, a 0/1 value, whether a category has one certain
#: level, or whether the value is missing.
ColumnKind = Literal["number", "flag", "level", "missing"]


@dataclass(frozen=True)
class Column:
    """One encoded column: of which column of the table, and how."""

    source: str
    kind: ColumnKind
    level: str = ""

    @property
    def name(self) -> str:
        shown = {"level": f"{self.source}={self.level}", "missing": f"{self.source} missing"}
        return shown.get(self.kind, self.source)


@dataclass(frozen=True)
class StatisticsSource:
    """The seed whose training rows the scales of a codebook follow from, and each site's bytes for them, sent
    and received."""

    seed: int
    bytes: Mapping[str, int]


@dataclass(frozen=True)
class Codebook:
    """columns: the encoded columns, in order.  descriptors: binary columns whose prevalence is published.

    time: whether every center's table has a time column (its mean year is then published).
    statistics: the scales of numeric columns that were agreed on, or None.
    shared_patients: whether a patient may be known to several centers (by one key). Then every center places
    a patient by the key alone, so that nobody is learned from in one center and scored in another.
    min_cell: the minimum cell size in patients (:mod:`abps.privacy.small_counts`); 0: none, as simulated.
    events, others: the outcome's words that count as the event, and those that do not; a site whose table has
    them the other way round must not learn with the rest. Empty where nobody said.
    harmonised: digests of the maps (:mod:`abps.data.harmonise`) by which sites read their tables.
    """

    columns: tuple[Column, ...]
    descriptors: tuple[str, ...] = ()
    time: bool = False
    statistics: Scales | None = None
    shared_patients: bool = False
    min_cell: int = 0
    statistics_source: StatisticsSource | None = None
    events: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    outcome: Outcome = BINARY
    harmonised: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*(c.source for c in self.columns), *self.descriptors]))

    @property
    def numbers(self) -> tuple[str, ...]:
        return tuple(c.source for c in self.columns if c.kind == "number")

    def to_json(self) -> dict[str, Any]:
        plain = as_plain(self)
        plain["columns"] = [{k: v for k, v in column.items() if v} for column in plain["columns"]]
        plain["outcome"] = {} if self.outcome.binary else self.outcome.to_json()
        if self.events or self.others:
            plain["outcome"] = {"event": [*self.events], "other": [*self.others]} | plain["outcome"]
        keys = ("time", "shared_patients", "min_cell", "descriptors", "columns", "statistics",
                "statistics_source", "outcome", "harmonised")  # fmt: skip
        always = ("time", "descriptors", "columns")
        return {"schema": SCHEMA} | {key: plain[key] for key in keys if plain[key] or key in always}

    @staticmethod
    def from_json(data: Any) -> Codebook:
        try:
            if data["schema"] != SCHEMA:
                raise ValueError(f"schema {data['schema']!r}")
            about = data.get("outcome", {})
            events, others = (msgspec.convert(about.get(k, ()), tuple[str, ...]) for k in ("event", "other"))
            plain = {k: v for k, v in data.items() if k not in ("outcome", "events", "others")}
            book = msgspec.convert(plain, Codebook)
            bad = [c for c in book.columns if (c.kind == "level") != bool(c.level)]
            if not book.columns or bad:
                raise ValueError(f"a column that is none: {bad[0] if bad else book.columns}")
            if book.min_cell < 0:
                raise ValueError(f"a minimum cell size of {book.min_cell!r}")
            if set(events) & set(others):
                raise ValueError("an outcome that is an event and none")
            outcome, harmonised = Outcome.from_json(about), tuple(sorted(book.harmonised))
            return replace(book, outcome=outcome, events=events, others=others, harmonised=harmonised)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise RequestError(
                f"this is not a codebook ({error!r}); make one with `abps site init` and exchange that file"
            ) from error


def merged(books: Sequence[Codebook]) -> Codebook:
    """One codebook for centers that each made their own: every column and level that any of them has (number
    for one and flag for another: a number), and the largest minimum cell size."""
    if not books:
        raise RequestError("no codebook given; name at least one file")
    time = _only(
        (book.time for book in books),
        "one codebook has a time column and another has none; agree on one and init again",
    )
    described = frozenset.intersection(*(frozenset(book.descriptors) for book in books))
    scales: dict[str, Scale] = {}
    for book in books:
        for name, scale in (book.statistics or {}).items():
            sentence = f"the column {name!r} has two scales in these codebooks; settle on one"
            scales[name] = _only((scales.get(name, scale), scale), sentence)
    events, others = ({word for book in books for word in getattr(book, w)} for w in ("events", "others"))
    if events & others:
        raise RequestError(
            f"the outcome's value {min(events & others)!r} is the event at one site and not at another; "
            "settle which, and init again where it is the other one"
        )
    return Codebook(
        _united(books),
        tuple(d for d in books[0].descriptors if d in described),
        time,
        scales or None,
        shared_patients=any(book.shared_patients for book in books),
        min_cell=max(book.min_cell for book in books),
        statistics_source=next((book.statistics_source for book in books if book.statistics_source), None),
        events=tuple(sorted(events)),
        others=tuple(sorted(others)),
        outcome=_one_prediction(books),
        harmonised=tuple(sorted({each for book in books for each in book.harmonised})),
    )


def _only(found: Iterable[T], sentence: str) -> T:
    """The one value that all have; ``RequestError`` with the sentence where they differ."""
    values = list(dict.fromkeys(found))
    if len(values) > 1:
        raise RequestError(sentence.format(*values))
    return values[0]


def _united(books: Sequence[Codebook]) -> tuple[Column, ...]:
    kinds: dict[str, set[str]] = {}
    levels: dict[str, set[str]] = {}
    for column in (column for book in books for column in book.columns):
        kinds.setdefault(column.source, set()).add(column.kind)
        levels.setdefault(column.source, set()).add(column.level)
    columns: list[Column] = []
    for source, has in sorted(kinds.items()):
        if "level" in has and has & {"number", "flag"}:
            raise RequestError(f"column {source!r} is text for one site, a number for another; settle which")
        if "level" in has:
            columns += [Column(source, "level", level) for level in sorted(levels[source] - {""})]
        elif has & {"number", "flag"}:
            columns.append(Column(source, "number" if "number" in has else "flag"))
        if "missing" in has:
            columns.append(Column(source, "missing"))
    return tuple(columns)


def _one_prediction(books: Sequence[Codebook]) -> Outcome:
    """What all books predict: the same kind, the classes of all, and a grid or scale that some bring."""
    _only(
        sorted({book.outcome.kind for book in books}),
        "one codebook is of an outcome of {0} and another of {1}; settle on one, and init again where it is "
        "the other",
    )
    settled = [book.outcome for book in books if book.outcome.grid or book.outcome.scale]
    if settled:
        return _only(
            settled, "the codebooks bring two time grids, or two scales, of the outcome; settle on one"
        )
    names = class_order(name for book in books for name in book.outcome.names)
    return replace(books[0].outcome, names=tuple(names))


def is_binary(column: pl.Series) -> bool:
    """Whether a column holds yes and no: booleans, or 0 and 1."""
    if column.dtype == pl.Boolean:
        return True
    return column.dtype.is_numeric() and set(column.drop_nulls().unique().head(3).to_list()) <= {0, 1}


@dataclass(frozen=True, eq=False)
class CellRows:
    """Decides whether rows cover the minimum cell size in some of n centers.

    owner, patient: (rows,) each row's center and its patient; no patient: every row is another's.
    """

    min_cell: int
    owner: NDArray[np.int32]
    n: int
    patient: NDArray[np.int64] | None = None

    def enough(self, rows: NDArray[np.bool_]) -> bool:
        """Whether these rows of some center are of at least ``min_cell`` patients."""
        return most_patients(rows, self.owner, self.patient, self.n) >= self.min_cell


def candidates(column: pl.Series, train: NDArray[np.bool_], cells: CellRows | None = None) -> list[Column]:
    """How one column of a table may be encoded, judged on the training rows; with a minimum cell size, not if
    it names people."""
    name = column.name
    found: list[Column] = []
    if cells is not None and identifying_reason(column, cells.patient, cells.min_cell):
        return found
    rare = min(RARE_LEVEL, max(1, int(train.sum()) // 100))
    if column.dtype == pl.String or column.dtype == pl.Categorical:
        text = column.cast(pl.String)
        seen = text.filter(pl.Series(train)).drop_nulls().alias("value").value_counts(sort=True)
        frequent = seen.filter(seen["count"] >= rare)
        levels = frequent["value"].to_list()
        if cells is not None:
            levels = [v for v in levels if not is_personal_value(v)]
            levels = [v for v in levels if cells.enough((text == v).fill_null(False).to_numpy() & train)]
        levels = sorted(levels[:MOST_LEVELS])
        if len(levels) == 2 and text.null_count() == 0:
            levels = levels[:1]  # the second is the absence of the first
        found += [Column(name, "level", level) for level in levels]
        gaps = text.is_null().to_numpy()
    else:
        values = column.cast(pl.Float64).to_numpy()
        gaps = ~np.isfinite(values)
        if not is_binary(column):
            found.append(Column(name, "number"))
        elif np.unique(values[train & ~gaps]).size > 1:
            found.append(Column(name, "flag"))
    if rare <= gaps[train].sum() < train.sum() and (cells is None or cells.enough(gaps & train)):
        found.append(Column(name, "missing"))
    return found


def encode_column(
    column: Column,
    values: pl.Series,
    center: NDArray[np.int32],
    train: NDArray[np.bool_],
    n: int,
    scale: Scale | None = None,
) -> NDArray[np.float32]:
    """(rows,) one encoded column of n centers; a number by the common scale, where there is one, or by what
    each center fits on its training rows."""
    if column.kind == "missing":
        known = values.is_not_null()
        if values.dtype != pl.String:
            known &= values.cast(pl.Float64).is_finite().fill_null(False)
        return (~known).to_numpy().astype(np.float32)
    if column.kind == "level":
        return (values.cast(pl.String) == column.level).fill_null(False).to_numpy().astype(np.float32)
    numbers = values.cast(pl.Float64).to_numpy()
    if column.kind == "flag":
        return np.where(np.isfinite(numbers), numbers, 0.0).astype(np.float32)
    return (
        standardised(numbers, center, train, n) if scale is None else scale.read(numbers).astype(np.float32)
    )


def encode_rows(book: Codebook, features: pl.DataFrame) -> NDArray[np.float32]:
    """(rows, columns) new rows by a codebook with its scales."""
    nobody, none = np.zeros(features.height, np.int32), np.zeros(features.height, np.bool_)
    scales = book.statistics or {}
    read = ((c, features[c.source], scales.get(c.source)) for c in book.columns)
    return np.stack([encode_column(c, values, nobody, none, 1, scale) for c, values, scale in read], axis=1)


def standardised(
    values: NDArray[np.float64], center: NDArray[np.int32], train: NDArray[np.bool_], n: int
) -> NDArray[np.float32]:
    """One numeric column, standardised by each center's training rows; gaps get the center's mean.

    A center that never saw a value of this column, or saw one value only, gets zeros for it.
    Values are kept within ten standard deviations: a typing error must not own the first layer.
    """
    known = np.isfinite(values)
    fit = known & train
    filled = np.where(known, values, 0.0)
    count = np.maximum(sums(center[fit], n, np.ones(fit.sum())), 1)
    mean = sums(center[fit], n, filled[fit]) / count
    deviation = np.where(fit, filled - mean[center], 0.0)
    with np.errstate(over="ignore"):  # one value of 1e300: the column then says nothing at that center
        spread = np.sqrt(sums(center, n, deviation**2) / count)
    usable = spread > 1e-8 * (1.0 + np.abs(mean))
    scale = np.where(usable, 1.0 / np.where(usable, spread, 1.0), 0.0)
    z = np.where(known, (filled - mean[center]) * scale[center], 0.0)
    return np.clip(z, -FARTHEST, FARTHEST).astype(np.float32)


def sums(keys: NDArray[np.int32], n: int, values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.bincount(keys, weights=values, minlength=n).astype(np.float64)
