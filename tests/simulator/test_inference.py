"""Inference attacks: they find members where rows are few, and nothing where noise hides them."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

import abps
from abps.cli.main import main
from abps.core.errors import RequestError
from abps.methods.settings import configure, describe, undescribed
from abps.report.privacy import conclusions
from abps.simulator.inference import Protection, area, audit, cut
from abps.simulator.output import PRIVACY, RESULT, save
from federations import tiny

SMALL = {"model": "linear", "standardise": "own"}


@pytest.fixture(scope="module")
def data():
    return tiny(sizes=(80,) * 24, width=30, seed=2)


def test_areas_are_those_of_all_pairs():
    rng = np.random.default_rng(0)
    scores, member = rng.integers(0, 6, 40).astype(float), rng.random(40) < 0.4
    pairs = [np.sign(a - b) / 2 + 0.5 for a in scores[member] for b in scores[~member]]
    assert area(scores, member) == pytest.approx(np.mean(pairs))
    assert area(scores, np.zeros(40, bool)) == 0.5


def test_a_cut_center_learns_from_so_many_rows_and_the_others_are_strangers(data):
    smaller, others = cut(data, 13, 5)
    assert set(smaller.train.sizes.tolist()) == {13}
    assert (others.sizes == data.test.sizes + 80 - 13).all()
    for i in range(3):
        mine = {row.tobytes() for row in smaller.train.only(i).x}
        assert mine <= {row.tobytes() for row in data.train.only(i).x}
        assert not mine & {row.tobytes() for row in others.only(i).x}
    with pytest.raises(RequestError, match="smaller size"):
        cut(data, 81, 5)


def test_members_of_small_centers_are_found_and_noise_hides_them(data):
    method = configure("random-k1", SMALL, 4)
    noise = Protection("private", {"clip": 1.0, "dp_epsilon": 1.0})
    found = audit(method, data, 3, (10, 60), (1,), (Protection("none", {}), noise))
    few, many, few_hidden, _ = found
    assert [f.rows for f in found] == [10, 60, 10, 60]
    assert few.alignment > 0.75 and few.shadow > 0.75  # the finding: ten rows give themselves away
    assert few.alignment > many.alignment + 0.05  # and many hide each other
    assert abs(few_hidden.alignment - 0.5) < 0.08 and abs(few_hidden.shadow - 0.5) < 0.08
    said = conclusions(found)
    assert "10 training rows" in said[0] and "private" in said[0] and len(said) == 2


def status(words):
    with pytest.raises(SystemExit) as stop:
        main(words)
    return stop.value.code


def test_the_command_audits_a_run_and_computes_epsilon_again(tmp_path, capsys):
    fed = abps.load("icu-synthetic:centers=6,stays=900")
    run = abps.simulate(fed, "random-k1", seed=3, rounds=2, settings=SMALL | {"dp_epsilon": 4.0, "clip": 1.0})
    save(run, tmp_path)
    words = ["audit-privacy", str(tmp_path), "--sizes", "20", "--rounds", "1"]
    assert status(words) == 0
    assert "as it is written" in capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "audit-privacy.csv").open()))
    assert [row["protection"] for row in rows] == ["as it ran", "all digits"]
    assert "| as it ran | 20 | 1 |" in (tmp_path / "audit-privacy.md").read_text()
    path = tmp_path / PRIVACY
    ledger = json.loads(path.read_text())
    next(iter(ledger["centers"].values()))["epsilon"] = 0.5
    path.write_text(json.dumps(ledger))
    assert status(words) == 2 and "does not follow" in capsys.readouterr().err
    (tmp_path / RESULT).unlink()
    assert status(words) == 2 and "does not follow" in capsys.readouterr().err  # the ledger alone
    path.unlink()
    assert status(words) == 2 and "neither a study nor a run" in capsys.readouterr().err


def test_a_configuration_comes_back_from_what_a_result_states():
    method = configure("abps-plus", {"model": "linear", "epochs": "3", "clip": "1"}, 7)
    assert undescribed(configure("abps-plus"), json.loads(json.dumps(describe(method)))) == method
