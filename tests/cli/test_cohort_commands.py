"""abps cohort, partition and drift from the command line: files, exit codes, and nothing half-written."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from abps.cli.main import main
from abps.data import roles as provenance

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
needs_data = pytest.mark.skipif(
    not DATA.exists(), reason="the open data are not beside the project (shared/data)"
)


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    return int(stop.value.code or 0)


@needs_data
def test_mimiciv_writes_everything_beside_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "cohort.parquet"
    assert run("cohort", "mimiciv", DATA / "mimic-iv-demo-2.2", "--out", out, "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["rows"], summary["positives"], summary["centers"]) == (140, 20, 9)
    assert summary["flow"][0] == {
        "label": "ICU stays in icu/icustays", "stays": 140, "patients": 100, "positives": 20, "left_out": 0,
    }  # fmt: skip
    ends = ("dictionary.csv", "flow.svg", "html", "parquet", "provenance.json")
    assert sorted(p.name for p in out.parent.iterdir()) == [f"cohort.{end}" for end in ends]
    table = pl.read_parquet(out)
    inside = provenance.read_provenance(out)
    beside = json.loads(out.with_suffix(".provenance.json").read_text())
    assert inside == beside and beside["recipe"] == "mimiciv/2" and len(beside["files"]) == 5
    assert [c["name"] for c in beside["columns"]] == table.columns
    listed = pl.read_csv(out.with_suffix(".dictionary.csv"))
    assert listed["column"].to_list() == table.columns
    assert "age outside 18–95 years" in out.with_suffix(".flow.svg").read_text()


@needs_data
def test_from_raw_tables_to_a_federation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cohort, fed = tmp_path / "e.parquet", tmp_path / "fed.parquet"
    assert run("cohort", "eicu", DATA / "eicu-demo-2.0", "--out", cohort, "--json") == 0
    captured = capsys.readouterr()  # progress and warnings never reach stdout
    assert len(captured.out.splitlines()) == 1 and "vitalPeriodic" in captured.err
    assert json.loads(captured.out)["rows"] == 2_492
    assert run("cohort", "eicu", DATA / "eicu-demo-2.0", "--out", cohort) == 0
    hint = capsys.readouterr().out.splitlines()[-1].removeprefix("next: abps ").split()
    assert hint[:4] == ["partition", str(cohort), "--iid", "5"]  # its hospitals are too small
    assert run(*hint[:-1], tmp_path / "hint.parquet") == 0 and "5 centers" in capsys.readouterr().out
    assert run("partition", cohort, "--by", "hospital", "--out", fed) == 2
    assert "--min-stays 25 keeps two or more" in capsys.readouterr().err
    assert run("partition", cohort, "--by", "hospital", "--min-stays", 25, "--out", fed) == 0
    captured = capsys.readouterr()
    assert "2 centers, 50 stays" in captured.out and len(captured.err.splitlines()) < 30
    assert run("partition", cohort, "--by", "region,beds", "--out", fed) == 0
    assert "15 centers, 2,234 stays; left out 8 cells with 258 stays" in capsys.readouterr().out
    from abps.cli.options import DataOptions

    made = DataOptions().federation(str(fed))
    assert made.size == 15 and made.rows == 2_234 and made.groups is not None and made.patient is not None
    assert not {"stay", "hospital", "region", "died", "center", "group"} & set(made.features.columns)
    assert len(made.descriptors) == 12
    by_unit = DataOptions(center="careunit", drop="age", min_stays=30).federation(str(fed))
    assert not {"center", "group", "region", "hospital", "age"} & set(by_unit.features.columns)
    assert by_unit.groups is None
    assert run("drift", "--data", fed, "--era", "admission_year", "--out", tmp_path / "drift") == 0
    written = json.loads((tmp_path / "drift" / "drift.json").read_text())
    assert written["between"] == ["2014.0", "2015.0"] and written["outcome_js_nats"]["within_pairs"] > 0


@needs_data
@pytest.mark.parametrize("spoil", ["truncate", "rename", "remove"])
def test_bad_input_leaves_no_file_and_keeps_the_old_cohort(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: str
) -> None:
    source, out = tmp_path / "mimic", tmp_path / "out" / "cohort.parquet"
    shutil.copytree(DATA / "mimic-iv-demo-2.2", source, copy_function=shutil.copyfile)
    for folder in (source, source / "icu", source / "hosp"):
        folder.chmod(0o755)
    chart = source / "icu" / "chartevents.csv.gz"
    content = chart.read_bytes()
    if spoil == "truncate":
        chart.write_bytes(content[: len(content) // 2])
    elif spoil == "rename":
        chart.write_bytes(gzip.compress(gzip.decompress(content).replace(b"valuenum", b"value_num", 1)))
    else:
        chart.unlink()
    assert run("cohort", "mimiciv", source, "--out", out) == 2
    error = capsys.readouterr().err
    assert error.startswith("abps: ") and "chartevents" in error and "Traceback" not in error
    assert len(error.strip().splitlines()) == 1
    assert not out.parent.exists() or list(out.parent.iterdir()) == []
    out.parent.mkdir(exist_ok=True)
    out.write_bytes(b"the cohort of yesterday")
    assert run("cohort", "mimiciv", source, "--out", out) == 2
    assert out.read_bytes() == b"the cohort of yesterday" and len(list(out.parent.iterdir())) == 1


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = 3_000
    path = tmp_path / "stays.csv"
    pl.DataFrame(
        {
            "died": (rng.uniform(size=rows) < 0.2).astype(int),
            "careunit": rng.choice(["CCU", "MICU"], rows),
            "admission_year": rng.uniform(2110, 2114, rows),
            "patient": rng.integers(0, 2_000, rows),
            "age": rng.normal(60, 10, rows),
        }
    ).write_csv(path)
    return path


def test_partition_of_an_own_csv(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "fed.parquet"
    assert run("partition", table, "--by", "careunit,window:2y", "--out", out, "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["centers"] == 4 and summary["rows"] == 3_000
    made = pl.read_parquet(out)
    assert sorted(made["center"].unique()) == ["CCU/2110", "CCU/2112", "MICU/2110", "MICU/2112"]
    assert summary["roles"] == {
        "label": "died", "center": "center", "patient": "patient", "time": "admission_year", "group": "group",
        "drop": ["careunit"],
    }  # fmt: skip
    assert run("partition", table, "--iid", 5, "--out", out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["centers"] == 5
    assert run("partition", table, "--dirichlet", 5, "--centers", 6, "--seed", 3, "--out", out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["patients_in_several_centers"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("partition", "TABLE"), "say how to divide"),
        (("partition", "TABLE", "--by", "ward"), "no column 'ward'"),
        (("partition", "TABLE", "--by", "careunit", "--out", "OUT.csv"), "must end in .parquet"),
        (("partition", "nowhere.parquet", "--by", "careunit"), "no such file"),
        (("partition", "TABLE", "--iid", "5", "--centers", "4"), "leave --centers out"),
        (("drift", "--data", "TABLE"), "--label"),
        (
            ("drift", "--data", "TABLE", "--label", "died", "--time", "admission_year", "--between", "2110"),
            "two eras",
        ),
        (("drift", "--data", "icu-synthetik"), "no such file"),
        (("cohort", "heart", "nowhere"), "is missing"),
        (("cohort", "mimiciv", "nowhere"), "does not exist"),
        (("cohort", "mimiciv", "nowhere", "--window", "36h"), "choose one of 24h, 6h, 12h, 48h, mimic-code"),
        (("cohort", "physionet2012", "nowhere", "--hours", "99"), "between 0 and 48"),
    ],
)
def test_wrong_requests_end_in_one_line(
    table: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert run(*(str(table) if a == "TABLE" else a for a in arguments)) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_drift_of_the_built_in_federation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "drift"
    assert run("drift", "--data", "icu-synthetic:centers=24", "--out", out, "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert len(summary["shifts"]) == 7
    assert summary["outcome_js_nats"]["between"] > summary["outcome_js_nats"]["within"]
    assert sorted(p.name for p in out.iterdir()) == [
        *(f"drift-{name}.{kind}" for name in ("centers", "histograms", "rates") for kind in ("pdf", "svg")),
        "drift.html",
        "drift.json",
    ]


@needs_data
def test_heart_and_meds_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cohort", "heart", DATA / "heart-disease", "--out", tmp_path / "h.parquet", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 920
    assert run("cohort", "meds", DATA / "mimic-iv-demo-meds", "--out", tmp_path / "m.parquet", "--json") == 0
    assert json.loads(capsys.readouterr().out)["positives"] == 20
