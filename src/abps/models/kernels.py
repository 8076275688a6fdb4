"""Gradients and predictions of many centers' models at once.

Two kernels with one interface and the same numbers: ``MLPKernel`` writes the paper's network out by
hand (no graph, buffers used again); ``ModuleKernel`` takes any ``nn.Module`` through ``torch.func``.

Shapes: m centers, b rows each, d features, P parameters; ``w`` is (m, P), ``x`` (m, b, d), ``y`` and
``weight`` (m, b). ``weight`` is 1/rows for real rows and 0 for padding, so that losses are means.
``draws`` holds one (m, b, units) tensor of random floats per dropout; a unit is dropped where its own is
at most the site's limit (see ``dropout``). They are used up: a kernel may write over them. No draws at all
means no dropout.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from abps.core.errors import RequestError
from abps.data.outcome import BINARY, Outcome
from abps.models import outcomes
from abps.models.additive import Linear
from abps.models.dropout import DropSite
from abps.models.layout import Layout
from abps.models.models import MLP, layout_of
from abps.models.workspace import Workspace

#: From the representation (m, b, units) to the gradient of each row's extra loss with respect to it; the
#: kernel takes the mean over the batch.
Pull = Callable[[Tensor], Tensor]


class Slope(Protocol):
    """The gradient of many models that stand in one place of memory and change there."""

    def __call__(
        self, x: Tensor, y: Tensor, weight: Tensor, draws: list[Tensor], pull: Pull | None = None
    ) -> None:
        """Write d(mean BCE)/dw of every center."""


class Kernel(Protocol):
    """What a stacked learner needs of a model."""

    layout: Layout
    sites: tuple[DropSite, ...]

    def slope(self, w: Tensor, out: Tensor, space: Workspace) -> Slope:
        """The gradient of models (m, P) in a fixed place of memory, written to ``out`` (m, P)."""

    def logits(self, w: Tensor, x: Tensor, space: Workspace) -> Tensor:
        """(m, b) logits without dropout."""

    def representation(self, w: Tensor, x: Tensor, space: Workspace) -> Tensor:
        """(m, b, units) the last hidden layer without dropout; it may stand in ``space``."""


class MLPKernel:
    """The paper's network, forward and backward written out."""

    def __init__(self, model: MLP) -> None:
        self.layout = layout_of(model)
        self.sites = tuple(DropSite((h,), model.rate) for h in model.hidden) if model.rate > 0 else ()
        self._blocks = self.layout.blocks
        self.hidden = model.hidden
        self.depth = len(model.hidden)

    def layer(self, flat: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Weight (m, out, in) and bias (m, 1, out) of layer k, as views."""
        weight, bias = self._blocks[2 * k], self._blocks[2 * k + 1]
        return (
            flat[:, weight.start : weight.stop].unflatten(1, weight.shape),
            flat[:, None, bias.start : bias.stop],
        )

    def slope(self, w: Tensor, out: Tensor, space: Workspace) -> Slope:
        """The gradient of models (m, P) in a fixed place of memory, written to ``out`` (m, P)."""
        return _MLPSlope(self, w, out, space)

    def representation(self, w: Tensor, x: Tensor, space: Workspace) -> Tensor:
        """(m, b, units) the last hidden layer without dropout; it may stand in ``space``."""
        for k in range(self.depth):
            matrix, bias = self.layer(w, k)
            out = space.take(f"shown {k}", x.shape[0], x.shape[1], matrix.shape[1], dtype=x.dtype)
            x = torch.baddbmm(bias, x, matrix.transpose(1, 2), out=out).relu_()
        return x

    def logits(self, w: Tensor, x: Tensor, space: Workspace) -> Tensor:
        """(m, b) logits without dropout."""
        return self._last_layer(w, self.representation(w, x, space))

    def _last_layer(self, w: Tensor, hidden: Tensor) -> Tensor:
        """(m, b) logits from the last hidden layer (m, b, units)."""
        matrix, bias = self.layer(w, self.depth)
        return _logits(matrix, bias, hidden, 1.0)


class _MLPSlope:
    """Forward and backward pass of the paper's network, with all views made once.

    Kept units are not scaled by 1/(1-rate) themselves: the next layer's products are.
    """

    def __init__(self, kernel: MLPKernel, w: Tensor, out: Tensor, space: Workspace) -> None:
        self._kernel, self._space = kernel, space
        depth = range(kernel.depth + 1)
        self._layers = [kernel.layer(w, k) for k in depth]
        self._turned = [matrix.transpose(1, 2) for matrix, _ in self._layers]
        self._slopes = [kernel.layer(out, k) for k in depth]
        self._buffers: dict[int, tuple[list[Tensor], list[Tensor], Tensor]] = {}

    def _take(self, b: int, like: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Hidden layers, their gradients, and room for the sigmoid, for batches of b rows."""
        if b not in self._buffers:
            m, kind = len(like), like.dtype
            units = [matrix.shape[1] for matrix, _ in self._layers[:-1]]
            hidden = [self._space.take(f"hidden {k}", m, b, u, dtype=kind) for k, u in enumerate(units)]
            back = [self._space.take(f"back {k}", m, b, u, dtype=kind) for k, u in enumerate(units)]
            padded = self._space.take("sigmoid", -(-m * b // 64) * 64, dtype=kind)
            self._buffers[b] = hidden, back, padded
        return self._buffers[b]

    def __call__(
        self, x: Tensor, y: Tensor, weight: Tensor, draws: list[Tensor], pull: Pull | None = None
    ) -> None:
        """Write d(mean BCE)/dw of every center."""
        sites, depth = self._kernel.sites, self._kernel.depth
        hidden, back, padded = self._take(x.shape[1], x)
        back = draws or back  # of the same shapes, and no longer needed when the way back begins
        scale = [1.0] + [1.0 / (1.0 - sites[k].rate) if draws else 1.0 for k in range(depth)]
        inputs = [x, *hidden]
        seen, extra = None, None
        for k in range(depth):
            torch.baddbmm(self._layers[k][1], inputs[k], self._turned[k], alpha=scale[k], out=hidden[k])
            hidden[k].relu_()
            if pull is not None and k == depth - 1:
                seen, extra = hidden[k].clone(), pull(hidden[k]) * weight.unsqueeze(2)
            if draws:
                _where_above(hidden[k], draws[k], sites[k].limit)
        matrix, bias = self._layers[depth]
        chance = _sigmoid(_logits(matrix, bias, inputs[depth], scale[depth]), padded)
        upstream = chance.sub_(y).mul_(weight).unsqueeze(2)
        torch.sum(upstream, dim=1, keepdim=True, out=self._slopes[depth][1])
        if scale[depth] != 1.0:
            upstream = upstream * scale[depth]
        # One row per center: rounding would depend on where in memory it is written.
        self._slopes[depth][0].copy_(torch.bmm(upstream.transpose(1, 2), inputs[depth]))
        for k in range(depth - 1, -1, -1):
            # The gradient is carried times the scale of the layer's own input, which is what both the
            # layer's matrix and the layer below want; only the bias takes it back.
            if k == depth - 1:
                torch.mul(upstream * scale[k], matrix, out=back[k])
            else:
                above = self._layers[k + 1][0]
                torch.baddbmm(back[k], upstream, above, beta=0, alpha=scale[k], out=back[k])
            # A unit passes gradient where it was positive and kept, that is where its output is positive.
            _where_above(back[k], hidden[k], 0.0)
            if extra is not None and seen is not None and k == depth - 1:
                back[k].add_(torch.ops.aten.threshold_backward(extra, seen, 0), alpha=scale[k])
            upstream = back[k]
            d_matrix, d_bias = self._slopes[k]
            torch.bmm(upstream.transpose(1, 2), inputs[k], out=d_matrix)
            torch.sum(upstream, dim=1, keepdim=True, out=d_bias)
            if scale[k] != 1.0:
                d_bias.div_(scale[k])


def _where_above(values: Tensor, judge: Tensor, limit: float) -> None:
    """Set values to zero where ``judge`` is at most ``limit``, in one pass."""
    torch.ops.aten.threshold_backward.grad_input(values, judge, limit, grad_input=values)


def _logits(matrix: Tensor, bias: Tensor, hidden: Tensor, scale: float) -> Tensor:
    """(m, b) the last layer's products, from its matrix (m, 1, units) and bias (m, 1, 1).

    One center alone is computed as one of two: for a single matrix the library takes another path
    with another rounding, and a center must get the same numbers alone as among others.
    """
    alone = len(matrix) == 1
    if alone:
        matrix, bias, hidden = matrix.expand(2, -1, -1), bias.expand(2, -1, -1), hidden.expand(2, -1, -1)
    logits = torch.baddbmm(bias, hidden, matrix.transpose(1, 2), alpha=scale).squeeze(2)
    return logits[:1] if alone else logits


def _sigmoid(logits: Tensor, padded: Tensor) -> Tensor:
    """(m, b) the sigmoid, rounded alike wherever a number stands.

    Vector instructions leave a remainder at the end to scalar code, which rounds otherwise: so the end
    is padded.
    """
    count = logits.numel()
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


def with_given_dropout(model: nn.Module, width: int, outputs: int = 1) -> GivenDropoutModel:
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
    if answer.shape not in ({(2,), (2, 1)} if outputs == 1 else {(2, outputs)}):
        wanted = "one logit" if outputs == 1 else f"{outputs} answers"
        raise RequestError(
            f"the model answers {tuple(answer.shape)} for 2 rows; give one that returns {wanted} per row"
        )
    for name in sites:
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, _GivenDropout())
    return GivenDropoutModel(model, tuple(sites), tuple(sites.values()))


class ModuleKernel:
    """Any ``nn.Module`` without buffers that maps (rows, d) to (rows,) or (rows, 1) logits, or to the several
    answers that an outcome asks for.

    Every ``nn.Dropout`` in it takes its mask from the center's random stream; a ``representation``
    method, where the model has one, serves the methods that ask for it.
    """

    def __init__(self, model: nn.Module, width: int, outcome: Outcome = BINARY) -> None:
        self.layout = layout_of(model)
        self.outcome = outcome
        given = with_given_dropout(model, width, outcome.outputs)
        self.sites = given.sites
        self._network = given.network
        self._copies = threading.local()
        self._masks = [f"{name}.keep" for name in given.names]
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
        answer = torch.func.functional_call(self._model, values, (x,))
        return answer.reshape(x.shape[0]) if self.outcome.outputs == 1 else answer

    def _loss(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor, keep: tuple[Tensor, ...]) -> Tensor:
        answer = self._call(w, x, self._named(keep))
        if not self.outcome.binary:
            return outcomes.loss(self.outcome, answer.reshape(len(y), -1), y, weight)
        loss = F.binary_cross_entropy_with_logits(answer, y, reduction="none")
        return (loss * weight).sum()

    def _named(self, keep: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """One center's masks by the name of their dropout."""
        return {
            name: mask.reshape(-1, *site.shape) for name, mask, site in zip(self._masks, keep, self.sites)
        }

    def _answer(self, w: Tensor, x: Tensor) -> Tensor:
        return self._call(w, x, {name: torch.ones((), device=x.device) for name in self._masks})

    def slope(self, w: Tensor, out: Tensor, space: Workspace) -> Slope:
        """The gradient of models (m, P) in a fixed place of memory, written to ``out`` (m, P)."""

        def slope(
            x: Tensor, y: Tensor, weight: Tensor, draws: list[Tensor], pull: Pull | None = None
        ) -> None:
            if draws:
                keep = [(~(d <= s.limit)).float() / (1.0 - s.rate) for d, s in zip(draws, self.sites)]
            else:
                keep = self._all_kept(x)
            out.copy_(self._grad(w, x, y, weight, tuple(keep)))
            if pull is not None:
                with torch.enable_grad():
                    leaf = w.detach().requires_grad_()
                    z = self._represent(leaf, x, tuple(keep))
                    loss = (z * pull(z.detach()) * weight.unsqueeze(2)).sum()
                    out.add_(torch.autograd.grad(loss, leaf)[0])

        return slope

    def logits(self, w: Tensor, x: Tensor, space: Workspace) -> Tensor:
        """(m, b) logits without dropout, or (m, b, outputs) of several."""
        return self._forward(w, x)

    def representation(self, w: Tensor, x: Tensor, space: Workspace) -> Tensor:
        """(m, b, units) the last hidden layer without dropout."""
        return self._represent(w, x, tuple(self._all_kept(x)))

    def _all_kept(self, x: Tensor) -> list[Tensor]:
        """Masks (m, b, units) that drop nothing."""
        return [torch.ones(*x.shape[:2], site.units, device=x.device) for site in self.sites]

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


class LinearKernel(ModuleKernel):
    """The linear model, told apart because its steps may follow its curvature."""


class _Representation(nn.Module):
    """A model seen through its ``representation`` method."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model.representation(x)  # type: ignore[operator]


def kernel_for(model: nn.Module, width: int, outcome: Outcome = BINARY) -> Kernel:
    """The fast kernel for the built-in network and a binary outcome, the general one for everything else."""
    if type(model) is MLP and outcome.binary:
        return MLPKernel(model)
    return (LinearKernel if type(model) is Linear else ModuleKernel)(model, width, outcome)
