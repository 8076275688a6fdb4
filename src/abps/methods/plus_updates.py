"""What every member of abps-plus computes from broadcast sums: the same numbers, in the same way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from abps.methods.base import Context, Decisions, Floats
from abps.methods.plus_state import (
    ClusterState,
    LocalRows,
    OwnSums,
    PlusState,
    local_of,
    square,
    widened,
)
from abps.models import common_fit
from abps.models.common_fit import FitState
from abps.models.families import Family, Multinomial
from abps.models.hierarchical import (
    ALONE_INTERCEPT_VARIANCE,
    CommonModel,
    Posterior,
    alone,
    chance_of_gain,
    posterior,
)
from abps.models.interactions import PairTerms, column_effects
from abps.models.structure import with_loadings

#: While the common model is fitted intercepts are nearly free: its loss is then close to quadratic.
WORKING_INTERCEPT_VARIANCE = 1.0

#: Ridge per row of the first step. Evidence sets it later: a first curvature of a wide table is too coarse.
FIRST_PENALTY = 0.01

#: In federations of more centers only those that surprise are asked whether they would rather be alone.
MANY_CENTERS = 300

#: Peers of a cluster that are named in the audit trail, the largest first.
MOST_NAMED = 50

#: When the audit trail warns of data: so few rows or events, such a share of all rows, values so many
#: standard deviations away; so many columns of one kind are named.
FEW_ROWS, FEW_EVENTS, MUCH_OF_ALL, FAR_OUT, MOST_WARNINGS = 10, 5, 0.4, 10.0, 5

#: Patients for whom the chance is computed that collaboration lowers a hospital's loss.
NEXT_PATIENTS = 100.0

#: By how much the log-evidence of a center's own rows must speak for its own model before it keeps that,
#: beside the logarithm of the number of centers: among many, some do so by chance.
REST_MARGIN = 3.0

#: Under masks: by how much, per row and in all, the common model may fit a center's own rows worse than a
#: model of these rows alone: more than the latter gains by being fitted to them.
MOST_HARM, MOST_HARM_ALL = 0.05, 20.0


def after_start(
    state: PlusState, local: LocalRows, sums: dict[str, Floats], packed: dict[str, Floats]
) -> PlusState:
    """Curvature, intercepts and the first step."""
    q, n = local.q, float(sums["members"][0])
    size = np.sqrt(np.maximum(sums["diagonal"], 1e-9))
    if "triangle" in packed:
        correlation = common_fit.assemble_curvature(square(packed["triangle"], q))
    else:
        gaps = packed["gaps"] * common_fit.WIDEST_GAP
        correlation = common_fit.decompress(packed["factors"].reshape(-1, q), gaps, packed["values"])
    owner = np.arange(q) // local.rows.shape[1] == np.arange(local.terms)[:, None]
    weight = np.maximum(sums["middle"][local.constants], 1e-9)
    certainty = np.clip(1.0 - sums["doubt"] / n / state.fit.intercept_variance, 0.01, 0.999)
    point, score = np.zeros(q), _exact_score(local, sums["score"])
    # Intercepts around their own mean leave nothing to explain.
    point[local.constants], score[local.constants] = sums["shift"] / n, 0.0
    fit = replace(
        state.fit,
        point=point,
        curvature=correlation * np.outer(size, size),
        penalty=np.where(local.group >= 0, FIRST_PENALTY * float(sums["rows"][0]), 1e-3),
        middle=np.where(owner, sums["middle"] / np.repeat(weight, local.rows.shape[1]), 0.0),
        certainty=certainty,
        centers=int(n),
    )
    variance = np.full(local.terms, WORKING_INTERCEPT_VARIANCE)
    fit = common_fit.with_intercept_variance(fit, variance)
    system = fit.curvature + np.diag(fit.penalty)
    aim = np.asarray(np.linalg.solve(system, fit.curvature @ point + score), dtype=np.float64)
    # The loss was taken with other intercepts: it is no measure of later ones.
    fit = replace(fit, point=aim, base=(point, score, np.inf))
    full = state.variance.copy()
    full[local.constants] = variance
    return replace(
        state,
        fit=fit,
        variance=full,
        scale=size,
        rows=float(sums["rows"][0]),
        information=float(weight.mean()),
    )


def _exact_score(local: LocalRows, score: Floats) -> Floats:
    """(q,) the score; of classes without what rounding adds to its sum over classes, which is zero: there is
    no curvature in that direction, and the step would be huge."""
    if not isinstance(local.rows.family, Multinomial):
        return score.copy()
    table = score.reshape(local.rows.shape)
    return np.asarray((table - table.mean(axis=0)).ravel())


def after_step(state: PlusState, local: LocalRows, sums: dict[str, Floats]) -> PlusState:
    """One quasi-Newton step; after the first one, the dispersion of the loss."""
    score = _exact_score(local, sums["score"] * state.scale)
    fit = common_fit.quasi_newton_step(state.fit, score, sums["losses"])
    factor = local.rows.family.dispersion_factor
    if not factor or state.exchanges != 1:
        return replace(state, fit=fit)
    dispersion = max(factor * float(sums["raw"][0]) / max(state.rows, 1.0), 1e-6)
    ratio = dispersion / state.dispersion
    scale = state.scale / np.sqrt(ratio)
    return replace(state, fit=common_fit.with_dispersion(fit, ratio), dispersion=dispersion, scale=scale)


def effects_of(state: PlusState, local: LocalRows) -> Floats:
    """(columns, inputs + 1) what the strongest columns say in the common model; ``local`` without pairs."""
    fit = state.fit
    mean = fit.point.reshape(local.rows.shape)
    return column_effects(mean, fit.curvature, fit.middle, state.information, local.source)


def after_pairs(
    state: PlusState, local: LocalRows, sums: dict[str, Floats], chosen: dict[str, Floats]
) -> PlusState:
    """One quasi-Newton step, with pair terms as further columns where some earned their place.

    chosen: first and second (pairs,) columns, and the sums (terms * pairs,) of their scores and information.
    """
    effects = effects_of(state, local)
    state, count = after_step(state, local, sums), len(chosen["first"])
    if not count:
        return state
    first, second = chosen["first"].astype(np.int64), chosen["second"].astype(np.int64)
    if max(first.max(), second.max()) >= len(effects) or not (chosen["information"] > 0).all():
        raise ValueError("pairs of columns that do not exist")
    pairs = PairTerms(effects[first], effects[second])
    wide = local.with_pairs(pairs)
    at = np.flatnonzero(wide.group >= local.groups)

    def widen(values: Floats, further: Floats | float = 0.0) -> Floats:
        found = widened(values, local, count)
        found[..., at] = further
        return found

    fit = state.fit
    assert fit.base is not None
    point, score, loss = fit.base
    base = (widen(point), widen(score, chosen["score"]), loss)
    curvature = widen(widen(fit.curvature).T)
    curvature[at, at] = chosen["information"]
    penalty = widen(fit.penalty, FIRST_PENALTY * state.rows)
    target = curvature @ base[0] + base[1]
    penalty, aim = common_fit.evidence_penalties(curvature, target, penalty, wide.group)
    fit = replace(
        fit,
        point=aim,
        curvature=curvature,
        penalty=penalty,
        group=wide.group,
        middle=widen(fit.middle),
        base=base,
    )
    return replace(
        state,
        fit=fit,
        pairs=pairs,
        variance=widen(state.variance),
        scale=widen(state.scale, np.sqrt(chosen["information"])),
        own=OwnSums.none(wide),
        clusters=ClusterState.none(wide),
    )


def without_pair_effects(state: PlusState, local: LocalRows) -> PlusState:
    """The common model as it would be without pair terms, which are then zero for all.

    Where centers differ much, a common model is wrong for each of them, and pairs of columns partly mend what
    is no interaction inside any cluster.
    """
    if not local.pairs:
        return state
    fit, pair = state.fit, local.group >= local.groups - local.terms
    point = np.where(pair, 0.0, fit.point)
    system = fit.curvature + np.diag(fit.penalty)
    point[~pair] += np.linalg.solve(
        system[np.ix_(~pair, ~pair)], system[np.ix_(~pair, pair)] @ fit.point[pair]
    )
    nothing = PairTerms(0.0 * state.pairs.left, 0.0 * state.pairs.right)
    return replace(state, fit=replace(fit, point=point), pairs=nothing)


def after_variances(
    state: PlusState, local: LocalRows, sums: dict[str, Floats], move: bool = True
) -> PlusState:
    """Variances by evidence, and a step of the common model with all own deviations in place.

    move: whether the common model moves; within clusters it stays.
    """
    used = local.group >= 0
    before = np.zeros(local.groups)
    before[local.group[used]] = state.variance[used]
    each, intercept = common_fit.variances(sums, before)
    variance = np.where(used, each[np.maximum(local.group, 0)], 0.0)
    variance[local.constants] = intercept
    fit = state.fit
    if move:
        fit = replace(fit, certainty=np.clip(sums["shift_dof"] / fit.centers, 0.001, 0.999))
        system = fit.curvature + np.diag(fit.penalty)
        step = np.linalg.solve(system, sums["score"] * state.scale - fit.penalty * fit.point)
        fit = common_fit.with_intercept_variance(replace(fit, point=fit.point + step), intercept)
    return replace(state, fit=fit, variance=variance)


def prior_means(state: PlusState, local: LocalRows) -> Floats:
    """(r, q) the mean of every center's prior: the common model, or that of its cluster."""
    means = np.tile(state.fit.point, (local.rows.n, 1))
    if state.clusters.fits:
        for i, number in enumerate(state.clusters.number.tolist()):
            means[i] += state.clusters.fit_of(number).point
    return means


def own_posterior(
    state: PlusState, local: LocalRows, i: int, mean: Floats, free: bool = False
) -> tuple[Posterior, Floats]:
    """The posterior of center i here with this prior mean (q,), and its mode (q,).

    free: its intercept may lie anywhere. Positions along shared directions are part of the mode alone.
    """
    rows, shape, q = local.rows, local.rows.shape, local.q
    variance = state.variance.copy()
    if free:
        variance[local.constants] = ALONE_INTERCEPT_VARIANCE
    prior = CommonModel(mean.reshape(shape), variance.reshape(shape), state.dispersion)
    x, loadings = rows.design(i), state.clusters.directions(i)
    if loadings is None:
        found = posterior(x, rows.outcomes(i), rows.family, prior)
        return found, found.model.ravel()
    x, prior = with_loadings(x, prior, loadings)
    found = posterior(x, rows.outcomes(i), rows.family, prior)
    mode = found.model[0, :q].copy()
    mode[: local.mains] += loadings @ found.model[0, q:]
    own = {name: getattr(found, name)[:, :q] for name in ("model", "score", "dof")}
    return replace(found, **own), mode


def own_posteriors(state: PlusState, local: LocalRows) -> OwnSums:
    """Every center's posterior, and what it adds to sums."""
    means = prior_means(state, local)
    found = [own_posterior(state, local, i, mean) for i, mean in enumerate(means)]
    deviation, score, dof = (
        np.stack([getattr(each, name).ravel() for each, _ in found]) for name in ("model", "score", "dof")
    )
    deviation -= means
    used, group = local.group >= 0, local.group[local.group >= 0]

    def by_group(values: Floats) -> Floats:
        return np.stack([np.bincount(group, row[used], local.groups) for row in values])

    return replace(
        state.own,
        modes=np.stack([mode for _, mode in found]),
        score=score,
        squares=by_group(deviation**2),
        dof=by_group(dof),
        shift=deviation[:, local.constants],
        shift_dof=dof[:, local.constants],
        share=np.clip(dof[:, used].mean(axis=1), 0.0, 1.0),
    )


def without_own(state: PlusState, local: LocalRows) -> Floats:
    """(r, q) the mean of every center's prior if it had not taken part, to first order.

    At the optimum the scores of all centers and the penalty add up to zero; taking one score away moves it.
    """
    means = prior_means(state, local)
    part = np.minimum(local.rows.sizes / max(state.rows, 1.0), 0.8)
    common = np.linalg.inv(state.fit.curvature + np.diag(state.fit.penalty))
    for i in range(local.rows.n):
        if state.clusters.fits:
            fit = state.clusters.fit_of(int(state.clusters.number[i]))
            system = fit.curvature + np.diag(fit.penalty)
            step = np.linalg.solve(system, state.own.score[i])
            share = min(float(part[i]) * state.fit.centers / max(fit.centers, 1), 0.8)
        else:
            step, share = common @ state.own.score[i], float(part[i])
        means[i] -= step / (1.0 - share)
    return means


def cluster_gains(state: PlusState, base: LocalRows) -> Floats:
    """(r, candidates) by how much the evidence of every center's rows speaks for clusters, in the first.

    base: rows without pair terms.
    """
    assert state.plain is not None
    bare, plain = state.plain.back(state), base.with_pairs(state.plain.pairs)
    local = base.with_pairs(state.pairs)
    inside, outside = without_own(state, local), without_own(bare, plain)
    gains = np.zeros_like(state.own.gains)
    for i in range(local.rows.n):
        with_it, _ = own_posterior(state, local, i, inside[i])
        without, _ = own_posterior(bare, plain, i, outside[i])
        gains[i, 0] = with_it.evidence - without.evidence
    return gains


def keep_own(state: PlusState, local: LocalRows) -> PlusState:
    """Centers whose rows speak for a model of their own keep that one and rest.

    What a center's rows say is the log-evidence under a prior that it had no part in, against that of ridge
    regression on its rows alone. A center that differs in its level of risk only gets a free intercept.
    """
    rows, shape = local.rows, local.rows.shape
    means, outside = prior_means(state, local), without_own(state, local)
    group = local.group.reshape(shape)
    common = CommonModel(state.fit.point.reshape(shape), np.zeros(shape), state.dispersion)
    modes, resting = state.own.modes.copy(), np.zeros(rows.n, dtype=bool)
    margin = REST_MARGIN + np.log(max(state.fit.centers, 1))
    hopes = []
    for i in np.flatnonzero(_surprising(state, local, means)).tolist():
        together = own_posterior(state, local, i, outside[i])[0].evidence
        x, y = rows.design(i), rows.outcomes(i)
        by_itself = alone(x, y, rows.family, group, common)
        prior = CommonModel(means[i].reshape(shape), state.variance.reshape(shape), state.dispersion)
        mode = state.own.modes[i].reshape(shape)
        hopes.append(chance_of_gain(x, y, rows.family, prior, mode, by_itself.model, NEXT_PATIENTS))
        if by_itself.evidence <= together + margin:
            continue
        free = own_posterior(state, local, i, outside[i], free=True)[0].evidence
        if by_itself.evidence > free + margin:
            modes[i], resting[i] = by_itself.model.ravel(), True
        else:
            modes[i] = own_posterior(state, local, i, means[i], free=True)[1]
    hope = float(np.mean(hopes)) if len(hopes) == state.fit.centers else -1.0
    return replace(state, own=replace(state.own, modes=modes), resting=resting, hope=hope)


def without_harm(state: PlusState, local: LocalRows, plain: LocalRows) -> PlusState:
    """Centers whose own rows fit much worse than under a model in which nobody else had a part keep that one.

    Under masks nobody can look at an upload, and a member that lies moves the common model at will; this
    bounds what it can do to the others. Nothing of the exchanges enters: no prior, no intercept, no pairs.

    plain: the same rows without pairs.
    """
    rows, shape, bare = local.rows, local.rows.shape, plain.rows.shape
    nothing, further = CommonModel(np.zeros(bare), np.zeros(bare), 1.0), shape[1] - bare[1]
    modes, resting = state.own.modes.copy(), state.resting.copy()
    for i in range(rows.n):
        x, y = rows.design(i), rows.outcomes(i)
        found = alone(plain.rows.design(i), y, rows.family, plain.group.reshape(bare), nothing).model
        own = widened(found.ravel(), plain, further).reshape(shape)
        with np.errstate(all="ignore"):  # a falsified model may have any size
            harm = _loss(rows.family, x, y, modes[i].reshape(shape)) - _loss(rows.family, x, y, own)
        if not harm <= max(MOST_HARM * len(y), MOST_HARM_ALL):
            modes[i], resting[i] = own.ravel(), True
    return replace(state, own=replace(state.own, modes=modes), resting=resting)


def _loss(family: Family, x: Floats, y: Floats, model: Floats) -> float:
    z = x @ model.T @ family.mix + family.baseline
    return float(family.loss(z, y, np.array([0, len(y)])).sum())


def _surprising(state: PlusState, local: LocalRows, means: Floats) -> NDArray[np.bool_]:
    """(r,) centers that lie farther from their prior than its variance explains; in a small federation all,
    because the variance may be theirs."""
    if state.fit.centers <= MANY_CENTERS:
        return np.ones(local.rows.n, dtype=bool)
    used = state.variance > 0
    squares = ((state.own.modes - means)[:, used] ** 2 / state.variance[used]).sum(axis=1)
    dof = state.own.dof.sum(axis=1) + state.own.shift_dof.sum(axis=1)
    return np.asarray(squares > dof + 2.0 * np.sqrt(2.0 * dof))


def partner_rows(context: Context, state: PlusState) -> Decisions:
    """Where every center's information comes from, as rows of the audit trail.

    The mode of a center's posterior is a weighted mean of what its own rows say and of its prior mean. A
    prior mean is one of the cluster's rows and of the common model, which is a mean over all. ``weight``: the
    share of a center's own rows (peer itself), of every peer in its cluster, of all centers (peer nobody).
    """
    clusters, members = state.clusters, context.local_index
    sizes = np.asarray(context.sizes(), dtype=np.float64)
    peers = {name: members[clusters.number == name] for name in clusters.names.tolist()}
    peers = {name: who[np.argsort(-sizes[who], kind="stable")] for name, who in peers.items()}
    part = {
        name: _own_share(fit, local_of(context, state))
        for name, fit in zip(peers, clusters.fits, strict=True)
    }
    used = "structure is used" if clusters.fits or clusters.chosen >= 0 else "no structure is used"
    rows: list[tuple[int, int, str, float, str]] = []
    for member, name, own, rests in zip(
        members.tolist(), clusters.number.tolist(), state.own.share.tolist(), state.resting, strict=True
    ):
        if state.chance >= 0:
            rows.append((member, -1, "differences", state.chance, used))
        if rests:
            rows.append((member, -1, "rested", 1.0, "the evidence of its rows speaks for its own model"))
            continue
        rows.append((member, member, "weight", own, "own rows"))
        left = 1.0 - own
        if clusters.fits:
            others = peers[name][peers[name] != member]
            share = left * part[name] * sizes[others] / max(sizes[others].sum(), 1.0)
            named = zip(others[:MOST_NAMED].tolist(), share[:MOST_NAMED].tolist(), strict=True)
            rows += [(member, peer, "weight", each, "cluster peer") for peer, each in named]
            if len(others) > MOST_NAMED:
                rows.append((member, -1, "weight", float(share[MOST_NAMED:].sum()), "further cluster peers"))
            left *= 1.0 - part[name]
        rows.append((member, -1, "weight", left, "all centers"))
    rows += [(member, -1, "warning", np.nan, said) for member, said in data_warnings(context)]
    if state.hope >= 0:
        rows.append(
            (-1, -1, "collaboration", state.hope, "chance that it lowers a hospital's loss, on average")
        )
    center, peer, decision, score, reason = (np.array(column) for column in zip(*rows, strict=True))
    nothing = np.full(len(rows), np.nan)
    words = decision.astype(object), reason.astype(object)
    return Decisions(center, peer, words[0], score, nothing, nothing, words[1])


def data_warnings(context: Context) -> list[tuple[int, str]]:
    """What is wrong with the rows of centers here: members, and sentences that name the column."""
    local: LocalRows = context.derived
    rows, columns = local.rows, context.data.columns
    known = {} if context.data.book is None else {each.name: each.kind for each in context.data.book.columns}
    number = np.array([known.get(name.partition(" ~")[0]) == "number" for name in columns], dtype=bool)
    straight = np.array([int(name.partition(" ~")[2] or 1) == 1 for name in columns], dtype=bool)
    share = np.asarray(context.sizes(), dtype=np.float64) / max(float(np.sum(context.sizes())), 1.0)
    found: list[tuple[int, str]] = []
    for i, member in enumerate(context.local_index.tolist()):
        x, y = rows.x[rows.start[i] : rows.start[i + 1]], rows.outcomes(i)
        if share[member] >= MUCH_OF_ALL:
            found.append((member, f"it has {share[member]:.0%} of all rows"))
        if len(y) < FEW_ROWS:
            found.append((member, f"it has {len(y)} rows"))
            continue
        if (y == y[0]).all():
            found.append((member, "all its outcomes are alike"))
        low, high = x.min(axis=0), x.max(axis=0)
        problems = {
            "is constant": number & (low == high),
            "has values far out": number & (np.maximum(-low, high) > FAR_OUT),
        }
        event = y == y.max()
        if context.data.outcome.binary and min(event.sum(), (~event).sum()) >= FEW_EVENTS:
            with_it, without = x[event], x[~event]
            apart = (with_it.min(axis=0) > without.max(axis=0)) | (with_it.max(axis=0) < without.min(axis=0))
            problems["separates its outcomes"] = apart
        for problem, where in problems.items():
            for k in np.flatnonzero(where & straight)[:MOST_WARNINGS].tolist():
                found.append((member, f"column {columns[k].partition(' ~')[0]} {problem}"))
    return found


def _own_share(fit: FitState, local: LocalRows) -> float:
    """The share of a cluster's mean that its own rows decide; the common model decides the rest."""
    left = fit.penalty * np.diag(np.linalg.inv(fit.curvature + np.diag(fit.penalty)))
    return float(np.clip(1.0 - left[local.group >= 0].mean(), 0.0, 1.0))
