"""``abps site``: the real federation, from certificates to a running job."""

import contextlib
import importlib.util
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.table import Column, Table

from abps.cli import options
from abps.core.errors import RequestError
from abps.data.codebook import Codebook
from abps.sites.consent import sitefile
from abps.sites.store.store import Store

HELP = """The real federation: hospitals that keep their tables, over NVIDIA FLARE.

1. The operator, once: `abps site provision north south east west --host relay.example.org --out kits`

2. Each hospital, with its kit: `abps site init --kit kits/north --table stays.parquet --label died`

3. The relay, `abps site start kits/relay`, and each hospital, `abps site start kits/north`

4. Each hospital reads `kits/north/local/codebook.json` and hands it to the operator, who proposes a study:
`abps site submit --kit kits/operator@federation.example --study icu --codebook north.json --codebook …`

5. Each hospital, after reading the proposal: `abps site proposals kits/north`, then
`abps site approve kits/north icu --proposal DIGEST --by "Dr. Ada Example"`

6. Each hospital, at any time: `abps site check kits/north`, `abps site status kits/north`

Try all of it on one machine first: `abps site rehearse`

The engine is an extra: `pip install 'abps[flare]'`.
"""

COURIER = """A study without any connection: files that people carry (USB, SFTP, mail), signed and sealed.

The operator writes the study (`propose`); each hospital takes it `in`, approves it, and writes its first file
(`out`); then all take in what the others wrote (`in --out`), until it says that the study is over.
"""


def register(app: typer.Typer) -> None:
    """Add the command and its parts."""
    from abps.cli import site_hospital as hospital
    from abps.cli import site_operator as operator

    site = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode="markdown")
    for command in (*hospital.COMMANDS, *operator.COMMANDS):
        site.command(command.__name__)(options.flatten(command))
    courier = typer.Typer(help=COURIER, no_args_is_help=True, rich_markup_mode="markdown")
    courier.command("propose")(options.flatten(operator.propose))
    courier.command("in")(options.flatten(hospital.take_in))
    courier.command("out")(options.flatten(hospital.write_out))
    courier.command("status")(options.flatten(hospital.courier_status))
    site.add_typer(courier, name="courier")
    app.add_typer(site, name="site")


def need_engine() -> None:
    """Say what to install where the engine is not; keep its loggers off the terminal where it is."""
    if importlib.util.find_spec("nvflare") is None:
        raise RequestError("NVIDIA FLARE is not installed here; run: pip install 'abps[flare]'")
    logging.getLogger().addHandler(logging.NullHandler())  # without a handler they would write there


def say(text: str) -> None:
    """Print a line for people, beside the output proper."""
    options.terminal(stderr=True).print(printable(text), soft_wrap=True)


def emit(as_json: bool, summary: Any, *lines: str) -> bool:
    """Print the summary as one JSON line, or the lines for people. Returns whether it was JSON."""
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        for line in lines:
            say(line)
    return as_json


def show(summary: Mapping[str, Any]) -> None:
    """Print plain data for people: single values as lines, lists of rows as tables."""
    console = options.terminal()
    for name, value in summary.items():
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            show_rows(value, name)
            continue
        parts = [f"{k} {v}" for k, v in value.items()] if isinstance(value, Mapping) else value
        text = ", ".join(map(str, parts)) if isinstance(parts, list) else value
        console.print(printable(f"{name}: {'none' if text in (None, '') else text}"), soft_wrap=True)


def show_rows(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> None:
    """Print rows of plain data as a table; long text goes on in the next line."""
    if not rows:
        return
    columns = (Column(printable(str(name)), overflow="fold") for name in rows[0])
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        values = (f"{v:.6g}" if isinstance(v, float) else "" if v is None else str(v) for v in row.values())
        table.add_row(*(printable(value) for value in values))
    options.terminal().print(table)


def printable(text: str) -> str:
    """Text from elsewhere with its control characters escaped: no name may redraw the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def local(where: Path) -> Path:
    """The folder of a site's own file."""
    return where / "local" if (where / "local").is_dir() else where


def own_file(where: Path) -> sitefile.SiteFile:
    """The settings of the site whose kit or folder this is."""
    return sitefile.read(local(where) / sitefile.FILE)


@contextlib.contextmanager
def study_store(where: Path, study: str | None, check: bool = True) -> Iterator[Store]:
    """The store of a study at the site whose kit or folder this is.  check: refuse it if it was changed."""
    own = own_file(where)
    if study is not None:
        found = [own.store_of(study)]
    else:  # counts for common scales have a store of their own
        found = [p for p in sorted(Path(own.store).glob("*.sqlite")) if not p.stem.endswith("-scales")]
    if len(found) != 1:
        names = ", ".join(path.stem for path in found) or "none yet"
        raise RequestError(f"{own.site} takes part in {len(found)} studies ({names}); name one with --study")
    with contextlib.closing(Store.look(found[0], check)) as store:
        yield store


def read_codebook(path: Path) -> Codebook:
    """A codebook that was named on the command line."""
    if not path.is_file():
        raise RequestError(f"--codebook {path}: no such file; `abps site init` writes one at each site")
    try:
        return Codebook.from_json(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise RequestError(f"--codebook {path}: {error}") from error
