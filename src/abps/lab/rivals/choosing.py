"""What peer-to-peer rivals share. A graph is its edges (e, 2), every undirected edge once; a transfer is
(receiver, sender)."""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.arrays import Weights
from abps.core.matching import MatchingPlan
from abps.data.prepare import Rows
from abps.methods.base import Context, Decisions, Floats, Ints
from abps.methods.proposals import trail_of
from abps.models.layout import Layout
from abps.models.learners import Mixtures
from abps.models.metrics import labels_of, log_loss

#: The rows of its own on which a center looks at other models.
Judge = Literal["train", "validation"]


def drawn(
    context: Context, logits: Floats, t: int, known: NDArray[np.bool_] | None = None
) -> list[list[int]]:
    """Every center's peers in the order of draws without replacement, probabilities proportional to
    exp(logits) (n, n); known: (n, n) those that can be drawn, else everybody."""
    known = ~context.self_mask if known is None else known & ~context.self_mask
    u = streams.uniforms(context.seed, "policy", t, context.ids[:, None], context.ids[None, :])
    # The largest of log-probability plus Gumbel noise is a draw; in descending order, draws in turn.
    noisy = logits - np.log(-np.log(np.maximum(u, 1e-300)))
    order = np.argsort(np.where(known, -noisy, np.inf), axis=1, kind="stable")
    return [order[i, : int(known[i].sum())].tolist() for i in range(context.r)]


def losses(context: Context, own: Weights, arrived: Weights, to: Ints, by: Ints, judge: Judge) -> Floats:
    """(transfers,) mean loss of what came from place ``by`` on the rows of the center in row ``to``, whose
    private layers are its own; 0 where it has no such rows. own: (r, P). arrived: (n, shared)."""
    count = len(to)
    parts = Mixtures(
        to.astype(np.int64),
        np.zeros(count, dtype=np.float32),
        by.astype(np.int64),
        np.ones(count, dtype=np.float32),
        np.arange(count + 1),
    )

    rows: Rows = getattr(context.data, judge)
    found = log_loss(context.learner.mixture_logits(own, arrived, parts, rows), labels_of(rows, to))
    return _known(found, rows.sizes[to])


def own_losses(context: Context, models: Weights, judge: Judge) -> Floats:
    rows: Rows = getattr(context.data, judge)
    return _known(log_loss(context.learner.logits(models, rows), labels_of(rows)), rows.sizes)


def _known(loss: Floats, size: Ints) -> Floats:
    """Losses; 0 where there were no rows, and very large ones where a model is ruined."""
    return np.where(size > 0, np.nan_to_num(loss, nan=1e30, posinf=1e30), 0.0)


def trail_with(score: Floats, count: Floats | None = None) -> Callable[[MatchingPlan], Decisions]:
    """The audit trail of a plan with a score (n, n) beside every decision, and how often it was measured."""

    def numbers(center: Ints, peer: Ints) -> tuple[Floats, Floats, Floats]:
        found = score[center, peer]
        nothing = np.full(len(found), np.nan)
        return found, nothing, nothing if count is None else count[center, peer]

    return lambda plan: trail_of(plan, numbers)


def head_start(layout: Layout, head_layers: int) -> int:
    """The first column of the last ``head_layers`` layers; 0 where that is all of them."""
    starts = layout.layer_starts
    return starts[-head_layers] if head_layers < len(starts) else 0


def spread_out(start: Weights, clusters: int, spread: float, seed: int) -> Weights:
    """(K, columns) copies of a model (columns,), each moved by noise of its own; the same for all who know
    the seed."""
    noise = [
        streams.generator(seed, "clusters", k).standard_normal(len(start), dtype=np.float32)
        for k in range(clusters)
    ]
    return start + spread * np.stack(noise)


def choose(context: Context, own: Weights, options: Weights, judge: Judge) -> Ints:
    """(r,) which option has the smallest loss on a center's own rows; the first of equals.  own: (r, P),
    whose columns after those of the options stay.  options: (r, K, columns), or (K, columns) for all."""
    found: Floats = np.stack(
        [losses_of(context, own, options[..., k, :], judge) for k in range(options.shape[-2])], axis=1
    )
    return np.argmin(found, axis=1)


def losses_of(context: Context, own: Weights, option: Weights, judge: Judge) -> Floats:
    """(r,) the loss of an option, (columns,) or (r, columns), on every center's own rows."""
    everyone = np.arange(context.r)
    by = everyone if option.ndim == 2 else np.zeros(context.r, dtype=np.int64)
    return losses(context, own, np.atleast_2d(option), everyone, by, judge)


def under_head(option: Weights, own: Weights) -> Weights:
    """(r, P) models whose first columns are an option (r, columns), the rest a center's own."""
    return np.concatenate([option, own[:, option.shape[1] :]], axis=1)


# ---------------------------------------------------------------- graphs


Graph = Literal["ring", "changing-ring", "complete"]


def ring(order: Ints) -> Ints:
    """Edges of a ring through the centers in the given order; two centers share one edge."""
    n = len(order)
    if n < 2:
        return np.zeros((0, 2), dtype=np.int64)
    return np.stack([order, np.roll(order, -1)], axis=1)[: n if n > 2 else 1]


def complete(n: int) -> Ints:
    return np.stack(np.triu_indices(n, 1), axis=1).astype(np.int64)


def regular(order: Ints, degree: int) -> Ints:
    """Edges of a graph in which all have ``degree`` neighbours (or all others): the nearest and, for an odd
    degree, the opposite on a circle in the given order; of an odd number of centers the last has no opposite.
    """
    n, at = len(order), np.arange(len(order))
    if degree >= n - 1:
        return complete(n)
    edges = [np.stack([order, np.roll(order, -step)], axis=1) for step in range(1, degree // 2 + 1)]
    if degree % 2:
        half = at[: n // 2]
        edges.append(np.stack([order[half], order[half + n // 2]], axis=1))
    return np.concatenate(edges)


def shuffled(context: Context, t: int = 0) -> Ints:
    """(n,) the centers in random order, the same for all, whatever order they are listed in."""
    return np.argsort(streams.bits(context.seed, "graph", t, context.ids), kind="stable")


def by_size(context: Context, receiver: Ints, sender: Ints) -> NDArray[np.float64]:
    """(transfers,) the weight of each model received in a size-weighted mean with the own one."""
    say = context.sizes().astype(np.float64)
    total = say + np.bincount(receiver, weights=say[sender], minlength=context.n)
    return np.asarray(say[sender] / total[receiver])


def combine(
    own: Weights, arrived: Weights, receiver: Ints, sender: Ints, weight: NDArray[np.float64]
) -> Weights:
    """(r, P) every center's own model and, with the given weights, those it received; weights sum to 1.
    arrived: (n, shared) what each member's receivers see.  receiver: rows.  sender: places.  weight:
    (transfers,)."""
    n, shared = len(own), arrived.shape[1]
    rest = 1.0 - np.bincount(receiver, weights=weight, minlength=n)
    mixed = own.copy()
    mixed[:, :shared] *= rest.astype(np.float32)[:, None]
    for to, by, scale in zip(receiver, sender, weight.astype(np.float32)):
        mixed[to, :shared] += scale * arrived[by]
    return mixed
