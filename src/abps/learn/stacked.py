"""Local training of all centers, stacked.

Every center's model is a row of one matrix; chunks of rows are trained side by side, one thread per core,
each thread with single-threaded kernels: so the numbers do not depend on how many cores there are. The
paper's network goes through ``fused``; any other ``nn.Module`` in cache-sized batches over centers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from abps.cohorts.prepare import Rows
from abps.learn import batches
from abps.learn.crew import Crew
from abps.learn.dropout import random_units
from abps.learn.fused import FusedNetwork, held
from abps.learn.gaussian import noise
from abps.learn.kernels import MLPKernel
from abps.learn.metrics import Segments
from abps.learn.mixtures import Mixtures, mixed
from abps.learn.optimizers import SGD, Adam, Optimizer
from abps.learn.training import PLAIN, Common, Objective
from abps.learn.workspace import Workspace

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class StackedLearner(Common):
    """All centers' models in one matrix, trained in chunks."""

    #: Centers per chunk: enough to keep calls cheap, few enough for a chunk to stay in the cache.
    most = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        self._x = torch.from_numpy(self.data.train.x)
        self._y = torch.from_numpy(self.data.train.y)
        self._chunks = batches.chunks(self.data.train.sizes, self.training.batch, self.most)
        self._idle = torch.from_numpy(np.flatnonzero(self.data.train.sizes == 0))
        self._crew = Crew()
        self._shares = batches.shares(self.data.train.sizes, self._crew.cores)
        self._spaces = threading.local()
        self._fused = (
            FusedNetwork(self.kernel, self.data, self.training, self.seed, self.ids)
            if isinstance(self.kernel, MLPKernel)
            else None
        )

    def _space(self) -> Workspace:
        """This thread's buffers."""
        if not hasattr(self._spaces, "space"):
            self._spaces.space = Workspace()
        return self._spaces.space

    def each(self, work: Callable[[int], None], count: int) -> None:
        """Run ``work`` for 0..count-1 on all cores."""
        self._crew.each(work, count)

    def train(
        self,
        w: Tensor,
        round: int,
        objective: Objective = PLAIN,
        columns: slice = slice(None),
        epochs: int | None = None,
    ) -> Tensor:
        """(n, P) the models after every center's local epochs; ``w`` is left as it was."""
        return self.begin(w, round, objective, columns, epochs)()

    def begin(
        self,
        w: Tensor,
        round: int,
        objective: Objective = PLAIN,
        columns: slice = slice(None),
        epochs: int | None = None,
    ) -> Callable[[], Tensor]:
        """Let the centers train while the caller does something else; the result waits for their models."""
        after = torch.empty(w.shape)
        after[self._idle] = w[self._idle]
        count = epochs if epochs is not None else self.training.epochs
        fused, models = self._fused, held(w)

        def batched(k: int) -> None:
            self._train_chunk(self._chunks[k], w, after, round, objective, columns, count)

        def one_by_one(k: int) -> None:
            assert fused is not None
            fused.train(self._shares[k], models, after.numpy(), round, objective, columns, count)

        if fused is not None:
            wait = self._crew.begin(one_by_one, len(self._shares))
        else:
            wait = self._crew.begin(batched, len(self._chunks))

        def finish() -> Tensor:
            wait()
            return after

        return finish

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
        gaussian, lesson = objective.gaussian, objective.lesson
        at = w if gaussian is None else space.take("drawn weights", m, self.layout.size)
        slope_at = self.kernel.slope(at, gradient, space)
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
                pull = None
                if objective.contrast is not None:
                    pull = objective.contrast.pull(members, x, self.representation)
                if gaussian is not None:
                    drawn = noise(self.seed, ids, round, done, self.layout.size)
                    at.copy_(gaussian.drawn(w, drawn))
                slope_at(x, y, weight, draws, pull)
                slope = gradient
                if lesson is not None:
                    slope = lesson.blend(slope, self.gradient(at, lesson.rows, chunk.members), members)
                if gaussian is not None:
                    slope = gaussian.back(w, drawn, slope, members)
                objective.add(w, slope, members)
                optimizer.step(slope if whole else slope[:, columns].contiguous())
                if not whole:
                    w[:, columns] = moving
        after.index_copy_(0, members, w)

    def _optimizer(self, w: Tensor, space: Workspace) -> Optimizer:
        t = self.training
        return Adam(w, t.lr, t.weight_decay, space) if t.optimizer == "adam" else SGD(w, t.lr, t.weight_decay)

    def logits(self, w: Tensor, rows: Rows, owner: Ints | None = None) -> Segments:
        """Logits of model k of ``w`` (models, P) on the rows of center ``owner[k]`` (default: k)."""
        owner = np.arange(len(w)) if owner is None else owner
        sizes = rows.sizes[owner]
        start = np.concatenate([[0], np.cumsum(sizes)])
        answers = torch.empty(int(start[-1]))
        if self._fused is not None:
            self._compiled_logits(held(w), rows, owner, start, answers)
        else:
            self._batched_logits(w, rows, owner, start, answers)
        return Segments(answers.numpy(), start)

    def _compiled_logits(self, w: Floats, rows: Rows, owner: Ints, start: Ints, answers: Tensor) -> None:
        fused = self._fused
        assert fused is not None
        pieces = self._pieces(len(owner))

        def work(k: int) -> None:
            fused.logits(w, rows, owner, pieces[k], start, answers.numpy())

        self.each(work, len(pieces))

    def _pieces(self, count: int) -> list[Ints]:
        """0..count-1 in pieces that keep calls cheap and let all cores end at about the same time."""
        return np.array_split(np.arange(count), max(1, min(count, 16 * self._crew.cores), -(-count // 256)))

    def _batched_logits(self, w: Tensor, rows: Rows, owner: Ints, start: Ints, answers: Tensor) -> None:
        sizes = rows.sizes[owner]
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

    def mixture_logits(self, own: Tensor, others: Tensor, parts: Mixtures, rows: Rows) -> Segments:
        """Logits of every mixture on the rows of its owner."""
        if self._fused is None:
            return self.logits(mixed(own, others, parts, self.each), rows, parts.owner)
        start = np.concatenate([[0], np.cumsum(rows.sizes[parts.owner])])
        fused, pieces, answers = self._fused, self._pieces(len(parts)), np.empty(start[-1], np.float32)
        mine, sent = own.contiguous().numpy(), others.contiguous().numpy()

        def work(k: int) -> None:
            fused.mixture_logits(mine, sent, parts, rows, pieces[k], start, answers)

        self.each(work, len(pieces))
        return Segments(answers, start)

    def settle(self, own: Tensor, others: Tensor, parts: Mixtures, rows: Rows) -> tuple[Tensor, Segments]:
        """(k, P) every mixture itself, and its logits on the rows of its owner."""
        if self._fused is None:
            return super().settle(own, others, parts, rows)
        start = np.concatenate([[0], np.cumsum(rows.sizes[parts.owner])])
        models, answers = torch.empty(len(parts), own.shape[1]), np.empty(start[-1], np.float32)
        fused, pieces, made = self._fused, self._pieces(len(parts)), models.numpy()
        mine, sent = own.contiguous().numpy(), others.contiguous().numpy()

        def work(k: int) -> None:
            fused.settle(mine, sent, parts, rows, pieces[k], start, made, answers)

        self.each(work, len(pieces))
        return models, Segments(answers, start)

    def gradient(self, w: Tensor, rows: Rows, owner: Ints | None = None) -> Tensor:
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
