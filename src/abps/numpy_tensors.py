"""The few functions of PyTorch that methods for linear models use, on NumPy arrays.

Names, arguments and roundings are PyTorch's, as far as they go (tests compare them); nothing here has
gradients or devices. See :mod:`abps.tensors`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

float32, float64, int64 = np.float32, np.float64, np.int64


class Tensor(np.ndarray):
    """An array that answers to a tensor's names."""

    def numpy(self) -> Array:
        """The same memory as a plain array."""
        return self.view(np.ndarray)

    def clone(self) -> Tensor:
        """A copy."""
        return self.copy()

    def contiguous(self) -> Tensor:
        """Row by row in memory."""
        return self if self.flags["C_CONTIGUOUS"] else self.copy()

    def dim(self) -> int:
        """How many dimensions it has."""
        return self.ndim

    def expand(self, *shape: int) -> Tensor:
        """One thing in the place of many, without a copy; -1: as it is."""
        old = (1,) * (len(shape) - self.ndim) + self.shape
        new = tuple(have if want == -1 else want for have, want in zip(old, shape))
        found: Tensor = np.broadcast_to(self, new, subok=True)  # type: ignore[assignment]
        return found

    def expand_as(self, other: Array) -> Tensor:
        """The same in the shape of another."""
        return self.expand(*other.shape)

    def float(self) -> Tensor:
        """In single precision."""
        return self.to(np.float32)

    def double(self) -> Tensor:
        """In double precision."""
        return self.to(np.float64)

    def to(self, kind: Any) -> Tensor:
        """As numbers of another kind, or of the kind of another tensor."""
        return from_numpy(self.astype(kind.dtype if isinstance(kind, np.ndarray) else kind, copy=False))


def from_numpy(array: Array) -> Tensor:
    """The same memory as a tensor."""
    return array.view(Tensor)


def tensor(values: Any) -> Tensor:
    """Numbers, or truth values, as a tensor; numbers with a point in single precision."""
    array = np.array(values)
    return from_numpy(array.astype(np.float32) if array.dtype == np.float64 else array)


def empty(*shape: Any) -> Tensor:
    """Room."""
    return from_numpy(np.empty(_shape(shape), np.float32))


def zeros(*shape: Any) -> Tensor:
    """Nothing."""
    return from_numpy(np.zeros(_shape(shape), np.float32))


def ones(*shape: Any) -> Tensor:
    """One everywhere."""
    return from_numpy(np.ones(_shape(shape), np.float32))


def full(shape: Sequence[int], value: float) -> Tensor:
    """A number everywhere."""
    return from_numpy(np.full(tuple(shape), value, np.float32))


def zeros_like(other: Array) -> Tensor:
    """Nothing in the shape of another."""
    return from_numpy(np.zeros(other.shape, other.dtype))


def where(condition: Array, this: Any, that: Any) -> Tensor:
    """This where it holds, that elsewhere."""
    return from_numpy(np.where(condition, this, that))


def cat(parts: Sequence[Array], dim: int = 0) -> Tensor:
    """One after the other."""
    return from_numpy(np.concatenate([np.asarray(part) for part in parts], axis=dim))


def stack(parts: Sequence[Array]) -> Tensor:
    """One above the other."""
    return from_numpy(np.stack([np.asarray(part) for part in parts]))


def atleast_2d(values: Array) -> Tensor:
    """Rows, or one row."""
    return from_numpy(np.atleast_2d(np.asarray(values)))


def lerp(start: Array, end: Array, weight: float) -> Tensor:
    """From one to the other, so far; from the nearer end, as PyTorch does it."""
    share = np.float32(weight)
    if weight < 0.5:
        return from_numpy(np.asarray(start + share * (end - start)))
    return from_numpy(np.asarray(end - (end - start) * (np.float32(1.0) - share)))


def _shape(given: tuple[Any, ...]) -> tuple[int, ...]:
    """A shape, told as numbers or as one sequence of them."""
    return tuple(given[0]) if len(given) == 1 and not isinstance(given[0], int | np.integer) else given
