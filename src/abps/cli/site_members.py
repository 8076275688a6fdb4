"""``abps site rotate`` and ``abps site revoke``: members change, the network stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from abps.cli import options
from abps.cli.site_options import need_engine, say

Member = Annotated[str, typer.Argument(help="A site, an operator's address, or the relay's host name.")]
Kits = Annotated[Path, typer.Option(help="The folder that `abps site provision` made, with the authority.")]


def register(site: typer.Typer) -> None:
    """Add the commands."""
    site.command("rotate")(rotate)
    site.command("revoke")(revoke)


def rotate(member: Member, kits: Kits, as_json: options.Json = False) -> None:
    """Give a member a new key and certificate, before the old one ends or after it got lost.

    Copy the two files from kits/rotated/MEMBER into the `startup` folder of its kit, and start it again; the
    old certificate is refused from then on. Stores, studies and all other members stay as they are.

    Example: abps site rotate north --kits kits
    """
    need_engine()
    from abps.sites.flare.authority import Authority

    done = Authority(kits).rotate(member)
    assert done.until is not None
    if as_json:
        files = [str(path) for path in done.written]
        typer.echo(json.dumps({"member": member, "until": done.until.isoformat(), "files": files}))
        return
    say(f"{member} has a new certificate, good until {done.until:%Y-%m-%d}: {done.written[0].parent}")
    _pass_on(done.list)


def revoke(member: Member, kits: Kits, as_json: options.Json = False) -> None:
    """Expel a member without making a new network.

    The relay refuses its certificate, jobs leave it out from the next round on, and every site that has seen
    the list, which the authority signs, takes nothing from it. `abps site provision` brings it back.

    Example: abps site revoke south --kits kits
    """
    need_engine()
    from abps.sites.flare.authority import Authority

    done = Authority(kits).revoke(member)
    if as_json:
        typer.echo(json.dumps({"member": member, "files": [str(path) for path in done.written]}))
        return
    say(f"{member} is no longer a member")
    _pass_on(done.list)


def _pass_on(path: Path) -> None:
    say(f"if the relay's kit is on another machine, copy {path} into its folder `local`; it may run on")
