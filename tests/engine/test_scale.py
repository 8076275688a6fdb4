"""Runs of many centers: the same results, and what the audit trail keeps."""

import json

import polars as pl
import pytest

import abps
from abps.methods import proposals as method
from federations import tiny

SMALL = {"hidden": "8+4", "epochs": "1"}


@pytest.mark.parametrize(
    ("name", "settings"),
    [("abps-pq-k1-hom", {"keep": 0.3}), ("abps", {"gamma": 0.2, "metadata": "full"}), ("random-k1", {})],
)
def test_a_run_without_tables_of_pairs_is_the_same_run(monkeypatch, name, settings):
    data = tiny((30,) * 14)
    table = abps.simulate(data, name, seed=3, rounds=4, settings=SMALL | settings)
    monkeypatch.setattr(method, "LISTED_UP_TO", 0)
    sparse = abps.simulate(data, name, seed=3, rounds=4, settings=SMALL | settings)
    results = [run.to_json() | {"seconds": 0} for run in (sparse, table)]
    assert json.dumps(results[0]) == json.dumps(results[1])
    made = pl.col("decision") == "accepted"
    assert sparse.decisions.filter(made).equals(table.decisions.filter(made))
    rested = pl.col("decision") == "rested"
    assert sparse.decisions.filter(rested).equals(table.decisions.filter(rested))

    # Proposals in vain: listed by the one, counted by the other.
    for answer in ("full", "filtered", "declined"):
        listed = table.decisions.filter(pl.col("decision") == answer)
        counted = sparse.decisions.filter(pl.col("decision") == answer)
        assert counted["peer"].null_count() == counted.height
        numbers = counted.select(
            "round", "center", proposals=pl.col("reason").str.extract(r"^(\d+) proposals$").cast(pl.UInt32)
        )
        by_asker = listed.group_by("round", center="peer").agg(proposals=pl.len())
        assert numbers.sort("round", "center").equals(by_asker.sort("round", "center"))
