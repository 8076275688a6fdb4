"""``abps site report``: what a site has in the end, as a folder and a page of its own."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import typer

from abps import files
from abps.cli import options
from abps.cli.site_options import Kit, Study, own_file, say, study_store
from abps.core.errors import RequestError
from abps.sites.node import status as account

PAGE = "report.html"


@dataclass(frozen=True)
class Left:
    """What a site was left with.  model: the folder of its model, or None.  auroc: on its own test rows (of
    other outcomes than binary, their main score)."""

    site: str
    page: Path
    model: Path | None
    auroc: float | None
    files: tuple[Path, ...]


def register(site: typer.Typer) -> None:
    """Add the command."""
    site.command("report")(report)


def report(kit: Kit, out: options.Out, study: Study = None, as_json: options.Json = False) -> None:
    """Write a site's own page and model: rounds, partners, beliefs, bytes, refusals, how good its model is.

    Everything of `abps site export`, and report.html beside it. Nothing is sent.

    Example: abps site report kits/north --out north-report
    """
    left = site_report(kit, out, study)
    if as_json:
        told = {"site": left.site, "page": str(left.page), "model": left.model and str(left.model)}
        typer.echo(json.dumps({**told, "test_auroc": left.auroc}))
        return
    say(f"wrote {left.page}")
    if left.model is not None:
        say(f"the model: {left.model}")


def site_report(kit: Path, out: Path, study: str | None = None) -> Left:
    """Write the folder of a site's report."""
    from abps.fitted.at_site import site_model
    from abps.fitted.handover import check_new, write_models
    from abps.report.pages.site_page import card_of, site_page

    own = own_file(kit)
    store = study_store(kit, study)
    try:
        check_new(out)
        written = account.export(store, out)
        told, rounds = account.summary(store), store.rounds()
        model, evaluation, why = None, None, ""
        try:
            fitted = site_model(store, own)
            (model,) = write_models(fitted, out / "model").values()
            (evaluation,) = fitted.evaluations.values()
        except RequestError as error:
            why = f"there is none: {error}"
    finally:
        store.close()
    card = "" if model is None else card_of(model, out)
    files.write_text(out / PAGE, site_page(told, rounds, evaluation, card, why))
    auroc = None
    if evaluation is not None:
        value = next(iter(evaluation.measures.values()), evaluation.area).value
        auroc = value if math.isfinite(value) else None
    return Left(own.site, out / PAGE, model, auroc, (*written, out / PAGE))
