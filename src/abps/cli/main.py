"""The command ``abps``; the code of a command below it is imported when it is called."""

from __future__ import annotations

import errno
import signal
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from abps.cli.options import flatten
from abps.core.errors import DataWarning, RequestError
from abps.release import VERSION

HELP = """Peer-to-peer federated learning for hospitals: who to work with, when, and at what cost.

Start with `abps demo`. Then bring your own table:

    abps check stays.csv --label died --center hospital

    abps compare --data stays.csv --label died --center hospital --methods fedavg,abps-plus --out my-study

    abps fit --data stays.csv --label died --center hospital --method abps-plus --out models
"""


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


def app() -> typer.Typer:
    """The command line."""
    cli = typer.Typer(
        cls=Commands,
        help=HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode="markdown",
    )

    def say_version(asked: bool) -> None:
        if asked:
            typer.echo(f"abps {VERSION}")
            raise typer.Exit()

    @cli.callback()
    def root(
        version: bool = typer.Option(
            False, "--version", help="Print the version and stop.", is_eager=True, callback=say_version
        ),
    ) -> None:
        pass

    return cli


#: The exit code after Ctrl-C, and of the command line's library for it.
STOPPED = 130


def clean_up_on_signals() -> list[int]:
    """Treat SIGTERM and SIGHUP like Ctrl-C, so that temporary files with patients' rows are removed.

    Returns a list to which the numbers of such signals are added. Ignored signals (nohup) stay ignored.
    """
    received: list[int] = []

    def end(number: int, _frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, end)
    return received


def main(arguments: list[str] | None = None) -> None:
    """Run the command line: exit 0 done, 2 wrong request, 1 internal error, more after a signal."""
    signals = clean_up_on_signals() if arguments is None else []
    given = sys.argv[1:] if arguments is None else list(arguments)
    warnings.simplefilter("ignore", DataWarning)  # commands print them in their own words
    sys.path.append(str(Path.cwd()))  # last: modules beside the user's data, but never instead of a library's
    try:
        code = app()(args=given, prog_name="abps", standalone_mode=False)
        if code == STOPPED:
            raise KeyboardInterrupt
        sys.exit(code if isinstance(code, int) else 0)
    except RequestError as error:
        print(f"abps: {as_flags(str(error), flags_of(given))}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        print("abps: stopped", file=sys.stderr)
        sys.exit(128 + signals[0] if signals else STOPPED)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except BrokenPipeError:  # whoever read our output has seen enough
        sys.stdout = None
        sys.exit(1)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES):
            raise
        print(f"abps: {error.strerror}{f': {error.filename}' if error.filename else ''}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        # Usage errors come from the click that this typer carries (its own copy in newer versions).
        if not hasattr(error, "format_message") or not hasattr(error, "exit_code"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.exit(2)
        context = getattr(error, "ctx", None)
        where = f"; see `{context.command_path} --help`" if context is not None else ""
        print(f"abps: {error.format_message().rstrip('.')}{where}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
