"""Functions in machine code: compiled when first called, without the interpreter's lock, kept on disk.

What is kept lies in a folder named by a digest of all compiled sources of this package: numba itself notices
only that a function's own file has changed, not that a function it calls has.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

#: numba's settings, made when it is imported.
_SETTINGS: Any = numba.config

_PACKAGE = Path(__file__).parent


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, compiled. It takes numbers, arrays and plain tuples of them."""
    kept = _kept(_SETTINGS.CACHE_DIR)
    if kept is None:
        return numba.njit(nogil=True, error_model="numpy")(function)
    before, _SETTINGS.CACHE_DIR = _SETTINGS.CACHE_DIR, kept  # numba asks for it while it decorates
    try:
        return numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    finally:
        _SETTINGS.CACHE_DIR = before


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
    """The folder for machine code: where numba is told to, beside this package, or in the user's cache."""
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
