"""``abps check``: what is in a table, what will be used, what looks wrong."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated

import typer
from rich.table import Table

from abps.cli import options
from abps.cli.main import as_flags
from abps.core.errors import RequestError
from abps.data.federation import TableCheck, is_builtin, left_out_lines
from abps.data.repairs import RULES, Repair

SHOWN = 8  # centers left out up to which a run does not say where all are named

#: Names of options that warnings give as ``keep=COL``, and their flags.
FLAGS = {name: f"--{name}" for name in ("center", "drop", "keep", "patient", "positive", "time")}

COMPARE = "abps compare --methods local-best,fedavg,abps-plus"  # the comparison to begin with
MANY_COLUMNS = 40  # columns up to which the terminal shows a line for each


def check(
    table: Annotated[str, typer.Argument(help="A CSV, Excel or Parquet file, or a built-in federation.")],
    columns: options.DataOptions,
    as_json: options.Json = False,
) -> None:
    """Check a table before anything is learned from it.

    Shows what is in the table, warnings, columns that are not used and why, repaired cells, hospitals that
    are left out, and the command to continue with. `run`, `compare` and `fit` make the same check first.

    Example: abps check stays.csv --label died --center hospital
    """
    federation = columns.federation(table)
    notes = federation.notes
    assert notes is not None
    if as_json:
        print(json.dumps(notes.to_json(), ensure_ascii=False))
    else:
        console = options.terminal()
        for text, style in _lines(notes, federation.outcome.kind):
            console.print(as_flags(text, FLAGS), style=style, soft_wrap=True)
        console.print(_columns(notes))
        given = {"keep": columns.keep, "positive": columns.positive, "outcome": columns.outcome}
        print(f"next: {next_command(table, notes, given | {'min-stays': columns.min_stays})}")
    refuse_doubts(notes, columns.strict)


def next_command(table: str, notes: TableCheck, given: Mapping[str, object]) -> str:
    """The command that compares methods on this table, with its own names and ``given`` flags."""
    flags: dict[str, object] = {}
    if not is_builtin(table):
        for role in ("label", "duration", "center", "patient", "time", "group"):
            flags[role] = next((c.name for c in notes.columns if c.role == role), "")
        flags["patient"] = flags["patient"] or notes.patient
        flags["drop"] = ",".join(c.name for c in notes.columns if c.role == "dropped")
    return options.command_line(COMPARE, {"data": table, **flags, **given, "out": "results"})


def refuse_doubts(notes: TableCheck, strict: bool) -> None:
    """With --strict, a warning is an error."""
    if strict and notes.warnings:
        why = f"{notes.name} has {len(notes.warnings)} warning(s), the first: {notes.warnings[0]}"
        raise RequestError(f"--strict: {why}; correct the table, or leave --strict out")


def announce(notes: TableCheck | None, strict: bool, all_in: str = "") -> None:
    """Before a run, on stderr: what was repaired, what is left out and not used, what looks wrong."""
    if notes is None:
        return
    console = options.terminal(stderr=True)
    lines = [f"repaired: {repair_words(repair)}" for repair in notes.repairs]
    lines += [f"left out: {line}" for line in left_out_lines(notes.left_out)]
    if len(notes.left_out) > SHOWN:
        lines.append(f"left out: all are named in {all_in or '`abps check --json`'}")
    for sentence in notes.remarks:
        kind = "warning" if sentence in notes.warnings else "note"
        lines.append(f"{kind}: {as_flags(sentence, FLAGS)}")
    for line in lines:
        console.print(line, style="yellow" if line.startswith("warning:") else "", soft_wrap=True)
    refuse_doubts(notes, strict)


def repair_words(repair: Repair) -> str:
    """A repair in a line."""
    before, after = repair.examples[0]
    return f"{repair.column}: {repair.cells:,} cell(s), such as {before!r} → {after} ({repair.rule})"


def _lines(notes: TableCheck, outcome: str) -> Iterator[tuple[str, str]]:
    """The check in lines with their styles, the most important first."""
    yield f"{notes.name}: {notes.form}", "bold"
    removed = f", {notes.copies:,} duplicates removed" if notes.copies else ""
    out = f", {len(notes.left_out)} left out" if notes.left_out else ""
    yield f"{notes.rows:,} rows{removed}; {len(notes.centers)} hospitals take part{out}", ""
    share = notes.events / max(1, notes.rows - notes.copies)
    kind = "" if outcome == "binary" else f"; outcome {outcome}"
    event = f"{notes.positive!r} is the event ({notes.events:,} rows, {share:.1%}), {notes.negative!r} is not"
    yield f"label {notes.label}: " + (f"{event}{kind}" if notes.positive else f"outcome {outcome}"), ""
    types = Counter(c.type for c in notes.columns if c.used)
    used = ", ".join(f"{n} {kind}" for kind, n in types.most_common())
    unused = f"{len(notes.unused)} {'column is' if len(notes.unused) == 1 else 'columns are'} not used"
    yield f"predictors: {types.total()} columns ({used}); {unused}", ""
    silent = [sentence.replace(": not used,", ":") for sentence in notes.remarks[len(notes.warnings) :]]
    rules = [f"rule: {RULES[rule]}" for rule in dict.fromkeys(r.rule for r in notes.repairs)]
    if not notes.warnings:
        yield "no warnings", "green"
    for title, sentences, colour in (
        (f"warnings ({len(notes.warnings)})", notes.warnings, "yellow"),
        ("not used", silent, ""),
        ("repaired", [*map(repair_words, notes.repairs), *rules], ""),
        ("left out", left_out_lines(notes.left_out), ""),
    ):
        if sentences:
            yield title, f"bold {colour}".strip()
        yield from ((f"  {sentence}", colour) for sentence in sentences)


def _columns(notes: TableCheck) -> Table:
    """Every column with its type, role and missing values; of very many only those in use without a role."""
    columns = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("column", "type", "role", "used", "missing"):
        columns.add_column(name, justify="right" if name == "missing" else "left", overflow="fold")
    shown = notes.columns
    if len(shown) > MANY_COLUMNS:
        shown = tuple(c for c in shown if c.role != "feature" or c.missing > 0.2 or not c.used)[:MANY_COLUMNS]
    for c in shown:
        use = "yes" if c.used else ("–" if c.role != "feature" else "no")
        missing = f"{c.missing:.1%}" if c.missing else ""
        style = "" if c.used or c.role != "feature" else "yellow"
        columns.add_row(c.name, c.type, c.role, use, missing, style=style)
    if len(shown) < len(notes.columns):
        columns.add_row(f"and {len(notes.columns) - len(shown)} more (--json has all)", "", "", "", "")
    return columns
