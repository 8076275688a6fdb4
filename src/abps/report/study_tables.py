"""Numbers and verdicts in plain sentences, and the tables of a study. No times in them: they must not change
when a study is repeated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter

from abps.core.matching import CAUSES
from abps.engine.result import Run
from abps.evaluate.inference import AverageGain
from abps.evaluate.verdicts import RELEVANT, Cause, HospitalVerdict, LossAgreement, Verdict
from abps.report.analysis import Comparison, Part
from abps.report.hospitals import HospitalStory
from abps.report.tables import NOTHING, Table, number, percent, plain, signed, volume

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


def gain_words(gain: AverageGain, name: str = "") -> str:
    """An estimate and its interval, perhaps with its name: ``+0.067 (95 % interval +0.050 to +0.083)``."""
    low, high = gain.interval()
    within = f" ({name}{signed(low)} to {signed(high)})" if math.isfinite(low) else ""
    return signed(gain.estimate) + within


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
        return (
            f"Log-loss agrees: its probabilities are {'better' if found.gain.estimate > 0 else 'worse'}, too."
        )
    if found.agreement is LossAgreement.UNCLEAR:
        return f"Log-loss shows no clear difference ({signed(-found.loss.estimate)})."
    if found.gain.estimate > 0:
        return (
            f"It ranks patients better, but its probabilities are worse (log-loss "
            f"{signed(-found.loss.estimate)}): recalibrate before use."
        )
    loss = signed(-found.loss.estimate)
    return f"It ranks patients worse, but its probabilities are better (log-loss {loss})."


def loss_words(found: Comparison) -> str:
    """What the loss shows where the ranking leaves it open."""
    which = "better" if found.loss.estimate > 0 else "worse"
    return f"Its probabilities are clearly {which} (log-loss {signed(-found.loss.estimate)})."


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


# ---------------------------------------------------------------- tables


def spoken(found: Comparison | None) -> str:
    """A difference with its interval and verdict: ``+0.012 (+0.003 to +0.021) better``."""
    if found is None or not math.isfinite(found.gain.estimate):
        return NOTHING
    return f"{gain_words(found.gain)} {verdict_words(found)}".strip()


def brief(found: Comparison | None) -> str:
    """A difference and its verdict, for narrow places; ``?`` where it is inconclusive."""
    if found is None or not math.isfinite(found.gain.estimate):
        return NOTHING
    short = {Verdict.INCONCLUSIVE: "?", Verdict.NO_INTERVAL: "?", Verdict.REFERENCE: ""}
    return f"{signed(found.gain.estimate)} {short.get(found.verdict, found.verdict.value)}".strip()


def losing(found: Comparison | None) -> str:
    """The expected number of hospitals that lose more than 0.02, and how many surely lose."""
    if found is None or not math.isfinite(found.expected_losing):
        return NOTHING
    sure = found.count(HospitalVerdict.LOSES)
    return f"{found.expected_losing:.0f} of {found.gain.hospitals}" + (f" ({sure} clearly)" if sure else "")


def headline(part: Part) -> Table:
    """What every method gains over training alone, its accuracy, and its bytes."""
    rows = tuple(
        (
            line.result.label,
            spoken(line.to_alone),
            number(line.result.mean),
            number(line.result.mean_loss),
            volume(line.result.megabytes),
            spoken(line.to_fedavg),
            spoken(line.to_random),
            losing(line.to_alone),
            str(len(line.result.seeds)),
        )
        for line in part.lines
    )
    alone = part.alone or "training alone"
    return Table(
        "headline",
        f"Accuracy and bytes on {part.data.name} ({part.data.centers} hospitals).",
        (
            "method", f"to {alone}", part.measure, "log-loss", "bytes per hospital", "to FedAvg",
            "to random partners", "hospitals losing", "repeats",
        ),
        rows,
        notes(part),
    )  # fmt: skip


def notes(part: Part) -> tuple[str, ...]:
    """How the headline is to be read."""
    rows, events = part.scored
    how = f"out of {part.folds} folds" if part.folds else "on the test rows of one split per seed"
    look = (
        f" This is look number {part.look} at a growing study: a difference must reach p < "
        f"{next(iter(part.comparisons.values())).alpha:.4f}."
        if part.look > 1 and part.comparisons
        else ""
    )
    return (
        f"{part.measure}: mean over hospitals, {rows:,} rows with {events:,} events scored {how}; only rows "
        "that one model scored are compared with each other.",
        "Differences: paired by row, with a 95 % interval for other patients of these hospitals and other "
        "training runs. The page's method against training alone is the primary comparison; other methods "
        "against training alone, against FedAvg and against random partners are corrected as one family each "
        f"(Holm). Equal: the 90 % interval lies within {part.margin:g}. References have no verdict.{look}",
        "Bytes: everything that one hospital sends and receives in a run.",
        f"Hospitals losing: expected number that lose more than {RELEVANT:g} against training alone; "
        "clearly: with 95 % probability.",
        "To random partners: against random-k3 for methods with more than one partner, else random-k1.",
    )


def numbers(part: Part) -> Table:
    """The headline with every number in a column of its own, for programs."""
    score = "auroc" if part.measure == "AUROC" else "score"
    columns = [
        "method", f"{score}_mean", f"{score}_sd", "log_loss_mean", f"{score}_at_best_validation",
        "auprc_mean", "brier_mean", "bytes_per_center", "bytes_all_vs_fedavg", "bytes_vs_fedavg",
        "edge_bytes", "directed_bytes", "control_bytes", "cost_usd", "partners_mean", "rest_share",
        *(f"rest_{cause.key}" for cause in CAUSES), "rounds_mean",
    ]  # fmt: skip
    for other in ("alone", "fedavg", "random"):
        ends = ("", "_low", "_high", "_p", "_p_holm", "_verdict", "_log_loss")
        columns += [f"to_{other}{what}" for what in ends]
    columns += ["random_control", "alone", "expected_losing", "clearly_losing", "compared_centers", "repeats"]
    rows = []
    for line in part.lines:
        r = line.result
        values: list[float | str] = [
            r.label, r.mean, r.deviation, r.mean_loss, r.average(lambda run: run.main.at_best_validation),
            r.average(lambda run: run.auprc.mean), r.average(lambda run: run.brier.mean),
            1e6 * r.megabytes, r.all_vs_fedavg, r.average(lambda run: run.bytes.vs_fedavg),
            r.average(lambda run: run.bytes.edge), r.average(lambda run: run.bytes.directed),
            r.average(lambda run: run.bytes.control), r.average(lambda run: run.cost_usd),
            r.average(lambda run: run.partners_mean), r.rest,
            *(r.average(attrgetter(f"rest.{cause.key}")) for cause in CAUSES),
            r.average(lambda run: run.rounds),
        ]  # fmt: skip
        for found in (line.to_alone, line.to_fedavg, line.to_random):
            values += [""] * 7 if found is None else _comparison(found)
        values += [line.random, part.alone or ""]
        found = line.to_alone
        values += (
            ["", "", ""]
            if found is None
            else [found.expected_losing, str(found.count(HospitalVerdict.LOSES)), str(found.gain.hospitals)]
        )
        values.append(str(len(r.seeds)))
        rows.append(tuple(v if isinstance(v, str) else plain(v) for v in values))
    return Table("headline", "", tuple(columns), tuple(rows))


def _comparison(found: Comparison) -> list[float | str]:
    low, high = found.interval
    return [
        found.gain.estimate, low, high, found.p, found.corrected, found.verdict.value, found.loss.estimate
    ]  # fmt: skip


def runs(part: Part) -> Table:
    """One line per run."""
    score = "auroc" if part.measure == "AUROC" else "score"
    columns = (
        "method", "seed", "rounds", score, "scored_events", f"{score}_at_best_validation", "auprc", "brier",
        "all_vs_fedavg", "rest",
    )  # fmt: skip
    rows = []
    for line in part.lines:
        for run in line.result.runs:
            values = [
                run.main.mean, events_of(run), run.main.at_best_validation, run.auprc.mean,
                run.brier.mean, run.bytes.all_vs_fedavg, run.rest.share,
            ]  # fmt: skip
            rows.append((line.result.label, str(run.seed), str(run.rounds), *map(plain, values)))
    return Table("runs", "Every run.", columns, tuple(rows))


def events_of(run: Run) -> float:
    """The events that a run's scores stand on; NaN where it does not say it."""
    return float(sum(run.scored.per_center_events.values())) if run.scored.per_center_events else math.nan


def centers(part: Part) -> Table:
    """One line per center and method."""
    score = "auroc" if part.measure == "AUROC" else "score"
    rows = []
    for line in part.lines:
        r = line.result
        events = r.runs[0].scored.per_center_events
        for c, name in enumerate(part.centers):
            seen = (plain(r.level[c]), plain(r.loss[c]), plain(events.get(name, math.nan)))
            rows.append((r.label, name, *seen, str(len(r.seeds))))
    heads = ("method", "center", score, "log_loss", "scored_events", "repeats")
    return Table("centers", "Every center.", heads, tuple(rows))


def hospitals(part: Part, found: Sequence[HospitalStory]) -> Table:
    """One line per hospital under the method that the page is about."""
    rows = []
    for h in found:
        e = h.evidence
        values = (
            h.alone, h.together, e.measured, e.own_low, e.own_high, e.estimate, e.low, e.high, e.gains,
            e.gains_clearly, e.loses_clearly,
        )  # fmt: skip
        more = (h.rows, h.events, e.needed, h.megabytes, h.expected, h.slope)
        rows.append((h.name, *map(plain, values), e.verdict.value, *map(plain, more)))
    heads = (
        "hospital", "alone", "together", "own_gain", "own_low", "own_high", "gain", "gain_low", "gain_high",
        "chance_of_gain", "chance_above_0.02", "chance_below_-0.02", "verdict", "rows", "events",
        "events_needed", "megabytes", "expected_events", "calibration_slope",
    )  # fmt: skip
    return Table("hospitals", f"{part.alone} and {part.page}.", heads, tuple(rows))
