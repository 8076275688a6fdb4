"""Local training of any ``nn.Module``: one center at a time, autograd and ``torch.optim``.

Models without compiled code learn here; it is the ``debug`` engine of the others, and their oracle.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from abps.core.arrays import Weights
from abps.core.errors import RequestError
from abps.data.outcome import Outcome
from abps.data.prepare import Rows
from abps.models import draws
from abps.models.draws import DropSite
from abps.models.layout import answering
from abps.models.learners import Learner
from abps.models.metrics import Segments
from abps.models.models import initial_weights, layout_of
from abps.models.newton import with_pairs
from abps.models.training import Contrast, GaussianWeights, LocalRound, Objective

Ints = NDArray[np.int64]


@dataclass
class ModuleLearner(Learner):
    """One center at a time, with a plain module, autograd and a plain optimiser.

    device: where modules compute, by PyTorch's name.
    """

    device: str = "cpu"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.device = find_device(self.device)
        outcome, width = self.data.outcome, self.data.width
        self.factory = answering(self.training.factory, outcome)
        module = self.factory(width)
        self.layout = layout_of(module)
        self.start = initial_weights(self.factory, width, self.seed)
        self._model = with_given_dropout(module, width, outcome.outputs).to(self.device)

    def start_round(self, w: Weights, what: LocalRound) -> Callable[[], Weights]:
        """Training that starts when its models are asked for."""
        return lambda: self._round(w, what)

    def _round(self, w: Weights, what: LocalRound) -> Weights:
        """(n, P) the models after every center's local epochs."""
        objective, slopes = what.objective, self._batch_slopes
        if self.training.clip is not None:
            objective.check_private()
            self.take_noisy_steps(what.number, what.epochs)
            slopes = self._private_slopes
        after = np.array(w, dtype=np.float32)
        rates = self._rates(objective)
        with one_thread():
            for i in np.flatnonzero(self.data.train.sizes):
                steps = slopes(int(i), what)
                self._descend(after[i], steps, float(rates[i]), self._terms(objective, int(i)), what.columns)
        return after

    def _rates(self, objective: Objective) -> Weights:
        """(n,) the learning rate of every center; down the whole gradient of a linear model, no farther than
        where its loss could rise."""
        rates = np.full(self.data.size, self.training.lr)
        if self.training.clip is None and self.training.optimizer == "newton":
            strength = objective.strength if objective.anchor is not None else 0.0
            rates = np.minimum(rates, 1.9 / (self._steepest + self.training.decay + strength))
        return rates.astype(np.float32)

    @functools.cached_property
    def _steepest(self) -> NDArray[np.float64]:
        """(n,) a bound of the largest curvature of each center's mean loss, for linear models."""
        own = [self.data.train.only(i).x for i in range(self.data.size)]
        sizes = [np.linalg.norm(np.c_[x, np.ones(len(x))], 2) ** 2 / max(len(x), 1) for x in own]
        return 0.25 * self.data.outcome.curvature * np.array(sizes) + 1e-12

    def _descend(
        self,
        w: Weights,
        slopes: Iterator[Callable[[Tensor], Tensor]],
        rate: float,
        terms: Callable[[Tensor], Tensor],
        columns: slice,
    ) -> None:
        """A center's local steps, in place; slopes: of every step, from the weights to their gradient."""
        whole = self._tensor(w)
        flat = whole[columns].clone().requires_grad_()
        penalty = self._tensor(self.decay())
        if len(penalty) < len(whole):  # means and spreads
            penalty = penalty.repeat(len(whole) // len(penalty))
        kind = torch.optim.Adam if self.training.optimizer == "adam" else torch.optim.SGD
        optimizer = kind([flat], lr=rate)
        for slope in slopes:
            gradient = slope(whole) + terms(whole) + penalty * whole
            flat.grad = gradient[columns].clone()
            optimizer.step()
            whole[columns] = flat.detach()
        w[:] = whole.cpu().numpy()

    def _terms(self, objective: Objective, i: int) -> Callable[[Tensor], Tensor]:
        """What an objective adds to center i's gradient, from its weights."""
        strength = (
            objective.strength if isinstance(objective.strength, float | int) else objective.strength[i]
        )
        anchor, shift = (
            None if rows is None else self._tensor(row_of(rows, i))
            for rows in (objective.anchor, objective.shift)
        )

        def added(w: Tensor) -> Tensor:
            found = torch.zeros_like(w) if anchor is None else float(strength) * (w - anchor)
            return found if shift is None else found + shift

        return added

    def _batch_slopes(self, i: int, what: LocalRound) -> Iterator[Callable[[Tensor], Tensor]]:
        """The gradient of center i's loss on batch after batch."""
        rows, round, objective = self.data.train.only(i), what.number, what.objective
        x, y = self._tensor(rows.x), self._tensor(rows.y)
        size = len(y) if self.training.optimizer == "newton" else self.training.batch
        ids = self.ids[i : i + 1]
        order = draws.row_orders(self.seed, ids, round, np.array([len(y)]), what.epochs)[:, 0]
        pieces = [part for epoch in order for part in np.split(epoch, range(size, len(y), size))]
        for step, piece in enumerate(pieces):
            kept = draws.kept_units(self.seed, int(ids[0]), round, step, len(piece), self._model.sites)
            noise = None
            if objective.gaussian is not None:
                keys = draws.weight_keys(self.seed, ids, round, np.array([step], dtype=np.uint64))
                noise = self._tensor(draws.normals(keys[:, 0], self.layout.size)[0])
            index = torch.from_numpy(piece)
            yield functools.partial(self._batch_slope, i, objective, x[index], y[index], kept, noise)

    def _batch_slope(
        self,
        i: int,
        objective: Objective,
        x: Tensor,
        y: Tensor,
        kept: list[NDArray[np.bool_]],
        noise: Tensor | None,
        w: Tensor,
    ) -> Tensor:
        """The gradient of center i's whole loss on a batch at weights w. noise: what Gaussian ones draw."""
        at = w if noise is None else drawn_weights(w, noise)
        found = self._slope(at, x, y, kept)
        if objective.contrast is not None:
            found = found + self._contrastive(at, x, kept, objective.contrast, i)
        if objective.gaussian is None or noise is None:
            return found
        return carried_back(objective.gaussian, w, noise, found, i)

    def _slope(self, w: Tensor, x: Tensor, y: Tensor, kept: list[NDArray[np.bool_]] | None = None) -> Tensor:
        """(P,) the gradient of the mean loss on rows, with the units that are kept; none: with all."""
        model = self._model.at(w, kept)
        loss = mean_loss(self.data.outcome, model(x), y)
        return flat_gradient(loss, model)

    def _contrastive(
        self, w: Tensor, x: Tensor, kept: list[NDArray[np.bool_]], contrast: Contrast, i: int
    ) -> Tensor:
        """(P,) the gradient of the contrastive loss of center i; units stay as the batch dropped them."""
        near, far = (
            self._tensor(self.representation(row_of(models, i)[None], x.cpu().numpy()[None])[0])
            for models in (contrast.near, contrast.far)
        )
        model = self._model.at(w, kept)
        z = model.representation(x)
        pull = contrast.strength * contrastive_gradient(z.detach(), near, far, contrast.temperature)
        return flat_gradient((z * pull).sum() / len(x), model)

    def _private_slopes(self, i: int, what: LocalRound) -> Iterator[Callable[[Tensor], Tensor]]:
        """Center i's noisy gradients: every row's cut to a length, normal noise on their sum.

        A row takes part by its own coin. One row, there or not, moves the sum by at most ``clip``: a step is
        a sampled Gaussian mechanism.
        """
        t, rows, ids = self.training, self.data.train.only(i), self.ids[i : i + 1]
        steps, seed = t.private_steps(what.epochs), self.seed + self.secret
        used = draws.private_rows(seed, ids, what.number, steps, len(rows.y), t.sampling)[0]
        keys = draws.private_keys(seed, ids, what.number, steps)[0]
        x, y = self._tensor(rows.x), self._tensor(rows.y)
        for step in range(steps):
            noise = self._tensor(draws.normals(keys[step : step + 1], self.layout.size)[0])
            yield functools.partial(self._private_slope, x, y, np.flatnonzero(used[step]), noise)

    def _private_slope(self, x: Tensor, y: Tensor, used: Ints, noise: Tensor, w: Tensor) -> Tensor:
        """The noisy gradient of the rows that take part, divided by their expected number."""
        t, model = self.training, self._model.at(w)
        assert t.clip is not None

        def loss(flat: Tensor, row: Tensor, answer: Tensor) -> Tensor:
            z = torch.func.functional_call(model, self.layout.unflatten(flat), (row[None],))
            return mean_loss(self.data.outcome, z, answer[None])

        total, index = t.noise_multiplier * t.clip * noise, torch.from_numpy(used)
        if not len(used):
            return total / (t.sampling * len(y))
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(w, x[index], y[index])
        cut = (t.clip / each.norm(dim=1).clamp_min(1e-30)).clamp_max(1.0)
        return (cut @ each + total) / (t.sampling * len(y))

    def logits(self, w: Weights, rows: Rows, owner: Ints | None = None) -> Segments:
        """Logits of model k of ``w`` (models, P) on the rows of center ``owner[k]`` (default: k)."""
        self.look(rows)
        owner = np.arange(len(w)) if owner is None else owner
        outputs = self.data.outcome.outputs
        answers = [np.zeros((0, outputs), dtype=np.float32)]
        with torch.no_grad(), one_thread():
            for weights, i in zip(w, owner):
                model = self._model.at(self._tensor(weights))
                found = model(self._tensor(rows.only(int(i)).x))
                answers.append(found.reshape(-1, outputs).cpu().numpy())
        values = np.concatenate(answers)
        values = values[:, 0] if outputs == 1 else values
        found = Segments(values, np.concatenate([[0], np.cumsum(rows.sizes[owner])]))
        if not self.training.linear:
            return found
        return with_pairs(found, w[:, self.layout.size :], rows, owner, self.data.outcome.mix)

    def gradient(self, w: Weights, rows: Rows, owner: Ints | None = None) -> Weights:
        """(models, P) gradient of model k's mean loss over all rows of center ``owner[k]``, no dropout."""
        self.look(rows)
        owner = np.arange(len(w)) if owner is None else owner
        found = np.zeros((len(w), self.layout.size), dtype=np.float32)
        with one_thread():
            for k in np.flatnonzero(rows.sizes[owner]):
                mine = rows.only(int(owner[k]))
                slope = self._slope(self._tensor(w[k]), self._tensor(mine.x), self._tensor(mine.y))
                found[k] = slope.cpu().numpy()
        return found

    def representation(self, w: Weights, x: Weights) -> Weights:
        """(m, b, units) the last hidden layer of models (m, P) on their batches (m, b, d), no dropout."""
        found = []
        with torch.no_grad():
            for weights, rows in zip(w, x):
                model = self._model.at(self._tensor(weights))
                found.append(model.representation(self._tensor(rows)).cpu().numpy())
        return np.stack(found)

    def _tensor(self, values: NDArray[Any]) -> Tensor:
        """A copy for PyTorch, where it computes."""
        return torch.tensor(np.asarray(values, dtype=np.float32), device=self.device)


def find_device(name: str) -> str:
    """A device of PyTorch by its name; auto: a GPU where there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise RequestError(
            f"device={name!r}: PyTorch cannot use it here ({str(error).splitlines()[0]}); choose cpu or auto"
        ) from error
    return name


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread for PyTorch: on products this small, threads wait for each other, and rounding depends on
    their number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _GivenDropout(nn.Module):
    """Dropout whose mask is handed in; all units are kept without one."""

    keep: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        return x if self.keep is None else x * self.keep


@dataclass
class GivenDropoutModel:
    """A module whose weights and dropout masks are handed in. sites: where it drops units."""

    network: Any
    names: tuple[str, ...]
    sites: tuple[DropSite, ...]

    def to(self, device: str) -> GivenDropoutModel:
        """The same on a device."""
        self.network.to(device)
        return self

    def at(self, w: Tensor, kept: list[NDArray[np.bool_]] | None = None) -> Any:
        """The module with weights (P,), keeping units (rows, units) of every dropout; none: all."""
        nn.utils.vector_to_parameters(w.clone(), self.network.parameters())
        for k, (name, site) in enumerate(zip(self.names, self.sites)):
            mask = None
            if kept is not None:
                mask = torch.tensor(kept[k].astype(np.float32), device=w.device).reshape(-1, *site.shape)
                mask = mask / (1.0 - site.rate)
            self.network.get_submodule(name).keep = mask
        return self.network


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
    if not hasattr(model, "representation"):
        model.representation = _no_representation  # type: ignore[assignment]
    return GivenDropoutModel(model, tuple(sites), tuple(sites.values()))


def _no_representation(x: Tensor) -> Tensor:
    raise RequestError(
        "this method compares representations and the model has none; "
        "give it a method representation(x) -> (rows, units)"
    )


def row_of(rows: Weights, i: int) -> Weights:
    """(P,) of center i, from one row for all (P,) or one for each (n, P)."""
    found: Weights = rows if rows.ndim == 1 else rows[i]
    return found


def flat_gradient(loss: Tensor, model: nn.Module) -> Tensor:
    """(P,) the gradient of a loss; zero where it does not depend on a parameter."""
    parameters = list(model.parameters())
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).reshape(-1) for g, p in zip(found, parameters)]
    )


def contrastive_gradient(z: Tensor, near: Tensor, far: Tensor, temperature: float) -> Tensor:
    """Gradient of a row's contrastive loss with respect to z; all (..., units). A representation of zero has
    no direction: zero."""
    size = torch.linalg.vector_norm(z, dim=-1, keepdim=True).clamp_min(1e-8)
    z, near, far = z / size, F.normalize(near, dim=-1, eps=1e-8), F.normalize(far, dim=-1, eps=1e-8)
    like_near = (z * near).sum(-1, keepdim=True)
    like_far = (z * far).sum(-1, keepdim=True)
    wrong = torch.sigmoid((like_far - like_near) / temperature)
    turn = (far - like_far * z) - (near - like_near * z)
    return torch.where(z.abs().sum(-1, keepdim=True) > 0, turn * (wrong / (temperature * size)), 0.0)


def drawn_weights(both: Tensor, noise: Tensor) -> Tensor:
    """(P,) weights, from means and raw spreads (2P,) and standard normal numbers (P,)."""
    mean, raw = both.chunk(2)
    return mean + F.softplus(raw) * noise


def carried_back(prior: GaussianWeights, both: Tensor, noise: Tensor, gradient: Tensor, i: int) -> Tensor:
    """(2P,) the whole loss's gradient for center i, from that of the batch at the drawn weights (P,)."""
    mean, raw = both.chunk(2)
    center, width = (torch.tensor(row_of(v, i), device=both.device) for v in (prior.center, prior.spread))
    say, spread = float(prior.say[i]), F.softplus(raw)
    d_mean = gradient + say * (mean - center) / width**2
    d_spread = gradient * noise + say * (spread / width**2 - 1.0 / spread)
    return torch.cat([d_mean, d_spread * torch.sigmoid(raw)])


def mean_loss(outcome: Outcome, z: Tensor, y: Tensor) -> Tensor:
    """The mean loss of answers z (rows,) or (rows, outputs) to y (rows,)."""
    if outcome.binary:
        return F.binary_cross_entropy_with_logits(z.reshape(-1), y)
    answers = z.reshape(len(y), -1)
    if outcome.kind == "survival":
        grid = torch.tensor(outcome.grid, dtype=y.dtype, device=y.device)
        time, event = y.abs()[:, None], ~torch.signbit(y)[:, None]
        lived = (grid < time) | (~event & (grid <= time))
        begins = torch.cat([torch.full_like(grid[:1], -torch.inf), grid[:-1]])
        failed = event & (begins < time) & (time <= grid)
        rows = (F.softplus(answers) * (lived | failed) - answers * failed).sum(dim=1)
    elif outcome.kind == "classes":
        rows = F.cross_entropy(answers, y.long(), reduction="none")
    else:
        rows = 0.5 * (answers[:, 0] - y) ** 2
    return rows.mean()
