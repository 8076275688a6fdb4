"""Models, and their parameters as one flat row per center.

All centers' models together are a matrix (centers, parameters). Mixing is then row arithmetic, what
stays private is a range of columns, and the optimiser is one pass over memory.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from abps.core import streams
from abps.core.errors import RequestError
from abps.data.outcome import BINARY, Outcome


class MLP(nn.Module):
    """The paper's network: linear layers with ReLU and dropout, one logit.

    Input (rows, width), output (rows,).
    """

    def __init__(
        self,
        width: int,
        hidden: tuple[int, ...] = (128, 64),
        dropout: float = 0.2,
        outcome: Outcome = BINARY,
    ) -> None:
        super().__init__()
        self.hidden = tuple(hidden)
        self.rate = float(dropout)
        sizes = [width, *self.hidden]
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in itertools.pairwise(sizes)])
        self.drops = nn.ModuleList([nn.Dropout(dropout) for _ in self.hidden])
        self.head = nn.Linear(sizes[-1], outcome.outputs)
        if outcome.way == "hazard":
            nn.init.constant_(self.head.bias, 0.0)
            self.head.bias.data += torch.from_numpy(outcome.start)

    def representation(self, x: Tensor) -> Tensor:
        """(rows, last hidden) after ReLU, before the last dropout."""
        for k, layer in enumerate(self.layers):
            x = torch.relu(layer(x))
            if k + 1 < len(self.layers):
                x = self.drops[k](x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        """(rows,) logits, or (rows, outputs) of several."""
        return self.head(self.drops[-1](self.representation(x))).squeeze(-1)


#: Builds a model for a number of features, and for an ``outcome``, or a number of ``outputs``, where it is
#: not binary. A user's own ``nn.Module`` plugs in here.
ModelFactory = Callable[..., nn.Module]


def answering(factory: ModelFactory, outcome: Outcome, columns: tuple[str, ...] = ()) -> ModelFactory:
    """The factory of models that answer for an outcome; one that asks for the names of columns gets them."""
    known = inspect.signature(factory).parameters
    if "columns" in known:
        factory = functools.partial(factory, columns=columns)
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
    """One parameter tensor's place in the flat row."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """Where every parameter sits in a flat row, and where each layer ends.

    A layer is a module that owns parameters (weight and bias together), in the model's own order.
    """

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

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a (..., parameters) tensor, by parameter name."""
        return {b.name: flat[..., b.start : b.stop].unflatten(-1, b.shape) for b in self.blocks}


def layout_of(model: nn.Module) -> Layout:
    """The flat layout of a model. Models with buffers (batch norm) are refused."""
    buffers = [name for name, _ in model.named_buffers()]
    if buffers:
        raise RequestError(
            f"the model keeps buffers ({', '.join(buffers[:3])}), which federated averaging would mishandle; "
            "use a model without them (for instance LayerNorm instead of BatchNorm)"
        )
    blocks: list[Block] = []
    layer_names: list[str] = []
    layer_starts: list[int] = []
    at = 0
    for name, parameter in model.named_parameters():
        owner = name.rpartition(".")[0]
        if not layer_names or layer_names[-1] != owner:
            layer_names.append(owner)
            layer_starts.append(at)
        blocks.append(Block(name, tuple(parameter.shape), at, at + parameter.numel()))
        at += parameter.numel()
    if not blocks:
        raise RequestError("the model has no parameters to learn; give a torch.nn.Module that has some")
    return Layout(tuple(blocks), tuple(layer_names), tuple(layer_starts))


def initial_weights(factory: ModelFactory, width: int, seed: int) -> Tensor:
    """(parameters,) the common start of all centers and methods of one seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(streams.key(seed, "initial-weights") & (2**63 - 1))
        model = factory(width)
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).to(torch.float32)
