"""Functions in machine code: compiled when first called, without the interpreter's lock, kept on disk.

What is kept is thrown away when its own file changes, and only then: after changing a compiled function that
another file calls, touch that file too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, compiled. It takes numbers, arrays and plain tuples of them."""
    try:
        return njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # nowhere to keep it: no folder may be written
        return njit(nogil=True, error_model="numpy")(function)
