"""Nothing small leaves: the attacks that recovered names and cells, and what is left of them."""

from __future__ import annotations

import itertools
import json

import numpy as np
import polars as pl
import pytest

from abps.data.codebook import Codebook, merged
from abps.data.prepare import codebook, numeric_rows, prepare
from abps.data.roles import Roles
from abps.data.scales import HistogramSum, sum_histograms
from abps.data.screening import identifying_reason
from abps.data.split import assign_splits
from abps.data.table import federate, own_table
from abps.lab.synthetic import builtin_table
from abps.methods.leaving import leaving
from abps.methods.references import categories
from abps.methods.settings import configure
from abps.privacy.small_counts import (
    least_rows,
    most_patients,
    without_small,
)

FLOOR = 10
TOP = ("Anna", "Berta", "Carl", "Dora", "Emil", "Frieda", "Gustav", "Hanna", "Igor", "Jana")
LAST = ("Abel", "Bauer", "Conrad")


@pytest.fixture(scope="module")
def ward():
    """The table of the finding: 45 rows, 30 patients by name, and what else identifies them."""
    rng = np.random.default_rng(3)
    names = [f"{first} {last}" for first in TOP for last in LAST]
    who = np.concatenate([np.arange(30), rng.integers(0, 30, 15)])
    return pl.DataFrame(
        {
            "hospital": ["x"] * 45,
            "died": np.arange(45) % 3 == 0,
            "label_of_bed": [names[i] for i in who],
            "patient": [f"p{i}" for i in who],
            "born": [f"19{40 + i}-0{1 + i % 9}-1{i % 9}" for i in who],
            "seen": [f"1{i % 9}.0{1 + i % 9}.19{40 + i}" for i in who],
            "remark": [
                f"a long sentence on what was found in patient {i} on the day of admission" for i in who
            ],
            "age": rng.normal(60, 10, 45),
            "sex": ["F" if i % 2 else "M" for i in who],
            "ward": ["A" if i < 25 else "B" for i in who],
        }
    )


@pytest.fixture
def own(tmp_path):
    """A hospital's own table, as it is read there."""

    def read(frame, label="died", patient="patient"):
        path = tmp_path / "table.parquet"
        frame.drop("hospital", "patient" if patient is None else "nothing", strict=False).write_parquet(path)
        return own_table(path, "x", label, patient=patient)

    return read


def test_a_codebook_with_a_minimum_cell_size_holds_no_names(ward, own):
    names = set(ward["label_of_bed"])
    many = pl.concat([ward, ward.with_columns(hospital=pl.lit("y"))])
    unscreened = federate(many, Roles("died", "hospital", drop=("remark", "born", "seen")), "two", 10)
    open_book = json.dumps(codebook(unscreened, seed=0).to_json())
    assert sum(name in open_book for name in names) >= 20  # names of people as levels
    assert not any(name in json.dumps(codebook(unscreened, 0, min_cell=FLOOR).to_json()) for name in names)
    assert "label_of_bed" not in own(ward).features.columns  # a table is screened when it is read
    book = codebook(own(ward), seed=0, min_cell=FLOOR)
    text = json.dumps(book.to_json())
    assert not any(name in text for name in names)
    assert not any(value in text for name in ("patient", "born", "seen", "remark") for value in ward[name])
    assert {"age", "sex"} <= {c.source for c in book.columns} <= {"age", "sex", "ward", "seen"}
    assert book.min_cell == FLOOR and Codebook.from_json(book.to_json()) == book
    assert merged([book, codebook(own(ward), seed=0)]).min_cell == FLOOR


def test_a_level_needs_patients_and_not_rows(ward, own):
    # One patient with thirty stays on a ward of its own.
    many = ward.with_columns(
        ward=pl.Series(["Z"] * 30 + ["zz"] * 15),
        patient=pl.Series(["p0"] * 30 + [f"q{i}" for i in range(15)]),
    )
    levels = [c.level for c in codebook(own(many), seed=0, min_cell=FLOOR).columns if c.source == "ward"]
    assert "Z" not in levels
    alone = [
        c.level
        for c in codebook(own(many, patient=None), seed=0, min_cell=FLOOR).columns
        if c.source == "ward"
    ]
    assert "Z" in alone  # without a patient column every row is a patient


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("patient_name", ["a", "b"] * 30, "name"),
        ("date_of_birth", [1950.0, 1960.0] * 30, "name"),
        ("x", ["1950-01-02", "13.4.1961"] * 30, "dates"),
        ("x", ["Meier, Anna", "Smith, J."] * 30, "people"),
        ("x", ["Mr Smith", "Frau Meier"] * 30, "people"),
        ("contact", ["Carla Koch", "Huber Emil", "Anna B. Meier"] * 20, "people"),
        ("x", ["anna@web.de", "+49 170 1234567"] * 30, "addresses"),
        ("x", ["the patient came in with a cough and a fever of 39"] * 60, "free text"),
        ("x", [f"v{i}" for i in range(60)], "few patients"),
        ("homePhone", ["a", "b"] * 30, "name"),
        ("emailAddress", ["a", "b"] * 30, "name"),
        ("PatientenNr", [1.0, 2.0] * 30, "name"),
        ("seen_by_Anna_Huber", [0.0, 1.0] * 30, "after a person"),
        ("callbackEmilKoch", [0.0, 1.0] * 30, "after a person"),
    ],
)
def test_who_a_column_names(name, values, why):
    assert why in identifying_reason(pl.Series(name, values), None, FLOOR)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("careunit", ["Medical Intensive Care Unit (MICU)", "Surgical ICU"] * 30),
        ("sex", ["F", "M"] * 30),
        ("birth_weight", [3000.0, 3100.5] * 30),
        ("diagnosis", ["I50.9"] * 20 + ["J18"] * 20 + [f"rare {i}" for i in range(20)]),
        ("admission", ["emergency", "elective"] * 30),
        ("ward", ["Medical Ward", "Surgical Ward East", "anna", "Peter"] * 15),
        ("Max_Temp", [37.0, 38.5] * 30),
        ("ANA_Titre", [0.0, 1.0] * 30),
        ("heartRateMean", [70.0, 71.0] * 30),
    ],
)
def test_what_names_nobody_stays(name, values):
    assert identifying_reason(pl.Series(name, values), None, FLOOR) == ""


def test_a_name_among_harmless_levels_is_no_level(ward, own):
    """The referring doctor stands in the column of the way in: too few rows to condemn the column."""
    way = ["emergency"] * 100 + ["Dr. Huber"] * 11 + ["Anna Huber"] * 12 + ["elective", "transfer"] * 30
    table = pl.DataFrame(
        {"hospital": ["x"] * 183, "died": np.arange(183) % 3 == 0, "way": way, "age": np.arange(183.0)}
    )
    book = codebook(own(table, patient=None), seed=0, min_cell=5)
    assert "Huber" not in json.dumps(book.to_json())
    assert {c.level for c in book.columns if c.kind == "level"} == {"emergency", "elective", "transfer"}


def test_rows_that_are_surely_of_so_many_patients():
    patient = np.array([1, 1, 1, 2, 2, 3, 4, 5])
    owner = np.zeros(8, int)
    for floor in (1, 2, 3, 4):
        least = int(least_rows(owner, patient, 1, floor)[0])
        for some in itertools.combinations(range(8), min(least, 8)):
            assert len(set(patient[list(some)])) >= floor
    assert most_patients(np.array([1, 1, 1, 1, 0, 0, 0, 0], bool), owner, patient, 1) == 2


def small_sites(floor):
    frame, roles = builtin_table("icu-synthetic:centers=6,stays=700")
    return prepare(federate(frame, roles, "icu", 1), 11, min_cell=floor)


def test_columns_with_a_small_cell_add_nothing_to_sums():
    y = np.repeat([0.0, 1.0], 50)
    x = np.zeros((100, 3))
    x[:20, 0] = x[50:70, 0] = 1  # cells of 20 and 30
    x[:20, 1] = x[50:53, 1] = 1  # a cell of 3
    x[:, 2] = np.linspace(-1, 1, 100)
    hidden = without_small(x, y, FLOOR)
    assert np.array_equal(hidden[:, [0, 2]], x[:, [0, 2]]) and not hidden[:, 1].any()


# Sums over rows, and what follows from them ------------------------------------------------------------


def ward_of(cells):
    """Rows of a category: (levels, 2) how many with and without the outcome; columns of all levels but the
    last, which is told as none of them where it is ``none``."""
    y = np.concatenate([np.repeat([1.0, 0.0], pair) for pair in cells])
    level = np.repeat(np.arange(len(cells)), [sum(pair) for pair in cells])
    return np.eye(len(cells))[level], y


def beside(x, y, shown):
    """What is left over for who knows the table of every told column and the totals: how many rows with the
    outcome, and without it, are in none of the told columns, and of how many hidden levels they are."""
    told = [k for k in range(x.shape[1]) if shown[:, k].any()]
    rest = x[:, told].sum(axis=1) == 0
    hidden = sum(bool(x[rest, k].any()) for k in range(x.shape[1]) if k not in told)
    hidden += bool((x.sum(axis=1) == 0).any())
    return int((rest & (y > 0)).sum()), int((rest & (y == 0)).sum()), hidden


@pytest.mark.parametrize(
    ("cells", "columns"),
    [
        ([(14, 33), (12, 31), (3, 17)], [0, 1, 2]),  # a level with three deaths
        ([(14, 33), (12, 31), (3, 17)], [0, 1]),  # the same, of those that have none of the levels
        ([(11, 40), (21, 19), (13, 22), (4, 15)], [0, 1, 2, 3]),
        ([(15, 40), (12, 19), (0, 6)], [0, 1, 2]),  # few survivors
    ],
)
def test_a_small_cell_does_not_follow_from_the_other_levels(cells, columns):
    x, y = ward_of(cells)
    x = x[:, columns]
    *found, levels = beside(x, y, without_small(x, y, FLOOR))
    assert levels == 1 and tuple(found) == cells[-1]  # exactly what was not to be told
    *found, levels = beside(x, y, without_small(x, y, FLOOR, np.zeros(len(columns), dtype=np.int64)))
    assert levels == 2 and tuple(found) != cells[-1]


def test_levels_that_are_hidden_by_twos_stay_so_and_other_columns_are_told():
    x, y = ward_of([(14, 33), (8, 30), (6, 17)])
    x = np.concatenate([x, np.tile([[1.0], [0.0]], (len(y), 1))[: len(y)]], axis=1)
    groups = np.array([0, 0, 0, -1])
    shown = without_small(x, y, FLOOR, groups)
    assert shown.any(axis=0).tolist() == [True, False, False, True]
    assert categories(small_sites(FLOOR)).max() >= 0


def test_no_level_of_a_real_table_can_be_derived_from_the_others():
    """Of no category the rows beside the published levels are few of an outcome."""
    data = small_sites(FLOOR)
    groups = categories(data)
    for i in range(data.size):
        rows = data.train.only(i)
        x, y = rows.x.astype(np.float64), rows.y.astype(np.float64)
        shown = without_small(x, y, FLOOR, groups)
        for group in np.unique(groups[groups >= 0]):
            levels = np.flatnonzero(groups == group)
            told = [k for k in levels if shown[:, k].any()]
            hidden = [k for k in levels if x[:, k].any() and k not in told]
            beside = x[:, told].sum(axis=1) == 0
            alone = len(hidden) + bool((x[:, levels].sum(axis=1) == 0).any()) == 1
            few = any(0 < int((beside & (y == v)).sum()) < FLOOR for v in (0, 1))
            assert not (told and alone and few)


def test_totals_of_counts_tell_no_outcome():
    """Common scales: what leaves is of columns alone; turning all outcomes around changes nothing of it."""
    frame, roles = builtin_table("icu-synthetic:centers=6,stays=700")
    turned = frame.with_columns((1 - pl.col(roles.label).cast(pl.Int64)).alias(roles.label))
    split = assign_splits(federate(frame, roles, "icu", 1), 11)
    found = []
    for table in (frame, turned):
        fed = federate(table, roles, "icu", 1)
        names = prepare(fed, 11, split=split, min_cell=FLOOR).book.numbers
        numbers, start, _ = numeric_rows(fed, split, names)
        total, _ = sum_histograms(
            numbers, start, fed.centers, HistogramSum(masked=True), np.full(fed.size, FLOOR)
        )
        found.append((total.counts.tobytes(), total.edges.tobytes()))
    assert found[0] == found[1]


def test_prevalences_at_the_floor_are_multiples_of_it():
    open_, closed = small_sites(0), small_sites(FLOOR)
    rows = closed.train.sizes
    counts = closed.metadata[:, [0, *range(closed.base_metadata, closed.metadata.shape[1])]] * rows[:, None]
    least = closed.min_rows[:, None]
    whole = np.minimum(np.rint(counts / least) * least, rows[:, None])
    np.testing.assert_allclose(counts, whole, atol=1e-3)
    assert not np.array_equal(open_.metadata, closed.metadata)
    assert np.abs(open_.metadata - closed.metadata)[:, 0].max() <= (0.5 * closed.min_rows / rows).max() + 1e-6


def test_a_preview_lists_every_value_that_is_published(tmp_path):
    frame, roles = builtin_table("icu-synthetic:centers=6,stays=700")
    mine = frame.filter(pl.col("center") == frame["center"][0])
    mine.drop("center", "careunit").write_parquet(tmp_path / "own.parquet")
    fed = own_table(tmp_path / "own.parquet", "x", roles.label, patient=roles.patient, time=roles.time)
    book = codebook(fed, 11, min_cell=FLOOR, standardise="common")
    method = configure("abps-pq-k1-hom", {"standardise": "common"})
    seen = leaving(method, fed, book, 11)
    kinds = {value.what for value in seen}
    assert kinds == {"codebook", "metadata", "weights"}
    data = prepare(fed, 11, book, standardise="common")
    told = [value.value for value in seen if value.what == "metadata"]
    np.testing.assert_array_equal(told, data.metadata[0])
    assert [v.name for v in seen if v.what == "codebook"] == [c.name for c in book.columns]
    assert any(value.what == "scores" for value in leaving(configure("abps-plus"), fed, book, 11))
