"""A site's own page: what it did, believes and sent, and its model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from abps import files
from abps.core.errors import RequestError
from abps.report.document import render
from abps.sites.store.rows import RoundRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from abps.report.drawing import Drawing
    from abps.sites.consent.sitefile import SiteFile
    from abps.sites.store.store import Store


@dataclass(frozen=True)
class SiteReport:
    """What was written.  model: the folder of the model, or None and why not.  auroc: on the site's own test
    rows (of other outcomes than binary, their main score)."""

    site: str
    page: Path
    files: tuple[Path, ...]
    model: Path | None
    no_model: str
    auroc: float | None


def site_report(store: Store, own: SiteFile, out: Path) -> SiteReport:
    """Write everything that a site has of a study into a new folder."""
    from abps.fitted.handover import check_new, site_model, site_statistics, write_models
    from abps.sites.node import status

    check_new(out)
    written = status.export(store, out)
    model, auroc, why, shown = None, None, "", None
    try:
        if (found := site_statistics(store, own)) is not None:
            written = [*written, *found.write(out)]
        fitted = site_model(store, own)
        (model,) = write_models(fitted, out / "model").values()
        (evaluation,) = fitted.evaluations.values()
        main = next(iter(evaluation.measures.values()), evaluation.area)
        auroc = main.value if math.isfinite(main.value) else None
        card = (model / "card.html").relative_to(out).as_posix()
        measure = next(iter(evaluation.measures), "AUROC")
        shown = {"main": main, "auroc": auroc, "measure": measure, "evaluation": evaluation, "card": card}
    except RequestError as error:
        why = f"there is none: {error}"
    page, rounds, summary = out / "report.html", store.rounds(), status.summary(store)
    html = render(
        "site.html",
        title=f"{summary['site']} in the study {summary['study']}",
        summary=summary,
        rounds=rounds[::-1],
        model=shown,
        why_no_model=why,
        drawing=None if len(rounds) < 2 else _curve(rounds),
    )
    files.write_text(page, html)
    return SiteReport(own.site, page, (*written, page), model, why, auroc)


def _curve(rounds: Sequence[RoundRow]) -> Drawing:
    from abps.report.drawing import LATE, QUIET, blank, draw

    def make() -> Figure:
        figure = blank(5.5, 2.4)
        axes = figure.subplots()
        value = {r.number: math.nan if r.validation is None else r.validation for r in rounds}
        axes.plot([*value], [*value.values()], color=LATE, lw=1.2)
        alone = [r.number for r in rounds if not r.partners]
        axes.plot(alone, [value[n] for n in alone], "o", mfc="none", mec=QUIET, ms=5)
        axes.set(xlabel="round", ylabel="AUROC")
        return figure

    caption = "AUROC on the site's own validation rows, after each round; rings: rounds without partners."
    return draw("site-auroc", "Round by round", caption, make)
