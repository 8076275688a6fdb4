"""A device that exists in tests alone: it computes on the CPU, and refuses what a real device would refuse.

Its tensors say that they stand on the device ``THERE``; an operation on some of them and on tensors of the
CPU is an error, unless it copies. It is stricter than a GPU, which takes a single number or an index from the
CPU. What it computes are the CPU's own numbers, so results can be compared to the last bit.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

#: The one name of a device that no hardware has.
THERE = torch.device("meta")

_COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class MixedDevices(Exception):
    """An operation on tensors of two devices."""


class _OnDevice(Tensor):
    """A tensor of the CPU that says it stands elsewhere."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> _OnDevice:
        self = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=THERE,
        )
        self.inner = inner
        return self

    def __repr__(self) -> str:  # type: ignore[override]
        return f"on the device: {self.inner}"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise MixedDevices(f"{func} outside of the pretended device: from another thread?")


class PretendDevice(TorchDispatchMode):
    """While it is entered, the device exists. It counts operations: on the device, and on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.there: Counter[str] = Counter()
        self.here: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        there = [isinstance(t, _OnDevice) for t in tensors]
        if any(there) and not all(there) and func not in _COPIES:
            raise MixedDevices(f"{func} on tensors of both devices: {[tuple(t.shape) for t in tensors]}")
        wanted = kwargs.get("device")
        if wanted is not None:
            kwargs["device"] = torch.device("cpu")
            goes_there = torch.device(wanted) == THERE
        else:
            # A copy into a tensor ends where that tensor stands: it is the first one.
            goes_there = there[0] if func is torch.ops.aten.copy_.default else any(there)
        (self.there if goes_there else self.here)[func.overloadpacket.__name__] += 1
        known = {id(t.inner): t for t in tensors if isinstance(t, _OnDevice)}
        inner_args, inner_kwargs = tree_map_only(_OnDevice, lambda t: t.inner, (args, kwargs))
        out = func(*inner_args, **inner_kwargs)
        if not goes_there:
            return out
        return tree_map_only(Tensor, lambda t: known[id(t)] if id(t) in known else _OnDevice(t), out)
