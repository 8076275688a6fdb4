"""The model of one site, from what it remembers of a study and from its own table."""

from __future__ import annotations

import json

from abps.core.errors import RequestError
from abps.data.codebook import Codebook
from abps.data.prepare import prepare
from abps.data.split import assign_splits
from abps.fitted.fit import FitResult, Making, held_out_test, networks_of, put_together
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.sitefile import SiteFile
from abps.sites.store.store import Store

MEASURED = (
    "How good the model is was measured on this site's own test rows, which it has not learned from. What "
    "other sites found is not known here."
)


def site_model(store: Store, own: SiteFile) -> FitResult:
    """A site's final model, with the evaluation on its own rows: nothing of it was seen by others."""
    facts = store.facts()
    if "codebook" not in facts:
        raise RequestError(
            f"{own.site}: this study began before stores kept the codebook; no model can be made"
        )
    book = Codebook.from_json(json.loads(facts["codebook"]))
    seed = int(facts["seed"])
    agreement = Agreement(
        facts["study"], facts["method"], book, seed, int(facts["rounds"]), json.loads(facts["settings"])
    )
    config = agreement.admitted(own.allow).config()
    weights = store.model("best") if config.stop.restore_best else None
    weights = store.model() if weights is None else weights
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
