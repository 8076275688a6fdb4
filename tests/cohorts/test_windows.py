"""Federations that move from window to window: streams that change, splits, windows in force."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from abps.core.errors import RequestError
from abps.data.prepare import prepare
from abps.data.roles import Roles
from abps.data.split import assign_splits
from abps.data.synthetic.builtin import parse_builtin
from abps.data.synthetic.icu import IcuSynthetic, population_of
from abps.data.synthetic.icu_stream import IcuStream
from abps.data.table import federate, load, read_table
from abps.data.timeline import timeline

SMALL = {"centers": 9, "groups": 3, "stays": 2700, "heterogeneity": 4.0, "rounds": 12, "every": 4, "at": 5}
SPEC = "icu-stream:" + ",".join(f"{k}={v}" for k, v in SMALL.items())


def test_without_a_change_the_windows_are_alike_and_all_new() -> None:
    table = IcuStream(**SMALL, change="none").generate()
    assert table["era"].unique().sort().to_list() == [0, 1, 2]
    assert table.group_by("era").len()["len"].to_list() == [2700] * 3
    rates = table.group_by("era").agg(pl.col("died").mean())["died"].to_numpy()
    assert np.ptp(rates) < 0.005
    patients = table.group_by("patient").agg(pl.col("era").n_unique())
    assert patients["era"].max() == 1  # nobody is a patient of two windows
    first, second = (table.filter(pl.col("era") == e)["age"].to_numpy() for e in (0, 1))
    assert (first != second).any()


def test_the_population_is_that_of_icu_synthetic() -> None:
    plain = {k: SMALL[k] for k in ("centers", "groups", "stays", "heterogeneity")}
    a, b = population_of(IcuStream(**SMALL)), population_of(IcuSynthetic(**plain))
    assert a.names == b.names
    np.testing.assert_array_equal(a.own, b.own)
    np.testing.assert_array_equal(a.sizes, b.sizes)


@pytest.mark.parametrize(
    ("course", "over", "expected"),
    [
        ("sudden", 4, [0, 1, 1, 1, 1, 1]),
        ("gradual", 12, [0, 1 / 3, 2 / 3, 1, 1, 1]),
        ("recurring", 4, [0, 1, 0, 1, 0, 1]),
        ("recurring", 8, [0, 1, 1, 0, 0, 1]),
    ],
)
def test_the_course_of_a_change(course: str, over: int, expected: list[float]) -> None:
    knobs = IcuStream(**{**SMALL, "rounds": 24}, course=course, over=over)
    assert [knobs.progress(e) for e in range(6)] == pytest.approx(expected)


def test_risk_changes_for_the_share_of_centers_and_nothing_else_does() -> None:
    knobs = IcuStream(**SMALL, change="risk", share=1 / 3)
    before = population_of(knobs)
    moved = knobs.affected(before)
    assert moved.sum() == 3
    after = knobs._moved(before, moved, 1.0)
    np.testing.assert_array_equal(after.own[~moved], before.own[~moved])
    groups = np.array(before.groups)
    follows = knobs.follows(1)
    for i in np.flatnonzero(moved):
        new = follows[before.names[i]]
        assert new != groups[i]
        np.testing.assert_allclose(after.own[i], before.own[np.flatnonzero(groups == new)[0]])
    for name in ("age", "comorbidity", "vitals", "sizes"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
    table = knobs.generate()
    stated = dict(zip(before.names, before.mortality[before.stratum]))
    for i in np.flatnonzero(moved):  # a changed center keeps its mortality
        deaths = table.filter((pl.col("center") == before.names[i]) & (pl.col("era") > 0))["died"]
        assert deaths.mean() == pytest.approx(stated[before.names[i]], abs=0.01)
    for unit in set(groups):  # and so do the others
        names = [n for n, g, m in zip(before.names, groups, moved) if g == unit and not m]
        rows = table.filter(pl.col("center").is_in(names))
        rate = rows.group_by("era").agg(pl.col("died").mean())["died"].to_numpy()
        assert np.ptp(rate) < 0.03


def test_half_way_a_gradual_change_is_half_a_change() -> None:
    knobs = IcuStream(**SMALL, change="risk", share=1.0, strength=2.0)
    before = population_of(knobs)
    everyone = np.ones(9, bool)
    full, half = (knobs._moved(before, everyone, far).own for far in (1.0, 0.5))
    np.testing.assert_allclose(half - before.own, (full - before.own) / 2)


def test_a_unit_whose_protocol_changes() -> None:
    knobs = IcuStream(**SMALL, change="protocol", unit="SICU")
    before = population_of(knobs)
    moved = knobs.affected(before)
    assert [g == "SICU" for g in before.groups] == moved.tolist()
    after = knobs._moved(before, moved, 1.0)
    assert len(np.unique(after.own[moved].round(9), axis=0)) == 1
    assert not any(np.allclose(after.own[moved][0], own) for own in before.own)
    assert set(knobs.follows(2).values()) == {"CVICU", "TSICU", "NEW"}


def test_outcome_and_case_mix_shift_what_they_say() -> None:
    rates = {}
    for change in ("outcome", "case_mix"):
        knobs = IcuStream(**{**SMALL, "stays": 9000}, change=change, share=0.5)
        before = population_of(knobs)
        names = [n for n, m in zip(before.names, knobs.affected(before)) if m]
        table = knobs.generate().with_columns(moved=pl.col("center").is_in(names))
        rates[change] = table.group_by("moved", "era").agg(
            pl.col("died").mean(), pl.col("age").mean(), pl.col("cci_renal").mean()
        )

    def value(change: str, moved: bool, era: int, column: str) -> float:
        rows = rates[change].filter((pl.col("moved") == moved) & (pl.col("era") == era))
        return float(rows[column][0])

    assert value("outcome", True, 2, "died") > 1.5 * value("outcome", True, 0, "died")
    assert value("outcome", False, 2, "died") == pytest.approx(value("outcome", False, 0, "died"), abs=0.01)
    assert value("case_mix", True, 2, "age") - value("case_mix", True, 0, "age") > 4
    assert value("case_mix", True, 2, "cci_renal") > 1.3 * value("case_mix", True, 0, "cci_renal")
    assert abs(value("case_mix", False, 2, "age") - value("case_mix", False, 0, "age")) < 1.5


@pytest.mark.parametrize(
    ("knobs", "word"),
    [
        ({"change": "weather"}, "weather"),
        ({"course": "suden"}, "sudden"),
        ({"share": 1.5}, "share"),
        ({"every": 0}, "every"),
        ({"change": "protocol"}, "unit"),
        ({"groups": 1, "change": "risk"}, "groups"),
    ],
)
def test_wrong_knobs(knobs: dict[str, object], word: str) -> None:
    with pytest.raises(RequestError, match=word):
        IcuStream(**{**SMALL, **knobs})


def test_an_unknown_unit_is_told_the_known_ones() -> None:
    with pytest.raises(RequestError, match="did you mean 'SICU'"):
        IcuStream(**SMALL, change="protocol", unit="SIKU").generate()


# --------------------------------------------------------------------------- windows in force


def test_a_stream_is_a_federation_with_windows() -> None:
    federation = load(SPEC)
    assert federation.eras == 3 and federation.every == 4
    assert "era" not in federation.features.columns
    source = timeline(federation, 11, 12)
    assert source.starts == (1, 5, 9)
    windows = [source.at(t) for t in (1, 4, 5, 8, 9, 50)]
    assert windows[0] is windows[1]
    assert windows[2] is windows[3] and windows[2] is not windows[0]
    assert windows[4] is windows[5]
    assert len({w.columns for w in windows}) == 1
    assert len({w.centers for w in windows}) == 1
    for era, window in ((0, windows[0]), (2, windows[4])):
        rows = sum(len(part.y) for part in (window.train, window.validation, window.test))
        assert rows == int((federation.era == era).sum())
        means = np.add.reduceat(window.train.x[:, 0], window.train.start[:-1]) / window.train.sizes
        np.testing.assert_allclose(means, 0, atol=1e-5)  # standardised on the window in force


def test_every_window_is_split_by_itself_and_patients_are_not_cut() -> None:
    federation = load(SPEC)
    split = assign_splits(federation, 11)
    for era in range(3):
        share = np.bincount(split[federation.era == era], minlength=3) / (federation.era == era).sum()
        np.testing.assert_allclose(share, (0.7, 0.15, 0.15), atol=0.05)
        for i in range(federation.size):
            mine = (federation.era == era) & (federation.center == i)
            for part in range(3):
                assert federation.label[mine & (split == part)].sum() > 0
    frame = pl.DataFrame({"p": federation.patient, "s": split})
    assert frame.group_by("p").agg(pl.col("s").n_unique())["s"].max() == 1


def test_without_windows_splits_and_data_are_what_they_were(tiny) -> None:  # type: ignore[no-untyped-def]
    source = timeline(tiny, 11, 50)
    assert source.starts == (1,)
    same, plain = source.at(7), prepare(tiny, 11)
    np.testing.assert_array_equal(same.train.x, plain.train.x)
    assert source.at(50) is same
    ready = timeline(plain, 11, 50)
    assert ready.at(3) is plain
    labelled = replace(tiny, era=np.zeros(tiny.rows, np.int16))
    np.testing.assert_array_equal(assign_splits(labelled, 11), assign_splits(tiny, 11))


def table_with_time(path: Path, rows: int = 600) -> Path:
    rng = np.random.default_rng(2)
    pl.DataFrame(
        {
            "died": rng.integers(0, 2, rows),
            "hospital": np.array(["A", "B", "C"])[np.arange(rows) % 3],
            "year": np.sort(rng.uniform(2008, 2020, rows)).round(2),
            "set": np.repeat(["a", "b", "c"], rows // 3),
            "x": rng.normal(size=rows),
        }
    ).write_csv(path)
    return path


def test_windows_from_a_column_and_from_time(tmp_path: Path) -> None:
    path = table_with_time(tmp_path / "stays.csv")
    plain = read_table(path, "died", "hospital")
    assert plain.era is None and plain.eras == 1
    sets = load(str(path), Roles("died", "hospital", eras="set"))
    assert sets.eras == 3 and "set" not in sets.features.columns
    np.testing.assert_array_equal(np.bincount(sets.era), [200, 200, 200])
    assert timeline(sets, 11, 50).starts == (1, 17, 34)
    with pytest.raises(RequestError, match="at least 3 rounds"):
        timeline(sets, 11, 2)
    assert read_table(path, "died", "hospital", eras="set").fingerprint() == sets.fingerprint()
    assert sets.fingerprint() != load(str(path), Roles("died", "hospital")).fingerprint()
    years = load(str(path), Roles("died", "hospital", time="year", eras="4", every=10))
    assert years.eras == 4 and timeline(years, 11, 50).starts == (1, 11, 21, 31)
    assert (np.diff(years.time[np.argsort(years.era, kind="stable")]) >= 0).all()
    assert np.bincount(years.era).min() > 130


def test_a_center_must_be_there_in_every_window(tmp_path: Path) -> None:
    frame = pl.read_csv(table_with_time(tmp_path / "stays.csv"))
    gone = frame.filter(~((pl.col("hospital") == "C") & (pl.col("set") == "b")))
    federation = federate(gone, Roles("died", "hospital", eras="set"), "gone", 20)
    assert federation.centers == ("A", "B")
    assert federation.left_out[0].center == "C" and "window 2" in federation.left_out[0].reason


@pytest.mark.parametrize(
    ("roles", "word"),
    [
        (Roles("died", "hospital", eras="4"), "time column"),
        (Roles("died", "hospital", time="year", eras="1"), "at least 2"),
        (Roles("died", "hospital", eras="sett"), "did you mean 'set'"),
        (Roles("died", "hospital", eras="set", every=0), "at least 1 round"),
        (Roles("died", "hospital", every=5), "with eras"),
    ],
)
def test_wrong_windows(roles: Roles, word: str, tmp_path: Path) -> None:
    path = table_with_time(tmp_path / "stays.csv")
    with pytest.raises(RequestError, match=word):
        load(str(path), roles)


def test_the_stream_is_built_in_with_all_knobs_of_icu_synthetic() -> None:
    knobs, roles = parse_builtin(SPEC)
    assert isinstance(knobs, IcuStream) and roles.eras == "era" and roles.every == 4
