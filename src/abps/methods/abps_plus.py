"""abps-plus: a hierarchical Bayesian model that centers fit by exchanging scores.

    predictor of center i = x'b_i,     b_i ~ N(mu_i, D),     intercept_i ~ N(a_0, tau²)

The prior mean mu_i is the common model b_0, or b_0 plus the deviation of a cluster. All variances and
penalties follow from evidence; nothing is tuned. Exchanges:

1. *start*: score, curvature and intercepts at the model without inputs;
2. *common fit*: scores at the common model; quasi-Newton steps; once with them scores of pairs of columns,
   of which those that earn their place become further columns;
3. *variances*: squared deviations and degrees of freedom of every center's own posterior; with them half
   scores and held-out gains, which decide whether centers differ in ways that others share;
4. only then, *clusters*: the common fit again, in every cluster.

All but the half scores and the clusters need sums over centers alone. After the last exchange each center's
model is the mode of its own posterior, unless the evidence of its rows speaks for a model of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.errors import RequestError
from abps.core.matching import Rest
from abps.methods import plus_structure, plus_updates
from abps.methods.base import Context, Decisions, Floats, Stopping
from abps.methods.coordinated import Broadcast, CoordinatedMethod, Upload
from abps.methods.plus_filter import Screened, bounded_pairs, screen
from abps.methods.plus_state import (
    FIRST_INTERCEPT_VARIANCE,
    FIRST_VARIANCE,
    FULL_CURVATURE,
    ONE,
    ClusterState,
    LocalRows,
    OwnSums,
    Phase,
    PlainFit,
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
)
from abps.models import common_fit
from abps.models.common_fit import FitState
from abps.models.hierarchical import center_curvatures, common_sums
from abps.models.interactions import PairTerms, candidates, earned, pair_sums
from abps.models.training import Training
from abps.wire.number_lists import Field, Fields, Form, NumberList, length

#: Exchanges about variances, and steps of a cluster's fit before and after its members are chosen again.
VARIANCE_EXCHANGES = 2
CLUSTER_STEPS = 3

#: Members that send a large curvature: so many that all together send about so many rows of it, with bounds.
CURVATURE_NUMBERS, FEWEST_CURVATURES, MOST_CURVATURES = 1500, 2, 25

#: Means beyond the number of clusters that members may choose from.
SPARE_CLUSTERS = 3

#: Centers that structure needs: folds of fewer say nothing.
FEWEST_CENTERS = 15

_SUMMING = (Phase.HALF_SCORES, Phase.GATE, Phase.VARIANCES)


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

    def _tests_structure(self, context: Context) -> bool:
        """Whether centers send half scores."""
        return self.structure and context.derived.terms == 1 and context.n >= FEWEST_CENTERS

    def phase(self, context: Context, state: PlusState) -> Phase:
        """What the next exchange is about."""
        t = state.exchanges + 1
        if t == 1:
            return Phase.START
        if t <= 1 + self.steps:
            pairs = self.interactions and t == self.steps and context.derived.candidates
            return Phase.PAIRS if pairs else Phase.COMMON_FIT
        t -= 1 + self.steps
        if t <= VARIANCE_EXCHANGES:
            if not self._tests_structure(context):
                return Phase.VARIANCES
            return (Phase.HALF_SCORES, Phase.GATE)[t - 1]
        if not state.clusters.fits:
            return Phase.OVER
        t -= VARIANCE_EXCHANGES
        if t <= CLUSTER_STEPS:
            return Phase.CLUSTER_FIT
        if t == CLUSTER_STEPS + 1:
            return Phase.CLUSTER_MEANS
        if t <= 2 * CLUSTER_STEPS + 1:
            return Phase.CLUSTER_FIT
        return Phase.VARIANCES if t <= 2 * CLUSTER_STEPS + 1 + VARIANCE_EXCHANGES else Phase.OVER

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
        variance = np.where(local.group < 0, FIRST_INTERCEPT_VARIANCE, 0.0)
        return PlusState(
            as_models(np.zeros((context.r, q)), local),
            fit,
            variance,
            np.ones(q),
            PairTerms.none(local.mains),
            OwnSums.none(local),
            ClusterState.none(local),
            np.zeros(context.r, dtype=bool),
        )

    # An exchange: what centers send, what the coordinator makes of it, what every member makes of that

    def upload(self, context: Context, state: PlusState, t: int) -> Upload:
        """What the centers here send in exchange t."""
        local, phase = local_of(context, state), self.phase(context, state)
        if phase is Phase.START:
            return _start_upload(context, state, self.privacy.secure)
        fields = Fields({**message(phase, local).by_name, **beside_sums(phase, local).by_name})
        form = (Field("single", fields.length),) if self.privacy.secure else fields.form
        rows = packed(fields, _values(state, local, phase))
        return Upload.encode(list(rows), [form] * len(rows))

    def accepted_forms(self, context: Context, t: int) -> tuple[Form, ...]:
        """In the first exchange some centers send their curvature, and some do not."""
        if t != 1 or self.privacy.secure:
            return ()
        plain = message(Phase.START, context.derived).form
        return plain, (*plain, *triangle_message(context.derived.q).form)

    def aggregate(self, context: Context, state: PlusState, uploads: Floats, t: int) -> Broadcast:
        """Sums over the members that are let in, and what the phase needs beside them."""
        local, phase = local_of(context, state), self.phase(context, state)
        if phase is Phase.CLUSTER_MEANS:
            return _cluster_means(uploads, local, state.clusters.count)
        fields = message(phase, local)
        present = np.asarray(~np.isnan(uploads[:, : fields.length]).all(axis=1))
        reported = np.asarray(context.sizes(), dtype=np.float64)
        robust = self.robust and not self.privacy.secure
        screened = screen(fields, uploads, reported, state, local, robust)
        decisions, beside = screened.decisions(present), uploads[:, fields.length :]
        if phase is Phase.CLUSTER_FIT:
            return Broadcast(*_by_cluster(reported, fields, beside[:, 0], screened, state), decisions)
        total, further = screened.values.sum(axis=0), dict[int, NumberList]()
        more, form = np.zeros(0), tuple[Field, ...]()
        if phase is Phase.START:
            more, form = _common_curvature(local, fields, uploads, screened.accepted)
        elif phase is Phase.PAIRS:
            more, form = _earned_pairs(local, beside, screened.accepted)
        elif phase is Phase.HALF_SCORES:
            variance = plus_updates.after_variances(state, local, fields.unpack(total)).variance
            rest = np.where(screened.accepted[:, None], beside, np.nan)
            halves = plus_structure.HalfScores.of(state, local, rest, variance[: local.mains])
            chance, further = plus_structure.propose(context, halves, local)
            more, form = np.array([chance]), (ONE,)
        common = NumberList.of(np.concatenate([total, more]), (*fields.form, *form))
        return Broadcast(common, further, decisions)

    def apply_broadcast(self, context: Context, state: PlusState, broadcast: Broadcast, t: int) -> PlusState:
        """The state after exchange t."""
        phase, numbers = self.phase(context, state), broadcast.common.values
        if not np.isfinite(numbers).all():
            raise ValueError("a broadcast that is not finite")
        after = replace(_applied(context, state, phase, numbers, broadcast), exchanges=t)
        return self._with_models(context, after, phase)

    def _with_models(self, context: Context, state: PlusState, done: Phase) -> PlusState:
        """The state with every center's own model."""
        local = local_of(context, state)
        coming = self.phase(context, state)
        if coming not in (*_SUMMING, Phase.OVER) and done is not Phase.GATE:
            means = plus_updates.prior_means(state, local)
            return replace(state, models=as_models(means, local, state.pairs))
        if done in (Phase.COMMON_FIT, Phase.CLUSTER_FIT):
            constant = local.group < 0
            state = replace(state, variance=np.where(constant, state.variance, FIRST_VARIANCE))
        if done is Phase.GATE and state.clusters.fits:  # kept in case clusters turn out not to help
            bare = replace(state, clusters=state.clusters.without_fits)
            bare = replace(bare, own=plus_updates.own_posteriors(bare, local))
            models = as_models(bare.own.modes, local, state.pairs)
            plain = PlainFit(bare.own, bare.variance, bare.fit, bare.pairs)
            state = replace(state, models=models, own=bare.own, plain=plain)
            return plus_updates.without_pair_effects(state, local)
        state = replace(state, own=plus_updates.own_posteriors(state, local))
        if state.clusters.fits and coming is Phase.VARIANCES:
            state = replace(
                state, own=replace(state.own, gains=plus_updates.cluster_gains(state, context.derived))
            )
        if coming is Phase.OVER:
            if self.keep_own:
                state = plus_updates.keep_own(state, local)
            if self.privacy.secure:
                state = plus_updates.without_harm(state, local, context.derived)
            state = replace(state, over=True)
        return replace(state, models=as_models(state.own.modes, local, state.pairs))

    def resting(self, context: Context, state: PlusState) -> NDArray[np.int8]:
        """(r,) centers that keep a model of their own rows decline what the others offer."""
        return np.where(state.resting, Rest.DECLINED, Rest.NOT).astype(np.int8)

    def decisions(self, context: Context, state: PlusState, broadcast: Broadcast, t: int) -> Decisions | None:
        """Who was left out; at the end, who rests and where every center's information comes from."""
        if not state.over:
            return broadcast.decisions
        weights = plus_updates.partner_rows(context, state)
        return weights if broadcast.decisions is None else weights.after(broadcast.decisions)


# What centers send


def _values(state: PlusState, local: LocalRows, phase: Phase) -> dict[str, Floats]:
    """The fields of the messages of r centers, each (r, ...)."""
    clusters = state.clusters
    if phase is Phase.CLUSTER_MEANS:
        return {"mean": np.stack([clusters.fit_of(g).point for g in clusters.number.tolist()])}
    if phase in _SUMMING:
        values = state.own.values(state.scale)
        if phase is Phase.HALF_SCORES:
            values["halves"], values["information"] = plus_structure.half_scores(state, local)
        return values
    if phase is Phase.CLUSTER_FIT:
        score, losses, raw = plus_structure.cluster_sums(state, local)
    else:
        score, losses, raw = plus_structure.sums_along(
            local.rows, state.fit, np.zeros(local.q), state.variance, state.dispersion
        )
    values = {"score": score / state.scale, "losses": losses, "raw": raw}
    if phase is Phase.PAIRS:
        found = pair_sums(local.rows, common_model(state, local), plus_updates.effects_of(state, local))
        values["pair_scores"], values["pair_information"] = found
    return values | {"cluster": clusters.number.astype(np.float64)}


def curvature_senders(context: Context, q: int) -> NDArray[np.bool_]:
    """(n,) which members send their curvature: all where it is small, else those with the most rows."""
    count = min(max(CURVATURE_NUMBERS // q, FEWEST_CURVATURES, context.n // 20), MOST_CURVATURES)
    chosen = np.full(context.n, q <= FULL_CURVATURE)
    chosen[np.argsort(-np.asarray(context.sizes()), kind="stable")[:count]] = True
    return chosen


def _start_upload(context: Context, state: PlusState, secure: bool) -> Upload:
    """Score, curvature and intercepts at the model without inputs.

    secure: only a sum will be seen, so all send their curvature, and not as correlations.
    """
    local = local_of(context, state)
    rows, q, common = local.rows, local.q, common_model(state, local)
    sums = common_sums(rows, common)
    values = {"score": sums.score, "shift": sums.shift, "doubt": sums.doubt}
    values |= {"rows": rows.sizes.astype(np.float64), "members": np.ones(rows.n)}
    diagonal, middle = np.zeros((rows.n, q)), np.zeros((rows.n, q))
    senders = secure | curvature_senders(context, q)[context.local_index]
    fields, forms, triangles = message(Phase.START, local), [], []
    for i, (curvature, own) in enumerate(center_curvatures(rows, common)):
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


# What the coordinator makes of it


def _common_curvature(
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
    correlation = common_fit.shrunken_correlation(matrix, float(parts["rows"][sent].sum()))
    if q <= FULL_CURVATURE:
        return correlation[np.tril_indices(q)], whole.form
    rank, entries = whole.by_name["factors"].rows, whole.by_name["values"].count
    factors, gaps, values = common_fit.compress(correlation, rank, entries)
    return np.concatenate([factors.ravel(), gaps / common_fit.WIDEST_GAP, values]), whole.form


def _earned_pairs(local: LocalRows, beside: Floats, accepted: NDArray[np.bool_]) -> tuple[Floats, Form]:
    """The pairs of columns that earned their place, with their sums, and their form."""
    score, information = beside.reshape(len(beside), 2, local.terms, -1).swapaxes(0, 1)
    fine = accepted & np.isfinite(beside).all(axis=1)
    fine[fine] = (information[fine] >= 0).all(axis=(1, 2))
    score, information = bounded_pairs(score, information, fine)
    chosen = earned(score, information)
    if not len(chosen):
        return np.zeros(0), ()
    columns = [each[chosen] for each in candidates(int(local.source.max()) + 1)]
    numbers = [*columns, score[:, chosen].ravel(), information[:, chosen].ravel()]
    return np.concatenate(numbers), chosen_message(len(chosen), local.terms).form


def _by_cluster(
    sizes: Floats, fields: Fields, said: Floats, screened: Screened, state: PlusState
) -> tuple[NumberList, dict[int, NumberList]]:
    """How many count, and the sums of every cluster for its members; said: (n,) their clusters."""
    number = np.rint(np.where(np.isfinite(said), said, -1.0)).astype(np.int64)
    number = np.where((number >= 0) & (number < state.clusters.count), number, -1)
    accepted = screened.accepted & (number >= 0)
    whole, messages = max(float(sizes[accepted].sum()), 1.0), dict[int, NumberList]()
    for name in np.unique(number).tolist():
        some = (number == name) & accepted
        received = [screened.values[some].sum(axis=0), [sizes[some].sum() / whole, float(some.sum())]]
        sums = NumberList.of(np.concatenate(received), (*fields.form, Field("single", 2)))
        messages |= dict.fromkeys(np.flatnonzero(number == name).tolist(), sums)
    return NumberList.of(np.array([float(accepted.sum())]), (ONE,)), messages


def _cluster_means(uploads: Floats, local: LocalRows, count: int) -> Broadcast:
    """The means of clusters: of all that members say those that most of them say, a few more than there are
    clusters. The members of a cluster say the same; who makes one up cannot take another one away."""
    said = uploads[np.isfinite(uploads).all(axis=1)]
    means, support = np.unique(said, axis=0, return_counts=True)
    kept = np.argsort(-support, kind="stable")[: count + SPARE_CLUSTERS]
    means = means[kept] if len(kept) else np.zeros((1, local.q))
    return Broadcast(NumberList.of(means.ravel(), (Field("small", local.q, len(means)),)))


# What every member makes of broadcasts


def _applied(
    context: Context, state: PlusState, phase: Phase, numbers: Floats, broadcast: Broadcast
) -> PlusState:
    """The state after a broadcast with these common numbers."""
    local = local_of(context, state)
    if phase is Phase.CLUSTER_MEANS:
        means = numbers.reshape(-1, local.q)
        state = replace(state, clusters=replace(state.clusters, count=len(means)))
        return plus_structure.choose_clusters(state, local, means)
    fields = message(phase, local)
    if phase is Phase.CLUSTER_FIT:
        return plus_structure.step_clusters(state, _cluster_broadcasts(context, state, fields, broadcast))
    sums, rest = fields.unpack(numbers), numbers[fields.length :]
    if phase is Phase.START:
        return plus_updates.after_start(state, local, sums, curvature_message(local.q).unpack(rest))
    if phase is Phase.COMMON_FIT:
        return plus_updates.after_step(state, local, sums)
    if phase is Phase.PAIRS:
        count, left_over = divmod(len(rest), 2 + 2 * local.terms)
        if left_over:
            raise ValueError("a broadcast of pairs of columns that is cut short")
        chosen = chosen_message(count, local.terms).unpack(rest)
        return plus_updates.after_pairs(state, local, sums, chosen)
    if state.plain and state.clusters.fits and sums["gains"][0] < 0:
        return state.plain.back(state)  # all in all clusters do not help
    state = plus_updates.after_variances(state, local, sums, move=not state.clusters.fits)
    if phase is Phase.HALF_SCORES:
        own = [broadcast.only(int(member)) for member in context.local_index]
        return plus_structure.take_proposal(context, replace(state, chance=float(rest[0])), own)
    if phase is Phase.GATE:
        return plus_structure.gate(state, local, sums["gains"], sums["gain_squares"])
    return state


def _cluster_broadcasts(
    context: Context, state: PlusState, fields: Fields, broadcast: Broadcast
) -> dict[int, tuple[Floats, Floats, float, int]]:
    """By cluster its summed score (q,), losses (fractions,), share of all rows and number of centers."""
    received: dict[int, Counter[bytes]] = {}
    for member, name in zip(context.local_index.tolist(), state.clusters.number.tolist(), strict=True):
        values = broadcast.only(member)
        if len(values) != fields.length + 2:
            raise ValueError("a broadcast without the sums of this center's cluster")
        received.setdefault(name, Counter())[values.tobytes()] += 1
    found = {}
    for name, messages in received.items():  # in a simulation attackers here may have got other sums
        values = np.frombuffer(messages.most_common(1)[0][0])
        sums, (share, count) = fields.unpack(values), values[fields.length :]
        found[name] = (sums["score"] * state.scale, sums["losses"], float(share), int(count))
    return found
