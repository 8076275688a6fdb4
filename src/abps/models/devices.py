"""Where a learner does its batched work: on this machine's cores, or on a device that was asked for."""

from __future__ import annotations

import torch

from abps.core.errors import RequestError

CPU = torch.device("cpu")

#: Kinds of devices, best first.
KINDS = ("cuda", "mps")


def find_device(name: str) -> torch.device | None:
    """The device of a name (cuda, cuda:1, mps; auto: one if there is any); None: this machine's cores."""
    if name == "cpu":
        return None
    if name == "auto":
        name = next((kind for kind in KINDS if _count(kind)), "")
        return find_device(name) if name else None
    try:
        device = torch.device(name)
    except RuntimeError:  # not a name of a device at all
        device = CPU
    if device.type not in KINDS:
        raise RequestError(f"device={name!r}: choose cpu, cuda, cuda:1 and so on, mps, or auto")
    if (device.index or 0) >= _count(device.type):
        there = [f"{kind}:{k}" for kind in KINDS for k in range(_count(kind))]
        raise RequestError(
            f"device={name!r}: PyTorch {torch.__version__} sees no such device here; "
            f"choose {' or '.join(['cpu', *there])}"
        )
    try:
        return torch.empty(1, device=device).device  # with its number, as tensors tell it
    except RuntimeError as error:
        raise RequestError(
            f"device={name!r}: it is there and cannot be used ({str(error).splitlines()[0]}); choose cpu"
        ) from error


def _count(kind: str) -> int:
    """How many devices of a kind PyTorch can use."""
    return torch.cuda.device_count() if kind == "cuda" else int(torch.backends.mps.is_available())


def device_name(device: torch.device | None) -> str:
    """What a result says about where its numbers were computed: other devices round otherwise."""
    if device is None:
        return CPU.type
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type
