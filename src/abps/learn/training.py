"""Local training of all centers, stacked.

``StackedLearner`` keeps every center's model as a row of one matrix and trains cache-sized chunks of
rows side by side, one thread per core, each thread with single-threaded kernels: so the numbers do
not depend on how many cores there are. ``LoopLearner`` is the same learning told plainly, one center
at a time with ``nn.Module`` and ``torch.optim.Adam``; it is the ``debug`` engine and the oracle.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from abps.cohorts.prepare import Prepared, Rows
from abps.core import streams
from abps.core.errors import RequestError
from abps.learn import batches
from abps.learn.dropout import kept_units, random_units
from abps.learn.kernels import Kernel, Pull, kernel_for, with_given_dropout
from abps.learn.metrics import Segments
from abps.learn.models import MLP, Layout, ModelFactory, initial_weights
from abps.learn.optimizers import SGD, Adam, Optimizer
from abps.learn.workspace import Workspace


@dataclass(frozen=True)
class Training:
    """How a center trains between two exchanges (the paper's settings)."""

    epochs: int = 2
    batch: int = 128
    lr: float = 1e-3
    weight_decay: float = 1e-5
    optimizer: str = "adam"
    hidden: tuple[int, ...] = (128, 64)
    dropout: float = 0.2

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1:
            raise RequestError(f"epochs={self.epochs}, batch={self.batch}: both must be at least 1")
        if not 0 <= self.dropout <= 0.99:
            raise RequestError(f"dropout={self.dropout}: a share of units, choose 0 to 0.99")
        if self.lr <= 0 or self.weight_decay < 0:
            raise RequestError(
                f"lr={self.lr}, weight_decay={self.weight_decay}: choose lr above 0 and weight_decay from 0"
            )
        if self.optimizer not in ("adam", "sgd"):
            raise RequestError(f"optimizer={self.optimizer!r}: choose adam or sgd")

    def model(self, width: int) -> nn.Module:
        """The default network for a number of features."""
        return MLP(width, self.hidden, self.dropout)


@dataclass(frozen=True)
class Objective:
    """What is added to a center's own loss; the default is nothing.

    Adds ``strength * (w - anchor) + shift`` to the gradient (proximal, dynamic and control-variate
    terms are of this form), and the gradient of an extra loss on the representation.

    strength: a number or (n,).  anchor, shift: (P,) or (n, P).
    pull: given the indices of a chunk's centers (m,) and its batch (m, b, d), a function of the
    representation z (m, b, units) that returns the gradient of each row's extra loss with respect to z.
    through: given the centers (m,), the step of the round and what is trained (m, Q), the weights
    (m, P) at which the batch's gradient is taken, and the function that carries this gradient (m, P)
    back to the trained quantities (m, Q). Without it, what is trained are the weights themselves.
    """

    strength: float | Tensor = 0.0
    anchor: Tensor | None = None
    shift: Tensor | None = None
    pull: Callable[[Tensor, Tensor, Tensor], Pull] | None = None
    through: Callable[[Tensor, int, Tensor], tuple[Tensor, Callable[[Tensor], Tensor]]] | None = None

    def add(self, w: Tensor, gradient: Tensor, members: Tensor) -> None:
        """Add the terms to the gradients (m, P) of the centers ``members`` at the weights (m, P)."""
        if self.anchor is not None:
            strength = self.strength
            if isinstance(strength, Tensor):
                strength = strength[members].unsqueeze(1)
            gradient.add_(strength * (w - _rows(self.anchor, members)))
        if self.shift is not None:
            gradient.add_(_rows(self.shift, members))


def _rows(value: Tensor, members: Tensor) -> Tensor:
    return value if value.dim() == 1 else value[members]


PLAIN = Objective()


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Learner(Protocol):
    """Everything a method may ask of the local learning of all centers."""

    data: Prepared
    training: Training
    start: Tensor

    @property
    def layout(self) -> Layout:
        """Where every parameter sits."""

    def train(
        self,
        w: Tensor,
        round: int,
        objective: Objective = PLAIN,
        columns: slice = slice(None),
        epochs: int | None = None,
    ) -> Tensor:
        """(n, P) the models after every center's local epochs; ``w`` is left as it was.

        Only ``columns`` of the parameters move.
        """

    def logits(self, w: Tensor, rows: Rows, owner: NDArray[np.int64] | None = None) -> Segments:
        """Logits of model k of ``w`` (models, P) on the rows of center ``owner[k]`` (default: k)."""

    def gradient(self, w: Tensor, rows: Rows, owner: NDArray[np.int64] | None = None) -> Tensor:
        """(models, P) gradient of model k's mean loss over all rows of center ``owner[k]``, no dropout.

        Labels between 0 and 1 are allowed; a center without rows has gradient zero.
        """

    def representation(self, w: Tensor, x: Tensor) -> Tensor:
        """(m, b, units) the last hidden layer of models (m, P) on their batches (m, b, d), no dropout."""

    def each(self, work: Callable[[int], None], count: int) -> None:
        """Run ``work`` for 0..count-1, in any order; it may ask the learner for more."""

    def on(self, data: Prepared) -> Learner:
        """The same way of learning on other data."""


@dataclass
class _Common:
    """What both learners hold: data, the model's layout, the common start."""

    data: Prepared
    training: Training
    factory: ModelFactory
    seed: int
    kernel: Kernel = field(init=False)
    start: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.kernel = kernel_for(self.factory(self.data.width), self.data.width)
        self.start = initial_weights(self.factory, self.data.width, self.seed)
        self.ids = streams.center_ids(self.data.centers)

    @property
    def layout(self) -> Layout:
        """Where every parameter sits."""
        return self.kernel.layout

    def on(self, data: Prepared) -> Learner:
        """The same way of learning on other data."""
        return type(self)(data, self.training, self.factory, self.seed)  # type: ignore[return-value]


class StackedLearner(_Common):
    """All centers' models in one matrix, trained in chunks."""

    #: Centers per chunk: enough to keep calls cheap, few enough for a chunk to stay in the cache.
    most = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        self._x = torch.from_numpy(self.data.train.x)
        self._y = torch.from_numpy(self.data.train.y)
        self._chunks = batches.chunks(self.data.train.sizes, self.training.batch, self.most)
        self._idle = torch.from_numpy(np.flatnonzero(self.data.train.sizes == 0))
        self._workers = available_cores()
        self._spaces = threading.local()

    def _space(self) -> Workspace:
        """This thread's buffers."""
        if not hasattr(self._spaces, "space"):
            self._spaces.space = Workspace()
        return self._spaces.space

    def each(self, work: Callable[[int], None], count: int) -> None:
        """Run ``work`` for 0..count-1 on all cores, each with single-threaded kernels."""
        if getattr(self._spaces, "busy", False):  # asked for inside of such work
            for k in range(count):
                work(k)
            return

        def alone(k: int) -> None:
            self._spaces.busy = True
            try:
                work(k)
            finally:
                self._spaces.busy = False

        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            if self._workers == 1 or count <= 1:
                for k in range(count):
                    alone(k)
            else:
                list(self._pool().map(alone, range(count)))
        finally:
            torch.set_num_threads(before)

    def _pool(self) -> ThreadPoolExecutor:
        """Threads that live as long as the learner, so that their buffers are used again."""
        if not hasattr(self, "_threads"):
            self._threads = ThreadPoolExecutor(self._workers, thread_name_prefix="abps-learner")
        return self._threads

    def train(
        self,
        w: Tensor,
        round: int,
        objective: Objective = PLAIN,
        columns: slice = slice(None),
        epochs: int | None = None,
    ) -> Tensor:
        """(n, P) the models after every center's local epochs; ``w`` is left as it was."""
        after = torch.empty_like(w)
        after[self._idle] = w[self._idle]
        count = epochs if epochs is not None else self.training.epochs

        def work(k: int) -> None:
            self._train_chunk(self._chunks[k], w, after, round, objective, columns, count)

        self.each(work, len(self._chunks))
        return after

    def _train_chunk(
        self,
        chunk: batches.Chunk,
        before: Tensor,
        after: Tensor,
        round: int,
        objective: Objective,
        columns: slice,
        epochs: int,
    ) -> None:
        """One chunk's round; writes its rows of ``after``."""
        m, space = len(chunk.members), self._space()
        members, ids = torch.from_numpy(chunk.members), self.ids[chunk.members]
        w = torch.index_select(before, 0, members, out=space.take("weights", m, before.shape[1]))
        whole = columns == slice(None)
        moving = w if whole else w[:, columns].contiguous()
        gradient = space.take("gradient", m, self.layout.size)
        slope_at = self.kernel.slope(w, gradient, space) if objective.through is None else None
        optimizer = self._optimizer(moving, space)
        orders = batches.row_orders(self.seed, ids, round, chunk.sizes, epochs)
        table = chunk.table(orders, self.data.train.start[chunk.members])
        weights = [torch.from_numpy(weight) for weight in chunk.weights]
        for epoch in range(epochs):
            for step, (places, weight) in enumerate(zip(chunk.steps, weights)):
                b = weight.shape[1]
                flat = torch.from_numpy(table[epoch, :, places].ravel())
                x = torch.index_select(self._x, 0, flat, out=space.take("x", m * b, self._x.shape[1]))
                y = torch.index_select(self._y, 0, flat, out=space.take("y", m * b)).view(m, b)
                done = epoch * chunk.batches + step
                draws = [
                    random_units(self.seed, ids, round, done, k, b, site.units, space)
                    for k, site in enumerate(self.kernel.sites)
                ]
                x = x.view(m, b, -1)
                pull = objective.pull(members, x, w) if objective.pull is not None else None
                if slope_at is not None:
                    slope_at(x, y, weight, draws, pull)
                    slope = gradient
                else:
                    at, back = objective.through(members, done, w)  # type: ignore[misc]
                    self.kernel.slope(at, gradient, space)(x, y, weight, draws, pull)
                    slope = back(gradient)
                objective.add(w, slope, members)
                optimizer.step(slope if whole else slope[:, columns].contiguous())
                if not whole:
                    w[:, columns] = moving
        after.index_copy_(0, members, w)

    def _optimizer(self, w: Tensor, space: Workspace) -> Optimizer:
        t = self.training
        return Adam(w, t.lr, t.weight_decay, space) if t.optimizer == "adam" else SGD(w, t.lr, t.weight_decay)

    def logits(self, w: Tensor, rows: Rows, owner: NDArray[np.int64] | None = None) -> Segments:
        """Logits of model k of ``w`` (models, P) on the rows of center ``owner[k]`` (default: k)."""
        owner = np.arange(len(w)) if owner is None else owner
        sizes = rows.sizes[owner]
        start = np.concatenate([[0], np.cumsum(sizes)])
        answers = torch.empty(int(start[-1]))
        x = torch.from_numpy(rows.x)
        order = np.argsort(sizes, kind="stable")
        order = order[sizes[order] > 0]
        pieces = np.array_split(order, max(1, -(-len(order) // self.most)))

        def work(k: int) -> None:
            piece, space = pieces[k], self._space()
            widest = int(sizes[piece].max())
            column = np.arange(widest)
            real = column < sizes[piece][:, None]
            index = torch.from_numpy(np.where(real, rows.start[owner[piece]][:, None] + column, 0).ravel())
            batch = torch.index_select(x, 0, index, out=space.take("judged rows", len(index), x.shape[1]))
            models = torch.index_select(
                w, 0, torch.from_numpy(piece), out=space.take("judged", len(piece), w.shape[1])
            )
            out = self.kernel.logits(models, batch.view(len(piece), widest, -1), space)
            place = (start[piece][:, None] + column)[real]
            answers[torch.from_numpy(place)] = out[torch.from_numpy(real)]

        if len(order):
            self.each(work, len(pieces))
        return Segments(answers.numpy(), start)

    def gradient(self, w: Tensor, rows: Rows, owner: NDArray[np.int64] | None = None) -> Tensor:
        """(models, P) gradient of model k's mean loss over all rows of center ``owner[k]``, no dropout."""
        owner = np.arange(len(w)) if owner is None else owner
        # A few batches' worth of rows at once, so that a center of any size fits into memory.
        size = 4 * self.training.batch
        pieces = batches.chunks(rows.sizes[owner], size, self.most)
        total = torch.zeros(len(w), self.layout.size)
        x, y = torch.from_numpy(rows.x), torch.from_numpy(rows.y)

        def work(k: int) -> None:
            piece = pieces[k]
            members, first = torch.from_numpy(piece.members), rows.start[owner[piece.members]]
            models = w[members]
            part = torch.empty(len(members), self.layout.size)
            slope = self.kernel.slope(models, part, Workspace())
            table = piece.table(np.arange(int(piece.sizes.max()))[None, None], first)[0]
            for places, lengths in zip(piece.steps, piece.weights):
                flat = torch.from_numpy(table[:, places].ravel())
                # Every row counts alike, whatever batch it is in.
                weight = torch.from_numpy(((lengths > 0) / piece.sizes[:, None]).astype(np.float32))
                batch = x.index_select(0, flat).view(*weight.shape, -1)
                slope(batch, y.index_select(0, flat).view(weight.shape), weight, [])
                total.index_add_(0, members, part)

        self.each(work, len(pieces))
        return total

    def representation(self, w: Tensor, x: Tensor) -> Tensor:
        """(m, b, units) the last hidden layer of models (m, P) on their batches (m, b, d), no dropout."""
        return self.kernel.representation(w, x, Workspace())


class LoopLearner(_Common):
    """One center at a time, with a plain module, autograd and a plain optimiser."""

    def each(self, work: Callable[[int], None], count: int) -> None:
        """Run ``work`` for 0..count-1."""
        for k in range(count):
            work(k)

    def train(
        self,
        w: Tensor,
        round: int,
        objective: Objective = PLAIN,
        columns: slice = slice(None),
        epochs: int | None = None,
    ) -> Tensor:
        """(n, P) the models after every center's local epochs; ``w`` is left as it was."""
        return torch.stack(
            [
                self.train_center(i, w[i], round, objective, columns, epochs or self.training.epochs)
                for i in range(self.data.size)
            ]
        )

    def train_center(
        self, i: int, w: Tensor, round: int, objective: Objective, columns: slice, epochs: int
    ) -> Tensor:
        """(P,) center i's model after its local epochs."""
        rows, size = self.data.train.only(i), self.training.batch
        x, y = torch.from_numpy(rows.x), torch.from_numpy(rows.y)
        model = with_given_dropout(self.factory(self.data.width), self.data.width)
        flat = w[columns].clone().requires_grad_()
        kind = torch.optim.Adam if self.training.optimizer == "adam" else torch.optim.SGD
        optimizer = kind([flat], lr=self.training.lr, weight_decay=self.training.weight_decay)
        whole = w.clone()
        center, member = int(self.ids[i]), torch.tensor([i])
        ids, count = np.array([center], dtype=np.uint64), np.array([len(y)])
        order = batches.row_orders(self.seed, ids, round, count, epochs)[:, 0]
        pieces = [part for epoch in order for part in np.split(epoch, range(size, len(y), size))]
        for step, piece in enumerate(pieces):
            index = torch.from_numpy(piece)
            at, back = whole[None], None
            if objective.through is not None:
                at, back = objective.through(member, step, whole[None])
            torch.nn.utils.vector_to_parameters(at[0].clone(), model.network.parameters())
            kept = kept_units(self.seed, center, round, step, len(piece), self.kernel.sites)
            model.give([torch.from_numpy(m) / (1.0 - s.rate) for m, s in zip(kept, self.kernel.sites)])
            model.network.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model.network(x[index]).reshape(-1), y[index])
            loss.backward()
            gradient = torch.cat([p.grad.reshape(-1) for p in model.network.parameters()])[None]  # type: ignore[union-attr]
            if objective.pull is not None:
                z = model.network.representation(x[index])[None]  # type: ignore[operator]
                dz = objective.pull(member, x[index][None], whole[None])(z.detach()) / len(index)
                extra = torch.autograd.grad(
                    (z * dz).sum(), list(model.network.parameters()), allow_unused=True
                )
                gradient = gradient + torch.cat(
                    [
                        torch.zeros(p.numel()) if g is None else g.reshape(-1)
                        for g, p in zip(extra, model.network.parameters())
                    ]
                )
            if back is not None:
                gradient = back(gradient)
            objective.add(whole[None], gradient, member)
            flat.grad = gradient[0][columns].clone()
            optimizer.step()
            whole[columns] = flat.detach()
        return whole

    def logits(self, w: Tensor, rows: Rows, owner: NDArray[np.int64] | None = None) -> Segments:
        """Logits of model k of ``w`` (models, P) on the rows of center ``owner[k]`` (default: k)."""
        owner = np.arange(len(w)) if owner is None else owner
        model = self.factory(self.data.width).eval()
        answers = []
        with torch.no_grad():
            for weights, i in zip(w, owner):
                torch.nn.utils.vector_to_parameters(weights, model.parameters())
                answers.append(model(torch.from_numpy(rows.only(int(i)).x)).reshape(-1).numpy())
        values = np.concatenate([np.zeros(0, dtype=np.float32), *answers])  # also without any model
        return Segments(values, np.concatenate([[0], np.cumsum(rows.sizes[owner])]))

    def gradient(self, w: Tensor, rows: Rows, owner: NDArray[np.int64] | None = None) -> Tensor:
        """(models, P) gradient of model k's mean loss over all rows of center ``owner[k]``, no dropout."""
        owner = np.arange(len(w)) if owner is None else owner
        model = self.factory(self.data.width).eval()
        found = torch.zeros(len(w), self.layout.size)
        for k, i in enumerate(owner.tolist()):
            mine = rows.only(i)
            if not len(mine.y):
                continue
            torch.nn.utils.vector_to_parameters(w[k].clone(), model.parameters())
            logits = model(torch.from_numpy(mine.x)).reshape(-1)
            loss = F.binary_cross_entropy_with_logits(logits, torch.from_numpy(mine.y))
            slopes = torch.autograd.grad(loss, list(model.parameters()))
            found[k] = torch.cat([slope.reshape(-1) for slope in slopes])
        return found

    def representation(self, w: Tensor, x: Tensor) -> Tensor:
        """(m, b, units) the last hidden layer of models (m, P) on their batches (m, b, d), no dropout."""
        model = self.factory(self.data.width).eval()
        found = []
        with torch.no_grad():
            for weights, rows in zip(w, x):
                torch.nn.utils.vector_to_parameters(weights.clone(), model.parameters())
                found.append(model.representation(rows))  # type: ignore[operator]
        return torch.stack(found)
