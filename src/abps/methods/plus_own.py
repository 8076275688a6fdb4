"""What a member of abps-plus makes of the common model on its own rows, and how it accounts for it.

A center's model is the mode of its own posterior. Here is also whether the evidence of its rows lets it rest,
and what the audit trail says at the end.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from abps.data.splines import TAILS, named_terms
from abps.methods.base import Context, Decisions, Floats
from abps.methods.plus_state import LocalRows, OwnSums, PlusState, local_of, widened
from abps.models.families import Family
from abps.models.hierarchical import (
    ALONE_INTERCEPT_VARIANCE,
    CommonModel,
    FitState,
    Posterior,
    alone,
    chance_of_gain,
    posterior,
)

#: In federations of more centers only those that surprise are asked whether they would rather be alone.
MANY_CENTERS = 300

#: Peers of a cluster that are named in the audit trail, the largest first.
MOST_NAMED = 50

#: When the audit trail warns of data: so few rows or events, such a share of all rows, values so many
#: standard deviations away (where there are tails, beyond their edges); so many columns of a kind are named.
FEW_ROWS, FEW_EVENTS, MUCH_OF_ALL, FAR_OUT, MOST_WARNINGS = 10, 5, 0.4, 7.0, 5

#: Patients for whom the chance is computed that collaboration lowers a hospital's loss.
NEXT_PATIENTS = 100.0

#: By how much the log-evidence of a center's own rows must speak for its own model before it keeps that,
#: beside the logarithm of the number of centers: among many, some do so by chance.
REST_MARGIN = 3.0

#: Under masks: by how much, per row and in all, the common model may fit a center's own rows worse than a
#: model of these rows alone: more than the latter gains by being fitted to them.
MOST_HARM, MOST_HARM_ALL = 0.05, 20.0


def prior_means(state: PlusState, local: LocalRows) -> Floats:
    """(r, q) the mean of every center's prior: the common model, or that of its cluster."""
    means = np.tile(state.fit.point, (local.rows.n, 1))
    for name, fit in state.clusters.by_name.items():
        means[state.clusters.number == name] += fit.point
    return means


def own_posterior(state: PlusState, local: LocalRows, i: int, mean: Floats, free: bool = False) -> Posterior:
    """The posterior of center i here with this prior mean (q,); free: its intercept may lie anywhere."""
    rows, variance, shape = local.rows, state.variance.copy(), local.rows.shape
    if free:
        variance[local.constants] = ALONE_INTERCEPT_VARIANCE
    x, ways = rows.design(i), state.shared
    count = len(ways)
    if count:  # positions are coefficients of further columns, with variance one
        x = np.concatenate([x @ ways.T, x], axis=1)
        mean, variance = np.append(np.zeros(count), mean), np.append(np.ones(count), variance)
        shape = (1, len(mean))
    prior = CommonModel(mean.reshape(shape), variance.reshape(shape), state.dispersion)
    found = posterior(x, rows.outcomes(i), rows.family, prior)
    if not count:
        return found
    place, model = found.model[0, :count], found.model[:, count:]
    kept = {name: getattr(found, name)[:, count:] for name in ("score", "dof")}
    return Posterior(
        model + place @ ways, **kept, evidence=found.evidence, place=place, place_dof=found.dof[0, :count]
    )


def own_posteriors(state: PlusState, local: LocalRows) -> OwnSums:
    """Every center's posterior, and what it adds to sums."""
    means = prior_means(state, local)
    found = [own_posterior(state, local, i, mean) for i, mean in enumerate(means)]
    modes, score, dof = (
        np.stack([getattr(each, name).ravel() for each in found]) for name in ("model", "score", "dof")
    )
    place, place_dof = (np.stack([getattr(each, name) for each in found]) for name in ("place", "place_dof"))
    deviation, used = modes - means - place @ state.shared, local.group >= 0

    def by_group(values: Floats) -> Floats:
        return np.stack([np.bincount(local.group[used], row[used], local.groups) for row in values])

    return replace(
        state.own,
        modes=modes,
        score=score,
        squares=by_group(deviation**2),
        dof=by_group(dof),
        shift=deviation[:, local.constants],
        shift_dof=dof[:, local.constants],
        share=np.clip(dof[:, used].mean(axis=1), 0.0, 1.0),
        place=place,
        place_dof=place_dof,
    )


def without_own(state: PlusState, local: LocalRows, score: Floats) -> Floats:
    """(r, q) the mean of every center's prior if it had not taken part, to first order; score: (r, q) what it
    added to the sum of scores.

    At the optimum the scores of all centers and the penalty add up to zero; taking one score away moves it.
    """
    means = prior_means(state, local)
    part = local.rows.sizes / max(state.rows, 1.0)
    for name, fit in (state.clusters.by_name or {0: state.fit}).items():
        mine = np.flatnonzero((state.clusters.number == name) | (fit is state.fit))
        step = np.linalg.solve(fit.curvature + np.diag(fit.penalty), score[mine].T).T
        share = np.minimum(part[mine] * state.fit.centers / max(fit.centers, 1), 0.8)
        means[mine] -= step / (1.0 - share)[:, None]
    return means


def keep_own(state: PlusState, local: LocalRows) -> PlusState:
    """Centers whose rows speak for a model of their own keep that one and rest.

    What a center's rows say is the log-evidence under a prior that it had no part in, against that of ridge
    regression on its rows alone. A center that differs in its level of risk only gets a free intercept.
    """
    rows, shape = local.rows, local.rows.shape
    means, outside = prior_means(state, local), without_own(state, local, state.own.score)
    group = local.group.reshape(shape)
    common = CommonModel(state.fit.point.reshape(shape), np.zeros(shape), state.dispersion)
    modes, resting = state.own.modes.copy(), np.zeros(rows.n, dtype=bool)
    margin = REST_MARGIN + np.log(max(state.fit.centers, 1))
    hopes = []
    for i in np.flatnonzero(_surprising(state, local, means)).tolist():
        together = own_posterior(state, local, i, outside[i]).evidence
        x, y = rows.design(i), rows.outcomes(i)
        by_itself = alone(x, y, rows.family, group, common)
        variance = (state.variance + (state.shared**2).sum(axis=0)).reshape(shape)
        prior = CommonModel(means[i].reshape(shape), variance, state.dispersion)
        mode = state.own.modes[i].reshape(shape)
        hopes.append(chance_of_gain(x, y, rows.family, prior, mode, by_itself.model, NEXT_PATIENTS))
        if by_itself.evidence <= together + margin:
            continue
        if by_itself.evidence > own_posterior(state, local, i, outside[i], free=True).evidence + margin:
            modes[i], resting[i] = by_itself.model.ravel(), True
        else:
            modes[i] = own_posterior(state, local, i, means[i], free=True).model.ravel()
    hope = float(np.mean(hopes)) if len(hopes) == len(state.excluded) else -1.0
    return replace(state, own=replace(state.own, modes=modes), resting=resting, hope=hope)


def _surprising(state: PlusState, local: LocalRows, means: Floats) -> NDArray[np.bool_]:
    """(r,) centers that lie farther from their prior than its variance explains; in a small federation all,
    because the variance may be theirs."""
    if state.fit.centers <= MANY_CENTERS:
        return np.ones(local.rows.n, dtype=bool)
    used = state.variance > 0
    squares = ((state.own.modes - means)[:, used] ** 2 / state.variance[used]).sum(axis=1)
    dof = state.own.dof.sum(axis=1) + state.own.shift_dof.sum(axis=1)
    return np.asarray(squares > dof + 2.0 * np.sqrt(2.0 * dof))


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
    return float(family.loss(z, y).sum())


# The audit trail


def partner_rows(context: Context, state: PlusState) -> Decisions:
    """Where every center's information comes from, as rows of the audit trail.

    The mode of a center's posterior is a weighted mean of what its own rows say and of its prior mean. A
    prior mean is one of the cluster's rows and of the common model, which is a mean over all. ``weight``: the
    share of a center's own rows (peer itself), of every peer in its cluster, of all centers (peer nobody);
    ``posterior_mean``: of a cluster's peers, the probability that the center belongs to it.
    """
    clusters, members, local = state.clusters, context.local_index, local_of(context, state)
    sizes = np.asarray(context.sizes(), dtype=np.float64)
    kind = "clusters are" if clusters.fits else "a continuum is" if len(state.shared) else "no structure is"
    peers = {name: members[clusters.number == name] for name in clusters.by_name}
    peers = {name: who[np.argsort(-sizes[who], kind="stable")] for name, who in peers.items()}
    part = {name: _own_share(fit, local) for name, fit in clusters.by_name.items()}
    rows: list[tuple[int, int, str, float, str, float]] = []

    def add(
        center: int, peer: int, decision: str, score: float, reason: str, belongs: float = np.nan
    ) -> None:
        rows.append((center, peer, decision, score, reason, belongs))

    for i, member in enumerate(members.tolist()):
        name, own = int(clusters.number[i]), float(state.own.share[i])
        if state.chance >= 0:
            add(member, -1, "differences", state.chance, f"{kind} used")
        if state.resting[i]:
            add(member, -1, "rested", 1.0, "the evidence of its rows speaks for its own model")
            continue
        add(member, member, "weight", own, "own rows")
        left = 1.0 - own
        if clusters.fits:
            others, belongs = peers[name][peers[name] != member], float(clusters.belongs[i])
            share = left * part[name] * sizes[others] / max(sizes[others].sum(), 1.0)
            for peer, each in zip(others[:MOST_NAMED].tolist(), share[:MOST_NAMED].tolist(), strict=True):
                add(member, peer, "weight", each, "cluster peer", belongs)
            if len(others) > MOST_NAMED:
                add(member, -1, "weight", float(share[MOST_NAMED:].sum()), "further cluster peers", belongs)
            left *= 1.0 - part[name]
        add(member, -1, "weight", left, "all centers")
    for member, said in data_warnings(context):
        add(member, -1, "warning", np.nan, said)
    if state.hope >= 0:
        add(-1, -1, "collaboration", state.hope, "chance that it lowers a hospital's loss, on average")
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    center, peer, decision, score, reason, certainty = columns
    nothing = np.full(len(rows), np.nan)
    return Decisions(center, peer, decision.astype(object), score, certainty, nothing, reason.astype(object))


def _own_share(fit: FitState, local: LocalRows) -> float:
    """The share of a cluster's mean that its own rows decide; the common model decides the rest."""
    left = fit.penalty * np.diag(np.linalg.inv(fit.curvature + np.diag(fit.penalty)))
    return float(np.clip(1.0 - left[local.group >= 0].mean(), 0.0, 1.0))


def data_warnings(context: Context) -> list[tuple[int, str]]:
    """What is wrong with the rows of centers here: members, and sentences that name the column."""
    local: LocalRows = context.derived
    rows, columns = local.rows, context.data.columns
    known = {} if context.data.book is None else {each.name: each.kind for each in context.data.book.columns}
    named, term = named_terms(columns)
    number = np.array([known.get(name) == "number" for name in named], dtype=bool)
    straight, tail = np.isin(term, ("", "1")), np.isin(term, TAILS)
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
        farthest = np.where(tail, np.expm1(high), np.maximum(-low, high))
        problems = {
            "is constant": number & straight & (low == high),
            "has values far out": number & (straight | tail) & (farthest > FAR_OUT),
        }
        event = y == y.max()
        if context.data.outcome.binary and min(event.sum(), (~event).sum()) >= FEW_EVENTS:
            with_it, without = x[event], x[~event]
            apart = (with_it.min(axis=0) > without.max(axis=0)) | (with_it.max(axis=0) < without.min(axis=0))
            problems["separates its outcomes"] = apart & straight
        for problem, where in problems.items():
            for k in np.flatnonzero(where)[:MOST_WARNINGS].tolist():
                found.append((member, f"column {named[k]} {problem}"))
    return found
