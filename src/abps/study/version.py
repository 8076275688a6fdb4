"""Which calculation made a result: the code that computes it and the libraries it computes with.

Stored runs are only used again if the same calculation would be done again. The digest is taken over
the simulator and everything that it imports, as syntax: comments, docstrings and layout do not count.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from pathlib import Path

import numpy as np
import polars as pl
import torch

import abps

#: Where the calculation starts; its imports are followed from here.
_ENTRY = "abps.simulator.simulate"


def calculation() -> dict[str, str]:
    """The digest of the code and the versions of the libraries that decide the numbers."""
    return {
        "code": _code_digest(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "polars": pl.__version__,
    }


@functools.cache
def _code_digest() -> str:
    root = Path(abps.__file__).parent
    trees: dict[str, ast.Module] = {}
    waiting = [_ENTRY]
    while waiting:
        name = waiting.pop()
        path = module_path(root, name)
        if name in trees or path is None:
            continue
        trees[name] = ast.parse(path.read_text(encoding="utf-8"))
        waiting += imports(trees[name])
    digest = hashlib.blake2b(digest_size=12)
    for name in sorted(trees):
        digest.update(f"{name}\n{ast.dump(without_docstrings(trees[name]))}\n".encode())
    return digest.hexdigest()


def module_path(root: Path, name: str) -> Path | None:
    """The file of a module of this package; None for what is not a module (a function, the root)."""
    inside = name.split(".")[1:]
    if not inside:
        return None
    for path in (root.joinpath(*inside).with_suffix(".py"), root.joinpath(*inside, "__init__.py")):
        if path.exists():
            return path
    return None


def imports(tree: ast.Module) -> list[str]:
    """Names in this package that a module imports, anywhere in it."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.startswith("abps.")]
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "abps":
            found += [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
    return found


def without_docstrings(tree: ast.Module) -> ast.Module:
    """The tree with docstrings taken out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:] or [ast.Pass()]
    return tree
