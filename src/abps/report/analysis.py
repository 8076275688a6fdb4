"""What a study's runs say, with its uncertainty: one comparison, and one verdict, for every pair of methods.

Everything follows from the rows' scores (:mod:`abps.evaluate`). The primary comparison, the page's method
against training alone, is fixed before the runs and stands as it is. All other methods against training alone
are one family, and so are those against FedAvg and against random partners (Holm's correction). References
and oracles have intervals, but no verdict. A study that grew after it was looked at is held to a stricter
level.
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
from abps.evaluate.hospitals import HospitalGains, hospital_gains
from abps.evaluate.inference import AverageGain, average_gain, fold_inflation, split_inflation
from abps.evaluate.measured import Measured, measured
from abps.evaluate.paired import PairedCells
from abps.evaluate.verdicts import (
    MARGIN,
    RELEVANT,
    HospitalVerdict,
    LossAgreement,
    Settles,
    Verdict,
    agreement,
    alpha_at_look,
    events_needed,
    holm,
    hospital_verdicts,
    settles,
    verdict,
)

Floats = NDArray[np.float64]

#: What a center reaches alone: the first of these that ran.
ALONE = ("local-best", "local")

#: What nobody can use: rows that may not be pooled, groups that nobody knows, another form of training alone.
REFERENCE_ONLY = (
    "pooled-best", "centralized", "centralized-stopped", "group-oracle-k1", "local-best", "local",
    "local-stopped",
)  # fmt: skip

#: The federated regression that everything more complicated has to beat.
SIMPLE = "glm-exact"


@dataclass(frozen=True, eq=False)
class MethodResult:
    """All runs of one method (with its settings) on one federation.

    seeds: sorted, one per repeat.  level, loss: (centers,) the main measure and the mean loss over all
    repeats; NaN where a center cannot be scored.
    """

    label: str
    method: str
    runs: tuple[Run, ...]
    seeds: tuple[int, ...]
    level: Floats
    loss: Floats

    @property
    def mean(self) -> float:
        """The main measure of the average hospital."""
        return _mean(self.level)

    @property
    def mean_loss(self) -> float:
        """The loss of the average hospital."""
        return _mean(self.loss)

    def average(self, number: Callable[[Run], float]) -> float:
        """Mean over repeats of a number of each run."""
        return float(np.mean([number(run) for run in self.runs]))

    @property
    def rest(self) -> float:
        """Mean share of center-rounds without a partner."""
        return self.average(lambda run: run.rest.share)

    @property
    def sends(self) -> bool:
        """Whether anything leaves a hospital."""
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


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else math.nan


@dataclass(frozen=True, eq=False)
class Comparison:
    """One method minus another.

    gain: over the average hospital.  by_patient: over the average patient.  loss: what the first saves of the
    second's loss.  p: of this comparison alone.  corrected: for the family it belongs to.  alpha: the level
    of this look.  folds, repeats: how rows were scored.  reference: one of the two gets no verdict.
    """

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
        """The one verdict on this pair."""
        if self.reference and not math.isnan(self.p):
            return Verdict.REFERENCE
        return verdict(self.gain, self.corrected, self.alpha, self.margin)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval."""
        return self.gain.interval()

    @property
    def agreement(self) -> LossAgreement:
        """Whether the loss says the same."""
        return agreement(self.gain, self.loss)

    @cached_property
    def settles(self) -> Settles:
        """What would settle the comparison."""
        return settles(self.gain, float(self.cells.events.sum()), self.folds, self.alpha, self.margin)

    @cached_property
    def hospitals(self) -> HospitalGains | None:
        """The posterior of every hospital's gain."""
        return hospital_gains(self.cells, self.inflation, self.gain.runs)

    @cached_property
    def hospital_verdicts(self) -> list[HospitalVerdict]:
        """(centers,) what is said about every hospital."""
        if self.hospitals is None:
            return [HospitalVerdict.TOO_FEW] * len(self.cells.gain)
        return hospital_verdicts(self.hospitals, self.cells)

    @cached_property
    def events_needed(self) -> Floats:
        """(centers,) events of its own with which a hospital's answer would be clear."""
        if self.hospitals is None:
            return np.full(len(self.cells.gain), np.nan)
        return events_needed(self.hospitals, self.cells, self.inflation)

    def count(self, *words: HospitalVerdict) -> int:
        """How many hospitals have one of these verdicts."""
        return sum(word in words for word in self.hospital_verdicts)

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
    """The scores of all methods on one federation, by label and seed."""

    def __init__(self, runs: Mapping[str, Sequence[Run]], centers: int) -> None:
        self._frames: dict[tuple[str, int], pl.DataFrame] = {}
        for label, found in runs.items():
            for run in found:
                frame = run.row_scores
                if frame is None:
                    raise RequestError(
                        f"{label}, seed {run.seed}: the scores of its rows (scores.parquet) are missing; ask "
                        "for the same comparison again"
                    )
                self._frames[label, run.seed] = frame
        self._centers = centers
        self._held: dict[tuple[int, ...], Measured] = {}
        self._seeds = {label: tuple(sorted(run.seed for run in found)) for label, found in runs.items()}

    def of(self, *labels: str) -> Measured:
        """The measures of some methods on the repeats that all of them have."""
        seeds = tuple(s for s in self._seeds[labels[0]] if all(s in self._seeds[each] for each in labels))
        if not seeds:
            raise RequestError(f"{' and '.join(labels)} have no seed in common; run them with the same seeds")
        if seeds not in self._held:
            whole = [label for label, own in self._seeds.items() if set(seeds) <= set(own)]
            frames = {label: [self._frames[label, seed] for seed in seeds] for label in whole}
            self._held[seeds] = measured(frames, self._centers)
        return self._held[seeds]

    def repeats(self, *labels: str) -> int:
        """How many repeats some methods have in common."""
        return sum(all(seed in self._seeds[each] for each in labels) for seed in self._seeds[labels[0]])


@dataclass(frozen=True, eq=False)
class MethodLine:
    """A method with what may be said of it. random: the control that it is held against."""

    result: MethodResult
    to_alone: Comparison | None
    to_fedavg: Comparison | None
    to_random: Comparison | None
    random: str


@dataclass(frozen=True, eq=False)
class Part:
    """Everything about one federation.

    alone: the method that stands for training alone, if it ran.  page: the method that the page is about.
    comparisons: by pair of labels.  folds: 0 with one split.  look: how many times the study was looked at.
    """

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
        """What the main measure of its outcome is called."""
        return self.lines[0].result.runs[0].measure

    @property
    def lead(self) -> MethodLine | None:
        """The line of the page's method."""
        return next((line for line in self.lines if line.result.label == self.page), None)

    @property
    def primary(self) -> Comparison | None:
        """The page's method against training alone."""
        return None if self.lead is None else self.lead.to_alone

    def find(self, label: str | None) -> MethodResult | None:
        """A method's results, if it ran."""
        return next((line.result for line in self.lines if line.result.label == label), None)

    def compare(self, first: str, second: str) -> Comparison | None:
        """The comparison of two methods, whichever way round it was made."""
        if (first, second) in self.comparisons:
            return self.comparisons[first, second]
        found = self.comparisons.get((second, first))
        return None if found is None else found.reversed()

    @property
    def repeats(self) -> int:
        """The largest number of repeats that a method has."""
        return max(len(line.result.seeds) for line in self.lines)

    @cached_property
    def scored(self) -> tuple[int, int]:
        """Rows and events that scores stand on, each counted once."""
        found = self.primary or next(iter(self.comparisons.values()), None)
        if found is None:
            run = self.lines[0].result.runs[0]
            return sum(run.scored.per_center_rows.values()), sum(run.scored.per_center_events.values())
        return int((found.cells.events + found.cells.others).sum()), int(found.cells.events.sum())


def page_method(results: Sequence[MethodResult]) -> str | None:
    """The method that a page is about: abps-plus if it ran, else the first named method that sends something.

    Never chosen by its scores: its comparison with training alone must be fixed before the runs.
    """
    sending = [r for r in results if r.sends and r.method not in (*REFERENCE_ONLY, SIMPLE)]
    chosen = [r for r in sending if r.method == "abps-plus"] or [
        r for r in sending if not r.method.startswith(("random-", "fedavg"))
    ]
    return next((r.label for r in [*chosen, *sending]), None)


def control_of(result: MethodResult, present: Iterable[str]) -> str | None:
    """The random control that a method is held against: the one with as many partners, else the other."""
    kappa = result.runs[0].config.get("selection", {}).get("kappa", 1)
    wanted = ["random-k3", "random-k1"] if kappa > 1 else ["random-k1", "random-k3"]
    found = next((name for name in wanted if name in present), None)
    return None if found == result.label else found


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
    """The analysis of one federation.

    runs: by label, in order.  methods: the method of every label.
    """
    centers = tuple(
        sorted({name for found in runs.values() for run in found for name in run.main.per_center})
    )
    scores = RowScores(runs, len(centers))
    inside = [_result(label, methods.get(label, label), found, scores) for label, found in runs.items()]
    alone = next((name for name in ALONE if name in runs), None)
    page = page_method(inside)
    first = inside[0].runs[0]
    make = _Maker(scores, inflation_of(first), first.scored.folds, alpha_at_look(look), margin)
    controls = {r.label: control_of(r, runs) for r in inside}
    found = make.families(_families(inside, alone, page, controls))
    part = Part(data, centers, (), found, alone, page, margin, first.scored.folds, look)

    def to(label: str, other: str | None) -> Comparison | None:
        return None if other is None or other == label else part.compare(label, other)

    lines = tuple(
        MethodLine(
            r,
            to(r.label, alone),
            to(r.label, "fedavg"),
            to(r.label, controls[r.label]),
            controls[r.label] or "",
        )
        for r in inside
    )
    return replace(part, lines=lines)


def _result(label: str, method: str, runs: Sequence[Run], scores: RowScores) -> MethodResult:
    ordered = tuple(sorted(runs, key=lambda run: run.seed))
    found = scores.of(label)
    return MethodResult(
        label,
        method,
        ordered,
        tuple(run.seed for run in ordered),
        found.level(label),
        found.mean_loss(label),
    )


def _families(
    results: Sequence[MethodResult], alone: str | None, page: str | None, controls: Mapping[str, str | None]
) -> list[list[tuple[str, str]]]:
    """Pairs by family, the primary comparison first and by itself."""
    labels = [r.label for r in results]
    primary = [(page, alone)] if page is not None and alone is not None else []
    families = [primary, [(label, alone) for label in labels if alone is not None and label != alone]]
    families.append([(page, SIMPLE)] if page is not None and SIMPLE in labels and page != SIMPLE else [])
    families.append([(label, "fedavg") for label in labels if "fedavg" in labels and label != "fedavg"])
    families.append([(label, other) for label in labels if (other := controls[label]) is not None])
    return families


@dataclass(frozen=True, eq=False)
class _Maker:
    """Makes comparisons; a pair that is in an earlier family is not made again."""

    scores: RowScores
    inflation: float
    folds: int
    alpha: float
    margin: float

    def families(self, families: Sequence[Sequence[tuple[str, str]]]) -> dict[tuple[str, str], Comparison]:
        """All comparisons by pair, corrected within their families."""
        made: dict[tuple[str, str], Comparison] = {}
        for family in families:
            fresh = [pair for pair in family if pair not in made and pair[::-1] not in made]
            found = [self.pair(*pair) for pair in dict.fromkeys(fresh)]
            adjusted = holm([math.nan if each.reference else each.p for each in found])
            for each, p in zip(found, adjusted):
                corrected = each.p if math.isnan(p) else p
                made[each.first, each.second] = replace(each, corrected=corrected)
        return made

    def pair(self, first: str, second: str) -> Comparison:
        """One comparison by itself."""
        scores = self.scores.of(first, second)
        cells, loss_cells = scores.cells(first, second), scores.loss_cells(first, second)
        gain = average_gain(cells, self.inflation)
        p = gain.p()
        return Comparison(
            first,
            second,
            cells,
            gain,
            average_gain(cells, self.inflation, cells.patient_weight),
            average_gain(loss_cells, self.inflation),
            self.inflation,
            self.folds,
            self.scores.repeats(first, second),
            p,
            p,
            self.alpha,
            self.margin,
            first in REFERENCE_ONLY or (second in REFERENCE_ONLY and second not in ALONE),
        )
