"""What the learners of any model hold: the model's kernel and layout, and the common start."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from abps.core import streams
from abps.core.errors import RequestError
from abps.models.foundation import Foundation
from abps.models.kernels import Kernel, LinearKernel, kernel_for
from abps.models.layout import Layout, ModelFactory, answering
from abps.models.models import initial_weights


@dataclass
class Common(Foundation):
    """Data, the model's layout, the common start."""

    factory: ModelFactory
    seed: int
    kernel: Kernel = field(init=False)

    def __post_init__(self) -> None:
        self.factory = answering(self.factory, self.data.outcome, self.data.columns)
        self.kernel = kernel_for(self.factory(self.data.width), self.data.width, self.data.outcome)
        self.start = initial_weights(self.factory, self.data.width, self.seed)
        self.ids = streams.center_ids(self.data.centers)
        if self.training.clip is not None and not self.data.outcome.binary:
            raise RequestError(
                f"clip: private training is for binary outcomes, not {self.data.outcome.kind}; leave it out"
            )
        if self.training.optimizer == "descent" and not isinstance(self.kernel, LinearKernel):
            raise RequestError(
                "optimizer=descent: its steps follow the curvature of a linear model's loss; "
                "choose model=gam or model=linear, or another optimizer"
            )

    def take_noisy_steps(self, round: int, epochs: int) -> None:
        """Note the private steps of a round. Its noise is drawn once: twice the same noise hides nothing."""
        if round in self.noisy_steps:
            raise RequestError(
                "clip: this method trains more than once in a round, with one and the same noise; "
                "choose one that trains once (for abps-plus: without last steps)"
            )
        self.noisy_steps[round] = self.training.private_steps(epochs)

    @property
    def batch(self) -> int:
        """The most rows of a step."""
        if self.training.optimizer != "descent":
            return self.training.batch
        return max(1, int(self.data.train.sizes.max()))

    def decay(self, count: int) -> Tensor:
        """(count,) the penalty of every parameter: none on the intercept, where one is told apart."""
        decay = torch.full((self.layout.size,), self.training.weight_decay)
        for block in self.layout.blocks:
            if block.name.startswith("intercept."):
                decay[block.start : block.stop] = 0.0
        return decay.repeat(count // self.layout.size)

    @property
    def layout(self) -> Layout:
        """Where every parameter sits."""
        return self.kernel.layout
