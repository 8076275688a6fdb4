"""Drift and recovery: what is read off the runs, against runs made by hand, and the command as a whole."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from abps.cli.main import main
from abps.core.errors import RequestError
from abps.lab import drift_simulation as adapt

SPEC = "icu-stream:centers=6,groups=2,stays=1800,heterogeneity=4,rounds=8,every=2,at=5"
QUICK = ["--set", "epochs=1", "--set", "hidden=8", "--set", "kappa=1"]


def course(
    forget: str, seed: int, changing: bool, level: float, alarms: tuple = (), rounds: int = 8
) -> adapt.DriftRun:
    """A run with a level of AUROC after round 4."""
    auroc = np.where(np.arange(rounds) < 4, 0.6, level)
    names = tuple(sorted(adapt.Scenario.of(SPEC).knobs.follows(0)))
    n = len(names)
    return adapt.DriftRun(
        forget, seed, changing, names, auroc, np.full(rounds, 0.5), alarms,
        np.zeros((rounds, n, n), bool), 0.01, True,
    )  # fmt: skip


def test_the_scenario_and_its_twin_without_the_change() -> None:
    scenario = adapt.Scenario.of(SPEC + ",change=outcome")
    assert scenario.begins == 5
    assert scenario.still == SPEC + ",change=none"
    for wrong, word in (
        ("icu-synthetic", "icu-stream"),
        (SPEC + ",change=none", "nothing changes"),
        (SPEC.replace("at=5", "at=8"), "not within"),
    ):
        with pytest.raises(RequestError, match=word):
            adapt.Scenario.of(wrong)


def test_differences_are_seed_by_seed() -> None:
    scenario = adapt.Scenario.of(SPEC)
    runs = [
        course("never", 1, True, 0.70), course("alarm", 1, True, 0.72),
        course("never", 2, True, 0.70), course("alarm", 2, True, 0.69),
        course("never", 1, False, 0.80), course("alarm", 1, False, 0.79),
        course("never", 2, False, 0.80), course("alarm", 2, False, 0.80),
        course("never", 3, True, 0.70),
    ]  # fmt: skip
    (d,) = adapt.differences(scenario, runs)
    assert d.seeds == (1, 2)  # seed 3 has no partner to be compared with
    assert d.wins == 1
    assert d.gain == pytest.approx(0.005)
    assert d.loss_when_still == pytest.approx(0.0025)


def test_alarms_are_false_until_the_change_and_delays_count_from_it() -> None:
    scenario = adapt.Scenario.of(SPEC)
    changed = sorted(adapt.scenario_changed(scenario.knobs))
    others = sorted(set(scenario.knobs.follows(0)) - set(changed))
    assert len(changed) == 3
    raised = (
        (3, others[0], "loss"),
        (5, changed[0], "loss"),
        (7, changed[1], "utility"),
        (5, others[1], "loss"),
    )
    quiet = ((5, others[0], "outcome"), (6, others[1], "utility"))
    (w,) = adapt.alarm_rates(
        scenario, [course("alarm", 1, True, 0.7, raised), course("alarm", 1, False, 0.7, quiet)]
    )
    # new data come at rounds 3, 5 and 7: one look of those that change at 5, three of all others
    assert w.looks == 3 * 1 + 3 * 3 + 6 * 3
    assert w.false == 3 and w.level == 0.01
    assert (w.centers, w.false_utility) == (6, 1)
    assert (w.changed, w.found, w.delay) == (3, 2, 1.0)
    assert w.by == {"loss": 1, "utility": 1}


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["simulate-drift", *arguments])
    return int(stop.value.code or 0)


def test_the_command_writes_a_page_and_goes_on_where_it_stopped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "adapt"
    arguments = [
        "--data",
        SPEC,
        "--seeds",
        "11",
        "--forget",
        "alarm,discount",
        "--jobs",
        "1",
        "--out",
        str(out),
        *QUICK,
    ]
    assert run(*arguments, "--json") == 0
    summary = json.loads(capfd.readouterr().out)
    assert summary["schema"] == "abps.adapt/1" and summary["runs"] == 6
    assert [d["forget"] for d in summary["differences"]] == ["alarm", "discount"]
    page = (out / "adapt.html").read_text()
    assert page.count("<svg") == 3 and "style=" not in page
    assert not re.findall(r"""(?:src|href)=["']https?:""", page), "the page must work without a network"
    table = pl.read_csv(out / "tables" / "courses.csv")
    assert table.height == 6 * 8
    for name in ("accuracy", "partners", "who-with-whom"):
        assert (out / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    before = {p: p.stat().st_mtime_ns for p in (out / "runs").rglob("result.json")}
    assert run(*arguments) == 0  # nothing is computed twice
    assert before == {p: p.stat().st_mtime_ns for p in (out / "runs").rglob("result.json")}


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--data", "icu-synthetic"], "icu-stream"),
        (["--forget", "never"], "--forget"),
        (["--forget", "sometimes"], "sometimes"),
        (["--method", "fedavg"], "forget"),
        (["--set", "discount=0.5"], "--forget"),
        (["--seeds", "x"], "--seeds"),
    ],
)
def test_wrong_requests_are_one_line(
    arguments: list[str], word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--out", str(tmp_path / "x"), *arguments) == 2
    error = capsys.readouterr().err
    assert word in error and error.count("\n") == 1
