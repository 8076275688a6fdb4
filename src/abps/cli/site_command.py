"""``abps site``: the real federation, from certificates to a running job."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

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

4. Each hospital, after reading its codebook: `abps site share kits/north --by "Dr. Ada Example"`; then the
operator: `abps site gather --kit kits/operator@federation.example --study icu --out book.json` and
`abps site submit --kit kits/operator@federation.example --study icu --codebook book.json`

5. Each hospital, after reading the proposal: `abps site proposals kits/north`, then
`abps site approve kits/north icu --proposal DIGEST --by "Dr. Ada Example"`

6. Each hospital, at any time: `abps site check kits/north`, `abps site status kits/north`

Try all of it on one machine first: `abps site rehearse`

The engine is an extra: `pip install 'abps[flare]'`.
"""

#: The method of a study if none is named.
METHOD = "abps-plus"

Kit = Annotated[Path, typer.Argument(help="A startup kit, or the folder of a site's abps-site.json.")]
Study = Annotated[str | None, typer.Option(help="The study, if the site takes part in several.")]
By = Annotated[str, typer.Option(help="Name of the person who decides; it is recorded.")]
Reason = Annotated[str, typer.Option(help="Why; it is recorded.")]


def register(app: typer.Typer) -> None:
    """Add the command and its parts."""
    from abps.cli import site_courier, site_hospital, site_operator, site_support

    site = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode="markdown")
    for command in (*site_hospital.COMMANDS, *site_operator.COMMANDS, *site_support.COMMANDS):
        site.command(command.__name__)(command)
    site.add_typer(site_courier.app(), name="courier")
    app.add_typer(site, name="site")


def need_engine() -> None:
    """Say what to install where the engine is not."""
    if importlib.util.find_spec("nvflare") is None:
        raise RequestError("NVIDIA FLARE is not installed here; run: pip install 'abps[flare]'")


def say(text: str) -> None:
    """Print a line for people, beside the output proper."""
    options.terminal(stderr=True).print(printable(text), soft_wrap=True)


def emit(as_json: bool, summary: Any, *lines: str) -> None:
    """Print the summary as one JSON line, or the lines for people."""
    if as_json:
        typer.echo(json.dumps(summary))
        return
    for line in lines:
        say(line)


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


def own_file(where: Path) -> sitefile.SiteFile:
    """The settings of the site whose kit or folder this is."""
    return sitefile.read(local(where) / sitefile.FILE)


def local(where: Path) -> Path:
    """The folder of a site's own file."""
    return where / "local" if (where / "local").is_dir() else where


def study_store(where: Path, study: str | None) -> Store:
    """The store of a study at the site whose kit or folder this is."""
    own = own_file(where)
    if study is not None:
        return Store.look(own.store_of(study))
    # Counts for common scales have a store of their own.
    found = [path for path in sorted(Path(own.store).glob("*.sqlite")) if not path.stem.endswith("-scales")]
    if len(found) != 1:
        names = ", ".join(path.stem for path in found) or "none yet"
        raise RequestError(f"{own.site} takes part in {len(found)} studies ({names}); name one with --study")
    return Store.look(found[0])


def read_codebook(path: Path) -> Codebook:
    """A codebook that was named on the command line."""
    if not path.is_file():
        raise RequestError(f"--codebook {path}: no such file; `abps site init` writes one at each site")
    try:
        return Codebook.from_json(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise RequestError(f"--codebook {path}: {error}") from error
