"""Results stay what they are: every golden run gives what ``golden.json`` holds.

Decisions, partners and bytes are compared exactly, scores and weights up to rounding. With
ABPS_GOLDEN_EXACT=1 every bit of the weights is compared too: for changes on one machine that should change
nothing. :mod:`golden.runs` says how to freeze anew.
"""

from __future__ import annotations

import os

import pytest

from golden.runs import golden_runs, stored

RUNS = golden_runs()
STORED = stored()
EXACT = os.environ.get("ABPS_GOLDEN_EXACT") == "1"

#: Where numbers may round otherwise on another processor.
SCORES = {"auroc", "score", "brier", "validation", "rest", "partners mean"}


def test_all_are_frozen():
    assert set(RUNS) == set(STORED)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_gives_what_it_gave(name):
    found, expected = RUNS[name](), STORED[name]
    assert set(found) == set(expected)
    for part in sorted(set(expected) - {"weights"}):
        if part in SCORES:
            assert found[part] == pytest.approx(expected[part], rel=0, abs=1e-6), part
        else:
            assert found[part] == expected[part], part
    if "weights" not in expected:
        return
    got, kept = found["weights"], expected["weights"]
    assert got["shape"] == kept["shape"]
    for part in ("sum", "squares", "first"):
        assert got[part] == pytest.approx(kept[part], rel=1e-5, abs=1e-7), part
    if EXACT:
        assert got["sha256"] == kept["sha256"]
