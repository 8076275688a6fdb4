"""The command ``abps``; the code of a command below it is imported when it is called."""

import ast
import errno
import signal
import sys
import warnings
from functools import cache
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


#: Every command in the order of ``abps --help``, and the module of ``abps.cli`` that has it: as a function of
#: its name (with _ for -), or in a group that ``register`` adds.
COMMANDS: Final = {
    "demo": "study_commands", "check": "check_command", "run": "study_commands", "compare": "study_commands",
    "regress": "statistics_commands", "evaluate": "statistics_commands", "table-one": "statistics_commands",
    "fit": "model_commands", "predict": "model_commands", "report": "study_commands",
    "methods": "lab_commands", "cohort": "cohort_commands", "partition": "cohort_commands",
    "drift": "lab_commands", "theory": "lab_commands", "audit-privacy": "lab_commands",
    "benchmark": "lab_commands", "bench": "lab_commands", "app": "study_commands", "site": "site_command",
}  # fmt: skip


@cache
def _sentences(module: str) -> dict[str, str]:
    """What the functions of a module do, and its text ``HELP``: by name, without importing it."""
    tree, found = ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")), {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = ast.get_docstring(node) or ""
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            found |= {ast.unparse(node.targets[0]): str(node.value.value)}
    return found


def purpose(name: str) -> str:
    """What a command does: the first paragraph of its help."""
    known = _sentences(COMMANDS[name])
    text = known.get(name.replace("-", "_")) or known["HELP"]
    return " ".join(text.partition("\n\n")[0].split())


class Commands(TyperGroup):
    """A group that lists its commands by name and first sentence, and imports only the one that is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return TyperCommand(cmd_name, help=purpose(cmd_name)) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS:
            return args[0], loaded(args[0]), args[1:]
        return super().resolve_command(ctx, args)


def loaded(name: str) -> Any:
    """A command with its options."""
    app = typer.Typer(rich_markup_mode="markdown")
    module = import_module(f"abps.cli.{COMMANDS[name]}")
    if hasattr(module, "register"):
        module.register(app)
        return get_group(app).commands[name]
    app.command(name)(flatten(getattr(module, name.replace("-", "_"))))
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

    stop = typer.Option(False, "--version", help="Print the version.", is_eager=True, callback=say_version)

    @cli.callback()
    def root(version: bool = stop) -> None:
        pass

    return cli


STOPPED = 130  # the exit code after Ctrl-C, and of the command line's library for it


def clean_up_on_signals() -> list[int]:
    """Treat SIGTERM and SIGHUP like Ctrl-C, so that temporary files with patients' rows are removed. Returns
    a list to which the numbers of such signals are added. Ignored signals (nohup) stay ignored."""
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
