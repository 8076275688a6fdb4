"""The first screen of a study: one sentence with size and certainty, three tiles, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from abps.report.hospitals import Hospital, Hospitals
from abps.report.statistics import BETTER, EQUAL, ONE_SEED, UNSURE, WORSE, Part
from abps.report.tables import money, number, signed
from abps.report.words import interval, listed

#: Names in a sentence; more are counted.
MOST_NAMES = 5


@dataclass(frozen=True)
class Tile:
    """A number with its words, and the list behind it."""

    number: str
    words: str
    details: tuple[str, ...] = ()


def answer(part: Part, hospitals: Hospitals | None) -> str:
    """Does working together help, by how much, and how sure is that?"""
    if hospitals is None:
        return "No method in this study exchanged anything, so there is no collaboration to judge."
    lead = hospitals.lead
    reached = f"{lead.result.label} reaches a mean AUROC of {number(lead.result.mean)}"
    if part.alone is None or lead.to_alone is None:
        return f"{reached}; nobody trained alone in this study, so the gain is not known."
    alone = part.find(part.alone)
    assert alone is not None
    told = f"{interval(lead.to_alone)}"
    says = {
        BETTER: f"Working together helps: {reached}, {number(alone.mean)} alone ({part.alone}): {told}.",
        WORSE: f"Working together does harm: {reached}, {number(alone.mean)} alone ({part.alone}): {told}.",
        EQUAL: f"Working together changes nothing that matters: {reached}, {number(alone.mean)} alone "
        f"({part.alone}): {told}, equal within {part.margin:g}.",
        UNSURE: f"Whether working together helps cannot be told: {reached}, {number(alone.mean)} alone "
        f"({part.alone}): {told}.",
        ONE_SEED: f"One seed gives no verdict: {reached}, {number(alone.mean)} alone ({part.alone}).",
    }
    return says.get(lead.to_alone.verdict, f"{reached}.")


def beside(part: Part, hospitals: Hospitals | None) -> list[str]:
    """Who gains, who loses, by name, and who would lose most under FedAvg."""
    if hospitals is None or hospitals.lead.harm is None:
        return []
    gaining, losing = hospitals.with_verdict(BETTER), hospitals.with_verdict(WORSE)
    label = hospitals.lead.result.label
    told = [
        f"Surely better off with {label}: {_some(gaining)}." if gaining else "",
        f"A bad idea for {_some(losing)}: surely worse off with {label} than alone."
        if losing
        else f"Nobody is surely worse off with {label} than alone.",
    ]
    worst = [w for w in (_worst(hospitals, label), _worst(hospitals, "fedavg")) if w]
    return [sentence for sentence in [*told, f"Worst off: {'; '.join(worst)}." if worst else ""] if sentence]


def _some(hospitals: Sequence[Hospital]) -> str:
    names = [f"{h.name} ({signed(h.main.gain)})" for h in hospitals[:MOST_NAMES]]
    if len(hospitals) > MOST_NAMES:
        return f"{len(hospitals)} hospitals, most of all {listed(names)}"
    return listed(names)


def _worst(hospitals: Hospitals, label: str) -> str:
    found = [
        (standing.gain, h, standing)
        for h in hospitals.all
        for standing in h.together
        if standing.method == label and math.isfinite(standing.gain)
    ]
    if not found:
        return ""
    _, hospital, standing = min(found, key=lambda entry: (entry[0], entry[1].name))
    return (
        f"{hospital.name} with {label}, {number(hospital.alone)} alone to {number(standing.auroc)} "
        f"({signed(standing.gain)} with the noise taken out)"
    )


def tiles(part: Part, hospitals: Hospitals | None) -> list[Tile]:
    """Price, hospitals left out, and what was noticed about the data."""
    found = []
    if hospitals is not None:
        sizes = [h.megabytes for h in hospitals.all]
        dollars = sum(h.dollars for h in hospitals.all) / len(hospitals.all)
        found.append(
            Tile(
                f"{sum(sizes) / len(sizes):.2f} MB, {money(dollars)}",
                f"sent per hospital in a run of {hospitals.lead.result.label}; at most {max(sizes):.2f} MB",
            )
        )
    out = part.data.left_out
    found.append(
        Tile(
            f"{len(out)} left out",
            f"of {part.data.centers + len(out)} hospitals in the table",
            tuple(f"{o.center}: {o.reason}" for o in out),
        )
    )
    check = part.data.check
    notes = () if check is None else _notes(check.warnings, [s.sentence for s in check.suspicions])
    unused = () if check is None else tuple(f"{c.name}: not used, {c.why}" for c in check.unused)
    found.append(
        Tile(
            f"{len(notes) + len(unused)} data warnings",
            "about the table" if check is not None else "the data are built in",
            (*notes, *unused),
        )
    )
    return found


def _notes(*groups: Sequence[str]) -> tuple[str, ...]:
    return tuple(note for group in groups for note in group)


def steps(part: Part, hospitals: Hospitals | None) -> list[str]:
    """What follows for whoever reads this."""
    if hospitals is None:
        return ["Compare with a method that exchanges models, such as abps-plus or fedavg."]
    lead = hospitals.lead
    label, verdict = lead.result.label, lead.to_alone.verdict if lead.to_alone else ""
    said = []
    if part.alone != "local-best":
        said.append("Add local-best: the best that each hospital can do alone is the mark to beat.")
    if part.seeds() < 5:
        said.append("Repeat with five seeds (11,22,33,44,55): finished runs are kept, verdicts get sharper.")
    if verdict == BETTER:
        said.append(f"Plan a federation with {label}; rehearse it between real sites first (abps site).")
    if verdict in (WORSE, EQUAL):
        said.append("Stay alone with this method, or try another one: accuracy gives no reason to share.")
    losing = hospitals.with_verdict(WORSE)
    if losing:
        said.append(f"Let {_some(losing)} work alone, or ask why they differ, before they take part.")
    if part.data.left_out:
        said.append("Look at the hospitals that were left out, and at the reasons.")
    return said or ["Look up your hospital above, and its partners."]
