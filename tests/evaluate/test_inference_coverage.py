"""Intervals hold the truth and claims are true, in a few of the benchmark's worlds whose truth is known."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "inference_coverage.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("inference_coverage", PATH)
    module = importlib.util.module_from_spec(spec)
    __import__("sys").modules["inference_coverage"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gain", "6 large hospitals", "lda, hospitals alike"])
def test_intervals_cover_and_claims_are_true(benchmark, name):
    world = next(world for world in benchmark.WORLDS if world.name == name)
    found = benchmark.studied(world, 60, seed=23)
    for scope in ("these", "like", "next"):  # 95 % nominal: fewer than 52 of 60 has a chance below 1 in 400
        assert found[scope] >= 52 / 60, scope
    assert found["claimed"] > 50 and found["false_claims"] <= 0.05


@pytest.mark.slow
def test_without_a_gain_few_differences_are_called(benchmark):
    assert benchmark.studied(benchmark.WORLDS[0], 80, seed=23)["called"] <= 0.1
    looks = benchmark.looked(40, seed=23)
    assert looks["spent"] <= 0.125


def test_the_page_has_the_stored_results(benchmark):
    stored = PATH.parent / "results" / "inference_coverage.csv"
    page = (PATH.parents[1] / "docs" / "statistics.md").read_text(encoding="utf-8")
    for line in (*benchmark.table(stored), *benchmark.overall(stored), *benchmark.said_and_seen(stored)):
        assert line in page
