"""Would the federation's model serve a hospital that did not take part?"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.data.federation import Federation
from abps.data.prepare import prepare
from abps.data.split import assign_splits
from abps.fitted.evaluation import Evaluation, evaluate
from abps.fitted.layers import network_of
from abps.methods.base import Method, weighted_mean
from abps.simulator.simulate import simulate
from abps.stats.calibration import expit


@dataclass(frozen=True, eq=False)
class Outsider:
    """A center that stayed away, and how good the others' model is on all of its rows."""

    center: str
    evaluation: Evaluation


def without(federation: Federation, away: NDArray[np.bool_]) -> Federation:
    """A federation without some of its centers.  away: (centers,) true for those that stay away."""
    stays = np.flatnonzero(~away)
    part = federation.only(~away[federation.center])
    return replace(
        part,
        center=np.searchsorted(stays, part.center).astype(np.int32),
        centers=tuple(federation.centers[i] for i in stays),
        groups=None if federation.groups is None else tuple(federation.groups[i] for i in stays),
    )


def outsiders(federation: Federation, method: Method, name: str, seed: int, groups: int) -> list[Outsider]:
    """Every center once as an outsider, in so many groups of centers that stay away together.

    groups: as many as there are centers leaves one out at a time. What an outsider is given: the mean of the
    others' final models by their rows, and the codebook they agreed on. Where centers standardise by their
    own rows, so does the outsider; it needs no outcome for that.
    """
    n = federation.size
    if not 2 <= groups <= n:
        raise RequestError(f"leave centers out in 2 to {n} groups, not {groups}")
    found: dict[str, Outsider] = {}
    for g in range(groups):
        away = np.arange(n) % groups == g
        if n - away.sum() < 2:
            raise RequestError("leaving centers out needs at least two that stay; choose more groups")
        others = without(federation, away)
        training = method.training
        inside = prepare(
            others,
            seed,
            standardise=training.standardise,
            splines=training.splines,
            floor=method.privacy.floor,
        )
        run = simulate(inside, method, seed, name=name)
        if run.models is None or inside.book is None:
            raise RequestError(f"{name} keeps no weights of its own for every center; fit another method")
        sizes = inside.train.sizes.astype(np.float32)
        weights = run.models.new_tensor(sizes)
        mean = run.models[0] if len(run.models) == 1 else weighted_mean(run.models, weights)
        network = network_of(method.training.factory(inside.width), mean)
        split = assign_splits(federation, seed)
        theirs = prepare(federation, seed, inside.book, split, training.standardise, training.splines)
        for i in np.flatnonzero(away):
            rows = [part.only(int(i)) for part in (theirs.train, theirs.validation, theirs.test)]
            x, y = np.concatenate([r.x for r in rows]), np.concatenate([r.y for r in rows])
            told = expit(network.log_odds(x))
            center = federation.centers[i]
            found[center] = Outsider(center, evaluate(told, y.astype(np.float64), {}))
    return [found[center] for center in federation.centers]
