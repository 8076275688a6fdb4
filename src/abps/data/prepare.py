"""From a federation to numbers: impute, standardise, encode; each center by itself.

What a center fits (imputation values, means, standard deviations) it fits on its own training rows, or the
federation agrees on it once (``standardise="common"``, :mod:`abps.data.scales`). The list of columns, which
gives all models one shape, is the union of what centers see in their training rows; a level that occurs only
outside of these is encoded as "none of the known".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.data.codebook import CellRows, Codebook, Column, candidates, encode_column, sums
from abps.data.federation import About, Federation
from abps.data.outcome import BINARY, Outcome
from abps.data.scales import (
    HistogramSum,
    Scales,
    outcome_columns,
    outcome_size,
    outcome_values,
    scales_size,
    settle_from_histograms,
    sum_histograms,
)
from abps.data.screening import identifying_reason
from abps.data.splines import design_of
from abps.data.split import assign_splits, canonical_order, patients_cross
from abps.privacy.small_counts import least_rows, rounded

#: By whose numbers a column is standardised: each center's own, or those that the federation agreed on.
STANDARDISE = ("own", "common")

#: Counts without masks or noise.
PLAIN = HistogramSum()


@dataclass(frozen=True, eq=False)
class Rows:
    """One split of every center, rows of a center side by side.

    x: (rows, features) float32.  y: (rows,) float32 of 0 and 1, or as the outcome codes it.
    start: (centers + 1,) center i owns rows start[i]:start[i+1].  patient: (rows,); None: a row is a patient.
    place: (rows,) where every row stands in the federation that it was prepared from.
    """

    x: NDArray[np.float32]
    y: NDArray[np.float32]
    start: NDArray[np.int64]
    patient: NDArray[np.int64] | None = None
    outcome: Outcome = BINARY
    place: NDArray[np.int64] | None = None

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.start)

    def positives(self) -> NDArray[np.int64]:
        """(centers,) positive rows per center; of other outcomes the informative rows, half at most."""
        if not self.outcome.binary:
            parts = np.split(self.y, self.start[1:-1])
            few = [min(self.outcome.informative(part), len(part) // 2) for part in parts]
            return np.array(few, dtype=np.int64)
        total = np.concatenate([[0], np.cumsum(self.y, dtype=np.float64)])
        return (total[self.start[1:]] - total[self.start[:-1]]).astype(np.int64)

    def only(self, i: int) -> Rows:
        """Center i alone: a federation of one."""
        part = slice(int(self.start[i]), int(self.start[i + 1]))
        patient = None if self.patient is None else self.patient[part]
        place = None if self.place is None else self.place[part]
        start = np.array([0, part.stop - part.start])
        return Rows(self.x[part], self.y[part], start, patient, self.outcome, place)


def side_by_side(first: Rows, second: Rows) -> Rows:
    """Two splits as one: of every center the rows of the first, then those of the second."""
    owner = [np.repeat(np.arange(len(part.sizes)), part.sizes) for part in (first, second)]
    order = np.argsort(np.concatenate(owner), kind="stable")

    def both(a: NDArray[np.int64] | None, b: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
        return None if a is None or b is None else np.concatenate([a, b])[order]

    return Rows(
        np.concatenate([first.x, second.x])[order],
        np.concatenate([first.y, second.y])[order],
        np.concatenate([[0], np.cumsum(first.sizes + second.sizes)]),
        both(first.patient, second.patient),
        first.outcome,
        both(first.place, second.place),
    )


@dataclass(frozen=True, eq=False, repr=False)
class Prepared:
    """What the learners see: three splits, column names and what each center publishes about itself.

    metadata: (centers, k) positive rate, log training size, mean year / 2030 where time is known,
    then the prevalence of each descriptor; from training rows only.
    book: by what the rows were encoded, with the common statistics where there are any.
    plain: features as the paper's rows have them, before a model's design adds to them; 0: all of them.
    agreed: bytes that the centers sent and received for common statistics.
    splines: whether numeric columns are there as the smooth terms of an additive model.
    min_cell: the minimum cell size of everything that leaves a center, in patients; 0: no minimum.
    counted: how histograms were summed; None: nothing had to be agreed on.
    source: the rows as they were before, for methods that need them so.
    """

    name: str
    centers: tuple[str, ...]
    columns: tuple[str, ...]
    train: Rows
    validation: Rows
    test: Rows
    metadata: NDArray[np.float64]
    metadata_names: tuple[str, ...]
    base_metadata: int
    groups: tuple[str, ...] | None
    seed: int
    book: Codebook | None = None
    plain: int = 0
    agreed: int = 0
    splines: bool = False
    min_cell: int = 0
    outcome: Outcome = BINARY
    counted: HistogramSum | None = None
    source: Federation | None = None

    @cached_property
    def min_rows(self) -> NDArray[np.int64]:
        """(centers,) how many training rows are surely of ``min_cell`` patients."""
        owner = np.repeat(np.arange(self.size), self.train.sizes)
        return least_rows(owner, self.train.patient, self.size, self.min_cell)

    @property
    def size(self) -> int:
        return len(self.centers)

    @cached_property
    def own(self) -> Rows:
        """What a center may look at: its training and validation rows."""
        return side_by_side(self.train, self.validation)

    @cached_property
    def held_out(self) -> Rows:
        """What is not trained on: validation and test rows, in this order."""
        return side_by_side(self.validation, self.test)

    @property
    def width(self) -> int:
        return len(self.columns)

    def about(self) -> About:
        rows = sum(len(part.y) for part in (self.train, self.validation, self.test))
        return About(self.name, self.size, rows, self.width)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(part.y):,}" for part in (self.train, self.validation, self.test))
        return (
            f"<Prepared {self.name}, seed {self.seed}: {self.size} centers, {self.width} features, "
            f"{sizes} rows to train, validate and test>"
        )

    def only(self, i: int) -> Prepared:
        """What center i alone holds of this federation; its columns and streams stay the same."""
        return replace(
            self,
            centers=(self.centers[i],),
            train=self.train.only(i),
            validation=self.validation.only(i),
            test=self.test.only(i),
            metadata=self.metadata[i : i + 1],
            groups=None if self.groups is None else (self.groups[i],),
        )


def encode(
    federation: Federation,
    split: NDArray[np.int8],
    book: Codebook | None = None,
    standardise: str = "own",
    min_cell: int = 0,
    histograms: HistogramSum = PLAIN,
) -> tuple[NDArray[np.float32], Codebook, int]:
    """(rows, columns) the features, encoded by the codebook or by one that follows from the federation; that
    codebook, with the outcome and what all agree on; and the bytes of agreeing.  See :func:`prepare`."""
    if standardise not in STANDARDISE:
        raise RequestError(f"standardise={standardise!r}: choose {' or '.join(STANDARDISE)}")
    n, train, center = federation.size, split == 0, federation.center
    own: dict[Column, NDArray[np.float32]] = {}
    if book is None:
        cells = CellRows(min_cell, center, n, federation.patient) if min_cell else None
        wanted = [c for each in federation.features.get_columns() for c in candidates(each, train, cells)]
        for column in wanted:
            if column.kind == "number":
                own[column] = encode_column(column, federation.features[column.source], center, train, n)
        # A number that is constant in every center has nothing to learn from.
        kept = tuple(c for c in wanted if c.kind != "number" or np.any(own[c][train]))
        time = federation.time is not None
        book = Codebook(kept, federation.descriptors, time, min_cell=min_cell, outcome=federation.outcome)
    if not book.columns:
        raise RequestError(
            f"{federation.name}: no feature is left after encoding (all are constant or empty); "
            "check what is dropped and the columns of the table"
        )
    statistics, outcome, spent = _agreed(federation, split, book, histograms, standardise)
    common = statistics if standardise == "common" else None
    book = replace(book, statistics=common, outcome=outcome)
    x = np.empty((federation.rows, len(book.columns)), dtype=np.float32)
    for k, column in enumerate(book.columns):
        scale = book.statistics[column.source] if column.kind == "number" and book.statistics else None
        if scale is None and column in own:
            x[:, k] = own[column]
        else:
            x[:, k] = encode_column(column, federation.features[column.source], center, train, n, scale)
    return x, book, spent


def _agreed(
    federation: Federation, split: NDArray[np.int8], book: Codebook, how: HistogramSum, standardise: str
) -> tuple[Scales, Outcome, int]:
    """Common scales, the outcome with what all agree on, and the bytes that centers sent and received."""
    given = dict(book.statistics or {})
    numbers = [name for name in book.numbers if name not in given] if standardise == "common" else []
    about = outcome_columns(federation.outcome)
    if not numbers and not about:
        return given, federation.outcome, 0
    values, start, rows = numeric_rows(federation, split, (*numbers, *about))
    min_rows = None
    if book.min_cell:
        patient = None if federation.patient is None else federation.patient[rows]
        min_rows = least_rows(federation.center[rows], patient, federation.size, book.min_cell)
    found, spent = sum_histograms(values, start, federation.centers, how, min_rows)
    scales = found.scales(how.doubt(len(values), federation.size))
    outcome = settle_from_histograms(federation.outcome, found, len(numbers))
    back = scales_size(len(numbers)) + (outcome_size(outcome) if about else 0)
    return given | dict(zip(numbers, scales)), outcome, spent + federation.size * back


def numeric_rows(
    federation: Federation, split: NDArray[np.int8], names: tuple[str, ...]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """(k, rows) numeric columns of the training rows, center by center; where each center's begin; and which
    rows of the federation they are."""
    rows = np.flatnonzero(split == 0)
    rows = rows[np.argsort(federation.center[rows], kind="stable")]
    start = np.searchsorted(federation.center[rows], np.arange(federation.size + 1)).astype(np.int64)
    values = np.empty((len(names), len(rows)))
    about, label = outcome_columns(federation.outcome), federation.label[rows]
    for k, name in enumerate(names):
        if name in about:
            values[k] = outcome_values(federation.outcome, label, name)
        else:
            values[k] = federation.features[name].cast(pl.Float64).to_numpy()[rows]
    return values, start, rows


def codebook(
    federation: Federation,
    seed: int,
    split: NDArray[np.int8] | None = None,
    standardise: str = "own",
    min_cell: int = 0,
) -> Codebook:
    """What the centers of a federation would have to agree on to encode their tables each by itself.

    With a minimum cell size (:mod:`abps.privacy.small_counts`) it has no levels of fewer patients, no columns
    that name people, and rounded counts, as one that leaves a site must be.
    """
    split = assign_splits(federation, seed) if split is None else split
    _, book, _ = encode(federation, split, standardise=standardise, min_cell=min_cell)
    # A center by itself cannot know who else has seen its patients.
    shared = federation.size == 1 or patients_cross(federation)
    return replace(book, shared_patients=shared, outcome=_published_outcome(federation, min_cell))


def excluded_columns(table: Federation, book: Codebook) -> dict[str, str]:
    """The columns of a table that its codebook has not, and why: those that were excluded when it was read,
    and those that name people or have no value of enough patients."""
    aside = {} if table.notes is None else {note.name: note.why for note in table.notes.unused}
    names = [name for name in table.features.columns if name not in book.sources]
    few = f"no two of its values are of {max(book.min_cell, 1)} patients or more each"
    return aside | {
        name: identifying_reason(table.features[name], table.patient, book.min_cell) or few for name in names
    }


def _published_outcome(federation: Federation, min_cell: int) -> Outcome:
    """The outcome as a codebook has it: of classes, those that enough patients of a center share."""
    outcome = federation.outcome
    if not min_cell or outcome.kind != "classes":
        return outcome
    cells = CellRows(min_cell, federation.center, federation.size, federation.patient)
    names = [name for k, name in enumerate(outcome.names) if cells.enough(federation.label == k)]
    if len(names) < 2:
        raise RequestError(
            f"{federation.name}: fewer than two classes have {min_cell} patients (the minimum cell size); an "
            "outcome of classes needs two"
        )
    return replace(outcome, names=tuple(names))


def metadata(
    federation: Federation, split: NDArray[np.int8], min_cell: int = 0, outcome: Outcome = BINARY
) -> tuple[NDArray[np.float64], tuple[str, ...], int]:
    """(centers, k) the vector that each center publishes, the names of its entries, and how many are base.

    min_cell: counts are rounded to multiples of so many patients; 0: not rounded.
    """
    n, train = federation.size, split == 0
    center = federation.center[train]
    count = np.maximum(sums(center, n, np.ones(len(center))), 1)
    patient = None if federation.patient is None else federation.patient[train]
    base = least_rows(center, patient, n, min_cell).astype(np.float64)

    def share(values: NDArray[np.float64]) -> NDArray[np.float64]:
        found = sums(center, n, values)
        return np.minimum(rounded(found, base), count) / count if min_cell else found / count

    if min_cell:
        count = np.maximum(count, base)
    published, about = outcome.published(federation.label[train])
    counted = outcome.kind != "continuous"
    parts = [share(column) if counted else sums(center, n, column) / count for column in published.T]
    parts.append(np.log(count))
    names = [*about, "log training rows"]
    if federation.time is not None:
        parts.append(sums(center, n, federation.time[train]) / count / 2030.0)
        names.append("mean year / 2030")
    first = len(parts)
    for name in federation.descriptors:
        values = federation.features[name].cast(pl.Float64).fill_null(0.0).to_numpy()[train]
        parts.append(share(values))
        names.append(f"prevalence of {name}")
    # Published as four-byte numbers: what a center computes with is what its peers see.
    return np.stack(parts, axis=1).astype(np.float32).astype(np.float64), tuple(names), first


def prepare(
    federation: Federation,
    seed: int,
    book: Codebook | None = None,
    split: NDArray[np.int8] | None = None,
    standardise: str = "own",
    splines: bool = False,
    min_cell: int = 0,
    histograms: HistogramSum = PLAIN,
) -> Prepared:
    """Split and encode a federation for one seed, by an agreed codebook or its own; rows may be in any order.

    histograms: how centers sum the counts that common scales and the outcome's follow from.
    min_cell: the minimum cell size of everything that leaves a center, where no codebook says it.
    splines: numeric columns become the smooth terms of an additive model (:mod:`abps.data.splines`).
    """
    if split is None:
        split = assign_splits(federation, seed, book is not None and book.shared_patients)
    order = np.arange(federation.rows)
    if not federation.in_order:
        order = canonical_order(federation)
        federation, split = federation.take(order), split[order]
    x, made, spent = encode(federation, split, book, standardise, min_cell, histograms)
    outcome = made.outcome
    columns = tuple(column.name for column in made.columns)
    if splines:
        design = design_of(made)
        x, columns = design.of(x), design.names
    vectors, names, base = metadata(federation, split, made.min_cell, outcome)

    def rows(part: int) -> Rows:
        chosen = np.flatnonzero(split == part)
        chosen = chosen[np.argsort(federation.center[chosen], kind="stable")]
        start = np.searchsorted(federation.center[chosen], np.arange(federation.size + 1))
        return Rows(
            np.ascontiguousarray(x[chosen]),
            outcome.coded(federation.label[chosen]),
            start.astype(np.int64),
            None if federation.patient is None else federation.patient[chosen],
            outcome,
            order[chosen],
        )

    return Prepared(
        name=federation.name,
        centers=federation.centers,
        columns=columns,
        train=rows(0),
        validation=rows(1),
        test=rows(2),
        metadata=vectors,
        metadata_names=names,
        base_metadata=base,
        groups=federation.groups,
        seed=seed,
        book=made,
        plain=len(made.columns),
        agreed=spent,
        splines=splines,
        min_cell=made.min_cell,
        outcome=outcome,
        counted=histograms if spent else None,
        source=federation,
    )
