"""What methods share that choose whom to hear, or one of K models or heads: draws of peers, models judged on
own rows, a trail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.arrays import Weights
from abps.core.matching import MatchingPlan
from abps.data.prepare import Rows
from abps.methods.base import Context, Decisions, Floats, Ints
from abps.methods.pairing import trail_of
from abps.models.layout import Layout
from abps.models.metrics import labels_of, log_loss
from abps.models.mixtures import Mixtures

#: The rows of its own on which a center looks at other models.
Judge = Literal["train", "validation", "all"]

#: How centers come to hear each other: those that they ask, one way; or by proposals, both ways.
Links = Literal["pull", "mutual"]


def drawn(
    context: Context, logits: Floats, t: int, known: NDArray[np.bool_] | None = None, purpose: str = "policy"
) -> list[list[int]]:
    """Every center's peers in the order of draws without replacement, probabilities proportional to
    exp(logits) (r, n); known: (r, n) those that can be drawn, else everybody."""
    known = ~context.self_mask if known is None else known & ~context.self_mask
    u = streams.uniforms(
        context.seed, purpose, t, context.ids[context.local_index][:, None], context.ids[None, :]
    )
    # The largest of log-probability plus Gumbel noise is a draw; in descending order, draws in turn.
    noisy = logits - np.log(-np.log(np.maximum(u, 1e-300)))
    order = np.argsort(np.where(known, -noisy, np.inf), axis=1, kind="stable")
    return [order[i, : int(known[i].sum())].tolist() for i in range(context.r)]


def losses(context: Context, own: Weights, arrived: Weights, to: Ints, by: Ints, judge: Judge) -> Floats:
    """(transfers,) mean loss of what came from place ``by`` on the rows of the center in row ``to``; its
    private layers are the center's own. 0 where a center has no such rows: there is no evidence.

    own: (r, P).  arrived: (n, shared).
    """
    count = len(to)
    parts = Mixtures(
        to.astype(np.int64),
        np.zeros(count, dtype=np.float32),
        by.astype(np.int64),
        np.ones(count, dtype=np.float32),
        np.arange(count + 1),
    )

    def measured(rows: Rows) -> Floats:
        return log_loss(context.learner.mixture_logits(own, arrived, parts, rows), labels_of(rows, to))

    return _over(context, judge, to, measured)


def own_losses(context: Context, models: Weights, judge: Judge) -> Floats:
    """(r,) mean loss of every center's model (r, P) on its own rows; 0 where it has none."""
    everyone = np.arange(context.r)
    return _over(
        context, judge, everyone, lambda rows: log_loss(context.learner.logits(models, rows), labels_of(rows))
    )


def _over(context: Context, judge: Judge, who: Ints, measured: Callable[[Rows], Floats]) -> Floats:
    """(k,) what was measured on the rows that judge, each row with the same weight."""
    kinds = {"train": ("train",), "validation": ("validation",), "all": ("train", "validation")}[judge]
    total, count = np.zeros(len(who)), np.zeros(len(who))
    for kind in kinds:
        rows: Rows = getattr(context.data, kind)
        size = rows.sizes[who]
        total += np.where(size > 0, np.nan_to_num(measured(rows), nan=1e30, posinf=1e30) * size, 0.0)
        count += size
    return total / np.maximum(count, 1)


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
    """(r,) which option has the smallest loss on a center's own rows; the first of equals.

    own: (r, P), whose columns after those of the options are a center's own.
    options: (r, K, columns) of each, or (K, columns) the same for all.
    """
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
