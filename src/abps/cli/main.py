"""The command ``abps``."""

from __future__ import annotations

import errno
import signal
import sys
import warnings
from pathlib import Path

import typer

from abps.cli.commands import Commands, as_flags, flags_of
from abps.core.errors import DataWarning, RequestError
from abps.release import VERSION

HELP = """Peer-to-peer federated learning for hospitals: who to work with, when, and at what cost.

Start with `abps demo`. Then bring your own table:

    abps check stays.csv --label died --center hospital

    abps compare --data stays.csv --label died --center hospital --methods fedavg,abps-plus --out my-study

    abps fit --data stays.csv --label died --center hospital --method abps-plus --out models
"""


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
