"""``abps site preview``: every value that would leave a site, before it does."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from abps import files
from abps.cli import options
from abps.cli.site_options import Kit, own_file, say, say_not_told
from abps.core.errors import RequestError

if TYPE_CHECKING:
    from abps.sites.consent.preview import Leaving


def register(site: typer.Typer) -> None:
    """Add the command."""
    site.command("preview")(preview)


def preview(
    kit: Kit,
    study: Annotated[
        str | None, typer.Argument(help="A study that was proposed (default: what init would share).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write all values into this CSV file.")] = None,
    as_json: options.Json = False,
) -> None:
    """Show every value that would leave this site in a study, to whom, and whether the relay can read it.

    Nothing is sent. The values are computed from the site's own table by the functions that the study uses;
    of weights, which come of training, their number and bytes are told. Without a study: the codebook.

    Example: abps site preview kits/north icu --out leaving.csv
    """
    from abps.sites.consent import approval
    from abps.sites.consent import preview as values

    own = own_file(kit)
    proposal = None
    if study is None:
        found = values.codebook_values(values.codebook_of(own))
    else:
        known = approval.pending(Path(own.store), own.journal(kit), study)
        if not known:
            raise RequestError(f"no proposal of a study {study!r} has arrived at {own.site}")
        proposal = known[-1].proposal
        found = values.preview(own, proposal)
    if out is not None:
        with files.replacing(out) as part, part.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(asdict(found[0])))
            writer.writeheader()
            writer.writerows(_plain(asdict(value)) for value in found)
    if as_json:
        typer.echo(json.dumps([asdict(value) for value in found]))
        return
    options.terminal().print(_table(found) if out is None else _summary(found))
    say_not_told(values.kept_back(own, proposal))
    if out is not None:
        say(f"wrote {len(found)} values to {out}")


def _table(found: Sequence[Leaving]) -> Table:
    """Every value; long names go on in the next line."""
    table = Table(
        *(Column(name, overflow="fold") for name in ("what", "name", "value", "when", "to", "relay reads it"))
    )
    for v in found:
        shown = f"{v.value:.6g}" if isinstance(v.value, float) else v.value
        table.add_row(v.what, v.name, shown, v.when, v.to, "yes" if v.clear else "no")
    return table


def _summary(found: Sequence[Leaving]) -> Table:
    """How many values of each kind leave, to whom."""
    table = Table("what", "values", "to", "relay reads it")
    kinds = Counter((v.what, v.to, "yes" if v.clear else "no") for v in found)
    for (what, to, clear), count in kinds.items():
        table.add_row(what, f"{count}", to, clear)
    return table


def _plain(row: dict[str, object]) -> dict[str, object]:
    """A row whose text no spreadsheet takes for a formula."""
    return {k: f"'{v}" if isinstance(v, str) and v[:1] in "=+-@\t\r" else v for k, v in row.items()}
