"""Own tables: what people really have, and what they get wrong."""

import datetime

import numpy as np
import polars as pl
import pytest

from abps.core.errors import RequestError
from abps.data.outcome import binary_label
from abps.data.prepare import prepare
from abps.data.roles import Roles
from abps.data.split import assign_splits, quotas
from abps.data.table import federate, load, read_table


def messy(rows: int = 400) -> pl.DataFrame:
    """Mixed types, dates, gaps, unicode, a constant column, an identifier, a center with one row."""
    rng = np.random.default_rng(0)
    hospital = rng.choice(["Žilina/East", "St. Mary's, 2nd", "München"], rows)
    hospital[0] = "tiny"
    risk = rng.standard_normal(rows)
    return pl.DataFrame(
        {
            "stay": [f"id-{k}" for k in range(rows)],
            "hospital": hospital,
            "died": np.where(risk + rng.standard_normal(rows) > 1, "Yes", "no"),
            "age": np.where(rng.random(rows) < 0.1, np.nan, 60 + 10 * risk),
            "größe": rng.integers(150, 200, rows),
            "ward": rng.choice(["A", "B", None, "Ω"], rows),
            "number as text": [None if k % 7 == 0 else str(k % 13) for k in range(rows)],
            "admitted": [
                datetime.date(2020, 1, 1) + datetime.timedelta(days=int(k))
                for k in rng.integers(0, 900, rows)
            ],
            "version": ["v1"] * rows,
            "empty": [None] * rows,
            "ventilated": rng.random(rows) < 0.3,
            "patient": rng.integers(0, 150, rows),
        }
    )


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_messy_table_becomes_a_federation(tmp_path, suffix):
    path = tmp_path / f"Aufenthälte{suffix}"
    messy().write_csv(path) if suffix == ".csv" else messy().write_parquet(path)
    fed = read_table(path, label="died", center="hospital", patient="patient", time="admitted")
    assert fed.centers == ("München", "St. Mary's, 2nd", "Žilina/East")
    assert [(o.center, o.rows) for o in fed.left_out] == [("tiny", 1)]
    assert set(fed.features.columns) == {"age", "größe", "ward", "number as text", "ventilated"}
    assert fed.label.mean() == pytest.approx((messy()["died"] == "Yes").to_numpy()[1:].mean())
    assert 2020 <= fed.time.min() < fed.time.max() < 2023
    data = prepare(fed, 3)
    assert np.isfinite(data.train.x).all()
    assert "age missing" in data.columns and "ward=Ω" in data.columns and "ward missing" in data.columns


def test_no_patient_is_in_two_splits():
    fed = federate(messy(), Roles("died", "hospital", patient="patient"), "messy")
    split = assign_splits(fed, 5)
    for c in range(fed.size):
        for p in np.unique(fed.patient[fed.center == c]):
            assert len(set(split[(fed.center == c) & (fed.patient == p)])) == 1


def test_splits_are_stratified_and_depend_on_the_seed_only():
    fed = federate(messy(), Roles("died", "hospital"), "messy")
    split = assign_splits(fed, 5)
    assert (split == assign_splits(fed, 5)).all() and (split != assign_splits(fed, 6)).any()
    for c in range(fed.size):
        for y in (0, 1):
            mine = split[(fed.center == c) & (fed.label == y)]
            assert tuple(np.bincount(mine, minlength=3)) == quotas(len(mine))


def test_the_order_of_centers_in_the_file_does_not_matter_to_a_center():
    frame = messy()
    a = federate(frame, Roles("died", "hospital"), "a")
    b = federate(frame.sort("hospital", maintain_order=True), Roles("died", "hospital"), "b")
    left, right = prepare(a, 7), prepare(b, 7)
    assert left.centers == right.centers and left.columns == right.columns
    np.testing.assert_array_equal(left.train.x, right.train.x)
    np.testing.assert_array_equal(left.test.y, right.test.y)


def test_nothing_is_fitted_outside_a_centers_training_rows():
    # Patients are named: rows that are known by their content alone would be split anew when it is spoiled.
    frame = messy().with_columns(pl.col("age").fill_nan(None)).with_row_index("key")
    roles = Roles("died", "hospital", patient="key")
    fed = federate(frame, roles, "messy")
    split = assign_splits(fed, 5)
    before = prepare(fed, 5)
    # Spoil everything outside the training rows of every center; the training rows must not notice.
    position = np.flatnonzero(np.isin(frame["hospital"].to_numpy(), fed.centers))
    outside = np.zeros(frame.height, dtype=bool)
    outside[position[split != 0]] = True
    spoiled = frame.with_columns(
        pl.when(pl.Series(outside)).then(1e6).otherwise(pl.col("age")).alias("age"),
        pl.when(pl.Series(outside)).then(pl.lit("never seen")).otherwise(pl.col("ward")).alias("ward"),
        pl.when(pl.Series(outside)).then(None).otherwise(pl.col("größe")).alias("größe"),
    )
    after = prepare(federate(spoiled, roles, "messy"), 5)
    assert after.columns == before.columns
    np.testing.assert_array_equal(after.train.x, before.train.x)
    np.testing.assert_array_equal(after.metadata, before.metadata)
    # And one center's training rows must not touch another's.
    other = frame.with_columns(
        pl.when(pl.col("hospital") == "München").then(pl.col("age") * 3).otherwise(pl.col("age")).alias("age")
    )
    elsewhere = prepare(federate(other, roles, "messy"), 5)
    k = before.centers.index("Žilina/East")
    np.testing.assert_array_equal(elsewhere.only(k).train.x, before.only(k).train.x)


def test_numbers_are_standardised_by_each_center():
    data = prepare(federate(messy(), Roles("died", "hospital"), "messy"), 5)
    column = data.columns.index("größe")
    for i in range(data.size):
        mine = data.only(i).train.x[:, column]
        assert abs(mine.mean()) < 1e-5 and abs(mine.std() - 1) < 1e-4


@pytest.mark.parametrize(
    ("values", "positives"),
    [
        (["yes", "no", "yes"], [1, 0, 1]),
        ([1, 0, 0], [1, 0, 0]),
        ([2, 1, 2], [1, 0, 1]),
        ([True, False, True], [1, 0, 1]),
        (["dead", "alive", "dead"], [1, 0, 1]),
        (["b", "a", "b"], [1, 0, 1]),
        ([" Y ", "n", "Y"], [1, 0, 1]),
        ([10.0, 9.0, 10.0], [1, 0, 1]),
    ],
)
def test_labels_of_two_values(values, positives):
    assert binary_label(pl.Series("y", values)).values.tolist() == positives


def csv(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    return path


GOOD = "y,h,x\n" + "".join(f"{k % 2},{'ab'[k // 40]},{k}\n" for k in range(80))


@pytest.mark.parametrize(
    ("text", "arguments", "says"),
    [
        ("", {}, "is empty"),
        ("y,h,x\n", {}, "no rows"),
        ("y,y,x\n1,a,2\n", {}, "'y' occurs 2 times"),
        (GOOD, {"label": "z"}, "no column 'z' for label"),
        (GOOD, {"center": "hh"}, "did you mean 'h'"),
        (GOOD.replace("0,a,0", "2,a,0"), {}, "has 3 value"),
        (GOOD.replace("0,a,0", ",a,0"), {}, "missing in 1 row.*line 2"),
        (GOOD.replace("0,a,0", "0,,0"), {}, "the center 'h' is missing in 1 row"),
        (GOOD.replace("0,a,0", '0,"a\nb",0'), {}, "line break"),
        (GOOD.replace("1,", "0,"), {}, "has 1 value"),
        (GOOD, {"min_stays": 41}, "0 of 2 centers.*lower min_stays=N"),
        (GOOD, {"min_stays": 0}, "min_stays=0"),
        (GOOD, {"drop": ("x",)}, "no column is left"),
        (GOOD, {"drop": ("q",)}, "no column 'q' for drop"),
        (GOOD, {"group": "x"}, "in one group"),
    ],
)
def test_what_people_get_wrong_is_said_in_one_sentence(tmp_path, text, arguments, says):
    options = {"label": "y", "center": "h", "min_stays": 40} | arguments
    with pytest.raises(RequestError, match=says) as raised:
        read_table(csv(tmp_path, text), **options)
    assert "\n" not in str(raised.value)


def test_files_that_are_none(tmp_path):
    with pytest.raises(RequestError, match="no such file"):
        read_table(tmp_path / "none.csv", "y", "h")
    with pytest.raises(RequestError, match="is a folder"):
        read_table(tmp_path, "y", "h")
    (tmp_path / "bad.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(RequestError, match="cannot be read as a table"):
        read_table(tmp_path / "bad.parquet", "y", "h")
    (tmp_path / "zeros.csv").write_bytes(b"y,h,x\n1,a,2\n" + bytes(100))
    with pytest.raises(RequestError, match="zero bytes"):
        read_table(tmp_path / "zeros.csv", "y", "h")
    with pytest.raises(RequestError, match="did you mean 'icu-synthetic'"):
        load("icu-syntetic")


def test_an_all_missing_column_and_a_slash_in_a_name_are_no_trouble(tmp_path):
    text = "y,h,x,gone\n" + "".join(f"{k % 2},{'a/b' if k < 40 else 'c'},{k},\n" for k in range(80))
    fed = read_table(csv(tmp_path, text), "y", "h", min_stays=10)
    assert fed.centers == ("a/b", "c") and fed.features.columns == ["x"]
