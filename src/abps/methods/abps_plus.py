"""abps-plus: a hierarchical Bayesian model that centers fit by exchanging scores.

    predictor of center i = x'b_i,     b_i ~ N(b_0, D),     intercept_i ~ N(a_0, tau²)

The common model b_0, its ridge penalties, D and tau² follow from sums over centers, all by evidence; nothing
is tuned. Exchanges:

1. *start*: score, curvature and intercepts at the model without inputs;
2. *common fit*: scores at the common model; quasi-Newton steps;
3. *variances*: squared deviations and degrees of freedom of every center's own posterior.

Every exchange needs sums over centers only. After the last, each center's model is the mode of its own
posterior: its rows, and the common model as a prior.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.arrays import Weights
from abps.core.errors import RequestError
from abps.data.outcome import Outcome
from abps.data.prepare import Prepared
from abps.methods.base import Context, Floats, Models, Stopping
from abps.methods.coordinated import Broadcast, CoordinatedMethod, Upload
from abps.models import common_fit, families
from abps.models.common_fit import FitState, VarianceSums
from abps.models.families import Family
from abps.models.hierarchical import (
    CenterRows,
    CommonModel,
    Posterior,
    center_curvatures,
    common_sums,
    posterior,
)
from abps.models.training import Training
from abps.wire.fields import Fields
from abps.wire.number_lists import Field, NumberList

#: Variance of intercepts before anything is known, and of coefficients when deviations are first estimated.
FIRST_INTERCEPT_VARIANCE = 4.0
#: While the common model is fitted intercepts are nearly free: its loss is then close to quadratic.
WORKING_INTERCEPT_VARIANCE = 1.0
FIRST_VARIANCE = 2e-3

#: Ridge per row before evidence sets it.
FIRST_PENALTY = 0.003

#: Up to so many coefficients every center sends its curvature, and all of it is broadcast.
FULL_CURVATURE = 40
#: Beyond, so many centers do (or an eighth of all), and it is broadcast as so many factors.
FEWEST_CURVATURES = 25
FACTORS = 14


class Phase(Enum):
    """What an exchange is about."""

    START = "start"
    COMMON_FIT = "common fit"
    VARIANCES = "variances"
    OVER = "over"


@dataclass(frozen=True, eq=False)
class LocalRows:
    """What follows from the data of the centers here.

    rows: training and validation rows.  penalty_group: (q,) -1 for constants.  variance_group: (q,) the same
    for deviations.
    """

    rows: CenterRows
    penalty_group: NDArray[np.int64]
    variance_group: NDArray[np.int64]

    @property
    def q(self) -> int:
        """Coefficients of a model, constants included."""
        terms, width = self.rows.shape
        return terms * width

    @property
    def terms(self) -> int:
        """Terms of the linear predictor."""
        return self.rows.shape[0]

    @cached_property
    def groups(self) -> int:
        """Groups of columns that share a variance."""
        return int(self.variance_group.max()) + 1

    @cached_property
    def constants(self) -> NDArray[np.int64]:
        """(terms,) where the constants are."""
        return np.flatnonzero(self.penalty_group < 0)


@dataclass(frozen=True, eq=False)
class PlusState(Models):
    """models: (r, P) every center's own model, as predictors read it.

    exchanges: how many are done.  fit: the common fit.  variance: (q,) of deviations.  dispersion: of the
    loss.  scale: (q,) size of a coefficient's score, by which scores are written.  rows: of all centers.
    own: what every center's posterior adds to the next sums.
    """

    exchanges: int
    fit: FitState
    variance: Floats
    dispersion: float
    scale: Floats
    rows: float
    own: OwnSums


@dataclass(frozen=True, eq=False)
class OwnSums:
    """What the posteriors of r centers add to the sums of an exchange about variances.

    modes, score: (r, q).  squares, dof: (r, groups).  shift, shift_dof: (r, terms).  evidence: (r,).
    """

    modes: Floats
    score: Floats
    squares: Floats
    dof: Floats
    shift: Floats
    shift_dof: Floats
    evidence: Floats

    @staticmethod
    def none(local: LocalRows) -> OwnSums:
        """Before there are any."""
        r, q = local.rows.n, local.q
        groups, terms = np.zeros((r, local.groups)), np.zeros((r, local.terms))
        return OwnSums(np.zeros((r, q)), np.zeros((r, q)), groups, groups, terms, terms, np.zeros(r))


def family_of(outcome: Outcome) -> Family:
    """The family of an outcome, with what centers agreed on for it."""
    mix, start = outcome.mix.astype(np.float64), outcome.start.astype(np.float64)
    if outcome.way == "hazard":
        return families.Hazard(mix, start, np.array(outcome.grid))
    if outcome.way == "pinball":
        return families.Quantile(mix, start, outcome.quantile)
    kinds = {
        "logistic": families.Bernoulli,
        "softmax": families.Multinomial,
        "squared": families.Gaussian,
        "cox": families.Cox,
    }
    return kinds[outcome.way](mix, start)


def column_groups(columns: tuple[str, ...], terms: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(q,) which coefficients share a penalty, and which a variance between centers; -1 for constants.

    Penalties: yes/no columns, straight parts and bends of numbers, for every term. Variances: a variable's
    straight part, and its bends.
    """
    source = [name.partition(" ~")[0] for name in columns]
    part = [int(name.partition(" ~")[2] or 0) for name in columns]
    kind = np.minimum(part, 2)
    seen = {name: k for k, name in enumerate(dict.fromkeys(source))}
    variable = np.array([2 * seen[name] + (order > 1) for name, order in zip(source, part, strict=True)])
    variable = np.unique(variable, return_inverse=True)[1]
    kind = np.unique(kind, return_inverse=True)[1]
    both = []
    for group in (kind, variable):
        count = int(group.max()) + 1
        both.append(np.concatenate([[*(group + t * count), -1] for t in range(terms)]).astype(np.int64))
    return both[0], both[1]


@dataclass(frozen=True)
class ABPSPlus(CoordinatedMethod):
    """A hierarchical Bayesian model fitted by exchanging scores, with a rotating coordinator.

    steps: exchanges of the common fit after the first.
    """

    training: Training = field(default_factory=lambda: Training.of("gam"))
    stop: Stopping = field(default_factory=lambda: Stopping(rounds=20))
    steps: int = 5

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

    def phase(self, t: int) -> Phase:
        """What exchange t is about."""
        if t == 1:
            return Phase.START
        if t <= 1 + self.steps:
            return Phase.COMMON_FIT
        return Phase.VARIANCES if t <= 3 + self.steps else Phase.OVER

    def sums_only(self, t: int) -> bool:
        """All exchanges need sums alone."""
        return True

    def finished(self, state: PlusState) -> bool:
        """Whether all exchanges are done."""
        return self.phase(state.exchanges + 1) is Phase.OVER

    def derived(self, context: Context) -> LocalRows:
        """Rows and groups of columns."""
        return local_rows(context.data)

    def init(self, context: Context) -> PlusState:
        """The model without inputs."""
        local: LocalRows = context.derived
        q, terms = local.q, local.terms
        fit = FitState(
            np.zeros(q),
            np.eye(q),
            np.ones(q),
            local.penalty_group,
            np.zeros((terms, q)),
            np.full(terms, FIRST_INTERCEPT_VARIANCE),
            np.full(terms, 0.5),
            context.n,
        )
        variance = np.zeros(q)
        variance[local.constants] = FIRST_INTERCEPT_VARIANCE
        models = as_models(np.zeros((context.r, q)), local)
        return PlusState(models, 0, fit, variance, 1.0, np.ones(q), 0.0, OwnSums.none(local))

    # Uploads

    def upload(self, context: Context, state: PlusState, t: int) -> Upload:
        """What the centers here send in exchange t."""
        local: LocalRows = context.derived
        phase = self.phase(t)
        if phase is Phase.START:
            return _start_upload(context, state)
        fields = message(phase, local)
        if phase is Phase.VARIANCES:
            own = state.own
            lists = [
                fields.pack(
                    {
                        "score": own.score[i] / state.scale,
                        "squares": own.squares[i],
                        "dof": own.dof[i],
                        "shift": own.shift[i],
                        "shift_squares": own.shift[i] ** 2,
                        "shift_dof": own.shift_dof[i],
                    }
                )
                for i in range(context.r)
            ]
        else:
            sums = common_sums(local.rows, common_model(state, local))
            flat = sums.score.reshape(context.r, -1)
            lists = [
                fields.pack({"score": flat[i] / state.scale, "loss": sums.loss[i], "raw": sums.raw[i]})
                for i in range(context.r)
            ]
        return Upload.encode(lists, [fields.form] * len(lists))

    # The coordinator

    def aggregate(self, context: Context, state: PlusState, uploads: Floats, t: int) -> Broadcast:
        """Sums over the members; of the first exchange also the curvature in few numbers."""
        local: LocalRows = context.derived
        phase = self.phase(t)
        fields = message(phase, local)
        total = np.nansum(uploads[:, : fields.length], axis=0)
        if phase is not Phase.START:
            return Broadcast(NumberList.of(total, fields.form))
        whole = curvature_message(local.q)
        each = triangle_message(local.q).unpack(uploads[:, fields.length :])["triangle"]
        sent = np.isfinite(each).all(axis=1)
        size = np.sqrt(np.maximum(fields.unpack(uploads)["diagonal"], 0.0))
        matrix = np.zeros((local.q, local.q))
        for i in np.flatnonzero(sent):
            matrix += _square(each[i], local.q) * np.outer(size[i], size[i])
        rows = float(fields.unpack(uploads)["rows"][sent].sum())
        correlation, _ = common_fit.shrunken_correlation(matrix, rows)
        if local.q <= FULL_CURVATURE:
            packed = whole.pack({"triangle": correlation[np.tril_indices(local.q)]})
        else:
            factors, left = common_fit.compress(correlation, FACTORS)
            packed = whole.pack({"factors": factors, "left": left})
        both = np.concatenate([total, packed])
        return Broadcast(NumberList.of(both, (*fields.form, *whole.form)))

    # Updates

    def apply_broadcast(self, context: Context, state: PlusState, broadcast: Broadcast, t: int) -> PlusState:
        """The state after the sums of exchange t."""
        local: LocalRows = context.derived
        phase = self.phase(t)
        numbers = broadcast.common.values
        if not np.isfinite(numbers).all():
            raise ValueError("a broadcast that is not finite")
        fields = message(phase, local)
        sums = fields.unpack(numbers)
        if phase is Phase.START:
            curvature = curvature_message(local.q).unpack(numbers[fields.length :])
            state = _after_start(state, local, sums, curvature)
        elif phase is Phase.COMMON_FIT:
            state = _after_step(state, local, sums)
        else:
            state = _after_variances(state, local, sums)
        state = replace(state, exchanges=t)
        if self.phase(t + 1) in (Phase.VARIANCES, Phase.OVER):
            if phase is Phase.COMMON_FIT:
                state = replace(state, variance=np.where(state.variance > 0, state.variance, FIRST_VARIANCE))
            own = own_posteriors(state, local)
            return replace(state, own=own, models=as_models(own.modes, local))
        return replace(state, models=as_models(np.tile(state.fit.point, (context.r, 1)), local))


def local_rows(data: Prepared) -> LocalRows:
    """Rows that a center may look at, and the groups of their columns."""
    own = data.own
    family = family_of(own.outcome)
    rows = CenterRows(own.x, own.y.astype(np.float64), own.start, family)
    return LocalRows(rows, *column_groups(data.columns, len(family.mix)))


def as_models(modes: Floats, local: LocalRows) -> Weights:
    """(r, P) coefficients, then intercepts, as linear models have them, from (r, q)."""
    family = local.rows.family
    shaped = modes.reshape(len(modes), *local.rows.shape)
    level = shaped[:, :, -1] @ family.mix + family.baseline
    flat = np.concatenate([shaped[:, :, :-1].reshape(len(modes), -1), level], axis=1)
    return flat.astype(np.float32)


def common_model(state: PlusState, local: LocalRows) -> CommonModel:
    """The common model as centers compute with it."""
    shape = local.rows.shape
    return CommonModel(state.fit.point.reshape(shape), state.variance.reshape(shape), state.dispersion)


# Messages


def message(phase: Phase, local: LocalRows) -> Fields:
    """What every center sends in an exchange, and what the sums are broadcast as."""
    q, terms, groups = local.q, local.terms, local.groups
    one = Field("single", 1)
    if phase is Phase.START:
        intercepts = {name: Field("single", terms) for name in ("shift", "shift_squares", "doubt")}
        fields = {"score": Field("small", q), "diagonal": Field("half", q), "middle": Field("small", q)}
        return Fields(fields | intercepts | {"loss": one, "raw": one, "rows": one})
    if phase is Phase.COMMON_FIT:
        return Fields({"score": Field("small", q), "loss": one, "raw": one})
    return Fields(
        {"score": Field("small", q), "squares": Field("half", groups), "dof": Field("half", groups)}
        | {name: Field("single", terms) for name in ("shift", "shift_squares", "shift_dof")}
    )


def triangle_message(q: int) -> Fields:
    """A center's curvature as correlations: the lower triangle."""
    return Fields({"triangle": Field("small", q * (q + 1) // 2)})


def curvature_message(q: int) -> Fields:
    """The federation's curvature as correlations: the lower triangle, or factors and a diagonal."""
    if q <= FULL_CURVATURE:
        return triangle_message(q)
    return Fields({"factors": Field("small", q, FACTORS), "left": Field("half", q)})


def _square(triangle: Floats, q: int) -> Floats:
    """(q, q) from the lower triangle."""
    found = np.zeros((q, q))
    found[np.tril_indices(q)] = triangle
    return found + np.tril(found, -1).T


def curvature_senders(context: Context, q: int) -> NDArray[np.bool_]:
    """(n,) which members send their curvature, drawn from the seed: all where it is small."""
    if q <= FULL_CURVATURE:
        return np.ones(context.n, dtype=bool)
    count = max(FEWEST_CURVATURES, context.n // 8)
    draw = streams.uniforms(context.seed, "sketch", 0, context.ids)
    chosen = np.zeros(context.n, dtype=bool)
    chosen[np.argsort(draw, kind="stable")[:count]] = True
    return chosen


def _start_upload(context: Context, state: PlusState) -> Upload:
    """Score, curvature and intercepts at the model without inputs."""
    local: LocalRows = context.derived
    rows, q = local.rows, local.q
    common = common_model(state, local)
    sums = common_sums(rows, common)
    senders = curvature_senders(context, q)[context.local_index]
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
            }
        )
        form = fields.form
        if senders[i]:
            size = np.sqrt(np.maximum(diagonal, 1e-9))
            values = np.concatenate([values, (curvature / np.outer(size, size))[below]])
            form = (*form, *triangle_message(q).form)
        lists.append(values)
        forms.append(form)
    return Upload.encode(lists, forms)


# What follows from sums


def _after_start(
    state: PlusState, local: LocalRows, sums: dict[str, Floats], packed: dict[str, Floats]
) -> PlusState:
    """Curvature, intercepts and the first step."""
    q, n = local.q, state.fit.centers
    size = np.sqrt(np.maximum(sums["diagonal"], 1e-9))
    if "triangle" in packed:
        correlation = _square(packed["triangle"], q)
        correlation = common_fit.assemble_curvature(correlation)
    else:
        factors = packed["factors"].reshape(FACTORS, q)
        correlation = factors.T @ factors + np.diag(packed["left"])
    owner = np.arange(q) // local.rows.shape[1] == np.arange(local.terms)[:, None]
    weight = np.maximum(sums["middle"][local.constants], 1e-9)
    before = state.fit.intercept_variance
    certainty = np.clip(1.0 - sums["doubt"] / n / before, 0.01, 0.999)
    mean = sums["shift"] / n
    variance = np.full(local.terms, WORKING_INTERCEPT_VARIANCE)
    point, score = np.zeros(q), sums["score"].copy()
    # Intercepts around their own mean leave nothing to explain.
    point[local.constants], score[local.constants] = mean, 0.0
    fit = replace(
        state.fit,
        point=point,
        curvature=correlation * np.outer(size, size),
        penalty=np.where(local.penalty_group >= 0, FIRST_PENALTY * float(sums["rows"][0]), 1e-3),
        middle=np.where(owner, sums["middle"] / np.repeat(weight, local.rows.shape[1]), 0.0),
        certainty=certainty,
    )
    fit = common_fit.with_intercept_variance(fit, variance)
    fit = common_fit.quasi_newton_step(fit, score, float(sums["loss"][0]))
    full = state.variance.copy()
    full[local.constants] = variance
    # Scores were taken with other intercepts, so this exchange says nothing about curvature.
    fit = replace(fit, last=None, best=None)
    return replace(state, fit=fit, variance=full, scale=size, rows=float(sums["rows"][0]))


def _after_step(state: PlusState, local: LocalRows, sums: dict[str, Floats]) -> PlusState:
    """One quasi-Newton step; after the first one, the dispersion of the loss."""
    score, loss = sums["score"] * state.scale, float(sums["loss"][0])
    fit = common_fit.quasi_newton_step(state.fit, score, loss)
    factor = local.rows.family.dispersion_factor
    if not factor or state.exchanges != 1:
        return replace(state, fit=fit)
    dispersion = max(factor * float(sums["raw"][0]) / max(state.rows, 1.0), 1e-6)
    ratio = dispersion / state.dispersion
    scale = state.scale / np.sqrt(ratio)
    return replace(state, fit=common_fit.with_dispersion(fit, ratio), dispersion=dispersion, scale=scale)


def _after_variances(state: PlusState, local: LocalRows, sums: dict[str, Floats]) -> PlusState:
    """Variances by evidence, and a step of the common model with all own deviations in place."""
    n = state.fit.centers
    found = VarianceSums(
        sums["squares"], sums["dof"], sums["shift"], sums["shift_squares"], sums["shift_dof"]
    )
    each, intercept = common_fit.variances(found)
    variance = np.where(local.variance_group >= 0, each[np.maximum(local.variance_group, 0)], 0.0)
    variance[local.constants] = intercept
    fit = replace(state.fit, certainty=np.clip(found.shift_dof / n, 0.001, 0.999))
    system = fit.curvature + np.diag(fit.penalty)
    step = np.linalg.solve(system, sums["score"] * state.scale - fit.penalty * fit.point)
    fit = common_fit.with_intercept_variance(replace(fit, point=fit.point + step), intercept)
    return replace(state, fit=fit, variance=variance)


def own_posteriors(state: PlusState, local: LocalRows) -> OwnSums:
    """Every center's posterior, and what it adds to sums."""
    rows, prior = local.rows, common_model(state, local)
    found: list[Posterior] = [
        posterior(rows.design(i), rows.outcomes(i), rows.family, prior) for i in range(rows.n)
    ]
    modes = np.stack([each.model.ravel() for each in found])
    deviation = modes - state.fit.point
    dof = np.stack([each.dof.ravel() for each in found])
    used = local.variance_group >= 0
    group = local.variance_group[used]

    def by_group(values: Floats) -> Floats:
        return np.stack([np.bincount(group, row[used], local.groups) for row in values])

    return OwnSums(
        modes,
        np.stack([each.score.ravel() for each in found]),
        by_group(deviation**2),
        by_group(dof),
        deviation[:, local.constants],
        dof[:, local.constants],
        np.array([each.evidence for each in found]),
    )
