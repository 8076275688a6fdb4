"""Outcomes from tables: what is read, what is refused in a sentence, and what follows from a stated rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import abps
from abps import RequestError
from abps.data.outcome import grid_hazards, time_grid
from abps.data.prepare import prepare
from abps.data.split import assign_splits


def table(rows: int = 600, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=rows)
    time, watched = np.ceil(rng.exponential(20 * np.exp(-x))), np.ceil(rng.exponential(40, rows))
    return pl.DataFrame(
        {
            "hospital": [f"h{k}" for k in rng.integers(0, 4, rows)],
            "x": x,
            "z": rng.normal(size=rows),
            "died": (time <= watched).astype(int),
            "days": np.minimum(time, watched),
            "kind": np.array(["mild", "sharp", "dull"])[rng.integers(0, 3, rows)],
            "stay": 5 + 2 * x + rng.normal(size=rows),
        }
    )


def read(frame: pl.DataFrame, tmp_path: Path, **roles: object) -> abps.Federation:
    frame.write_csv(tmp_path / "t.csv")
    return abps.read_table(tmp_path / "t.csv", center="hospital", **roles)  # type: ignore[arg-type]


def test_survival_is_told_by_its_duration(tmp_path: Path) -> None:
    frame = table()
    fed = read(frame, tmp_path, label="died", duration="days", drop=("kind", "stay"))
    assert fed.outcome.kind == "survival" and set(fed.features.columns) == {"x", "z"}
    np.testing.assert_array_equal(np.abs(fed.label), frame["days"].to_numpy())
    np.testing.assert_array_equal(~np.signbit(fed.label), frame["died"].to_numpy() > 0)


def test_classes_and_numbers(tmp_path: Path) -> None:
    classes = read(table(), tmp_path, label="kind", outcome="classes", drop=("stay", "died", "days"))
    assert classes.outcome.names == ("dull", "mild", "sharp")
    numbers = read(table(), tmp_path, label="stay", outcome="continuous", drop=("kind", "died", "days"))
    data = prepare(numbers, 11)
    # Level and scale follow from counts in bins, of which the last are a thirtieth of the range.
    assert data.outcome.scale > 1
    assert abs(data.train.y.mean()) < 0.03 and data.train.y.std() == pytest.approx(1.0, abs=0.03)


def test_splits_hold_every_class_and_every_patient_once(tmp_path: Path) -> None:
    fed = read(table(), tmp_path, label="kind", outcome="classes", drop=("stay", "died", "days"))
    split = assign_splits(fed, 11)
    for center in range(fed.size):
        for part in range(3):
            seen = fed.label[(split == part) & (fed.center == center)]
            assert set(seen.tolist()) == {0.0, 1.0, 2.0}


REFUSED = [
    (lambda f: f.with_columns(died=pl.lit(0)), {"label": "died", "duration": "days"}, "all censored"),
    (
        lambda f: f.with_columns(days=pl.when(pl.col("x") > 2).then(-1.0).otherwise(pl.col("days"))),
        {"label": "died", "duration": "days"},
        "is negative in",
    ),
    (
        lambda f: f.with_columns(died=(pl.int_range(pl.len()) == 3).cast(pl.Int64)),
        {"label": "died", "duration": "days"},
        "fewer than 3 events",
    ),
    (lambda f: f, {"label": "died", "outcome": "survival"}, "name its column with duration=COL"),
    (
        lambda f: f,
        {"label": "died", "duration": "days", "outcome": "classes"},
        "only survival has a duration",
    ),
    (lambda f: f, {"label": "died", "duration": "kind"}, "which is no number"),
    (lambda f: f, {"label": "died", "duration": "dayz"}, "no column 'dayz' for duration"),
    (lambda f: f, {"label": "stay", "outcome": "classes"}, "2 to 50"),
    (lambda f: f, {"label": "kind", "outcome": "continuous"}, "which is no number"),
    (lambda f: f, {"label": "kind"}, "choose outcome=classes or outcome=continuous"),
    (lambda f: f, {"label": "died", "outcome": "surviv"}, "no outcome 'surviv'.*survival"),
    (lambda f: f, {"label": "kind", "outcome": "classes", "positive": "mild"}, "has no event"),
    (lambda f: f, {"label": "died", "outcome": "survival:cox"}, "abps regress"),
]


@pytest.mark.parametrize(("spoil", "roles", "words"), REFUSED, ids=lambda v: v if isinstance(v, str) else "")
def test_what_is_refused_in_a_sentence(spoil, roles, words, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(RequestError, match=words):
        read(spoil(table()), tmp_path, **roles)


def test_a_center_with_too_few_events_is_left_out_and_named(tmp_path: Path) -> None:
    frame = table().with_columns(
        died=pl.when((pl.col("hospital") == "h2") & (pl.col("x") < 2.2)).then(0).otherwise(pl.col("died"))
    )
    fed = read(frame, tmp_path, label="died", duration="days", drop=("kind", "stay"))
    assert [o.center for o in fed.left_out] == ["h2"] and "fewer than 3 events" in fed.left_out[0].reason


def test_a_class_that_a_center_lacks_is_no_reason_to_leave_it_out(tmp_path: Path) -> None:
    """The rule: it learns from the classes that it has, and its score is the mean over them."""
    frame = table().filter(~((pl.col("hospital") == "h1") & (pl.col("kind") == "dull")))
    fed = read(frame, tmp_path, label="kind", outcome="classes", drop=("stay", "died", "days"))
    assert fed.size == 4
    run = abps.simulate(fed, "fedavg", rounds=2, model="linear")
    assert np.isfinite(run.main.per_center["h1"])


def test_the_grid_has_enough_events_everywhere() -> None:
    rng = np.random.default_rng(1)
    signed = np.where(rng.random(400) < 0.5, 1, -1) * np.ceil(rng.exponential(30, 400))
    grid = time_grid(signed)
    times = signed[signed > 0]
    inside = np.histogram(times, [-1, *grid])[0]
    assert inside.min() >= 10 and len(grid) <= 10 and grid[-1] == times.max()
    assert 0 < min(grid_hazards(signed, grid)) < max(grid_hazards(signed, grid)) <= 1


def test_a_federation_keeps_its_outcome_on_disk(tmp_path: Path) -> None:
    from abps.study.records import read_federation, write_federation

    fed = read(table(), tmp_path, label="died", duration="days", drop=("kind", "stay"))
    write_federation(tmp_path, fed)
    assert read_federation(tmp_path, fed.fingerprint()).outcome == fed.outcome
