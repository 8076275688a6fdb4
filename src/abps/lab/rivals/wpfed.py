"""WPFed (Chen et al. 2024): neighbours chosen by the likeness of models and by their peers' rankings.

The original equations are not public; this is the reading that its abstract supports. A center publishes the
signs of 256 random projections of theta - theta_0; h_ij is the share of bits that differ. s_j, in 0 to 1, is
the mean place of j in the rankings that others published (0.5: nobody ranked it). Center i asks peers in the
order of w_ij = s_j exp(-gamma h_ij), ties at random; links are mutual and a center takes at most
``neighbours``. It ranks them by their loss on its own reference rows, a part of its training rows that it
does not train on, publishes that ranking, and averages its own model (weight 1) with theirs (w_ij). (The
authors distil predictions on reference rows instead; patients' rows would then leave the center.)
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.arrays import Weights
from abps.core.errors import FROM_1, SHARE
from abps.data.prepare import Prepared, Rows
from abps.lab.rivals.choosing import combine
from abps.methods.base import Context, Floats, Ints, Models
from abps.methods.peers import PeerMethod, Preferences, Received, StepResult
from abps.models.learners import Learner
from abps.models.metrics import labels_of, log_loss


@dataclass(frozen=True, eq=False)
class State(Models):
    """models: (n, P).  ranking: (n, neighbours) the peers that each center ranked last, best first, or -1."""

    ranking: Ints


@dataclass(frozen=True, eq=False)
class ReferenceRows:
    """learner, reference: training without the reference rows, and those rows.  sketch: (P, bits)."""

    learner: Learner
    reference: Rows
    sketch: Weights


@dataclass(frozen=True, eq=False)
class WeightedPreferences(Preferences):
    """Preferences, and the weights w_ij (n, n) that they follow from."""

    weight: Floats | None = None


@dataclass(frozen=True)
class WPFed(PeerMethod):
    """neighbours: at most.  gamma: weight of the distance between codes.  bits: length of the code.
    reference_share: of the training rows."""

    only_binary: ClassVar[str] = "it ranks by the log-loss of an event; choose another method"

    neighbours: int = 2
    gamma: float = 1.0
    bits: int = 256
    reference_share: float = 0.1

    limits: ClassVar = {"neighbours": FROM_1, "bits": FROM_1, "reference_share": SHARE}
    searched: ClassVar = {"gamma": (1.0, 5.0)}

    kind = "mutual"

    @property
    def capacity(self) -> int:
        return self.neighbours

    def init(self, context: Context) -> State:
        return State(context.common_start(), np.full((context.r, self.neighbours), -1))

    def derived(self, context: Context) -> ReferenceRows:
        train, reference = set_aside(context.data, self.reference_share)
        rng = streams.generator(context.seed, "sketch")
        shape = (context.learner.layout.size, self.bits)
        sketch = rng.standard_normal(shape, dtype=np.float32)
        return ReferenceRows(context.learner.on(replace(context.data, train=train)), reference, sketch)

    def train(self, context: Context, state: State, t: int, alone: bool) -> State:
        return replace(state, models=context.derived.learner.train(state.models, t))

    def rank_peers(
        self, context: Context, state: State, trained: Callable[[], Any], t: int
    ) -> WeightedPreferences:
        moved = trained().models - context.learner.start
        weight = self.weights(codes(moved, context.derived.sketch), scores(context.n, state.ranking))
        entries = -(-self.bits // 32) + self.neighbours
        return WeightedPreferences(self.rankings(context, weight, t), publishing=entries, weight=weight)

    def rankings(self, context: Context, weight: Floats, t: int) -> list[list[int]]:
        tie = streams.bits(context.seed, "tie-break", t, context.ids[:, None], context.ids[None, :])
        order = np.lexsort((tie, np.where(context.self_mask, np.inf, -weight)), axis=-1)
        listed: list[list[int]] = order[:, : context.n - 1].tolist()
        return listed

    def learn(self, context: Context, state: State, trained: State, received: Received, t: int) -> StepResult:
        order = np.argsort(received.receiver, kind="stable")
        to, by = received.receiver[order], received.sender[order]
        derived, models, arrived, weight = (
            context.derived,
            trained.models,
            received.arrived,
            received.preferences.weight,
        )
        # A neighbour's shared layers under the center's own private ones, on the own reference rows.
        seen = models[to]
        seen[:, : arrived.shape[1]] = arrived[by]
        answers = derived.learner.logits(seen, derived.reference, to)
        loss = log_loss(answers, labels_of(derived.reference, to))
        after = replace(trained, ranking=ranked(to, by, loss, context.r, self.neighbours))
        total = 1.0 + np.bincount(to, weights=weight[to, by], minlength=context.n)
        mixed = combine(models, arrived, to, by, weight[to, by] / total[to])
        return StepResult(replace(after, models=mixed))

    def weights(self, code: NDArray[np.bool_], score: Floats) -> Floats:
        """(n, n) w_ij."""
        return score[None, :] * np.exp(-self.gamma * hamming(code))


def set_aside(data: Prepared, share: float) -> tuple[Rows, Rows]:
    """Every center's training rows in two parts: to train on, and the reference (at least one row each)."""
    rows = data.train
    reference = np.zeros(len(rows.y), dtype=bool)
    for i, center in enumerate(streams.center_ids(data.centers)):
        count = int(rows.sizes[i])
        wanted = min(max(1, round(share * count)), count - 1)
        rng = streams.generator(data.seed, "split", 1, int(center))
        reference[rows.start[i] + rng.permutation(count)[: max(0, wanted)]] = True

    def part(mask: NDArray[np.bool_]) -> Rows:
        start = np.concatenate([[0], np.cumsum(mask)])[rows.start]
        return Rows(rows.x[mask], rows.y[mask], start.astype(np.int64))

    return part(~reference), part(reference)


def codes(moved: Weights, sketch: Weights) -> NDArray[np.bool_]:
    return moved @ sketch > 0


def hamming(code: NDArray[np.bool_]) -> Floats:
    sign = np.where(code, 1.0, -1.0)
    alike: Floats = sign @ sign.T / code.shape[1]
    return (1.0 - alike) / 2.0


def ranked(to: Ints, by: Ints, loss: Floats, r: int, most: int) -> Ints:
    """(r, most) the places that each center ranks, best first, -1 where it ranks fewer.  to, by, loss:
    (links,) row ``to`` ranks place ``by``, lower loss first; NaN is not ranked."""
    known = np.isfinite(loss)
    to, by, loss = to[known], by[known], loss[known]
    order = np.lexsort((by, loss, to))
    to, by = to[order], by[order]
    table = np.full((r, most), -1)
    table[to, np.arange(len(to)) - np.searchsorted(to, to, side="left")] = by
    return table


def scores(n: int, ranking: Ints) -> Floats:
    """(n,) the mean place of each center in all rankings: 1 for first, falling by 1 / list length."""
    _, place = np.nonzero(ranking >= 0)
    by = ranking[ranking >= 0]
    length = (ranking >= 0).sum(axis=1)
    votes = np.bincount(by, minlength=n)
    value = 1.0 - place / np.repeat(length, length)
    total = np.bincount(by, weights=value, minlength=n)
    return np.where(votes > 0, total / np.maximum(votes, 1), 0.5)
