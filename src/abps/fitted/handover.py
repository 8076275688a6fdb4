"""What a fit leaves on disk: a folder per center, whole or not at all; also of what one site remembers."""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from abps import files
from abps.core.errors import RequestError
from abps.data.codebook import Codebook
from abps.data.prepare import prepare
from abps.data.split import assign_splits
from abps.fitted.card import CardFigure, card, front_matter, markdown, page
from abps.fitted.fit import FitResult, Making, held_out_test, networks_of, put_together
from abps.fitted.folder import INDEX, folder_names, save_model
from abps.fitted.portable import to_onnx
from abps.methods.regression import Regression
from abps.methods.sum_study import SumStudy
from abps.statistics.evaluation import EvaluationTotals
from abps.statistics.regression import RegressionResult, common_result
from abps.statistics.table_one import TableOne
from abps.wire.number_lists import NumberList

if TYPE_CHECKING:
    from abps.sites.consent.agreement import Agreement
    from abps.sites.consent.sitefile import SiteFile
    from abps.sites.store.store import Store


def check_new(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RequestError(f"{out} is there already; choose a new or empty folder")
    files.check_writable(out.parent)


def write_models(fitted: FitResult, out: Path) -> dict[str, Path]:
    """Write every center's folder (with model.onnx where onnx is installed); returns folders by center."""
    check_new(out)
    portable = importlib.util.find_spec("onnx") is not None
    part = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
    try:
        names = folder_names(model.center for model in fitted.models)
        for model in fitted.models:
            place = part / names[model.center]
            files.folder(place)
            sections = card(fitted, model)
            title = f"Model card: {model.label} at {model.center}"
            files.write_text(place / "card.md", front_matter(fitted, model) + markdown(title, sections))
            files.write_text(place / "card.html", page(title, sections))
            for section in sections:
                for block in section.blocks:
                    if isinstance(block, CardFigure):
                        files.write_text(place / block.file, block.svg)
            if portable:
                files.write_bytes(place / "model.onnx", to_onnx(model))
            save_model(model, place)
        index = {"schema": "abps.models/1", "method": fitted.making.method, "centers": names}
        result = None if fitted.evaluated is None else fitted.evaluated.to_json()
        files.write_json(part / INDEX, index | {"result": result})
        part.chmod(0o755)
        if out.exists():
            out.rmdir()
        part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return {center: out / name for center, name in names.items()}


#: How the numbers on the card of a site came about.
MEASURED = (
    "How good the model is was measured on this site's own test rows, which it has not learned from. What "
    "other sites found is not known here."
)


def _agreed(store: Store, own: SiteFile) -> Agreement:
    from abps.sites.consent.agreement import Agreement  # whose keys come with abps[flare]

    facts = store.facts()
    if "codebook" not in facts:
        raise RequestError(f"{own.site}: this study is older than stored codebooks; no model can be made")
    book, settings = Codebook.from_json(json.loads(facts["codebook"])), json.loads(facts["settings"])
    made = (facts["study"], facts["method"], book, int(facts["seed"]), int(facts["rounds"]), settings)
    return Agreement(*made).admitted(own.allow)


def site_statistics(store: Store, own: SiteFile) -> RegressionResult | TableOne | EvaluationTotals | None:
    """What a study of sums found, from the totals that a site has; None if the study is something else."""
    agreement = _agreed(store, own)
    config = agreement.config()
    if not isinstance(config, SumStudy):
        return None
    data = agreement.prepare(own.read_table(agreement.book))
    totals = [NumberList.read(content)[0].values for content in store.broadcasts().values()]
    found = config.result(config.inputs(data)[0], data, totals)
    if isinstance(found, str | np.ndarray):
        raise RequestError(found if isinstance(found, str) else f"{own.site}: the study is not done yet")
    notes = _who_took_part(store, config)
    if not isinstance(config, Regression):
        return replace(found, notes=notes)
    family = config.likelihood(data.outcome.kind)
    return common_result(found, family, config.intercepts, config.clustered, own.label, notes)


def _who_took_part(store: Store, config: SumStudy) -> tuple[str, ...]:
    kept, opened = store.state(), json.loads(store.facts().get("summed", "null"))
    absent = [] if kept is None or opened is None else sorted(set(kept[0]) - set(opened))
    said = f"without {', '.join(absent)}" if absent else "all approved members took part"
    return (f"{said}; approved for absent members: {config.if_absent()[1]}",)


def site_model(store: Store, own: SiteFile) -> FitResult:
    """A site's final model, with the evaluation on its own rows: nothing of it was seen by others."""
    agreement = _agreed(store, own)
    book, seed, config = agreement.book, agreement.seed, agreement.config()
    if isinstance(config, SumStudy):
        raise RequestError("this study makes statistics and no model; they are in this folder")
    weights = store.model()
    if weights is None:
        raise RequestError(f"{own.site}: no round is finished yet, so there is no model")
    federation = own.read_table(book)
    split = assign_splits(federation, seed, book.shared_patients)
    training = config.training
    data = prepare(federation, seed, book, split, training.standardise, training.splines)
    final = networks_of(data, config, weights.copy()[None], split)
    rounds = store.rounds()
    making = Making(
        agreement.method,
        len(rounds),
        seed,
        len({entry.peer for entry in store.traffic()}),
        sum(store.sent_bytes().values()),
        sum(len(r.partners) for r in rounds) / max(1, len(rounds)),
        MEASURED,
    )
    return put_together(federation, config, making, held_out_test(final), final)
