"""Local training told plainly: one center at a time, ``nn.Module``, autograd and ``torch.optim``.

The ``debug`` engine, and the oracle of the stacked one.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from abps.data.prepare import Rows
from abps.models import batches, outcomes, private
from abps.models.common import Common
from abps.models.devices import CPU
from abps.models.dropout import kept_units
from abps.models.gaussian import noise
from abps.models.kernels import with_given_dropout
from abps.models.metrics import Segments
from abps.models.mixtures import Mixtures, mixed
from abps.models.training import PLAIN, Objective


class LoopLearner(Common):
    """One center at a time, with a plain module, autograd and a plain optimiser."""

    def train(
        self,
        w: Tensor,
        round: int,
        objective: Objective = PLAIN,
        columns: slice = slice(None),
        epochs: int | None = None,
    ) -> Tensor:
        """(n, P) the models after every center's local epochs; ``w`` is left as it was."""
        if self.training.clip is not None:
            count = epochs or self.training.epochs
            private.possible(objective)
            self.take_noisy_steps(round, count)
            each = [
                private.train_center(self, i, w[i], round, objective, columns, count)
                for i in range(self.data.size)
            ]
            return torch.stack(each)
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
        rows, size = self.data.train.only(i), self.batch
        x, y = torch.from_numpy(rows.x), torch.from_numpy(rows.y)
        outcome = self.data.outcome
        model = with_given_dropout(self.factory(self.data.width), self.data.width, outcome.outputs)
        flat = w[columns].clone().requires_grad_()
        descent = self.training.optimizer == "descent"
        kind = torch.optim.Adam if self.training.optimizer == "adam" else torch.optim.SGD
        optimizer = kind(
            [flat],
            lr=float(self.steps(objective, round)[i]) if descent else self.training.lr,
            weight_decay=0.0 if descent else self.training.weight_decay,
        )
        whole = w.clone()
        center, member = int(self.ids[i]), torch.tensor([i])
        terms = objective.terms(member, CPU)
        ids, count = np.array([center], dtype=np.uint64), np.array([len(y)])
        order = batches.row_orders(self.seed, ids, round, count, epochs)[:, 0]
        pieces = [part for epoch in order for part in np.split(epoch, range(size, len(y), size))]
        for step, piece in enumerate(pieces):
            index = torch.from_numpy(piece)
            at = whole[None]
            if objective.gaussian is not None:
                drawn = noise(self.seed, ids, round, step, self.layout.size)
                at = objective.gaussian.drawn(at, drawn)
            torch.nn.utils.vector_to_parameters(at[0].clone(), model.network.parameters())
            kept = kept_units(self.seed, center, round, step, len(piece), self.kernel.sites)
            model.give([torch.from_numpy(m) / (1.0 - s.rate) for m, s in zip(kept, self.kernel.sites)])
            model.network.zero_grad()
            self._loss(model.network(x[index]), y[index]).backward()
            gradient = torch.cat([p.grad.reshape(-1) for p in model.network.parameters()])[None]  # type: ignore[union-attr]
            if objective.contrast is not None:
                z = model.network.representation(x[index])[None]  # type: ignore[operator]
                pull = objective.contrast.pull(member, x[index][None], self.representation)
                dz = pull(z.detach()) / len(index)
                extra = torch.autograd.grad(
                    (z * dz).sum(), list(model.network.parameters()), allow_unused=True
                )
                gradient = gradient + torch.cat(
                    [
                        torch.zeros(p.numel()) if g is None else g.reshape(-1)
                        for g, p in zip(extra, model.network.parameters())
                    ]
                )
            if objective.lesson is not None:
                taught = self.gradient(at, objective.lesson.rows, member.numpy())
                gradient = objective.lesson.blend(gradient, taught, member)
            if objective.gaussian is not None:
                gradient = objective.gaussian.back(whole[None], drawn, gradient, member)
            terms.add(whole[None], gradient)
            if descent:
                gradient = gradient + self.decay(len(whole)) * whole
            flat.grad = gradient[0][columns].clone()
            optimizer.step()
            whole[columns] = flat.detach()
        return whole

    def _loss(self, answer: Tensor, y: Tensor) -> Tensor:
        """The mean loss of answers (rows,) or (rows, outputs)."""
        if self.data.outcome.binary:
            return F.binary_cross_entropy_with_logits(answer.reshape(-1), y)
        weight = torch.full((len(y),), 1.0 / max(1, len(y)))
        return outcomes.loss(self.data.outcome, answer.reshape(len(y), -1), y, weight)

    def logits(self, w: Tensor, rows: Rows, owner: NDArray[np.int64] | None = None) -> Segments:
        """Logits of model k of ``w`` (models, P) on the rows of center ``owner[k]`` (default: k)."""
        self.look(rows)
        owner = np.arange(len(w)) if owner is None else owner
        model, outputs = self.factory(self.data.width).eval(), self.data.outcome.outputs
        answers = []
        with torch.no_grad():
            for weights, i in zip(w, owner):
                torch.nn.utils.vector_to_parameters(weights, model.parameters())
                answers.append(model(torch.from_numpy(rows.only(int(i)).x)).reshape(-1, outputs).numpy())
        values = np.concatenate(
            [np.zeros((0, outputs), dtype=np.float32), *answers]
        )  # also without any model
        values = values[:, 0] if outputs == 1 else values
        return Segments(values, np.concatenate([[0], np.cumsum(rows.sizes[owner])]))

    def mixture_logits(self, own: Tensor, others: Tensor, parts: Mixtures, rows: Rows) -> Segments:
        """Logits of every mixture on the rows of its owner."""
        self.look(rows)
        return self.logits(mixed(own, others, parts, self.each), rows, parts.owner)

    def gradient(self, w: Tensor, rows: Rows, owner: NDArray[np.int64] | None = None) -> Tensor:
        """(models, P) gradient of model k's mean loss over all rows of center ``owner[k]``, no dropout."""
        self.look(rows)
        owner = np.arange(len(w)) if owner is None else owner
        model = self.factory(self.data.width).eval()
        found = torch.zeros(len(w), self.layout.size)
        for k, i in enumerate(owner.tolist()):
            mine = rows.only(i)
            if not len(mine.y):
                continue
            torch.nn.utils.vector_to_parameters(w[k].clone(), model.parameters())
            loss = self._loss(model(torch.from_numpy(mine.x)), torch.from_numpy(mine.y))
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
