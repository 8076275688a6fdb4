"""Federations from data in memory: every container gives what a file with the same rows gives."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest

import abps
from abps.core.errors import RequestError


def frame(rows: int = 400) -> pl.DataFrame:
    rng = np.random.default_rng(1)
    age = np.round(rng.normal(60, 12, rows))
    return pl.DataFrame(
        {
            "hospital": np.array(["Nord", "Süd", "West", "Ost"])[np.arange(rows) % 4],
            "died": (rng.random(rows) < 1 / (1 + np.exp(-(age - 62) / 8))).astype(int),
            "age": age,
            "sex": rng.choice(["male", "female", None], rows),
            "lactate": [f"{v:.1f}" if k % 9 else "<0.5" for k, v in enumerate(rng.gamma(2, 1, rows))],
            "smoker": rng.random(rows) < 0.4,
        }
    )


class ArrowTable:
    """What PyArrow and others offer: a table by the Arrow stream interface, and nothing else."""

    def __init__(self, table: pl.DataFrame) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


CONTAINERS = {
    "polars": lambda f: f,
    "lazy": lambda f: f.lazy(),
    "pandas": lambda f: pd.DataFrame(f.to_dict(as_series=False)),
    "pandas with an index and NA": lambda f: (
        pd.DataFrame(f.to_dict(as_series=False), index=np.arange(f.height) + 7)
        .astype({"sex": "string", "age": "Int64"})
    ),
    "columns": lambda f: {name: f[name].to_list() for name in f.columns},
    "arrow": ArrowTable,
}  # fmt: skip


@pytest.fixture(scope="module")
def from_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("t") / "t.parquet"
    frame().write_parquet(path)
    return abps.read_table(path, "died", "hospital")


@pytest.mark.parametrize("kind", CONTAINERS)
def test_every_container_gives_what_the_file_gives(kind, from_file):
    made = abps.federation(CONTAINERS[kind](frame()), label="died", center="hospital")
    assert made.centers == from_file.centers
    np.testing.assert_array_equal(made.label, from_file.label)
    for name in ("age", "lactate", "smoker", "sex"):
        assert made.features[name].to_list() == from_file.features[name].to_list()
    assert [(r.column, r.rule, r.cells) for r in made.notes.repairs] == [("lactate", "limit", 45)]


def test_arrays_of_numbers(from_file):
    table = frame()
    x = table.select("age", pl.col("smoker").cast(float)).to_numpy()
    y, center = table["died"].to_numpy(), table["hospital"].to_numpy()
    made = abps.federation(x, y, center, feature_names=["age", "smoker"], patient=np.arange(400) // 2)
    np.testing.assert_array_equal(made.label, from_file.label)
    assert made.features["age"].to_list() == from_file.features["age"].to_list()
    assert made.features.columns == ["age", "smoker"] and len(set(made.patient.tolist())) == 200
    assert abps.federation(x, y, center).features.columns == ["x1", "x2"]
    run = abps.simulate(made, "fedavg", seed=1, rounds=2)
    assert 0.5 < run.auroc.mean < 1


@pytest.mark.parametrize("kind", ["polars", "pandas"])
def test_one_table_per_center(kind, from_file):
    table = frame()
    parts = {c: table.filter(pl.col("hospital") == c).drop("hospital") for c in from_file.centers}
    if kind == "pandas":
        parts = {c: pd.DataFrame(part.to_dict(as_series=False)) for c, part in parts.items()}
    made = abps.federation(parts, label="died")
    assert made.centers == from_file.centers and made.label.sum() == from_file.label.sum()
    for k in range(4):
        mine = made.features["age"].to_numpy()[made.center == k]
        np.testing.assert_array_equal(mine, from_file.features["age"].to_numpy()[from_file.center == k])


def test_checks_and_roles_are_those_of_files():
    table = frame().with_columns(
        pl.Series("Fallnummer", np.arange(400) + 7_000_000), pl.col("died").alias("outcome")
    )
    made = abps.federation(table, label="DIED", center="Hospital", drop="smoker", name="mine")
    assert made.name == "mine" and made.features.columns == ["age", "sex", "lactate"]
    assert any(w.startswith("'outcome': a copy of the label") for w in made.notes.warnings)
    kept = abps.federation(table, label="died", center="hospital", keep=["outcome"])
    assert "outcome" in kept.features.columns
    days = np.arange(400) % 30 + 1.0
    survival = abps.federation(frame(), "died", "hospital", outcome="survival", duration=days)
    assert survival.outcome.kind == "survival" and np.abs(survival.label).max() == 30


GOOD = np.random.default_rng(0).normal(size=(200, 2))


@pytest.mark.parametrize(
    ("data", "options", "says"),
    [
        (GOOD, {}, "give label= as the name of a column or as an array"),
        (GOOD, {"label": np.arange(200) % 2}, "give center="),
        (GOOD, {"label": np.zeros(3), "center": ["a"] * 200}, "label has 3 values for 200 rows"),
        (GOOD, {"label": np.arange(200) % 2, "center": ["a"] * 200}, "one hospital only: 'a'"),
        (GOOD[:, 0], {"label": np.arange(200) % 2, "center": ["a"] * 200}, "is no table"),
        ("stays.csv", {"label": "y", "center": "c"}, "stays.csv"),
        ("stays.csv", {"label": GOOD[:, 0], "center": "c"}, "name the columns"),
        (GOOD, {"label": "y", "center": "c", "feature_names": ["a"]}, "1 name\\(s\\) for 2 columns"),
        (GOOD, {"label": "x9", "center": "x1"}, "there is no column 'x9' for label"),
        ({"a": [1, 2], "b": [1]}, {"label": "a", "center": "b"}, "1 and 2"),
        (
            {"n": frame(), "s": frame().drop("age")},
            {"label": "died"},
            "'s': the column 'age' is not in every",
        ),
        ({"n": frame()}, {"label": "died", "center": "hospital"}, "leave center out"),
        (frame()["age"], {"label": "died", "center": "hospital"}, "is no table"),
        (pd.Series([1.0, 2.0]), {"label": "died", "center": "hospital"}, "is no table"),
        (frame(), {"label": "died", "center": "hospital", "patiant": "age"}, "did you mean 'patient'"),
        (frame().head(0), {"label": "died", "center": "hospital"}, "has no rows"),
    ],
)
def test_wrong_requests_are_one_sentence(data, options, says):
    with pytest.raises(RequestError, match=says) as raised:
        abps.federation(data, **options)
    assert "\n" not in str(raised.value)


def test_read_table_points_to_federation_for_a_frame():
    with pytest.raises(RequestError, match=r"use abps\.federation"):
        abps.read_table(frame(), "died", "hospital")


def test_a_path_is_read_and_checked_like_a_frame(tmp_path):
    frame().write_csv(tmp_path / "t.csv")
    made = abps.federation(tmp_path / "t.csv", label="died", center="hospital")
    assert made.fingerprint() == abps.read_table(tmp_path / "t.csv", "died", "hospital").fingerprint()
    found = abps.check(frame(), label="died", center="hospital")
    assert found.rows == 400 and any(repair.column == "lactate" for repair in found.repairs)


def troubled() -> pl.DataFrame:
    """Eight columns with what hospitals send, and centers that cannot take part."""
    rng = np.random.default_rng(3)
    rows = 600
    hospital = np.array(["Nord", "Süd", "West"])[np.arange(rows) % 3]
    heavy, constant = rng.normal(5, 1, rows), rng.normal(size=rows)
    heavy[1], constant[hospital == "West"] = 1e9, 4.0
    table = pl.DataFrame(
        {
            "hospital": hospital,
            "died": (rng.random(rows) < 0.3).astype(int),
            "age": rng.normal(60, 10, rows),
            "crp": heavy,
            "ph": constant,
            "lactate": np.where(hospital == "Nord", np.nan, rng.gamma(2, 1, rows)),
            "diagnosis": [f"d{k}" for k in np.arange(rows) // 2],
        }
    )
    quiet = table.head(60).with_columns(hospital=pl.lit("Ost"), died=pl.lit(0, pl.Int64))
    tiny = table.head(3).with_columns(hospital=pl.lit("Insel"))
    return pl.concat([table, quiet, tiny])


def test_warnings_name_column_and_center_in_memory() -> None:
    with pytest.warns(abps.core.errors.DataWarning) as seen:
        fed = abps.federation(troubled(), label="died", center="hospital", keep=("diagnosis",))
    said = [str(each.message) for each in seen]
    for words in (
        ("'crp'", "far out", "1e+09", "'Süd'"),
        ("'ph'", "one value alone", "'West'"),
        ("'lactate'", "no value", "'Nord'"),
        ("'diagnosis'", "levels", "30 most frequent"),
        ("left out", "Insel", "fewer than 50 rows"),
        ("left out", "Ost", "fewer than 3 positive rows (0)"),
    ):
        assert sum(all(word in sentence for word in words) for sentence in said) == 1, words
    assert fed.notes is not None and len(said) == len(set(said)) and fed.centers == ("Nord", "Süd", "West")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # check returns them instead
        assert abps.check(troubled(), label="died", center="hospital").warnings


def test_a_clean_table_and_the_built_in_federation_give_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        abps.load("icu-synthetic:centers=6,stays=900")
        abps.federation(frame().drop("lactate"), label="died", center="hospital")
