"""PhysioNet 2012: counts, rates and summaries, against plain Python over the records."""

from __future__ import annotations

import tarfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from abps.cohorts import heart, physionet2012, vitals
from abps.core.errors import RequestError

from . import oracles

Data = Callable[[str], Path]
SAMPLE = 40


@pytest.fixture(scope="module")
def root(data: Data) -> Path:
    return data("physionet2012")


@pytest.fixture(scope="module")
def cohort(root: Path) -> physionet2012.Cohort:
    return physionet2012.build(root)


@pytest.fixture(scope="module")
def records(root: Path) -> dict[int, list[tuple[int, str, float]]]:
    """Some records: minute, parameter, value."""
    found = {}
    with tarfile.open(root / "set-c.tar.gz") as archive:
        for member in archive:
            if not member.name.endswith(".txt"):
                continue
            text = archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            lines = [line.split(",") for line in text.splitlines()[1:]]
            found[int(lines[0][2])] = [
                (int(t[:2]) * 60 + int(t[3:]), name, float(v)) for t, name, v in lines if name and v
            ]
            if len(found) == SAMPLE:
                return found
    raise AssertionError("fewer records than expected")


def test_counts_and_rates_per_icu_type(cohort: physionet2012.Cohort) -> None:
    assert cohort.table.height == 12_000 and cohort.table["stay"].n_unique() == 12_000
    rates = {
        unit: round(100 * rate, 1)
        for unit, rate in cohort.table.group_by("careunit").agg(pl.col("died").mean()).iter_rows()
    }
    sets = dict(cohort.table.group_by("set").agg(pl.len()).iter_rows())
    assert sets == {"a": 4000, "b": 4000, "c": 4000}
    assert "set" in cohort.roles.drop  # never a feature
    assert rates == {"CCU": 12.7, "CSRU": 4.9, "MICU": 19.8, "SICU": 14.9}


KINDS = {
    "HR": "heart_rate", "SysABP": "sbp", "NISysABP": "sbp", "DiasABP": "dbp", "NIDiasABP": "dbp",
    "MAP": "mbp", "NIMAP": "mbp", "RespRate": "resp_rate", "SaO2": "spo2", "Temp": "celsius",
}  # fmt: skip


@pytest.mark.parametrize("hours", [24, 48])
def test_summaries(
    small: Path, cohort: physionet2012.Cohort, records: dict[int, list[tuple[int, str, float]]], hours: int
) -> None:
    table = cohort.table
    if hours == 48:
        table = physionet2012.build(small, physionet2012.PhysionetOptions(hours=48)).table
    rows = {r["stay"]: r for r in table.iter_rows(named=True)}
    compared = 0
    for stay, lines in records.items():
        inside = [(t, name, v) for t, name, v in lines if t <= hours * 60]
        expected = oracles.summarise([(stay, t, KINDS[n], v) for t, n, v in inside if n in KINDS])
        for vital in vitals.VITALS:
            have = tuple(rows[stay][f"{vital}_{s}"] for s in ("mean", "min", "max"))
            want = expected.get((stay, vital))
            assert have == ((None, None, None) if want is None else pytest.approx(want, abs=1e-6))
            compared += want is not None
        for parameter, name in (("BUN", "bun"), ("GCS", "gcs"), ("WBC", "wbc")):
            moments = defaultdict(list)
            for t, n, v in inside:
                if n == parameter and v >= 0:
                    moments[t].append(v)
            have = tuple(rows[stay][f"{name}_{s}"] for s in ("mean", "min", "max"))
            assert have == (
                pytest.approx(oracles.summary(dict(moments)), abs=1e-6) if moments else (None,) * 3
            )
        urine = [v for _, n, v in inside if n == "Urine" and 0 <= v <= 11_000]
        assert rows[stay]["urine_total"] == (pytest.approx(sum(urine), abs=1e-6) if urine else None)
        assert rows[stay]["mech_vent"] == any(n == "MechVent" and v == 1 for _, n, v in inside)
    assert compared > 5 * SAMPLE
    assert 0.2 < table["mech_vent"].mean() < 0.8  # type: ignore[operator]
    assert table["temperature_min"].min() > 10  # type: ignore[operator]
    assert table["height"].min() >= 100  # −1 is missing  # type: ignore[operator]


@pytest.fixture
def small(root: Path, tmp_path: Path) -> Path:
    """A few records as a folder, with all outcomes."""
    target = tmp_path / "small"
    (target / "set-c").mkdir(parents=True)
    (target / "Outcomes-c.txt").write_bytes((root / "Outcomes-c.txt").read_bytes())
    with tarfile.open(root / "set-c.tar.gz") as archive:
        count = 0
        for member in archive:
            if member.name.endswith(".txt"):
                content = archive.extractfile(member).read()  # type: ignore[union-attr]
                (target / "set-c" / Path(member.name).name).write_bytes(content)
                count += 1
                if count == SAMPLE:
                    return target
    raise AssertionError


def test_folders_and_archives_are_the_same(small: Path, cohort: physionet2012.Cohort) -> None:
    as_folder = physionet2012.build(small).table
    assert as_folder.height == SAMPLE
    alone = physionet2012.build(small)
    assert alone.facts["outcomes_without_record"] == 4_000 - SAMPLE
    assert any(w.startswith("3960 of 4000 outcomes have no record") for w in alone.warnings)
    assert cohort.facts["outcomes_without_record"] == 0
    assert as_folder.equals(cohort.table.filter(pl.col("stay").is_in(as_folder["stay"].implode())))
    with tarfile.open(small / "set-c.tar.gz", "w:gz") as archive:
        archive.add(small / "set-c", "set-c")
    both_present = physionet2012.build(small).table
    for file in (small / "set-c").iterdir():
        file.unlink()
    (small / "set-c").rmdir()
    assert physionet2012.build(small).table.equals(as_folder) and both_present.equals(as_folder)


def test_bad_input(small: Path, tmp_path: Path) -> None:
    record = next(iter((small / "set-c").iterdir()))
    kept = record.read_text()
    record.write_text(kept.replace("Time,Parameter,Value", "Time;Parameter;Value"))
    with pytest.raises(RequestError, match="is not a record of the challenge"):
        physionet2012.build(small)
    record.write_text(kept + "01:00,HR,fast\n")
    with pytest.raises(RequestError, match=r"record \d+ has a line that is not time, parameter, number"):
        physionet2012.build(small)
    record.write_text(kept)
    outcomes = small / "Outcomes-c.txt"
    outcomes.write_text(outcomes.read_text().replace("In-hospital_death", "Died"))
    with pytest.raises(RequestError, match="no column 'In-hospital_death'"):
        physionet2012.build(small)
    outcomes.unlink()
    with pytest.raises(RequestError, match=r"no Outcomes-a.txt"):
        physionet2012.build(small)
    with pytest.raises(RequestError, match="is not a folder"):
        physionet2012.build(tmp_path / "nowhere")
    with pytest.raises(RequestError, match="between 0 and 48"):
        physionet2012.PhysionetOptions(hours=72)


def test_truncated_archive(root: Path, tmp_path: Path) -> None:
    (tmp_path / "Outcomes-c.txt").write_bytes((root / "Outcomes-c.txt").read_bytes())
    (tmp_path / "set-c.tar.gz").write_bytes((root / "set-c.tar.gz").read_bytes()[:200_000])
    with pytest.raises(RequestError, match=r"set-c.tar.gz is cut off or damaged"):
        physionet2012.build(tmp_path)


def test_heart_disease(data: Data, tmp_path: Path) -> None:
    made = heart.build(data("heart-disease"))
    sizes = dict(made.table.group_by("hospital").len().iter_rows())
    assert sizes == {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
    expected = defaultdict(int)
    for hospital in sizes:
        for line in (data("heart-disease") / f"processed.{hospital}.data").read_text().split():
            expected[hospital] += float(line.split(",")[13]) > 0
    assert dict(made.table.group_by("hospital").agg(pl.col("disease").sum()).iter_rows()) == dict(expected)
    swiss = made.table.filter(pl.col("hospital") == "switzerland")
    assert swiss["chol"].null_count() == 123  # all are written as 0, which nobody has
    assert made.table["oldpeak"].min() < 0  # type: ignore[operator]
    with pytest.raises(RequestError, match="is missing"):
        heart.build(tmp_path)
    for name in heart.HOSPITALS:
        (tmp_path / f"processed.{name}.data").write_text("63,1,1\n")
    with pytest.raises(RequestError, match="14 numbers"):
        heart.build(tmp_path)
