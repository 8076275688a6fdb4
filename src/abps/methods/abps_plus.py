"""abps-plus: a hierarchical Bayesian model that centers fit by exchanging scores.

    predictor of center i = x'b_i,     b_i ~ N(mu_i, D),     intercept_i ~ N(a_0, tau²)

The prior mean mu_i is the common model b_0, or b_0 plus the deviation of a cluster. All variances and
penalties follow from evidence; nothing is tuned. Exchanges, in the order in which this file has them:

1. *start*: score, curvature and intercepts at the model without inputs;
2. *common fit*: scores at the common model; quasi-Newton steps; once with them scores of pairs of columns,
   of which those that earn their place become further columns;
3. *variances*: squared deviations and degrees of freedom of every center's own posterior; with them half
   scores, which show whether centers differ in ways that others share;
4. only then, *clusters*: the common fit again, in every cluster; the means of all clusters, from which every
   center chooses; the fit once more, and variances; or a *continuum*: a few deviations that all share, each
   to its own degree, with every exchange about variances.

All but the half scores and the clusters need sums over centers alone. Which numbers a message has is in
:mod:`abps.methods.plus_state`, which uploads count in :mod:`abps.methods.plus_filter`. After the last
exchange each center's model is the mode of its own posterior, unless the evidence of its rows speaks for a
model of its own (:mod:`abps.methods.plus_own`).
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.errors import RequestError
from abps.core.matching import Rest
from abps.methods import plus_own
from abps.methods.base import Context, Decisions, Floats, Ints, Stopping
from abps.methods.coordinated import Broadcast, CoordinatedMethod, Upload
from abps.methods.plus_filter import (
    AGAINST,
    FIRST_EXCHANGES,
    Screened,
    bounded_halves,
    bounded_information,
    bounded_pairs,
    screen,
)
from abps.methods.plus_state import (
    FIRST_INTERCEPT_VARIANCE,
    FIRST_VARIANCE,
    FULL_CURVATURE,
    ONE,
    ClusterState,
    LocalRows,
    OwnSums,
    Phase,
    PlusState,
    as_models,
    beside_sums,
    chosen_message,
    common_model,
    curvature_message,
    local_of,
    local_rows,
    message,
    packed,
    square,
    triangle_message,
    widened,
)
from abps.models import hierarchical, structure
from abps.models.families import Multinomial
from abps.models.hierarchical import CenterRows, CommonModel, FitState
from abps.models.interactions import PairTerms, candidates, column_functions, earned, pair_sums
from abps.models.training import Training
from abps.wire.number_lists import Field, Fields, Form, NumberList, length

#: Exchanges about variances, and steps of a cluster's fit before and after its members are chosen again.
VARIANCE_EXCHANGES = 2
CLUSTER_STEPS = 3
SHARED_EXCHANGES = 2
CLUSTER_EXCHANGES = 2 * CLUSTER_STEPS + 1 + VARIANCE_EXCHANGES

#: Members that send a large curvature: so many that all together send about so many rows of it, with bounds.
CURVATURE_NUMBERS, FEWEST_CURVATURES, MOST_CURVATURES = 1500, 2, 25

#: While the common model is fitted intercepts are nearly free: its loss is then close to quadratic.
WORKING_INTERCEPT_VARIANCE = 1.0

#: Ridge per row of the first step. Evidence sets it later: a first curvature of a wide table is too coarse.
FIRST_PENALTY = 0.01

#: The least curvature of a coefficient, of a few rows. With next to none a step would be huge, and a score in
#: units of it would drown all others of its message.
LEAST_DIAGONAL = 1.0

#: Centers that structure needs: folds of fewer say nothing. Folds of centers: what is judged on one was
#: learned from the others; from nineteen of twenty, clusters are nearly as good as they will be.
FEWEST_CENTERS, FOLDS = 15, 20

#: The level of the test whether centers differ, and its random signs; standard errors by which the gain of
#: clusters on held-out rows must then lie above zero before they are used.
LEVEL, SIGNS, GATE_Z = 0.05, 99, 1.64

#: The fewest centers of which a continuum may be thought better than clusters that are there, and standard
#: errors by which it must then lead.
FEWEST_JUDGED, JUDGED_Z = 50, 2.33

#: Precision of a cluster's mean around the common model before evidence sets it, and means beyond the number
#: of clusters that members may choose from.
FIRST_CLUSTER_PENALTY, SPARE_CLUSTERS = 20.0, 3


@dataclass(frozen=True)
class ABPSPlus(CoordinatedMethod):
    """A hierarchical Bayesian model fitted by exchanging scores, with a rotating coordinator.

    steps: exchanges of the common fit after the first.
    interactions: whether pairs of columns may become terms of the model; without them it is additive.
    structure: whether centers may send half scores, which show whether they form clusters; without them every
    exchange needs sums alone.
    robust: whether the coordinator leaves out impossible uploads and bounds the influence of each.
    keep_own: whether a center keeps a model of its own rows where their evidence speaks for it.
    """

    training: Training = field(default_factory=lambda: Training.of("gam"))
    stop: Stopping = field(default_factory=lambda: Stopping(rounds=20))
    steps: int = 5
    interactions: bool = True
    structure: bool = True
    robust: bool = True
    keep_own: bool = True

    #: Its models are fitted by exchanges, not by steps of local training.
    fitted: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.training.model not in ("linear", "gam"):
            raise RequestError(
                f"abps-plus with model={self.training.model!r}: it fits linear and additive models; choose "
                "linear or gam"
            )
        if self.steps < 1:
            raise RequestError(f"steps={self.steps}: choose at least 1")
        if self.privacy.secure and self.structure:  # half scores are single centers'
            object.__setattr__(self, "structure", False)

    def phase(self, context: Context, state: PlusState) -> Phase:
        """What the next exchange is about."""
        t = state.exchanges + 1
        if t == 1:
            return Phase.START
        if t <= 1 + self.steps:
            pairs = self.interactions and t == self.steps > 2 and context.derived.candidates
            return Phase.PAIRS if pairs else Phase.COMMON_FIT
        t -= 2 + self.steps
        if t == 0 and self._seeks_structure(context):
            return Phase.HALF_SCORES
        if len(state.shared):
            return Phase.SHARED if t <= SHARED_EXCHANGES else Phase.OVER
        if t < VARIANCE_EXCHANGES:
            return Phase.VARIANCES
        t -= VARIANCE_EXCHANGES - 1
        if state.clusters.count == 1 or t > CLUSTER_EXCHANGES:
            return Phase.OVER
        if t == CLUSTER_STEPS + 1:
            return Phase.CLUSTER_MEANS
        return Phase.CLUSTER_FIT if t <= 2 * CLUSTER_STEPS + 1 else Phase.VARIANCES

    def _seeks_structure(self, context: Context) -> bool:
        """Whether centers send half scores: not if structure could not be fitted within the rounds."""
        exchanges = 1 + self.steps + VARIANCE_EXCHANGES + CLUSTER_EXCHANGES
        enough = context.n >= FEWEST_CENTERS and self.stop.rounds >= exchanges
        return self.structure and context.derived.terms == 1 and enough

    def sums_only(self, t: int) -> bool:
        """Whether exchange t needs sums alone: all but those about structure do."""
        return not self.structure or t <= 1 + self.steps

    def finished(self, state: PlusState) -> bool:
        """Whether all exchanges are done."""
        return state.over

    def derived(self, context: Context) -> LocalRows:
        """Rows and groups of columns."""
        ids = context.ids[context.local_index]
        sizes = context.data.own.sizes
        index = np.concatenate([np.arange(size) for size in sizes]) if len(sizes) else np.zeros(0)
        order = streams.uniforms(context.seed, "sketch", 2, np.repeat(ids, sizes), index.astype(np.uint64))
        return local_rows(context.data, order)

    def init(self, context: Context) -> PlusState:
        """The model without inputs."""
        local: LocalRows = context.derived
        q, terms = local.q, local.terms
        first, nothing = np.full(terms, FIRST_INTERCEPT_VARIANCE), np.zeros((terms, q))
        fit = FitState(
            nothing[0], np.eye(q), np.ones(q), local.group, nothing, first, np.full(terms, 0.5), context.n
        )
        return PlusState(
            as_models(np.zeros((context.r, q)), local),
            fit,
            variance=np.where(local.group < 0, FIRST_INTERCEPT_VARIANCE, 0.0),
            scale=np.ones(q),
            pairs=PairTerms.none(local.rows.x.shape[1]),
            own=OwnSums.none(local),
            clusters=ClusterState.none(context.r),
            shared=np.zeros((0, q)),
            resting=np.zeros(context.r, dtype=bool),
            excluded=np.zeros(context.n, dtype=bool),
        )

    def upload(self, context: Context, state: PlusState, t: int) -> Upload:
        """What the centers here send in exchange t."""
        local, phase = local_of(context, state), self.phase(context, state)
        if phase is Phase.START:
            return start_upload(context, state, self.privacy.secure)
        fields = message(phase, local, len(state.shared))
        fields = Fields({**fields.by_name, **beside_sums(phase, local).by_name})
        form = (Field("single", fields.length),) if self.privacy.secure else fields.form
        rows = packed(fields, upload_values(state, local, phase))
        return Upload.encode(list(rows), [form] * len(rows))

    def accepted_forms(self, context: Context, t: int) -> tuple[Form, ...]:
        """In the first exchange some centers send their curvature, and some do not."""
        if t != 1 or self.privacy.secure:
            return ()
        plain = message(Phase.START, context.derived).form
        return plain, (*plain, *triangle_message(context.derived.q).form)

    def aggregate(self, context: Context, state: PlusState, uploads: Floats, t: int) -> Broadcast:
        """Sums over the members that are let in, what the phase needs beside them, and who was left out."""
        local, phase = local_of(context, state), self.phase(context, state)
        if phase is Phase.CLUSTER_MEANS:
            return most_said_means(uploads, local, state.clusters.count)
        fields = message(phase, local, len(state.shared))
        reported = np.asarray(context.sizes(), dtype=np.float64)
        robust = self.robust and not self.privacy.secure
        cluster = None
        if phase is Phase.CLUSTER_FIT:
            cluster = said_clusters(uploads[:, fields.length], state.clusters.count)
        screened = screen(fields, uploads, reported, state, local, robust, cluster)
        beside = np.where(screened.accepted[:, None], uploads[:, fields.length :], np.nan)
        numbers, form, own = screened.values.sum(axis=0), fields.form, dict[int, NumberList]()
        more, further = np.zeros(0), tuple[Field, ...]()
        if phase is Phase.START:
            more, further = common_curvature(local, fields, uploads, screened.accepted)
        elif phase is Phase.PAIRS:
            more, further = earned_pairs(local, beside)
        elif phase is Phase.HALF_SCORES:
            variance = after_variances(state, local, fields.unpack(numbers)).variance
            found = find_structure(context, state, beside, variance[local.sought])
            more, further, own = np.append(found.chance, found.shared), (ONE, *found.form), found.own
        elif cluster is not None:
            own = cluster_totals(fields, cluster, screened)
            numbers, form = np.array([float(screened.accepted.sum())]), (ONE,)
        left_out = np.zeros(0)
        if robust and t <= FIRST_EXCHANGES:  # the second says who stays out
            stays = screened.reason == AGAINST if t > 1 else screened.excluded
            left_out = np.flatnonzero(stays | (screened.excluded & state.excluded)).astype(float)
        if len(left_out):
            further = (*further, Field("place", len(left_out)))
        common = NumberList.of(np.concatenate([numbers, more, left_out]), (*form, *further))
        return Broadcast(common, own, screened.decisions())

    def apply_broadcast(self, context: Context, state: PlusState, broadcast: Broadcast, t: int) -> PlusState:
        """The state after exchange t."""
        phase, numbers = self.phase(context, state), broadcast.common.values
        if not np.isfinite(numbers).all():
            raise ValueError("a broadcast that is not finite")
        last, left_out = broadcast.common.form[-1], np.zeros(context.n, dtype=bool)
        if last.kind == "place":
            places, numbers = numbers[-last.total :].astype(np.int64), numbers[: -last.total]
            if places.min() < 0 or places.max() >= context.n:
                raise ValueError("a broadcast that leaves out members that do not exist")
            left_out[places] = True
        if t <= FIRST_EXCHANGES:
            state = replace(state, excluded=left_out)
        after = replace(applied(context, state, phase, numbers, broadcast), exchanges=t)
        return self._with_models(context, after, phase)

    def _with_models(self, context: Context, state: PlusState, done: Phase) -> PlusState:
        """The state with every center's own model."""
        local, coming = local_of(context, state), self.phase(context, state)
        posteriors = (Phase.HALF_SCORES, Phase.VARIANCES, Phase.SHARED, Phase.OVER)
        if coming not in posteriors and done is not Phase.VARIANCES:
            return replace(state, models=as_models(plus_own.prior_means(state, local), local, state.pairs))
        if done in (Phase.COMMON_FIT, Phase.CLUSTER_FIT):
            state = replace(state, variance=np.where(local.group < 0, state.variance, FIRST_VARIANCE))
        state = replace(state, own=plus_own.own_posteriors(state, local))
        if coming is Phase.CLUSTER_FIT:
            state = replace(state, models=as_models(state.own.modes, local, state.pairs))
            return replace(state, clusters=begin_clusters(state, local, state.clusters))
        if coming is Phase.OVER:
            if self.keep_own:
                state = plus_own.keep_own(state, local)
            if self.privacy.secure:
                state = plus_own.without_harm(state, local, context.derived)
            state = replace(state, over=True)
        return replace(state, models=as_models(state.own.modes, local, state.pairs))

    def resting(self, context: Context, state: PlusState) -> NDArray[np.int8]:
        """(r,) centers that keep a model of their own rows decline what the others offer."""
        return np.where(state.resting, Rest.DECLINED, Rest.NOT).astype(np.int8)

    def decisions(self, context: Context, state: PlusState, broadcast: Broadcast, t: int) -> Decisions | None:
        """Who was left out; at the end, who rests and where every center's information comes from."""
        if not state.over:
            return broadcast.decisions
        weights = plus_own.partner_rows(context, state)
        return weights if broadcast.decisions is None else weights.after(broadcast.decisions)


def upload_values(state: PlusState, local: LocalRows, phase: Phase) -> dict[str, Floats]:
    """The fields of the messages of r centers, each (r, ...), in all exchanges but the first."""
    clusters = state.clusters
    if phase is Phase.CLUSTER_MEANS:
        return {"mean": np.stack([clusters.by_name[name].point for name in clusters.number.tolist()])}
    if phase in (Phase.VARIANCES, Phase.SHARED):
        return state.own.values(state.scale)
    if phase is Phase.HALF_SCORES:
        return state.own.values(state.scale) | half_scores(state, local)
    if phase is Phase.CLUSTER_FIT:
        values = cluster_sums(state, local)
    else:
        values = sums_along(local.rows, state.fit, np.zeros(local.q), state.variance, state.dispersion)
    if phase is Phase.PAIRS:
        found = pair_sums(local.rows, common_model(state, local), pair_functions(state, local))
        values["pair_scores"], values["pair_information"] = found
    return values | {"score": values["score"] / state.scale}


def applied(
    context: Context, state: PlusState, phase: Phase, numbers: Floats, broadcast: Broadcast
) -> PlusState:
    """The state after a broadcast with these common numbers."""
    local = local_of(context, state)
    if phase is Phase.CLUSTER_MEANS:
        return choose_clusters(state, local, numbers.reshape(-1, local.q))
    fields = message(phase, local, len(state.shared))
    if phase is Phase.CLUSTER_FIT:
        return step_clusters(context, state, fields, broadcast)
    sums, rest = fields.unpack(numbers), numbers[fields.length :]
    if phase is Phase.START:
        return after_start(state, local, sums, curvature_message(local.q).unpack(rest))
    if phase is Phase.COMMON_FIT:
        return after_step(state, local, sums)
    if phase is Phase.PAIRS:
        return after_pairs(state, local, sums, rest)
    state = after_variances(state, local, sums)
    if phase is Phase.SHARED:
        return after_shared(state, local, sums)
    if phase is Phase.HALF_SCORES:
        return take_proposal(context, replace(state, chance=float(rest[0])), rest[1:], broadcast)
    return state


# Exchange 1, start


def curvature_senders(context: Context, q: int) -> NDArray[np.bool_]:
    """(n,) which members send their curvature: all where it is small, else those with the most rows."""
    count = min(max(CURVATURE_NUMBERS // q, FEWEST_CURVATURES, context.n // 20), MOST_CURVATURES)
    chosen = np.full(context.n, q <= FULL_CURVATURE)
    chosen[np.argsort(-np.asarray(context.sizes()), kind="stable")[:count]] = True
    return chosen


def start_upload(context: Context, state: PlusState, secure: bool) -> Upload:
    """Score, curvature and intercepts at the model without inputs.

    secure: only a sum will be seen, so all send their curvature, and not as correlations.
    """
    local = local_of(context, state)
    rows, q, common = local.rows, local.q, common_model(state, local)
    values = hierarchical.common_sums(rows, common)
    values |= {"rows": rows.sizes.astype(np.float64), "members": np.ones(rows.n)}
    diagonal, middle = np.zeros((rows.n, q)), np.zeros((rows.n, q))
    senders = secure | curvature_senders(context, q)[context.local_index]
    fields, forms, triangles = message(Phase.START, local), [], []
    for i, (curvature, own) in enumerate(hierarchical.center_curvatures(rows, common)):
        diagonal[i], middle[i] = np.maximum(np.diag(curvature), 0.0), own.sum(axis=0)
        form, triangle = fields.form, np.zeros(0)
        if senders[i]:
            size = np.ones(q) if secure else np.sqrt(np.maximum(diagonal[i], 1e-9))
            form = (*form, *triangle_message(q).form)
            triangle = (curvature / np.outer(size, size))[np.tril_indices(q)]
        triangles.append(triangle)
        forms.append((Field("single", length(form)),) if secure else form)
    whole = packed(fields, values | {"diagonal": diagonal, "middle": middle})
    return Upload.encode([np.concatenate(both) for both in zip(whole, triangles, strict=True)], forms)


def common_curvature(
    local: LocalRows, fields: Fields, uploads: Floats, accepted: NDArray[np.bool_]
) -> tuple[Floats, Form]:
    """The federation's curvature in few numbers, and their form."""
    q, whole, parts = local.q, curvature_message(local.q), fields.unpack(uploads)
    each = uploads[:, fields.length :]
    if len(uploads) == 1:  # a masked sum of curvatures
        sent, size = np.ones(1, dtype=bool), np.ones((1, q))
    else:
        sent = accepted & np.isfinite(each[:, 0])  # few do: the others' numbers are not looked at
        sent[sent] = (np.abs(each[sent]) <= 1.05).all(axis=1)
        size = np.sqrt(np.maximum(parts["diagonal"], 0.0))
    matrix = np.zeros((q, q))
    for i in np.flatnonzero(sent):
        matrix += square(each[i], q) * np.outer(size[i], size[i])
    correlation = hierarchical.shrunken_correlation(matrix, float(parts["rows"][sent].sum()))
    if q <= FULL_CURVATURE:
        return correlation[np.tril_indices(q)], whole.form
    rank, entries = whole.by_name["factors"].rows, whole.by_name["values"].count
    factors, gaps, values = hierarchical.compress(correlation, rank, entries)
    return np.concatenate([factors.ravel(), gaps / hierarchical.WIDEST_GAP, values]), whole.form


def after_start(
    state: PlusState, local: LocalRows, sums: dict[str, Floats], parts: dict[str, Floats]
) -> PlusState:
    """Curvature, intercepts and the first step; parts: of the broadcast curvature."""
    q, n = local.q, float(sums["members"][0])
    # Of a column that only a member has who was left out nothing is known yet: it may return.
    size = np.sqrt(np.maximum(sums["diagonal"], LEAST_DIAGONAL))
    if "triangle" in parts:
        correlation = hierarchical.assemble_curvature(square(parts["triangle"], q))
    else:
        gaps = parts["gaps"] * hierarchical.WIDEST_GAP
        correlation = hierarchical.decompress(parts["factors"].reshape(-1, q), gaps, parts["values"])
    owner = np.arange(q) // local.rows.shape[1] == np.arange(local.terms)[:, None]
    weight = np.maximum(sums["middle"][local.constants], 1e-9)
    point, score = np.zeros(q), _exact_score(local, sums["score"])
    # Intercepts around their own mean leave nothing to explain.
    point[local.constants], score[local.constants] = sums["shift"] / n, 0.0
    fit = replace(
        state.fit,
        curvature=correlation * np.outer(size, size),
        penalty=np.where(local.group >= 0, FIRST_PENALTY * float(sums["rows"][0]), 1e-3),
        middle=np.where(owner, sums["middle"] / np.repeat(weight, local.rows.shape[1]), 0.0),
        certainty=np.clip(1.0 - sums["doubt"] / n / state.fit.intercept_variance, 0.01, 0.999),
        centers=int(n),
        rows=float(sums["rows"][0]),
    )
    working = np.full(local.terms, WORKING_INTERCEPT_VARIANCE)
    fit = hierarchical.with_intercept_variance(fit, working)
    system = fit.curvature + np.diag(fit.penalty)
    aim = np.asarray(np.linalg.solve(system, fit.curvature @ point + score))
    # The loss was taken with other intercepts: it is no measure of later ones.
    fit = replace(fit, point=aim, base=(point, score, np.inf))
    variance = state.variance.copy()
    variance[local.constants] = working
    rows, information = float(sums["rows"][0]), float(weight.mean())
    return replace(state, fit=fit, variance=variance, scale=size, rows=rows, information=information)


def _exact_score(local: LocalRows, score: Floats) -> Floats:
    """(q,) the score; of classes without what rounding adds to its sum over classes, which is zero: there is
    no curvature in that direction, and the step would be huge."""
    if not isinstance(local.rows.family, Multinomial):
        return score.copy()
    table = score.reshape(local.rows.shape)
    return np.asarray((table - table.mean(axis=0)).ravel())


# Exchanges 2 to 6, common fit


def sums_along(
    rows: CenterRows, fit: FitState, centre: Floats, variance: Floats, dispersion: float
) -> dict[str, Floats]:
    """(n, q) scores and (n,) raw losses at a fit's point, (n, fractions) losses after parts of its step, and
    (n,) rows.

    centre, variance: (q,) what points are deviations from, and of intercepts.
    """

    def common(fraction: float) -> CommonModel:
        mean = (centre + fit.part_of_step(fraction)).reshape(rows.shape)
        return CommonModel(mean, variance.reshape(rows.shape), dispersion)

    sums = hierarchical.common_sums(rows, common(1.0))
    parts = [hierarchical.common_losses(rows, common(part)) for part in hierarchical.FRACTIONS[1:]]
    losses = np.stack([sums["loss"], *parts], axis=1)
    score, sizes = sums["score"].reshape(rows.n, -1), rows.sizes.astype(np.float64)
    return {"score": score, "losses": losses, "raw": sums["raw"], "rows": sizes}


def after_step(state: PlusState, local: LocalRows, sums: dict[str, Floats]) -> PlusState:
    """One quasi-Newton step; after the first one, the dispersion of the loss."""
    score = _exact_score(local, sums["score"] * state.scale)
    fit = hierarchical.quasi_newton_step(state.fit, score, sums["losses"], float(sums["rows"][0]))
    factor = local.rows.family.dispersion_factor
    if not factor or state.exchanges != 1:
        return replace(state, fit=fit)
    dispersion = max(factor * float(sums["raw"][0]) / max(state.rows, 1.0), 1e-6)
    ratio = dispersion / state.dispersion
    fit = replace(fit, curvature=fit.curvature / ratio, base=None)
    return replace(state, fit=fit, dispersion=dispersion, scale=state.scale / np.sqrt(ratio))


# With one of them, pairs of columns


def pair_functions(state: PlusState, local: LocalRows) -> Floats:
    """(2 columns, inputs + 1) that pair terms are made of, from the common model; ``local`` without pairs."""
    fit = state.fit
    mean = fit.point.reshape(local.rows.shape)
    return column_functions(mean, fit.curvature, fit.middle, state.information, local.source, local.straight)


def earned_pairs(local: LocalRows, beside: Floats) -> tuple[Floats, Form]:
    """The pairs of columns that earned their place, with their sums, and their form.

    beside: (n, 2 * terms * candidates) scores and information; NaN where a member is left out.
    """
    score, information = bounded_pairs(beside.reshape(len(beside), 2, local.terms, -1))
    chosen = earned(score, information)
    if not len(chosen):
        return np.zeros(0), ()
    columns = [each[chosen] for each in candidates(int(local.source.max()) + 1)]
    numbers = [*columns, score[:, chosen].ravel(), information[:, chosen].ravel()]
    return np.concatenate(numbers), chosen_message(len(chosen), local.terms).form


def after_pairs(state: PlusState, local: LocalRows, sums: dict[str, Floats], rest: Floats) -> PlusState:
    """One quasi-Newton step, with pair terms as further columns where some earned their place.

    rest: first and second columns of the pairs, and the sums of their scores and information.
    """
    count, left_over = divmod(len(rest), 2 + 2 * local.terms)
    if left_over:
        raise ValueError("a broadcast of pairs of columns that is cut short")
    chosen, functions = chosen_message(count, local.terms).unpack(rest), pair_functions(state, local)
    state = after_step(state, local, sums)
    if not count:
        return state
    first, second = chosen["first"].astype(np.int64), chosen["second"].astype(np.int64)
    if max(first.max(), second.max()) >= len(functions) or not (chosen["information"] > 0).all():
        raise ValueError("pairs of columns that do not exist")
    pairs = PairTerms(functions[first], functions[second])
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
    penalty, aim = hierarchical.evidence_penalties(curvature, target, penalty, wide.group)
    fit = replace(fit, point=aim, curvature=curvature, penalty=penalty, group=wide.group, base=base)
    return replace(
        state,
        fit=replace(fit, middle=widen(fit.middle)),
        pairs=pairs,
        variance=widen(state.variance),
        scale=widen(state.scale, np.sqrt(chosen["information"])),
        own=OwnSums.none(wide),
        shared=np.zeros((0, wide.q)),
    )


# Exchanges 7 and 8, variances


def after_variances(state: PlusState, local: LocalRows, sums: dict[str, Floats]) -> PlusState:
    """Variances by evidence, and a step of the common model with all own deviations in place; within clusters
    it stays."""
    used = local.group >= 0
    before = np.zeros(local.groups)
    before[local.group[used]] = state.variance[used]
    each, intercept = hierarchical.variances(sums, before)
    variance = np.where(used, each[np.maximum(local.group, 0)], 0.0)
    variance[local.constants] = intercept
    fit = state.fit
    if not state.clusters.fits:
        fit = replace(fit, certainty=np.clip(sums["shift_dof"] / fit.centers, 0.001, 0.999))
        system = fit.curvature + np.diag(fit.penalty)
        step = np.linalg.solve(system, sums["score"] * state.scale - fit.penalty * fit.point)
        fit = hierarchical.with_intercept_variance(replace(fit, point=fit.point + step), intercept)
    return replace(state, fit=fit, variance=variance)


# With the first of them, half scores: do centers differ in ways that others share?


def half_scores(state: PlusState, local: LocalRows) -> dict[str, Floats]:
    """(r, 2, columns) scores of both halves of every center's rows in units of their size, and (r,) the
    information of all its rows."""
    common, scale = common_model(state, local), state.scale[local.sought]
    found = [
        structure.orthogonal_scores(local.rows.select(keep), common) for keep in (local.half, ~local.half)
    ]
    halves = np.stack([score[:, local.sought] / scale for score, _ in found], axis=1)
    return {"halves": halves, "information": found[0][1] + found[1][1]}


@dataclass(frozen=True, eq=False)
class Structure:
    """What the coordinator finds in half scores.

    chance: the p-value of the test whether centers differ.  own: for every member its cluster and how many
    there are.  shared: (k, columns) shared deviations, in units of scores' sizes.
    """

    chance: float
    own: dict[int, NumberList] = field(default_factory=dict)
    shared: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def form(self) -> Form:
        """Of the shared deviations."""
        return (Field("small", self.shared.shape[1], len(self.shared)),) if len(self.shared) else ()


def find_structure(context: Context, state: PlusState, beside: Floats, variance: Floats) -> Structure:
    """Whether centers differ; if they do, and it pays on held-out rows, the clusters that they form, or the
    deviations that they share where there are none or these do better there.

    beside: (n, entries) half scores, NaN where a member is left out.  variance: (columns,) between centers.
    """
    local = local_of(context, state)
    parts = beside_sums(Phase.HALF_SCORES, local).unpack(beside)
    who = np.flatnonzero(np.isfinite(beside).all(axis=1) & (parts["information"][:, 0] > 0))
    if len(who) < FEWEST_CENTERS:
        return Structure(1.0)
    reported = np.asarray(context.sizes(), dtype=np.float64)[who]
    information = bounded_information(parts["information"][who, 0], reported)
    # In units of the scores' size coefficients are larger by the same factor.
    scale, every = state.scale[local.sought], np.ix_(local.sought, local.sought)
    unit = state.fit.curvature[every] / np.outer(scale, scale) / information.sum()
    whitening = structure.Whitening.of(unit)
    both = bounded_halves(parts["halves"][who].reshape(len(who), 2, -1), information, whitening)
    # What all have in common is no difference between them: the common fit is not at its end yet.
    both = both - (information / information.sum())[:, None, None] * both.sum(axis=0)
    halves = structure.HalfScores.of(both[:, 0], both[:, 1], information, whitening, variance * scale**2)
    draw = [streams.uniforms(context.seed, "sketch", 10 + k, context.ids[who]) for k in range(SIGNS)]
    chance = halves.difference_test(np.where(np.stack(draw) < 0.5, -1.0, 1.0))
    if chance > LEVEL:
        return Structure(chance)
    order = np.argsort(streams.uniforms(context.seed, "sketch", 1, context.ids[who]), kind="stable")
    fold = np.empty(len(who), dtype=np.int64)
    fold[order] = np.arange(len(who)) % FOLDS
    continua = halves.held_out_gains(fold, structure.HalfScores.as_continua)
    if not structure.standard_errors(continua[-1]) > GATE_Z:
        return Structure(chance)
    number, count = halves.clusters()
    best, certain = int(np.argmax(continua.mean(axis=1))), count == 1
    if count > 1 and len(who) >= FEWEST_JUDGED:
        lead = continua[best] - halves.held_out_gains(fold, lambda others: others.as_clusters(count))[0]
        certain = structure.standard_errors(lead) > JUDGED_Z
    if certain:
        return Structure(chance, shared=halves.shared_deviations(1 + best))
    name = np.zeros(context.n)
    name[who] = number
    form = (Field("single", 2),)
    own = {i: NumberList.of(np.array([each, float(count)]), form) for i, each in enumerate(name)}
    return Structure(chance, own)


def take_proposal(context: Context, state: PlusState, shared: Floats, broadcast: Broadcast) -> PlusState:
    """The state with shared deviations and with the cluster of every center here, if there are any."""
    if len(shared):
        local = local_of(context, state)
        ways = np.zeros((len(shared) // len(local.sought), local.q))
        ways[:, local.sought] = shared.reshape(len(ways), -1) / state.scale[local.sought]
        state = replace(state, shared=ways)
    own = [broadcast.only(int(member)) for member in context.local_index]
    if any(len(values) != 2 for values in own):
        return state
    number, count = np.array(own).reshape(-1, 2).astype(np.int64).T
    clusters = ClusterState(int(count.max(initial=1)), number, np.ones(len(number)))
    return replace(state, clusters=clusters)


def after_shared(state: PlusState, local: LocalRows, sums: dict[str, Floats]) -> PlusState:
    """Shared deviations after one Newton step, each as long as evidence says: then positions along it have
    variance one.

    In the direction of a shared deviation a center's loss curves by its own curvature times its squared
    position, so all together by the common curvature.
    """
    system = state.fit.curvature + np.diag(state.fit.penalty)
    pull = sums["pull"].reshape(state.shared.shape) * state.scale
    others = np.setdiff1d(np.arange(local.q), local.sought)
    pull[:, others] = 0.0
    step = np.linalg.solve(system, (pull - state.fit.penalty * state.shared).T).T
    step[:, others] = 0.0
    length = np.sqrt(np.clip(sums["place_squares"] / np.maximum(sums["place_dof"], 0.1), 0.04, 4.0))
    return replace(state, shared=(state.shared + step) * length[:, None])


# Exchanges 9 to 15, the fit of every cluster; 12, the choice between clusters


def begin_clusters(
    state: PlusState, local: LocalRows, clusters: ClusterState, means: Floats | None = None
) -> ClusterState:
    """Fits of the clusters that have a center here, from means (clusters, q) or from the common model."""
    penalty = np.where(local.group >= 0, FIRST_CLUSTER_PENALTY, 1e-3)
    # The curvature is known with the cluster's share of all rows, which comes with its sums.
    begin = replace(state.fit, penalty=penalty, base=None, centers=0)
    points = np.zeros((clusters.count, local.q)) if means is None else means
    fits = [replace(begin, point=points[name]) for name in np.unique(clusters.number).tolist()]
    return replace(clusters, fits=tuple(fits))


def cluster_sums(state: PlusState, local: LocalRows) -> dict[str, Floats]:
    """Scores, losses and raw losses of every center at the mean of its cluster, and (r,) its name."""
    variance = np.where(local.group < 0, 1.0, 0.0)
    values = {"cluster": state.clusters.number.astype(np.float64)}
    for name, fit in state.clusters.by_name.items():
        mine = state.clusters.number == name
        some = sums_along(local.rows.centers(mine), fit, state.fit.point, variance, state.dispersion)
        for key, found in some.items():
            values.setdefault(key, np.zeros((len(mine), *found.shape[1:])))[mine] = found
    return values


def said_clusters(said: Floats, count: int) -> Ints:
    """(n,) the clusters that members say they are in, -1 where there is no such cluster."""
    there = (said > -0.5) & (said < count - 0.5)
    return np.rint(np.where(there, said, -1.0)).astype(np.int64)


def cluster_totals(fields: Fields, number: Ints, screened: Screened) -> dict[int, NumberList]:
    """The sums of every cluster and its centers, for its members; number: (n,) their clusters."""
    accepted, messages = screened.accepted & (number >= 0), dict[int, NumberList]()
    for name in np.unique(number).tolist():
        some = (number == name) & accepted
        numbers = np.append(screened.values[some].sum(axis=0), float(some.sum()))
        sums = NumberList.of(numbers, (*fields.form, ONE))
        messages |= dict.fromkeys(np.flatnonzero(number == name).tolist(), sums)
    return messages


def step_clusters(context: Context, state: PlusState, fields: Fields, broadcast: Broadcast) -> PlusState:
    """One quasi-Newton step in every cluster here."""
    clusters, fits = state.clusters, list[FitState]()
    for name, fit in clusters.by_name.items():
        mine = context.local_index[clusters.number == name].tolist()
        received = Counter(broadcast.only(member).tobytes() for member in mine)
        # In a simulation attackers here may have got other sums.
        values = np.frombuffer(received.most_common(1)[0][0])
        if len(values) != fields.length + 1:
            raise ValueError("a broadcast without the sums of this center's cluster")
        sums = fields.unpack(values)
        rows = float(sums["rows"][0])
        if fit.centers == 0:
            share = np.clip(rows / max(state.rows, 1.0), 1e-6, 1.0)
            fit = replace(fit, curvature=state.fit.curvature * share, centers=int(values[-1]))
        fits.append(hierarchical.quasi_newton_step(fit, sums["score"] * state.scale, sums["losses"], rows))
    return replace(state, clusters=replace(clusters, fits=tuple(fits)))


def most_said_means(uploads: Floats, local: LocalRows, count: int) -> Broadcast:
    """The means of clusters: of all that members say those that most of them say, a few more than there are
    clusters. The members of a cluster say the same; who makes one up cannot take another one away."""
    said = uploads[np.isfinite(uploads).all(axis=1)]
    means, support = np.unique(said, axis=0, return_counts=True)
    kept = np.argsort(-support, kind="stable")[: count + SPARE_CLUSTERS]
    means = means[kept] if len(kept) else np.zeros((1, local.q))
    return Broadcast(NumberList.of(means.ravel(), (Field("small", local.q, len(means)),)))


def choose_clusters(state: PlusState, local: LocalRows, means: Floats) -> PlusState:
    """Every center moves to the cluster under which the evidence of its rows is largest. What it added itself
    to the mean of its own cluster does not count.

    means: (clusters, q) deviations of the clusters' means from the common model.
    """
    clusters, number = state.clusters, state.clusters.number.copy()
    belongs = np.ones(len(number))
    outside = plus_own.without_own(state, local, cluster_sums(state, local)["score"])
    for i, name in enumerate(clusters.number.tolist()):
        priors = state.fit.point + means
        priors[np.argmin(((means - clusters.by_name[name].point) ** 2).sum(axis=1))] = outside[i]
        evidence = np.array([plus_own.own_posterior(state, local, i, prior).evidence for prior in priors])
        number[i] = np.argmax(evidence)
        belongs[i] = 1.0 / np.exp(evidence - evidence.max()).sum()
    clusters = ClusterState(len(means), number, belongs)
    return replace(state, clusters=begin_clusters(state, local, clusters, means))
