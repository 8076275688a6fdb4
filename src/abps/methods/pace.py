"""Faster in a round, at the same bytes: a dual variable, outer momentum, the mean of the last models.

Three ways to get farther with what is exchanged anyway; each center does them by itself, and keeps what they
need from one round to the next:

* *dual* (FedDyn's, for partners that change; Li et al. 2025): h adds up what a center's own training moves
  its model, and forgets. It trains held near its model less h, sends its trained model and h, and so does
  everybody: where all agree, the loss of all together is least;
* *momentum*: after a mix a model goes on in the direction in which it went in the round before;
* *averaged*: what is kept in the end is the mean of a center's models over the last rounds.

With a dual, what is sent is no longer a model that anybody uses. So a peer is never judged by what it sent,
but by the mix with the own, which is the model that would be gone on with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from abps.core.errors import RequestError
from abps.tensors import Tensor, torch


@dataclass(frozen=True)
class Pace:
    """dual: strength of the pull to the model less h; 0: no dual.  dual_keep: share of h that is kept in a
    round.  momentum: share of the last move that is made once more; 0: none.  averaged: share of the rounds,
    at the end, whose models are averaged; 0: the last model is kept.
    """

    dual: float = 0.0
    dual_keep: float = 0.9
    momentum: float = 0.0
    averaged: float = 0.0

    def __post_init__(self) -> None:
        if self.dual < 0 or not 0 <= self.dual_keep <= 1:
            raise RequestError(
                f"dual={self.dual}, dual_keep={self.dual_keep}: choose a strength from 0 and a share up to 1"
            )
        if not 0 <= self.momentum < 1:
            raise RequestError(f"momentum={self.momentum}: a share of the last move, choose 0 to below 1")
        if not 0 <= self.averaged <= 1:
            raise RequestError(f"averaged={self.averaged}: a share of the rounds, choose 0 to 1")

    def start(self, r: int, shared: int, parameters: int) -> Stride:
        """Nothing yet, and no room for what is not used."""
        return Stride(
            torch.zeros(r, shared if self.dual else 0),
            torch.zeros(r, shared if self.momentum else 0),
            torch.zeros(r, parameters if self.averaged else 0),
        )

    def learned(self, stride: Stride, before: Tensor, trained: Tensor) -> Stride:
        """With what training moved the models (r, P)."""
        if not self.dual:
            return stride
        moved = (trained - before)[:, : stride.dual.shape[1]]
        return replace(stride, dual=self.dual_keep * stride.dual + moved)

    def went_on(self, stride: Stride, before: Tensor, mixed: Tensor) -> tuple[Stride, Tensor]:
        """What models (r, P) become after a mix, from what they were when the round began."""
        if not self.momentum:
            return stride, mixed
        shared = stride.drive.shape[1]
        farther = mixed.clone()
        farther[:, :shared] += self.momentum * stride.drive
        return replace(stride, drive=(farther - before)[:, :shared]), farther

    def kept(self, stride: Stride, models: Tensor, t: int, horizon: int) -> tuple[Stride, Tensor]:
        """The models (r, P) after round t, after the last one the mean of the last rounds."""
        first = horizon - max(1, round(self.averaged * horizon)) + 1
        if not self.averaged or t < first:
            return stride, models
        mean = torch.lerp(stride.mean, models, 1.0 / (t - first + 1))
        return replace(stride, mean=mean), mean if t == horizon else models


@dataclass(frozen=True, eq=False)
class Stride:
    """What r centers keep for it: dual, drive (r, shared), the last move; mean (r, P) of the last models."""

    dual: Tensor
    drive: Tensor
    mean: Tensor

    def restarted(self) -> Stride:
        """After all were told where to go on from: what led there is of the past."""
        return replace(self, dual=torch.zeros_like(self.dual), drive=torch.zeros_like(self.drive))

    def pushed(self, models: Tensor, by: float = 1.0) -> Tensor:
        """Models (r, P) and h, or so many times h."""
        if not self.dual.shape[1]:
            return models
        pushed = models.clone()
        pushed[:, : self.dual.shape[1]] += by * self.dual
        return pushed
