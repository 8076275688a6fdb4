"""The paper's network and the linear model as PyTorch modules, and the layout of any module's parameters."""

import itertools

import torch
from torch import Tensor, nn

from abps.core import streams
from abps.core.arrays import Weights
from abps.core.errors import RequestError
from abps.data.outcome import BINARY, Outcome
from abps.models.layout import Block, Layout, ModelFactory


class MLP(nn.Module):
    """The paper's network: linear layers with ReLU and dropout, (rows, width) to one logit (rows,)."""

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
        if outcome.kind == "survival":
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


class Intercept(nn.Module):
    """A number that is added, one to each answer."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.value = nn.Parameter(start)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.value


class Linear(nn.Module):
    """Logits (rows,) of inputs (rows, width); with several answers, terms mixed to (rows, outputs).

    It starts at zero and has two layers, coefficients and intercept: with one private layer a center keeps
    its own level of risk and shares what the columns mean.
    """

    def __init__(self, width: int, outcome: Outcome = BINARY) -> None:
        super().__init__()
        self.mix = outcome.mix
        self.terms = nn.Linear(width, len(self.mix), bias=False)
        nn.init.zeros_(self.terms.weight)
        self.intercept = Intercept(torch.from_numpy(outcome.start))

    def representation(self, x: Tensor) -> Tensor:
        """(rows, width) what every input adds to the logit; (rows, terms times width) to several."""
        return (x[:, None] * self.terms.weight).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """(rows,) logits, or (rows, outputs) of several."""
        terms = self.terms(x)
        if self.mix.shape != (1, 1):
            terms = terms @ torch.from_numpy(self.mix).to(terms)
        return self.intercept(terms.squeeze(-1))


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


def initial_weights(factory: ModelFactory, width: int, seed: int) -> Weights:
    """(parameters,) the common start of all centers and methods of one seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(streams.key(seed, "initial-weights") & (2**63 - 1))
        model = factory(width)
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return flat.to(torch.float32).numpy()
