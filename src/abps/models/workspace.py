"""Memory that is used again."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from abps.models.devices import CPU


class Workspace:
    """Buffers of one thread on one device, used again at every step: fresh memory costs page faults."""

    def __init__(self, device: torch.device = CPU) -> None:
        self.device = device
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A buffer of a shape; its content is whatever was there."""
        count = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < count or buffer.dtype != dtype:
            buffer = self._buffers[name] = torch.empty(count, dtype=dtype, device=self.device)
        return buffer[:count].view(shape)

    def gather(self, name: str, rows: Tensor, index: Tensor) -> Tensor:
        """(k, ...) those rows in a buffer here; ``rows`` and ``index`` (k,) may stand on another device."""
        here = self.take(name, len(index), *rows.shape[1:], dtype=rows.dtype)
        if rows.device == self.device:
            return torch.index_select(rows, 0, index, out=here)
        return here.copy_(rows.index_select(0, index))
