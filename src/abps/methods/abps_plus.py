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
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.errors import RequestError
from abps.core.matching import Rest
from abps.methods import plus_structure, plus_updates
from abps.methods.base import Context, Decisions, Floats, Ints, Stopping
from abps.methods.coordinated import Broadcast, CoordinatedMethod, Upload
from abps.methods.plus_filter import Screened, bounded_pairs, screen
from abps.methods.plus_state import (
    FIRST_INTERCEPT_VARIANCE,
    FIRST_VARIANCE,
    FULL_CURVATURE,
    ClusterState,
    LocalRows,
    OwnSums,
    Phase,
    PlainFit,
    PlusState,
    as_models,
    chosen_message,
    common_model,
    curvature_message,
    half_scores_message,
    local_of,
    local_rows,
    message,
    square,
    triangle_message,
)
from abps.models import common_fit
from abps.models.common_fit import FitState
from abps.models.hierarchical import center_curvatures, common_sums
from abps.models.interactions import PairTerms, candidates, earned, pair_sums
from abps.models.training import Training
from abps.wire.fields import Fields
from abps.wire.number_lists import Field, Form, NumberList

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
        fit = FitState(
            np.zeros(q),
            np.eye(q),
            np.ones(q),
            local.group,
            np.zeros((terms, q)),
            np.full(terms, FIRST_INTERCEPT_VARIANCE),
            np.full(terms, 0.5),
            context.n,
        )
        variance = np.zeros(q)
        variance[local.constants] = FIRST_INTERCEPT_VARIANCE
        zero = np.zeros((context.r, q))
        return PlusState(
            as_models(zero, local),
            0,
            fit,
            variance,
            1.0,
            np.ones(q),
            0.0,
            0.0,
            PairTerms.none(local.mains),
            OwnSums.none(local),
            ClusterState.none(local),
            PlainFit(OwnSums.none(local), variance, fit.point, PairTerms.none(local.mains)),
            np.zeros(context.r, dtype=bool),
        )

    # Uploads

    def upload(self, context: Context, state: PlusState, t: int) -> Upload:
        """What the centers here send in exchange t."""
        local = local_of(context, state)
        phase = self.phase(context, state)
        if phase is Phase.START:
            return _start_upload(context, state, self.privacy.secure)
        if phase is Phase.CLUSTER_MEANS:
            fields = Fields({"mean": Field("small", local.q)})
            lists = [state.clusters.fit_of(g).point for g in state.clusters.number.tolist()]
            return Upload.encode(lists, [fields.form] * len(lists))
        fields = message(phase, local)
        if phase in _SUMMING:
            lists = [fields.pack(values) for values in _variance_values(state)]
            if phase is Phase.HALF_SCORES:
                more = half_scores_message(local)
                halves = _half_score_lists(state, local)
                lists = [np.concatenate(both) for both in zip(lists, halves, strict=True)]
                return Upload.encode(lists, [(*fields.form, *more.form)] * len(lists))
            return Upload.encode(lists, [self._form(fields)] * len(lists))
        form = self._form(fields)
        if phase is Phase.CLUSTER_FIT:
            score, losses, raw = plus_structure.cluster_sums(state, local)
            form = (*form, Field("single", 1))
        else:
            score, losses, raw = plus_structure.sums_along(
                local.rows, state.fit, np.zeros(local.q), state.variance, state.dispersion
            )
        values: list[dict[str, Floats | float]] = [
            {"score": score[i] / state.scale, "losses": losses[i], "raw": raw[i]} for i in range(context.r)
        ]
        if phase is Phase.PAIRS:
            found = pair_sums(local.rows, common_model(state, local), plus_updates.effects_of(state, local))
            for each, pair_score, information in zip(values, *found, strict=True):
                each |= {"pair_scores": pair_score, "pair_information": information}
        lists = [fields.pack(each) for each in values]
        if phase is Phase.CLUSTER_FIT:
            lists = [np.append(row, g) for row, g in zip(lists, state.clusters.number, strict=True)]
        return Upload.encode(lists, [form] * len(lists))

    def _form(self, fields: Fields) -> Form:
        """How an upload is written: four bytes a number under masks, which carry no scales."""
        return (Field("single", fields.length),) if self.privacy.secure else fields.form

    def accepted_forms(self, context: Context, t: int) -> tuple[Form, ...]:
        """In the first exchange some centers send their curvature, and some do not."""
        if t != 1 or self.privacy.secure:
            return ()
        plain = message(Phase.START, context.derived).form
        return plain, (*plain, *triangle_message(context.derived.q).form)

    # The coordinator

    def aggregate(self, context: Context, state: PlusState, uploads: Floats, t: int) -> Broadcast:
        """Sums over the members that are let in, and what the phase needs beside them."""
        local = local_of(context, state)
        phase = self.phase(context, state)
        if phase is Phase.CLUSTER_MEANS:
            return _cluster_means(uploads, local, state.clusters.count)
        fields = message(phase, local)
        present = np.asarray(~np.isnan(uploads[:, : fields.length]).all(axis=1))
        screened = self._screen(context, state, phase, fields, uploads)
        own = np.where(screened.accepted[:, None], uploads[:, : fields.length], 0.0)
        own[:, : local.q] = np.where(screened.accepted[:, None], screened.scores, 0.0)
        decisions = screened.decisions(present)
        if phase is Phase.CLUSTER_FIT:
            present = np.isfinite(uploads[:, fields.length])
            number = _cluster_numbers(uploads[:, fields.length], present, state.clusters.count)
            return _by_cluster(context, fields, number, own, screened.accepted & (number >= 0), decisions)
        total = own.sum(axis=0)
        if phase is Phase.START:
            both, form = _with_curvature(local, fields, uploads, screened.accepted, total)
            return Broadcast(NumberList.of(both, form), {}, decisions)
        if phase is Phase.PAIRS:
            return _with_pairs(local, fields, own, screened, decisions)
        if phase is not Phase.HALF_SCORES:
            return Broadcast(NumberList.of(total, fields.form), {}, decisions)
        after = plus_updates.after_variances(state, local, fields.unpack(total))
        rest = np.where(screened.accepted[:, None], uploads[:, fields.length :], np.nan)
        halves = plus_structure.HalfScores.of(state, local, rest, after.variance[: local.mains])
        chance, further = plus_structure.propose(context, halves, local)
        form = (*fields.form, Field("single", 1))
        return Broadcast(NumberList.of(np.append(total, chance), form), further, decisions)

    def _screen(
        self, context: Context, state: PlusState, phase: Phase, fields: Fields, uploads: Floats
    ) -> Screened:
        """Which uploads count."""
        local = local_of(context, state)
        if self.robust and not self.privacy.secure:
            reported = np.asarray(context.sizes(), dtype=np.float64)
            return screen(phase, fields, uploads, reported, state, local)
        accepted = np.asarray(np.isfinite(uploads[:, : fields.length]).all(axis=1))
        reason = np.where(accepted, "", "not finite").astype(object)
        return Screened(accepted, reason, np.nan_to_num(uploads[:, : local.q]))

    # Updates

    def apply_broadcast(self, context: Context, state: PlusState, broadcast: Broadcast, t: int) -> PlusState:
        """The state after exchange t."""
        phase = self.phase(context, state)
        if not np.isfinite(broadcast.common.values).all():
            raise ValueError("a broadcast that is not finite")
        steps: dict[Phase, Callable[[Context, PlusState, Broadcast], PlusState]] = {
            Phase.START: _apply_start,
            Phase.COMMON_FIT: _apply_step,
            Phase.PAIRS: _apply_pairs,
            Phase.HALF_SCORES: _apply_half_scores,
            Phase.GATE: _apply_gate,
            Phase.VARIANCES: _apply_variances,
            Phase.CLUSTER_FIT: _apply_cluster_step,
            Phase.CLUSTER_MEANS: _apply_cluster_means,
        }
        after = replace(steps[phase](context, state, broadcast), exchanges=t)
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
            state = replace(state, models=models, own=bare.own, plain=PlainFit.of(bare))
            return plus_updates.without_pair_effects(state, local)
        state = replace(state, own=plus_updates.own_posteriors(state, local))
        if state.clusters.fits and coming is Phase.VARIANCES:
            state = replace(
                state, own=replace(state.own, gains=plus_updates.cluster_gains(state, context.derived))
            )
        if coming is Phase.OVER:
            if self.keep_own:
                state = plus_updates.keep_own(state, local)
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
    rows, q = local.rows, local.q
    common = common_model(state, local)
    sums = common_sums(rows, common)
    senders = secure | curvature_senders(context, q)[context.local_index]
    fields, lists, forms = message(Phase.START, local), [], []
    below = np.tril_indices(q)
    for i, (curvature, middle) in enumerate(center_curvatures(rows, common)):
        diagonal = np.maximum(np.diag(curvature), 0.0)
        values = fields.pack(
            {
                "score": sums.score[i],
                "diagonal": diagonal,
                "middle": middle.sum(axis=0),
                "shift": sums.shift[i],
                "shift_squares": sums.shift[i] ** 2,
                "doubt": sums.doubt[i],
                "loss": sums.loss[i],
                "raw": sums.raw[i],
                "rows": float(rows.sizes[i]),
                "members": 1.0,
            }
        )
        form = fields.form
        if senders[i]:
            size = np.ones(q) if secure else np.sqrt(np.maximum(diagonal, 1e-9))
            values = np.concatenate([values, (curvature / np.outer(size, size))[below]])
            form = (*form, *triangle_message(q).form)
        lists.append(values)
        forms.append((Field("single", len(values)),) if secure else form)
    return Upload.encode(lists, forms)


def _half_score_lists(state: PlusState, local: LocalRows) -> list[Floats]:
    """The half scores of every center here."""
    fields = half_scores_message(local)
    halves, information = plus_structure.half_scores(state, local)
    return [
        fields.pack({"halves": each, "information": float(w)})
        for each, w in zip(halves, information, strict=True)
    ]


def _variance_values(state: PlusState) -> list[dict[str, Floats]]:
    """What every center adds to sums about variances."""
    own = state.own
    return [
        {
            "score": own.score[i] / state.scale,
            "squares": own.squares[i],
            "dof": own.dof[i],
            "shift": own.shift[i],
            "shift_squares": own.shift[i] ** 2,
            "shift_dof": own.shift_dof[i],
            "gains": own.gains[i],
            "gain_squares": own.gains[i] ** 2,
        }
        for i in range(len(own.modes))
    ]


# What the coordinator makes of it


def _with_curvature(
    local: LocalRows, fields: Fields, uploads: Floats, accepted: NDArray[np.bool_], total: Floats
) -> tuple[Floats, tuple[Field, ...]]:
    """The sums of the first exchange, then the federation's curvature in few numbers, and their form."""
    q, whole = local.q, curvature_message(local.q)
    each = triangle_message(q).unpack(uploads[:, fields.length :])["triangle"]
    parts = fields.unpack(uploads)
    if len(uploads) == 1:  # a masked sum of curvatures
        sent, size = np.ones(1, dtype=bool), np.ones((1, q))
    else:
        sent = accepted & np.isfinite(each[:, 0])  # few do: the others' numbers are not looked at
        sent[sent] = (np.abs(each[sent]) <= 1.05).all(axis=1)
        size = np.sqrt(np.maximum(parts["diagonal"], 0.0))
    matrix = np.zeros((q, q))
    for i in np.flatnonzero(sent):
        matrix += square(each[i], q) * np.outer(size[i], size[i])
    correlation, _ = common_fit.shrunken_correlation(matrix, float(parts["rows"][sent].sum()))
    if q <= FULL_CURVATURE:
        packed = whole.pack({"triangle": correlation[np.tril_indices(q)]})
    else:
        rank, entries = whole.by_name["factors"].rows, whole.by_name["values"].count
        factors, gaps, values = common_fit.compress(correlation, rank, entries)
        packed = whole.pack({"factors": factors, "gaps": gaps / common_fit.WIDEST_GAP, "values": values})
    return np.concatenate([total, packed]), (*fields.form, *whole.form)


def _with_pairs(
    local: LocalRows, fields: Fields, own: Floats, screened: Screened, decisions: Decisions | None
) -> Broadcast:
    """The sums of a step, and the pairs of columns that earned their place, with their sums."""
    parts = fields.unpack(own)
    shape = (len(own), local.terms, local.candidates)
    score, information = bounded_pairs(
        parts["pair_scores"].reshape(shape), parts["pair_information"].reshape(shape), screened
    )
    chosen = earned(score, information)
    columns = candidates(int(local.source.max()) + 1)
    plain, more = message(Phase.COMMON_FIT, local), chosen_message(len(chosen), local.terms)
    total = own[:, : plain.length].sum(axis=0)
    if not len(chosen):
        return Broadcast(NumberList.of(total, plain.form), {}, decisions)
    packed = more.pack(
        {
            "first": columns[0][chosen].astype(np.float64),
            "second": columns[1][chosen].astype(np.float64),
            "score": score[:, chosen],
            "information": information[:, chosen],
        }
    )
    return Broadcast(NumberList.of(np.concatenate([total, packed]), (*plain.form, *more.form)), {}, decisions)


def _by_cluster(
    context: Context,
    fields: Fields,
    number: Ints,
    own: Floats,
    accepted: NDArray[np.bool_],
    decisions: Decisions | None,
) -> Broadcast:
    """The sums of every cluster, to its members."""
    sizes = np.asarray(context.sizes(), dtype=np.float64)
    whole = max(float(sizes[accepted].sum()), 1.0)
    form = (*fields.form, Field("single", 2))
    messages: dict[int, NumberList] = {}
    for name in np.unique(number).tolist():
        mine = number == name
        some = mine & accepted
        total = own[some].sum(axis=0)
        received = np.concatenate([total, [sizes[some].sum() / whole, float(some.sum())]])
        packed = NumberList.of(received, form)
        messages |= dict.fromkeys(np.flatnonzero(mine).tolist(), packed)
    nothing = NumberList.of(np.array([float(accepted.sum())]), (Field("single", 1),))
    return Broadcast(nothing, messages, decisions)


def _cluster_means(uploads: Floats, local: LocalRows, count: int) -> Broadcast:
    """The means of clusters: of all that members say those that most of them say, a few more than there are
    clusters. The members of a cluster say the same; who makes one up cannot take another one away."""
    said = uploads[np.isfinite(uploads).all(axis=1)]
    means, support = np.unique(said, axis=0, return_counts=True)
    kept = np.argsort(-support, kind="stable")[: count + SPARE_CLUSTERS]
    means = means[kept] if len(kept) else np.zeros((1, local.q))
    return Broadcast(NumberList.of(means.ravel(), (Field("small", local.q, len(means)),)))


def _cluster_numbers(values: Floats, present: NDArray[np.bool_], count: int) -> Ints:
    """(n,) the clusters that members say they belong to, -1 where that is none."""
    number = np.rint(np.where(present, np.nan_to_num(values, posinf=-1, neginf=-1), -1.0)).astype(np.int64)
    return np.where((number >= 0) & (number < count), number, -1)


# What every member makes of broadcasts


def _apply_start(context: Context, state: PlusState, broadcast: Broadcast) -> PlusState:
    local: LocalRows = context.derived
    fields, numbers = message(Phase.START, local), broadcast.common.values
    packed = curvature_message(local.q).unpack(numbers[fields.length :])
    return plus_updates.after_start(state, local, fields.unpack(numbers), packed)


def _apply_step(context: Context, state: PlusState, broadcast: Broadcast) -> PlusState:
    local = local_of(context, state)
    sums = message(Phase.COMMON_FIT, local).unpack(broadcast.common.values)
    return plus_updates.after_step(state, local, sums)


def _apply_pairs(context: Context, state: PlusState, broadcast: Broadcast) -> PlusState:
    local, numbers = local_of(context, state), broadcast.common.values
    fields = message(Phase.COMMON_FIT, local)
    count, left_over = divmod(len(numbers) - fields.length, 2 + 2 * local.terms)
    if left_over:
        raise ValueError("a broadcast of pairs of columns that is cut short")
    chosen = chosen_message(count, local.terms).unpack(numbers[fields.length :])
    return plus_updates.after_pairs(state, local, fields.unpack(numbers), chosen)


def _apply_half_scores(context: Context, state: PlusState, broadcast: Broadcast) -> PlusState:
    local = local_of(context, state)
    sums = message(Phase.HALF_SCORES, local).unpack(broadcast.common.values)
    state = plus_updates.after_variances(state, local, sums)
    state = replace(state, chance=float(broadcast.common.values[-1]))
    own = [broadcast.only(int(member)) for member in context.local_index]
    return plus_structure.take_proposal(context, state, own)


def _apply_gate(context: Context, state: PlusState, broadcast: Broadcast) -> PlusState:
    local = local_of(context, state)
    sums = message(Phase.GATE, local).unpack(broadcast.common.values)
    state = plus_updates.after_variances(state, local, sums)
    return plus_structure.gate(state, local, sums["gains"], sums["gain_squares"])


def _apply_variances(context: Context, state: PlusState, broadcast: Broadcast) -> PlusState:
    local = local_of(context, state)
    sums = message(Phase.VARIANCES, local).unpack(broadcast.common.values)
    if state.clusters.fits and sums["gains"][0] < 0:  # all in all clusters do not help: back to what was
        return state.plain.back(state)
    return plus_updates.after_variances(state, local, sums, move=not state.clusters.fits)


def _apply_cluster_step(context: Context, state: PlusState, broadcast: Broadcast) -> PlusState:
    local = local_of(context, state)
    fields = message(Phase.CLUSTER_FIT, local)
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
    return plus_structure.step_clusters(state, found)


def _apply_cluster_means(context: Context, state: PlusState, broadcast: Broadcast) -> PlusState:
    local = local_of(context, state)
    means = broadcast.common.values.reshape(-1, local.q)
    state = replace(state, clusters=replace(state.clusters, count=len(means)))
    return plus_structure.choose_clusters(state, local, means)
