"""The first screen: the answer, how sure it is, with whom, at what price, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from abps.evaluate.inference import Scope
from abps.evaluate.verdicts import RELEVANT, HospitalVerdict, LossAgreement, Verdict
from abps.report.analysis import REFERENCE_ONLY, SIMPLE, Comparison, MethodLine, Part
from abps.report.hospitals import HospitalStory, two_digits
from abps.report.study_tables import (
    agreement_words,
    gain_words,
    in_ten,
    loss_words,
    settle_words,
    spoken,
)
from abps.report.tables import NOTHING, number, signed, volume

#: How well-known methods are called for readers who do not know them.
PLAIN_NAMES = {
    "local-best": "alone, the best of its own",
    "local": "alone, the same network",
    SIMPLE: "federated regression",
    "fedavg": "averaging everybody",
    "random-k1": "random partners",
    "pooled-best": "all rows in one place (not allowed)",
    "centralized": "all rows in one place, same network (not allowed)",
}

#: How an interval is called where it is named first.
INTERVAL = "95\u00a0% interval "

#: Methods of the first table besides the page's, in this order.
FIRST_TABLE = ("local-best", "local", SIMPLE, "fedavg", None, "pooled-best")


@dataclass(frozen=True)
class Card:
    """A short text under a heading."""

    title: str
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class HospitalShare:
    """How many hospitals have a verdict; tone: the class of its colour."""

    count: int
    words: str
    tone: str


@dataclass(frozen=True)
class FirstRow:
    """A row of the first table."""

    name: str
    label: str
    to_alone: str
    level: str
    loss: str
    bytes: str
    lead: bool = False


@dataclass(frozen=True)
class FirstScreen:
    """Everything above the fold."""

    basis: str
    title: str
    lead: str
    more: tuple[str, ...]
    shares: tuple[HospitalShare, ...]
    cards: tuple[Card, ...]
    rows: tuple[FirstRow, ...]

    @property
    def sentences(self) -> list[str]:
        """The answer for a terminal."""
        return [self.title, self.lead, *self.more]


def first_screen(part: Part, hospitals: Sequence[HospitalStory], brief: bool = False) -> FirstScreen:
    """The first screen of one federation.  brief: of a later one on its page, without what is said above."""
    title, lead = _answer(part)
    cards = (_sure(part), _whom(part, hospitals), _price(part, brief), _next(part))
    return FirstScreen(
        basis(part),
        title,
        lead,
        tuple(sentence for sentence in (_simple(part), _look(part)) if sentence),
        _shares(part.primary),
        tuple(card for card in cards if card),
        _rows(part),
    )


def basis(part: Part) -> str:
    """On what the answer stands."""
    rows, events = part.scored
    repeats = "once" if part.repeats == 1 else f"{part.repeats} times"
    how = (
        f"every patient scored out of fold {repeats}"
        if part.folds
        else f"test rows of {part.repeats} {'split' if part.repeats == 1 else 'splits'} scored"
    )
    happened = f" with {events:,} events" if part.primary and part.primary.cells.others.any() else ""
    return f"{part.data.name} · {part.data.centers:,} hospitals · {rows:,} stays{happened} · {how}"


def _answer(part: Part) -> tuple[str, str]:
    """The answer as a title, and the numbers behind it."""
    if part.lead is None:
        return "No method in this study exchanged anything.", (
            "Compare with a method that does, such as abps-plus or fedavg."
        )
    found, alone, label = part.primary, part.find(part.alone), part.lead.result.label
    if found is None or alone is None:
        return "The gain is not known: no hospital trained alone in this study.", (
            f"{label} reaches a mean {part.measure} of {number(part.lead.result.mean)}. Add local-best."
        )
    levels = (
        f"{part.measure} {number(alone.mean)} alone, {number(part.lead.result.mean)} together ({label}) for "
        f"the average hospital: {gain_words(found.gain, INTERVAL)}."
    )
    if part.measure == "AUROC":  # what the number means
        together, before = (f"{100 * each.mean:.0f}" for each in (part.lead.result, alone))
        levels += (
            f" Of 100 pairs of a patient with the event and one without, {together} are ranked right, alone "
            f"{before}."
        )
    titles = {
        Verdict.BETTER: "Yes. Working together predicts better than the best model a hospital builds alone.",
        Verdict.WORSE: "No. Working together predicts worse than the best model a hospital builds alone.",
        Verdict.EQUAL: "It makes no difference that matters whether hospitals work together or alone.",
        Verdict.INCONCLUSIVE: "Inconclusive. These data do not yet show whether working together helps.",
        Verdict.NO_INTERVAL: "No answer yet: a single training run says nothing about chance.",
    }
    sentences = [levels]
    if found.verdict is Verdict.INCONCLUSIVE:
        sentences.append(settle_words(found))
        if found.agreement is not LossAgreement.UNCLEAR:
            sentences.append(loss_words(found))
    elif found.verdict is Verdict.NO_INTERVAL:
        sentences.append("Use --folds 5, or several seeds.")
    else:
        sentences.append(agreement_words(found))
    return titles[found.verdict], " ".join(sentences)


def computing_words(part: Part) -> str:
    """How long the repeats that would settle the question take; not on the page, which must not change."""
    found = part.primary
    if found is None or found.verdict is not Verdict.INCONCLUSIVE or found.settles.repeats is None:
        return ""
    more = max(found.settles.repeats - found.repeats, 1)
    seconds = more * sum(line.result.average(lambda run: run.seconds) for line in part.lines)
    return f"{more} more repeats take about {max(seconds / 60, 1):.0f} min of one core."


def _simple(part: Part) -> str:
    """Whether a plain federated regression would do."""
    found = part.compare(part.page, SIMPLE) if part.page else None
    if found is None:
        return ""
    by = gain_words(found.gain)
    if found.agreement is not LossAgreement.UNCLEAR and found.verdict is not Verdict.BETTER:
        saved = f"log-loss {signed(-abs(found.loss.estimate))}"
        if found.loss.estimate > 0:
            return (
                f"A plain federated regression ({SIMPLE}) ranks about as well, {by}, but the probabilities "
                f"of {part.page} are clearly better ({saved}): they are what a decision needs."
            )
        if found.verdict is not Verdict.WORSE:
            return (
                f"A plain federated regression ({SIMPLE}) ranks about as well as {part.page}, {by}, and its "
                f"probabilities are clearly better ({saved}): use it."
            )
    return {
        Verdict.BETTER: f"{part.page} beats a plain federated regression ({SIMPLE}): {by}.",
        Verdict.WORSE: f"A plain federated regression ({SIMPLE}) is better than {part.page}, {by}: use it.",
        Verdict.EQUAL: f"A plain federated regression ({SIMPLE}) is as good as {part.page}, {by}: it is "
        "the simpler choice.",
    }.get(
        found.verdict,
        f"A plain federated regression ({SIMPLE}) is not clearly different from {part.page}, {by}: take the "
        "simpler one unless you need more.",
    )


def _look(part: Part) -> str:
    if part.look < 2 or part.primary is None:
        return ""
    return (
        f"This is look number {part.look} at a study that grew: the verdict asks for p < "
        f"{part.primary.alpha:.4f} instead of 0.05."
    )


def _shares(found: Comparison | None) -> tuple[HospitalShare, ...]:
    """Hospitals by verdict, in order from gain to loss."""
    if found is None or found.hospitals is None:
        return ()
    words = {
        HospitalVerdict.GAINS: ("gain", "gain"),
        HospitalVerdict.PROBABLY_GAINS: ("probably gain", "maybe-gain"),
        HospitalVerdict.SAME: ("no difference that matters", "same"),
        HospitalVerdict.INCONCLUSIVE: ("inconclusive", "open"),
        HospitalVerdict.TOO_FEW: ("have fewer than 5 events", "few"),
        HospitalVerdict.PROBABLY_LOSES: ("probably lose", "maybe-loss"),
        HospitalVerdict.LOSES: ("lose", "loss"),
    }
    needed = [
        value - have
        for value, have, word in zip(found.events_needed, found.cells.events, found.hospital_verdicts)
        if word is HospitalVerdict.INCONCLUSIVE and value > have
    ]
    shown = []
    for verdict, (text, tone) in words.items():
        count = found.count(verdict)
        if verdict is HospitalVerdict.INCONCLUSIVE and needed:
            middle = two_digits(max(sorted(needed)[len(needed) // 2], 1))
            text += f" (about {middle:,} more events each would settle it)"
        if verdict is HospitalVerdict.TOO_FEW and count == 1:
            text = text.replace("have", "has")
        if count:
            shown.append(HospitalShare(count, text, tone))
    return tuple(shown)


def _sure(part: Part) -> Card | None:
    found = part.primary
    if found is None or found.hospitals is None or math.isnan(found.gain.half_width()):
        return None
    further = found.hospitals.further
    low, high = further.interval()
    sentences = [
        f"Holds for these hospitals and this amount of data ({found.gain.run_freedom + 1} training runs).",
    ]
    like = found.gain.half_width(scope=Scope.LIKE_THESE)
    if math.isfinite(like):
        low_like, high_like = found.gain.interval(scope=Scope.LIKE_THESE)
        sentences.append(f"Over hospitals like these: {signed(low_like)} to {signed(high_like)}.")
    sentences.append(
        f"One further hospital like these: {signed(float(low[0]))} to {signed(float(high[0]))} (it gains: "
        f"{in_ten(float(further.above(0.0)[0]))})."
    )
    sentences.append(f"For the average patient: {gain_words(found.by_patient)}.")
    losing, sure = found.expected_losing, found.count(HospitalVerdict.LOSES)
    clear = "clear for none" if not sure else f"clear for {sure}"
    how_many = "Hardly one" if losing < 0.5 else f"About {losing:.0f}"
    sentences.append(f"{how_many} of {found.gain.hospitals} may lose more than {RELEVANT:g}; {clear}.")
    return Card("How sure", tuple(sentences))


def _whom(part: Part, hospitals: Sequence[HospitalStory]) -> Card | None:
    if part.lead is None:
        return None
    grouped = [h for h in hospitals if any(math.isfinite(p.share) for p in h.partners)]
    if grouped:
        peers = sorted(len(h.partners) + h.more for h in grouped)[len(grouped) // 2]
        common = [h.common for h in grouped if math.isfinite(h.common)]
        rest = (
            f"; {100 * sum(common) / len(common):.0f} % of a model come from all together" if common else ""
        )
        return Card(
            "With whom",
            (
                f"{len(grouped)} of {len(hospitals)} hospitals have peers that resemble them (typically "
                f"{peers}), named in their panels with weights{rest}.",
            ),
        )
    to_random = part.lead.to_random
    if any(h.partners for h in hospitals):
        if to_random is not None and to_random.verdict is not Verdict.BETTER:
            how = "any partner will do: chosen partners are not clearly better than random ones"
            return Card("With whom", (f"As far as these data show, {how} ({spoken(to_random)}).",))
        return Card("With whom", ("Your partners stand in your hospital's panel below.",))
    return Card(
        "With whom",
        ("With everybody: one common model from all, with corrections of each hospital's own.",),
    )


def _price(part: Part, brief: bool) -> Card | None:
    if part.lead is None:
        return None
    result = part.lead.result
    rounds = result.average(lambda run: run.rounds)
    sent = f"{volume(result.megabytes)} per hospital, both directions, in {rounds:.0f} exchanges."
    people = (
        "The real price is people: an approval at every hospital (weeks to months), one agreed data extract, "
        "about a day of set-up per site, and one person who operates it."
    )
    return Card("Price", (sent,) if brief else (sent, people))


def _next(part: Part) -> Card | None:
    if part.lead is None:
        return Card("Next step", ("Compare with a method that exchanges models: abps-plus.",))
    found, method = part.primary, part.lead.result.method
    steps = []
    if found is None or part.alone != "local-best":
        steps.append("Add local-best: the best that each hospital can do alone is the mark to beat.")
    elif found.verdict is Verdict.BETTER:
        steps.append("Rehearse the federation between sites on one machine: `abps site rehearse`.")
        steps.append(f"Or take the models home, with their cards: `abps fit --method {method}`.")
    elif found.verdict in (Verdict.WORSE, Verdict.EQUAL):
        steps.append("Accuracy gives no reason to share: stay alone, or try another method.")
    elif found.verdict is Verdict.NO_INTERVAL:
        steps.append("Run the same command with `--folds 5`.")
    elif found.settles.repeats is not None:
        seeds = ",".join(str(11 * k) for k in range(1, found.settles.repeats + 1))
        steps.append(f"Repeat: the same command with `--seeds {seeds}`; finished runs are kept.")
    else:
        steps.append("Collect more events, or ask more hospitals to join; then run the same command again.")
    return Card("Next step", tuple(steps))


def _rows(part: Part) -> tuple[FirstRow, ...]:
    """Alone, the simplest federation, the page's method, and what pooling would give."""
    lines = {line.result.label: line for line in part.lines}
    wanted = [part.page if name is None else name for name in FIRST_TABLE]
    return tuple(
        _row(lines[name], name == part.page)
        for name in dict.fromkeys(wanted)
        if name is not None and name in lines
    )


def _row(line: MethodLine, lead: bool) -> FirstRow:
    r = line.result
    return FirstRow(
        PLAIN_NAMES.get(r.label, r.label),
        r.label if r.label in PLAIN_NAMES else "",
        spoken(line.to_alone),
        number(r.mean),
        number(r.mean_loss),
        bytes_of(line),
        lead,
    )


def bytes_of(line: MethodLine) -> str:
    """Bytes per hospital; nothing for what is no federation."""
    r = line.result
    return NOTHING if r.method in REFERENCE_ONLY or not r.sends else volume(r.megabytes)
