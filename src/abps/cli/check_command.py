"""``abps check``: what is in a table, what will be used, what looks wrong."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from abps.cli import options
from abps.core.errors import RequestError
from abps.data.check import TableCheck
from abps.data.repairs import RULES, Repair

#: Centers left out that `abps run` names on the terminal; `abps check` names all.
SHOWN = 20


def check(
    table: Annotated[str, typer.Argument(help="A CSV or Parquet file, or a built-in federation.")],
    columns: options.DataOptions,
    as_json: options.Json = False,
) -> None:
    """Look through a table before anything is learned from it.

    Every column with its type, its role and whether it is used; cells that were mended, by which rule and
    how many; what looks like an identifier, a copy of the label or something known only afterwards; which
    value counts as the event; every center that takes no part, and why. `run`, `compare` and `fit` do the
    same first.

    Example: abps check stays.csv --label died --center hospital
    """
    federation = columns.federation(table)
    notes = federation.notes
    assert notes is not None
    if as_json:
        print(json.dumps(notes.to_json(), ensure_ascii=False))
    else:
        show(notes, options.terminal(), federation.outcome.kind)
    refuse_doubts(notes, columns.strict)


def refuse_doubts(notes: TableCheck, strict: bool) -> None:
    """With --strict, a warning is an error."""
    if strict and notes.warnings:
        count = len(notes.warnings)
        raise RequestError(
            f"--strict: {notes.name} has {count} warning(s), the first: {notes.warnings[0]}; mend the table, "
            "or leave --strict out"
        )


def announce(notes: TableCheck | None, strict: bool, all_in: str = "") -> None:
    """Before a run, on stderr: what was mended, what is not used and why, what looks wrong."""
    if notes is None:
        return
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    for repair in notes.repairs:
        console.print(f"mended: {repair_words(repair)}")
    for column in notes.unused:
        console.print(f"not used: {column.name} ({column.why})")
    for left in notes.left_out[:SHOWN]:
        console.print(f"left out: {left.center} ({left.reason})")
    if len(notes.left_out) > SHOWN:
        more = len(notes.left_out) - SHOWN
        console.print(f"left out: {more:,} more, all named in {all_in or '`abps check`'}")
    for sentence in notes.warnings:
        console.print(f"warning: {sentence}", style="yellow")
    refuse_doubts(notes, strict)


def repair_words(repair: Repair) -> str:
    """A repair in a line."""
    before, after = repair.examples[0]
    return f"{repair.column}: {repair.cells:,} cell(s), such as {before!r} → {after} ({repair.rule})"


def show(notes: TableCheck, console: Console, outcome: str = "binary") -> None:
    """The whole check on the terminal."""

    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    say(f"{notes.name}: {notes.form}", "bold")
    say(f"{notes.rows:,} rows{f', {notes.copies:,} of them copies of others' if notes.copies else ''}")
    share = notes.events / max(1, notes.rows - notes.copies)
    if notes.positive:
        told = (
            f"{notes.positive!r} is the event ({notes.events:,} rows, {share:.1%}), {notes.negative!r} is not"
        )
        say(f"label {notes.label}: {told}{'' if outcome == 'binary' else f'; outcome {outcome}'}")
    else:
        say(f"label {notes.label}: outcome {outcome}")
    say(f"centers: {len(notes.centers)} take part, {len(notes.left_out)} do not")
    columns = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("column", "type", "role", "used", "missing", "why"):
        columns.add_column(name, justify="right" if name == "missing" else "left", overflow="fold")
    for c in notes.columns:
        used = "yes" if c.used else ("–" if c.role != "feature" else "no")
        cells = (c.name, c.type, c.role, used, f"{c.missing:.1%}" if c.missing else "", c.why)
        columns.add_row(*cells, style="" if c.used or c.role != "feature" else "yellow")
    console.print(columns)
    if notes.repairs:
        say("mended", "bold")
        for repair in notes.repairs:
            say(f"  {repair_words(repair)}")
        for rule in dict.fromkeys(r.rule for r in notes.repairs):
            say(f"  rule: {RULES[rule]}", "dim")
    if notes.left_out:
        say("left out", "bold")
        for left in notes.left_out:
            say(f"  {left.center}: {left.reason}")
    if notes.warnings:
        say("warnings", "bold yellow")
        for sentence in notes.warnings:
            say(f"  {sentence}", "yellow")
    else:
        say("no warnings", "green")
