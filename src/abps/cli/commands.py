"""The commands of ``abps``; a command's code is imported when it is called."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from abps.cli.options import flatten

#: Every command and what it does, in the order of ``abps --help``.
COMMANDS: Final = {
    "demo": "Would collaboration help, and with whom? Hospitals that differ and hospitals that are alike.",
    "check": "Check a table before anything is learned from it.",
    "run": "Run one method with one seed; write result.json and decisions.parquet.",
    "compare": "Compare methods in folds and repeats; stop and start again, nothing finished is computed "
    "twice.",
    "regress": "Estimate effects with intervals from sums over hospitals; equal to the fit on pooled rows.",
    "evaluate": "Evaluate models at every hospital: AUROC, calibration, Brier score and net benefit.",
    "table-one": "Describe a federation: counts, means, quantiles and missingness, overall and by hospital.",
    "fit": "Train each hospital's final model on all rows and write it with its model card.",
    "predict": "Predict every row of a table with a fitted model.",
    "report": "Write the report of a study: tables (Markdown, CSV, LaTeX), figures (SVG, PDF) and "
    "report.html.",
    "methods": "List every method with its paper and its defaults (--json for machines).",
    "cohort": "Make one tidy table from raw clinical tables: one row per stay, with its provenance and a "
    "report.",
    "partition": "Divide a tidy table into centers; adds the column center (and group, where centers lie in "
    "one).",
    "drift": "Test a table for drift: vitals between eras, outcome between centers, windows against eras.",
    "theory": "Check the theorems and the lemma by simulation with known utilities; write a page with "
    "figures.",
    "audit-privacy": "Attack a study's exchanges by membership and attribute inference, with and without "
    "protection.",
    "benchmark": "Compare methods over many federations: scores with intervals, ranks, bytes, harm, time.",
    "bench": "Measure local training against a plain PyTorch loop and the machine's matrix-multiply speed.",
    "app": "Check a table, compare, read the report and take the model home, in the browser.",
    "site": "The real federation: hospitals that keep their tables, over NVIDIA FLARE.",
}

#: The module of a command, where it is not ``abps.cli.NAME_command`` (with _ for -). It holds a function
#: NAME, or ``register`` for a group of commands.
MODULES: Final = {
    name: f"{module}_commands"
    for module, names in {
        "study": ("demo", "run", "compare", "report", "app"),
        "model": ("fit", "predict"),
        "statistics": ("regress", "evaluate", "table-one"),
        "lab": ("methods", "theory", "drift", "bench", "benchmark"),
    }.items()
    for name in names
}


class Commands(TyperGroup):
    """A group that lists its commands by name and first sentence, and imports only the one that is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All names."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command to be listed."""
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """A command to be called."""
        if args and args[0] in COMMANDS:
            return args[0], loaded(args[0]), args[1:]
        return super().resolve_command(ctx, args)


def loaded(name: str) -> Any:
    """A command with its options."""
    app = typer.Typer(rich_markup_mode="markdown")
    word = name.replace("-", "_")
    module = import_module(f"abps.cli.{MODULES.get(name, f'{word}_command')}")
    if hasattr(module, "register"):
        module.register(app)
        return get_group(app).commands[name]
    app.command(name)(flatten(getattr(module, word)))
    return get_command(app)


def flags_of(arguments: list[str]) -> dict[str, str]:
    """Parameter names of the command that was called, with the flag of each."""
    if not arguments or arguments[0] not in COMMANDS:
        return {}
    command = loaded(arguments[0])
    for word in arguments[1:]:
        if word not in getattr(command, "commands", {}):
            break
        command = command.commands[word]
    return {p.name: p.opts[0] for p in command.params if p.opts[0].startswith("--")}


def as_flags(message: str, flags: dict[str, str]) -> str:
    """A message with ``name=value`` written as the flag of the command that was called.

    >>> as_flags("min_stays=0: choose at least 1 (or another center=COL)",
    ...     {"min_stays": "--min-stays", "center": "--center"})
    '--min-stays 0: choose at least 1 (or another --center COL)'
    """
    words = []
    for word in message.split(" "):
        opening = word[: len(word) - len(word.lstrip("(`"))]
        name, equals, value = word[len(opening) :].partition("=")
        words.append(f"{opening}{flags[name]} {value}" if equals and name in flags else word)
    return " ".join(words)
