"""``abps site verify``, ``backup``, ``restore``: whether a site's memory can be believed, and its copies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from abps.cli import options
from abps.cli.site_options import Kit, Study, own_file, say, study_store
from abps.core.errors import RequestError


def register(site: typer.Typer) -> None:
    """Add the commands."""
    for command in (verify, backup, restore):
        site.command(command.__name__)(command)


def verify(
    kit: Kit,
    study: Study = None,
    partner: Annotated[
        list[Path] | None, typer.Option(help="A partner's heads.json (from its export); repeat for several.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Look through a site's log: a row that was deleted, changed or put elsewhere is found.

    Checks the chain of digests, the heads that this site signed, the journal of decisions and, with
    --partner, what partners know of this site's log. Exit code 2 if anything is wrong.

    Example: abps site verify kits/north --study icu --partner south-export/heads.json
    """
    from abps.sites.consent.keys import read_signer
    from abps.sites.store import audit

    own = own_file(kit)
    lines = len(own.journal(kit).lines())
    store = study_store(kit, study)
    try:
        heads = [head for path in partner or [] for head in audit.read_heads(path, store)]
        found = audit.verify(store, read_signer(kit), heads)
    finally:
        store.close()
    if as_json:
        told = {"rows": found.rows, "heads": found.heads, "partners": found.witnessed, "journal": lines}
        typer.echo(json.dumps({**told, "faults": list(found.faults)}))
    if found.faults:
        raise RequestError(f"{store.path} cannot be believed: {'; '.join(found.faults)}")
    if not as_json:
        options.terminal().print(
            f"{own.site}: {found.rows} rows of the log are in order, and agree with {found.heads} heads of "
            f"its own and {found.witnessed} that partners hold; {lines} lines of the journal are in order",
            soft_wrap=True,
        )


def backup(kit: Kit, out: options.Out, study: Study = None, as_json: options.Json = False) -> None:
    """Copy a site's memory of a study: beliefs, model, log. A job may run meanwhile.

    Example: abps site backup kits/north --out backups/2026-11-17
    """
    from abps.sites.consent import backup as copies

    store = study_store(kit, study)
    store.close()
    written = copies.backup(store.path, out)
    if as_json:
        typer.echo(json.dumps({"files": [str(path) for path in written]}))
        return
    for path in written:
        say(f"wrote {path}")


def restore(
    kit: Kit,
    source: Annotated[Path, typer.Option("--from", help="The folder that backup wrote.")],
    study: Annotated[str, typer.Option(help="The study.")],
    by: Annotated[str, typer.Option(help="The name of the person who restores; it is written down.")],
    partner: Annotated[
        list[Path] | None, typer.Option(help="A partner's heads.json; repeat for several.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Bring a site's memory of a study back from a backup; what was there is kept beside it.

    A backup whose log is not in order is refused. With --partner it is said how many rows partners know of
    that the backup lacks.

    Example: abps site restore kits/north --study icu --from backups/2026-11-17 --by "Ada Example"
    """
    from abps.sites.consent import backup as copies
    from abps.sites.consent.keys import read_signer
    from abps.sites.store import audit

    own = own_file(kit)
    path = own.store_of(study)
    found = copies.restore(path, source, by, read_signer(kit))
    store = study_store(kit, study)
    try:
        known = [head.rows for p in partner or [] for head in audit.read_heads(p, store)]
    finally:
        store.close()
    lost = max(0, max(known, default=0) - (found.rows - 1))
    if as_json:
        typer.echo(json.dumps({"rows": found.rows, "lost": lost}))
        return
    say(f"restored {path}: {found.rows} rows of the log are in order")
    if known:
        say(f"partners know of {lost} rows that the backup did not have")
