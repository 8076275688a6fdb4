"""What the numbers mean, in plain sentences that follow from the verdicts and from nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from abps.report.statistics import BETTER, TIE, WORSE, Answer, Difference, Part, answers
from abps.report.tables import number, percent, signed, times


def interval(difference: Difference) -> str:
    """An estimate and its interval."""
    d = difference
    return f"{signed(d.estimate)}, 95 % interval {signed(d.low)} to {signed(d.high)}"


def listed(names: Sequence[str]) -> str:
    """Names in a row, the last with 'and'; many are counted instead."""
    if len(names) > 6:
        return f"{len(names)} methods"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def summary(part: Part) -> list[str]:
    """The main findings on one federation."""
    said = [_against_fedavg(part), *_selection(part), _price(part), _harm(part), _rest(part), _caution(part)]
    return [sentence for sentence in said if sentence]


def _against_fedavg(part: Part) -> str:
    fedavg = part.find("fedavg")
    if fedavg is None:
        best = max(part.lines, key=lambda line: line.result.mean).result
        return f"The highest mean AUROC is {number(best.mean)} ({best.label}); FedAvg did not run."
    groups: dict[str, list[str]] = {BETTER: [], TIE: [], WORSE: []}
    for line in part.lines:
        if (
            line.to_fedavg is not None
            and line.result.method != "centralized"
            and line.to_fedavg.verdict in groups
        ):
            groups[line.to_fedavg.verdict].append(line.result.label)
    parts = []
    for verdict, words in ((BETTER, "above it"), (TIE, "tie with it"), (WORSE, "below it")):
        names = groups[verdict]
        if names:
            verb = words if verdict == TIE and len(names) > 1 else words.replace("tie", "ties")
            is_are = "" if verdict == TIE else ("lies " if len(names) == 1 else "lie ")
            parts.append(f"{listed(names)} {is_are}{verb}")
    text = f"FedAvg reaches a mean AUROC of {number(fedavg.mean)}"
    pooled = part.find("centralized")
    if pooled is not None:
        text += f" (all rows pooled: {number(pooled.mean)})"
    return f"{text}; {'; '.join(parts)}." if parts else f"{text}."


#: Questions about choosing partners: the finding for each verdict.
_CHOICE = {
    BETTER: "here choosing partners is worth it",
    TIE: "here choosing partners gains nothing that could be told from chance",
    WORSE: "here choosing partners does harm",
}


def _selection(part: Part) -> list[str]:
    said = []
    for a in answers(part):
        if (a.first, a.second) in (("abps-pq-k1", "random-k1"), ("abps", "random-k3")):
            how = "one partner" if a.second == "random-k1" else "three partners"
            said.append(
                f"ABPS against random pairing ({how}): {a.difference.verdict} ({interval(a.difference)}); "
                f"{_CHOICE.get(a.difference.verdict, '')}."
            )
        elif (a.first, a.second) == ("abps-x", "fedavg-x"):
            said.append(
                f"ABPS-X against FedAvg with the same extensions: {a.difference.verdict} "
                f"({interval(a.difference)})."
            )
        elif a.second == "random-k1" and a.first in ("group-oracle-k1", "abps-plus"):
            said.append(_plain(a))
    return said


def _plain(a: Answer) -> str:
    return f"{a.first} against {a.second}: {a.difference.verdict} ({interval(a.difference)})."


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
        (line.harmed[0] / line.harmed[1], line.result.label, line.harmed)
        for line in part.lines
        if line.harmed is not None and line.harmed[1] and line.result.method != "centralized"
    ]
    if not shares:
        return ""
    least, most = min(shares), max(shares)
    text = f"Centers more than 0.02 below what they reach alone: {percent(*least[2])} with {least[1]}"
    return text + (f", {percent(*most[2])} with {most[1]}." if most[1] != least[1] else ".")


def _rest(part: Part) -> str:
    resting = [line.result for line in part.lines if line.result.rest >= 0.005]
    if not resting:
        return ""
    most = max(resting, key=lambda r: r.rest)
    causes = {
        "no candidate left by the filter": most.average(lambda run: run.rest.no_candidates),
        "every candidate already taken": most.average(lambda run: run.rest.all_full),
        "every candidate declined": most.average(lambda run: run.rest.declined),
    }
    told = ", ".join(f"{percent(value, 1)} {cause}" for cause, value in causes.items())
    return f"Rest was highest with {most.label}: {percent(most.rest, 1)} of center-rounds ({told})."


def _caution(part: Part) -> str:
    seeds = part.seeds()
    if seeds < 5:
        many = "1 seed" if seeds == 1 else f"{seeds} seeds"
        return (
            f"With {many} the intervals say little about other splits and starts; a claim needs five or more."
        )
    return ""
