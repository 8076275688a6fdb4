"""Options that several commands share, and one way to read each of them."""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn
from rich.table import Table

from abps.core.errors import RequestError

if TYPE_CHECKING:  # completion and help must not wait for these
    from abps.data.federation import Federation
    from abps.data.roles import Roles
    from abps.study.execute import Executor

#: Every name of the catalog, written down so that completion need not wait for it (a test compares the two).
_NAMES = (
    "centralized local local-best pooled-best glm-exact fedavg fedavg-p "
    "fedavg-pq fedavg-x fedprox fedper random-k1 random-k3 group-oracle-k1 abps abps-p abps-q abps-pq-k1 "
    "abps-pq-k1-hom abps-pq-k1-div abps-pq-k1-align abps-x abps-plus feddyn moon bnn fedavgm scaffold fedrep "
    "ditto fedmap clustered odal glmm boosting decefl defta wpfed dpsgd gossip abps-k1-rests "
    "abps-k1-never-rests pfedgraph dac ifca fedfomo ehrfl dfca dpfl pens facade"
)
NAMES: Final = _NAMES.split()


def complete_methods(incomplete: str) -> list[str]:
    """Completions of the last of several method names with commas between.

    >>> complete_methods("local,fedavg-p")
    ['local,fedavg-p', 'local,fedavg-pq']
    """
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in NAMES if name.startswith(last)]


_ONE = "Method name (see `abps methods`), or package.module:CONFIG for your own."
_SOME = "Comma-separated method names (or package.module:CONFIG), `paper` (table and controls), or `all`."
Method = Annotated[str, typer.Option(help=_ONE, autocompletion=complete_methods)]
Methods = Annotated[str, typer.Option(help=_SOME, autocompletion=complete_methods)]
Data = Annotated[
    str,
    "CSV or Parquet file, or a built-in federation: icu-synthetic, fedprox-synthetic. Set its knobs "
    "with icu-synthetic:heterogeneity=4,centers=60.",
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the split, the initial weights and all draws.")]
Rounds = Annotated[int | None, "Number of rounds. Default: the method's own."]
_CHANGE = "Change a setting of the method: --set gamma=0.5. Repeat as needed."
Settings = Annotated[list[str] | None, typer.Option("--set", help=_CHANGE)]
Seeds = Annotated[str, "Comma-separated seeds."]
Jobs = Annotated[int | None, "Number of parallel processes. Default: one per core."]
_PARTS = "Comma-separated columns: report accuracy per subgroup, besides sex and age."
Subgroups = Annotated[str, typer.Option("--subgroups", "--parts", help=_PARTS)]
Attack = Annotated[
    str | None,
    "Let some members attack: sign-flip:share=0.2. Attacks: label-flip, sign-flip, scale, random, "
    "nan, huge, free-rider, copy, liar, clique, poison, coefficient. start=9: not before the ninth exchange.",
]
Model = Annotated[
    str | None,
    "Model that the method trains: mlp (the paper's network), linear, gam (additive, smooth terms), "
    "or package.module:FACTORY. Default: the method's own.",
]
Out = Annotated[Path, "Folder to write to."]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as one JSON line.")]


# The columns of a table: one table of options for all commands.
Label = Annotated[str | None, "Column to predict (two values, unless --outcome says otherwise)."]
Center = Annotated[str | None, "Column that names each row's hospital."]
Patient = Annotated[str | None, "Patient ID column; keeps a patient's rows in one split."]
Time = Annotated[str | None, "Date or year column; never a predictor."]
Group = Annotated[str | None, "Column that groups centers, for group-oracle-k1."]
Drop = Annotated[str, "Comma-separated columns to leave out."]
Positive = Annotated[str | None, "Value of the label that counts as the event."]
Outcome = Annotated[
    str | None,
    "Kind of outcome: binary, survival (with --duration), classes or continuous. "
    "Default: survival with --duration, else binary.",
]
Duration = Annotated[str | None, "Survival: column with the time to the event or to censoring."]


@dataclass(frozen=True)
class DataOptions:
    """What the columns of a table are for: the options of every command that learns from one."""

    label: Label = None
    center: Center = None
    patient: Patient = None
    time: Time = None
    group: Group = None
    drop: Drop = ""
    keep: Annotated[
        str,
        "Comma-separated columns to learn from although they look like an identifier or a copy of the label.",
    ] = ""
    positive: Positive = None
    outcome: Outcome = None
    duration: Duration = None
    min_stays: Annotated[int | None, "Smallest center that takes part (default for a table: 50)."] = None
    strict: Annotated[bool, "Stop if the table has warnings."] = False

    def roles(self) -> Roles:
        """The roles of the table's columns that were given; those that a file records complete them later."""
        from abps.data.roles import Roles

        given = {name: value for name, value in vars(self).items() if name not in ("min_stays", "strict")}
        given |= {"label": self.label or "", "center": self.center or ""}
        return Roles(**given | {"drop": split(self.drop), "keep": split(self.keep)})

    def federation(self, data: str) -> Federation:
        from abps.data.table import load

        return load(data, self.roles(), self.min_stays)


@dataclass(frozen=True)
class ClusterOptions:
    """Where runs are computed, and what a run may use on a cluster."""

    executor: Annotated[str, "local (processes here) or slurm (job arrays)."] = "local"
    slurm_account: Annotated[str | None, "Slurm: the account to charge."] = None
    slurm_partition: Annotated[str | None, "Slurm: the partition."] = None
    slurm_minutes: Annotated[int, "Slurm: the time limit of one run."] = 60
    slurm_memory: Annotated[float, "Slurm: the memory of one run in GB."] = 4.0
    slurm_cores: Annotated[int, "Slurm: the cores of one run."] = 1
    slurm_deadline: Annotated[float | None, "Slurm: minutes to wait; jobs stay in the queue."] = None

    def executor_of(self) -> Executor | None:
        """What computes runs on a cluster; None: processes here."""
        from abps.study.slurm import Slurm, run_slurm

        if self.executor not in ("local", "slurm"):
            raise RequestError(f"--executor {self.executor}: choose local or slurm")
        job = Slurm(*(getattr(self, field.name) for field in fields(self) if field.name != "executor"))
        return functools.partial(run_slurm, slurm=job) if self.executor == "slurm" else None


def flatten(command: Callable[..., None]) -> Callable[..., None]:
    """A command as the command line wants it: an annotation with a plain string is an option with this help,
    and a dataclass stands for one option per field, after the other options."""
    types = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in types.items() if is_dataclass(kind)}
    given = [
        option(name, types[name], parameter.default)
        for name, parameter in inspect.signature(command).parameters.items()
        if name not in groups
    ]
    for kind in groups.values():
        hints = get_type_hints(kind, include_extras=True)
        given += [option(field.name, hints[field.name], field.default) for field in fields(kind)]

    @functools.wraps(command)
    def called(**values: Any) -> None:
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        command(**values)

    return with_options(called, given)


def with_options(called: Callable[..., None], given: Sequence[inspect.Parameter]) -> Callable[..., None]:
    """A command that takes these options."""
    called.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in given}
    return called


def option(name: str, hint: Any, default: Any) -> inspect.Parameter:
    """One option; a switch that is off by default has no --no-NAME."""
    words = next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, str)), None)
    if words is not None:
        flag = [f"--{name.replace('_', '-')}"] if default is False else []
        hint = Annotated[hint.__origin__, typer.Option(*flag, help=words)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def split(text: str) -> tuple[str, ...]:
    """Parts between commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def read_seeds(text: str) -> tuple[int, ...]:
    return tuple(numbers(text, "--seeds", int, "whole numbers, such as 11,22,33"))


def numbers(text: str, flag: str, kind: type, what: str = "numbers") -> list[Any]:
    try:
        return [kind(part) for part in split(text)]
    except ValueError:
        raise RequestError(f"{flag} {text}: give comma-separated {what}") from None


def settings(pairs: list[str] | None, model: str | None = None) -> dict[str, str]:
    """``--set key=value`` as a mapping, with the model that was asked for."""
    given: dict[str, str] = {} if model is None else {"model": model}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise RequestError(f"--set {pair}: write key=value, for instance --set gamma=0.5")
        given[key.strip()] = value.strip()
    return given


def command_line(start: str, flags: Mapping[str, Any]) -> str:
    """A command to copy: those of its options that have a value, quoted as a shell needs them."""
    given = {flag: ",".join(value) if isinstance(value, tuple) else value for flag, value in flags.items()}
    words = [f"--{flag} {shlex.quote(str(value))}" for flag, value in given.items() if value]
    return " ".join([start, *words])


def rows_table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str = "",
    left: Sequence[str] | None = None,
    gap: int = 2,
) -> Table:
    """A table for the terminal.  left: columns that are words; by default the first one."""
    table = Table(title=title or None, box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for name in head:
        words = name in (head[:1] if left is None else left)
        table.add_column(name, justify="left" if words else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


@contextmanager
def progress_bar(*columns: ProgressColumn) -> Iterator[Callable[..., None]]:
    """A progress bar on stderr, if that is a terminal: call it with what is done, the share, more fields."""
    console = terminal(stderr=True)
    shown = (TextColumn("{task.description}", markup=False), BarColumn(), *columns)
    with Progress(*shown, console=console, disable=not console.is_terminal, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def report(what: str, share: float, **more: Any) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=1.0, **more)
            bar.update(tasks[what], completed=share, **more)

        yield report


def terminal(stderr: bool = False, width: int | None = None) -> Console:
    """Where people read: names from data and folders are shown as they are, never as markup."""
    return Console(stderr=stderr, markup=False, highlight=False, width=width)
