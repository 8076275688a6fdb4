"""One comparison and one verdict for every pair of methods, from the scores of rows (:mod:`abps.evaluate`).

The primary comparison, the page's method against training alone, is fixed before the runs. Other methods
against training alone are one family, and so are those against FedAvg and against random partners (Holm's
correction). References and oracles have intervals, but no verdict. A study that grew after it was looked at
is held to a stricter level.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.data.federation import About
from abps.engine.result import Run
from abps.evaluate.calibration import UNKNOWN, Interval
from abps.evaluate.hospitals import HospitalGains, hospital_gains
from abps.evaluate.inference import AverageGain, Scope, average_gain, fold_inflation, split_inflation
from abps.evaluate.measured import Measured, measured
from abps.evaluate.paired import PairedCells
from abps.evaluate.verdicts import (
    MARGIN,
    RELEVANT,
    HospitalEvidence,
    HospitalVerdict,
    LossAgreement,
    Settles,
    Verdict,
    agreement,
    alpha_at_look,
    holm,
    hospital_evidence,
    settles,
    verdict,
)

Floats = NDArray[np.float64]

#: What a center reaches alone: the first of these that ran.
ALONE = ("local-best", "local")

#: What nobody can use: rows that may not be pooled, groups that nobody knows, another form of training alone.
REFERENCE_ONLY = ("pooled-best", "centralized", "group-oracle-k1", "local-best", "local")

#: The federated regression that everything more complicated has to beat.
SIMPLE = "glm-exact"


@dataclass(frozen=True, eq=False)
class MethodLine:
    """All runs of one method on one federation, one per repeat.  level, loss: (centers,) main measure and
    mean loss over all repeats; NaN where a center cannot be scored.  random: the control that it is held
    against."""

    label: str
    method: str
    runs: tuple[Run, ...]
    level: Floats
    loss: Floats
    random: str = ""
    to_alone: Comparison | None = None
    to_fedavg: Comparison | None = None
    to_random: Comparison | None = None

    @property
    def mean(self) -> float:
        return mean_of(self.level)

    @property
    def mean_loss(self) -> float:
        return mean_of(self.loss)

    def average(self, number: Callable[[Run], float]) -> float:
        return float(np.mean([number(run) for run in self.runs]))

    @property
    def rest(self) -> float:
        """Mean share of center-rounds without a partner."""
        return self.average(lambda run: run.rest.share)

    @property
    def sends(self) -> bool:
        return self.average(lambda run: run.bytes.all) > 0

    @property
    def megabytes(self) -> float:
        """Everything that one hospital sends and receives in a run, on average."""
        return self.average(lambda run: run.bytes.all / run.data.centers / 1e6)

    @property
    def all_vs_fedavg(self) -> float:
        """Mean bytes, control included, in multiples of FedAvg's 50 rounds."""
        return self.average(lambda run: run.bytes.all_vs_fedavg)

    @property
    def deviation(self) -> float:
        """Standard deviation over repeats of a run's mean; NaN with one."""
        means = [run.main.mean for run in self.runs]
        return float(np.std(means, ddof=1)) if len(means) > 1 else math.nan


def mean_of(values: Iterable[float]) -> float:
    """The mean of those that are known."""
    known = [value for value in values if math.isfinite(value)]
    return float(np.mean(known)) if known else math.nan


@dataclass(frozen=True, eq=False)
class Comparison:
    """One method minus another, over the average hospital (gain) and the average patient.  loss: what the
    first saves of the second's.  p: of this comparison alone; corrected: for its family.  alpha: the level of
    this look.  reference: one of the two gets no verdict."""

    first: str
    second: str
    cells: PairedCells
    gain: AverageGain
    by_patient: AverageGain
    loss: AverageGain
    inflation: float
    folds: int
    repeats: int
    p: float
    corrected: float
    alpha: float
    margin: float = MARGIN
    reference: bool = False

    @cached_property
    def verdict(self) -> Verdict:
        if self.reference and not math.isnan(self.p):
            return Verdict.REFERENCE
        return verdict(self.gain, self.corrected, self.alpha, self.margin)

    @property
    def interval(self) -> tuple[float, float]:
        return self.gain.interval()

    @property
    def like_these(self) -> Interval:
        """The gain over hospitals like these; unknown where there is one alone."""
        low, high = self.gain.interval(scope=Scope.LIKE_THESE)
        return Interval(self.gain.estimate, low, high) if math.isfinite(low) else UNKNOWN

    @cached_property
    def further(self) -> Interval:
        """The gain of one further hospital; its value is the probability that it is above zero."""
        if self.hospitals is None:
            return UNKNOWN
        law = self.hospitals.further
        (chance,), ((low,), (high,)) = law.above(0.0), law.interval()
        return Interval(float(chance), float(low), float(high))

    @property
    def agreement(self) -> LossAgreement:
        return agreement(self.gain, self.loss)

    @cached_property
    def settles(self) -> Settles:
        return settles(self.gain, float(self.cells.events.sum()), self.folds, self.alpha, self.margin)

    @cached_property
    def hospitals(self) -> HospitalGains | None:
        """The posterior of every hospital's gain."""
        return hospital_gains(self.cells, self.inflation, self.gain.runs)

    @cached_property
    def evidence(self) -> list[HospitalEvidence]:
        return hospital_evidence(self.hospitals, self.cells, self.inflation)

    def count(self, word: HospitalVerdict) -> int:
        return sum(each.verdict is word for each in self.evidence)

    @property
    def expected_losing(self) -> float:
        """The expected number of hospitals that lose more than 0.02."""
        return math.nan if self.hospitals is None else self.hospitals.expected_below(RELEVANT)

    def reversed(self) -> Comparison:
        """The same comparison, second minus first."""
        turned = {
            name: replace(getattr(self, name), estimate=-getattr(self, name).estimate)
            for name in ("gain", "by_patient", "loss")
        }
        cells = replace(self.cells, gain=-self.cells.gain, cell=-self.cells.cell)
        return replace(self, first=self.second, second=self.first, cells=cells, **turned)


class RowScores:
    def __init__(self, runs: Mapping[str, Sequence[Run]], centers: int) -> None:
        self._frames: dict[str, dict[int, pl.DataFrame]] = {label: {} for label in runs}
        for label, found in runs.items():
            for run in found:
                frame = run.row_scores
                if frame is None:
                    raise RequestError(
                        f"{label}, seed {run.seed}: the scores of its rows (scores.parquet) are missing; ask "
                        "for the same comparison again"
                    )
                self._frames[label][run.seed] = frame
        self._centers = centers
        self._measured: dict[tuple[int, ...], Measured] = {}

    def seeds(self, *labels: str) -> tuple[int, ...]:
        """The repeats that some methods have in common."""
        return tuple(sorted(set.intersection(*(set(self._frames[label]) for label in labels))))

    def of(self, *labels: str) -> Measured:
        """The measures of some methods on the repeats that all of them have."""
        seeds = self.seeds(*labels)
        if not seeds:
            raise RequestError(f"{' and '.join(labels)} have no seed in common; run them with the same seeds")
        if seeds not in self._measured:
            whole = {k: own for k, own in self._frames.items() if set(seeds) <= set(own)}
            frames = {label: [own[seed] for seed in seeds] for label, own in whole.items()}
            self._measured[seeds] = measured(frames, self._centers)
        return self._measured[seeds]


@dataclass(frozen=True, eq=False)
class Part:
    """Everything about one federation.  alone: what stands for training alone, if it ran.  page: the method
    that the page is about.  folds: 0 with one split.  look: how many times the study was looked at."""

    data: About
    centers: tuple[str, ...]
    lines: tuple[MethodLine, ...]
    comparisons: Mapping[tuple[str, str], Comparison]
    alone: str | None
    page: str | None
    margin: float
    folds: int
    look: int

    @property
    def measure(self) -> str:
        return self.lines[0].runs[0].measure

    @property
    def lead(self) -> MethodLine | None:
        return self.find(self.page)

    @property
    def primary(self) -> Comparison | None:
        """The page's method against training alone."""
        return None if self.lead is None else self.lead.to_alone

    def find(self, label: str | None) -> MethodLine | None:
        return next((line for line in self.lines if line.label == label), None)

    def compare(self, first: str, second: str) -> Comparison | None:
        """The comparison of two methods, whichever way round it was made."""
        if (first, second) in self.comparisons:
            return self.comparisons[first, second]
        found = self.comparisons.get((second, first))
        return None if found is None else found.reversed()

    @property
    def repeats(self) -> int:
        return max(len(line.runs) for line in self.lines)

    @cached_property
    def scored(self) -> tuple[int, int]:
        """Rows and events that scores stand on, each counted once."""
        found = self.primary or next(iter(self.comparisons.values()), None)
        if found is None:
            scored = self.lines[0].runs[0].scored
            return sum(scored.per_center_rows.values()), sum(scored.per_center_events.values())
        return int((found.cells.events + found.cells.others).sum()), int(found.cells.events.sum())


def page_method(lines: Sequence[MethodLine]) -> str | None:
    """The method that a page is about: abps-plus if it ran, else the first named method that sends something.
    Never chosen by its scores: its comparison with training alone must be fixed before the runs."""
    sending = [line for line in lines if line.sends and line.method not in (*REFERENCE_ONLY, SIMPLE)]
    chosen = [line for line in sending if line.method == "abps-plus"] or [
        line for line in sending if not line.method.startswith(("random-", "fedavg"))
    ]
    return next((line.label for line in [*chosen, *sending]), None)


def control_of(line: MethodLine, present: Iterable[str]) -> str:
    """The random control that a method is held against: the one with as many partners, else the other."""
    kappa = line.runs[0].config.get("selection", {}).get("kappa", 1)
    wanted = ["random-k3", "random-k1"] if kappa > 1 else ["random-k1", "random-k3"]
    found = next((name for name in wanted if name in present), "")
    return "" if found == line.label else found


def inflation_of(run: Run) -> float:
    """What the patients' variance is multiplied by, because test rows of one run train others."""
    if run.scored.folds:
        return fold_inflation(run.scored.folds)
    test = sum(run.scored.per_center_rows.values())
    return split_inflation(test, max(run.data.rows - 2 * test, test))


def analyse(
    data: About,
    runs: Mapping[str, Sequence[Run]],
    methods: Mapping[str, str],
    margin: float = MARGIN,
    look: int = 1,
) -> Part:
    """The analysis of one federation from its runs by label; methods: the method of every label."""
    names = {name for found in runs.values() for run in found for name in run.main.per_center}
    centers = tuple(sorted(names))
    scores = RowScores(runs, len(centers))
    lines = []
    for label, found in runs.items():
        own, ordered = scores.of(label), tuple(sorted(found, key=lambda run: run.seed))
        line = MethodLine(label, methods.get(label, label), ordered, own.level(label), own.mean_loss(label))
        lines.append(replace(line, random=control_of(line, runs)))
    alone = next((name for name in ALONE if name in runs), None)
    page, first = page_method(lines), lines[0].runs[0]
    comparisons: dict[tuple[str, str], Comparison] = {}
    for family in _families(lines, alone, page):  # a pair counts in the first family that it is in
        pairs = [pair for pair in family if pair not in comparisons and pair[::-1] not in comparisons]
        made = [_compare(scores, *pair, first, alpha_at_look(look), margin) for pair in pairs]
        adjusted = holm([math.nan if each.reference else each.p for each in made])
        for pair, each, p in zip(pairs, made, adjusted):
            comparisons[pair] = each if math.isnan(p) else replace(each, corrected=p)
    part = Part(data, centers, (), comparisons, alone, page, margin, first.scored.folds, look)

    def to(line: MethodLine, other: str | None) -> Comparison | None:
        return part.compare(line.label, other) if other and other != line.label else None

    held = (
        replace(line, to_alone=to(line, alone), to_fedavg=to(line, "fedavg"), to_random=to(line, line.random))
        for line in lines
    )
    return replace(part, lines=tuple(held))


def _families(
    lines: Sequence[MethodLine], alone: str | None, page: str | None
) -> list[list[tuple[str, str]]]:
    """Pairs by family, the primary comparison first and by itself."""
    labels = [line.label for line in lines]
    families = [[(page or "", other)] for other in (alone, SIMPLE) if other in labels]
    families += [[(label, other) for label in labels] for other in (alone, "fedavg") if other in labels]
    families.append([(line.label, line.random) for line in lines])
    return [[(a, b) for a, b in family if a and b and a != b] for family in families]


def _compare(scores: RowScores, first: str, second: str, run: Run, alpha: float, margin: float) -> Comparison:
    """One comparison by itself.  run: any of the study; it says how rows were scored."""
    own, inflation = scores.of(first, second), inflation_of(run)
    cells = own.cells(first, second)
    gain, by_patient = average_gain(cells, inflation), average_gain(cells, inflation, cells.patient_weight)
    loss = average_gain(own.loss_cells(first, second), inflation)
    reference = first in REFERENCE_ONLY or (second in REFERENCE_ONLY and second not in ALONE)
    return Comparison(
        first, second, cells, gain, by_patient, loss, inflation, run.scored.folds,
        len(scores.seeds(first, second)), gain.p(), gain.p(), alpha, margin, reference,
    )  # fmt: skip
