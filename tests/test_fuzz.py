"""Broken inputs: a short campaign over every target, and every case that was once not refused clearly."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_spec = importlib.util.spec_from_file_location("fuzz", ROOT / "tools" / "fuzz.py")
fuzz = importlib.util.module_from_spec(_spec)
sys.modules["fuzz"] = fuzz  # its dataclasses look for the module that they are in
_spec.loader.exec_module(fuzz)

#: Cases of the short campaign by how dear they are; the long one is run by hand.
QUICK = {
    "ledgers": 20,
    "scales": 40,
    "sitefiles": 40,
    "results": 5,
    "studies": 5,
    "tables": 2,
    "records": 1,
    "eicu": 1,
    "mimic": 1,
    "omop": 2,
    "omopbytes": 1,
    "meds": 2,
    "medsbytes": 4,
    "maps": 4,
    "heart": 60,
}

KEPT = sorted(path for path in (ROOT / "tests" / "fuzz_cases").rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    return {target.name: target for target in fuzz.targets(tmp_path_factory.mktemp("fuzz"))}


def test_whatever_comes_in_is_read_or_refused(targets):
    for name, target in targets.items():
        for seed in target.seeds:
            assert fuzz.tried(target, seed) == "", name  # what is valid passes, or is refused in words
        wrong = fuzz.campaign(target, QUICK.get(name, 150), seed=2)
        assert not wrong, f"{name}: {wrong[0][1]}"


@pytest.mark.parametrize("path", KEPT, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_cases_that_were_found_stay_mended(targets, path):
    assert fuzz.tried(targets[path.parent.name], path.read_bytes()) == ""


def test_a_target_that_breaks_is_found():
    def breaks(data: bytes) -> None:
        if len(data) < 3:
            raise IndexError("too short")

    target = fuzz.Target("breaks", (b"abcdef",), breaks, (ValueError,))
    assert any("too short" in why for _, why in fuzz.campaign(target, 300, seed=1))
