"""Every public name has an example on the page of the API, and the examples are true and typed."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

import abps

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "api.md"

USER = '''
import numpy as np
import polars as pl
from numpy.typing import NDArray

import abps


def probabilities(table: pl.DataFrame, hospital: NDArray[np.str_]) -> NDArray[np.float64]:
    """What a user writes."""
    classifier = abps.ABPSClassifier(model="linear").fit(table, table["died"], groups=hospital)
    return classifier.predict_proba(table, groups=hospital)


def report(file: str) -> list[str]:
    federation: abps.Federation = abps.federation(file, label="died", center="hospital")
    warnings: tuple[str, ...] = abps.check(file, "died", "hospital").warnings
    run: abps.Run = abps.simulate(federation, "fedavg", seed=3, callback=lambda r: r.round > 2)
    study: abps.Study = abps.compare(federation, ["fedavg", abps.find("abps-plus")], seeds=[1], model="gam")
    frame: pl.DataFrame = study.frame()
    effects: pl.DataFrame = abps.regress(frame, "died", "hospital", "age").frame()
    abps.fit(federation).models[0].predict_proba(frame)
    abps.load_run("x").save("y")
    return [*warnings, run.measure, str(effects.height), str(len(abps.load_study("x").runs))]
'''

WRONG = """
import abps

run: int = abps.simulate(abps.load("icu-synthetic"), "fedavg")
abps.federation("x.csv", label="died", center="hospital").sizes
abps.compare(abps.load("icu-synthetic"), ["fedavg"], fold=3)
"""


def test_every_name_has_a_section_with_an_example_that_uses_it():
    text = PAGE.read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### `abps\.(\w+)`\n(.*?)(?=^##|\Z)", text, re.M | re.S))
    assert set(sections) == set(abps.__all__)
    for name, section in sections.items():
        examples = doctest.DocTestParser().get_examples(section)
        used = rf"\babps\.{name}\b"
        assert any(re.search(used, example.source) for example in examples), f"no example of abps.{name}"
        place = getattr(getattr(abps, name), "__module__", None)
        if name != "CATALOG":  # a table of names has no text of its own
            assert f"::: {place}.{name}\n" in section, f"abps.{name} lies in {place}"


def test_the_examples_are_true(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted > 40 and not found.failed


@pytest.mark.slow
def test_a_users_script_passes_a_strict_type_checker(tmp_path, monkeypatch):
    """One call for a right script and a wrong one: reading the libraries takes most of the time."""
    pytest.importorskip("mypy")
    monkeypatch.setenv("MYPYPATH", "")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    for name, text in (("user.py", USER), ("wrong.py", WRONG)):
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--config-file", ""]
    done = subprocess.run([*command, "user.py", "wrong.py"], cwd=tmp_path, capture_output=True, text=True)
    *lines, last = done.stdout.splitlines()
    assert all(line.startswith("wrong.py:") for line in lines), done.stdout
    assert "in 1 file (checked 2 source files)" in last, done.stdout + done.stderr
    wrong = "\n".join(lines)
    assert 'has type "Run"' in wrong and 'no attribute "sizes"' in wrong and '"fold"' in wrong
