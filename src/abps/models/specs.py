"""Models by name: what a model looks at, how it is built, and how it is best trained.

``mlp`` is the paper's network. ``linear`` is a logistic regression on the encoded columns, ``gam`` one on
smooth terms of them: an additive model. Anything else is a place in a module, ``package.module:FACTORY``, or
in Python the factory itself: a function from the number of inputs to a ``torch.nn.Module``.

The modules that build networks bring PyTorch along. They are imported when a model is built: a process that
only wants to know what a model looks at does without.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from abps.core.errors import RequestError
from abps.data.outcome import BINARY
from abps.models.layout import ModelFactory
from abps.registry import Registry


@dataclass(frozen=True)
class ModelSpec:
    """A kind of model.

    build: a factory, from the layers (hidden units and dropout) that the settings ask for.
    splines: whether numeric columns come as smooth terms.
    linear: whether compiled code for linear models applies.  layers: how many layers it has, where that is
    known.  training: settings that suit it, where they are not the paper's.
    """

    build: Callable[[tuple[int, ...], float], ModelFactory]
    summary: str
    splines: bool = False
    linear: bool = False
    layers: int | None = None
    training: Mapping[str, Any] = field(default_factory=dict)


def _mlp(hidden: tuple[int, ...], dropout: float) -> ModelFactory:
    from abps.models.models import MLP

    return lambda width, outcome=BINARY: MLP(width, hidden, dropout, outcome)


def _linear(hidden: tuple[int, ...], dropout: float) -> ModelFactory:
    from abps.models.models import Linear

    return Linear


#: Newton's method; the learning rate is that of private steps alone.
_CONVEX = {
    "optimizer": "newton",
    "epochs": 16,
    "lr": 0.15,
    "weight_decay": None,
    "standardise": "common",
}

MODELS: Final[dict[str, ModelSpec]] = {
    "mlp": ModelSpec(_mlp, "the paper's network"),
    "linear": ModelSpec(_linear, "logistic regression, penalised", linear=True, layers=2, training=_CONVEX),
    "gam": ModelSpec(
        _linear,
        "additive model of smooth terms, penalised",
        splines=True,
        linear=True,
        layers=2,
        training=_CONVEX,
    ),
}


def _accepted(found: Any) -> ModelSpec | None:
    """A specification as it is, or any function or class that builds a module."""
    if isinstance(found, ModelSpec):
        return found
    torch = sys.modules.get("torch")  # where it is not loaded, nobody can have made a module
    if callable(found) and not (torch is not None and isinstance(found, torch.nn.Module)):
        return ModelSpec(lambda hidden, dropout: found, "of one's own")
    return None


DOOR: Final = Registry(
    "model",
    "abps.models",
    MODELS,
    _accepted,
    "a function from the number of inputs to a torch.nn.Module",
)


def find_model(model: str | ModelFactory | ModelSpec) -> ModelSpec:
    """A model by its name, or one's own."""
    if isinstance(model, str):
        if model == "gam+mlp":  # an alias for one release
            warnings.warn("model='gam+mlp' is gone; 'gam' is used instead", DeprecationWarning, stacklevel=2)
            model = "gam"
        return DOOR.find(model)
    found = _accepted(model)
    if found is None:
        raise RequestError(
            f"model: a {type(model).__name__} was given; give a name, or a function from the number of "
            "inputs to a torch.nn.Module"
        )
    return found
