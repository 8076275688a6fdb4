"""What the check must catch in tables as hospitals export them: each finding of the field as a test."""

import datetime
from functools import partial

import numpy as np
import polars as pl
import pytest

from abps.core.errors import RequestError
from abps.data.prepare import prepare
from abps.data.roles import is_called, is_patient_name
from abps.data.screening import center_warnings
from abps.data.table import load_file, read_table
from dirty_tables import GERMAN_FEATURES, GERMAN_ROLES, german_table


@pytest.fixture(scope="module")
def german(tmp_path_factory):
    return read_table(german_table(tmp_path_factory.mktemp("g") / "export.csv"), **GERMAN_ROLES)


def test_a_german_export_becomes_a_federation(german):
    assert german.centers == ("Düsseldorf", "Graz", "Köln", "Lübeck", "München", "Zürich")
    assert german.rows == 1200 and german.left_out == ()
    assert tuple(german.features.columns) == GERMAN_FEATURES
    assert german.notes.form == "text, separated by semicolon, Latin-1 (Windows-1252)"
    assert (german.notes.positive, german.notes.negative) == ("ja", "nein")
    numbers = [name for name in GERMAN_FEATURES if german.features[name].dtype == pl.Float64]
    assert numbers == [n for n in GERMAN_FEATURES if n not in ("Geschlecht", "Diabetes")]
    assert german.features["Alter"].max() == 89 and german.features["Troponin"].min() == 0.5
    assert german.features["Herzfrequenz"].max() < 200
    assert np.isfinite(prepare(german, 1).train.x).all()


def test_every_warning_about_the_german_export_is_true_and_said_once(german):
    warnings = german.notes.warnings
    assert len(warnings) == len(set(warnings)) == 5
    about = {w.split("'")[1]: w for w in warnings}
    assert set(about) == {"Bilirubin", "Liegedauer", "Aufnahmedatum", "Patientennummer", "Gesamtcholesterin"}
    assert "cells of this numeric column hold words ('n.b.'); they are read as missing" in about["Bilirubin"]
    assert "length of stay" in about["Liegedauer"] and "keep=Liegedauer" in about["Liegedauer"]
    assert "a date" in about["Aufnahmedatum"] and "time=Aufnahmedatum" in about["Aufnahmedatum"]
    assert "patient=Patientennummer" in about["Patientennummer"]
    assert "the values of 'Graz'" in about["Gesamtcholesterin"]
    assert "mg/dL and mmol/L? multiply by 38.67" in about["Gesamtcholesterin"]
    # What the page and the terminal list: the warnings, and the two identifiers, each once.
    assert len(german.notes.remarks) == 6
    assert [r for r in german.notes.remarks if "Fallnummer" in r and "an identifier" in r]


def test_the_flags_that_warnings_name_do_what_they_say(tmp_path):
    path = german_table(tmp_path / "export.csv")
    asked = read_table(
        path, **GERMAN_ROLES, patient="Patientennummer", time="Aufnahmedatum", keep="Liegedauer",
        drop=["Gesamtcholesterin"],
    )  # fmt: skip
    assert "Liegedauer" in asked.features.columns and 2019 <= asked.time.min() < 2023
    assert len(np.unique(asked.patient)) < 1200
    assert [w.split("'")[1] for w in asked.notes.warnings] == ["Bilirubin", "Liegedauer"]
    assert "used, as requested" in asked.notes.warnings[1]


def test_the_repairs_of_the_german_export_are_counted(german):
    done = {(r.column, r.rule) for r in german.notes.repairs}
    assert {
        ("Alter", "limit"), ("Troponin", "limit"), ("Troponin", "decimal comma"),
        ("Bilirubin", "missing word"), ("Herzfrequenz", "sentinel"),
    } <= done  # fmt: skip


def hospitals(rows=600, **columns):
    """Six hospitals, a label, a predictor, and further columns."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=rows)
    frame = pl.DataFrame(
        {
            "hospital": np.array([f"H{k}" for k in range(6)])[np.arange(rows) % 6],
            "died": (x + rng.normal(size=rows) > 0.5).astype(int),
            "x": x,
        }
    )
    return frame.with_columns(pl.Series(name, list(values)) for name, values in columns.items())


def read(frame, tmp_path, **roles):
    frame.write_csv(tmp_path / "t.csv")
    return read_table(tmp_path / "t.csv", **({"label": "died", "center": "hospital"} | roles))


@pytest.mark.parametrize("share", [0.04, 0.3, 0.45])
@pytest.mark.parametrize("word", ["n.b.", "hämolytisch"])
def test_numbers_with_words_stay_numbers(tmp_path, share, word):
    rng = np.random.default_rng(0)
    values = [word if rng.random() < share else f"{v:.1f}" for v in rng.gamma(2, 0.5, 600)]
    made = read(hospitals(bilirubin=values), tmp_path)
    assert made.features["bilirubin"].dtype == pl.Float64
    assert made.features["bilirubin"].null_count() == values.count(word)
    if share > 0.1 or word == "hämolytisch":
        assert any(w.startswith("'bilirubin'") and repr(word) in w for w in made.notes.warnings)


def test_a_category_of_numbers_and_words_stays_one(tmp_path):
    made = read(hospitals(grade=np.array(["1", "2", "3", "unclear"])[np.arange(600) % 4]), tmp_path)
    assert made.features["grade"].dtype == pl.String


@pytest.mark.parametrize(
    ("name", "factor", "says"),
    [
        ("cholesterol", 1 / 38.67, "multiply by 38.67"),
        ("Kreatinin", 88.42, "divide by 88.42"),
        ("glucose", 1 / 18.02, "multiply by 18.02"),
        ("hemoglobin", 10.0, "divide by 10"),
        ("temp_max", 2.66, "°F and °C?"),
        ("marker", 250.0, "a factor of about 240"),
    ],
)
def test_another_unit_at_one_hospital_is_found_with_its_factor(tmp_path, name, factor, says):
    rng = np.random.default_rng(4)
    middle, spread = (37.0, 0.4) if name == "temp_max" else (100.0, 12.0)
    values = rng.normal(middle, spread, 600)
    values[np.arange(600) % 6 == 2] *= factor
    made = read(hospitals(**{name: values}), tmp_path)
    found = [w for w in made.notes.warnings if w.startswith(repr(name))]
    assert len(found) == 1 and "the values of 'H2'" in found[0] and says in found[0]


def test_case_mix_is_no_other_unit(tmp_path):
    rng = np.random.default_rng(4)
    values = rng.gamma(2.0, 1.0, 600) * (1 + (np.arange(600) % 6) / 3)  # skewed, up to 2.7 times as high
    counts = np.arange(600) % 6 * 100 + rng.integers(0, 5, 600)  # few different values that differ by center
    made = read(hospitals(lactate=values, beds=counts % 7), tmp_path)
    assert center_warnings(made.features, made.center, made.centers) == []


@pytest.mark.parametrize("name", ["patient_id", "PatNr", "subject_id", "MRN", "Patienten-ID", "id_paciente"])
def test_repeated_patients_are_suggested_as_patient(tmp_path, name):
    people = np.random.default_rng(0).integers(0, 400, 600) + 5000
    made = read(hospitals(**{name: people}), tmp_path)
    count = len(np.unique(people))
    assert made.notes.patient == name and name not in made.features.columns
    assert any(w.startswith(f"{name!r}: {count} patients in 600 rows; patient=") for w in made.notes.warnings)
    assert read(hospitals(**{name: people}), tmp_path, patient=name).notes.patient == ""


def test_a_key_of_stays_is_no_patient(tmp_path):
    made = read(hospitals(stay_id=np.arange(600), fallnummer=np.arange(600) // 2 + 900), tmp_path)
    assert made.notes.patient == "" and made.features.columns == ["x"]


AFTER = [
    "Liegedauer", "Verweildauer (Tage)", "los", "length_of_stay", "duree_sejour", "Durée de séjour",
    "dias_estancia", "giorni_degenza", "icu_days",
]  # fmt: skip


@pytest.mark.parametrize("name", AFTER)
def test_length_of_stay_is_no_predictor_in_any_language(tmp_path, name):
    days = np.random.default_rng(0).integers(1, 30, 600)
    made = read(hospitals(**{name: days}), tmp_path)
    assert is_called(name, "stay") and made.features.columns == ["x"]
    assert name in read(hospitals(**{name: days}), tmp_path, keep=[name]).features.columns


@pytest.mark.parametrize("name", ["Aufnahmedatum", "fecha_ingreso", "data_ricovero", "admitted", "Datum"])
def test_dates_are_no_predictors(tmp_path, name):
    begin = datetime.date(2020, 1, 1)
    days = [begin + datetime.timedelta(days=int(k)) for k in np.random.default_rng(0).integers(0, 900, 600)]
    assert read(hospitals(**{name: days}), tmp_path).features.columns == ["x"]
    if name != "admitted":
        packed = [int(day.strftime("%Y%m%d")) for day in days]
        assert read(hospitals(**{name: packed}), tmp_path).features.columns == ["x"]


def test_columns_are_found_whatever_their_case(tmp_path):
    frame = hospitals(Blutdruck=np.arange(600) % 37)
    made = read(frame, tmp_path, label="Died", center="HOSPITAL", drop=["blutdruck"])
    assert made.notes.label == "died" and made.features.columns == ["x"]
    with pytest.raises(RequestError, match=r"no column 'deid' for label \(did you mean 'died'\?\)"):
        read(frame, tmp_path, label="deid")


@pytest.mark.parametrize(
    ("names", "recognised"),
    [
        (
            ["Geschlecht", "sexe", "Sexo", "sesso", "gender", "SEX", "is_female", "weiblich"],
            partial(is_called, kind="sex"),
        ),
        (
            ["Alter", "Alter bei Aufnahme", "âge", "Age (years)", "edad", "età", "idade", "anchor_age"],
            partial(is_called, kind="age"),
        ),
        (["Patientennummer", "patient_id", "PatientID", "Pat.-Nr.", "subject_id"], is_patient_name),
    ],
)
def test_names_are_recognised_in_the_languages_we_read(names, recognised):
    assert [name for name in names if not recognised(name)] == []
    others = ["dosage", "stage", "Essex", "Station", "alternative", "malaria", "sextant", "Herzfrequenz"]
    assert [name for name in others if recognised(name)] == []


def csv(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


LINES = ["y,h,x,z"] + [f"{k % 2},{'ab'[k // 60]},{k * 7 % 13},ok" for k in range(120)]


def read_lines(tmp_path, lines):
    return read_table(csv(tmp_path, "\n".join(lines)), "y", "h")


@pytest.mark.parametrize(
    ("line", "text", "says"),
    [
        (5, "1,a,3,ok, and more", "line 5 has 5 cells and the header has 4; put a text with a comma"),
        (77, "1,a,3", "line 77 has 3 cells and the header has 4; add the missing cells"),
        (9, '1,a,"3,4,5",x,y', "line 9 has 5 cells"),
        (121, "Total: 120 rows", "line 121 has 1 cells"),
    ],
)
def test_ragged_lines_are_named_by_their_number(tmp_path, line, text, says):
    lines = list(LINES)
    lines[line - 1] = text
    with pytest.raises(RequestError, match=says) as raised:
        read_lines(tmp_path, lines)
    assert "\n" not in str(raised.value)


def test_the_line_number_counts_title_lines_and_quoted_line_breaks(tmp_path):
    lines = ["Export of 2024", "", *LINES]
    lines[4] = '1,a,3,"two\nlines"'
    lines[10] += ",too much"
    with pytest.raises(RequestError, match="line 12 has 5 cells"):
        read_lines(tmp_path, lines)


@pytest.mark.parametrize("titles", [["Export of 2024"], ["Export, of 2024", ""], ["Ward report,,,", ",,,"]])
def test_titles_above_the_header_are_skipped_and_said(tmp_path, titles):
    plain = read_lines(tmp_path, LINES)
    made = read_lines(tmp_path, [*titles, *LINES])
    assert made.features.equals(plain.features)
    assert len(made.notes.warnings) == 1 and "above the header skipped" in made.notes.warnings[0]


def test_a_header_that_is_too_short_is_no_title(tmp_path):
    with pytest.raises(RequestError, match="line 2 has 4 cells and the header has 2"):
        read_lines(tmp_path, ["y,h", *LINES[1:]])


def test_excel_workbooks_are_read(tmp_path):
    pytest.importorskip("fastexcel")
    xlsxwriter = pytest.importorskip("xlsxwriter")
    frame = hospitals(lactate=[f"{k % 40 / 10:.1f}" if k % 50 else "<0,5" for k in range(600)])
    plain = read(frame, tmp_path)
    frame.write_excel(tmp_path / "t.xlsx")
    made = read_table(tmp_path / "t.xlsx", "died", "hospital")
    assert made.notes.form == "Excel, sheet 'Sheet1'" and made.notes.warnings == plain.notes.warnings
    assert made.features["lactate"].to_list() == plain.features["lactate"].to_list()
    np.testing.assert_allclose(made.features["x"].to_numpy(), plain.features["x"].to_numpy())
    with xlsxwriter.Workbook(tmp_path / "titled.xlsx") as book:
        sheet = book.add_worksheet("Daten")
        book.add_worksheet("Legende")
        rows = [["Auszug 2024"], [], frame.columns, *frame.rows()]
        for r, row in enumerate(rows):
            for c, cell in enumerate(row):
                sheet.write(r, c, cell)
    titled = read_table(tmp_path / "titled.xlsx", "died", "hospital")
    assert titled.label.tolist() == plain.label.tolist() and titled.features.columns == plain.features.columns
    assert [w.split(": ")[1][:22] for w in titled.notes.warnings] == [
        "lines 1 to 2 above the",
        "only the first sheet 'D"[:22],
    ]


def test_excel_without_its_reader_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "t.xlsx").write_bytes(b"PK\x03\x04 rest")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r"pip install 'abps\[excel\]'"):
        read_table(tmp_path / "t.xlsx", "y", "h")


def test_a_broken_workbook_is_one_sentence(tmp_path):
    pytest.importorskip("fastexcel")
    (tmp_path / "t.csv").write_bytes(b"PK\x03\x04 rest")
    with pytest.raises(RequestError, match="cannot be read as a workbook"):
        read_table(tmp_path / "t.csv", "y", "h")


def test_one_hospital_is_said_so(tmp_path):
    with pytest.raises(RequestError, match=r"'h' names one hospital only: 'a'.*center=COL"):
        read_lines(tmp_path, [line.replace(",b,", ",a,") for line in LINES])
    one = pl.DataFrame({"h": ["a"] * 20, "y": [0, 1] * 10, "x": range(20)})
    with pytest.raises(RequestError, match="one hospital only: 'a'"):
        read_table(csv(tmp_path, one.write_csv()), "y", "h")


def test_the_columns_that_a_file_lacks_are_asked_for_by_name(tmp_path):
    from abps.data.roles import Roles

    with pytest.raises(RequestError, match="name its columns with center=COL; the table has y, h, x"):
        load_file(csv(tmp_path, "\n".join(LINES)), Roles("y", ""))


def stays(rows: int = 120) -> dict[str, list]:
    """Two hospitals, a label of 0 and 1, and one column to learn from."""
    rng = np.random.default_rng(3)
    return {
        "hospital": ["East", "West"] * (rows // 2),
        "died": [k % 5 == 0 for k in range(rows)],
        "age": rng.normal(65, 10, rows).round(1).tolist(),
    }


def written(path, columns, above=""):
    """A CSV file of columns, with lines above its header."""
    path.write_text(above + pl.DataFrame(columns).with_columns(pl.col("died").cast(pl.String)).write_csv())
    return path


@pytest.mark.parametrize(("role", "gap"), [("label", "died"), ("center", "hospital")])
def test_a_gap_is_named_by_its_line_in_the_file(tmp_path, role, gap):
    columns = stays()
    columns[gap][7] = None
    path = written(tmp_path / "t.csv", columns, "Export of the ward,,\nmade in May,,\n")
    with pytest.raises(
        RequestError, match=rf"the {role} '{gap}' is missing in 1 row\(s\), first in line 11;"
    ):
        read_table(path, "died", "hospital")


def test_a_row_of_totals_is_named_by_its_line(tmp_path):
    columns = stays()
    columns["died"] = [str(int(d)) for d in columns["died"]]
    columns = {name: [*values, last] for (name, values), last in zip(columns.items(), ("East", "24", 65.0))}
    says = r"1 row\(s\) have neither '0' nor '1', such as line 122 with '24'; correct or remove these rows"
    with pytest.raises(RequestError, match=says):
        read_table(written(tmp_path / "t.csv", columns), "died", "hospital")
    columns["died"] = [["none", "some", "severe"][k % 3] for k in range(121)]
    with pytest.raises(RequestError, match="choose outcome=classes"):
        read_table(written(tmp_path / "t.csv", columns), "died", "hospital")


def test_dates_in_several_formats_are_one_column(tmp_path):
    days = [datetime.date(2021, 1, 1) + datetime.timedelta(3 * k) for k in range(120)]
    forms = ("%d.%m.%Y", "%Y-%m-%d", "%m/%d/%Y")
    columns = {**stays(), "admitted": [day.strftime(forms[k % 3]) for k, day in enumerate(days)]}
    path = written(tmp_path / "t.csv", columns)
    found = read_table(path, "died", "hospital", time="admitted")
    assert np.allclose(found.time, [day.year + (day.timetuple().tm_yday - 1) / 365 for day in days])
    assert [w for w in found.notes.warnings if "dates in 3 formats ('01.01.2021' and '2021-01-04' and" in w]
    columns["admitted"][5] = "2021-13-45"
    path = written(tmp_path / "t.csv", columns)
    with pytest.raises(
        RequestError, match=r"'admitted' holds '2021-13-45', which is neither a date nor a nu"
    ):
        read_table(path, "died", "hospital", time="admitted")


def test_hospitals_that_differ_in_an_accent_are_asked_about(tmp_path):
    columns = stays(400)
    columns["hospital"] = [["Charité", "CHARITE", "uni-köln", "Uni Köln"][k % 4] for k in range(400)]
    columns["died"] = [k % 7 < 2 for k in range(400)]
    warnings = read_table(written(tmp_path / "t.csv", columns), "died", "hospital").notes.warnings
    assert len(warnings) == 2 and all("differ in accents or punctuation only" in w for w in warnings)
