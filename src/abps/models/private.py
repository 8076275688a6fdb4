"""Private training: what every learner of it draws and reckons with.

Each row takes part in a step by its own coin (Poisson sampling). The gradients of those that do are cut to
the length ``clip`` and added up; normal noise of ``noise_multiplier * clip`` is added to every entry of the
sum, which is then divided by the expected number of rows. One row, there or not, moves the sum by at most
``clip``: a step is a sampled Gaussian mechanism, which :mod:`abps.privacy.budget` counts. How far a step
goes does not follow from the rows.

In a simulation the draws follow from the seed, so that a run repeats. A hospital adds a secret of its own:
whoever knew its noise could take it off.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from abps.core import streams
from abps.core.errors import RequestError
from abps.data.prepare import Rows
from abps.models.common import Common
from abps.models.gaussian import normals
from abps.models.training import Objective


def possible(objective: Objective) -> None:
    """Raise unless an objective has only terms in the weights: others look at rows without a bound."""
    if objective.contrast is not None or objective.lesson is not None or objective.gaussian is not None:
        raise RequestError(
            "clip: this method's loss is not one of single rows, so a row's part in it has no bound; "
            "leave clip out, or choose another method"
        )


def drawn_rows(
    seed: int, centers: NDArray[np.uint64], round: int, steps: int, rows: int, chance: float
) -> NDArray[np.bool_]:
    """(m, steps, rows) which rows of centers (m,) take part in which step."""
    if chance >= 1:
        return np.ones((len(centers), steps, rows), dtype=np.bool_)
    index = np.arange(steps, dtype=np.uint64)[:, None] << np.uint64(32) | np.arange(rows, dtype=np.uint64)
    found = streams.uniforms(seed, "private-sample", round, centers[:, None, None], index) < chance
    return np.asarray(found)


def noise_keys(seed: int, centers: NDArray[np.uint64], round: int, steps: int) -> NDArray[np.uint64]:
    """(m, steps) the key of every center's noise at every step."""
    index = np.arange(steps, dtype=np.uint64)
    return streams.bits(seed, "private-noise", round, centers[:, None], index)


def rates(learner: Common, round: int) -> NDArray[np.float32]:
    """(n,) how far each center goes along its noisy gradient: the same for all."""
    training = learner.training
    far = training.lr * (learner.shorter(round) if training.optimizer == "descent" else 1.0)
    return np.full(learner.data.size, far, dtype=np.float32)


def penalty(learner: Common) -> Tensor:
    """(P,) the penalty of every parameter."""
    if learner.training.optimizer == "descent":
        return learner.decay(learner.layout.size)
    return torch.full((learner.layout.size,), learner.training.weight_decay)


def train_center(
    learner: Common, i: int, w: Tensor, round: int, objective: Objective, columns: slice, epochs: int
) -> Tensor:
    """(P,) center i's model after its private steps, told plainly: row by row, with autograd."""
    training, rows = learner.training, learner.data.train.only(i)
    model: Any = learner.factory(learner.data.width).eval()
    ids = learner.ids[i : i + 1]
    steps = training.private_steps(epochs)
    seed = learner.seed + learner.secret
    used = drawn_rows(seed, ids, round, steps, len(rows.y), training.sampling)[0]
    keys = noise_keys(seed, ids, round, steps)[0]
    flat, whole = w[columns].clone().requires_grad_(), w.clone()
    kind = torch.optim.Adam if training.optimizer == "adam" else torch.optim.SGD
    optimizer = kind([flat], lr=float(rates(learner, round)[i]))
    terms = objective.terms(torch.tensor([i]), torch.device("cpu"))
    assert training.clip is not None
    for step in range(steps):
        torch.nn.utils.vector_to_parameters(whole.clone(), model.parameters())
        total = torch.zeros_like(whole)
        for r in np.flatnonzero(used[step]):
            one = row_gradient(model, rows, int(r))
            total += one * min(1.0, training.clip / max(float(one.norm()), 1e-30))
        spread = training.noise_multiplier * training.clip
        if spread:
            total += spread * normals(keys[step : step + 1], len(whole))[0]
        gradient = (total / (training.sampling * len(rows.y)))[None]
        terms.add(whole[None], gradient)
        gradient = gradient + penalty(learner) * whole
        flat.grad = gradient[0][columns].clone()
        optimizer.step()
        whole[columns] = flat.detach()
    return whole


def row_gradient(model: nn.Module, rows: Rows, r: int) -> Tensor:
    """(P,) the gradient of one row's loss."""
    logit = model(torch.from_numpy(rows.x[r : r + 1])).reshape(-1)
    loss = F.binary_cross_entropy_with_logits(logit, torch.from_numpy(rows.y[r : r + 1]))
    return torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, list(model.parameters()))])
