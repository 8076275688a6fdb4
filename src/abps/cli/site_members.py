"""``abps site rotate``, ``revoke``, ``request``, ``certify``, ``install``: keys change, the network stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from abps.cli import options
from abps.cli.site_options import need_engine, say

if TYPE_CHECKING:
    from abps.sites.flare.authority import Change

Member = Annotated[str, typer.Argument(help="A site, an operator's address, or the relay's host name.")]
Kits = Annotated[Path, typer.Option(help="The folder that `abps site provision` made, with the authority.")]


def register(site: typer.Typer) -> None:
    """Add the commands."""
    site.command("rotate")(rotate)
    site.command("revoke")(revoke)
    site.command("request")(request)
    site.command("certify")(certify)
    site.command("install")(install)


def rotate(member: Member, kits: Kits, as_json: options.Json = False) -> None:
    """Give a member a new key and certificate, before the old one ends or after it got lost.

    Copy the two files from kits/rotated/MEMBER into the `startup` folder of its kit, delete them here, and
    start it again; the old certificate is refused from then on. Stores, studies and all other members stay as
    they are. A site can also make its key itself, and nobody else sees it: see `abps site request`.

    Example: abps site rotate north --kits kits
    """
    need_engine()
    from abps.sites.flare.authority import Authority

    _tell(Authority(kits).rotate(member), as_json)


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


def request(
    kit: Annotated[Path, typer.Argument(help="This site's startup kit.")],
    out: Annotated[Path, typer.Option(help="The request, to be sent to the operator.")],
    as_json: options.Json = False,
) -> None:
    """Make a key of the site's own, which never leaves it, and a request for its certificate.

    Send the request to the operator, who answers with a certificate (`abps site certify`); then run
    `abps site install`. The kit works as before until then. Tell the operator the fingerprint that is printed
    by telephone, if the kit has no key yet or its key was lost.

    Example: abps site request north --out north.csr
    """
    from abps.sites.consent import keys
    from abps.sites.consent.kit import read_kit

    made = keys.request_certificate(read_kit(kit), out)
    if as_json:
        told = {"member": made.member, "request": str(out), "fingerprint": made.fingerprint}
        typer.echo(json.dumps(told | {"signed": bool(made.signature)}))
        return
    say(f"wrote {out}; its fingerprint is {made.fingerprint}")
    if not made.signature:
        say("the kit has no key to sign the request with: read the fingerprint out to the operator")


def certify(
    request: Annotated[Path, typer.Argument(help="A site's request.")],
    kits: Kits,
    fingerprint: Annotated[
        str, typer.Option(help="What somebody at the site read out; needed if its present key did not sign.")
    ] = "",
    as_json: options.Json = False,
) -> None:
    """Give a site a certificate for the key that it has made itself.

    Send kits/rotated/MEMBER/client.crt back; it is no secret. The old certificate is refused from then on.

    Example: abps site certify north.csr --kits kits
    """
    need_engine()
    from abps.sites.consent import keys
    from abps.sites.flare.authority import Authority

    asked = keys.read_request(request)
    _tell(Authority(kits).certify(asked, fingerprint), as_json)


def install(
    kit: Annotated[Path, typer.Argument(help="This site's startup kit.")],
    certificate: Annotated[Path, typer.Option(help="What the operator sent back.")],
    as_json: options.Json = False,
) -> None:
    """Put the certificate that the operator sent, and the key that it is for, into the kit.

    Start the site again afterwards.

    Example: abps site install north --certificate client.crt
    """
    from abps.sites.consent import keys
    from abps.sites.consent.kit import read_kit

    paper = keys.install_certificate(read_kit(kit), certificate)
    until = paper.not_valid_after_utc
    if as_json:
        typer.echo(json.dumps({"kit": str(kit), "until": until.isoformat()}))
        return
    say(f"{kit} has a key of its own, with a certificate good until {until:%Y-%m-%d}; start the site again")


def _tell(done: Change, as_json: bool) -> None:
    """A new certificate."""
    assert done.until is not None
    if as_json:
        files = [str(path) for path in done.written]
        typer.echo(json.dumps({"member": done.member, "until": done.until.isoformat(), "files": files}))
        return
    say(f"{done.member} has a new certificate, good until {done.until:%Y-%m-%d}: {done.written[0].parent}")
    _pass_on(done.list)


def _pass_on(path: Path) -> None:
    say(f"if the relay's kit is on another machine, copy {path} into its folder `local`; it may run on")
