"""Numbers and verdicts in plain sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from abps.evaluate.inference import AverageGain, Scope
from abps.evaluate.verdicts import Cause, LossAgreement, Verdict
from abps.report.analysis import Comparison, Part
from abps.report.tables import percent, signed

#: How a verdict on a pair is written.
VERDICTS = {
    Verdict.BETTER: "better",
    Verdict.WORSE: "worse",
    Verdict.INCONCLUSIVE: "inconclusive",
    Verdict.NO_INTERVAL: "one run: no verdict",
    Verdict.REFERENCE: "",
}


def verdict_words(found: Comparison) -> str:
    """The verdict; equality with its margin."""
    if found.verdict is Verdict.EQUAL:
        return f"equal within {found.margin:g}"
    return VERDICTS[found.verdict]


def gain_words(gain: AverageGain, scope: Scope = Scope.THESE) -> str:
    """An estimate and its interval: ``+0.067 (95 % interval +0.050 to +0.083)``."""
    low, high = gain.interval(scope=scope)
    within = f" (95\u00a0% interval {signed(low)} to {signed(high)})" if math.isfinite(low) else ""
    return f"{signed(gain.estimate)}{within}"


def short_words(gain: AverageGain) -> str:
    """An estimate and its 95 % interval: ``+0.067 (+0.050 to +0.083)``."""
    low, high = gain.interval()
    return signed(gain.estimate) + (f" ({signed(low)} to {signed(high)})" if math.isfinite(low) else "")


def listed(names: Sequence[str], most: int = 6) -> str:
    """Names in a row, the last with 'and'; what is more than ``most`` is counted."""
    if len(names) > most:
        names = [*names[: most - 1], f"{len(names) - most + 1} more"]
    return "".join(names) if len(names) < 2 else f"{', '.join(names[:-1])} and {names[-1]}"


def in_ten(chance: float) -> str:
    """A probability as a natural frequency.

    >>> in_ten(0.93), in_ten(0.998), in_ten(0.02)
    ('9 in 10', 'more than 99 in 100', '2 in 100')
    """
    if chance > 0.99:
        return "more than 99 in 100"
    if chance < 0.01:
        return "less than 1 in 100"
    if chance > 0.95 or chance < 0.1:
        return f"{100 * chance:.0f} in 100"
    return f"{10 * chance:.0f} in 10"


def agreement_words(found: Comparison) -> str:
    """What the loss adds to the ranking."""
    if found.agreement is LossAgreement.AGREES:
        return "Log-loss agrees."
    if found.agreement is LossAgreement.UNCLEAR:
        return f"Log-loss shows no clear difference ({signed(found.loss.estimate)})."
    if found.gain.estimate > 0:
        return (
            f"It ranks patients better, but its probabilities are worse (log-loss "
            f"{signed(-found.loss.estimate)}): recalibrate before use."
        )
    loss = signed(-found.loss.estimate)
    return f"It ranks patients worse, but its probabilities are better (log-loss {loss})."


def settle_words(found: Comparison) -> str:
    """Why a comparison is inconclusive, and what would settle it."""
    needed = found.settles
    if needed.cause is Cause.RUNS and needed.repeats is not None:
        more = max(needed.repeats - found.repeats, 1)
        return (
            f"Training runs differ too much among themselves. About {needed.repeats} repeats in all would "
            f"settle it ({more} more)."
        )
    have = int(found.cells.events.sum())
    return (
        f"There are too few events for a difference of this size: {have:,} are here, about "
        f"{needed.events or have:,} would settle it."
    )


# ---------------------------------------------------------------- sentences for methodologists


def findings(part: Part) -> list[str]:
    """Who rests, and what one split or one repeat means."""
    return [sentence for sentence in (_rest(part), _design(part)) if sentence]


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
    why = ", ".join(f"{percent(value, 1)} {cause}" for cause, value in causes.items() if value >= 0.005)
    return (
        f"Hospitals rested most with {most.label}: in {percent(most.rest, 1)} of their rounds"
        f"{f' ({why})' if why else ''}."
    )


def _design(part: Part) -> str:
    if part.folds:
        return ""
    return (
        "Rows were scored on the test rows of one split per seed (70 % training, 15 % validation, 15 % test) "
        "with the models of the last round, as the paper does; other comparisons score every patient out of "
        "five folds."
    )
