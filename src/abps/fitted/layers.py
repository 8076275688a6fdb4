"""A trained network as plain layers of numbers, so that it can be used without what trained it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from abps.core.errors import RequestError
from abps.models.additive import Linear
from abps.models.interactions import PairTerms
from abps.models.models import MLP, layout_of

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Layer:
    """weight (out, in) times the input, plus bias (out,); then what is below zero is zero, if ``relu``."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32]
    relu: bool


@dataclass(frozen=True, eq=False)
class LayeredNetwork:
    """Branches of layers that see the same inputs; their outputs are added."""

    branches: tuple[tuple[Layer, ...], ...]

    @property
    def width(self) -> int:
        """The number of inputs."""
        return int(self.branches[0][0].weight.shape[1])

    @property
    def outputs(self) -> int:
        """The number of answers for a row."""
        return int(self.branches[0][-1].weight.shape[0])

    def log_odds(self, x: NDArray[np.float32]) -> Floats:
        """(rows,) the one answer for inputs (rows, width)."""
        return self.answers(x)[:, 0]

    def answers(self, x: NDArray[np.float32]) -> Floats:
        """(rows, outputs) from inputs (rows, width)."""
        total = np.zeros((len(x), self.outputs))
        for branch in self.branches:
            now = np.asarray(x, dtype=np.float64)
            for layer in branch:
                now = now @ layer.weight.T.astype(np.float64) + layer.bias
                if layer.relu:
                    now = np.maximum(now, 0.0)
            total += now
        return total

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """All numbers by name: branch.layer.weight and branch.layer.bias."""
        named = {}
        for b, branch in enumerate(self.branches):
            for k, layer in enumerate(branch):
                named[f"{b}.{k}.weight"] = np.ascontiguousarray(layer.weight)
                named[f"{b}.{k}.bias"] = np.ascontiguousarray(layer.bias)
        return named

    def shape(self) -> list[list[bool]]:
        """Whether each layer of each branch cuts at zero: what the numbers alone do not say."""
        return [[layer.relu for layer in branch] for branch in self.branches]

    @staticmethod
    def of(tensors: Mapping[str, NDArray[np.float32]], shape: list[list[bool]]) -> LayeredNetwork:
        """From numbers by name."""
        return LayeredNetwork(
            tuple(
                tuple(
                    Layer(tensors[f"{b}.{k}.weight"], tensors[f"{b}.{k}.bias"], bool(relu))
                    for k, relu in enumerate(branch)
                )
                for b, branch in enumerate(shape)
            )
        )


def network_of(module: nn.Module, weights: NDArray[np.float32]) -> LayeredNetwork:
    """A trained module as plain layers.  weights: (P,) the flat row of its parameters."""
    named = layout_of(module).unflatten(weights)
    if isinstance(module, MLP):
        branches: tuple[tuple[Layer, ...], ...] = (_mlp(module, named, ""),)
    elif isinstance(module, Linear):
        weight = named["terms.weight"]
        if module.mix.shape != (1, 1):
            weight = module.mix.T @ weight
        branches = ((Layer(weight, named["intercept.value"], False),),)
        size = layout_of(module).size
        checked = _checked(LayeredNetwork(branches), module, weights[:size])
        tail = weights[size:]
        return LayeredNetwork((*checked.branches, *_pairs(tail, weight.shape[1], module.mix)))
    else:
        raise RequestError(
            f"a model of the kind {type(module).__name__} cannot be written as plain layers yet; "
            "fit with mlp, linear or gam"
        )
    return _checked(LayeredNetwork(branches), module, weights)


def _pairs(tail: NDArray[np.float32], width: int, mix: NDArray[np.float32]) -> tuple[tuple[Layer, ...], ...]:
    """The pair terms at the end of a linear model as a branch; nothing where there are none."""
    pairs, coefficients = PairTerms.read(tail, width, len(mix))
    if not pairs.count:
        return ()
    functions, together = pairs.units()
    hidden = Layer(functions[:, :-1].astype(np.float32), functions[:, -1].astype(np.float32), True)
    out = mix.T @ coefficients @ together.T
    return ((hidden, Layer(out.astype(np.float32), np.zeros(len(out), np.float32), False)),)


def _mlp(module: MLP, named: Mapping[str, NDArray[np.float32]], prefix: str) -> tuple[Layer, ...]:
    hidden = tuple(
        Layer(named[f"{prefix}layers.{k}.weight"], named[f"{prefix}layers.{k}.bias"], True)
        for k in range(len(module.layers))
    )
    return (*hidden, Layer(named[f"{prefix}head.weight"], named[f"{prefix}head.bias"], False))


def _checked(network: LayeredNetwork, module: nn.Module, weights: NDArray[np.float32]) -> LayeredNetwork:
    """The layers, once they have answered like the module they were taken from."""
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(64, network.width)).astype(np.float32))
    module.eval()
    with torch.no_grad():
        theirs = torch.func.functional_call(
            module, layout_of(module).unflatten(torch.from_numpy(weights.copy())), (x,)
        )
    ours = network.answers(x.numpy())
    if not np.allclose(ours, theirs.double().numpy().reshape(ours.shape), rtol=1e-4, atol=1e-4):
        raise AssertionError("the layers do not answer like the model they were taken from")
    return network
