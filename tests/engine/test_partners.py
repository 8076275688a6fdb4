"""Whom models rest on, from the audit trail."""

import json
import math

import polars as pl
import pytest

import abps
from abps.engine.partners import Partners, partners_of
from abps.engine.result import Run

#: fold, center, peer, decision, score, posterior_mean, reason
TRAIL = [
    (0, "a", None, "differences", 0.01, None, "clusters are used"),
    (0, "a", "a", "weight", 0.2, None, "own rows"),
    (0, "a", "b", "weight", 0.6, 0.9, "cluster peer"),
    (0, "a", None, "weight", 0.2, None, "all centers"),
    (0, "b", None, "rested", 1.0, None, "the evidence of its rows speaks for its own model"),
    (0, None, None, "collaboration", 0.7, None, ""),
    (1, "a", None, "differences", 0.31, None, "no structure is used"),
    (1, "a", "a", "weight", 0.1, None, "own rows"),
    (1, "a", None, "weight", 0.9, None, "all centers"),
    (1, "b", "b", "weight", 0.3, None, "own rows"),
    (1, "b", None, "weight", 0.7, None, "all centers"),
    (1, None, None, "collaboration", 0.8, None, ""),
]


def _trail(rows):
    names = ("fold", "center", "peer", "decision", "score", "posterior_mean", "reason")
    return pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None)


def test_means_over_folds():
    found = partners_of(_trail(TRAIL))
    assert found.structure == {"clusters are used": 1, "no structure is used": 1}
    assert math.isclose(found.differences, 0.16) and math.isclose(found.expected_better, 0.75)
    a, b = found.per_center["a"], found.per_center["b"]
    assert math.isclose(a.own, 0.15) and math.isclose(a.all, 0.55) and a.peers == {"b": 0.3}
    assert a.certainty == 0.9 and a.rests == 0.0
    assert b.rests == 0.5 and math.isclose(b.own, 0.15) and not b.peers and math.isnan(b.certainty)


def test_a_name_is_no_federation():
    with pytest.raises(abps.RequestError, match=r"make one with abps.load"):
        abps.simulate("icu-synthetic", "fedavg")


def test_methods_without_weights_say_nothing():
    assert partners_of(None) == Partners()
    assert not partners_of(_trail(TRAIL[:1])).per_center


def test_result_json_has_them_and_is_read_again(tmp_path):
    """Centers that are alike: weights add up to one, and the result says that nothing differs."""
    alike = abps.load("icu-synthetic:heterogeneity=0,centers=16,stays=3200,seed=5")
    run = abps.simulate(alike, "abps-plus", seed=3)
    run.save(tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "result.json").read_text())["partners"]
    assert list(stored["structure"]) == ["no structure is used"]
    assert stored["differences"] > 0.05 and 0.5 < stored["expected_better"] < 1.0
    for share in stored["per_center"].values():
        assert math.isclose(share["own"] + share["all"] + sum(share["peers"].values()), 1.0, abs_tol=1e-6)
    again = abps.load_run(tmp_path / "run")
    assert again.partners.per_center.keys() == run.partners.per_center.keys()
    assert "partners" not in abps.simulate(alike, "glm-exact", rounds=1).to_json()
    assert Run.from_json(run.to_json()).partners.expected_better == run.partners.expected_better
