"""Which calculation made a result: the code that computes it and the libraries it computes with.

Stored runs are only used again if the same calculation would be done again. The digest is taken over the
simulator, the modules of the method and of its parts, and everything that these import in their own packages,
as syntax: comments, docstrings and layout do not count. The catalog does not count either: it gives names to
configurations, and a configuration is part of a run's identity by itself.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import inspect
import sys
import uuid
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

#: Where the calculation starts; its imports are followed from here.
ENTRY: Final = "abps.engine.simulate"

#: Modules that decide which calculation is done, not how.
NOT_FOLLOWED: Final = frozenset({"abps", "abps.methods.catalog", "abps.registry", "abps.release"})

#: Doors through which parts of a method come in.
PARTS: Final = ("abps.codecs", "abps.goals", "abps.models")

#: The libraries that decide the numbers.
LIBRARIES: Final = ("torch", "numpy", "scipy", "numba", "polars")


def calculation(config: Any, how: Sequence[str] = ()) -> dict[str, str]:
    """A digest of the code that runs a configuration, and the versions of the libraries it computes with.

    how: modules besides, where a run is more than one simulation.
    """
    libraries = {name: version(name) for name in LIBRARIES}
    return {"code": code_digest(frozenset({ENTRY, *how, *modules_of(config)}))} | libraries


def modules_of(config: Any) -> Iterator[str]:
    """Names of the modules in which a configuration, its parts, and what it names are defined."""
    if isinstance(config, str):
        place = config if ":" in config else _entry_places().get(config, "")
        if _source(place.partition(":")[0]) is not None:
            yield place.partition(":")[0]
    elif isinstance(config, tuple | list):
        for value in config:
            yield from modules_of(value)
    elif dataclasses.is_dataclass(config) and not isinstance(config, type):
        for kind in type(config).__mro__[:-1]:
            yield kind.__module__
        for field in dataclasses.fields(config):
            yield from modules_of(getattr(config, field.name))
    elif callable(config):
        yield getattr(config, "__module__", None) or type(config).__module__


@functools.cache
def _entry_places() -> dict[str, str]:
    """Where names lead that installed packages add to ours: name -> package.module:NAME."""
    return {point.name: point.value for group in PARTS for point in entry_points(group=group)}


@functools.cache
def code_digest(modules: frozenset[str]) -> str:
    """A digest of some modules and of everything that they import in their own packages."""
    digest = hashlib.blake2b(digest_size=12)
    for name, code in sorted(followed(modules).items()):
        digest.update(f"{name}\n{code}\n".encode())
    return digest.hexdigest()


def followed(modules: frozenset[str]) -> dict[str, str]:
    """The modules that some modules consist of, themselves included, each as syntax."""
    found: dict[str, str] = {}
    waiting = sorted(modules)
    while waiting:
        name = waiting.pop()
        if name in found or name in NOT_FOLLOWED:
            continue
        code, imports = _module(name)
        if code:
            found[name] = code
            waiting += imports
    return found


@functools.cache
def _module(name: str) -> tuple[str, tuple[str, ...]]:
    """A module as syntax, and what it imports of its neighbours; empty for what is not written in Python."""
    path = _source(name)
    if path is None:
        shown = sys.modules.get(name)
        return (_typed_in(shown), ()) if name == "__main__" else ("", ())
    tree = ast.parse(path.read_text(encoding="utf-8"))
    near = [other for other in imports(tree, name, path.name == "__init__.py") if _neighbours(name, other)]
    return ast.dump(without_docstrings(tree)), tuple(near)


def _typed_in(session: Any) -> str:
    """The classes of a session without a file (a notebook); what cannot be read is never the same again."""
    own = [
        kind for kind in vars(session).values() if isinstance(kind, type) and kind.__module__ == "__main__"
    ]
    try:
        return "\n".join(sorted(inspect.getsource(kind) for kind in own))
    except (OSError, TypeError):
        return uuid.uuid4().hex


@functools.cache
def _source(name: str) -> Path | None:
    """The file of a module; None for what is not a module (a function, say), or not written in Python."""
    if name == "__main__":
        file = getattr(sys.modules[name], "__file__", None)
        return Path(file) if file else None
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # its parent is a module and no package
        return None
    found = spec is not None and spec.origin is not None and spec.origin.endswith(".py")
    return Path(spec.origin) if found else None  # type: ignore[union-attr, arg-type]


def _neighbours(name: str, other: str) -> bool:
    """Whether a module belongs to the code of another: the same package, or loose files in one folder."""
    mine, its = name.partition(".")[0], other.partition(".")[0]
    if its in (mine, "abps") or mine == "abps":
        return its in (mine, "abps")
    here, there = _source(mine), _source(its)
    loose = here is not None and there is not None and "site-packages" not in there.parts
    return loose and _folder(here) == _folder(there)  # type: ignore[arg-type]


def _folder(path: Path) -> Path:
    """The folder from which a module is imported."""
    return path.parent.parent if path.name == "__init__.py" else path.parent


def imports(tree: ast.Module, name: str = "", package: bool = False) -> list[str]:
    """Names that a module imports, anywhere in it, as they are called from outside."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = name.split(".")[: len(name.split(".")) - node.level + package] if node.level else []
            start = ".".join([*above, *([node.module] if node.module else [])])
            found += [start, *(f"{start}.{alias.name}" for alias in node.names)]
    return found


def without_docstrings(tree: ast.Module) -> ast.Module:
    """The tree with docstrings taken out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:] or [ast.Pass()]
    return tree
