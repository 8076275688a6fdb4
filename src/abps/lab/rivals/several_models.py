"""What methods share that learn K models, or K heads, and let every center take the one that suits it."""

from __future__ import annotations

import numpy as np

from abps.core import streams
from abps.core.arrays import Weights
from abps.lab.rivals.choosing import Judge, losses
from abps.methods.base import Context, Floats, Ints
from abps.models.layout import Layout


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
