"""Local training of all centers, stacked.

Every center's model is a row of one matrix; chunks of rows are trained side by side, one thread per core,
each thread with single-threaded kernels: so the numbers do not depend on how many cores there are. The
paper's network goes through ``fused``; any other ``nn.Module`` in cache-sized batches over centers.

On a device that was asked for (see ``devices``) everything goes in batches, as many centers at once as fit
into a gigabyte, one batch after the other. Models come from the CPU and go back there: the state of methods
stays where it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from abps.core.errors import RequestError
from abps.data.prepare import Rows
from abps.models import batches
from abps.models.common import Common
from abps.models.devices import CPU
from abps.models.dropout import random_units
from abps.models.gaussian import noise
from abps.models.kernels import LinearKernel, MLPKernel
from abps.models.metrics import Segments
from abps.models.mixtures import Mixtures, mixed
from abps.models.native.bridge import FusedLinear, FusedNetwork, FusedPrivate, held
from abps.models.optimizers import SGD, Adam, Descent, Optimizer
from abps.models.private import possible
from abps.models.threads import Crew
from abps.models.training import PLAIN, Objective
from abps.models.workspace import Workspace

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

#: Numbers that a chunk on a device may take, as far as can be told beforehand: a gigabyte. The same whatever
#: a device has free, because how centers are batched decides how sums are rounded.
DEVICE_ROOM = 2**28


@dataclass
class StackedLearner(Common):
    """All centers' models in one matrix, trained in chunks.

    device: where batches are computed; None: on all cores, and compiled where there is compiled code.
    """

    device: torch.device | None = None

    #: Centers per chunk: enough to keep calls cheap, few enough for a chunk to stay in the cache.
    most: ClassVar[int] = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        self._there = CPU if self.device is None else self.device
        self._x = torch.from_numpy(self.data.train.x).to(self._there)
        self._y = torch.from_numpy(self.data.train.y).to(self._there)
        batch = self.batch
        self._chunks = batches.chunks(self.data.train.sizes, batch, self._at_once(batch))
        self._idle = torch.from_numpy(np.flatnonzero(self.data.train.sizes == 0))
        self._crew = Crew()
        self._shares = batches.shares(self.data.train.sizes, self._crew.cores)
        self._spaces = threading.local()
        self._descends = self.device is None and self.training.optimizer == "descent"
        self._fused: FusedNetwork | FusedLinear | None = None
        if self.device is None and isinstance(self.kernel, MLPKernel):
            self._fused = FusedNetwork(self.kernel, self.data, self.training, self.seed, self.ids)
        elif self._descends and isinstance(self.kernel, LinearKernel):
            self._fused = FusedLinear(self.data, self.training, self.steps)
        self._private: FusedPrivate | None = None
        if self.training.clip is not None:
            kinds = (MLPKernel, LinearKernel)
            if self.device is not None or not isinstance(self.kernel, kinds):
                raise RequestError(
                    "clip: private training is for model=mlp, linear and gam, on the CPU; "
                    "choose one of these, or leave clip out"
                )
            self._private = FusedPrivate(self)

    def _space(self) -> Workspace:
        """This thread's buffers."""
        if not hasattr(self._spaces, "space"):
            self._spaces.space = Workspace(self._there)
        return self._spaces.space

    def _at_once(self, rows: int) -> int:
        """How many centers go together, with up to so many rows each."""
        if self.device is None:
            return self.most
        # Weights, gradient, moments and copies; a batch, and what layers make of it on the way up and back.
        units = sum(block.shape[0] for block in self.layout.blocks if block.shape)
        return max(1, DEVICE_ROOM // (8 * self.layout.size + rows * (self.data.width + 2 * units)))

    def _begin_batches(self, work: Callable[[int], None], count: int) -> Callable[[], None]:
        """Start batched work for 0..count-1, to be waited for; a device does it when it is waited for."""
        if self.device is None:
            return self._crew.begin(work, count)

        def in_order() -> None:
            for k in range(count):
                work(k)

        return in_order

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
        if fused is not None and not fused.takes(objective):
            fused = None
        hidden = self._private

        def privately(k: int) -> None:
            assert hidden is not None
            hidden.train(self._shares[k], models, after.numpy(), round, objective, columns, count)

        def batched(k: int) -> None:
            self._train_chunk(self._chunks[k], w, after, round, objective, columns, count)

        def one_by_one(k: int) -> None:
            assert fused is not None
            fused.train(self._shares[k], models, after.numpy(), round, objective, columns, count)

        if hidden is not None:
            possible(objective)
            self.take_noisy_steps(round, count)
            wait = self._crew.begin(privately, len(self._shares))
        elif fused is not None:
            wait = self._crew.begin(one_by_one, len(self._shares))
        else:
            wait = self._begin_batches(batched, len(self._chunks))

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
        w = space.gather("weights", before, members)
        whole = columns == slice(None)
        moving = w if whole else w[:, columns].contiguous()
        gradient = space.take("gradient", m, self.layout.size)
        gaussian, lesson = objective.gaussian, objective.lesson
        at = w if gaussian is None else space.take("drawn weights", m, self.layout.size)
        slope_at = self.kernel.slope(at, gradient, space)
        if self.training.optimizer == "descent":
            steps = torch.from_numpy(self.steps(objective, round))[members, None].to(self._there)
            decay = self.decay(w.shape[1])[columns].to(self._there)
            optimizer: Optimizer = Descent(moving, steps, decay)
        else:
            optimizer = self._optimizer(moving, space)
        terms = objective.terms(members, self._there)
        orders = batches.row_orders(self.seed, ids, round, chunk.sizes, epochs)
        table = torch.from_numpy(chunk.table(orders, self.data.train.start[chunk.members])).to(self._there)
        weights = [torch.from_numpy(weight).to(self._there) for weight in chunk.weights]
        for epoch in range(epochs):
            for step, (places, weight) in enumerate(zip(chunk.steps, weights)):
                b = weight.shape[1]
                flat = table[epoch, :, places].reshape(-1)
                x = space.gather("x", self._x, flat).view(m, b, -1)
                y = space.gather("y", self._y, flat).view(m, b)
                done = epoch * chunk.batches + step
                draws = [
                    random_units(self.seed, ids, round, done, k, b, site.units, space)
                    for k, site in enumerate(self.kernel.sites)
                ]
                pull = None
                if objective.contrast is not None:
                    pull = objective.contrast.pull(members, x, self.representation)
                if gaussian is not None:
                    drawn = noise(self.seed, ids, round, done, self.layout.size).to(self._there)
                    at.copy_(gaussian.drawn(w, drawn))
                slope_at(x, y, weight, draws, pull)
                slope = gradient
                if lesson is not None:
                    slope = lesson.blend(slope, self.gradient(at, lesson.rows, chunk.members), members)
                if gaussian is not None:
                    slope = gaussian.back(w, drawn, slope, members)
                terms.add(w, slope)
                optimizer.step(slope if whole else slope[:, columns].contiguous())
                if not whole:
                    w[:, columns] = moving
        after.index_copy_(0, members, w.to(CPU))

    def _optimizer(self, w: Tensor, space: Workspace) -> Optimizer:
        t = self.training
        return Adam(w, t.lr, t.weight_decay, space) if t.optimizer == "adam" else SGD(w, t.lr, t.weight_decay)

    def logits(self, w: Tensor, rows: Rows, owner: Ints | None = None) -> Segments:
        """Logits of model k of ``w`` (models, P) on the rows of center ``owner[k]`` (default: k)."""
        self.look(rows)
        owner = np.arange(len(w)) if owner is None else owner
        sizes = rows.sizes[owner]
        start = np.concatenate([[0], np.cumsum(sizes)])
        answers = torch.empty(self._shape(int(start[-1])))
        if self._fused is not None:
            self._compiled_logits(held(w), rows, owner, start, answers)
        else:
            self._batched_logits(w, rows, owner, start, answers)
        return Segments(answers.numpy(), start)

    def _shape(self, rows: int) -> tuple[int, ...]:
        """The shape of answers to so many rows."""
        outputs = self.data.outcome.outputs
        return (rows,) if outputs == 1 else (rows, outputs)

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
        x = torch.from_numpy(rows.x).to(self._there)
        order = np.argsort(sizes, kind="stable")
        order = order[sizes[order] > 0]
        if not len(order):
            return
        most = self._at_once(int(sizes[order[-1]]))
        pieces = np.array_split(order, -(-len(order) // most))

        def work(k: int) -> None:
            piece, space = pieces[k], self._space()
            widest = int(sizes[piece].max())
            column = np.arange(widest)
            real = column < sizes[piece][:, None]
            index = torch.from_numpy(np.where(real, rows.start[owner[piece]][:, None] + column, 0).ravel())
            batch = space.gather("judged rows", x, index.to(self._there))
            models = space.gather("judged", w, torch.from_numpy(piece))
            out = self.kernel.logits(models, batch.view(len(piece), widest, -1), space)
            place = (start[piece][:, None] + column)[real]
            answers[torch.from_numpy(place)] = out.to(CPU)[torch.from_numpy(real)]

        self._begin_batches(work, len(pieces))()

    def mixture_logits(self, own: Tensor, others: Tensor, parts: Mixtures, rows: Rows) -> Segments:
        """Logits of every mixture on the rows of its owner."""
        self.look(rows)
        if self._fused is None:
            return self.logits(mixed(own, others, parts, self.each), rows, parts.owner)
        start = np.concatenate([[0], np.cumsum(rows.sizes[parts.owner])])
        fused, pieces, answers = (
            self._fused,
            self._pieces(len(parts)),
            np.empty(self._shape(int(start[-1])), np.float32),
        )
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
        models, answers = (
            torch.empty(len(parts), own.shape[1]),
            np.empty(self._shape(int(start[-1])), np.float32),
        )
        fused, pieces, made = self._fused, self._pieces(len(parts)), models.numpy()
        mine, sent = own.contiguous().numpy(), others.contiguous().numpy()

        def work(k: int) -> None:
            fused.settle(mine, sent, parts, rows, pieces[k], start, made, answers)

        self.each(work, len(pieces))
        return models, Segments(answers, start)

    def gradient(self, w: Tensor, rows: Rows, owner: Ints | None = None) -> Tensor:
        """(models, P) gradient of model k's mean loss over all rows of center ``owner[k]``, no dropout."""
        self.look(rows)
        owner = np.arange(len(w)) if owner is None else owner
        # A few batches' worth of rows at once, so that a center of any size fits into memory.
        size = 4 * self.training.batch
        if self.data.outcome.way == "cox":  # all rows of a center are one risk set
            size = max(1, int(rows.sizes.max(initial=0)))
        pieces = batches.chunks(rows.sizes[owner], size, self._at_once(size))
        total = torch.zeros(len(w), self.layout.size, device=w.device)
        x, y = torch.from_numpy(rows.x).to(self._there), torch.from_numpy(rows.y).to(self._there)

        def work(k: int) -> None:
            piece = pieces[k]
            members, first = torch.from_numpy(piece.members).to(w.device), rows.start[owner[piece.members]]
            models = w[members].to(self._there)
            part = torch.empty(len(members), self.layout.size, device=self._there)
            slope = self.kernel.slope(models, part, Workspace(self._there))
            table = piece.table(np.arange(int(piece.sizes.max()))[None, None], first)[0]
            for places, lengths in zip(piece.steps, piece.weights):
                flat = torch.from_numpy(table[:, places].ravel()).to(self._there)
                # Every row counts alike, whatever batch it is in.
                share = ((lengths > 0) / piece.sizes[:, None]).astype(np.float32)
                weight = torch.from_numpy(share).to(self._there)
                batch = x.index_select(0, flat).view(*weight.shape, -1)
                slope(batch, y.index_select(0, flat).view(weight.shape), weight, [])
                total.index_add_(0, members, part.to(w.device))

        self._begin_batches(work, len(pieces))()
        return total

    def representation(self, w: Tensor, x: Tensor) -> Tensor:
        """(m, b, units) the last hidden layer of models (m, P) on their batches (m, b, d), no dropout; it
        stands where the batches do."""
        there = self._there
        return self.kernel.representation(w.to(there), x.to(there), Workspace(there)).to(x.device)
