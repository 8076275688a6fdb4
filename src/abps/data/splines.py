"""The design of an additive model: every numeric column as a few smooth terms.

A column becomes a piecewise-linear function of its standardised value, with bends at three common quantiles
and flat outside the outermost ones, and two *tails* that rise with the logarithm beyond these. Tails have a
penalty of their own, so evidence decides how much the farthest values say: an outlier says little, and a risk
that goes on rising does so.

Lines and bends are nearly copies of each other, so they are turned into their principal components over the
federation's quantiles: the first is nearly the column itself, later ones bend more and more, and are made
smaller (by the fourth root of their share of the first one's variance), so that one penalty for all prefers
smooth functions. All follows from the codebook: centers make the same terms.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.data.codebook import Codebook, Column
from abps.data.scales import FARTHEST, Scale

Floats = NDArray[np.float64]

#: Which of the agreed quantiles are knots: at 0.225, 0.525 and 0.775.
KNOTS = (4, 10, 15)

#: What the tails are called, behind the names of columns.
TAILS = ("low", "high")

#: What stands between a column's name and the term's.
MARK = " ~"

#: Components with less than this share of the first one's variance say nothing.
LEAST = 1e-4

#: The variance of a term (as a share of the first one's) is raised to this power.
TEMPER = 0.5


@dataclass(frozen=True, eq=False)
class SmoothTerms:
    """The smooth terms of one column: bends at ``knots`` (k,), then ``matrix`` (k + 1, terms) of what is
    left after ``middle`` (k + 1,); tails begin at ``edges`` (2,)."""

    knots: Floats
    edges: Floats
    middle: Floats
    matrix: Floats

    @property
    def names(self) -> tuple[str, ...]:
        """What the terms are called, behind the name of the column."""
        return (*(str(k + 1) for k in range(self.matrix.shape[1])), *TAILS)

    def of(self, z: Floats) -> Floats:
        """(rows, terms) from standardised values (rows,)."""
        low, high = self.edges
        part = bends(np.clip(z, low, high), self.knots) - self.middle
        # Column by column: a library's product would round by how many rows there are.
        found = part[:, :1] * self.matrix[0]
        for k in range(1, len(self.matrix)):
            found += part[:, k : k + 1] * self.matrix[k]
        return np.column_stack(
            [found, np.log1p(np.maximum(low - z, 0.0)), np.log1p(np.maximum(z - high, 0.0))]
        )


def named_terms(inputs: Iterable[str]) -> tuple[list[str], list[str]]:
    """Columns' names, and what their terms are called, from the names of inputs: ``""`` of a column that
    stays as it is."""
    parts = [name.partition(MARK) for name in inputs]
    return [column for column, _, _ in parts], [term for _, _, term in parts]


def bends(z: Floats, knots: Floats) -> Floats:
    """(rows, k + 1) the value itself, and how far it lies beyond each knot."""
    return np.column_stack([z, np.maximum(z[:, None] - knots, 0.0)])


def terms_of(scale: Scale) -> SmoothTerms | None:
    """The smooth terms of a column of this scale; None where it has too few distinct values to bend."""
    if not scale.spread > 0 or not scale.quantiles:
        return None
    z = np.clip((np.array(scale.quantiles) - scale.center) / scale.spread, -FARTHEST, FARTHEST)
    knots = np.unique(z[list(KNOTS)])
    base = bends(z, knots)
    size = base.std(axis=0)
    usable = size > 1e-3
    if usable.sum() < 2:
        return None
    weight = np.where(usable, 1.0 / np.where(usable, size, 1.0), 0.0)
    part = (base - base.mean(axis=0)) * weight
    variance, turn = np.linalg.eigh(part.T @ part / len(z))
    variance, turn = variance[::-1], turn[:, ::-1]
    kept = variance > LEAST * variance[0]
    variance, turn = variance[kept], turn[:, kept]
    # Which way a component points is a library's whim: here it points up at the upper end.
    turn = turn * np.where(part[-1] @ turn < 0, -1.0, 1.0)
    size = (variance / variance[0]) ** (TEMPER / 2) / np.sqrt(variance)
    return SmoothTerms(knots, z[[0, -1]], base.mean(axis=0), weight[:, None] * turn * size)


@dataclass(frozen=True, eq=False)
class Design:
    """How the encoded columns of a codebook become the inputs of an additive model.

    columns: the encoded columns.  terms: the smooth terms of each, None where it stays as it is.
    """

    columns: tuple[Column, ...]
    terms: tuple[SmoothTerms | None, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The inputs' names: a term's is that of its column, and which one it is."""
        return tuple(
            name
            for column, terms in zip(self.columns, self.terms, strict=True)
            for name in (
                [column.name] if terms is None else [f"{column.name}{MARK}{term}" for term in terms.names]
            )
        )

    @cached_property
    def owner(self) -> NDArray[np.int64]:
        """(inputs,) the encoded column that each input comes from."""
        count = [1 if terms is None else len(terms.names) for terms in self.terms]
        return np.repeat(np.arange(len(count)), count)

    def of(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """(rows, inputs) from encoded rows (rows, columns)."""
        parts = [
            x[:, k : k + 1] if terms is None else terms.of(x[:, k].astype(np.float64)).astype(np.float32)
            for k, terms in enumerate(self.terms)
        ]
        return np.concatenate(parts, axis=1)


def design_of(book: Codebook) -> Design:
    """The design that follows from a codebook with common statistics."""
    if book.statistics is None:
        raise RequestError("smooth terms need common statistics; set standardise=common")
    scales = book.statistics
    return Design(
        book.columns, tuple(terms_of(scales[c.source]) if c.kind == "number" else None for c in book.columns)
    )
