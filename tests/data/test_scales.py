"""Common statistics: the same numbers alone as together, close to what all rows say, little told."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

import abps
from abps.core.errors import RequestError
from abps.data.codebook import Codebook, merged
from abps.data.prepare import center_summaries, codebook, prepare
from abps.data.scales import (
    FEWEST,
    GROUP,
    PROBABILITIES,
    ColumnSummary,
    Scale,
    Statistics,
    agree,
    group_count,
    summaries,
)
from abps.data.split import assign_splits
from abps.data.synthetic.builtin import builtin_table
from abps.data.table import MIN_CLASS, federate, own_table


def summarise(names, values):
    """The summary of one center alone."""
    return summaries(names, values, np.array([0, values.shape[1]]))[0]


@pytest.fixture(scope="module")
def columns():
    rng = np.random.default_rng(3)
    sizes = [400, 9, 10, 57, 230]
    values = np.stack([rng.normal(50, 7, sum(sizes)), rng.gamma(2.0, 3.0, sum(sizes))])
    values[1, rng.random(sum(sizes)) < 0.2] = np.nan
    return ("a", "b"), values, np.concatenate([[0], np.cumsum(sizes)])


def by_name(told):
    return {f"center {i}": summary for i, summary in enumerate(told)}


def test_alone_a_center_tells_the_same_bytes_as_among_others_in_any_order_of_rows(columns):
    names, values, start = columns
    rng = np.random.default_rng(0)
    for i, summary in enumerate(summaries(names, values, start)):
        mine = values[:, start[i] : start[i + 1]]
        shuffled = mine[:, rng.permutation(mine.shape[1])]
        assert summarise(names, shuffled).to_json() == summary.to_json()


def test_a_summary_survives_its_file(columns):
    names, values, start = columns
    published = summaries(names, values, start)
    back = [ColumnSummary.from_json(json.loads(json.dumps(s.to_json())), names) for s in published]
    assert [b.to_json() for b in back] == [s.to_json() for s in published]
    assert agree(by_name(back)).scales == agree(by_name(published)).scales
    only = published[0].of(("b", "c"))
    assert only.to_json()["columns"] == {"b": published[0].to_json()["columns"]["b"]}


def test_scales_are_those_of_all_rows_pooled(columns):
    names, values, start = columns
    told = by_name(summaries(names, values, start))
    loud = np.concatenate([values[:, a:b] for a, b in itertools.pairwise(start) if b - a >= FEWEST], axis=1)
    oracle = StandardScaler().fit(loud[0][:, None])
    scale = agree(told).scales["a"]
    assert scale.center == pytest.approx(oracle.mean_[0], rel=1e-5)
    assert scale.spread == pytest.approx(oracle.scale_[0], rel=1e-5)
    known = loud[1][np.isfinite(loud[1])]
    told_of_b = agree(told).scales["b"]
    assert told_of_b.spread == pytest.approx(known.std(), rel=0.02)  # a center below ten values is silent
    exact = np.quantile(loud[0], PROBABILITIES)
    assert np.abs(np.array(scale.quantiles) - exact).max() < 0.15 * loud[0].std()


def test_order_of_centers_changes_nothing(columns):
    names, values, start = columns
    told = by_name(summaries(names, values, start))
    assert agree(dict(reversed(told.items()))).scales == agree(told).scales


@given(st.lists(st.floats(-1e30, 1e30), min_size=0, max_size=90))
def test_nothing_of_few_values_and_no_single_value(values):
    column = np.array([values])
    told = summarise(("x",), column)
    used = int(group_count(told.count)[0])
    if len(values) < FEWEST:
        assert told.count[0] == 0 and told.nbytes == 20
        return
    assert used * GROUP <= len(values) and used <= 16
    # Every told group is the mean of at least five neighbours (values too large count as the largest).
    known = np.sort(np.clip(column[0], -1e18, 1e18))
    cut = [g * len(known) // used for g in range(used + 1)]
    means = [known[a:b].mean() for a, b in itertools.pairwise(cut)]
    assert min(b - a for a, b in itertools.pairwise(cut)) >= GROUP
    # Distances from the middle group have eleven bits.
    np.testing.assert_allclose(told.groups[0, :used], means, rtol=1e-5, atol=2e-3 * np.abs(known).max())
    scale = agree({"a": told}).scales["x"]
    assert np.isfinite([scale.center, scale.spread, *scale.quantiles]).all()
    assert np.isfinite(scale.read(column[0])).all()


@pytest.mark.parametrize(
    "spoil",
    [{"values": 7}, {"mean": float("nan")}, {"variance": -1.0}, {"groups": [1.0]}, {"values": 12}],
)
def test_what_is_no_summary_is_refused(columns, spoil):
    names, values, _start = columns
    data = summarise(names, values).to_json()
    with pytest.raises(ValueError, match="'c' is summarised"):
        ColumnSummary.from_json(data | {"columns": {"c": data["columns"]["a"]}}, names)
    with pytest.raises(ValueError, match="groups of 4 values"):
        ColumnSummary.from_json(data | {"group": 4}, names)
    data["columns"]["a"] |= spoil
    with pytest.raises(ValueError, match="'a' is no summary"):
        ColumnSummary.from_json(data, names)


def test_a_few_wild_values_do_not_set_the_scale():
    rng = np.random.default_rng(1)
    values = rng.normal(7.4, 0.1, 500)
    tame = agree({"a": summarise(("ph",), values[None])}).scales["ph"]
    values[:3] = 7400.0
    wild = agree({"a": summarise(("ph",), values[None])}).scales["ph"]
    assert wild.center == pytest.approx(tame.center, abs=0.05)
    assert wild.spread == pytest.approx(tame.spread, rel=0.25)


@pytest.fixture(scope="module")
def icu():
    frame, roles = builtin_table("icu-synthetic:centers=6,stays=1500")
    return frame, roles, federate(frame, roles, "icu", MIN_CLASS)


def test_sites_that_exchange_summaries_see_what_the_simulation_sees(icu, tmp_path):
    """Every site encodes its own table by the codebook and what follows from everybody's summaries."""
    frame, roles, whole = icu
    together = prepare(whole, 11, standardise="common")
    plain = Codebook.from_json(json.loads(json.dumps(codebook(whole, 11).to_json())))
    own, sent = {}, {}
    for i, center in enumerate(whole.centers):
        path = tmp_path / f"{i}.parquet"
        frame.filter(pl.col("center") == center).drop("center", "careunit").write_parquet(path)
        own[center] = own_table(path, center, roles.label, roles.patient, roles.time, (), plain)
        split = assign_splits(own[center], 11)
        sent[center] = center_summaries(own[center], split, plain.numbers)[center]
    told = {c: ColumnSummary.from_json(each.to_json(), plain.numbers) for c, each in sent.items()}
    agreed = replace(plain, statistics=agree(told))
    agreed = Codebook.from_json(json.loads(json.dumps(agreed.to_json())))
    for i, center in enumerate(whole.centers):
        alone, expected = prepare(own[center], 11, agreed, standardise="common"), together.only(i)
        for part in ("train", "validation", "test"):
            np.testing.assert_array_equal(getattr(alone, part).x, getattr(expected, part).x)
    assert together.agreed == sum(each.nbytes for each in sent.values()) + 6 * (16 + 52 * len(plain.numbers))


def test_common_standardisation_is_one_map_for_all(icu):
    whole = icu[2]
    data = prepare(whole, 11, standardise="common")
    name = data.book.numbers[0]
    scale, k = data.book.statistics.scales[name], data.columns.index(name)
    raw = whole.features[name].cast(pl.Float64).fill_null(scale.fill).to_numpy()
    expected = np.sort((raw - scale.center) / scale.spread)
    seen = np.concatenate([part.x[:, k] for part in (data.train, data.validation, data.test)])
    np.testing.assert_allclose(np.sort(seen), np.clip(expected, -10, 10), atol=1e-5)
    assert prepare(whole, 11).columns == data.columns


def test_a_codebook_with_statistics_survives_its_file_and_reads_the_older_one(icu):
    book = prepare(icu[2], 11, standardise="common").book
    data = json.loads(json.dumps(book.to_json()))
    assert data["schema"] == "abps.codebook/3" and Codebook.from_json(data) == book
    assert merged([book, book]).statistics == book.statistics
    second = {**data, "schema": "abps.codebook/2", "floor": 10}
    assert Codebook.from_json(second) == replace(book, min_cell=10)
    older = codebook(icu[2], 11).to_json() | {"schema": "abps.codebook/1"}
    assert Codebook.from_json(older).statistics is None
    for spoiled in ({"spread": -1.0}, {"quantiles": [1.0]}, {"center": "x"}, {"wrong": 1.0}):
        bad = json.loads(json.dumps(data))
        next(iter(bad["statistics"].values())).update(spoiled)
        with pytest.raises(RequestError, match="not a codebook"):
            Codebook.from_json(bad)


def test_what_the_consortium_gives_stands(icu):
    whole = icu[2]
    name = prepare(whole, 11).book.numbers[0]
    given_scale = Scale.from_json({"low": 40.0, "high": 100.0, "fill": 60.0})
    assert (given_scale.center, given_scale.spread) == (70.0, 10.0)
    book = replace(codebook(whole, 11), statistics=Statistics({name: given_scale}))
    data = prepare(whole, 11, book, standardise="common")
    kept = data.book.statistics.scales[name]
    assert replace(kept, quantiles=()) == given_scale and len(kept.quantiles) == 20
    np.testing.assert_array_equal(given_scale.read(np.array([np.nan, 30.0, 80.0])), [-1.0, -1.0, 1.0])
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
