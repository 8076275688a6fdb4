"""Partitions: who is in which center, and which cells are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abps.cohorts import eicu, partition
from abps.cohorts.partition import CellRule, Recipe, divide, parse_only, random_parts
from abps.core.errors import RequestError

KEEP = CellRule(small="keep")


def table(rows: int = 6_000, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    unit = rng.choice(["CVICU", "CCU", "MICU", "MICU/SICU", "SICU", "TSICU"], rows)
    return pl.DataFrame(
        {
            "died": (rng.uniform(size=rows) < 0.12).astype(np.int8),
            "careunit": unit,
            "era": rng.choice(["2008 - 2010", "2011 - 2013", None], rows),
            "patient": rng.integers(0, rows // 2, rows),
            "admission_year": rng.uniform(2110, 2120, rows),
            "age": rng.normal(65, 15, rows),
        }
    )


def test_careunit_by_two_year_window() -> None:
    source = table()
    made = divide(
        source, Recipe(by=("careunit", "window:2y")), KEEP, time="admission_year", patient="patient"
    )
    expected = [
        f"{unit}/{int(year // 2 * 2)}"
        for unit, year in source.select("careunit", "admission_year").iter_rows()
    ]
    assert made.table["center"].to_list() == expected
    assert made.table["group"].to_list() == source["careunit"].to_list()
    assert made.centers == 6 * 5 and made.table.height == source.height
    of = {}
    for patient, center in made.table.select("patient", "center").iter_rows():
        of.setdefault(patient, set()).add(center)
    assert made.shared_patients == sum(len(c) > 1 for c in of.values())


def test_windows_do_not_move_when_rows_are_added() -> None:
    source = table()
    late = source.filter(pl.col("admission_year") > 2113.5)
    recipe = Recipe(by=("window:2y",))
    few = divide(late, recipe, KEEP, time="admission_year").table["center"].unique().sort().to_list()
    assert few == ["2112", "2114", "2116", "2118"]


def test_the_papers_246_cells_and_the_rule_that_leaves_230() -> None:
    """Six units by 41 windows; 16 cells are made too small, and exactly those are left out."""
    rng = np.random.default_rng(1)
    parts = []
    cells = [
        (u, y) for u in ("CVICU", "CCU", "MICU", "MICU/SICU", "SICU", "TSICU") for y in range(2110, 2192, 2)
    ]
    assert len(cells) == 246
    small = set(rng.choice(246, 16, replace=False).tolist())
    for i, (unit, year) in enumerate(cells):
        size = 49 if i in small else 60
        parts.append(
            pl.DataFrame(
                {
                    "died": [1] * 5 + [0] * (size - 5),
                    "careunit": [unit] * size,
                    "admission_year": rng.uniform(year, year + 2, size),
                }
            )
        )
    made = divide(pl.concat(parts), Recipe(by=("careunit", "window:2y")), time="admission_year")
    assert made.centers == 230
    assert {cell.center for cell in made.dropped} == {
        f"{u}/{y}" for i, (u, y) in enumerate(cells) if i in small
    }
    assert all(cell.reason == "fewer than 50 stays (49)" for cell in made.dropped)
    assert made.summary()["rows_left_out"] == 16 * 49


def test_missing_values_are_a_cell_of_their_own() -> None:
    made = divide(table(), Recipe(by=("careunit", "era")), KEEP)
    assert made.centers == 6 * 3 and "SICU/unknown" in made.table["center"].to_list()


def test_rule_by_outcome() -> None:
    source = pl.DataFrame(
        {"died": [0] * 60 + [1] * 60 + [1] * 30 + [0] * 30, "h": ["a"] * 60 + ["b"] * 60 + ["c"] * 60}
    )
    made = divide(source, Recipe(by=("h",)))
    assert [(c.center, c.reason) for c in made.dropped] == [
        ("a", "fewer than 3 positive stays (0)"),
        ("b", "fewer than 3 negative stays (0)"),
    ]
    assert made.table["center"].unique().to_list() == ["c"] and "group" not in made.table.columns
    with pytest.raises(RequestError, match=r"none of 3 cells is large enough"):
        divide(source, Recipe(by=("h",)), CellRule(min_stays=61))


@given(
    st.integers(1, 400), st.floats(0, 1), st.integers(1, 12),
    st.one_of(st.none(), st.floats(0.05, 50)), st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_random_parts(units: int, rate: float, parts: int, alpha: float | None, seed: int) -> None:
    positive = np.random.default_rng(seed).uniform(size=units) < rate
    part = random_parts(positive, parts, alpha, np.random.default_rng(seed + 1))
    assert part.shape == (units,) and part.min() >= 0 and part.max() < parts
    if alpha is None:
        counts = np.bincount(part, minlength=parts)
        assert counts.max() - counts.min() <= 1


def test_dirichlet_follows_its_shares() -> None:
    """With the shares replayed from the same stream, every class divides as they say (to rounding)."""
    positive = np.arange(5_000) % 4 == 0
    part = random_parts(positive, 6, 0.7, np.random.default_rng(9))
    rng = np.random.default_rng(9)
    for value in (False, True):
        members = np.flatnonzero(positive == value)
        rng.permutation(members)
        shares = rng.dirichlet(np.full(6, 0.7))
        counts = np.bincount(part[members], minlength=6)
        assert np.abs(counts - shares * len(members)).max() <= 1


def test_alpha_sets_the_skew() -> None:
    source = table(20_000)
    spreads = []
    for alpha in (0.3, 3.0, 300.0):
        made = divide(source, Recipe(dirichlet=alpha, centers=20), KEEP)
        rates = made.table.group_by("center").agg(pl.col("died").mean())["died"]
        spreads.append(float(rates.std()))  # type: ignore[arg-type]
    assert spreads[0] > 2 * spreads[1] > 4 * spreads[2]


def test_dirichlet_inside_cells_draws_until_every_center_is_large_enough() -> None:
    recipe = Recipe(by=("careunit",), dirichlet=1.0, centers=40)
    made = divide(table(24_000), recipe, CellRule(small="redraw"))
    assert made.centers == 40 and not made.dropped
    per_unit = Counter(name.rsplit("/", 1)[0] for name in made.table["center"].unique())
    assert sorted(per_unit.values()) == [6, 6, 7, 7, 7, 7]
    sizes = made.table.group_by("center").agg(pl.len(), pl.col("died").sum())
    assert sizes["len"].min() >= 50 and sizes["died"].min() >= 3  # type: ignore[operator]
    assert (made.table["group"] == made.table["careunit"]).all()
    with pytest.raises(RequestError, match=r"in 2000 draws no division of .* use a larger dirichlet"):
        divide(table(1_000), recipe, CellRule(small="redraw"))


def test_same_seed_same_centers_other_seed_others() -> None:
    source = table()
    one, same, other = (
        divide(source, Recipe(dirichlet=0.5, centers=8, seed=s), KEEP).table["center"] for s in (1, 1, 2)
    )
    assert one.equals(same) and not one.equals(other)


@pytest.mark.parametrize("recipe", [Recipe(dirichlet=0.5, centers=9), Recipe(iid=True, centers=9)])
def test_stays_of_a_patient_stay_together(recipe: Recipe) -> None:
    made = divide(table(), recipe, KEEP, patient="patient")
    assert made.shared_patients == 0
    assert made.table.group_by("patient").agg(pl.col("center").n_unique())["center"].max() == 1
    apart = divide(table(), recipe, KEEP)
    assert apart.table.group_by("patient").agg(pl.col("center").n_unique())["center"].max() > 1  # type: ignore[operator]


def test_iid_centers_are_alike() -> None:
    made = divide(table(20_000), Recipe(iid=True, centers=20))
    sizes = made.table.group_by("center").len()["len"]
    assert made.centers == 20 and sizes.min() == sizes.max() == 1_000
    assert made.table["center"].unique().sort()[0] == "center-01"


def test_only() -> None:
    made = divide(table(), Recipe(by=("careunit",), only=(parse_only("careunit=CCU, MICU"),)))
    assert made.table["center"].unique().sort().to_list() == ["CCU", "MICU"]
    with pytest.raises(RequestError, match=r"no row has it .did you mean 'CVICU'"):
        divide(table(), Recipe(by=("careunit",), only=(parse_only("careunit=CVCU"),)))
    with pytest.raises(RequestError, match="is not COLUMN=VALUE"):
        parse_only("careunit")


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({}, "say how to divide"),
        ({"dirichlet": 0.0, "centers": 3}, "must be above 0"),
        ({"dirichlet": 0.5}, "needs centers"),
        ({"dirichlet": 0.5, "iid": True, "centers": 3}, "exclude each other"),
        ({"by": ("careunit",), "centers": 3}, "centers=N goes with"),
        ({"by": ("care_unit",)}, "no column 'care_unit' .did you mean 'careunit'"),
        ({"by": ("window:2",)}, "window:2y"),
        ({"by": ("window:0y",)}, "at least one year"),
        ({"by": ("age",)}, "different numbers are no groups"),
        ({"by": ("careunit",), "iid": True, "centers": 3}, "fewer than the 6 cells"),
    ],
)
def test_wrong_requests(recipe: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        divide(table(), Recipe(**recipe), time="admission_year")  # type: ignore[arg-type]


def test_wrong_columns() -> None:
    with pytest.raises(RequestError, match="name it with time=COL"):
        divide(table(), Recipe(by=("window:2y",)))
    with pytest.raises(RequestError, match="must be a number of years"):
        divide(table(), Recipe(by=("window:2y",)), time="careunit")
    with pytest.raises(RequestError, match="must be 0 or 1"):
        divide(table(), Recipe(by=("careunit",)), label="age")
    with pytest.raises(RequestError, match="redraw goes with"):
        divide(table(), Recipe(by=("careunit",)), CellRule(small="redraw"))
    with pytest.raises(RequestError, match=r"small=.*choose one of drop"):
        CellRule(small="pool")


def test_eicu_by_region_and_bed_size(data: Callable[[str], Path]) -> None:
    source = eicu.build(data("eicu-demo-2.0")).table
    made = divide(source, Recipe(by=("region", "beds")), patient="patient")
    cells = Counter((r or "unknown", b or "unknown") for r, b in source.select("region", "beds").iter_rows())
    deaths: Counter[tuple[str, str]] = Counter()
    for r, b, died in source.select("region", "beds", "died").iter_rows():
        deaths[r or "unknown", b or "unknown"] += died
    expected = {f"{r}/{b}" for (r, b), n in cells.items() if n >= 50 and deaths[r, b] >= 3}
    assert set(made.table["center"].unique()) == expected and len(expected) == 15


def test_descriptions_of_centers_and_features() -> None:
    source = pl.DataFrame(
        {
            "died": [1, 0, 0, 1],
            "h": ["a", "a", "b", None],
            "age": [50.0, None, 70.0, 90.0],
            "sick": [1, 0, 0, 0],
            "way": ["in", "in", None, "out"],
            "none": pl.Series([None] * 4, dtype=pl.Float64),
        }
    )
    a, b, unknown = partition.center_lines(source, "died", "h", ["age", "way"])
    assert (a.stays, a.positives, a.rate, a.missing) == (2, 1, 0.5, 0.25)
    assert (b.center, b.missing, unknown.center, unknown.missing) == ("b", 0.5, "unknown", 0.0)
    lines = {line.name: line for line in partition.feature_lines(source, ["age", "sick", "way", "none"])}
    assert lines["age"].missing == 0.25 and lines["age"].mean == 70.0 and lines["age"].sd == 20.0
    assert lines["sick"].summary == "25.0%" and lines["none"].kind == "empty"
    assert lines["way"].summary == "in 67%, out 33%"


def test_a_dirichlet_center_without_a_stay_is_named() -> None:
    source = table(300).drop("patient")
    for small in ("drop", "keep"):
        made = divide(source, Recipe(dirichlet=0.05, centers=20), CellRule(1, 0, 0, small))
        empty = [cell.center for cell in made.dropped if cell.reason == "no stay was drawn for it"]
        every = {f"center-{i + 1:02d}" for i in range(20)}
        assert empty and set(empty) == every - set(made.table["center"].unique())
        assert all(cell.rows == 0 for cell in made.dropped if cell.center in empty)


def test_rows_without_a_patient_are_drawn_one_by_one() -> None:
    source = table(2_000).with_columns(
        patient=pl.when(pl.int_range(pl.len()) % 2 == 0).then(None).otherwise(pl.col("patient"))
    )
    made = divide(source, Recipe(iid=True, centers=4), KEEP, patient="patient")
    unknown = made.table.filter(pl.col("patient").is_null())["center"].value_counts()
    assert unknown.height == 4 and unknown["count"].max() < 300  # not one unit in one center
    assert made.shared_patients == 0
    by_column = divide(source, Recipe(by=("careunit",)), KEEP, patient="patient")
    known = source.drop_nulls("patient").group_by("patient").agg(pl.col("careunit").n_unique())
    assert by_column.shared_patients == known.filter(pl.col("careunit") > 1).height


def test_labels_that_are_not_yes_or_no() -> None:
    days = table(600).with_columns(died=pl.col("age") / 10)
    with pytest.raises(RequestError, match="must be 0 or 1"):
        divide(days, Recipe(iid=True, centers=5))
