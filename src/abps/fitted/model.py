"""A fitted model: from a row of a table to a probability, with everything that lies between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.data.codebook import Codebook, encode_column
from abps.data.splines import Design, design_of
from abps.fitted.inputs import Range, readable
from abps.fitted.layers import Network
from abps.stats.calibration import Recalibration, expit

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FittedModel:
    """One center's model. Used like a classifier of scikit-learn: ``predict_proba`` of a table.

    book: the columns that it reads, with the scale of each number as it is used here.
    splines: whether numbers are read as smooth terms.
    ranges: where the numbers of each column lay in the rows that were learned from.
    recalibration: fitted on rows that were not learned from.  thresholds: by what they promise.
    about: where it comes from: method, seed, rows, events, versions.
    """

    center: str
    label: str
    positive: str
    book: Codebook
    network: Network
    recalibration: Recalibration = field(default_factory=Recalibration)
    splines: bool = False
    thresholds: Mapping[str, float] = field(default_factory=dict)
    ranges: Mapping[str, Range] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def classes_(self) -> NDArray[np.int64]:
        """The two classes, in the order of the columns of ``predict_proba``."""
        return np.array([0, 1])

    @property
    def feature_names_in_(self) -> NDArray[np.object_]:
        """The columns of a table that the model needs."""
        return np.array(self.needs, dtype=object)

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns of a table that the model needs."""
        return tuple(dict.fromkeys(column.source for column in self.book.columns))

    @cached_property
    def design(self) -> Design | None:
        """How encoded columns become smooth terms; None where they are inputs as they are."""
        return design_of(self.book) if self.splines else None

    def encode(self, features: pl.DataFrame) -> NDArray[np.float32]:
        """(rows, inputs) from columns as the codebook asks for them."""
        nobody = np.zeros(features.height, dtype=np.int32)
        none = np.zeros(features.height, dtype=np.bool_)
        scales = {} if self.book.statistics is None else self.book.statistics.scales
        blocks = [
            encode_column(column, features[column.source], nobody, none, 1, scales.get(column.source))
            for column in self.book.columns
        ]
        x = np.stack(blocks, axis=1)
        return x if self.design is None else self.design.of(x)

    def log_odds(self, features: pl.DataFrame) -> Floats:
        """(rows,) the network's own log odds, before recalibration."""
        return self.network.log_odds(self.encode(features))

    def probabilities(self, features: pl.DataFrame) -> Floats:
        """(rows,) the probability of the event, recalibrated."""
        return self.recalibration.apply(expit(self.log_odds(features)))

    def predict_proba(self, table: Any) -> Floats:
        """(rows, 2) probabilities of no event and of the event, of a table with the columns it needs.

        table: a Polars or pandas frame, or a mapping from names to columns. What is missing, retyped or out
        of range is refused with a sentence.
        """
        p = self.probabilities(readable(as_frame(table), self.book, self.ranges, self.center).features)
        return np.column_stack([1.0 - p, p])

    def predict(self, table: Any, threshold: float = 0.5) -> NDArray[np.int64]:
        """(rows,) 1 where the probability of the event is at least the threshold."""
        return (self.predict_proba(table)[:, 1] >= threshold).astype(np.int64)


def as_frame(table: Any) -> pl.DataFrame:
    """A table of Polars, of pandas, or a mapping, as a frame."""
    if isinstance(table, pl.DataFrame):
        return table
    if isinstance(table, Mapping):
        return pl.DataFrame(dict(table))
    return pl.DataFrame(
        {str(name): pl.Series(str(name), list(table[name]), strict=False) for name in table.columns}
    )
