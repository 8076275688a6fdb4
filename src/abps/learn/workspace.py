"""Memory that is used again."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Workspace:
    """Buffers of one thread, used again at every step: fresh memory costs page faults."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A buffer of a shape; its content is whatever was there."""
        count = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < count or buffer.dtype != dtype:
            buffer = self._buffers[name] = torch.empty(count, dtype=dtype)
        return buffer[:count].view(shape)
