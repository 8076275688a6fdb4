"""Options that several commands share: the data, and how to read settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from abps.cli.method_names import complete_method, complete_methods
from abps.core.errors import RequestError

if TYPE_CHECKING:  # a command line that is only completed or helped should not wait for them
    from abps.data.federation import Federation
    from abps.data.roles import Roles

Method = Annotated[
    str,
    typer.Option(
        help="A method's name (`abps methods` lists them), or package.module:CONFIG for one of your own.",
        autocompletion=complete_method,
    ),
]
Methods = Annotated[
    str,
    typer.Option(
        help="Names with commas between (also package.module:CONFIG), or paper (the paper's table and "
        "controls), or all.",
        autocompletion=complete_methods,
    ),
]

Data = Annotated[
    str,
    typer.Option(
        help="A CSV or Parquet file, or a built-in federation: icu-synthetic, fedprox-synthetic, "
        "survival-synthetic "
        "(with knobs: icu-synthetic:heterogeneity=4,centers=60)."
    ),
]
Label = Annotated[
    str | None, typer.Option(help="The column to predict (two values, unless --outcome says otherwise).")
]
Center = Annotated[str | None, typer.Option(help="The column that says which center a row belongs to.")]
Patient = Annotated[str | None, typer.Option(help="A patient is in one split, in all centers.")]
Time = Annotated[str | None, typer.Option(help="A date or year column; never a feature.")]
Group = Annotated[str | None, typer.Option(help="A column that groups centers, for group-oracle-k1.")]
Eras = Annotated[
    str | None,
    typer.Option(
        help="Learn from one window of time after the other: a column that orders the rows into windows, or "
        "into how many windows to cut the --time column."
    ),
]
Every = Annotated[
    int | None, typer.Option(help="Rounds from one window to the next (default: divided evenly).")
]
Drop = Annotated[str, typer.Option(help="Columns to leave out, separated by commas.")]
Keep = Annotated[
    str,
    typer.Option(
        help="Columns to learn from although they look like an identifier or a copy of the label, separated "
        "by commas."
    ),
]
Subgroups = Annotated[
    str,
    typer.Option(
        "--subgroups",
        "--parts",
        help="Columns by which accuracy is told apart, besides sex and age, separated by commas.",
    ),
]
LeaveCentersOut = Annotated[
    int,
    typer.Option(
        help="Also let centers stay away in turn, in so many groups (0: no), and try the others' model on "
        "them: would it serve a hospital that did not take part?"
    ),
]
Attack = Annotated[
    str | None,
    typer.Option(
        help="Members that attack: sign-flip:share=0.2; or label-flip, scale, random, nan, huge, free-rider, "
        "copy, liar, clique, poison."
    ),
]
Positive = Annotated[str | None, typer.Option(help="The label's value that counts as the event.")]
Outcome = Annotated[
    str | None,
    typer.Option(
        help="What the label is: binary, survival (with --duration), survival:cox, classes, continuous, or "
        "continuous:pinball=0.9. Default: survival with --duration, else binary."
    ),
]
Duration = Annotated[
    str | None,
    typer.Option(help="Survival: the column with the time to the event, or to the end of watching."),
]
Strict = Annotated[bool, typer.Option("--strict", help="Warnings about the table are errors.")]
MinStays = Annotated[int | None, typer.Option(help="The smallest center that takes part (own tables: 50).")]
Model = Annotated[
    str | None,
    typer.Option(
        help="What is shared: mlp (the paper's network), linear, gam (additive, smooth terms), gam+mlp, "
        "encoders (sequences and images), or package.module:FACTORY. Default: the method's own."
    ),
]
Out = Annotated[Path, typer.Option(help="The folder to write to.")]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as one JSON line.")]


def federation(
    data: str,
    label: str | None,
    center: str | None,
    patient: str | None,
    time: str | None,
    group: str | None,
    drop: str,
    min_stays: int | None,
    eras: str | None = None,
    every: int | None = None,
    keep: str = "",
    positive: str | None = None,
    outcome: str | None = None,
    duration: str | None = None,
) -> Federation:
    """The federation that the options describe."""
    from abps.data.roles import Roles
    from abps.data.synthetic.builtin import is_builtin
    from abps.data.table import load

    given = Roles(
        label or "", center or "", patient, time, group, split(drop), eras, every, split(keep), positive,
        outcome, duration,
    )  # fmt: skip
    roles = complete(data, given)
    if not is_builtin(data) and not (roles.label and roles.center) and Path(data).exists():
        raise RequestError(f"--data {data}: name its columns with --label COL and --center COL")
    return load(data, roles, min_stays)


def complete(data: str, given: Roles) -> Roles:
    """The roles that the user named, completed by those that a table of ours carries."""
    from abps.data.roles import completed
    from abps.data.synthetic.builtin import is_builtin

    return given if is_builtin(data) else completed(Path(data), given)


def split(text: str) -> tuple[str, ...]:
    """Parts between commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def settings(pairs: list[str], model: str | None = None) -> dict[str, str]:
    """``--set key=value`` as a mapping, with the model that was asked for."""
    given: dict[str, str] = {} if model is None else {"model": model}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise RequestError(f"--set {pair}: write key=value, for instance --set gamma=0.5")
        given[key.strip()] = value.strip()
    return given


def terminal(stderr: bool = False, width: int | None = None) -> Console:
    """Where people read: names from data and folders are shown as they are, never as markup."""
    return Console(stderr=stderr, markup=False, highlight=False, width=width)
