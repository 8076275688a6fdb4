"""Tables as people send them: each broken one is as good as the clean one, or the reading stops."""

import datetime

import numpy as np
import polars as pl
import pytest

from abps.core.errors import RequestError
from abps.data.federation import TableCheck
from abps.data.table import load, read_table
from abps.engine.simulate import simulate


def clean(rows: int = 600) -> pl.DataFrame:
    """Six hospitals; lactate carries most of the risk, age and sex some."""
    rng = np.random.default_rng(3)
    lactate = np.round(rng.gamma(2.0, 1.2, rows) + 0.2, 1)
    age = np.round(rng.normal(65, 14, rows)).clip(18, 95)
    sex = rng.choice(["male", "female"], rows)
    creatinine = np.round(rng.gamma(3.0, 0.5, rows) + 0.1, 2)
    risk = -3.2 + 1.0 * lactate + 0.04 * (age - 65) + 0.5 * (sex == "male")
    return pl.DataFrame(
        {
            "hospital": np.array([f"H{k}" for k in range(6)])[np.arange(rows) % 6],
            "died": (rng.random(rows) < 1 / (1 + np.exp(-risk))).astype(int),
            "lactate": lactate,
            "age": age,
            "sex": sex,
            "creatinine": creatinine,
        }
    )


def cells(name, rows, text):
    """Some cells of a column overwritten."""

    def change(frame: pl.DataFrame) -> pl.DataFrame:
        values = [str(v) for v in frame[name].to_list()]
        for k in rows:
            values[k] = text(values[k]) if callable(text) else text
        return frame.with_columns(pl.Series(name, values))

    return change


def sorted_id(frame: pl.DataFrame) -> pl.DataFrame:
    order = np.argsort(-frame["died"].to_numpy(), kind="stable")
    number = np.empty(frame.height, dtype=int)
    number[order] = np.arange(10_000, 10_000 + frame.height)
    return frame.with_columns(pl.Series("record", number))


def discharge(frame: pl.DataFrame) -> pl.DataFrame:
    days = np.where(frame["died"] == 1, 2, 9) + np.arange(frame.height) % 2
    start = datetime.datetime(2020, 1, 1)
    return frame.with_columns(
        pl.Series("discharge_time", [start + datetime.timedelta(days=int(d)) for d in days])
    )


EVERY = range(600)
BROKEN = {
    "limits in three cells": (cells("lactate", [5, 77, 300], "<0.5"), "limit", 3),
    "one unk": (cells("lactate", [10], "unk"), "missing word", 1),
    "decimal commas": (cells("lactate", EVERY, lambda v: v.replace(".", ",")), "decimal comma", 600),
    "units": (cells("lactate", EVERY, lambda v: f"{v} mmol/l"), "unit", 600),
    "units in two spellings": (
        lambda f: cells("lactate", range(300), lambda v: f"{v}mmol/L")(
            cells("lactate", range(300, 600), lambda v: f"{v} mmol/l")(f)
        ),
        "unit",
        600,
    ),
    "minus 999 in text": (cells("lactate", [1, 50, 444], "-999 mmol/l"), "sentinel", 3),
    "minus 999 as a number": (
        lambda f: f.with_columns(
            pl.when(pl.int_range(pl.len()) % 200 == 7).then(-999.0).otherwise("lactate").alias("lactate")
        ),
        "sentinel",
        3,
    ),
    "9999 in ages": (cells("age", [3, 4, 5], "9999"), "sentinel", 3),
    "words for sex": (cells("sex", range(200), lambda v: {"male": "M", "female": "F"}[v]), "synonym", 200),
    "case of sex": (cells("sex", range(200), str.upper), "spelling", 200),
    "case of hospitals": (cells("hospital", range(150), str.lower), "spelling", 150),
    "a stray remark": (cells("lactate", [8, 9], "hemolyzed"), "not a number", 2),
}

HARMFUL = {
    "sorted identifier": (sorted_id, "record"),
    "copy of the label": (lambda f: f.with_columns(pl.col("died").alias("outcome")), "outcome"),
    "copy in words": (
        lambda f: f.with_columns(
            pl.when(pl.col("died") == 1).then(pl.lit("morgue")).otherwise(pl.lit("home")).alias("went to")
        ),
        "went to",
    ),
    "known only for the dead": (
        lambda f: f.with_columns(pl.when(pl.col("died") == 1).then(pl.col("age")).alias("age at end")),
        "age at end",
    ),
    "discharge time": (discharge, "discharge_time"),
    "stay_id": (
        lambda f: f.with_columns(
            pl.Series("stay_id", np.random.default_rng(0).permutation(600) // 2 + 30_000_000)
        ),
        "stay_id",
    ),
}


def read(frame: pl.DataFrame, tmp_path, separator=",", encoding="utf-8"):
    path = tmp_path / "table.csv"
    path.write_bytes(frame.write_csv(separator=separator).encode(encoding))
    return read_table(path, "died", "hospital")


def score(federation) -> float:
    """A quick federation's AUROC, over four splits."""
    return float(np.mean([simulate(federation, "fedavg", seed, rounds=4).auroc.mean for seed in range(4)]))


@pytest.fixture(scope="module")
def truth(tmp_path_factory) -> float:
    federation = read(clean(), tmp_path_factory.mktemp("clean"))
    assert federation.notes.warnings == () and federation.notes.repairs == ()
    value = score(federation)
    assert value > 0.75
    return value


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_table_is_as_good_as_the_clean_one(name, tmp_path, truth):
    change, rule, count = BROKEN[name]
    federation = read(change(clean()), tmp_path)
    done = [(r.rule, r.cells) for r in federation.notes.repairs if r.rule == rule]
    assert done == [(rule, count)]
    assert set(federation.features.columns) == {"lactate", "age", "sex", "creatinine"}
    assert federation.features["lactate"].dtype == pl.Float64 and federation.size == 6
    assert score(federation) == pytest.approx(truth, abs=0.01)


@pytest.mark.parametrize("name", HARMFUL)
def test_what_tells_the_outcome_is_not_learned_from(name, tmp_path, truth):
    change, column = HARMFUL[name]
    federation = read(change(clean()), tmp_path)
    assert column not in federation.features.columns
    note = next(c for c in federation.notes.columns if c.name == column)
    assert not note.used and note.why
    assert score(federation) == pytest.approx(truth, abs=0.01)
    asked = read_table(tmp_path / "table.csv", "died", "hospital", keep=(column,))
    assert column in asked.features.columns


def test_rows_that_stand_there_four_times_are_taken_once(tmp_path, truth):
    four = pl.concat([clean()] * 4)
    federation = read(four, tmp_path)
    assert federation.rows == 600 and federation.notes.copies == 1800
    assert any("1800 of 2400 rows are exact duplicates; removed" in w for w in federation.notes.warnings)
    assert score(federation) == pytest.approx(truth, abs=0.01)


def test_a_few_rows_that_stand_there_twice_are_named_and_stay(tmp_path):
    federation = read(pl.concat([clean(), clean().head(3)]), tmp_path)
    assert federation.rows == 603 and federation.notes.copies == 0
    assert any("3 of 603 rows are exact duplicates; kept" in w for w in federation.notes.warnings)


def test_numbers_that_name_wards_stay_and_are_warned_of(tmp_path):
    frame = clean().with_columns(
        pl.Series("ward_nr", np.arange(600) % 23), pl.Series("units_given", np.arange(600) % 7)
    )
    found = read(frame, tmp_path)
    warned = [warning for warning in found.notes.warnings if "codes of places or people" in warning]
    assert len(warned) == 1 and warned[0].startswith("'ward_nr'")
    check = {column.name: column.used for column in found.notes.columns}
    assert check["ward_nr"]


def test_dates_are_not_used_unless_they_are_kept(tmp_path):
    begin = datetime.date(2020, 1, 1)
    days = [begin + datetime.timedelta(days=3 * k) for k in range(600)]
    found = read(clean().with_columns(pl.Series("admit_date", days)), tmp_path)
    warned = [warning for warning in found.notes.warnings if warning.startswith("'admit_date': a date")]
    assert len(warned) == 1 and "keep=admit_date" in warned[0] and "admit_date" not in found.features.columns
    asked = read_table(tmp_path / "table.csv", "died", "hospital", keep="admit_date")
    assert "admit_date" in asked.features.columns


def test_equal_rows_of_a_coarse_table_are_different_people(tmp_path):
    rng = np.random.default_rng(1)
    frame = pl.DataFrame(
        {"hospital": ["a", "b"] * 200, "died": rng.integers(0, 2, 400), "x": rng.integers(0, 2, 400)}
    )
    assert read(frame, tmp_path).rows == 400


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_separators_and_encodings_are_recognised(separator, encoding, tmp_path):
    named = clean().with_columns(pl.col("hospital").str.replace("H", "Köln ").alias("hospital"))
    plain = read(named, tmp_path)
    other = read(named, tmp_path, separator, encoding)
    assert other.fingerprint() == plain.fingerprint()
    assert other.centers[0] == "Köln 0"


def test_a_continental_file_is_read_as_it_was_meant(tmp_path):
    text = clean().write_csv(separator=";").replace(".", ",")
    (tmp_path / "t.csv").write_bytes(("sep=;\n" + text).encode("cp1252"))
    federation = read_table(tmp_path / "t.csv", "died", "hospital")
    assert federation.features.equals(read(clean(), tmp_path).features)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda f: cells("lactate", range(200), lambda v: f"{v} mg/dl")(
                cells("lactate", range(200, 600), lambda v: f"{v} mmol/l")(f)
            ),
            "more than one unit: 'mg/dl' .200 cells. and 'mmol/l' .400 cells.",
        ),
        (cells("died", [4], "unk"), "has 3 value"),
    ],
)
def test_what_no_rule_can_settle_stops_with_a_sentence(change, says, tmp_path):
    with pytest.raises(RequestError, match=says) as raised:
        read(change(clean()), tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        (["1,234", "567", "2,345,678"], [1234, 567, 2345678]),
        (["1.234,5", "12,25", "0,5"], [1234.5, 12.25, 0.5]),
        (["1 234", "12", "3'456.5"], [1234, 12, 3456.5]),
        (["1,234", "1.5", "20"], [1234, 1.5, 20]),
        (["0,250", "1,125", "2,500"], [0.25, 1.125, 2.5]),
        (["1,125", "2,500", "3,750"], [1.125, 2.5, 3.75]),
        (["≥ 89", "> 89 years", "<= 5"], [89, 89, 5]),
        (["5.2 H", "4.1", "3.3*"], [5.2, 4.1, 3.3]),
        (["7 10^9/L", "11.5 10^9/l", "3"], [7, 11.5, 3]),
        (["−3", "+4", "1e3"], [-3, 4, 1000]),
        (["12 %", "15%", "100 %"], [12, 15, 100]),
    ],
)
def test_numbers_in_many_notations(values, numbers):
    from abps.data.repairs import repair_column

    # Around them, enough plain numbers that the column is one of numbers.
    plain = [f"{k}" for k in range(20, 40)]
    # Where every cell has three decimals, plain cells would say otherwise.
    around = [] if all(v[1:2] == "," and len(v) == 5 for v in values) else plain
    mended = repair_column(pl.Series("x", values + around)).values
    assert mended.dtype == pl.Float64
    assert mended.head(len(values)).to_list() == pytest.approx(numbers)


@pytest.mark.parametrize(
    "values",
    [
        ["4 West", "4 East", "12 North"] * 40,
        ["3A", "3B", "4C", "4F"] * 40,
        ["1st", "2nd", "3rd"] * 40,
        ["120/80", "130/85"] * 40,
        ["A", "B", "none"] * 40,
        ["1", "2", "other"] * 40,
    ],
)
def test_names_with_numbers_in_them_stay_names(values):
    from abps.data.repairs import repair_column

    mended = repair_column(pl.Series("x", values))
    assert mended.values.to_list() == values and mended.repairs == ()


@pytest.mark.parametrize(
    ("values", "gone"),
    [
        ([-999.0, 1.0, 2.0, 3.5], [-999]),
        ([-1.0, *np.linspace(36, 41, 20)], [-1]),
        ([-1.0, 0.0, 1.0, 2.0], []),
        ([-20.0, -9.0, -1.0, 0.0, 15.0], []),
        ([-999.0, -20.0, 3.0, 20.0], [-999]),
        ([0.0, 1.0, 9.0], [9]),
        ([3.0, 9.0, 15.0, 99.0], [99]),
        ([18.0, 65.0, 99.0], []),
        ([18.0, 65.0, 95.0, 999.0, 9999.0], [9999, 999]),
        ([-888.0, -999.0, 1.0, 2.0, 4.0], [-999, -888]),
    ],
)
def test_numbers_that_stand_for_missing(values, gone):
    from abps.data.repairs import repair_column

    mended = repair_column(pl.Series("x", values * 2))
    lost = sorted(v for v, after in zip(values, mended.values.to_list()) if after is None)
    assert lost == sorted(gone)


def test_the_check_is_plain_data_and_comes_back(tmp_path):
    notes = read(BROKEN["limits in three cells"][0](sorted_id(clean())), tmp_path).notes
    plain = notes.to_json()
    assert plain["schema"] == "abps.check/1" and "limit" in plain["rules"]
    assert TableCheck.from_json(plain) == notes
    roles = {c["name"]: (c["type"], c["role"], c["used"]) for c in plain["columns"]}
    assert roles["died"] == ("yes/no", "label", False) and roles["sex"] == ("category", "feature", True)
    assert roles["record"][2] is False and plain["positive"] == "1"


def test_every_center_that_is_left_out_is_named(tmp_path):
    frame = pl.concat(
        [clean(), clean(60).with_columns(pl.int_range(pl.len()).cast(pl.String).alias("hospital"))]
    )
    notes = read(frame, tmp_path).notes
    assert len(notes.left_out) == 60 and all("fewer than 50" in o.reason for o in notes.left_out)


def test_the_event_can_be_named(tmp_path):
    frame = clean().with_columns(
        pl.when(pl.col("died") == 1).then(pl.lit("A")).otherwise(pl.lit("B")).alias("died")
    )
    federation = read(frame, tmp_path)
    assert federation.notes.positive == "b" and "taken as the event" in federation.notes.warnings[0]
    other = read_table(tmp_path / "table.csv", "died", "hospital", positive="A")
    assert other.notes.warnings == () and (other.label == 1 - federation.label).all()
    with pytest.raises(RequestError, match="has no value 'C'"):
        read_table(tmp_path / "table.csv", "died", "hospital", positive="C")


def test_nothing_is_mended_in_a_built_in_federation():
    notes = load("icu-synthetic:centers=12,stays=1500").notes
    assert notes.repairs == () and notes.warnings == ()
