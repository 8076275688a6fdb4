"""The benchmark on a table, a generator and a method of one's own; ranks against brute force."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from scipy import stats

from abps.lab.benchmark import ranking, run_benchmark, to_frame
from abps.lab.suite import read_description
from abps.report.pages import benchmark_page


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """Two methods, one of them somebody's own, on a table and on a generator."""
    folder = tmp_path_factory.mktemp("suite")
    rng = np.random.default_rng(3)
    n = 600
    x = rng.normal(size=n)
    pl.DataFrame(
        {
            "hospital": rng.choice(["a", "b", "c", "d"], n),
            "x": x,
            "z": rng.normal(size=n),
            "died": (rng.random(n) < 1 / (1 + np.exp(-x))).astype(int),
        }
    ).write_csv(folder / "stays.csv")
    (folder / "mine.toml").write_text(
        "name = 'mine'\nfile = 'stays.csv'\nlabel = 'died'\ncenter = 'hospital'\n"
    )
    (folder / "made.toml").write_text("name = 'made'\nsynthetic = 'icu-synthetic:centers=6,stays=1500'\n")
    chosen = [read_description(folder / f"{name}.toml") for name in ("mine", "made")]
    out = folder / "out"
    arguments = (chosen, ["fedavg", "foreign.rotation:ROTATION"], (1, 2), folder, out, "linear", 3)
    return to_frame(run_benchmark(*arguments)), arguments, out


def test_every_method_has_a_row_on_every_federation(result):
    frame, arguments, _ = result
    own = {"fedavg", "foreign.rotation:ROTATION"}
    assert set(frame["method"]) == own | {"local-best", "pooled-best", "glm-exact"}
    assert frame.height == 10
    fedavg = frame.filter((pl.col("method") == "fedavg") & (pl.col("federation") == "mine")).row(
        0, named=True
    )
    assert fedavg["repeats"] == 2 and 0.5 < fedavg["score"] < 1 and fedavg["kilobytes"] > 0
    assert fedavg["to_pooled_low"] <= fedavg["to_pooled"] <= fedavg["to_pooled_high"]
    again = to_frame(run_benchmark(*arguments))
    assert again.drop("seconds").equals(frame.drop("seconds"))


def test_the_page_names_the_best(result):
    frame, _, out = result
    benchmark_page.write(frame, out)
    assert pl.read_csv(out / "benchmark.csv").height == frame.height
    page = (out / "benchmark.html").read_text()
    assert "best mean rank" in page and "<svg" in page and "http" not in page.replace("http://www.w3.org", "")


def test_ranks_and_the_critical_difference():
    rng = np.random.default_rng(0)
    rows = [
        {"federation": f"f{i}", "method": f"m{j}", "score": float(rng.random()), "to_pooled": 0.0}
        for i in range(6)
        for j in range(4)
    ]
    found = ranking(pl.DataFrame(rows))
    scores = np.array([row["score"] for row in rows]).reshape(6, 4)
    expected = stats.rankdata(-scores, axis=1).mean(axis=0)
    assert dict(zip(found.methods, found.ranks)) == pytest.approx({f"m{j}": expected[j] for j in range(4)})
    # Demšar (2006): q = 2.569 for four methods
    assert found.critical == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 6)), rel=1e-3)
