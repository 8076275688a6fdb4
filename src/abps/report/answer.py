"""The answer in words, for page and terminal; what the page says besides stands in its template."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from abps.evaluate.performance import share
from abps.evaluate.verdicts import HospitalVerdict, LossAgreement, Verdict
from abps.report.analysis import REFERENCE_ONLY, SIMPLE, Comparison, MethodLine, Part, mean_of
from abps.report.hospitals import HospitalStory, two_digits
from abps.report.study_tables import gain_words
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

#: The answer by verdict.
TITLES = {
    Verdict.BETTER: "Yes. Working together predicts better than the best model a hospital builds alone.",
    Verdict.WORSE: "No. Working together predicts worse than the best model a hospital builds alone.",
    Verdict.EQUAL: "It makes no difference that matters whether hospitals work together or alone.",
    Verdict.INCONCLUSIVE: "Inconclusive. These data do not yet show whether working together helps.",
    Verdict.NO_INTERVAL: "No answer yet: a single training run says nothing about chance.",
}

#: Hospitals by verdict, from gain to loss: what is said of them, and the class of their colour.
SHARES = {
    HospitalVerdict.GAINS: ("gain", "gain"),
    HospitalVerdict.PROBABLY_GAINS: ("probably gain", "maybe-gain"),
    HospitalVerdict.SAME: ("no difference that matters", "same"),
    HospitalVerdict.INCONCLUSIVE: ("inconclusive", "open"),
    HospitalVerdict.TOO_FEW: ("with fewer than 5 events", "few"),
    HospitalVerdict.PROBABLY_LOSES: ("probably lose", "maybe-loss"),
    HospitalVerdict.LOSES: ("lose", "loss"),
}


@dataclass(frozen=True)
class HospitalShare:
    """How many hospitals have a verdict; tone: the class of its colour."""

    count: int
    words: str
    tone: str


@dataclass(frozen=True)
class Partnership:
    """With whom hospitals learned. grouped: how many have peers with weights. peers: typically so many.
    common: mean share of a model that comes from all together; None where no method states it."""

    grouped: int = 0
    peers: int = 0
    common: float | None = None
    pairs: bool = False


@dataclass(frozen=True)
class FirstScreen:
    """The answer.  basis: what it stands on.  lines: of the first table, the page's method among them."""

    basis: str
    title: str
    lead: str
    more: tuple[str, ...]
    shares: tuple[HospitalShare, ...]
    partners: Partnership
    lines: tuple[MethodLine, ...]

    @property
    def sentences(self) -> list[str]:
        return [self.title, self.lead, *self.more]


def first_screen(part: Part, hospitals: Sequence[HospitalStory]) -> FirstScreen:
    title, lead = _answer(part)
    wanted = dict.fromkeys(("local-best", "local", SIMPLE, "fedavg", part.page, "pooled-best"))
    lines = (part.find(label) for label in wanted)
    return FirstScreen(
        _basis(part),
        title,
        lead,
        tuple(filter(None, (_simple(part), _look(part)))),
        _shares(part.primary),
        _partners(hospitals),
        tuple(line for line in lines if line is not None),
    )


def _basis(part: Part) -> str:
    rows, events = part.scored
    times = "once" if part.repeats == 1 else f"{part.repeats} times"
    how = f"every patient scored out of fold {times}"
    if not part.folds:
        how = f"test rows of {part.repeats} {'split' if part.repeats == 1 else 'splits'} scored"
    happened = f" with {events:,} events" if part.primary and part.primary.cells.others.any() else ""
    return f"{part.data.name} · {part.data.centers:,} hospitals · {rows:,} stays{happened} · {how}"


def _answer(part: Part) -> tuple[str, str]:
    found, alone, lead = part.primary, part.find(part.alone), part.lead
    if lead is None:
        return "No method in this study exchanged anything.", (
            "Compare with a method that does, such as abps-plus or fedavg."
        )
    if found is None or alone is None:
        return "The gain is not known: no hospital trained alone in this study.", (
            f"{lead.label} reaches a mean {part.measure} of {number(lead.mean)}. Add local-best."
        )
    sentences = [
        f"{part.measure} {number(alone.mean)} alone, {number(lead.mean)} together ({lead.label}) for the "
        f"average hospital: {gain_words(found.gain, INTERVAL)}."
    ]
    if part.measure == "AUROC":  # what the number means
        sentences.append(
            f"Of 100 pairs of a patient with the event and one without, {100 * lead.mean:.0f} are ranked "
            f"right, alone {100 * alone.mean:.0f}."
        )
    if found.verdict is Verdict.INCONCLUSIVE:
        sentences.append(_settle(found))
    no_interval = found.verdict is Verdict.NO_INTERVAL
    sentences.append("Use --folds 5, or several seeds." if no_interval else _log_loss(found))
    return TITLES[found.verdict], " ".join(filter(None, sentences))


def _settle(found: Comparison) -> str:
    """Why a comparison is inconclusive, and what would settle it."""
    needed = found.settles
    if needed.repeats is not None:
        return (
            f"Training runs differ too much among themselves. About {needed.repeats} repeats in all would "
            f"settle it ({max(needed.repeats - found.repeats, 1)} more)."
        )
    have = int(found.cells.events.sum())
    return (
        f"There are too few events for a difference of this size: {have:,} are here, about "
        f"{two_digits(needed.events or have):,} would settle it."
    )


def _log_loss(found: Comparison) -> str:
    loss, which = signed(-found.loss.estimate), "better" if found.loss.estimate > 0 else "worse"
    if found.agreement is LossAgreement.UNCLEAR:
        open_too = found.verdict is Verdict.INCONCLUSIVE
        return "" if open_too else f"Log-loss shows no clear difference ({loss})."
    if found.verdict in (Verdict.INCONCLUSIVE, Verdict.EQUAL):
        return f"Its probabilities are clearly {which} (log-loss {loss})."
    if found.agreement is LossAgreement.AGREES:
        return f"Log-loss agrees: its probabilities are {which}, too."
    ranks, then = ("worse", "") if which == "better" else ("better", ": recalibrate before use")
    return f"It ranks patients {ranks}, but its probabilities are {which} (log-loss {loss}){then}."


def computing_words(part: Part) -> str:
    """How long the repeats that would settle the question take; not on the page, which must not change."""
    found = part.primary
    if found is None or found.verdict is not Verdict.INCONCLUSIVE or found.settles.repeats is None:
        return ""
    more = max(found.settles.repeats - found.repeats, 1)
    seconds = more * sum(line.average(lambda run: run.seconds) for line in part.lines)
    return f"{more} more repeats take about {max(seconds / 60, 1):.0f} min of one core."


def _simple(part: Part) -> str:
    found = part.compare(part.page, SIMPLE) if part.page else None
    if found is None:
        return ""
    plain, by = f"plain federated regression ({SIMPLE})", gain_words(found.gain)
    saved = f"log-loss {signed(-abs(found.loss.estimate))}"
    if found.verdict is Verdict.BETTER:
        return f"{part.page} beats a {plain}: {by}."
    if found.agreement is not LossAgreement.UNCLEAR and found.loss.estimate > 0:
        ranks = "ranks better" if found.verdict is Verdict.WORSE else "ranks about as well"
        better = f"the probabilities of {part.page} are clearly better ({saved})"
        return f"A {plain} {ranks}, {by}, but {better}: they are what a decision needs."
    if found.verdict is Verdict.WORSE:
        said = f"is better than {part.page}, {by}: use it"
    elif found.agreement is not LossAgreement.UNCLEAR:
        better = f"its probabilities are clearly better ({saved})"
        said = f"ranks about as well as {part.page}, {by}, and {better}: use it"
    elif found.verdict is Verdict.EQUAL:
        said = f"is as good as {part.page}, {by}: it is the simpler choice"
    else:
        said = f"is not clearly different from {part.page}, {by}: take the simpler one unless you need more"
    return f"A {plain} {said}."


def _look(part: Part) -> str:
    if part.look < 2 or part.primary is None:
        return ""
    return (
        f"This is look number {part.look} at a study that grew: the verdict asks for p < "
        f"{part.primary.alpha:.4f} instead of 0.05."
    )


def _shares(found: Comparison | None) -> tuple[HospitalShare, ...]:
    if found is None or found.hospitals is None:
        return ()
    shown = []
    for verdict, (words, tone) in SHARES.items():
        if verdict is HospitalVerdict.INCONCLUSIVE:
            open_ones = zip(found.evidence, found.cells.events)
            short = [e.needed - have for e, have in open_ones if e.verdict is verdict and e.needed > have]
            if short:
                more = two_digits(max(float(median(short)), 1.0))
                words += f" (about {more:,} more events each would settle it)"
        if found.count(verdict):
            shown.append(HospitalShare(found.count(verdict), words, tone))
    return tuple(shown)


def _partners(hospitals: Sequence[HospitalStory]) -> Partnership:
    grouped = [h for h in hospitals if any(p.share == p.share for p in h.partners)]
    if not grouped:
        return Partnership(pairs=any(h.partners for h in hospitals))
    common = [h.common for h in grouped if h.common == h.common]
    peers = sorted(len(h.partners) + h.more for h in grouped)[len(grouped) // 2]
    return Partnership(len(grouped), peers, sum(common) / len(common) if common else None)


def expectation(part: Part) -> str:
    """What the page's method expected of collaboration, beside what held-out rows say."""
    lead, alone = part.lead, part.find(part.alone)
    said = mean_of(() if lead is None else (run.partners.expected_better for run in lead.runs))
    if lead is None or alone is None or not math.isfinite(said):
        return ""
    saved = alone.loss - lead.loss
    known = saved[np.isfinite(saved)]
    happened = share(int((known > 0).sum()), len(known))
    return (
        f"{lead.label} expected {said:.0%} of hospitals to have a smaller log-loss on 100 further patients "
        f"than with a model of their own rows; here {happened.value:.0%} of {len(known)} have a smaller one "
        f"than with {alone.label} ({happened.low:.0%} to {happened.high:.0%})."
    )


def bytes_of(line: MethodLine) -> str:
    """Bytes per hospital; nothing for what is no federation."""
    return NOTHING if line.method in REFERENCE_ONLY or not line.sends else volume(line.megabytes)
