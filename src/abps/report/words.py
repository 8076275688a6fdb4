"""What the numbers mean, in plain sentences that follow from the verdicts and from nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from abps.engine.result import Heterogeneity
from abps.report.statistics import (
    ABSENT,
    BETTER,
    CONFIDENCE,
    EQUAL,
    HARM,
    ONE_SEED,
    UNSURE,
    WORSE,
    Answer,
    Difference,
    Line,
    Part,
    answers,
)
from abps.report.tables import number, percent, signed, times, verdict

Floats = NDArray[np.float64]

#: A fifth of P(helps) with fewer mixes says nothing of it.
FEWEST_MIXES = 100


def interval(difference: Difference) -> str:
    """An estimate and its interval."""
    d = difference
    if not math.isfinite(d.low):
        return signed(d.estimate)
    return f"{signed(d.estimate)}, 95 % interval {signed(d.low)} to {signed(d.high)}"


def listed(names: Sequence[str]) -> str:
    """Names in a row, the last with 'and'; many are counted instead."""
    if len(names) > 6:
        return f"{len(names)} methods"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def summary(part: Part) -> list[str]:
    """The main findings on one federation."""
    said = [
        _against_alone(part),
        _against_fedavg(part),
        heterogeneity(part),
        *_selection(part),
        _price(part),
        _harm(part),
        _rest(part),
        _caution(part),
    ]
    return [sentence for sentence in said if sentence]


#: How a list of methods continues for each verdict, one method or several.
_STANDING = {
    BETTER: ("lies above it", "lie above it"),
    EQUAL: ("equals it", "equal it"),
    UNSURE: ("cannot be told from it", "cannot be told from it"),
    WORSE: ("lies below it", "lie below it"),
}


def _standing(part: Part, column: Sequence[Difference | None]) -> str:
    """Who lies above, level with and below the method of a column."""
    groups: dict[str, list[str]] = {name: [] for name in _STANDING}
    for line, difference in zip(part.lines, column):
        if difference is not None and line.result.method != "centralized" and difference.verdict in groups:
            groups[difference.verdict].append(line.result.label)
    return "; ".join(
        f"{listed(names)} {_STANDING[name][len(names) > 1]}"
        + (f" within {part.margin:g}" if name == EQUAL else "")
        for name, names in groups.items()
        if names
    )


def _against_alone(part: Part) -> str:
    if part.alone is None:
        return "No method stands for training alone here, so nobody's gain can be told."
    alone = part.find(part.alone)
    assert alone is not None
    best = {"local-best": "the best that each center can do alone", "local": "the same network alone"}
    told = _standing(part, [line.to_alone for line in part.lines])
    text = f"Training alone is {part.alone} ({best[part.alone]}), mean {part.measure} {number(alone.mean)}"
    return f"{text}; {told}." if told else f"{text}."


def _against_fedavg(part: Part) -> str:
    fedavg = part.find("fedavg")
    if fedavg is None:
        best = max(part.lines, key=lambda line: line.result.mean).result
        return f"The highest mean {part.measure} is {number(best.mean)} ({best.label}); FedAvg did not run."
    text = f"FedAvg reaches a mean {part.measure} of {number(fedavg.mean)}"
    pooled = part.find("centralized")
    if pooled is not None:
        text += f" (all rows pooled: {number(pooled.mean)})"
    told = _standing(part, [line.to_fedavg for line in part.lines])
    return f"{text}; {told}." if told else f"{text}."


def heterogeneity(part: Part) -> str:
    """Whether the hospitals differ in their risk, by the test of a method that makes one."""
    found = tested(part)
    if found is None:
        return ""
    label, tests = found
    rejected = sum(test.p < 1.0 - CONFIDENCE for test in tests)
    largest = max(test.p for test in tests)
    splits = f"{rejected} of {len(tests)} {'split' if len(tests) == 1 else 'splits'}"
    told = f"test of {label}, rejected in {splits}, largest p {small(largest)}"
    if rejected * 2 <= len(tests):
        return f"That the hospitals differ in their risk is not shown ({told})."
    kinds = sorted(test.kinds for test in tests)[len(tests) // 2]
    columns = shares_of(tests)
    by = f", most of all by {listed(list(columns)[:4])}" if columns else ""
    apart = f"; {kinds} kinds of hospitals were told apart" if kinds > 1 else ""
    return f"The hospitals differ in their risk{by} ({told}){apart}."


def tested(part: Part) -> tuple[str, list[Heterogeneity]] | None:
    """The first method that tests whether hospitals differ, and its tests, one per seed."""
    for line in part.lines:
        tests = [run.heterogeneity for run in line.result.runs if run.heterogeneity is not None]
        if tests:
            return line.result.label, tests
    return None


def shares_of(tests: Sequence[Heterogeneity]) -> dict[str, float]:
    """The columns that carry the difference with their mean share over seeds, most first."""
    total: dict[str, float] = {}
    for test in tests:
        shares = test.shares or (1.0 / max(1, len(test.columns)),) * len(test.columns)
        for name, share in zip(test.columns, shares):
            total[name] = total.get(name, 0.0) + share / len(tests)
    return dict(sorted(total.items(), key=lambda entry: (-entry[1], entry[0])))


def small(p: float) -> str:
    """A p-value in a sentence."""
    return f"{p:.2g}" if p >= 1e-4 else "below 0.0001"


#: Questions about choosing partners: the finding for each verdict.
_CHOICE = {
    BETTER: "here choosing partners is worth it",
    EQUAL: "here choosing partners changes nothing that matters",
    UNSURE: "whether choosing partners is worth it cannot be told from these runs",
    WORSE: "here choosing partners does harm",
    ONE_SEED: "a verdict needs more seeds",
    ABSENT: "nothing could be compared",
}


def _selection(part: Part) -> list[str]:
    said = []
    for a in answers(part):
        if (a.first, a.second) in (("abps-pq-k1", "random-k1"), ("abps", "random-k3")):
            how = "one partner" if a.second == "random-k1" else "three partners"
            said.append(
                f"ABPS against random pairing ({how}): {verdict(a.difference)} ({interval(a.difference)}); "
                f"{_CHOICE[a.difference.verdict]}."
            )
        elif (a.first, a.second) == ("abps-x", "fedavg-x"):
            said.append(
                f"ABPS-X against FedAvg with the same extensions: {verdict(a.difference)} "
                f"({interval(a.difference)})."
            )
        elif a.second == "random-k1" and a.first in ("group-oracle-k1", "abps-plus"):
            said.append(_plain(a))
    return said


def _plain(a: Answer) -> str:
    return f"{a.first} against {a.second}: {verdict(a.difference)} ({interval(a.difference)})."


def _price(part: Part) -> str:
    """What was saved, and whether choosing had a part in it."""
    x, chosen, random = part.find("abps-x"), part.find("abps-pq-k1"), part.find("random-k1")
    said = []
    if x is not None:
        said.append(f"abps-x sent {times(x.vs_fedavg)} of FedAvg's bytes")
    if chosen is not None and random is not None:
        same = abs(chosen.vs_fedavg - random.vs_fedavg) < 0.005
        said.append(
            f"abps-pq-k1 sent {times(chosen.vs_fedavg)} and random-k1 {times(random.vs_fedavg)}"
            + (": the saving comes from pairs and bfloat16, not from who is chosen" if same else "")
        )
    return "; ".join(said) + "." if said else ""


def _harm(part: Part) -> str:
    shares = [
        (line.harm.expected / line.harm.centers, line)
        for line in part.lines
        if line.harm is not None and line.result.method != "centralized" and line.result.label != "local"
    ]
    if not shares:
        return ""
    shares.sort(key=lambda entry: (entry[0], entry[1].result.label))
    text = f"Centers that truly lose more than {HARM:g} against {part.alone}, noise taken out: "
    return (
        text + ", ".join(_who_loses(part, line) for _, line in dict.fromkeys((shares[0], shares[-1]))) + "."
    )


def _who_loses(part: Part, line: Line) -> str:
    harm = line.harm
    assert harm is not None
    text = f"{percent(harm.expected, harm.centers)} with {line.result.label}"
    if not harm.sure:
        return text
    worst = part.centers[harm.worst]
    return f"{text} ({harm.sure} surely, the worst {worst} by {signed(float(harm.gains.mean[harm.worst]))})"


def _rest(part: Part) -> str:
    resting = [line.result for line in part.lines if line.result.rest >= 0.005]
    if not resting:
        return ""
    most = max(resting, key=lambda r: r.rest)
    causes = {
        "no candidate left by the filter": most.average(lambda run: run.rest.no_candidates),
        "every candidate already taken": most.average(lambda run: run.rest.all_full),
        "every candidate declined": most.average(lambda run: run.rest.declined),
        "in rounds without any exchange": most.average(lambda run: run.rest.quiet),
    }
    told = ", ".join(f"{percent(value, 1)} {cause}" for cause, value in causes.items() if value >= 0.005)
    why = f" ({told})" if told else ""
    return f"Rest was highest with {most.label}: {percent(most.rest, 1)} of center-rounds{why}."


def _caution(part: Part) -> str:
    seeds = part.seeds()
    if seeds == 1:
        return "One seed gives no verdict: how much splits and starts matter shows only with two or more."
    if seeds < 5:
        return f"With {seeds} seeds the intervals are wide: little is known of other splits and starts."
    return ""
