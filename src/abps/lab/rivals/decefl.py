"""DeceFL (Yuan et al. 2024) and D-PSGD (Lian et al. 2017): gossip on a fixed graph.

Every center averages its neighbours' models of the *start* of the round with its own and adds its own
local displacement to that:

    x_i <- sum_j M_ij x_j + (T_i(x_i) - x_i),      M = I - L / (largest degree + 1),

so what j learns in a round reaches i in the next one. M is symmetric and its rows and columns sum to
one, hence the mean of all models moves by the mean of all displacements. D-PSGD is the same with a
shorter local training. ``order=adapt-then-combine`` averages the trained models instead.

On a ring M is 1/3 for a center and each neighbour. The ring runs through the centers in shuffled order:
in the order of their names it would put similar centers side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from abps.core import matching
from abps.core.arrays import Weights
from abps.lab.rivals.choosing import Graph, combine, complete, ring, shuffled
from abps.methods.base import Context, Ints, Models
from abps.methods.peers import PeerMethod, Received, StepResult


@dataclass(frozen=True)
class DeceFL(PeerMethod):
    """graph: ring, changing-ring (a fresh one every round) or complete.

    order: displacement (the method's own) or adapt-then-combine.
    """

    graph: Graph = "ring"
    order: Literal["displacement", "adapt-then-combine"] = "displacement"

    kind = "graph"

    def edges(self, context: Context, t: int) -> Ints:
        """(e, 2) this round's graph."""
        if self.graph == "complete":
            return complete(context.n)
        return ring(shuffled(context, t if self.graph == "changing-ring" else 0))

    def transfers(self, context: Context, t: int) -> tuple[Ints, Ints]:
        """Both ways over every edge."""
        return matching.both_ways(self.edges(context, t))

    def sent(self, state: Models, trained: Models) -> Weights:
        """Models of the start of the round, or trained ones."""
        return trained.models if self.order == "adapt-then-combine" else state.models

    def learn(
        self, context: Context, state: Models, trained: Models, received: Received, t: int
    ) -> StepResult:
        """Mix with the neighbours."""
        degree = np.bincount(self.edges(context, t).ravel(), minlength=context.n)
        weight = np.full(len(received.receiver), 1.0 / (degree.max(initial=0) + 1))
        mixed = combine(
            self.sent(state, trained), received.arrived, received.receiver, received.sender, weight
        )
        if self.order == "displacement":
            mixed = mixed + (trained.models - state.models)
        return StepResult(Models(mixed))
