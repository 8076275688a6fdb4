"""Linear and additive models of any outcome: Newton's method on a center's rows, penalties by evidence.

A model is (P,): the coefficients of every term, then the intercepts of the answers; ``mix`` (terms, outputs)
turns terms into answers. Losses are sums over rows, in units of the dispersion where a family has one.

A center alone minimises its loss plus penalty/2 · |coefficients|². Of n centers that learn one model, each
carries an n-th of that penalty, so that their sum has all of it. Either way the penalty maximises the
evidence (MacKay's fixed point: effective degrees of freedom / |coefficients|²); intercepts have none.

What a center would fit to its own rows differs from what all would fit together, and a mean of own optima is
not the optimum of the mean. So a center that learns with others stays near the model that it received: a
quadratic term that grows with the rounds (:data:`HOLD`). It vanishes where nothing moves any more, hence it
changes no method's fixed point, only how far centers run apart on the way. A method with control variates
(``Objective.shift``) bounds its steps itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, solve_triangular
from scipy.linalg.lapack import dpotrs

from abps.core.arrays import Weights
from abps.data.outcome import Outcome
from abps.data.prepare import Rows
from abps.data.splines import TAILS, named_terms
from abps.models.families import Family, family_of
from abps.models.layout import linear_layout, linear_start
from abps.models.learners import Learner
from abps.models.metrics import Segments
from abps.models.outcomes import shaped
from abps.models.training import PLAIN, LocalRound

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Bounds of a penalty by evidence, and what stands for it before there are coefficients. The strongest still
#: leaves the direction of the first gradient step.
LEAST_PENALTY, MOST_PENALTY = 0.3, 1e5
FIRST_PENALTY = 30.0

#: How firmly a round holds a center at the model it received, in units of its mean curvature per round.
HOLD = 0.3

#: Intercepts keep this much per row: outcomes that are all alike would drive them to infinity.
INTERCEPT = 1e-6

#: A step that lowers the loss by less than this share of it ends a search; halvings of one step.
TOLERANCE = 1e-8
HALVINGS = 12

#: Rounds of mode and penalty of a center alone, fixed-point steps in each, and Newton steps of a mode.
SWEEPS, INNER_SWEEPS, MODE_STEPS = 10, 6, 25


def column_kinds(columns: tuple[str, ...]) -> Ints:
    """(columns,) 0 for yes/no columns, 1 for straight parts of numbers, 2 for their bends, 3 for their tails;
    renumbered where one kind is missing."""
    kind = [3 if term in TAILS else min(int(term or 0), 2) for term in named_terms(columns)[1]]
    return np.asarray(np.unique(kind, return_inverse=True)[1], dtype=np.int64)


def penalties(dof: Floats, squares: Floats, group: Ints) -> Floats:
    """(p,) one penalty for every group of coefficients: effective degrees of freedom / squared norm.

    dof, squares: (p,).  A group shrinks towards all by one more coefficient of the average size: a few
    coefficients that happen to be small say little.
    """
    groups = int(group.max(initial=0)) + 1
    common = float(np.clip(dof.sum() / max(float(squares.sum()), 1e-12), LEAST_PENALTY, MOST_PENALTY))
    total = np.bincount(group, dof, groups) + 1.0
    norm = np.bincount(group, squares, groups) + 1.0 / common
    each = np.full(1, common) if groups == 1 else np.clip(total / norm, LEAST_PENALTY, MOST_PENALTY)
    return np.asarray(each[group])


def shared_penalty(curvature: Floats, coefficients: Floats, group: Ints, centers: int) -> Floats:
    """(p,) one of ``centers`` equal parts of the penalties of a common model, as one of them sees them.

    curvature: (p,) the diagonal of its own summed loss's; all have ``centers`` times as much. Without the
    correlations it has full rank however few the rows; degrees of freedom come out a little too high.
    """
    squares = coefficients**2
    if not squares.any():
        return np.full(len(squares), FIRST_PENALTY)
    found = penalties(np.ones(len(squares)), squares, group)
    for _ in range(INNER_SWEEPS):
        found = penalties(curvature / (curvature + found / centers), squares, group)
    return found / centers


@cache
def _below_diagonal(size: int) -> NDArray[np.bool_]:
    """(size, size) what lies below the diagonal."""
    return np.tri(size, k=-1, dtype=bool)


class Curvature:
    """The curvature of a summed loss in all P parameters, X'VX; of few rows as its root (rows, P)."""

    def __init__(self, x: Floats, information: Floats, mix: Floats) -> None:
        """x: (rows, columns).  information: (rows, outputs, outputs) second derivatives of the losses."""
        (rows, columns), (terms, outputs) = x.shape, mix.shape
        edge = terms * columns
        self.root: Floats | None = None
        if outputs == 1 and rows <= edge:
            self.root = np.sqrt(information[:, 0]) * np.concatenate(
                [x * mix[0, 0], np.ones((rows, 1))], axis=1
            )
            self.diagonal = np.asarray((self.root**2).sum(axis=0))
            return
        self.whole = np.empty((edge + outputs, edge + outputs))
        across = information @ mix.T  # (rows, outputs, terms)
        inner = mix @ across
        for t in range(terms):
            mine = slice(t * columns, (t + 1) * columns)
            self.whole[edge:, mine] = across[:, :, t].T @ x
            for s in range(t + 1):
                self.whole[mine, s * columns : (s + 1) * columns] = (x * inner[:, t, s, None]).T @ x
        self.whole[edge:, edge:] = information.sum(axis=0)
        np.copyto(self.whole.T, self.whole, where=_below_diagonal(edge + outputs))
        self.diagonal = np.diag(self.whole).copy()

    def factored(self, precision: Floats, columns: slice = slice(None)) -> Factored:
        """The curvature plus a diagonal (P,), of some parameters, ready to solve with."""
        return Factored(self, precision[columns], columns)

    def times(self, w: Floats) -> Floats:
        """(P,) curvature times w."""
        return np.asarray(self.whole @ w if self.root is None else self.root.T @ (self.root @ w))


class Factored:
    """A curvature plus a diagonal, factorised; the smaller of X'VX and its dual."""

    def __init__(self, curvature: Curvature, precision: Floats, columns: slice) -> None:
        # Without any penalty few rows do not say where to go.
        self.precision, self.scaled = np.maximum(precision, 1e-9 * curvature.diagonal.mean()), None
        if curvature.root is None:
            whole = curvature.whole[columns, columns].copy()
            whole.flat[:: len(whole) + 1] += self.precision
        else:
            self.scaled = curvature.root[:, columns] / np.sqrt(self.precision)
            whole = self.scaled @ self.scaled.T
            whole.flat[:: len(whole) + 1] += 1.0
        self.factor = cho_factor(whole, lower=True, check_finite=False, overwrite_a=True)

    def solve(self, gradient: Floats) -> Floats:
        """The Newton step."""
        factor = self.factor[0]  # LAPACK at once: SciPy's own checks cost more than a small solution
        if self.scaled is None:
            return np.asarray(dpotrs(factor, gradient, lower=1)[0])
        root = np.sqrt(self.precision)
        right = gradient / root
        inner = dpotrs(factor, self.scaled @ right, lower=1)[0]
        return np.asarray((right - self.scaled.T @ inner) / root)

    def freedom(self) -> Floats:
        """Effective degrees of freedom of every parameter: 1 minus precision times posterior variance."""
        known = np.eye(len(self.precision)) if self.scaled is None else self.scaled
        half = solve_triangular(self.factor[0], known, lower=True, check_finite=False)
        squares = np.asarray((half**2).sum(axis=0))
        return 1.0 - self.precision * squares if self.scaled is None else squares

    def log_determinant(self) -> float:
        """Of the curvature plus the diagonal, over that of the diagonal alone."""
        whole = 2.0 * float(np.log(np.diag(self.factor[0])).sum())
        return whole - float(np.log(self.precision).sum()) if self.scaled is None else whole


@dataclass(frozen=True, eq=False)
class OwnRows:
    """One center's rows x (rows, columns), y (rows,), in double precision, and what its outcome asks for."""

    x: Floats
    y: Floats
    family: Family
    mix: Floats

    @property
    def edge(self) -> int:
        """Where the intercepts begin."""
        return len(self.mix) * self.x.shape[1]

    def answers(self, w: Floats) -> Floats:
        """(rows, outputs)."""
        terms = self.x @ w[: self.edge].reshape(len(self.mix), -1).T
        return np.asarray(terms @ self.mix + w[self.edge :])

    def loss(self, z: Floats) -> float:
        """Summed over rows."""
        return float(self.family.loss(z, self.y).sum())

    def score(self, z: Floats) -> Floats:
        """(P,) minus the gradient of the summed loss."""
        residual = self.family.residual(z, self.y)
        return np.concatenate([((residual @ self.mix.T).T @ self.x).ravel(), residual.sum(axis=0)])

    def curvature(self, z: Floats) -> Curvature:
        """Of the summed loss."""
        return Curvature(self.x, self.family.information(z, self.y), self.mix)

    def dispersion(self, loss: float) -> float:
        """The scale of the loss."""
        if self.family.dispersion_factor == 0.0:
            return 1.0
        return max(self.family.dispersion_factor * loss / len(self.y), 1e-6)


@dataclass(frozen=True, eq=False)
class Quadratic:
    """What is added to a summed loss: Σ precision/2 · (w - middle)² + slope'w; all (P,)."""

    precision: Floats
    middle: Floats
    slope: Floats | float = 0.0

    def value(self, w: Floats) -> float:
        """Of the sum."""
        return float(0.5 * (self.precision * (w - self.middle) ** 2).sum() + (self.slope * w).sum())

    def gradient(self, w: Floats) -> Floats:
        """(P,)."""
        return np.asarray(self.precision * (w - self.middle) + self.slope)

    def plus(self, precision: Floats, middle: Floats) -> Quadratic:
        """With another pull; two pulls are one towards their weighted middle."""
        both = np.maximum(self.precision + precision, 1e-300)
        together = (self.precision * self.middle + precision * middle) / both
        return replace(self, precision=self.precision + precision, middle=together)


def descend(
    rows: OwnRows, w: Floats, added: Quadratic, steps: int, columns: slice, curvature: Curvature | None = None
) -> Floats:
    """(P,) the model after so many Newton steps at most from w, each halved until the loss falls.

    curvature: kept through all steps if given (they cost a fraction of the first then); else every step has
    its own.
    """
    fixed = None if curvature is None else curvature.factored(added.precision, columns)
    z = rows.answers(w)
    now = rows.loss(z) + added.value(w)
    for _ in range(steps):
        solver = rows.curvature(z).factored(added.precision, columns) if fixed is None else fixed
        step = np.zeros_like(w)
        step[columns] = solver.solve((rows.score(z) - added.gradient(w))[columns])
        for _ in range(HALVINGS):
            z = rows.answers(w + step)
            new = rows.loss(z) + added.value(w + step)
            if new <= now:
                break
            step *= 0.5
        if not new < now:
            return w
        w, gained, now = w + step, now - new, new
        if gained <= TOLERANCE * (1.0 + abs(now)):
            break
    return w


def ridge(rows: OwnRows, penalty: Floats | float, w: Floats) -> Quadratic:
    """Penalties of the coefficients; intercepts are held where they are, hardly."""
    precision, middle = np.full(len(w), INTERCEPT * len(rows.y)), w.copy()
    precision[: rows.edge], middle[: rows.edge] = penalty, 0.0
    return Quadratic(precision, middle)


def fit_by_evidence(rows: OwnRows, start: Floats, group: Ints) -> tuple[Floats, Floats]:
    """The model (P,) of one center's rows whose penalties maximise the evidence (Laplace), and the penalties
    (p,) in units of the summed loss.  start: (P,) where to begin.  group: (p,) who shares a penalty."""
    edge, scale, w = rows.edge, 1.0, start
    penalty = np.full(edge, FIRST_PENALTY)
    for _ in range(SWEEPS):
        w = descend(rows, w, ridge(rows, scale * penalty, w), MODE_STEPS, slice(None))
        z = rows.answers(w)
        curvature = rows.curvature(z)
        target = curvature.times(w)
        target[:edge] += scale * penalty * w[:edge]
        before, dof = penalty, np.zeros(edge)
        for _ in range(INNER_SWEEPS):
            factored = curvature.factored(ridge(rows, scale * penalty, w).precision)
            dof = factored.freedom()[:edge]
            found = penalties(dof, factored.solve(target)[:edge] ** 2, group)
            settled, penalty = np.abs(np.log(found / penalty)).max(initial=0.0) < 0.02, found
            if settled:
                break
        freedom = max(1.0 - (dof.sum() + len(w) - edge) / len(rows.y), 0.1)
        old, scale = scale, rows.dispersion(rows.loss(z) / freedom)
        if np.abs(np.log(penalty / before)).max(initial=0.0) < 0.05 and abs(np.log(scale / old)) < 0.02:
            break
    return descend(rows, w, ridge(rows, scale * penalty, w), MODE_STEPS, slice(None)), scale * penalty


def is_ridge_optimum(rows: OwnRows, w: Floats, group: Ints) -> bool:
    """Whether w minimises the loss with some penalty for every group: then the score of a group is a multiple
    of its coefficients."""
    score, b = rows.score(rows.answers(w)), w[: rows.edge]
    if not b.any():
        return False
    slope = np.bincount(group, score[: rows.edge] * b) / np.maximum(np.bincount(group, b * b), 1e-300)
    left = score[: rows.edge] - slope[group] * b
    size = 1e-3 * np.sqrt(float(score[: rows.edge] @ score[: rows.edge]) + 1e-6 * len(rows.y))
    return bool(np.abs(left).max() <= size and np.abs(score[rows.edge :]).max() <= 1e-4 * len(rows.y))


#: Bytes of training rows up to which they are kept in double precision from round to round.
MOST_KEPT = 2**27


class LinearLearner(Learner):
    """Linear models of any outcome.

    A thread per core takes center after center, each with single-threaded products: so the numbers do not
    depend on how many cores there are. Nothing here loads PyTorch.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        outcome = self.data.outcome
        self.layout = linear_layout(self.data.width, outcome)
        self.start = linear_start(self.data.width, outcome)
        self._mix = outcome.mix.astype(np.float64)
        self._family = of_answers(outcome)
        self._kept: dict[int, OwnRows] = {}
        kinds = column_kinds(self.data.columns)
        self._group = np.concatenate([kinds + t * (kinds.max(initial=0) + 1) for t in range(len(self._mix))])

    def own(self, rows: Rows, i: int) -> OwnRows:
        """The rows of center i; those that it trains on are kept, unless they would fill the memory."""
        kept = self._kept if rows is self.data.train and rows.x.nbytes < MOST_KEPT else {}
        if i not in kept:
            mine = slice(int(rows.start[i]), int(rows.start[i + 1]))
            x, y = rows.x[mine].astype(np.float64), rows.y[mine].astype(np.float64)
            kept[i] = OwnRows(x, y, self._family, self._mix)
        return kept[i]

    def start_round(self, w: Weights, what: LocalRound) -> Callable[[], Weights]:
        """Training that starts when its models are asked for."""
        return lambda: self._round(w, what)

    def _round(self, w: Weights, what: LocalRound) -> Weights:
        """(n, P) the models after every center's local steps."""
        if not what.objective.simple:
            return self.plain.start_round(w, what)()
        after = np.array(w, dtype=np.float32)
        members = np.flatnonzero(self.data.train.sizes)
        alone = self.sharing == 1 and what.objective is PLAIN and what.columns == slice(None)

        def one(k: int) -> None:
            i = int(members[k])
            rows, begin = self.own(self.data.train, i), w[i].astype(np.float64)
            if alone and self.training.weight_decay is None:
                if not is_ridge_optimum(rows, begin, self._group):
                    after[i] = fit_by_evidence(rows, self.start.astype(np.float64), self._group)[0]
            else:
                after[i] = self._steps(rows, begin, i, what)

        self.each(one, len(members))
        return after

    def _steps(self, rows: OwnRows, w: Floats, i: int, what: LocalRound) -> Floats:
        """(P,) center i's model after its local steps."""
        strength, anchor, shift = what.objective.of(i)
        count, z = len(rows.y), rows.answers(w)
        curvature, scale = rows.curvature(z), rows.dispersion(rows.loss(z))
        diagonal = curvature.diagonal[: rows.edge]
        if self.training.weight_decay is None:
            penalty = scale * shared_penalty(diagonal / scale, w[: rows.edge], self._group, self.sharing)
        else:
            penalty = np.full(rows.edge, self.training.weight_decay * count)
        added = ridge(rows, penalty, w)
        if shift is not None:
            added = replace(added, slope=count * shift)
        if anchor is not None:
            added = added.plus(np.full(len(w), count * strength), anchor)
        held = HOLD * what.number * float(diagonal.mean()) if self.sharing > 1 and shift is None else 0.0
        held = max(held - (count * strength if anchor is not None else 0.0), 0.0)
        added = added.plus(np.where(np.arange(len(w)) < rows.edge, held, 0.0), w)
        return descend(rows, w, added, what.epochs, what.columns, curvature)

    def logits(self, w: Weights, rows: Rows, owner: Ints | None = None) -> Segments:
        """Logits of model k of ``w`` (models, P) on the rows of center ``owner[k]`` (default: k)."""
        self.look(rows)
        who, size = np.arange(len(w)) if owner is None else owner, self.layout.size
        start = np.concatenate([[0], np.cumsum(rows.sizes[who])])
        outputs, edge = self.data.outcome.outputs, self.layout.blocks[0].stop
        values = np.empty((int(start[-1]), outputs), dtype=np.float32)
        mix = self._mix.astype(np.float32)
        for k, i in enumerate(who.tolist()):
            x = rows.x[rows.start[i] : rows.start[i + 1]]
            terms = x @ w[k, :edge].reshape(len(mix), -1).T
            values[start[k] : start[k + 1]] = terms @ mix + w[k, edge:size]
        found = Segments(values[:, 0] if outputs == 1 else values, start)
        return with_pairs(found, w[:, size:], rows, owner, mix)


def with_pairs(
    found: Segments, tails: Weights, rows: Rows, owner: Ints | None, mix: NDArray[np.float32]
) -> Segments:
    """Answers of linear models with what pair terms at their end (models, numbers) add."""
    if not tails.shape[1]:
        return found
    from abps.models.interactions import pair_logits

    values = shaped(found.values)
    for k, tail in enumerate(tails):
        i = k if owner is None else int(owner[k])
        mine = rows.x[rows.start[i] : rows.start[i + 1]]
        values[found.start[k] : found.start[k + 1]] += pair_logits(tail, mine, mix)
    return found


def of_answers(outcome: Outcome) -> Family:
    """The family of an outcome whose information is that of its answers, not of a linear model's terms."""
    family: Any = family_of(outcome)
    return replace(family, mix=np.eye(outcome.outputs), baseline=np.zeros(outcome.outputs))
