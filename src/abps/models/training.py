"""Local training: models by name, settings, and what methods may add to the loss.

``mlp`` is the paper's network, ``linear`` a logistic regression on the encoded columns, ``gam`` one on smooth
terms of them: an additive model. Anything else is ``package.module:FACTORY`` or, in Python, the factory: a
function from the number of inputs to a ``torch.nn.Module``. PyTorch is imported when such a model is built.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from abps.core.arrays import Weights
from abps.core.errors import FROM_0, FROM_1, POSITIVE, UP_TO_1, Limits, RequestError, validate
from abps.registry import Registry

if TYPE_CHECKING:
    from abps.models.layout import ModelFactory
else:
    ModelFactory = Callable[..., Any]  # settings are validated by their declared types

#: The penalty per row of linear models where no evidence is asked for.
GRADIENT_DECAY = 0.01


@dataclass(frozen=True)
class ModelSpec:
    """A kind of model.  build: a factory, from hidden units and dropout.  splines: numeric columns as smooth
    terms.  linear: compiled code for linear models applies.  layers: how many, where known.  training:
    settings that suit it, where they are not the paper's."""

    build: Callable[[tuple[int, ...], float], ModelFactory]
    summary: str
    splines: bool = False
    linear: bool = False
    layers: int | None = None
    training: Mapping[str, Any] = field(default_factory=dict)


def _mlp(hidden: tuple[int, ...], dropout: float) -> ModelFactory:
    from abps.models.models import MLP

    return functools.partial(MLP, hidden=hidden, dropout=dropout)


def _linear(hidden: tuple[int, ...], dropout: float) -> ModelFactory:
    from abps.models.models import Linear

    return Linear


#: Newton's method; the learning rate is that of private steps alone.
_CONVEX = {"optimizer": "newton", "epochs": 16, "lr": 0.15, "weight_decay": None, "standardise": "common"}

MODELS: Final[dict[str, ModelSpec]] = {
    "mlp": ModelSpec(_mlp, "the paper's network"),
    "linear": ModelSpec(_linear, "logistic regression, penalised", linear=True, layers=2, training=_CONVEX),
    "gam": ModelSpec(_linear, "additive model of smooth terms, penalised", True, True, 2, _CONVEX),
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
    "model", "abps.models", MODELS, _accepted, "a function from the number of inputs to a torch.nn.Module"
)


def find_model(model: str | ModelFactory | ModelSpec) -> ModelSpec:
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


@dataclass(frozen=True)
class Training:
    """How a center trains between two exchanges, and on what (the paper's settings).

    standardise: numeric columns by each center's own mean and deviation, or by common ones.
    model: a name (``mlp``, ``linear``, ``gam``), ``package.module:FACTORY``, or a factory.
    optimizer: adam or sgd on batches; newton (linear models) on all rows, at most ``epochs`` steps
    (:mod:`abps.models.newton`); its private and its non-convex training goes down the gradient by ``lr``.
    weight_decay: the penalty per row; none (linear models): by evidence.
    hidden, dropout: the layers of the paper's network.
    clip: the longest that one row's gradient may be; none: as long as it is. With it training is private
    (a sampled Gaussian mechanism): noise of ``noise_multiplier`` times this length on every sum of gradients,
    of rows that are each drawn with the chance ``sampling``; no dropout, no steps that follow the curvature.
    """

    epochs: int = 2
    batch: int = 128
    lr: float = 1e-3
    weight_decay: float | None = 1e-5
    optimizer: Literal["adam", "sgd", "newton"] = "adam"
    hidden: tuple[int, ...] = (128, 64)
    dropout: float = 0.2
    standardise: Literal["own", "common"] = "own"
    model: str | ModelFactory = "mlp"
    clip: float | None = None
    noise_multiplier: float = 0.0
    sampling: float = 1.0

    limits: ClassVar[Limits] = {
        "epochs": FROM_1,
        "batch": FROM_1,
        "dropout": (0.0, 0.99),
        "lr": POSITIVE,
        "weight_decay": FROM_0,
        "clip": POSITIVE,
        "noise_multiplier": FROM_0,
        "sampling": UP_TO_1,
    }

    def __post_init__(self) -> None:
        validate(self)
        if self.clip is None and (self.noise_multiplier or self.sampling < 1):
            raise RequestError(
                f"noise_multiplier={self.noise_multiplier}, sampling={self.sampling}: "
                "these are of private training; set clip, too"
            )

    def private_steps(self, epochs: int) -> int:
        """How many noisy steps ``epochs`` of private training are: as many as see a row that often."""
        return epochs if self.optimizer == "newton" else max(1, round(epochs / self.sampling))

    @property
    def decay(self) -> float:
        """The penalty per row of training by gradients, private or not."""
        return GRADIENT_DECAY if self.weight_decay is None else self.weight_decay

    @property
    def factory(self) -> ModelFactory:
        return find_model(self.model).build(self.hidden, self.dropout)

    @property
    def splines(self) -> bool:
        return find_model(self.model).splines

    @property
    def linear(self) -> bool:
        return find_model(self.model).linear

    @staticmethod
    def of(model: str | ModelFactory, **settings: Any) -> Training:
        """The training that suits a model; settings replace its own."""
        return Training(**{"model": model, **find_model(model).training, **settings})

    def suited(self, model: str | ModelFactory) -> Training:
        """The training that suits a model; epochs, penalty and layers of a method's own stay."""
        usual = Training.of(self.model)
        own = ("epochs", "weight_decay", "hidden", "dropout", "clip", "noise_multiplier", "sampling")
        named = {name: getattr(self, name) for name in own}
        return Training.of(
            model, **{name: value for name, value in named.items() if value != getattr(usual, name)}
        )


@dataclass(frozen=True, eq=False)
class Contrast:
    """A contrastive loss on representations (Li et al. 2021): near one frozen model's, away from another's.

    Of a row whose last hidden layer (after ReLU, before dropout; frozen models have none) is z, with t = tau:

        l = -log( e^(cos(z, z_near) / t) / (e^(cos(z, z_near) / t) + e^(cos(z, z_far) / t)) ).

    near, far: (P,) or (n, P).  strength: weight of the loss.  temperature: tau.
    """

    near: Weights
    far: Weights
    strength: float
    temperature: float


@dataclass(frozen=True, eq=False)
class GaussianWeights:
    """Weights that are Gaussians, trained by drawing them (Blundell et al. 2015), and their prior.

    A weight is N(m, s^2), s = softplus(r); m and r are trained, side by side: (n, 2P). Every batch draws once
    w = m + s e, and loss = BCE(w) + say * KL(N(m, s^2), N(center, spread^2)).
    center, spread: (P,) or (n, P) the prior.  say: (n,) weight of the divergence from it.
    """

    center: Weights
    spread: Weights
    say: Weights


@dataclass(frozen=True)
class Objective:
    """What is added to a center's own loss; the default is nothing.

    Adds ``strength * (w - anchor) + shift`` to the gradient (proximal, dynamic and control-variate terms are
    of this form), and the gradient of a contrastive loss: all of it data, so that compiled code can read it.

    strength: a number or (n,).  anchor, shift: (P,) or (n, P); with ``gaussian``, of the 2P that are trained.
    """

    strength: float | Weights = 0.0
    anchor: Weights | None = None
    shift: Weights | None = None
    contrast: Contrast | None = None
    gaussian: GaussianWeights | None = None

    @property
    def simple(self) -> bool:
        return self.contrast is None and self.gaussian is None

    def of(self, i: int) -> tuple[float, NDArray[np.float64] | None, NDArray[np.float64] | None]:
        """Center i's strength, anchor (P,) and shift (P,)."""
        strength = self.strength if isinstance(self.strength, float | int) else float(self.strength[i])
        anchor, shift = (
            None if rows is None else (rows if rows.ndim == 1 else rows[i]).astype(np.float64)
            for rows in (self.anchor, self.shift)
        )
        return strength, anchor, shift

    def check_private(self) -> None:
        """Raise unless it has only terms in the weights: others look at rows without a bound."""
        if not self.simple:
            raise RequestError(
                "clip: this method's loss is not one of single rows, so a row's part in it has no bound; "
                "leave clip out, or choose another method"
            )


PLAIN = Objective()


@dataclass(frozen=True, eq=False)
class LocalRound:
    """A local round: its number, what is added to the loss, which parameters move, and how long it lasts."""

    number: int
    objective: Objective
    columns: slice
    epochs: int
