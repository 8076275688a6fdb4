"""Functions in machine code: compiled when first called, without the interpreter's lock, kept on disk.

The compiler is loaded with the first call, too: it takes more memory than a site's whole job without it.

What is kept lies in a folder named by a digest of all compiled sources of this package: numba itself notices
only that a function's own file has changed, not that a function it calls has.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parent

_making = threading.RLock()


class Compiled:
    """A function that is compiled when it is first called; compiled functions may call it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        self._made: Any = None

    def __call__(self, *given: Any) -> Any:
        """Its value, by machine code."""
        if self._made is not None:
            return self._made(*given)
        return self.made()(*given)

    def made(self) -> Any:
        """The compiler's own function."""
        with _making:
            if self._made is None:
                self._made = _compiler()(self.py_func)
            return self._made


def compiled(function: Callable[..., Any]) -> Compiled:
    """The same function, compiled. It takes numbers, arrays and plain tuples of them."""
    return Compiled(function)


@functools.cache
def _compiler() -> Callable[[Callable[..., Any]], Any]:
    """Load the compiler, and teach it what our functions are."""
    import numba  # here: see above
    from numba.extending import typeof_impl

    @typeof_impl.register(Compiled)
    def _(function: Compiled, context: Any) -> Any:
        return typeof_impl(function.made(), context)

    settings: Any = numba.config

    def compile(function: Callable[..., Any]) -> Any:
        kept = _kept(settings.CACHE_DIR)
        if kept is None:
            return numba.njit(nogil=True, error_model="numpy")(function)
        before, settings.CACHE_DIR = settings.CACHE_DIR, kept  # numba asks for it while it decorates
        try:
            return numba.njit(nogil=True, cache=True, error_model="numpy")(function)
        finally:
            settings.CACHE_DIR = before

    return compile


@functools.cache
def sources() -> str:
    """A digest of every file of this package that compiles something."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(_PACKAGE.rglob("*.py")):
        text = path.read_bytes()
        if b"abps.jit" in text:
            digest.update(path.name.encode() + b"\0" + text + b"\0")
    return digest.hexdigest()


@functools.cache
def _kept(chosen: str) -> str | None:
    """The folder for machine code: where numba is set to, beside this package, or in the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    for place in [Path(chosen)] if chosen else [_PACKAGE / "__pycache__", Path(home)]:
        folder = place / f"abps-{sources()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return str(folder)
        except OSError:
            continue
    return None
