"""FedRep (Collins et al. 2021): a common representation, a private head, trained one after the other.

Every round a center first fits its head to the trunk it received, then the trunk to that head, then
sends the trunk. The layers that are held still do not decay either: each phase has an optimiser of its
own. With one epoch each a round costs the compute of FedAvg's two; the authors use ten and one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from abps.core.errors import FROM_1, RequestError
from abps.methods.base import Context, Models, Wire
from abps.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedRep(FedAvg):
    """head_epochs, trunk_epochs: passes over the rows in each phase (instead of ``epochs``)."""

    wire: Wire = field(default_factory=lambda: Wire(private_layers=1))
    head_epochs: int = 1
    trunk_epochs: int = 1

    limits: ClassVar = {"head_epochs": FROM_1, "trunk_epochs": FROM_1}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.wire.private_layers < 1:
            raise RequestError("private_layers=0: FedRep needs a private head; choose at least 1")

    def train(self, context: Context, state: Models, t: int, alone: bool) -> Models:
        """Train the head, then the trunk."""
        shared = self.wire.shared(context)
        # Two phases, two numbers, so that the second does not repeat the first one's batches.
        fitted = context.learner.train(
            state.models, 2 * t - 1, columns=slice(shared, None), epochs=self.head_epochs
        )
        return Models(
            context.learner.train(fitted, 2 * t, columns=slice(0, shared), epochs=self.trunk_epochs)
        )
