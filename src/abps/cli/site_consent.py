"""``abps site approve``, ``refuse``, ``withdraw``: a hospital's decisions about studies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from abps.cli import options
from abps.cli.site_options import Kit, own_file

Study = Annotated[str, typer.Argument(help="The study.")]
By = Annotated[str, typer.Option(help="The name of the person who decides; it is written down.")]
Digest = Annotated[
    str | None, typer.Option("--proposal", help="The beginning of a proposal's digest (default: the latest).")
]


def register(site: typer.Typer) -> None:
    """Add the commands."""
    for command in (approve, refuse, withdraw, proposals):
        site.command(command.__name__)(command)


def approve(
    kit: Kit,
    study: Study,
    by: By,
    proposal: Digest = None,
    as_json: options.Json = False,
) -> None:
    """Approve a study that was proposed to this site. Without it nothing leaves.

    The approval is of this proposal alone: another method, more columns or more rounds have to be approved
    anew. Look at what would leave first: abps site preview.

    Example: abps site approve kits/north icu --by "Dr. Ada Example"
    """
    _decide(kit, study, "approved", by, proposal, as_json)


def refuse(
    kit: Kit,
    study: Study,
    by: By,
    proposal: Digest = None,
    as_json: options.Json = False,
) -> None:
    """Refuse a study that was proposed to this site.

    Example: abps site refuse kits/north icu --by "Dr. Ada Example"
    """
    _decide(kit, study, "refused", by, proposal, as_json)


def withdraw(kit: Kit, study: Study, by: By, as_json: options.Json = False) -> None:
    """Take this site out of a study: from the next round on it takes no part.

    It holds for every proposal of the study, until one is approved again. What partners have learned from
    earlier rounds cannot be called back.

    Example: abps site withdraw kits/north icu --by "Dr. Ada Example"
    """
    _decide(kit, study, "withdrawn", by, None, as_json)


def proposals(kit: Kit, as_json: options.Json = False) -> None:
    """List the studies that were proposed to this site, with what was decided about them.

    Example: abps site proposals kits/north
    """
    from abps.sites.consent import approval

    own = own_file(kit)
    found = approval.pending(Path(own.store), own.journal(kit))
    if as_json:
        typer.echo(json.dumps([_told(each) for each in found]))
        return
    console = options.terminal()
    if not found:
        console.print(f"{own.site}: no study has been proposed yet")
    for each in found:
        _show(each)


def _decide(kit: Path, study: str, verdict: str, by: str, digest: str | None, as_json: bool) -> None:
    from abps.sites.consent import approval

    own = own_file(kit)
    done = approval.decide(Path(own.store), own.journal(kit), study, approval.Verdict(verdict), by, digest)
    if as_json:
        typer.echo(json.dumps(_told(done)))
        return
    _show(done)


def _told(each: Any) -> dict[str, Any]:
    decision = None
    if each.decision is not None:
        decision = {"what": each.decision.what, "by": each.decision.facts["by"], "at": each.decision.at}
    return {
        "proposal": each.proposal.digest(),
        "operator": each.operator,
        "at": each.at,
        "terms": each.proposal.terms(),
        "decision": decision,
    }


def _show(each: Any) -> None:
    console = options.terminal()
    told = _told(each)
    console.print(f"proposal {told['proposal'][:16]} of {told['operator']}, {told['at']}", soft_wrap=True)
    for name, value in told["terms"].items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        console.print(f"  {name}: {shown}", soft_wrap=True)
    decision = told["decision"]
    if decision is None:
        console.print("  waits for a decision")
    else:
        console.print(f"  {decision['what']} by {decision['by']} on {decision['at']}", soft_wrap=True)
