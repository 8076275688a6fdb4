"""Names and sizes: no two classes have one name, and no function is too long."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import abps

PACKAGE = Path(abps.__file__).parent
TREES = {
    str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))
}

#: Every method may call its state State.
CONVENTIONAL = {"State"}

#: Lines of a function, and parameters of one outside the command line and compiled code.
LONGEST = 80
MOST_PARAMETERS = 10


def test_no_two_public_classes_have_one_name():
    found = defaultdict(list)
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path)
    twice = {name: paths for name, paths in found.items() if len(paths) > 1}
    assert {name: paths for name, paths in twice.items() if name not in CONVENTIONAL} == {}


def functions():
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


def test_no_function_is_too_long():
    lengths = {f"{path}:{f.name}": f.end_lineno - f.lineno + 1 for path, f in functions()}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST} == {}


def test_no_function_has_too_many_parameters():
    found = {}
    for path, f in functions():
        given = [a.arg for a in (*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs)]
        count = len([name for name in given if name not in ("self", "cls")])
        if count > MOST_PARAMETERS and not path.startswith(("cli/", "models/network.py")):
            found[f"{path}:{f.name}"] = count
    assert found == {}
