"""An additive model with a small network on top, which learns what the additive part leaves over.

The additive part learns by itself, as if there were no network; the network learns the loss that is left,
with the additive part's logits of the start of the round as a fixed offset. So the sum begins as the additive
model and stays it where the network finds nothing, and :func:`without_network` is the additive model itself,
to be preferred where the network has not earned its place on validation rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor

from abps.core.errors import RequestError
from abps.data.outcome import BINARY
from abps.models.additive import Linear
from abps.models.common import Common
from abps.models.joint_model import Residual
from abps.models.layout import Layout
from abps.models.training import Objective, Training

#: The network's weight decay: it shall not learn what few rows say by chance.
NETWORK_DECAY = 1e-2


def network_size(layout: Layout) -> int:
    """How many leading parameters are the network's; 0 for models that are no sum."""
    return max((b.stop for b in layout.blocks if b.name.startswith("network.")), default=0)


def without_network(layout: Layout, models: Tensor) -> Tensor | None:
    """(n, P) the same models with a network that answers zero; None for models that are no sum."""
    if not network_size(layout):
        return None
    plain = models.clone()
    for block in layout.blocks:
        if block.name.startswith("network.head."):
            plain[:, block.start : block.stop] = 0.0
    return plain


def train_parts(
    learner: Common, w: Tensor, round: int, objective: Objective, columns: slice, epochs: int | None
) -> Tensor:
    """(n, P) the models after every center's round: the additive part by itself, the network on the rest."""
    if objective.contrast is not None or objective.gaussian is not None or objective.lesson is not None:
        raise RequestError(
            "model=gam+mlp: this method trains on more than a center's own rows and weights; "
            "choose model=gam or model=mlp"
        )
    data, training, kind = learner.data, learner.training, type(learner)
    cut, size = network_size(learner.layout), learner.layout.size
    first, last, _ = columns.indices(size)
    after = w.clone()
    additive = kind(data, replace(training, model="gam"), Linear, learner.seed)
    mine = w[:, cut:].contiguous()
    offset = additive.logits(mine, data.train).values  # type: ignore[attr-defined]
    if last > cut:
        moving = slice(max(first - cut, 0), last - cut)
        after[:, cut:] = additive.train(mine, round, _part(objective, cut, size), moving, epochs)  # type: ignore[attr-defined]
    if first < cut:
        rows = data.train
        wide = replace(rows, x=np.column_stack([rows.x, offset]).astype(np.float32), patient=None)
        more = tuple(f"offset {k}" for k in range(data.outcome.outputs))
        seen = replace(data, columns=(*data.columns, *more), train=wide)
        small = Training(hidden=training.hidden, dropout=training.dropout, weight_decay=NETWORK_DECAY)
        network = kind(
            seen,
            small,
            lambda width, outcome=BINARY: Residual(width, training.hidden, training.dropout, outcome),
            learner.seed,
        )
        moving = slice(first, min(last, cut))
        after[:, :cut] = network.train(w[:, :cut].contiguous(), round, _part(objective, 0, cut), moving)  # type: ignore[attr-defined]
    return after


def _part(objective: Objective, first: int, last: int) -> Objective:
    """The objective's terms in some of the parameters."""

    def some(value: Tensor | None) -> Tensor | None:
        return None if value is None else value[..., first:last].contiguous()

    return replace(objective, anchor=some(objective.anchor), shift=some(objective.shift))
