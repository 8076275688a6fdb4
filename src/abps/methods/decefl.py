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

from dataclasses import dataclass, field

import numpy as np

from abps.core.errors import RequestError
from abps.core.ledger import Ledger, Traffic
from abps.core.matching import Rest
from abps.methods import graphs
from abps.methods.base import Method, Models, Outcome, Wire, World


@dataclass(frozen=True)
class DeceFL(Method):
    """graph: ring, changing-ring (a fresh one every round), random (Erdős–Rényi, fixed) or complete.

    ring_order: shuffled or index.  edge_probability: of the random graph.
    order: displacement (the method's own) or adapt-then-combine.
    """

    wire: Wire = field(default_factory=Wire)
    graph: str = "ring"
    ring_order: str = "shuffled"
    edge_probability: float = 0.5
    order: str = "displacement"

    def __post_init__(self) -> None:
        for name, known in (
            ("graph", graphs.GRAPHS),
            ("ring_order", ("shuffled", "index")),
            ("order", ("displacement", "adapt-then-combine")),
        ):
            if getattr(self, name) not in known:
                raise RequestError(f"{name}={getattr(self, name)!r}: choose {', '.join(known)}")
        if not 0 < self.edge_probability <= 1:
            raise RequestError(f"edge_probability={self.edge_probability}: choose above 0 to 1")

    def init(self, world: World) -> Models:
        """The common start."""
        return Models(world.common_start())

    def edges(self, world: World, t: int) -> graphs.Ints:
        """(e, 2) this round's graph."""
        if self.graph == "complete":
            return graphs.complete(world.n)
        if self.graph == "random":
            return graphs.random_connected(world, self.edge_probability)
        if self.graph == "ring" and self.ring_order == "index":
            return graphs.ring(np.arange(world.n))
        return graphs.ring(graphs.shuffled(world, t if self.graph == "changing-ring" else 0))

    def apply(self, world: World, state: Models, t: int, ledger: Ledger) -> tuple[Models, Outcome]:
        """Train, and mix with the neighbours."""
        before = state.models
        trained = world.learner.train(before, t)
        edges = self.edges(world, t)
        payload = self.wire.payload(world)
        # The graph is agreed on beforehand: no proposals, no answers.
        traffic = Traffic(edge=len(edges) * payload, directed=2 * len(edges) * payload)
        if not ledger.affords(traffic):
            return Models(trained), Outcome.alone(world.n, Rest.BUDGET, overdrawn=True)
        degree = np.bincount(edges.ravel(), minlength=world.n)
        to, by = graphs.both_ways(edges)
        weight = np.full(len(to), 1.0 / (degree.max(initial=0) + 1))
        shared = self.wire.shared(world)
        sent = trained if self.order == "adapt-then-combine" else before
        mixed = graphs.combine(sent, self.wire.deliver(world, sent[:, :shared], t), to, by, weight)
        if sent is before:
            mixed += trained - before
        return Models(mixed), Outcome(traffic, degree, np.zeros(world.n, dtype=np.int8))
