"""Each hospital's own additive model: the best model alone in a form that can be handed out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from abps.methods.base import Context, Method, Models, Stopping
from abps.methods.plus_state import LocalRows, as_models, local_rows
from abps.models.hierarchical import CommonModel
from abps.models.hierarchical import alone as own_fit
from abps.models.training import Training


@dataclass(frozen=True)
class AdditiveAlone(Method):
    """An additive model of every center's own rows, penalised by their evidence. Nothing is exchanged."""

    training: Training = field(default_factory=lambda: Training.of("gam"))
    stop: Stopping = field(default_factory=lambda: Stopping(rounds=1))

    #: Its models are fitted, not trained in steps.
    fitted: ClassVar[bool] = True

    def derived(self, context: Context) -> LocalRows:
        """Rows and groups of columns."""
        return local_rows(context.data, np.zeros(len(context.data.own.y)))

    def init(self, context: Context) -> Models:
        """The model without inputs."""
        local: LocalRows = context.derived
        return Models(as_models(np.zeros((context.r, local.q)), local))

    def train(self, context: Context, state: Models, t: int, alone: bool) -> Models:
        """Every center's own fit."""
        local: LocalRows = context.derived
        rows, shape = local.rows, local.rows.shape
        nothing = CommonModel(np.zeros(shape), np.zeros(shape), 1.0)
        group = local.group.reshape(shape)
        modes = [
            own_fit(rows.design(i), rows.outcomes(i), rows.family, group, nothing).model.ravel()
            for i in range(rows.n)
        ]
        return Models(as_models(np.array(modes), local))
