"""``abps site rehearse``: a whole federation of made-up hospitals on this machine, in one command."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated

import typer

from abps import files
from abps.cli import options
from abps.cli.site_options import need_engine, say
from abps.cli.site_report import site_report
from abps.core.errors import RequestError

#: Where a rehearsal goes if nothing is said.
OUT = Path("abps-rehearsal")


def register(site: typer.Typer) -> None:
    """Add the command."""
    site.command("rehearse")(rehearse)


def rehearse(
    out: Annotated[Path, typer.Option(help="A new folder: kits, tables, stores, models, pages.")] = OUT,
    sites: Annotated[int, typer.Option(help="How many hospitals.")] = 4,
    method: Annotated[str, typer.Option(help="A method that runs between sites.")] = "abps-pq-k1",
    model: Annotated[str, typer.Option(help="What is shared: gam, linear or mlp.")] = "gam",
    rounds: Annotated[int, typer.Option(help="Rounds of the job.")] = 5,
    stays: Annotated[int, typer.Option(help="Stays per hospital, on average.")] = 300,
    seed: Annotated[int, typer.Option(help="Splits, initial weights and every other draw.")] = 11,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting of the method: --set gamma=0.5.")
    ] = None,
    limit: Annotated[float, typer.Option(help="Give up, loudly, after so many seconds.")] = 180.0,
    only: Annotated[
        str | None,
        typer.Option(help="prepare (kits and tables) or job (for sites that are started elsewhere)."),
    ] = None,
    host: Annotated[str, typer.Option(help="With --only prepare: the relay's name.")] = "localhost",
    port: Annotated[int, typer.Option(help="With --only prepare: the relay's port.")] = 8002,
    as_json: options.Json = False,
) -> None:
    """Rehearse a federation on this machine: certificates, kits, processes with mutual TLS, a job, models.

    The hospitals' tables are made up (icu-synthetic). No container and no other machine is needed; everything
    that is started is stopped again. Ends with report.html, and a page and a model for every hospital.

    Example: abps site rehearse --sites 4 --out abps-rehearsal
    """
    need_engine()
    logging.getLogger().addHandler(logging.NullHandler())  # the engine's loggers would write to the terminal
    from abps.fitted.handover import check_new
    from abps.report.pages.site_page import job_page
    from abps.sites.flare import rehearsal
    from abps.sites.flare.app import RESULT

    if only not in (None, "prepare", "job"):
        raise RequestError(f"--only {only}: choose prepare or job")
    settings = options.settings(set_, model)
    plan = rehearsal.Plan(sites, "rehearsal", method, settings, rounds, seed, stays, limit)

    def tell(line: str) -> None:
        if not as_json:
            say(line)

    prepared = only == "prepare" and rehearsal.is_prepared(out)
    if only != "job" and not prepared:
        check_new(out)
    if only == "prepare":
        if not prepared:  # containers that are started again go on with what they have
            rehearsal.prepare(out, plan, host, port)
        tell(f"kits and tables are in {out}")
        return
    done = (rehearsal.perform if only == "job" else rehearsal.rehearse)(out, plan, tell)
    assert done.outcome.report is not None
    files.write_json(out / RESULT, done.outcome.report)
    told = []
    for name, kit in done.network.sites.items():
        left = site_report(kit, out / "sites" / name)
        model_card = "" if left.model is None else (left.model / "card.html").relative_to(out).as_posix()
        where = left.page.relative_to(out).as_posix()
        told.append({"site": name, "auroc": left.auroc, "page": where, "model": model_card})
        if not as_json:
            auroc = "not defined" if left.auroc is None else f"{left.auroc:.3f}"
            say(f"{name}: AUROC {auroc} on its own test rows; {left.page}")
    page = out / "report.html"
    title = f"A rehearsal with {len(told)} hospitals"
    files.write_text(page, job_page(done.outcome.report, title, told, done.took))
    if as_json:
        summary = {"page": str(page), "status": done.outcome.status, "sites": told, "took": done.took}
        typer.echo(json.dumps(summary))
    else:
        say(f"wrote {page}")
