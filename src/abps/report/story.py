"""The first screen of a study: one sentence with size and certainty, three tiles, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from abps.report.hospitals import NO_VERDICT, Hospital, HospitalResult, Hospitals
from abps.report.statistics import BETTER, EQUAL, ONE_SEED, UNSURE, WORSE, Difference, Part
from abps.report.tables import money, number, signed, volume
from abps.report.words import heterogeneity, interval, listed

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
    if part.alone is None or lead.to_alone is None:
        return (
            f"{lead.result.label} reaches a mean {part.measure} of {number(lead.result.mean)}; nobody "
            "trained alone in this study, so the gain is not known."
        )
    alone = part.find(part.alone)
    assert alone is not None
    together = f"{number(lead.result.mean)} together with {lead.result.label}"
    levels = f"{part.measure} {number(alone.mean)} alone, {together}"
    told = f"{levels} ({interval(lead.to_alone)})"
    says = {
        BETTER: f"Working together helps: {told}.",
        WORSE: f"Working together does harm: {told}.",
        EQUAL: f"Working together changes nothing that matters: {told}, equal within {part.margin:g}.",
        UNSURE: f"Whether working together helps cannot be told{_corrected(part, lead.to_alone)}: {told}.",
        ONE_SEED: f"One seed gives no verdict: {levels}.",
    }
    return says.get(lead.to_alone.verdict, f"{levels}.")


def _corrected(part: Part, difference: Difference) -> str:
    """Why an interval that leaves zero out is no verdict: it is one of several comparisons."""
    if difference.low <= 0.0 <= difference.high:
        return ""
    compared = sum(line.to_alone is not None for line in part.lines)
    return f" after correction for {compared} comparisons"


def beside(part: Part, hospitals: Hospitals | None) -> list[str]:
    """For whom it is a bad idea, by name, also under FedAvg; who gains; whether the hospitals differ."""
    if hospitals is None:
        return []
    label = hospitals.lead.result.label
    told = [_losing(hospitals, label)]
    if label != "fedavg":
        told.append(_losing(hospitals, "fedavg"))
    gaining = hospitals.with_verdict(BETTER)
    if gaining:
        told.append(f"Surely better off with {label}: {_some(gaining)}.")
    worst = [w for w in dict.fromkeys((_worst(hospitals, label), _worst(hospitals, "fedavg"))) if w]
    if worst:
        told.append(f"Largest loss that was measured: {'; '.join(worst)}.")
    return [sentence for sentence in [*told, _resting(hospitals), heterogeneity(part)] if sentence]


def _losing(hospitals: Hospitals, label: str) -> str:
    """Who surely loses under a method, with both levels; nothing if nobody can be judged."""
    if all((s := h.under(label)) is None or s.verdict == NO_VERDICT for h in hospitals.all):
        return ""
    how = "Averaging everybody (fedavg)" if label == "fedavg" else f"Working together with {label}"
    losing = hospitals.with_verdict(WORSE, label)
    if not losing:
        return f"{how}: nobody is surely worse off than alone."
    names = [
        f"{h.name} ({number(h.alone)} alone, {number(s.auroc)} together{h.on_events})"
        for h, s in losing[:MOST_NAMES]
    ]
    more = f" and {len(losing) - MOST_NAMES} more" if len(losing) > MOST_NAMES else ""
    who = f"{', '.join(names)}{more}" if more else listed(names)
    return f"{how} is a bad idea for {who}: surely worse off than alone."


def _some(hospitals: Sequence[tuple[Hospital, HospitalResult]]) -> str:
    names = [f"{h.name} ({signed(s.gain)}{h.on_events})" for h, s in hospitals[:MOST_NAMES]]
    if len(hospitals) > MOST_NAMES:
        return f"{len(hospitals)} hospitals, most of all {listed(names)}"
    return listed(names)


def _worst(hospitals: Hospitals, label: str) -> str:
    """The hospital that fell most under a method, and whether that is more than chance."""
    found = [(s.measured, h.name, h, s) for h in hospitals.all if (s := h.under(label)) is not None]
    fallen = [entry for entry in found if math.isfinite(entry[0]) and entry[0] < 0.0]
    if not fallen:
        return ""
    loss, _, hospital, hospital_result = min(fallen, key=lambda entry: entry[:2])
    sure = {WORSE: "surely a loss", NO_VERDICT: "one seed cannot tell"}.get(
        hospital_result.verdict, "it may be chance"
    )
    return (
        f"{hospital.name} with {label}, {number(hospital.alone)} alone, "
        f"{number(hospital_result.auroc)} together ({signed(loss)}{hospital.on_events}, {sure})"
    )


def _resting(hospitals: Hospitals) -> str:
    """Who had no partner in most rounds."""
    most = [(sum(h.rested.values()), h) for h in hospitals.all]
    most = [(rested, h) for rested, h in most if h.rounds and rested > h.rounds / 2]
    if not most:
        return ""
    most.sort(key=lambda entry: (-entry[0], entry[1].name))
    names = [f"{h.name} ({rested} of {h.rounds} rounds)" for rested, h in most[:MOST_NAMES]]
    if len(most) > MOST_NAMES:
        names.append(f"{len(most) - MOST_NAMES} more")
    return f"Mostly without a partner under {hospitals.lead.result.label}: {listed(names)}."


def tiles(part: Part, hospitals: Hospitals | None) -> list[Tile]:
    """Price, hospitals left out, and what was noticed about the data."""
    found = []
    if hospitals is not None:
        sizes = [h.megabytes for h in hospitals.all]
        dollars = sum(h.dollars for h in hospitals.all) / len(hospitals.all)
        found.append(
            Tile(
                f"{volume(sum(sizes) / len(sizes))}, {money(dollars)}",
                f"sent per hospital in a run of {hospitals.lead.result.label}; at most {volume(max(sizes))}",
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
    notes = () if check is None else check.remarks
    found.append(
        Tile(
            f"{len(notes)} data warnings",
            "about the table" if check is not None else "the data are built in",
            notes,
        )
    )
    return found


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
    losing = [h for h, _ in hospitals.with_verdict(WORSE)]
    if losing:
        names = [h.name for h in losing[:MOST_NAMES]]
        more = [f"{len(losing) - MOST_NAMES} more"] if len(losing) > MOST_NAMES else []
        said.append(f"Let {listed(names + more)} work alone, or ask why they differ, before they take part.")
    if part.data.left_out:
        said.append("Look at the hospitals that were left out, and at the reasons.")
    if part.data.check is not None and verdict != WORSE:
        said.append(
            f"Take the models home, with their cards: abps fit --method {hospitals.lead.result.method}; "
            "--leave-centers-out tries them at hospitals that did not take part."
        )
    return said or ["Look up your hospital above, and its partners."]
