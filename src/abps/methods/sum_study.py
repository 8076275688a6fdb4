"""Studies that are made of sums alone: a program at every hospital, whose totals run under masks by default.

Every exchange is one total of the program that each hospital runs: it yields a vector of the hospital's own
numbers, is sent the total, and goes on. The state is the totals so far: a hospital repeats its program up to
where they end, so a site that was killed, or the next exchange, goes on from there.

``regression`` is in :mod:`abps.methods.regression`; here are ``table-one`` and ``evaluation``.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.data.codebook import Codebook
from abps.data.prepare import Prepared
from abps.data.scales import PROBABILITIES
from abps.methods.base import Context, Floats, Ints, Models, Privacy, Stopping
from abps.methods.coordinated import Broadcast, CoordinatedMethod, Upload
from abps.models.training import Training
from abps.statistics.newton import SumProgram
from abps.wire.number_lists import Field, NumberList

#: What happens when an approved member is absent.
ABSENT: Final = {
    "wait": "no sum is opened without every approved member; after two rounds without a sum the job ends and "
    "names the absent",
    "without": "members absent at the first sum are left out of the study, and the result names them; "
    "members absent later are waited for, and after two rounds without a sum the job ends and names them",
}


@dataclass(frozen=True, eq=False)
class SumState(Models):
    """totals: of all exchanges, one after the other; lengths: of each.  over: the program is done, or refused
    to go on."""

    totals: Floats
    lengths: Ints
    over: bool = False


@dataclass(frozen=True)
class SumStudy(CoordinatedMethod):
    """A study of sums.

    absent: wait for every approved member, or go on without those that are absent at the first sum.
    """

    training: Training = field(default_factory=lambda: Training.of("linear"))
    stop: Stopping = field(default_factory=lambda: Stopping(rounds=40))
    privacy: Privacy = field(default_factory=lambda: Privacy(secure=True))
    absent: str = "wait"

    #: Its results come of exchanges, not of steps of local training.
    fitted: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.absent not in ABSENT:
            raise RequestError(f"absent={self.absent}: choose {' or '.join(ABSENT)}")

    @abstractmethod
    def inputs(self, data: Prepared) -> list[Any]:
        """What the programs of the centers of some data need."""

    @abstractmethod
    def program(self, given: Any, data: Prepared) -> SumProgram[Any]:
        """What one center does."""

    @abstractmethod
    def needed(self, book: Codebook) -> tuple[str, ...]:
        """The columns of the table that are read."""

    def check(self, book: Codebook) -> None:
        """Refuse columns that the codebook has not."""
        for name in self.needed(book):
            if name not in book.sources:
                known = ", ".join(book.sources)
                raise RequestError(f"{name!r} is not among the codebook's columns ({known})")

    def used(self, data: Prepared) -> NDArray[np.bool_]:
        """(rows,) whether a row of some data is in the study."""
        assert data.source is not None
        return np.ones(data.source.rows, dtype=bool)

    def sums_only(self, t: int) -> bool:
        """Every exchange is a sum."""
        return True

    def if_absent(self) -> tuple[bool, str]:
        """Whether no sum may be without an approved member, and what happens when one is absent."""
        return self.absent == "wait", ABSENT[self.absent]

    def finished(self, state: SumState) -> bool:
        """Whether the program is done."""
        return state.over

    def derived(self, context: Context) -> list[Any]:
        """What the programs of every center here need."""
        assert context.data.book is not None
        self.check(context.data.book)
        return self.inputs(context.data)

    def init(self, context: Context) -> SumState:
        """No totals yet."""
        return SumState(context.common_start(), np.zeros(0), np.zeros(0, dtype=np.int64))

    def upload(self, context: Context, state: SumState, t: int) -> Upload:
        """The next vector of the program of every center here."""
        vectors = []
        for i in range(context.r):
            found = self.replayed(context, state, i)
            assert isinstance(found, np.ndarray)  # an exchange is due only while programs run
            vectors.append(found)
        return Upload.encode(vectors, [(Field("double", len(v)),) for v in vectors])

    def aggregate(self, context: Context, state: SumState, uploads: Floats, t: int) -> Broadcast:
        """The total. A member without an upload is waited for: half a sum is none."""
        if not np.isfinite(uploads).all():
            raise ValueError("an upload is missing or not finite")
        total = uploads.sum(axis=0)
        return Broadcast(NumberList.of(total, (Field("double", len(total)),)))

    def apply_broadcast(self, context: Context, state: SumState, broadcast: Broadcast, t: int) -> SumState:
        """The state with one more total; whether that was the last."""
        total = broadcast.common.values
        lengths = np.append(state.lengths, len(total))
        after = replace(state, totals=np.concatenate([state.totals, total]), lengths=lengths)
        return replace(after, over=not isinstance(self.replayed(context, after, 0), np.ndarray))

    def replayed(self, context: Context, state: SumState, row: int) -> Any:
        """What the program of a center here says after all totals."""
        totals = np.split(state.totals, np.cumsum(state.lengths)[:-1]) if len(state.lengths) else []
        return self.result(context.derived[row], context.data, totals)

    def result(self, given: Any, data: Prepared, totals: Sequence[Floats]) -> Any:
        """What a center's program says after these totals: its next vector, its result, or why there is none,
        in a sentence."""
        running = self.program(given, data)
        try:
            vector = next(running)
            for total in totals:
                if len(total) != len(vector):
                    raise ValueError("a total of another length than the sum that was asked for")
                vector = running.send(total)
        except StopIteration as end:
            return end.value
        except RequestError as error:
            return str(error)
        return vector


def levels_of(book: Codebook) -> dict[str, tuple[str, ...]]:
    """The agreed levels of every column that has some."""
    levels: dict[str, tuple[str, ...]] = {}
    for column in book.columns:
        if column.kind == "level":
            levels[column.source] = (*levels.get(column.source, ()), column.level)
    return {name: tuple(sorted(each)) for name, each in levels.items()}


@dataclass(frozen=True)
class TableOneStudy(SumStudy):
    """Counts, means, deviations and quantiles of all hospitals together.

    columns: of the codebook, with commas between; none: all.
    """

    columns: str = ""

    def needed(self, book: Codebook) -> tuple[str, ...]:
        """The columns that are described, in order."""
        return tuple(c.strip() for c in self.columns.split(",") if c.strip()) or book.sources

    def inputs(self, data: Prepared) -> list[pl.DataFrame]:
        """The rows of every center, with the outcome where it is an event or none."""
        assert data.source is not None and data.book is not None
        frame = data.source.features.select(self.needed(data.book))
        if data.outcome.binary:
            frame = frame.with_columns(pl.Series("outcome", data.source.label.astype(np.int64)))
        return [frame.filter(pl.Series(data.source.center == i)) for i in range(data.size)]

    def program(self, given: pl.DataFrame, data: Prepared) -> SumProgram[Any]:
        """One total."""
        from abps.statistics.table_one import table_program

        assert data.book is not None
        levels = {**levels_of(data.book), "outcome": ("1",)}
        scales = data.book.statistics or {}
        quantiles = {
            name: tuple(np.interp([0.25, 0.5, 0.75], PROBABILITIES, scale.quantiles))
            for name, scale in scales.items()
            if scale.quantiles
        }
        return table_program(given, levels, quantiles, data.min_cell)


@dataclass(frozen=True)
class EvaluationStudy(SumStudy):
    """A model at all hospitals: its discrimination, calibration and benefit, from sums.

    predictor: a column of probabilities, or log odds: ``-3.2 + 0.04*age + 0.3*sex[male]``.
    thresholds: of net benefit, with commas between.
    """

    predictor: str = ""
    thresholds: str = "0.1,0.2"

    only_binary: ClassVar[str] = "it evaluates probabilities of an event; leave it out"

    def coefficients(self) -> Mapping[str, float]:
        """Of the log odds; those of a column of probabilities: none."""
        if "*" not in self.predictor:
            return {}
        found = {}
        try:
            for term in self.predictor.split("+"):
                value, _, name = term.partition("*")
                found[name.strip() or "intercept"] = float(value)
        except ValueError as error:
            raise RequestError(
                "predictor: write log odds as '-3.2 + 0.04*age + 0.3*sex[male]', or name a column"
            ) from error
        return found

    def needed(self, book: Codebook) -> tuple[str, ...]:
        """The columns that the model reads."""
        named = [name.partition("[")[0] for name in self.coefficients() if name != "intercept"]
        return tuple(dict.fromkeys(named)) or (self.predictor.strip(),)

    def used(self, data: Prepared) -> NDArray[np.bool_]:
        """The rows in which every column of the model is known."""
        assert data.source is not None and data.book is not None
        features = data.source.features.select(self.needed(data.book))
        gaps = features.select(pl.any_horizontal(pl.all().is_null() | pl.all().cast(pl.String).eq("NaN")))
        return ~gaps.to_series().to_numpy()

    def inputs(self, data: Prepared) -> list[tuple[Floats, Floats]]:
        """Probabilities and outcomes of every center."""
        from abps.statistics.evaluation import formula_probabilities

        assert data.source is not None
        found, frame, coefficients = [], data.source.features, self.coefficients()
        for center in range(data.size):
            rows = self.used(data) & (data.source.center == center)
            part = frame.filter(pl.Series(rows))
            if coefficients:
                p = formula_probabilities(part, coefficients)
            else:
                p = part[self.predictor.strip()].cast(pl.Float64).to_numpy()
            if not ((p >= 0) & (p <= 1)).all():
                raise RequestError(f"predictor: {self.predictor!r} has values that are no probabilities")
            found.append((p, data.source.label[rows].astype(np.float64)))
        return found

    def program(self, given: tuple[Floats, Floats], data: Prepared) -> SumProgram[Any]:
        """Two totals, and those of the calibration."""
        from abps.statistics.evaluation import evaluation_program

        at = [float(each) for each in self.thresholds.split(",")]
        return evaluation_program(*given, at, data.min_cell, self.predictor)
