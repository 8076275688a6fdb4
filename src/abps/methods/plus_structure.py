"""How abps-plus finds out whether centers differ in ways that others share, and uses it.

Half scores go to one coordinator. From those of other folds it learns shared directions, which it sends to
every center, with the cluster it seems to belong to. A center fits half its rows with and without the
directions and reports the difference on the other half. If the sum of these gains is clearly above zero,
clusters (or, where there are none, the directions themselves) are used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.methods.base import Context, Floats, Ints
from abps.methods.plus_state import (
    ClusterState,
    LocalRows,
    Phase,
    PlusState,
    beside_sums,
    common_model,
    fold_message,
    local_of,
)
from abps.models import common_fit, structure
from abps.models.common_fit import FitState
from abps.models.hierarchical import CenterRows, CommonModel, common_losses, common_sums, posterior
from abps.wire.number_lists import NumberList

#: Folds of centers: what is tested on one was learned from the others.
FOLDS = 5

#: The level of the test whether centers differ, and its random signs.
LEVEL, SIGNS = 0.05, 99

#: Standard errors by which held-out gains must then lie above zero before structure is used.
GATE_Z = 1.64

#: Centers at most that test structure on their own rows: more would not make the verdict clearer.
MOST_JUDGES = 400

#: Precision of a cluster's mean around the common model before evidence sets it.
FIRST_CLUSTER_PENALTY = 20.0


def half_scores(state: PlusState, local: LocalRows) -> tuple[Floats, Floats]:
    """(r, 2, columns) scores of both halves of every center's rows in units of their size, and (r,) the
    information of all its rows."""
    common = common_model(state, local)
    scale = state.scale[: local.mains]
    both, total = [], np.zeros(local.rows.n)
    for keep in (local.half, ~local.half):
        score, information = structure.orthogonal_scores(local.rows.select(keep), common)
        both.append(score[:, : local.mains] / scale)
        total += information
    return np.stack(both, axis=1), total


@dataclass(frozen=True, eq=False)
class HalfScores:
    """Half scores as the coordinator works with them, in units of their size, of members that sent some.

    first, second: (n, columns).  information: (n,).  variance: (columns,) of own deviations.
    present: (n,) who sent them.
    """

    first: Floats
    second: Floats
    information: Floats
    white: structure.Whitening
    variance: Floats
    present: NDArray[np.bool_]

    @staticmethod
    def of(state: PlusState, local: LocalRows, uploads: Floats, variance: Floats) -> HalfScores:
        """From uploads (n, entries), NaN where a member sent none; variance: (columns,)."""
        parts, columns = beside_sums(Phase.HALF_SCORES, local).unpack(uploads), local.mains
        present = np.asarray(np.isfinite(uploads).all(axis=1) & (parts["information"][:, 0] > 0))
        information = np.where(present, parts["information"][:, 0], 0.0)
        share = information / max(float(information.sum()), 1e-9)
        first, second = (
            np.where(present[:, None], half, 0.0)
            for half in (parts["halves"][:, :columns], parts["halves"][:, columns:])
        )
        # What all have in common is no difference between them: the common fit is not at its end yet.
        first, second = (half - share[:, None] * half.sum(axis=0) for half in (first, second))
        # In units of the scores' size coefficients are larger by the same factor.
        main = slice(0, local.mains)
        scale = state.scale[main]
        unit = state.fit.curvature[main, main] / np.outer(scale, scale) / max(float(information.sum()), 1e-9)
        return HalfScores(
            first, second, information, structure.Whitening.of(unit), variance * scale**2, present
        )

    def directions(self, who: NDArray[np.bool_]) -> Floats:
        """(columns, dimensions) shared by the members ``who`` (n,)."""
        some = self.present & who
        found = np.zeros((self.first.shape[1], structure.DIMENSIONS))
        shared = structure.subspace(
            self.first[some], self.second[some], self.information[some], self.white, self.variance
        )
        found[:, : shared.shape[1]] = shared
        return found

    def clusters(self) -> tuple[Ints, int]:
        """(n,) the cluster of every member, and how many there are."""
        loadings = self.directions(self.present)[:, : structure.CLUSTER_DIMENSIONS]
        place, doubt = structure.positions(
            self.first + self.second, self.information, self.white, loadings, self.variance
        )
        found = structure.find_clusters(place[self.present], doubt[self.present])
        number = np.zeros(len(place), dtype=np.int64)
        number[self.present] = found.argmax(axis=1)
        return number, found.shape[1]


def propose(context: Context, halves: HalfScores, local: LocalRows) -> tuple[float, dict[int, NumberList]]:
    """The p-value of the test whether centers differ; if they do, what the coordinator tells every member of
    shared directions and of its cluster."""
    who = np.flatnonzero(halves.present)
    if len(who) < FOLDS:
        return 1.0, {}
    draw = [streams.uniforms(context.seed, "sketch", 10 + k, context.ids[who]) for k in range(SIGNS)]
    chance = structure.difference_test(
        halves.first[who],
        halves.second[who],
        halves.information[who],
        halves.white,
        np.where(np.stack(draw) < 0.5, -1.0, 1.0),
    )
    if chance > LEVEL:
        return chance, {}
    order = np.argsort(streams.uniforms(context.seed, "sketch", 1, context.ids), kind="stable")
    fold = np.empty(context.n, dtype=np.int64)
    fold[order] = np.arange(context.n) % FOLDS
    form, messages = fold_message(local), {}
    number, count = halves.clusters()
    for k in range(FOLDS):
        loadings = halves.directions(fold != k).T
        for member in np.flatnonzero(fold == k).tolist():
            values: dict[str, Floats | float] = {"loadings": loadings}
            values |= {"cluster": float(number[member]), "clusters": float(count)}
            messages[member] = NumberList.of(form.pack(values), form.form)
    return chance, messages


def take_proposal(context: Context, state: PlusState, own: list[Floats]) -> PlusState:
    """The state with shared directions and clusters; own: what each center here was sent."""
    local = local_of(context, state)
    fields = fold_message(local)
    scale = state.scale[: local.mains]
    loadings = np.zeros_like(state.clusters.loadings)
    number, count = np.zeros(context.r, dtype=np.int64), 1
    for i, values in enumerate(own):
        if not len(values):
            continue
        unpacked = fields.unpack(values)
        loadings[i] = unpacked["loadings"].reshape(loadings.shape[1:]) / scale
        number[i], count = int(unpacked["cluster"][0]), int(unpacked["clusters"][0])
    clusters = replace(state.clusters, loadings=loadings, number=number, count=count)
    gains, common = np.zeros_like(state.own.gains), common_model(state, local)
    for i in np.flatnonzero(judges(context)[context.local_index]).tolist():
        gains[i] = structure.held_out_gain(local.rows, i, common, loadings[i].T, local.half)
    return replace(state, clusters=clusters, own=replace(state.own, gains=gains))


def judges(context: Context) -> NDArray[np.bool_]:
    """(n,) which members test the proposal on their own rows: all, or so many drawn from the seed."""
    draw = streams.uniforms(context.seed, "sketch", 3, context.ids)
    chosen = np.zeros(context.n, dtype=bool)
    chosen[np.argsort(draw, kind="stable")[:MOST_JUDGES]] = True
    return chosen


def gate(state: PlusState, local: LocalRows, gains: Floats, squares: Floats) -> PlusState:
    """The state after the test: structure is used if the mean gain is clearly above zero.

    gains, squares: (candidates,) sums over centers.
    """
    n = min(max(state.fit.centers, 2), MOST_JUDGES)
    z = structure.gain_z(gains, squares, n)
    best = int(np.argmax(z))
    if not z[best] > GATE_Z:
        return replace(state, clusters=ClusterState.none(local))
    clusters = replace(state.clusters, chosen=best)
    return replace(state, clusters=begin_fits(state, local, clusters) if clusters.count > 1 else clusters)


def begin_fits(
    state: PlusState, local: LocalRows, clusters: ClusterState, means: Floats | None = None
) -> ClusterState:
    """Fits of the clusters that have a center here, from means (clusters, q) or from the common model."""
    q = local.q
    names = np.unique(clusters.number)
    penalty = np.where(local.group >= 0, FIRST_CLUSTER_PENALTY, 1e-3)
    fits = []
    for name in names.tolist():
        point = np.zeros(q) if means is None else means[name]
        # The curvature is known with the cluster's share of all rows, which comes with its sums.
        fits.append(replace(state.fit, point=point, penalty=penalty, base=None, centers=0))
    return replace(clusters, names=names, fits=tuple(fits))


def cluster_sums(state: PlusState, local: LocalRows) -> tuple[Floats, Floats, Floats]:
    """(r, q) scores, (r, fractions) losses and (r,) raw losses of every center at the mean of its cluster."""
    rows, n = local.rows, local.rows.n
    variance = np.zeros(local.q)
    variance[local.constants] = 1.0
    score, losses, raw = np.zeros((n, local.q)), np.zeros((n, len(common_fit.FRACTIONS))), np.zeros(n)
    for name, fit in zip(state.clusters.names.tolist(), state.clusters.fits, strict=True):
        mine = state.clusters.number == name
        score[mine], losses[mine], raw[mine] = sums_along(
            rows.centers(mine), fit, state.fit.point, variance, state.dispersion
        )
    return score, losses, raw


def sums_along(
    rows: CenterRows, fit: FitState, centre: Floats, variance: Floats, dispersion: float
) -> tuple[Floats, Floats, Floats]:
    """(n, q) scores and (n,) raw losses at a fit's point, and (n, fractions) losses after parts of its step.

    centre, variance: (q,) what points are deviations from, and of intercepts.
    """

    def common(fraction: float) -> CommonModel:
        mean = (centre + fit.part_of_step(fraction)).reshape(rows.shape)
        return CommonModel(mean, variance.reshape(rows.shape), dispersion)

    sums = common_sums(rows, common(1.0))
    parts = [common_losses(rows, common(fraction)) for fraction in common_fit.FRACTIONS[1:]]
    return sums.score.reshape(rows.n, -1), np.stack([sums.loss, *parts], axis=1), sums.raw


def step_clusters(state: PlusState, sums: dict[int, tuple[Floats, Floats, float, int]]) -> PlusState:
    """One quasi-Newton step in every cluster here; sums: by cluster its score (q,), losses (fractions,),
    share of all rows and number of centers."""
    fits: list[FitState] = []
    for name, fit in zip(state.clusters.names.tolist(), state.clusters.fits, strict=True):
        score, losses, share, centers = sums[name]
        if fit.centers == 0:
            fit = replace(fit, curvature=state.fit.curvature * max(share, 1e-6), centers=centers)
        fits.append(common_fit.quasi_newton_step(fit, score, losses))
    return replace(state, clusters=replace(state.clusters, fits=tuple(fits)))


def choose_clusters(state: PlusState, local: LocalRows, means: Floats) -> PlusState:
    """Every center moves to the cluster under which the evidence of its rows is largest.

    means: (clusters, q) deviations of the clusters' means from the common model.
    """
    rows, shape = local.rows, local.rows.shape
    variance, number = state.variance.reshape(shape), state.clusters.number.copy()
    priors = [
        CommonModel((state.fit.point + mean).reshape(shape), variance, state.dispersion) for mean in means
    ]
    for i in range(rows.n):
        x, y = rows.design(i), rows.outcomes(i)
        number[i] = np.argmax([posterior(x, y, rows.family, prior).evidence for prior in priors])
    clusters = begin_fits(state, local, replace(state.clusters, number=number), means)
    return replace(state, clusters=clusters)
