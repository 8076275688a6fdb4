"""A method of one's own, to copy: neighbours on a ring that turns, each taking half of what it hears.

Run it from the folder where this file lies:

    abps methods --check method:TURNING
    abps compare --methods local,fedavg,method:TURNING --seeds 11,22 --out my-study
"""

from dataclasses import dataclass

import numpy as np

from abps.core import streams
from abps.methods.base import Kind, Models
from abps.methods.peers import PeerMethod, StepResult


@dataclass(frozen=True)
class Turning(PeerMethod):
    """Every field is a setting (``--set share=0.3``); training, stop, budget and wire come with the class.

    share: what a center takes over of the model that it hears.
    """

    share: float = 0.5

    @property
    def kind(self) -> Kind:
        """graph: who hears whom follows from the seed, so nobody asks, and control costs no bytes."""
        return "graph"

    def transfers(self, context, t):
        """(receivers, senders) of round t. Draws have a purpose of their own and belong to names."""
        order = np.argsort(streams.uniforms(context.seed, "turning:ring", t, context.ids))
        return (order, np.roll(order, 1)) if context.n > 1 else (order[:0], order[:0])

    def learn(self, context, state, trained, received, t):
        """What centers make of what arrived. The driver has sent, encoded, counted and paid for it."""
        models, shared = trained.models.copy(), received.arrived.shape[1]
        models[received.receiver, :shared] += self.share * (
            received.arrived[received.sender] - models[received.receiver, :shared]
        )
        return StepResult(Models(models))


TURNING = Turning()
