"""The cores of this machine, and functions in its code: compiled when first called, without the interpreter's
lock, kept on disk. The compiler, too, is loaded with the first call: it takes more memory than a site's whole
job. Numba keeps machine code until the function's own file changes, so a compiled function calls compiled
functions of its own file only."""

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

_making = threading.RLock()


def available_cores() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


class compiled:
    """A function of numbers, arrays and plain tuples of them, compiled when it is first called; compiled
    functions may call it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        self._made: Any = None

    def __call__(self, *given: Any) -> Any:
        if self._made is not None:
            return self._made(*given)
        return self.made()(*given)

    def made(self) -> Any:
        with _making:
            if self._made is None:
                self._made = _compiler()(self.py_func)
            return self._made


@functools.cache
def _compiler() -> Callable[[Callable[..., Any]], Any]:
    """Load the compiler, and teach it what our functions are."""
    import numba  # here: see above
    from numba.extending import typeof_impl

    @typeof_impl.register(compiled)
    def _(function: compiled, context: Any) -> Any:
        return typeof_impl(function.made(), context)

    def compile(function: Callable[..., Any]) -> Any:
        settings: Any = {"nogil": True, "error_model": "numpy"}
        try:
            return numba.njit(cache=True, **settings)(function)
        except RuntimeError:  # no folder to keep it in
            return numba.njit(**settings)(function)

    return compile
