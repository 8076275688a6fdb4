"""Common statistics: the same numbers alone as together, close to what all rows say, little told."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import abps
from abps.core.errors import RequestError
from abps.data.codebook import Codebook, merged
from abps.data.prepare import codebook, numeric_rows, prepare
from abps.data.scales import HistogramRefinement, Scale, bin_counts
from abps.data.split import assign_splits
from abps.data.table import MIN_CLASS, federate, own_table
from abps.lab.synthetic import builtin_table


@pytest.fixture(scope="module")
def icu():
    frame, roles = builtin_table("icu-synthetic:centers=6,stays=1500")
    return frame, roles, federate(frame, roles, "icu", MIN_CLASS)


def test_sites_that_sum_their_counts_see_what_the_simulation_sees(icu, tmp_path):
    """Every site counts and encodes its own table; the sum of all counts gives the simulation's scales."""
    frame, roles, whole = icu
    together = prepare(whole, 11, standardise="common")
    plain = Codebook.from_json(json.loads(json.dumps(codebook(whole, 11).to_json())))
    own, found = {}, HistogramRefinement(len(plain.numbers))
    for i, center in enumerate(whole.centers):
        path = tmp_path / f"{i}.parquet"
        frame.filter(pl.col("center") == center).drop("center", "careunit").write_parquet(path)
        own[center] = own_table(path, center, roles.label, plain, patient=roles.patient, time=roles.time)
    while not found.done:
        total = 0.0
        for table in own.values():
            values = numeric_rows(table, assign_splits(table, 11), plain.numbers)[0]
            total += bin_counts(values, np.zeros(values.shape[1], int), 1, found.edges)[0]
        found.take(total, 0.0)
    agreed = replace(plain, statistics=dict(zip(plain.numbers, found.scales(0.0))))
    agreed = Codebook.from_json(json.loads(json.dumps(agreed.to_json())))
    for i, center in enumerate(whole.centers):
        alone, expected = prepare(own[center], 11, agreed, standardise="common"), together.only(i)
        for part in ("train", "validation", "test"):
            np.testing.assert_array_equal(getattr(alone, part).x, getattr(expected, part).x)


def test_common_standardisation_is_one_map_for_all(icu):
    whole = icu[2]
    data = prepare(whole, 11, standardise="common")
    name = data.book.numbers[0]
    scale, k = data.book.statistics[name], data.columns.index(name)
    raw = whole.features[name].cast(pl.Float64).fill_null(scale.fill).to_numpy()
    expected = np.sort((raw - scale.center) / scale.spread)
    seen = np.concatenate([part.x[:, k] for part in (data.train, data.validation, data.test)])
    np.testing.assert_allclose(np.sort(seen), np.clip(expected, -10, 10), atol=1e-5)
    assert prepare(whole, 11).columns == data.columns


def test_a_codebook_with_statistics_survives_its_file(icu):
    book = prepare(icu[2], 11, standardise="common").book
    data = json.loads(json.dumps(book.to_json()))
    assert data["schema"] == "abps.codebook/3" and Codebook.from_json(data) == book
    assert merged([book, book]).statistics == book.statistics
    with pytest.raises(RequestError, match=r"not a codebook.*site init"):
        Codebook.from_json(data | {"schema": "abps.codebook/1"})
    for spoiled in ({"spread": -1.0}, {"quantiles": [1.0]}, {"center": "x"}, {"wrong": 1.0}):
        bad = json.loads(json.dumps(data))
        next(iter(bad["statistics"].values())).update(spoiled)
        with pytest.raises(RequestError, match="not a codebook"):
            Codebook.from_json(bad)


def test_what_the_consortium_gives_stands(icu):
    whole = icu[2]
    name = prepare(whole, 11).book.numbers[0]
    given_scale = Scale(70.0, 10.0, 60.0)
    book = replace(codebook(whole, 11), statistics={name: given_scale})
    data = prepare(whole, 11, book, standardise="common")
    kept = data.book.statistics[name]
    assert kept == given_scale
    np.testing.assert_array_equal(given_scale.read(np.array([np.nan, 80.0])), [-1.0, 1.0])
    assert data.agreed < prepare(whole, 11, standardise="common").agreed


def test_the_run_books_the_bytes_and_says_how_it_standardised(icu):
    whole = icu[2]
    own = abps.simulate(whole, "fedavg", rounds=2)
    common = abps.simulate(whole, "fedavg", rounds=2, settings={"standardise": "common"})
    assert common.config["training"]["standardise"] == "common"
    assert common.bytes.control - own.bytes.control == prepare(whole, 11, standardise="common").agreed
    assert common.bytes.edge == own.bytes.edge
    with pytest.raises(RequestError, match="choose own or common"):
        abps.simulate(whole, "fedavg", rounds=2, settings={"standardise": "all"})
    with pytest.raises(RequestError, match="was not prepared with"):
        abps.simulate(prepare(whole, 11), "fedavg", rounds=2, settings={"standardise": "common"})
