"""Gradients and predictions of many centers' models at once.

Two kernels with one interface and the same numbers: ``MLPKernel`` writes the paper's network out by
hand (no graph, buffers used again); ``ModuleKernel`` takes any ``nn.Module`` through ``torch.func``.

Shapes: m centers, b rows each, d features, P parameters; ``w`` is (m, P), ``x`` (m, b, d), ``y`` and
``weight`` (m, b). ``weight`` is 1/rows for real rows and 0 for padding, so that losses are means.
``keep`` holds one (m, b, units) tensor per dropout, 1/(1-p) where a unit is kept and 0 elsewhere.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from abps.core.errors import RequestError
from abps.learn.models import MLP, Layout, layout_of

#: From the representation (m, b, units) to the gradient of each row's extra loss with respect to it; the
#: kernel takes the mean over the batch.
Pull = Callable[[Tensor], Tensor]


class Workspace:
    """Buffers of one thread, used again at every step: fresh memory costs page faults."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A buffer of a shape; its content is whatever was there."""
        count = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < count or buffer.dtype != dtype:
            buffer = self._buffers[name] = torch.empty(count, dtype=dtype)
        return buffer[:count].view(shape)


@dataclass(frozen=True)
class DropSite:
    """A place where units are dropped: how many per row, and how often."""

    shape: tuple[int, ...]
    rate: float

    @property
    def units(self) -> int:
        """Units per row."""
        return int(torch.Size(self.shape).numel())


class Kernel(Protocol):
    """What a stacked learner needs of a model."""

    layout: Layout
    sites: tuple[DropSite, ...]

    def gradient(
        self,
        w: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        keep: list[Tensor],
        out: Tensor,
        pull: Pull | None = None,
        space: Workspace | None = None,
    ) -> None:
        """Write d(mean BCE)/dw of every center into ``out`` (m, P)."""

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        """(m, b) logits without dropout."""

    def representation(self, w: Tensor, x: Tensor) -> Tensor:
        """(m, b, units) the last hidden layer without dropout."""


class MLPKernel:
    """The paper's network, forward and backward written out."""

    def __init__(self, model: MLP) -> None:
        self.layout = layout_of(model)
        self.sites = tuple(DropSite((h,), model.rate) for h in model.hidden) if model.rate > 0 else ()
        self._blocks = self.layout.blocks
        self._depth = len(model.hidden)
        self._scale = 1.0 / (1.0 - model.rate)

    def _layer(self, flat: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Weight (m, out, in) and bias (m, 1, out) of layer k, as views."""
        weight, bias = self._blocks[2 * k], self._blocks[2 * k + 1]
        return (
            flat[:, weight.start : weight.stop].unflatten(1, weight.shape),
            flat[:, None, bias.start : bias.stop],
        )

    def gradient(
        self,
        w: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        keep: list[Tensor],
        out: Tensor,
        pull: Pull | None = None,
        space: Workspace | None = None,
    ) -> None:
        """Write d(mean BCE)/dw of every center into ``out`` (m, P)."""
        space = space or Workspace()
        m, b, last = x.shape[0], x.shape[1], self._depth - 1
        inputs = [x]
        seen, extra = None, None
        for k in range(self._depth):
            matrix, bias = self._layer(w, k)
            hidden = space.take(f"hidden {k}", m, b, matrix.shape[1], dtype=w.dtype)
            torch.baddbmm(bias, inputs[-1], matrix.transpose(1, 2), out=hidden)
            hidden.relu_()
            if pull is not None and k == last:
                seen, extra = hidden.clone(), pull(hidden) * weight.unsqueeze(2)
            if keep:
                hidden.mul_(keep[k])
            inputs.append(hidden)
        logits = self._last_layer(w, inputs[-1])
        upstream = _sigmoid(logits, space).sub_(y).mul_(weight).unsqueeze(2)
        scale = self._scale if keep else 1.0
        for k in range(self._depth, -1, -1):
            d_matrix, d_bias = self._layer(out, k)
            if k == self._depth:
                # One row per center: rounding would depend on where in memory it is written.
                d_matrix.copy_(torch.bmm(upstream.transpose(1, 2), inputs[k]))
            else:
                torch.bmm(upstream.transpose(1, 2), inputs[k], out=d_matrix)
            torch.sum(upstream, dim=1, keepdim=True, out=d_bias)
            if k == 0:
                break
            matrix, _ = self._layer(w, k)
            back = space.take(f"back {k}", m, b, matrix.shape[2], dtype=w.dtype)
            torch.baddbmm(back, upstream, matrix, beta=0, alpha=scale, out=back)
            # A unit passes gradient where it was positive and kept, that is where its output is positive.
            torch.ops.aten.threshold_backward.grad_input(back, inputs[k], 0, grad_input=back)
            if extra is not None and seen is not None and k == self._depth:
                back.add_(torch.ops.aten.threshold_backward(extra, seen, 0))
            upstream = back

    def representation(self, w: Tensor, x: Tensor) -> Tensor:
        """(m, b, units) the last hidden layer without dropout."""
        for k in range(self._depth):
            matrix, bias = self._layer(w, k)
            x = torch.baddbmm(bias, x, matrix.transpose(1, 2)).relu_()
        return x

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        """(m, b) logits without dropout."""
        return self._last_layer(w, self.representation(w, x))

    def _last_layer(self, w: Tensor, hidden: Tensor) -> Tensor:
        """(m, b) logits from the last hidden layer (m, b, units).

        One center alone is computed as one of two: for a single matrix the library takes another path
        with another rounding, and a center must get the same numbers alone as among others.
        """
        alone = len(w) == 1
        if alone:
            w, hidden = w.expand(2, -1), hidden.expand(2, -1, -1)
        matrix, bias = self._layer(w, self._depth)
        logits = torch.baddbmm(bias, hidden, matrix.transpose(1, 2)).squeeze(2)
        return logits[:1] if alone else logits


def _sigmoid(logits: Tensor, space: Workspace) -> Tensor:
    """(m, b) the sigmoid, rounded alike wherever a number stands.

    Vector instructions leave a remainder at the end to scalar code, which rounds otherwise: so the end
    is padded.
    """
    count = logits.numel()
    padded = space.take("sigmoid", -(-count // 64) * 64, dtype=logits.dtype)
    padded[count:] = 0.0
    padded[:count].view_as(logits).copy_(logits)
    return torch.sigmoid_(padded)[:count].view_as(logits)


class _GivenDropout(nn.Module):
    """Dropout whose mask is handed in: a buffer that ``functional_call`` replaces at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keep", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.keep  # type: ignore[operator]


@dataclass
class GivenDropoutModel:
    """A copy of a model whose dropouts take their masks from outside.

    sites: the dropouts in the order of the model, names: where they sit in it.
    """

    network: nn.Module
    names: tuple[str, ...]
    sites: tuple[DropSite, ...]

    def give(self, masks: list[Tensor]) -> None:
        """Set the masks (rows, units) of the next forward pass; none at all means no dropout."""
        for k, (name, site) in enumerate(zip(self.names, self.sites)):
            mask = masks[k].reshape(-1, *site.shape) if masks else torch.ones(())
            self.network.get_submodule(name).keep = mask


def with_given_dropout(model: nn.Module, width: int) -> GivenDropoutModel:
    """Replace every ``nn.Dropout`` that a forward pass meets, and check what the model answers."""
    model = copy.deepcopy(model).eval()
    drops = {name: m for name, m in model.named_modules() if isinstance(m, nn.Dropout) and m.p > 0}
    sites: dict[str, DropSite] = {}

    def note(name: str, module: nn.Dropout) -> Callable[..., None]:
        def hook(_module: nn.Module, inputs: tuple[Tensor, ...], _out: Tensor) -> None:
            sites.setdefault(name, DropSite(tuple(inputs[0].shape[1:]), module.p))

        return hook

    hooks = [module.register_forward_hook(note(name, module)) for name, module in drops.items()]
    with torch.no_grad():
        answer = model(torch.zeros(2, width))
    for hook in hooks:
        hook.remove()
    if answer.shape not in {(2,), (2, 1)}:
        raise RequestError(
            f"the model answers {tuple(answer.shape)} for 2 rows; give one that returns one logit per row"
        )
    for name in sites:
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, _GivenDropout())
    return GivenDropoutModel(model, tuple(sites), tuple(sites.values()))


class ModuleKernel:
    """Any ``nn.Module`` without buffers that maps (rows, d) to (rows,) or (rows, 1) logits.

    Every ``nn.Dropout`` in it takes its mask from the center's random stream; a ``representation``
    method, where the model has one, serves the methods that ask for it.
    """

    def __init__(self, model: nn.Module, width: int) -> None:
        self.layout = layout_of(model)
        given = with_given_dropout(model, width)
        self.sites = given.sites
        self._network = given.network
        self._copies = threading.local()
        self._masks = [f"{name}.keep" for name in given.names]
        self._plain = {name: torch.ones(()) for name in self._masks}
        self._grad = torch.func.vmap(torch.func.grad(self._loss), in_dims=(0, 0, 0, 0, 0))
        self._forward = torch.func.vmap(self._answer, in_dims=(0, 0))

    @property
    def _model(self) -> nn.Module:
        """This thread's own copy: ``functional_call`` swaps a module's parameters while it runs."""
        if not hasattr(self._copies, "model"):
            self._copies.model = copy.deepcopy(self._network)
        return self._copies.model

    def _call(self, w: Tensor, x: Tensor, masks: dict[str, Tensor]) -> Tensor:
        values = self.layout.unflatten(w) | masks
        return torch.func.functional_call(self._model, values, (x,)).reshape(x.shape[0])

    def _loss(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor, keep: tuple[Tensor, ...]) -> Tensor:
        loss = F.binary_cross_entropy_with_logits(self._call(w, x, self._named(keep)), y, reduction="none")
        return (loss * weight).sum()

    def _named(self, keep: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """One center's masks by the name of their dropout."""
        return {
            name: mask.reshape(-1, *site.shape) for name, mask, site in zip(self._masks, keep, self.sites)
        }

    def _answer(self, w: Tensor, x: Tensor) -> Tensor:
        return self._call(w, x, self._plain)

    def gradient(
        self,
        w: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        keep: list[Tensor],
        out: Tensor,
        pull: Pull | None = None,
        space: Workspace | None = None,
    ) -> None:
        """Write d(mean BCE)/dw of every center into ``out`` (m, P)."""
        if not keep:
            keep = [torch.ones(x.shape[0], x.shape[1], site.units) for site in self.sites]
        out.copy_(self._grad(w, x, y, weight, tuple(keep)))
        if pull is not None:
            with torch.enable_grad():
                leaf = w.detach().requires_grad_()
                z = self._represent(leaf, x, tuple(keep))
                out.add_(torch.autograd.grad((z * pull(z.detach()) * weight.unsqueeze(2)).sum(), leaf)[0])

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        """(m, b) logits without dropout."""
        return self._forward(w, x)

    def representation(self, w: Tensor, x: Tensor) -> Tensor:
        """(m, b, units) the last hidden layer without dropout."""
        return self._represent(w, x, tuple(torch.ones(x.shape[0], x.shape[1], s.units) for s in self.sites))

    def _represent(self, w: Tensor, x: Tensor, keep: tuple[Tensor, ...]) -> Tensor:
        if not hasattr(self._model, "representation"):
            raise RequestError(
                "this method compares representations and the model has none; "
                "give it a method representation(x) -> (rows, units)"
            )
        view = _Representation(self._model)

        def one(weights: Tensor, rows: Tensor, masks: tuple[Tensor, ...]) -> Tensor:
            values = self.layout.unflatten(weights) | self._named(masks)
            named = {f"model.{name}": value for name, value in values.items()}
            return torch.func.functional_call(view, named, (rows,))

        return torch.func.vmap(one)(w, x, keep)


class _Representation(nn.Module):
    """A model seen through its ``representation`` method."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model.representation(x)  # type: ignore[operator]


def kernel_for(model: nn.Module, width: int) -> Kernel:
    """The fast kernel for the built-in network, the general one for everything else."""
    return MLPKernel(model) if type(model) is MLP else ModuleKernel(model, width)
