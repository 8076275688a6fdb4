"""Table 1 against polars on pooled rows; small cells never show."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abps.core.errors import RequestError
from abps.statistics.table_one import table_one


def frame(seed=0, n=400):
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "hospital": rng.choice(["a", "b", "c"], n, p=[0.5, 0.45, 0.05]),
            "age": rng.normal(60, 10, n).round(1),
            "sex": rng.choice(["f", "m"], n),
            "died": rng.integers(0, 2, n),
        }
    ).with_columns(age=pl.when(pl.int_range(n) % 9 == 0).then(None).otherwise(pl.col("age")))


def test_overall_figures_are_those_of_the_pooled_rows():
    table = frame()
    lines = {(line.column, line.level): line for line in table_one(table, "hospital").lines}
    mean, sd = table["age"].mean(), table["age"].std()
    assert lines["age", "mean (SD)"].overall == f"{mean:.4g} ({sd:.4g})"
    median = float(lines["age", "median [IQR]"].overall.split(" ")[0])
    assert median == pytest.approx(table["age"].median(), abs=0.3)
    count = int((table["sex"] == "f").sum())
    assert lines["sex", "f"].overall.startswith(f"{count} (")
    assert lines["age", "missing"].overall.startswith(f"{table['age'].null_count()} (")


def test_the_standardised_difference_is_its_definition():
    table = frame()
    line = next(one for one in table_one(table, "hospital", ["age"], 5).lines if one.level == "mean (SD)")
    found = []
    for name in ("a", "b", "c"):
        own = table.filter(pl.col("hospital") == name)["age"].drop_nulls().to_numpy()
        rest = table.filter(pl.col("hospital") != name)["age"].drop_nulls().to_numpy()
        found.append(abs(own.mean() - rest.mean()) / np.sqrt((own.var() + rest.var()) / 2))
    assert line.difference == pytest.approx(max(found), rel=1e-9)


@given(st.integers(0, 10_000), st.integers(2, 12))
def test_no_cell_of_few_patients_shows(seed, least):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(20, 80))
    table = pl.DataFrame(
        {"h": rng.choice(["x", "y", "z"], n), "sex": rng.choice(["f", "m"], n, p=[0.1, 0.9])}
    )
    found = table_one(table, "h", min_cell=least)
    for line in found.lines:
        for cell in (line.overall, *line.hospitals):
            if "(" in cell:
                assert int(cell.split(" ")[0].replace(",", "")) >= least or cell.startswith("0 ")


def test_bad_requests():
    with pytest.raises(RequestError, match="no column 'clinic'"):
        table_one(frame(), "clinic")
    with pytest.raises(RequestError, match="no column 'agee'"):
        table_one(frame(), "hospital", ["agee"])


@given(st.integers(0, 10_000))
def test_no_suppressed_cell_follows_from_the_others(seed):
    """The attack: an overall figure less other hospitals' cells, or a hospital's rows less its levels."""
    rng = np.random.default_rng(seed)
    n, least = 240, 10
    share = rng.dirichlet(np.full(4, 0.6))
    table = pl.DataFrame(
        {
            "h": rng.choice(["w", "x", "y", "z"], n, p=rng.dirichlet(np.full(4, 2.0))),
            "race": rng.choice(list("abcd"), n, p=share),
        }
    )
    found = table_one(table, "h", min_cell=least)
    cells = np.array([["<" in cell for cell in line.hospitals] for line in found.lines])
    counts = np.array(
        [
            [((table["h"] == h) & (table["race"] == line.level)).sum() for h in found.centers]
            for line in found.lines
        ]
    )
    for hidden, values in (*zip(cells, counts), *zip(cells.T, counts.T)):
        if hidden.sum() == 1:
            assert (
                values[~hidden].sum() == 0
            )  # then nothing but this cell is there, and its total is suppressed
