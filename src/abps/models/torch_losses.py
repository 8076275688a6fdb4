"""The loss of every outcome for automatic differentiation of any PyTorch model."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from abps.data.outcome import Outcome


def mean_loss(outcome: Outcome, z: Tensor, y: Tensor) -> Tensor:
    """The mean loss of answers z (rows,) or (rows, outputs) to y (rows,).

    Of Cox's likelihood the rows that are given together are one stratum: a center's rows, or a batch of them.
    """
    if outcome.binary:
        return F.binary_cross_entropy_with_logits(z.reshape(-1), y)
    answers = z.reshape(len(y), -1)
    if outcome.way == "cox":
        return _cox(answers[:, 0], y)
    if outcome.way == "hazard":
        grid = torch.tensor(outcome.grid, dtype=y.dtype, device=y.device)
        time, event = y.abs()[:, None], ~torch.signbit(y)[:, None]
        lived = (grid < time) | (~event & (grid <= time))
        begins = torch.cat([torch.full_like(grid[:1], -torch.inf), grid[:-1]])
        failed = event & (begins < time) & (time <= grid)
        rows = (F.softplus(answers) * (lived | failed) - answers * failed).sum(dim=1)
    elif outcome.way == "softmax":
        rows = F.cross_entropy(answers, y.long(), reduction="none")
    elif outcome.way == "squared":
        rows = 0.5 * (answers[:, 0] - y) ** 2
    else:  # pinball
        gap = answers[:, 0] - y
        rows = torch.maximum((1.0 - outcome.quantile) * gap, -outcome.quantile * gap)
    return rows.mean()


def _cox(z: Tensor, y: Tensor) -> Tensor:
    """Efron's partial likelihood: of tied events the l-th has left l shares of the tied risk behind."""
    event, time, top = ~torch.signbit(y), y.abs(), z.max().detach()
    risk = torch.exp(z - top)
    later = (time[None] >= time[:, None]).to(z.dtype)
    tied = ((time[None] == time[:, None]) & event[None]).to(z.dtype)
    before = torch.tril(torch.ones_like(tied), diagonal=-1)
    share = (tied * before).sum(dim=1) / torch.clamp(tied.sum(dim=1), min=1.0)
    left = later @ risk - share * (tied @ risk)
    rows = torch.log(torch.where(event, left, torch.ones_like(left))) + top - z
    return torch.where(event, rows, torch.zeros_like(rows)).mean()
