"""A contrastive loss on representations (Li et al. 2021): near one frozen model's, away from another's.

For every row, with z the last hidden layer (after ReLU, before dropout) of the model in training,

    l = -log( e^(cos(z, z_near) / tau) / (e^(cos(z, z_near) / tau) + e^(cos(z, z_far) / tau)) ).

The frozen models answer without dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from abps.tensors import Tensor, torch

if TYPE_CHECKING:
    from abps.models.kernels import Pull


@dataclass(frozen=True, eq=False)
class Contrast:
    """near, far: (P,) or (n, P) the frozen models.  strength: weight of the loss.  temperature: tau."""

    near: Tensor
    far: Tensor
    strength: float
    temperature: float

    def pull(self, members: Tensor, x: Tensor, represent: Callable[[Tensor, Tensor], Tensor]) -> Pull:
        """The loss's gradient for the centers ``members`` (m,) on their batch (m, b, d).

        represent: from models (m, P) and the batch to representations (m, b, units).
        """
        near, far = (
            represent(models.expand(len(members), -1) if models.dim() == 1 else models[members], x)
            for models in (self.near, self.far)
        )
        return lambda z: self.strength * contrastive_gradient(z, near, far, self.temperature)


def contrastive_gradient(z: Tensor, near: Tensor, far: Tensor, temperature: float) -> Tensor:
    """Gradient of l with respect to z; all (..., units). A representation of zero has no direction: zero."""
    size = torch.linalg.vector_norm(z, dim=-1, keepdim=True).clamp_min(1e-8)
    z, near, far = z / size, _direction(near), _direction(far)
    like_near = (z * near).sum(-1, keepdim=True)
    like_far = (z * far).sum(-1, keepdim=True)
    wrong = torch.sigmoid((like_far - like_near) / temperature)
    turn = (far - like_far * z) - (near - like_near * z)
    return torch.where(z.abs().sum(-1, keepdim=True) > 0, turn * (wrong / (temperature * size)), 0.0)


def _direction(z: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    return z / length.clamp_min(1e-8)
