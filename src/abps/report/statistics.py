"""What a study's runs say, with its uncertainty.

Methods are compared in pairs: same seed, same splits, same initial weights, same center. The difference
of two methods is the mean over seeds of the mean over the centers that both could score. Its interval
comes from a bootstrap that draws centers and seeds, both with replacement: would the finding hold with
other hospitals, and with other splits and starts? Where the interval covers zero the verdict is a tie.
The intervals are not corrected for the number of comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.data.federation import About
from abps.simulator.result import Run

#: Bootstrap draws, and the share of them inside the interval.
DRAWS = 4000
CONFIDENCE = 0.95

#: A center is harmed by a method if it scores this much below what it reaches alone.
HARM = 0.02

#: AUROC targets of the paper, and budgets in multiples of FedAvg's 50 rounds.
TARGETS = (0.750, 0.770, 0.785)
BUDGETS = (0.1, 0.25, 0.5, 1.0)

BETTER, TIE, WORSE, UNKNOWN = "better", "tie", "worse", "no comparison"


@dataclass(frozen=True, eq=False)
class Results:
    """All runs of one method (with its settings) on one federation.

    seeds: sorted.  auroc: (seeds, centers), NaN where a center could not be scored.
    """

    label: str
    method: str
    runs: tuple[Run, ...]
    seeds: tuple[int, ...]
    auroc: NDArray[np.float64]

    @property
    def means(self) -> NDArray[np.float64]:
        """(seeds,) mean AUROC over centers, as each run reports it."""
        return np.array([run.auroc.mean for run in self.runs])

    @property
    def mean(self) -> float:
        """Mean AUROC over seeds."""
        return float(self.means.mean())

    @property
    def deviation(self) -> float:
        """Standard deviation over seeds (n - 1); NaN with one seed."""
        return float(self.means.std(ddof=1)) if len(self.seeds) > 1 else math.nan

    def average(self, number: Callable[[Run], float]) -> float:
        """Mean over seeds of a number of each run."""
        return float(np.mean([number(run) for run in self.runs]))

    @property
    def rest(self) -> float:
        """Mean share of center-rounds without a partner."""
        return self.average(lambda run: run.rest.share)

    @property
    def vs_fedavg(self) -> float:
        """Mean bytes in multiples of FedAvg's 50 rounds."""
        return self.average(lambda run: run.bytes.vs_fedavg)


def gather(label: str, method: str, runs: Sequence[Run], centers: Sequence[str]) -> Results:
    """The runs of one method in order of their seeds, with their centers in one order."""
    ordered = sorted(runs, key=lambda run: run.seed)
    auroc = np.array(
        [[run.auroc.per_center.get(center, math.nan) for center in centers] for run in ordered]
    ).reshape(len(ordered), len(centers))
    return Results(label, method, tuple(ordered), tuple(run.seed for run in ordered), auroc)


@dataclass(frozen=True)
class Difference:
    """A method minus another, paired: the estimate, its interval, and what may be said."""

    estimate: float
    low: float
    high: float
    seeds: int
    centers: int

    @property
    def verdict(self) -> str:
        """better, worse, or a tie where the interval covers zero."""
        if not math.isfinite(self.low):
            return UNKNOWN
        if self.low > 0:
            return BETTER
        return WORSE if self.high < 0 else TIE


def paired(a: Results, b: Results) -> NDArray[np.float64]:
    """(common seeds, centers) a minus b; NaN where one of them has no score."""
    common = [seed for seed in a.seeds if seed in b.seeds]
    rows_a = [a.seeds.index(seed) for seed in common]
    rows_b = [b.seeds.index(seed) for seed in common]
    return a.auroc[rows_a] - b.auroc[rows_b]


def compare(a: Results, b: Results, draws: int = DRAWS) -> Difference:
    """a minus b with its bootstrap interval."""
    values = paired(a, b)
    values = values[:, np.isfinite(values).any(axis=0)]
    values = values[np.isfinite(values).any(axis=1)]
    if values.size == 0:
        return Difference(math.nan, math.nan, math.nan, 0, 0)
    estimate = float(np.nanmean(values, axis=1).mean())
    low, high = np.quantile(
        bootstrap(values, draws), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], method="linear"
    )
    return Difference(estimate, float(low), float(high), *values.shape)


def draw_counts(draws: int, size: int, what: int) -> NDArray[np.float64]:
    """(draws, size) how often each of ``size`` things is drawn, with replacement, in each draw."""
    rng = streams.generator(0, "bootstrap", what, size)
    picked = rng.integers(0, size, (draws, size))
    flat = (picked + size * np.arange(draws)[:, None]).reshape(-1)
    return np.bincount(flat, minlength=draws * size).reshape(draws, size).astype(np.float64)


def bootstrap(values: NDArray[np.float64], draws: int) -> NDArray[np.float64]:
    """(draws,) the mean over seeds of means over centers, with centers and seeds drawn anew.

    values: (seeds, centers), NaN where not defined. One draw of centers serves all seeds of it, because
    it is the same hospital that comes or does not come. A seed without any drawn center that is defined
    is left out of its draw.
    """
    seeds, centers = values.shape
    defined = np.isfinite(values).astype(np.float64)
    often = draw_counts(draws, centers, 0)
    total = often @ np.where(defined > 0, values, 0.0).T
    weight = often @ defined.T
    means = np.divide(total, weight, out=np.zeros_like(total), where=weight > 0)
    chosen = draw_counts(draws, seeds, 1) * (weight > 0)
    return np.asarray((chosen * means).sum(axis=1) / np.maximum(chosen.sum(axis=1), 1.0))


def center_differences(a: Results, b: Results) -> NDArray[np.float64]:
    """(centers,) a minus b of every center, averaged over the seeds in which both have a score."""
    values = paired(a, b)
    defined = np.isfinite(values)
    count = defined.sum(axis=0)
    total = np.where(defined, values, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def harmed(a: Results, local: Results) -> tuple[int, int]:
    """Centers that a method leaves more than HARM below training alone, and the centers that count."""
    values = center_differences(a, local)
    values = values[np.isfinite(values)]
    return int((values < -HARM).sum()), len(values)


def fedavg_bytes(results: Sequence[Results]) -> float:
    """Bytes of FedAvg's 50 rounds on this federation, from any run that sent something; NaN if none did."""
    for result in results:
        for run in result.runs:
            if run.bytes.edge > 0 and run.bytes.vs_fedavg > 0:
                return run.bytes.edge / run.bytes.vs_fedavg
    return math.nan


def spent(run: Run, unit: float) -> NDArray[np.float64]:
    """(rounds,) cumulative bytes after each round in multiples of ``unit``."""
    edge = np.array(run.history.edge_bytes, dtype=np.float64)
    return edge / unit if math.isfinite(unit) else np.zeros(len(edge))


def at_budget(result: Results, budget: float, unit: float) -> float:
    """Mean AUROC over seeds when a budget is used up: the last round that it pays for.

    NaN if in some run not even the first exchange fits.
    """
    values = []
    for run in result.runs:
        affordable = np.flatnonzero(spent(run, unit) <= budget * (1 + 1e-9))
        values.append(run.history.auroc[affordable[-1]] if len(affordable) else math.nan)
    return float(np.mean(values))


def to_target(result: Results, target: float, unit: float) -> tuple[float, int]:
    """Mean bytes until the mean AUROC first reaches a target, over the runs that do, and how many do."""
    needed = []
    for run in result.runs:
        curve = np.array(run.history.auroc)
        reached = np.flatnonzero(curve >= target)
        if len(reached):
            needed.append(float(spent(run, unit)[reached[0]]))
    return (float(np.mean(needed)) if needed else math.nan), len(needed)


@dataclass(frozen=True, eq=False)
class Line:
    """A method's line of the headline table."""

    result: Results
    to_fedavg: Difference | None
    to_random: Difference | None
    random: str
    to_local: Difference | None
    harmed: tuple[int, int] | None


@dataclass(frozen=True, eq=False)
class Part:
    """Everything about one federation."""

    data: About
    centers: tuple[str, ...]
    lines: tuple[Line, ...]
    unit: float

    def find(self, label: str) -> Results | None:
        """A method's results, if it ran."""
        return next((line.result for line in self.lines if line.result.label == label), None)

    def seeds(self) -> int:
        """The largest number of seeds that a method has."""
        return max(len(line.result.seeds) for line in self.lines)


def control_of(result: Results, present: Mapping[str, Results]) -> str | None:
    """The random control that a method is held against: the one with as many partners, else the other."""
    kappa = result.runs[0].config.get("selection", {}).get("kappa", 1)
    wanted = ["random-k3", "random-k1"] if kappa > 1 else ["random-k1", "random-k3"]
    found = next((name for name in wanted if name in present), None)
    return None if found == result.label else found


def analyse(data: About, results: Sequence[Results], centers: Sequence[str]) -> Part:
    """The headline lines of one federation, in the order given."""
    present = {result.label: result for result in results}
    fedavg, local = present.get("fedavg"), present.get("local")
    lines = []
    for result in results:
        control = control_of(result, present)
        lines.append(
            Line(
                result=result,
                to_fedavg=compare(result, fedavg) if fedavg and fedavg is not result else None,
                to_random=compare(result, present[control]) if control else None,
                random=control or "",
                to_local=compare(result, local) if local and local is not result else None,
                harmed=harmed(result, local) if local and local is not result else None,
            )
        )
    return Part(data, tuple(centers), tuple(lines), fedavg_bytes(results))


#: Direct comparisons that a reader asks for: first against second, and how the question is put.
QUESTIONS = (
    ("abps-pq-k1", "random-k1", "Does choosing partners beat drawing them at random (one partner)?"),
    ("abps", "random-k3", "Does choosing partners beat drawing them at random (three partners)?"),
    ("abps-pq-k1-hom", "random-k1", "Do like peers beat random ones?"),
    ("abps-pq-k1-div", "random-k1", "Do unlike peers beat random ones?"),
    ("abps-pq-k1-align", "random-k1", "Do peers with the same outcome rate beat random ones?"),
    ("group-oracle-k1", "random-k1", "Would knowing the true groups help?"),
    ("abps-x", "fedavg-x", "ABPS-X against FedAvg with the same extensions"),
    ("abps-x", "fedavg", "ABPS-X against FedAvg"),
    ("abps-plus", "random-k1", "ABPS+ against random partners"),
    ("abps-plus", "fedavg", "ABPS+ against FedAvg"),
    ("abps-pq-k1", "fedavg-pq", "One chosen partner against the whole star, same wire"),
    ("fedavg", "local", "Does FedAvg beat training alone?"),
    ("centralized", "fedavg", "What pooling all rows would add to FedAvg"),
)


@dataclass(frozen=True)
class Answer:
    """A direct comparison with its question."""

    question: str
    first: str
    second: str
    difference: Difference


def answers(part: Part) -> list[Answer]:
    """The direct comparisons whose two sides both ran."""
    found = []
    for first, second, question in QUESTIONS:
        a, b = part.find(first), part.find(second)
        if a is not None and b is not None:
            found.append(Answer(question, first, second, compare(a, b)))
    return found
