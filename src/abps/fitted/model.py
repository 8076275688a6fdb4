"""A fitted model: from a row of a table to a probability, with everything that lies between.

A new table is refused unless its columns are there, of their type and in their range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from torch import nn

from abps.core.errors import RequestError, nearest
from abps.data.codebook import Codebook, encode_rows
from abps.data.outcome import Outcome
from abps.data.reading import frame_of
from abps.data.repairs import Repair
from abps.data.roles import Roles
from abps.data.splines import Design, design_of
from abps.data.table import as_agreed, repair_table
from abps.evaluate.calibration import Recalibration, expit
from abps.models.interactions import PairTerms
from abps.models.models import MLP, Linear, layout_of
from abps.models.outcomes import foretold, risk

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
    network: LayeredNetwork
    recalibration: Recalibration = field(default_factory=Recalibration)
    splines: bool = False
    thresholds: Mapping[str, float] = field(default_factory=dict)
    ranges: Mapping[str, Range] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def outcome(self) -> Outcome:
        return self.book.outcome

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes, in the order of the columns of ``predict_proba``."""
        return np.array(self.outcome.names if self.outcome.kind == "classes" else [0, 1])

    @property
    def feature_names_in_(self) -> NDArray[np.object_]:
        return np.array(self.needs, dtype=object)

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(column.source for column in self.book.columns))

    @cached_property
    def design(self) -> Design | None:
        """How encoded columns become smooth terms; None where they are inputs as they are."""
        return design_of(self.book) if self.splines else None

    def encode(self, features: pl.DataFrame) -> NDArray[np.float32]:
        """(rows, inputs) from columns as the codebook asks for them."""
        x = encode_rows(self.book, features)
        return x if self.design is None else self.design.of(x)

    def foretold(self, features: pl.DataFrame) -> pl.DataFrame:
        """What the model says, a column each: the probability of the event; of every class; the number; or
        the chance to live longer than each time of the grid, and a risk that is larger for who fails earlier.
        """
        answers = self.network.answers(self.encode(features))
        if self.outcome.binary:
            return pl.DataFrame({"probability": self.recalibration.apply(expit(answers[:, 0]))})
        said = foretold(self.outcome, answers)
        if self.outcome.kind == "continuous":
            return pl.DataFrame({"value": said})
        if self.outcome.kind == "classes":
            return pl.DataFrame({f"probability of {n}": said[:, k] for k, n in enumerate(self.outcome.names)})
        columns = {f"alive after {t:g}": said[:, k] for k, t in enumerate(self.outcome.grid)}
        return pl.DataFrame(columns | {"risk": risk(self.outcome, answers)})

    def _readable(self, table: Any) -> pl.DataFrame:
        return readable(frame_of(table), self.book, self.ranges, self.center).features

    def predict_proba(self, table: Any) -> Floats:
        """(rows, 2) probabilities of no event and of the event, or (rows, classes), of a table (Polars or
        pandas frame, or mapping from names to columns) with the columns it needs; what is missing, retyped or
        out of range is refused with a sentence."""
        if self.outcome.kind in ("survival", "continuous"):
            raise RequestError(
                f"a model of an outcome of {self.outcome.kind} has no classes; use "
                f"{'predict_survival' if self.outcome.kind == 'survival' else 'predict'}"
            )
        said = self.foretold(self._readable(table)).to_numpy()
        return np.column_stack([1.0 - said[:, 0], said[:, 0]]) if self.outcome.binary else said

    def predict_survival(self, table: Any) -> tuple[Floats, Floats]:
        """Times (k,), and (rows, k) the chance to live longer than each of them."""
        if self.outcome.kind != "survival":
            raise RequestError(f"a model of an outcome of {self.outcome.kind} knows no times")
        said = self.foretold(self._readable(table)).drop("risk")
        return np.array(self.outcome.grid), said.to_numpy()

    def predict(self, table: Any, threshold: float = 0.5) -> NDArray[Any]:
        """(rows,) 1 where the probability of the event is at least the threshold; the likeliest class; the
        number; or the risk, larger for who fails earlier."""
        if self.outcome.binary:
            return (self.predict_proba(table)[:, 1] >= threshold).astype(np.int64)
        said = self.foretold(self._readable(table))
        if self.outcome.kind == "classes":
            return np.asarray(self.classes_[np.argmax(said.to_numpy(), axis=1)])
        return said["value" if self.outcome.kind == "continuous" else "risk"].to_numpy()


# ---------------------------------------------------------------- tables that a model can read

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
    """The columns that a model needs, or a sentence on what is wrong with them; anyway: columns out of range
    are a warning instead of an error."""
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


# ---------------------------------------------------------------- layers


@dataclass(frozen=True, eq=False)
class Layer:
    """weight (out, in) times the input, plus bias (out,); then what is below zero is zero, if ``relu``."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32]
    relu: bool


@dataclass(frozen=True, eq=False)
class LayeredNetwork:
    """Branches of layers that see the same inputs; their outputs are added."""

    branches: tuple[tuple[Layer, ...], ...]

    @property
    def outputs(self) -> int:
        return int(self.branches[0][-1].weight.shape[0])

    def answers(self, x: NDArray[np.float32]) -> Floats:
        """(rows, outputs) from inputs (rows, width)."""
        total = np.zeros((len(x), self.outputs))
        for branch in self.branches:
            now = np.asarray(x, dtype=np.float64)
            for layer in branch:
                now = now @ layer.weight.T.astype(np.float64) + layer.bias
                if layer.relu:
                    now = np.maximum(now, 0.0)
            total += now
        return total

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """All numbers by name: branch.layer.weight and branch.layer.bias."""
        named = {}
        for b, branch in enumerate(self.branches):
            for k, layer in enumerate(branch):
                named[f"{b}.{k}.weight"] = np.ascontiguousarray(layer.weight)
                named[f"{b}.{k}.bias"] = np.ascontiguousarray(layer.bias)
        return named

    def shape(self) -> list[list[bool]]:
        """Whether each layer of each branch cuts at zero: what the numbers alone do not say."""
        return [[layer.relu for layer in branch] for branch in self.branches]

    @staticmethod
    def of(tensors: Mapping[str, NDArray[np.float32]], shape: list[list[bool]]) -> LayeredNetwork:
        def layer(b: int, k: int, relu: bool) -> Layer:
            return Layer(tensors[f"{b}.{k}.weight"], tensors[f"{b}.{k}.bias"], bool(relu))

        branches = (tuple(layer(b, k, relu) for k, relu in enumerate(each)) for b, each in enumerate(shape))
        return LayeredNetwork(tuple(branches))


def network_of(module: nn.Module, weights: NDArray[np.float32]) -> LayeredNetwork:
    """A trained module as plain layers.  weights: (P,) the flat row of its parameters, of a linear model
    perhaps with its pair terms behind them."""
    layout = layout_of(module)
    named = layout.unflatten(weights)
    if isinstance(module, MLP):
        layers = [
            Layer(named[f"layers.{k}.weight"], named[f"layers.{k}.bias"], True)
            for k in range(len(module.layers))
        ]
        return LayeredNetwork(((*layers, Layer(named["head.weight"], named["head.bias"], False)),))
    if isinstance(module, Linear):
        weight = named["terms.weight"]
        if module.mix.shape != (1, 1):
            weight = module.mix.T @ weight
        terms = (Layer(weight, named["intercept.value"], False),)
        return LayeredNetwork((terms, *_pairs(weights[layout.size :], weight.shape[1], module.mix)))
    raise RequestError(
        f"a model of the kind {type(module).__name__} cannot be written as plain layers yet; "
        "fit with mlp, linear or gam"
    )


def _pairs(tail: NDArray[np.float32], width: int, mix: NDArray[np.float32]) -> tuple[tuple[Layer, ...], ...]:
    """The pair terms at the end of a linear model as a branch; nothing where there are none."""
    pairs, coefficients = PairTerms.read(tail, width, len(mix))
    if not pairs.count:
        return ()
    functions, together = pairs.units()
    hidden = Layer(functions[:, :-1].astype(np.float32), functions[:, -1].astype(np.float32), True)
    out = mix.T @ coefficients @ together.T
    return ((hidden, Layer(out.astype(np.float32), np.zeros(len(out), np.float32), False)),)
