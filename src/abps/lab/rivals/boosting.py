"""Federated gradient boosting by sums of histograms, as XGBoost and others do between hospitals.

All centers grow the same trees. Every exchange is one level of one tree: a center uploads the sums of
gradients and curvatures of its rows in every bin of every column and node; the coordinator takes the best
split of each node from the totals, and all apply it. Nothing but sums is needed, and the trees are those of
histogram boosting on the pooled rows with these bins, which are cells of the common scale of every column.
Trees are added until the summed validation loss has not fallen for ``patience`` trees; the best number stays.

Not done: sending one of two children and subtracting, which would save up to half of the bytes.
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from abps.core.errors import FROM_0, POSITIVE
from abps.data.prepare import Rows
from abps.methods.base import Context, Floats, Ints, Models, Stopping
from abps.methods.coordinated import Broadcast, CoordinatedMethod, Upload
from abps.models.families import log_loss
from abps.models.metrics import Segments
from abps.models.training import Training
from abps.wire.number_lists import Field, NumberList

#: Edges of the bins of a standardised column: near each other in the middle, as far as five deviations.
EDGES = np.sinh(np.linspace(-3.0, 3.0, 31)) / 2.0
BINS = len(EDGES) + 1


@dataclass(frozen=True, eq=False)
class Forest(Models):
    """models: (r, 1) unused.  base: log-odds of all rows.  at: every training row's node in its level.

    splits: (trees, inner nodes, 2) column and last bin on the left.  values: (trees, leaves).
    scores: log-odds of the rows of all parts (training first).  losses: validation loss of 0, 1, … trees.
    """

    base: float
    splits: Ints
    values: Floats
    at: Ints
    scores: tuple[Floats, ...]
    losses: tuple[float, ...] = ()
    done: bool = False


@dataclass(frozen=True)
class HistogramBoosting(CoordinatedMethod):
    """depth: levels of splits.  rate: the share of a tree that is added.  ridge: penalty of leaves.

    least: the smallest summed curvature of a leaf.  patience: in trees.
    """

    only_binary: ClassVar[str] = "its gradients are those of log-loss; leave it out"

    #: Its model is its own, whatever the others train.
    fitted: ClassVar[bool] = True

    training: Training = field(default_factory=lambda: Training.of("linear", standardise="common"))
    stop: Stopping = field(default_factory=lambda: Stopping(rounds=451))
    depth: int = 3
    rate: float = 0.1
    ridge: float = 1.0
    least: float = 1.0
    patience: int = 10

    limits: ClassVar = {"depth": (1, 8), "rate": POSITIVE, "ridge": FROM_0}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.training.splines:  # trees bend by themselves
            object.__setattr__(self, "training", replace(self.training, model="linear"))

    def sums_only(self, t: int) -> bool:
        """Always."""
        return True

    def finished(self, state: Forest) -> bool:
        """Whether more trees do not help."""
        return state.done

    def derived(self, context: Context) -> tuple[NDArray[np.uint8], ...]:
        """(rows, columns) the bins of the rows of all parts."""
        return tuple(np.searchsorted(EDGES, part.x).astype(np.uint8) for part in _parts(context))

    def init(self, context: Context) -> Forest:
        """No trees."""
        splits = np.zeros((0, 2**self.depth - 1, 2), dtype=np.int64)
        at, scores = (
            np.zeros(len(context.data.train.y), np.int64),
            tuple(np.zeros(len(p.y)) for p in _parts(context)),
        )
        return Forest(
            np.zeros((context.r, 1), np.float32), 0.0, splits, np.zeros((0, 2**self.depth)), at, scores
        )

    def upload(self, context: Context, state: Forest, t: int) -> Upload:
        """Numbers of events and rows; then histograms, and the validation loss."""
        train, validation, lists = context.data.train, context.data.validation, []
        for i in range(context.r):
            own, judged = (slice(*part.start[i : i + 2].tolist()) for part in (train, validation))
            if t == 1:
                lists.append(np.array([train.y[own].sum(), own.stop - own.start]))
                continue
            loss = log_loss(state.scores[1][judged], validation.y[judged].astype(np.float64)).sum()
            sums = self._histograms(
                context.derived[0][own], state.at[own], state.scores[0][own], train.y[own], t
            )
            lists.append(np.append(sums, loss))
        return Upload.encode(lists, [(Field("single", len(values)),) for values in lists])

    def _histograms(
        self, bins: NDArray[np.uint8], at: Ints, score: Floats, y: NDArray[Any], t: int
    ) -> Floats:
        """(nodes × columns × bins × 2,) sums of one center's rows."""
        columns, chance = bins.shape[1], expit(score)
        cell = ((at[:, None] * columns + np.arange(columns)) * BINS + bins).ravel()
        size = 2 ** ((t - 2) % self.depth) * columns * BINS
        each = (chance - y, chance * (1.0 - chance))
        sums = [np.bincount(cell, np.repeat(v, columns), size).astype(np.float64) for v in each]
        return np.stack(sums, axis=1).ravel()

    def aggregate(self, context: Context, state: Forest, uploads: Floats, t: int) -> Broadcast:
        """The log-odds of all rows; then every node's best split, the values of its sides, and the loss."""
        total = np.nansum(uploads, axis=0)
        if t == 1:
            events = np.clip(total[:1], 0.5, max(total[1] - 0.5, 0.5))
            found = np.log(events / np.maximum(total[1] - events, 0.5))
        else:
            found = np.append(
                self.best_splits(total[:-1].reshape(-1, context.data.width, BINS, 2)), total[-1]
            )
        return Broadcast(NumberList.of(found, (Field("single", len(found)),)))

    def best_splits(self, sums: Floats) -> Floats:
        """(nodes, 4) column, last bin on the left, value of the left and of the right side, from sums (nodes,
        columns, bins, 2). A node that is not worth a split sends all to the left."""
        left = np.cumsum(sums, axis=2)
        sides = np.stack([left, left[:, :, -1:] - left])
        fit = sides[..., 0] ** 2 / (sides[..., 1] + self.ridge + 1e-12)
        gain = fit.sum(axis=0) - fit[0, :, :, -1:]
        gain[(sides[..., 1] < self.least).any(axis=0) | (gain < 1e-9)] = 0.0
        best = gain.reshape(len(sums), -1).argmax(axis=1)
        column, cut = np.divmod(best, BINS)
        node = np.arange(len(sums))
        cut[gain[node, column, cut] <= 0.0] = BINS - 1
        chosen = sides[:, node, column, cut]
        values = -self.rate * chosen[..., 0] / (chosen[..., 1] + self.ridge + 1e-12)
        return np.stack([column, cut, *values], axis=1)

    def apply_broadcast(self, context: Context, state: Forest, broadcast: Broadcast, t: int) -> Forest:
        """Rows go down one level; after the last one the tree is added to all scores."""
        values, level, bins = broadcast.common.values, (t - 2) % self.depth, context.derived
        if t == 1:
            scores = tuple(np.full(len(part.y), values[0]) for part in _parts(context))
            return replace(state, base=float(values[0]), scores=scores)
        splits, leaves, losses = state.splits, state.values, state.losses
        if level == 0:
            losses = (*losses, float(values[-1]))
            best = int(np.argmin(losses))
            if len(losses) - 1 - best >= self.patience:
                fewer = replace(state, splits=splits[:best], values=leaves[:best])
                return replace(fewer, scores=tuple(self._answers(fewer, b) for b in bins), done=True)
            splits = np.concatenate([splits, np.zeros_like(splits, shape=(1, *splits.shape[1:]))])
        found, first = values[:-1].reshape(-1, 4), 2**level - 1
        splits = splits.copy()
        splits[-1, first : first + len(found)] = found[:, :2]
        if level + 1 < self.depth:
            return replace(state, splits=splits, at=_below(bins[0], state.at, found), losses=losses)
        leaves = np.concatenate([leaves, found[None, :, 2:].reshape(1, -1)])
        added = [tree_values(splits[-1], leaves[-1], b) for b in bins]
        scores = tuple(s + more for s, more in zip(state.scores, added, strict=True))
        return replace(
            state, splits=splits, values=leaves, at=np.zeros_like(state.at), scores=scores, losses=losses
        )

    def _answers(self, state: Forest, bins: NDArray[Any]) -> Floats:
        """(rows,) log-odds by all trees."""
        trees = zip(state.splits, state.values)  # the one that grows has no values yet
        return state.base + sum((tree_values(*tree, bins) for tree in trees), np.zeros(len(bins)))

    def logits(self, context: Context, state: Forest, rows: Rows) -> Segments:
        """Every center's rows by the common trees."""
        known = [s for part, s in zip(_parts(context), state.scores, strict=True) if part is rows]
        return Segments(
            known[0] if known else self._answers(state, np.searchsorted(EDGES, rows.x)), rows.start
        )


def _parts(context: Context) -> tuple[Rows, ...]:
    data = context.data
    return data.train, data.validation, data.test, data.held_out


def _below(bins: NDArray[Any], at: Ints, splits: NDArray[Any]) -> Ints:
    """(rows,) places in the next level; splits: (nodes of this level, 2 or more)."""
    column = splits[at, 0].astype(np.int64)
    return np.asarray(2 * at + (bins[np.arange(len(at)), column] > splits[at, 1]))


def tree_values(splits: Ints, values: Floats, bins: NDArray[Any]) -> Floats:
    """(rows,) what a tree adds; splits: (inner nodes, 2), level by level."""
    at, first = np.zeros(len(bins), dtype=np.int64), 0
    while first < len(splits):
        at = _below(bins, at, splits[first : 2 * first + 1])
        first = 2 * first + 1
    return np.asarray(values[at])
