"""Every number that a page quotes from the benchmark comes from the stored results."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from abps.lab import benchmark_page
from abps.lab.suite import suite

ROOT = Path(__file__).resolve().parents[2]
specification = importlib.util.spec_from_file_location("benchmark_docs", ROOT / "tools" / "benchmark_docs.py")
docs = importlib.util.module_from_spec(specification)
specification.loader.exec_module(docs)


@pytest.fixture(scope="module")
def frames():
    return benchmark_page.read(docs.RESULTS)


def test_the_pages_are_what_the_results_say(frames):
    parts = benchmark_page.blocks(frames)
    moved = frames["benchmark"].with_columns(pl.col("to_pooled") + 0.01)
    shown = set()
    for page in docs.PAGES:
        text = page.read_text(encoding="utf-8")
        shown |= {found["name"] for found in docs.BLOCK.finditer(text)}
        assert docs.filled(text, parts) == text, page.name
    assert shown >= {"methods", "real", "claims", "anatomy", "sizes", "time"}
    text = docs.PAGES[0].read_text(encoding="utf-8")
    assert docs.filled(text, benchmark_page.blocks(frames | {"benchmark": moved})) != text


def test_figures_are_those_of_the_results(frames):
    for drawing in benchmark_page.drawings(frames):
        stored = (docs.IMAGES / f"benchmark-{drawing.name}.svg").read_text(encoding="utf-8")
        shown = [re.findall(r"[\d.]+(?=[ ,\"'])", svg) for svg in (stored, str(drawing.svg))]
        assert len(shown[0]) > 100
        np.testing.assert_allclose(np.array(shown[0], float), np.array(shown[1], float), atol=0.1)


def test_all_federations_have_five_repeats_of_every_method(frames):
    frame, known = frames["benchmark"], suite()
    real = frame.filter("real")
    assert set(real["federation"]) == {name for name, each in known.items() if each.real}
    assert set(frame["federation"]) == set(known) and frame["repeats"].min() >= 5
    assert real.group_by("method").len()["len"].to_list() == [11] * 22
    assert frame.filter(~pl.col("real")).group_by("method").len()["len"].to_list() == [9] * 22
    assert frame.group_by("federation", "method").len()["len"].max() == 1
    assert not frame["to_alone_low"].filter(frame["method"] != "local-best").is_null().any()


def test_the_generators_default_differs_as_real_hospitals_do(frames):
    """Its intercepts and coefficients scatter as those of the real federations do, from the first decile to
    the last."""
    known, found = suite(), frames["anatomy"]
    names = found["federation"].to_list()
    real = found.filter(pl.Series([name in known and known[name].real for name in names]))
    default = found.filter(pl.col("federation") == "world-default").row(0, named=True)
    assert real.height == 11
    for column in ("intercept_sd", "slope_sd"):
        low, high = (float(real[column].quantile(q)) for q in (0.1, 0.9))
        assert low <= default[column] <= high
