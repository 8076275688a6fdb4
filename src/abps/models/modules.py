"""Local training of any ``nn.Module``: one center at a time, autograd and ``torch.optim``.

Models without compiled code learn here; it is the ``debug`` engine of the others, and their oracle.
"""

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

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
from abps.models.training import GaussianWeights, LocalRound, Objective

Ints = NDArray[np.int64]


@dataclass
class ModuleLearner(Learner):
    """device: where modules compute, by PyTorch's name."""

    device: str = "cpu"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.device = find_device(self.device)
        outcome, width = self.data.outcome, self.data.width
        self.factory = answering(self.training.factory, outcome)
        module = self.factory(width)
        self.layout = layout_of(module)
        self.start = initial_weights(self.factory, width, self.seed)
        self._model = FlatModule(module, width, outcome.outputs, self.device)

    def each(self, work: Callable[[int], None], count: int) -> None:
        for k in range(count):
            work(k)

    def start_round(self, w: Weights, what: LocalRound) -> Callable[[], Weights]:
        return lambda: self._round(w, what)

    def _round(self, w: Weights, what: LocalRound) -> Weights:
        objective, slopes = what.objective, self._batch_slopes
        if self.training.clip is not None:
            objective.check_private()
            self.take_noisy_steps(what.number, what.epochs)
            slopes = self._private_slopes
        after = np.array(w, dtype=np.float32)
        rates = self._rates(objective)
        with one_thread():
            for i in np.flatnonzero(self.data.train.sizes).tolist():
                steps, terms = slopes(i, what), self._terms(objective, i)
                self._descend(after[i], steps, float(rates[i]), terms, what.columns)
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
        terms: Callable[[Tensor], Tensor | float],
        columns: slice,
    ) -> None:
        """A center's local steps, in place; slopes: of every step, from the weights to their gradient."""
        whole, penalty = self._tensor(w), self._tensor(self.decay())
        penalty = penalty.repeat(len(whole) // len(penalty))  # of Gaussians: means and spreads
        moving = whole[columns]
        kind = torch.optim.Adam if self.training.optimizer == "adam" else torch.optim.SGD
        optimizer = kind([moving], lr=rate)
        for slope in slopes:
            moving.grad = (slope(whole) + terms(whole) + penalty * whole)[columns]
            optimizer.step()
        w[:] = whole.cpu().numpy()

    def _terms(self, objective: Objective, i: int) -> Callable[[Tensor], Tensor | float]:
        """What an objective adds to center i's gradient, from its weights."""
        strength, *rows = objective.of(i)
        anchor, shift = (None if row is None else self._tensor(row) for row in rows)

        def added(w: Tensor) -> Tensor | float:
            found = 0.0 if anchor is None else strength * (w - anchor)
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
        keys = draws.weight_keys(self.seed, ids, round, np.arange(len(pieces), dtype=np.uint64))[0]
        near = far = None
        if objective.contrast is not None:  # frozen models say the same in every epoch
            frozen = objective.contrast.near, objective.contrast.far
            near, far = (
                F.normalize(self._tensor(self.representation(row_of(models, i), rows.x)), dim=-1, eps=1e-8)
                for models in frozen
            )
        for step, piece in enumerate(pieces):
            kept = draws.kept_units(self.seed, int(ids[0]), round, step, len(piece), self._model.sites)
            index = torch.from_numpy(piece)

            def loss(w: Tensor, index: Tensor = index, kept: list[NDArray[np.bool_]] = kept) -> Tensor:
                model = self._model.at(w, kept)
                found = mean_loss(self.data.outcome, model(x[index]), y[index])
                if objective.contrast is None or near is None or far is None:
                    return found
                z, tau = self._model.shown, objective.contrast.temperature
                pull = contrastive_gradient(z.detach(), near[index], far[index], tau)
                return found + objective.contrast.strength * (z * pull).sum() / len(index)

            noise = None
            if objective.gaussian is not None:
                noise = self._tensor(draws.normals(keys[step : step + 1], self.layout.size)[0])
            yield functools.partial(self._batch_slope, objective.gaussian, i, loss, noise)

    def _batch_slope(
        self,
        prior: GaussianWeights | None,
        i: int,
        loss: Callable[[Tensor], Tensor],
        noise: Tensor | None,
        both: Tensor,
    ) -> Tensor:
        """The gradient of center i's whole loss, in weights (P,), or in means and raw spreads of Gaussians
        (2P,); noise: (P,) standard normal numbers by which those are drawn."""
        if prior is None or noise is None:
            return self._model.gradient(loss(both))
        mean, raw = both.chunk(2)
        spread = F.softplus(raw)
        slope = self._model.gradient(loss(mean + spread * noise))
        center, width = (self._tensor(row_of(v, i)) for v in (prior.center, prior.spread))
        say = float(prior.say[i])
        of_mean = slope + say * (mean - center) / width**2
        of_spread = slope * noise + say * (spread / width**2 - 1.0 / spread)
        return torch.cat([of_mean, of_spread * torch.sigmoid(raw)])

    def _private_slopes(self, i: int, what: LocalRound) -> Iterator[Callable[[Tensor], Tensor]]:
        """Center i's noisy gradients: every row, by its own coin, cut to the length ``clip``, normal noise on
        their sum. One row moves the sum by at most ``clip``: a step is a sampled Gaussian mechanism."""
        t, rows, ids = self.training, self.data.train.only(i), self.ids[i : i + 1]
        steps, seed = t.private_steps(what.epochs), self.seed + self.secret
        used = draws.private_rows(seed, ids, what.number, steps, len(rows.y), t.sampling)[0]
        keys = draws.private_keys(seed, ids, what.number, steps)[0]
        x, y = self._tensor(rows.x), self._tensor(rows.y)
        for step in range(steps):
            noise = self._tensor(draws.normals(keys[step : step + 1], self.layout.size)[0])
            yield functools.partial(self._private_slope, x, y, np.flatnonzero(used[step]), noise)

    def _private_slope(self, x: Tensor, y: Tensor, used: Ints, noise: Tensor, w: Tensor) -> Tensor:
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
        return Segments(values, np.concatenate([[0], np.cumsum(rows.sizes[owner])]))

    def gradient(self, w: Weights, rows: Rows) -> Weights:
        self.look(rows)
        found = np.zeros((len(w), self.layout.size), dtype=np.float32)
        with one_thread():
            for i in np.flatnonzero(rows.sizes).tolist():
                mine, model = rows.only(i), self._model.at(self._tensor(w[i]))
                loss = mean_loss(self.data.outcome, model(self._tensor(mine.x)), self._tensor(mine.y))
                found[i] = self._model.gradient(loss).cpu().numpy()
        return found

    def representation(self, w: Weights, x: Weights) -> Weights:
        with torch.no_grad():
            found: Tensor = self._model.at(self._tensor(w)).representation(self._tensor(x))
        return found.cpu().numpy()

    def _tensor(self, values: NDArray[Any]) -> Tensor:
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


class FlatModule:
    """A module whose weights and their gradient lie in one row each, and whose dropout masks are handed in.

    w, slope: (P,), of which parameters and gradients are views.  sites: of every ``nn.Dropout`` that a
    forward pass meets.  shown: the last representation.
    """

    def __init__(self, module: nn.Module, width: int, outputs: int = 1, device: str = "cpu") -> None:
        self.network = cast(Any, copy.deepcopy(module).eval())
        sites: dict[str, DropSite] = {}

        def note(name: str, drop: Any, inputs: tuple[Tensor, ...], _out: Tensor) -> None:
            sites.setdefault(name, DropSite(tuple(inputs[0].shape[1:]), drop.p))

        hooks = [
            drop.register_forward_hook(functools.partial(note, name))
            for name, drop in self.network.named_modules()
            if isinstance(drop, nn.Dropout) and drop.p > 0
        ]
        with torch.no_grad():
            answer = self.network(torch.zeros(2, width))
        for hook in hooks:
            hook.remove()
        if tuple(answer.shape) not in ({(2,), (2, 1)} if outputs == 1 else {(2, outputs)}):
            wanted = "one logit" if outputs == 1 else f"{outputs} answers"
            raise RequestError(
                f"the model answers {tuple(answer.shape)} for 2 rows; give one that returns {wanted} per row"
            )
        self._names, self.sites = tuple(sites), tuple(sites.values())
        for name in sites:
            parent, _, leaf = name.rpartition(".")
            setattr(self.network.get_submodule(parent), leaf, _GivenDropout())
        represent = getattr(self.network, "representation", _no_representation)

        def representation(x: Tensor) -> Tensor:
            self.shown = represent(x)
            return self.shown

        self.network.representation = representation
        self.network.to(device)
        self.w = nn.utils.parameters_to_vector(self.network.parameters()).detach()
        self.slope = torch.zeros_like(self.w)
        at = 0
        for parameter in self.network.parameters():
            part = slice(at, at := at + parameter.numel())
            parameter.data, parameter.grad = (v[part].view_as(parameter) for v in (self.w, self.slope))

    def at(self, w: Tensor, kept: list[NDArray[np.bool_]] | None = None) -> Any:
        """The module with weights (P,), keeping units (rows, units) of every dropout; none: all."""
        self.w.copy_(w[: len(self.w)])
        for k, (name, site) in enumerate(zip(self._names, self.sites)):
            mask = None
            if kept is not None:
                mask = torch.from_numpy(kept[k]).to(w).reshape(-1, *site.shape) / (1.0 - site.rate)
            self.network.get_submodule(name).keep = mask
        return self.network

    def gradient(self, loss: Tensor) -> Tensor:
        """(P,) the gradient of a loss at the present weights, until the next is asked for."""
        self.slope.zero_()
        loss.backward()
        return self.slope


def _no_representation(x: Tensor) -> Tensor:
    raise RequestError(
        "this method compares representations and the model has none; "
        "give it a method representation(x) -> (rows, units)"
    )


def row_of(rows: Weights, i: int) -> Weights:
    """(P,) of center i, from one row for all (P,) or one for each (n, P)."""
    found: Weights = rows if rows.ndim == 1 else rows[i]
    return found


def contrastive_gradient(z: Tensor, near: Tensor, far: Tensor, temperature: float) -> Tensor:
    """Gradient of a row's contrastive loss with respect to z; near, far: of length one; all (..., units).

    With e = z / |z|, d = far - near: sigmoid(d.e / tau) / (tau |z|) times the part of d across e; 0 at z = 0.
    """
    size = torch.linalg.vector_norm(z, dim=-1, keepdim=True).clamp_min(1e-8)
    e, way = z / size, far - near
    along = (way * e).sum(-1, keepdim=True)
    force = torch.sigmoid(along / temperature) / (temperature * size)
    return torch.where(size > 1e-8, force * (way - along * e), 0.0)


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
