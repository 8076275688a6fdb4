"""What the command line consists of; a command's code is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

#: Every command and what it does, in the order of ``abps --help``; its code is ``abps.cli.NAME_command``
#: (with _ for -).
COMMANDS: Final = {
    "demo": "Would collaboration help, and with whom? Hospitals that differ and hospitals that are alike.",
    "check": "Look through a table before anything is learned from it.",
    "run": "Run one method with one seed; write result.json and decisions.parquet.",
    "compare": "Compare methods over seeds; stop and start again as you like, nothing finished is computed "
    "twice.",
    "fit": "Make the models that hospitals would use, from all rows, each with its model card.",
    "predict": "Give every row of a table its probability.",
    "report": "Write the report of a study: tables (Markdown, CSV, LaTeX), figures (SVG, PDF) and "
    "report.html.",
    "methods": "List every method with its paper and its defaults (--json for machines).",
    "cohort": "Make one tidy table from raw clinical tables: one row per stay, with its provenance and a "
    "report.",
    "partition": "Divide a tidy table into centers; adds the column center (and group, where centers lie in "
    "one).",
    "drift": "Test a table for drift: vitals between eras, outcome between centers, windows against eras.",
    "adapt": "Let a federation change while it learns, with and without forgetting, and show what comes "
    "of it.",
    "theory": "Check the theorems and the lemma by simulation with known utilities; write a page with "
    "figures.",
    "audit-privacy": "Attack a study's exchanges: who was learned from, and what they have; with and "
    "without protection.",
    "bench": "Measure local training against a plain PyTorch loop and the machine's matrix-multiply speed.",
    "site": "The real federation: hospitals that keep their tables, over NVIDIA FLARE.",
}


class Commands(TyperGroup):
    """A group that knows its commands by name and first sentence, and imports the one that is called."""

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
    import_module(f"abps.cli.{name.replace('-', '_')}_command").register(app)
    return get_group(app).commands[name]
