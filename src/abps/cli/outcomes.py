"""What comes of a run or a study, on the terminal and for machines."""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from abps.cli.options import command_line, rows_table, terminal
from abps.core.errors import RequestError
from abps.engine.result import Run
from abps.evaluate.verdicts import HospitalVerdict
from abps.report.analysis import Comparison
from abps.report.answer import bytes_of, computing_words
from abps.report.build import Report, Section
from abps.report.study_tables import brief, spoken
from abps.report.tables import NOTHING, number
from abps.study.compare import load_study
from abps.study.execute import Executor, StudyOutcome, run_study
from abps.study.plan import Plan, Request

WIDTH = 80  # columns of a table where there is no terminal


def finish(
    request: Request,
    out: Path,
    executor: Executor,
    as_json: bool,
    before: Callable[[Plan], None] | None = None,
) -> None:
    """Conduct a study, write its report, and say what came out; failed runs end it with their exit code.
    before: called with the plan, before anything is computed."""
    try:
        outcome = run_study(request, out, executor, before=before)
    except KeyboardInterrupt:
        terminal(stderr=True).print("stopped; the same command goes on from here")
        raise
    if outcome.failed and len(outcome.failed) == outcome.planned:
        run, error = outcome.failed[0]
        first = f"the first ({run.label}, seed {run.seed}) with: {error}"
        raise RequestError(f"all {outcome.planned} runs failed, {first}")
    if outcome.missing and len(outcome.missing) + len(outcome.failed) == outcome.planned:
        print("no run is finished yet; the same command goes on from here", file=sys.stderr)
        raise typer.Exit(1)
    report = load_study(out).report()
    if as_json:
        print(json.dumps(summary(report, outcome)))
    else:
        show(report)
        lead = report.sections[0].part.lead
        source = request.sources[0]
        if source.roles is not None and lead is not None and not request.sources[1:]:
            flags = {"data": source.data, **asdict(source.roles), "min-stays": source.min_stays}
            print(f"next: {command_line(f'abps fit --method {lead.method}', flags | {'out': 'models'})}")
    if outcome.failed or outcome.missing:
        raise typer.Exit(1)


def summary(report: Report, outcome: StudyOutcome | None = None) -> dict[str, Any]:
    content: dict[str, Any] = {"report": str(report.page), "absent": list(report.absent), "data": []}
    if report.tuned:
        content["tuned"] = list(report.tuned)
    if outcome is not None:
        failed = [{"method": run.label, "seed": run.seed, "error": error} for run, error in outcome.failed]
        counts = {name: getattr(outcome, name) for name in ("planned", "reused", "computed")}
        content["runs"] = {**counts, "failed": failed, "missing": len(outcome.missing)}
    content["data"] = [_section(section) for section in report.sections]
    return content


def _section(section: Section) -> dict[str, Any]:
    part, lines = section.part, []
    binary = part.measure == "AUROC"
    for line in part.lines:
        entry: dict[str, Any] = {
            "method": line.label,
            "auroc": line.mean if binary else None,
            **({} if binary else {"score": line.mean, "measure": part.measure}),
            "log_loss": line.mean_loss,
            "sd": line.deviation if len(line.runs) > 1 else None,
            "vs_fedavg": line.average(lambda run: run.bytes.vs_fedavg),
            "all_vs_fedavg": line.all_vs_fedavg,
            "bytes_per_center": round(1e6 * line.megabytes),
            "rest": line.rest,
            "repeats": len(line.runs),
        }
        for name, found in (("alone", line.to_alone), ("fedavg", line.to_fedavg), ("random", line.to_random)):
            if found is not None:
                entry[f"to_{name}"] = _comparison(found)
        if line.to_alone is not None and line.to_alone.hospitals is not None:
            entry["losing_expected"] = line.to_alone.expected_losing
            entry["losing_clearly"] = line.to_alone.count(HospitalVerdict.LOSES)
            entry["compared_centers"] = line.to_alone.gain.hospitals
        lines.append(entry)
    answered = [h for h in section.hospitals if h.evidence.verdict.answers]
    return {
        "name": part.data.name,
        "folds": part.folds,
        "look": part.look,
        "methods": lines,
        "verdict": None if part.primary is None else part.primary.verdict.value,
        "hospitals": {"all": len(section.hospitals), "answered": len(answered)},
        "summary": section.first.sentences,
    }


def _comparison(found: Comparison) -> dict[str, Any]:
    low, high = found.interval
    values = {"estimate": found.gain.estimate, "low": low, "high": high}
    values |= {"p": found.p, "p_holm": found.corrected, "log_loss": found.loss.estimate}
    known = {name: value if math.isfinite(value) else None for name, value in values.items()}
    return {**known, "verdict": found.verdict.value}


def show(report: Report) -> None:
    """The answer and one table on the terminal, 80 columns wide."""
    console = terminal()
    for section in report.sections:
        part = section.part
        console.print(f"{section.first.basis}", style="dim")
        console.print(section.first.title, style="bold")
        for sentence in (section.first.lead, computing_words(part), *section.first.more):
            if sentence:
                console.print(sentence)
        columns = {
            "method": [line.label for line in part.lines],
            "to alone": [spoken(line.to_alone) for line in part.lines],
            part.measure: [number(line.mean) for line in part.lines],
            "log-loss": [number(line.mean_loss) for line in part.lines],
            "bytes": [bytes_of(line) for line in part.lines],
            "to FedAvg": [brief(line.to_fedavg) for line in part.lines],
            "to random": [brief(line.to_random) for line in part.lines],
        }
        shown = {name: cells for name, cells in columns.items() if any(cell != NOTHING for cell in cells)}
        table = rows_table(tuple(shown), zip(*shown.values()), left=("method", "to alone"), gap=1)
        (console if console.is_terminal else terminal(width=WIDTH)).print(table)
        counts = ", ".join(f"{share.count} {share.words}" for share in section.first.shares)
        if counts:
            console.print(f"hospitals: {counts}")
        legend = f"bytes: per hospital, both directions; equal: within {part.margin:g}; ?: inconclusive"
        console.print(legend, style="dim")
    for choice in report.tuned:
        console.print(choice, style="dim")
    for missing in report.absent:
        console.print(f"not in the report: {missing}", style="yellow")
    console.print(f"report: {report.page}", soft_wrap=True)


def run_summary(result: Run) -> dict[str, object]:
    """The numbers of a run that people ask for first."""
    content = result.to_json()
    names = ("method", "seed", "rounds", "outcome", "score", "measures", "bytes", "cost_usd", "partners_mean")
    main = content["auroc" if result.score is None else "score"]
    return {
        **{name: content[name] for name in (*names, "rest", "seconds") if name in content},
        **{name: content[name]["mean"] for name in ("auroc", "auprc", "brier")},
        "centers": result.data.centers,
        "scored_centers": result.main.scored_centers,
        "at_best_validation": main["at_best_validation"],
    }


def run_table(result: Run) -> Table:
    """A run as a table for the terminal."""
    more = {name: each.mean for name, each in result.measures.items() if name != result.measure}
    more = more or {"AUPRC": result.auprc.mean, "Brier": result.brier.mean}
    all_bytes = result.bytes.all
    scored = f"({result.main.scored_centers} scored)"
    rows = [
        ("centers", f"{result.data.centers} {scored}, {result.data.rows:,} stays"),
        ("rounds", str(result.rounds)),
        (f"{result.measure}, mean over centers", f"{result.main.mean:.3f}"),
        ("… at the best validation round", f"{result.main.at_best_validation:.3f}"),
        (", ".join(more), ", ".join(f"{value:.3f}" for value in more.values())),
        ("bytes, all in both directions", f"{all_bytes:,} = {result.bytes.all_vs_fedavg:.3g} × FedAvg"),
        ("… per center", f"{all_bytes / result.data.centers / 1000:.3g} kB"),
        ("egress cost", f"${result.cost_usd:.4f}"),
        ("partners per center and round", f"{result.partners_mean:.2f}"),
    ]
    said = result.partners
    if said.structure:
        p = f"p = {said.differences:.2f}"
        rows.append(("do hospitals differ?", f"{p}; {', '.join(said.structure)}"))
    if math.isfinite(said.expected_better):
        rows.append(("expected to gain by it", f"{said.expected_better:.0%} of hospitals"))
    if result.rest.share:
        why = ("no_candidates", "all_full", "declined", "budget")
        causes = ", ".join(f"{100 * getattr(result.rest, w):.1f} {w.replace('_', ' ')}" for w in why)
        rows.append(("rest, % of center-rounds", f"{100 * result.rest.share:.1f} ({causes})"))
    rows.append(("seconds", f"{result.seconds:.1f}"))
    title = f"{result.method} on {result.data.name}, seed {result.seed}"
    return rows_table(("", ""), rows, title, left=("",))
