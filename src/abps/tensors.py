"""Tensors: PyTorch's, or, in a process that never needs more than arithmetic on rows, NumPy's.

Methods keep models and what goes with them in tensors and write ``torch.lerp`` and so on; they take ``torch``
and ``Tensor`` from here. PyTorch is loaded when the first of its functions is asked for. A process that is to
be small says :func:`use_numpy` before that: ``torch`` is then :mod:`abps.numpy_tensors`, which has the few
functions that methods for linear models use, and takes a tenth of the memory.

Modules that build networks import PyTorch itself; such a process does not load them.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from abps import jit, numpy_tensors

if TYPE_CHECKING:
    import torch as torch
    from torch import Tensor as Tensor
else:

    class _Library:
        """The library that was chosen; PyTorch if nobody chose."""

        def __getattr__(self, name: str) -> Any:
            library = numpy_tensors if _chosen else importlib.import_module("torch")
            value = getattr(library, name)
            self.__dict__[name] = value  # found at once the next time
            return value

    class _Any(type):
        """What tensors are instances of, whichever library made them."""

        def __instancecheck__(cls, value: Any) -> bool:
            real = sys.modules.get("torch")
            return isinstance(value, numpy_tensors.Tensor) or (
                real is not None and isinstance(value, real.Tensor)
            )

    class Tensor(metaclass=_Any):
        """A tensor, in the words of annotations."""

    torch = _Library()

_chosen = False


def use_numpy() -> bool:
    """Do without PyTorch in this process, and without compiled code where there is another way.

    Returns whether that is so: a process that has PyTorch already goes on with it.
    """
    global _chosen
    if "torch" not in sys.modules:
        _chosen = True
        jit.stay_small()
    return _chosen


def is_tensor(hint: Any) -> bool:
    """Whether an annotation says that something is a tensor, in our words or in PyTorch's."""
    real = sys.modules.get("torch")
    return hint is Tensor or (real is not None and hint is real.Tensor)


def numpy_alone() -> bool:
    """Whether this process does without PyTorch."""
    return _chosen
