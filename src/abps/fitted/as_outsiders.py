"""How good the others' model is at a hospital that did not take part, as a model card tells it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from abps.data.federation import Federation
from abps.engine.outsiders import absences
from abps.evaluate.calibration import expit
from abps.fitted.evaluation import Evaluation, evaluate
from abps.fitted.layers import network_of
from abps.methods.base import Method


@dataclass(frozen=True, eq=False)
class Outsider:
    """A center that stayed away, and how good the others' model is on all of its rows."""

    center: str
    evaluation: Evaluation


def outsiders(federation: Federation, method: Method, name: str, seed: int, groups: int) -> list[Outsider]:
    """Every center once as an outsider, in so many groups of centers that stay away together."""
    found: dict[str, Outsider] = {}
    for turn in absences(federation, method, name, seed, groups):
        theirs = turn.rows
        network = network_of(method.training.factory(theirs.width), turn.model[0])
        for i in np.flatnonzero(turn.away):
            rows = [part.only(int(i)) for part in (theirs.train, theirs.validation, theirs.test)]
            x, y = np.concatenate([r.x for r in rows]), np.concatenate([r.y for r in rows])
            told = expit(network.log_odds(x))
            center = federation.centers[i]
            found[center] = Outsider(center, evaluate(told, y.astype(np.float64), {}))
    return [found[center] for center in federation.centers]
