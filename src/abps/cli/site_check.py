"""``abps site check`` before anything runs, and ``abps site doctor`` when something does not go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from abps.cli import options
from abps.cli.site_options import read_codebook
from abps.data.codebook import Codebook

AnyKit = Annotated[Path, typer.Argument(help="The startup kit of a site, of the relay or of an operator.")]

#: The exit code when a check fails: neither a wrong request nor a fault of ours.
FAILED = 3


def register(site: typer.Typer) -> None:
    """Add the commands."""
    site.command("check")(check)
    site.command("doctor")(doctor)


def check(
    kit: AnyKit,
    codebook: Annotated[
        Path | None,
        typer.Option(help="The common columns (default: what the site proposed)."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Look whether everything is ready: name, port, TLS, certificates, clock, disk, memory, versions, table.

    Exit code 0 if nothing fails (warnings are printed), 3 if something does.

    Example: abps site check kits/north
    """
    _show(kit, read_codebook(codebook) if codebook is not None else None, as_json, stuck=False)


def doctor(
    kit: AnyKit,
    after: Annotated[float, typer.Option(help="Seconds in one step after which it counts as stuck.")] = 300.0,
    as_json: options.Json = False,
) -> None:
    """Say what a job here is waiting for, for whom and since when; and run every check.

    At the relay it tells of the conductor, at a site of the site's own part.

    Example: abps site doctor kits/relay
    """
    _show(kit, None, as_json, stuck=True, after=after)


def _show(kit: Path, book: Codebook | None, as_json: bool, stuck: bool, after: float = 0.0) -> None:
    from abps.sites.consent import preflight
    from abps.sites.consent.kit import read_kit
    from abps.sites.node.diagnosis import diagnose

    given = read_kit(kit)
    found = list(diagnose(given, after)) if stuck else []
    found += preflight.checks(given, book)
    failed = any(c.state is preflight.State.FAIL for c in found)
    if as_json:
        told = [{"check": c.name, "state": str(c.state), "sentence": c.sentence} for c in found]
        typer.echo(json.dumps({"kit": str(kit), "name": given.name, "ok": not failed, "checks": told}))
    else:
        table = Table("check", "", "", title=f"{given.name} ({given.role})", title_justify="left")
        for c in found:
            table.add_row(c.name, str(c.state), c.sentence)
        options.terminal().print(table)
    if failed:
        raise typer.Exit(FAILED)
