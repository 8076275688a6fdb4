"""Verdicts in short words, and the tables of a study. No times in them: they must not change when a study is
repeated."""

import math
from collections.abc import Mapping, Sequence
from operator import attrgetter

from abps.core.matching import CAUSES
from abps.evaluate.inference import AverageGain
from abps.evaluate.verdicts import RELEVANT, HospitalVerdict, Verdict
from abps.report.analysis import Comparison, Part
from abps.report.hospitals import HospitalStory
from abps.report.tables import NOTHING, Table, number, plain, signed, volume


def verdict_words(found: Comparison) -> str:
    """The verdict; equality with its margin."""
    equal = f"equal within {found.margin:g}"
    special = {Verdict.EQUAL: equal, Verdict.NO_INTERVAL: "one run: no verdict", Verdict.REFERENCE: ""}
    return special.get(found.verdict, found.verdict.value)


def gain_words(gain: AverageGain, name: str = "") -> str:
    """An estimate and its interval, perhaps with its name: ``+0.067 (95 % interval +0.050 to +0.083)``."""
    low, high = gain.interval()
    within = f" ({name}{signed(low)} to {signed(high)})" if math.isfinite(low) else ""
    return signed(gain.estimate) + within


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


def headline(part: Part) -> Table:
    rows = tuple(
        (
            line.label,
            spoken(line.to_alone),
            number(line.mean),
            number(line.mean_loss),
            volume(line.megabytes),
            spoken(line.to_fedavg),
            spoken(line.to_random),
            _losing(line.to_alone),
            str(len(line.runs)),
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


def _losing(found: Comparison | None) -> str:
    if found is None or not math.isfinite(found.expected_losing):
        return NOTHING
    sure = found.count(HospitalVerdict.LOSES)
    return f"{found.expected_losing:.0f} of {found.gain.hospitals}" + (f" ({sure} clearly)" if sure else "")


def notes(part: Part) -> tuple[str, ...]:
    rows, events = part.scored
    how = f"out of {part.folds} folds" if part.folds else "on the test rows of one split per seed"
    look = ""
    if part.look > 1 and part.comparisons:
        level = f"{next(iter(part.comparisons.values())).alpha:.4f}"
        look = f" This is look number {part.look} at a growing study: a difference must reach p < {level}."
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


def _sheet(name: str, rows: Sequence[Mapping[str, float | str]]) -> Table:
    cells = (tuple(v if isinstance(v, str) else plain(float(v)) for v in row.values()) for row in rows)
    return Table(name, "", tuple(rows[0]) if rows else (), tuple(cells))


def _score(part: Part) -> str:
    return "auroc" if part.measure == "AUROC" else "score"


def numbers(part: Part) -> Table:
    """The headline with every number in a column of its own, for programs."""
    score, rows = _score(part), []
    for line in part.lines:
        mean, losing = line.average, line.to_alone
        row: dict[str, float | str] = {
            "method": line.label,
            f"{score}_mean": line.mean,
            f"{score}_sd": line.deviation,
            "log_loss_mean": line.mean_loss,
            f"{score}_at_best_validation": mean(attrgetter("main.at_best_validation")),
            "auprc_mean": mean(attrgetter("auprc.mean")),
            "brier_mean": mean(attrgetter("brier.mean")),
            "bytes_per_center": 1e6 * line.megabytes,
            "bytes_all_vs_fedavg": line.all_vs_fedavg,
            "bytes_vs_fedavg": mean(attrgetter("bytes.vs_fedavg")),
            **{
                f"{kind}_bytes": mean(attrgetter(f"bytes.{kind}")) for kind in ("edge", "directed", "control")
            },
            "cost_usd": mean(attrgetter("cost_usd")),
            "partners_mean": mean(attrgetter("partners_mean")),
            "rest_share": line.rest,
            **{f"rest_{cause.key}": mean(attrgetter(f"rest.{cause.key}")) for cause in CAUSES},
            "rounds_mean": mean(attrgetter("rounds")),
        }
        for other in ("alone", "fedavg", "random"):
            row |= _comparison(f"to_{other}", getattr(line, f"to_{other}"))
        rows.append(
            row
            | {
                "random_control": line.random,
                "alone": part.alone or "",
                "expected_losing": math.nan if losing is None else losing.expected_losing,
                "clearly_losing": math.nan if losing is None else losing.count(HospitalVerdict.LOSES),
                "compared_centers": math.nan if losing is None else losing.gain.hospitals,
                "repeats": len(line.runs),
            }
        )
    return _sheet("headline", rows)


def _comparison(name: str, found: Comparison | None) -> dict[str, float | str]:
    ends = ("", "_low", "_high", "_p", "_p_holm", "_verdict", "_log_loss")
    if found is None:
        return {f"{name}{end}": "" for end in ends}
    values: list[float | str] = [found.gain.estimate, *found.interval, found.p, found.corrected]
    values += [found.verdict.value, found.loss.estimate]
    return {f"{name}{end}": value for end, value in zip(ends, values)}


def runs(part: Part) -> Table:
    score = _score(part)
    rows = [
        {
            "method": line.label,
            "seed": run.seed,
            "rounds": run.rounds,
            score: run.main.mean,
            "scored_events": sum(run.scored.per_center_events.values()) or math.nan,
            f"{score}_at_best_validation": run.main.at_best_validation,
            "auprc": run.auprc.mean,
            "brier": run.brier.mean,
            "all_vs_fedavg": run.bytes.all_vs_fedavg,
            "rest": run.rest.share,
        }
        for line in part.lines
        for run in line.runs
    ]
    return _sheet("runs", rows)


def centers(part: Part) -> Table:
    rows = [
        {
            "method": line.label,
            "center": name,
            _score(part): line.level[c],
            "log_loss": line.loss[c],
            "scored_events": line.runs[0].scored.per_center_events.get(name, math.nan),
            "repeats": len(line.runs),
        }
        for line in part.lines
        for c, name in enumerate(part.centers)
    ]
    return _sheet("centers", rows)


def hospitals(found: Sequence[HospitalStory]) -> Table:
    rows: list[dict[str, float | str]] = []
    for h in found:
        e, c = h.evidence, h.calibration
        rows.append(
            {
                "hospital": h.name,
                "alone": h.alone,
                "together": h.together,
                "own_gain": e.own.value,
                "own_low": e.own.low,
                "own_high": e.own.high,
                "gain": e.gain.value,
                "gain_low": e.gain.low,
                "gain_high": e.gain.high,
                "chance_of_gain": e.better,
                "chance_above_0.02": e.clearly_better,
                "chance_below_-0.02": e.clearly_worse,
                "verdict": e.verdict.value,
                "rows": h.rows,
                "events": h.events,
                "events_needed": e.needed,
                "expected_events": math.nan if c is None else c.expected,
                "calibration_slope": math.nan if c is None else c.slope.value,
            }
        )
    return _sheet("hospitals", rows)
