"""The page about a method of one's own: its code runs, and is the code of the tests."""

from pathlib import Path

import pytest

from abps import simulate
from abps.data.table import load

ROOT = Path(__file__).resolve().parents[2]


def blocks() -> list[str]:
    text = (ROOT / "docs" / "own-method.md").read_text(encoding="utf-8")
    return [part.partition("```")[0] for part in text.split("```python\n")[1:]]


def test_the_page_shows_the_method_that_is_tested() -> None:
    foreign = (ROOT / "tests" / "foreign" / "rotation.py").read_text(encoding="utf-8")
    assert blocks()[0].strip() in foreign


def test_every_block_runs(capsys: pytest.CaptureFixture[str]) -> None:
    space: dict = {"__name__": "page"}
    import sys
    import types

    sys.modules["page"] = module = types.ModuleType("page")
    module.__dict__.update(space)
    try:
        for block in blocks():
            exec(compile(block, "docs/own-method.md", "exec"), module.__dict__)
    finally:
        del sys.modules["page"]
    auroc, edge, partners = capsys.readouterr().out.split()
    assert 0 < float(auroc) < 1 and int(edge) > 0 and 0 < float(partners) <= 1
    run = simulate(load("icu-synthetic:centers=6,stays=600"), module.Near(), rounds=2)
    assert run.bytes.control == 0 and run.bytes.edge > 0
