"""The parameters of models as one flat row per center.

All models are a matrix (centers, parameters): mixing is row arithmetic, what is private a range of columns.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from abps.core.arrays import Weights
from abps.core.errors import RequestError
from abps.data.outcome import Outcome

if TYPE_CHECKING:
    from torch import nn

#: Builds a model for a number of features, and for an ``outcome``, or a number of ``outputs``, where it is
#: not binary. A user's own ``nn.Module`` plugs in here.
if TYPE_CHECKING:
    ModelFactory = Callable[..., nn.Module]
else:
    ModelFactory = Callable[..., Any]


def answering(factory: ModelFactory, outcome: Outcome) -> ModelFactory:
    known = inspect.signature(factory).parameters
    if outcome.binary:
        return factory
    if "outcome" in known:
        return functools.partial(factory, outcome=outcome)
    if "outputs" in known:
        return functools.partial(factory, outputs=outcome.outputs)
    if outcome.outputs == 1:
        return factory
    raise RequestError(
        f"this outcome asks for {outcome.outputs} answers per row; build the model by a function of the "
        "number of inputs and of outputs"
    )


@dataclass(frozen=True)
class Block:
    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """Where every parameter sits in a flat row, and where each layer (a module with parameters) begins."""

    blocks: tuple[Block, ...]
    layer_names: tuple[str, ...]
    layer_starts: tuple[int, ...]

    @property
    def size(self) -> int:
        """|W|: the number of parameters."""
        return self.blocks[-1].stop

    def shared(self, private_layers: int) -> int:
        """How many leading columns are shared when the last ``private_layers`` layers stay private."""
        if not 0 <= private_layers < len(self.layer_starts):
            raise RequestError(
                f"private_layers={private_layers}: the model has {len(self.layer_starts)} layers "
                f"({', '.join(self.layer_names)}) and at least one must be shared; "
                f"choose 0 to {len(self.layer_starts) - 1}"
            )
        return self.size if private_layers == 0 else self.layer_starts[-private_layers]

    def unflatten(self, flat: Any) -> dict[str, Any]:
        """Views of (..., parameters) weights, an array or a tensor, by parameter name."""
        return {b.name: flat[..., b.start : b.stop].reshape(*flat.shape[:-1], *b.shape) for b in self.blocks}


def linear_layout(width: int, outcome: Outcome) -> Layout:
    """The layout of a linear model: coefficients of every term, then intercepts."""
    terms, outputs = outcome.mix.shape
    edge = terms * width
    effects = Block("terms.weight", (terms, width), 0, edge)
    intercepts = Block("intercept.value", (outputs,), edge, edge + outputs)
    return Layout((effects, intercepts), ("terms", "intercept"), (0, edge))


def linear_start(width: int, outcome: Outcome) -> Weights:
    """(P,) the common start of linear models: no effects, and the outcome's intercepts."""
    terms = np.zeros(len(outcome.mix) * width, dtype=np.float32)
    return np.concatenate([terms, outcome.start]).astype(np.float32)
