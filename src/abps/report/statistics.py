"""What a study's runs say, with its uncertainty.

Methods are compared in pairs: same seed, same splits, same initial weights, same center. The difference
of two methods is the mean over seeds of the mean over the centers that both could score. Its interval
(:mod:`abps.evaluate.crossed`) answers for other hospitals and for other splits and starts. *better* and
*worse* are verdicts after Holm's correction for the number of comparisons with the same method; *equal* says
that the whole interval lies within a margin; everything else is *cannot tell*. One seed gives no verdict.
What single centers gain or lose is told with its noise taken out (:mod:`abps.evaluate.shrinkage`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from abps.data.federation import About
from abps.engine.result import Run
from abps.evaluate.crossed import crossed
from abps.evaluate.shrinkage import CenterGains, center_gains
from abps.lab.drift_statistics import holm

#: The share of intervals that hold the truth.
CONFIDENCE = 0.95

#: Two methods are equal if the whole interval of their difference lies within this margin.
MARGIN = 0.01

#: A center is harmed by a method if it truly scores this much below what it reaches alone.
HARM = 0.02

#: Budgets in multiples of FedAvg's 50 rounds, and AUROC targets between training alone and the best method.
BUDGETS = (0.1, 0.25, 0.5, 1.0)
STAGES = (0.5, 0.75, 0.9)

BETTER, WORSE, EQUAL, UNSURE = "better", "worse", "equal", "cannot tell"
ONE_SEED, ABSENT = "one seed: no verdict", "no comparison"

#: What a center reaches alone: the first of these that ran.
ALONE = ("local-best", "local")


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
        return np.array([run.main.mean for run in self.runs])

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

    @property
    def megabytes_a_round(self) -> float:
        """Mean megabytes per center and round, once per edge."""
        return self.average(lambda run: run.bytes.edge / max(1, run.rounds * run.data.centers) / 1e6)


def gather(label: str, method: str, runs: Sequence[Run], centers: Sequence[str]) -> Results:
    """The runs of one method in order of their seeds, with their centers in one order."""
    ordered = sorted(runs, key=lambda run: run.seed)
    auroc = np.array(
        [[run.main.per_center.get(center, math.nan) for center in centers] for run in ordered]
    ).reshape(len(ordered), len(centers))
    return Results(label, method, tuple(ordered), tuple(run.seed for run in ordered), auroc)


@dataclass(frozen=True)
class Difference:
    """A method minus another, paired: the estimate, its interval, and what may be said.

    p: of this comparison alone.  corrected: for the number of comparisons that it is one of.
    """

    estimate: float
    low: float
    high: float
    p: float
    corrected: float
    seeds: int
    centers: int
    margin: float = MARGIN

    @property
    def verdict(self) -> str:
        """better, worse, equal within the margin, or that it cannot be told."""
        if self.seeds == 0:
            return ABSENT
        if self.seeds == 1:
            return ONE_SEED
        if self.corrected < 1.0 - CONFIDENCE:
            return BETTER if self.estimate > 0 else WORSE
        return EQUAL if -self.margin <= self.low and self.high <= self.margin else UNSURE


def paired(a: Results, b: Results) -> NDArray[np.float64]:
    """(common seeds, centers) a minus b; NaN where one of them has no score."""
    common = [seed for seed in a.seeds if seed in b.seeds]
    rows_a = [a.seeds.index(seed) for seed in common]
    rows_b = [b.seeds.index(seed) for seed in common]
    return a.auroc[rows_a] - b.auroc[rows_b]


def compare(a: Results, b: Results, margin: float = MARGIN) -> Difference:
    """a minus b with its interval, as one comparison alone."""
    found = crossed(paired(a, b))
    half = found.half_width(CONFIDENCE)
    return Difference(
        found.mean, found.mean - half, found.mean + half, found.p, found.p, found.seeds, found.centers, margin
    )


def corrected(differences: Sequence[Difference | None]) -> list[Difference | None]:
    """The same differences as one family: Holm's correction for their number."""
    p = holm([math.nan if d is None else d.p for d in differences])
    return [None if d is None else replace(d, corrected=float(q)) for d, q in zip(differences, p)]


@dataclass(frozen=True, eq=False)
class Harm:
    """Centers that a method leaves more than HARM below what they reach alone.

    expected: how many, with the noise taken out.  sure: those for which it is 95 % certain and whose own mean
    says the same.
    centers: how many are compared.  gains: of every center.
    """

    expected: float
    sure: int
    centers: int
    gains: CenterGains

    @property
    def worst(self) -> int:
        """The center that most probably lost most."""
        return int(np.nanargmin(self.gains.mean))


def harmed(a: Results, alone: Results) -> Harm | None:
    """Who loses; None if noise and harm cannot be told apart (one seed, one center)."""
    gains = center_gains(paired(a, alone))
    if gains is None:
        return None
    chance = gains.below(-HARM)
    known = np.isfinite(chance)
    sure = int(((chance[known] > CONFIDENCE) & (gains.raw[known] < -HARM)).sum())
    return Harm(float(chance[known].sum()), sure, int(known.sum()), gains)


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
    to_alone: Difference | None
    harm: Harm | None


@dataclass(frozen=True, eq=False)
class Outside:
    """A method's model at hospitals that did not take part.

    inside: the method with all of them.  to_alone: against training alone.  taking_part: what it adds.
    """

    result: Results
    inside: str
    to_alone: Difference | None
    taking_part: Difference
    harm: Harm | None


@dataclass(frozen=True, eq=False)
class Part:
    """Everything about one federation. alone: the method that stands for training alone, if it ran.

    outside: methods of which every hospital stayed away once.
    """

    data: About
    centers: tuple[str, ...]
    lines: tuple[Line, ...]
    unit: float
    alone: str | None
    margin: float
    outside: tuple[Outside, ...] = ()

    @property
    def measure(self) -> str:
        """What the main score of its outcome is called."""
        return self.lines[0].result.runs[0].measure

    def find(self, label: str) -> Results | None:
        """A method's results, if it ran."""
        return next((line.result for line in self.lines if line.result.label == label), None)

    def outside_of(self, label: str) -> Outside | None:
        """A method at hospitals that did not take part, if that was tried."""
        return next((found for found in self.outside if found.inside == label), None)

    def seeds(self) -> int:
        """The largest number of seeds that a method has."""
        return max(len(line.result.seeds) for line in self.lines)


def control_of(result: Results, present: Mapping[str, Results]) -> str | None:
    """The random control that a method is held against: the one with as many partners, else the other."""
    kappa = result.runs[0].config.get("selection", {}).get("kappa", 1)
    wanted = ["random-k3", "random-k1"] if kappa > 1 else ["random-k1", "random-k3"]
    found = next((name for name in wanted if name in present), None)
    return None if found == result.label else found


def analyse(
    data: About,
    results: Sequence[Results],
    centers: Sequence[str],
    margin: float = MARGIN,
    outside: Mapping[str, Results] | None = None,
) -> Part:
    """The headline lines of one federation, in the order given.

    outside: by method, the runs in which every center stayed away once.
    All comparisons with one method (FedAvg, a random control, training alone) are one family.
    """
    present = {result.label: result for result in results}
    alone = next((name for name in ALONE if name in present), None)
    controls = [control_of(result, present) for result in results]

    def against(others: Sequence[str | None]) -> list[Difference | None]:
        pairs = [(result, present.get(other or "")) for result, other in zip(results, others)]
        return corrected([None if b is None or b is a else compare(a, b, margin) for a, b in pairs])

    to_fedavg, to_alone = against(["fedavg"] * len(results)), against([alone] * len(results))
    to_random = against(controls)
    lines = [
        Line(
            result=result,
            to_fedavg=to_fedavg[k],
            to_random=to_random[k],
            random=controls[k] or "",
            to_alone=to_alone[k],
            harm=harmed(result, present[alone]) if alone is not None and alone != result.label else None,
        )
        for k, result in enumerate(results)
    ]
    stayed = [(present[label], found) for label, found in (outside or {}).items() if label in present]
    from_alone = corrected(
        [None if alone is None else compare(found, present[alone], margin) for _, found in stayed]
    )
    away = [
        Outside(
            found,
            inside.label,
            from_alone[k],
            compare(inside, found, margin),
            None if alone is None else harmed(found, present[alone]),
        )
        for k, (inside, found) in enumerate(stayed)
    ]
    return Part(data, tuple(centers), tuple(lines), fedavg_bytes(results), alone, margin, tuple(away))


def stages(part: Part) -> tuple[float, ...]:
    """AUROC targets that mean something on these data: on the way from training alone to the best method."""
    means = [line.result.mean for line in part.lines if line.result.vs_fedavg > 0]
    start = part.find(part.alone).mean if part.alone else math.nan  # type: ignore[union-attr]
    if not means or not math.isfinite(start) or max(means) <= start:
        return ()
    return tuple(dict.fromkeys(round(start + share * (max(means) - start), 3) for share in STAGES))


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
    ("fedavg", "local-best", "Does FedAvg beat the best that each center can do alone?"),
    ("fedavg", "local", "Does FedAvg beat training the same network alone?"),
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
    """The direct comparisons whose two sides both ran, corrected for their number."""
    asked = [(part.find(first), part.find(second), question) for first, second, question in QUESTIONS]
    both = [(a, b, question) for a, b, question in asked if a is not None and b is not None]
    found = corrected([compare(a, b, part.margin) for a, b, _ in both])
    return [
        Answer(question, a.label, b.label, difference)
        for (a, b, question), difference in zip(both, found)
        if difference is not None
    ]
