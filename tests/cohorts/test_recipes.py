"""A cohort of one's own comes in by its name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from abps.cli.main import main
from abps.cohorts.recipes import RECIPES
from abps.core.errors import RequestError

OWN = """
from dataclasses import dataclass
import polars as pl
from abps.cohorts.recipes import CohortRecipe
from abps.cohorts.tidy import Cohort, Variable, Flow, in_order
from abps.data.roles import Roles

@dataclass(frozen=True)
class Options:
    rows: int = 40

def build(place, options, progress):
    n = options.rows
    table = pl.DataFrame({"stay": range(n), "died": [i % 4 == 0 for i in range(n)],
                          "ward": ["ab"[i % 2] for i in range(n)], "x": [float(i) for i in range(n)]})
    table = table.with_columns(pl.col("died").cast(pl.Int8))
    columns = [Variable("died", "label", "", "d"), Variable("ward", "context", "", "w"),
               Variable("stay", "identifier", "", "s"), Variable("x", "feature", "", "x")]
    return Cohort("own", "own/1", in_order(table, columns), Roles("died", "ward", drop=("stay",)),
                  Flow.start(table, "rows", patient=None).steps, tuple(columns), (), {})

WARD = CohortRecipe("ward", "a ward", Options(), build)
WRONG = 7
"""


def test_a_recipe_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_cohort_module.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "own.parquet"
    command = [
        "cohort",
        "other",
        "own_cohort_module:WARD",
        str(tmp_path),
        "--set",
        "rows=60",
        "--out",
        str(out),
    ]
    with pytest.raises(SystemExit) as stop:
        main([*command, "--json"])
    assert not stop.value.code
    summary = json.loads(capsys.readouterr().out)
    assert (summary["rows"], summary["positives"], summary["recipe"]) == (60, 15, "own/1")
    with pytest.raises(SystemExit) as stop:
        main([*command, "--set", "row=3"])
    assert stop.value.code == 2 and "did you mean 'rows'" in capsys.readouterr().err
    with pytest.raises(RequestError, match="is not a cohort"):
        RECIPES.find("own_cohort_module:WRONG")


def test_ours_and_unknown_names() -> None:
    assert RECIPES.names()[:6] == ("mimiciv", "eicu", "physionet2012", "meds", "omop", "heart")
    for name in RECIPES.builtin:
        assert RECIPES.find(name).name == name
    with pytest.raises(RequestError, match=r"no cohort 'eicuu' .did you mean 'eicu'"):
        RECIPES.find("eicuu")
