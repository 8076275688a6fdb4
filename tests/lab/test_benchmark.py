"""The benchmark on a table, a generator and a method of one's own; ranks against brute force."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import statsmodels.api as sm
from scipy import stats
from scipy.special import expit

from abps.core.errors import RequestError
from abps.lab import benchmark_page
from abps.lab.benchmark import Setup, ranking, run_benchmark, to_frame
from abps.lab.suite import read_description
from abps.study.compare import load_study
from abps.wire.codecs import codec, frame_size


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
    methods = ["fedavg", "foreign.rotation:ROTATION", "fedavg@mlp", "abps-plus"]
    arguments = (chosen, methods, (1, 2), folder, out, Setup("linear", folds=3, jobs=2))
    with pytest.MonkeyPatch.context() as patch:  # worker processes find the foreign method, as if installed
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
        return run_benchmark(*arguments), arguments, out


def test_every_method_has_a_row_on_every_federation(result):
    found, arguments, out = result
    frame = to_frame(found.rows)
    own = {"fedavg", "foreign.rotation:ROTATION", "fedavg@mlp", "abps-plus"}
    assert set(frame["method"]) == own | {"local-best", "pooled-best", "glm-exact"}
    assert frame.height == 14
    fedavg = frame.filter(pl.col("method") == "fedavg", pl.col("federation") == "mine").row(0, named=True)
    assert fedavg["repeats"] == 2 and 0.5 < fedavg["score"] < 1 and fedavg["kilobytes"] > 0
    assert fedavg["to_pooled_low"] <= fedavg["to_pooled"] <= fedavg["to_pooled_high"]
    took = pl.read_csv(out / "machine.csv")["cpu_seconds"][0]
    again = to_frame(run_benchmark(*arguments).rows)
    assert again.equals(frame)
    assert pl.read_csv(out / "machine.csv")["cpu_seconds"][0] == took > 0


def test_all_that_send_weights_have_one_codec_and_all_bytes_count(result):
    found, (_, _, _, _, out, _), _ = result
    rows = {(row.federation, row.method): row for row in found.rows}
    assert {row.codec for row in found.rows if row.codec not in ("sums", "none")} == {"bf16"}
    assert rows["mine", "fedavg"].codec == rows["mine", "foreign.rotation:ROTATION"].codec == "bf16"
    assert rows["mine", "abps-plus"].codec == rows["mine", "glm-exact"].codec == "sums"
    # FedAvg: 50 rounds of a model up and a model down, in bfloat16, and what was said before the first.
    runs = [run for _, run in load_study(out / "studies" / "mine").runs if run.method == "fedavg"]
    frame = frame_size(codec("bf16"), 3)  # two columns and the intercept
    assert all(run.bytes.directed == run.data.centers * 2 * 50 * frame for run in runs)
    every = np.mean([(run.bytes.directed + run.bytes.control) / run.data.centers for run in runs])
    assert rows["mine", "fedavg"].kilobytes == pytest.approx(every / 1e3) and every > 100 * frame


def test_calibration_is_that_of_the_scores(result):
    """Slope and observed over expected against statsmodels, on all rows of all repeats."""
    found, (_, _, _, _, out, _), _ = result
    runs = [run for _, run in load_study(out / "studies" / "mine").runs if run.method == "fedavg"]
    slopes, ratios = [], []
    for run in runs:
        z, y = run.row_scores["logit"].to_numpy(), run.row_scores["y"].to_numpy()
        slopes.append(sm.Logit(y, sm.add_constant(z.astype(float))).fit(disp=0).params[1])
        ratios.append(y.sum() / expit(z.astype(float)).sum())
    row = next(row for row in found.rows if (row.federation, row.method) == ("mine", "fedavg"))
    assert row.slope == pytest.approx(np.mean(slopes), rel=1e-4)
    assert row.expected_ratio == pytest.approx(np.mean(ratios), rel=1e-5)


def test_questions_and_sizes(result):
    found, _, _ = result
    asked = {(each.question, each.federation) for each in found.contrasts}
    assert asked == {("abps-plus beats FedAvg", "mine"), ("abps-plus beats FedAvg", "made")}
    for each in found.contrasts:
        assert each.auroc_low <= each.auroc <= each.auroc_high
    rows = {(row.federation, row.method): row.to_alone for row in found.rows}
    assert sum(each.hospitals for each in found.sizes) == 4
    mean = sum(each.hospitals * each.auroc for each in found.sizes) / 4
    assert mean == pytest.approx(rows["mine", "abps-plus"], abs=0.02)


def test_worlds_have_an_interval_over_worlds_alone(result):
    _, (chosen, methods, _, folder, _, _), _ = result
    one = run_benchmark(chosen[1:], methods[:1], (1,), folder, None, Setup("linear", folds=3)).rows
    with pytest.raises(RequestError, match="need a folder"):
        run_benchmark(chosen, methods, (1,), folder, None, Setup(jobs=2))
    assert all(math.isnan(row.to_pooled_low) for row in one)


def test_the_page_names_the_best(result):
    found, _, out = result
    benchmark_page.write(found, out)
    assert pl.read_csv(out / "benchmark.csv").height == len(found.rows)
    assert pl.read_csv(out / "contrasts.csv").height == len(found.contrasts)
    page = (out / "benchmark.html").read_text()
    assert "best mean rank" in page and "<svg" in page and "://" not in page.replace("http://www.w3.org", "")
    asked = to_frame(found.contrasts).with_columns(question=pl.lit("rest pays"))
    yes, no = ([-0.2, 0.1, 0.3][k:] for k in (1, 0))
    assert (
        benchmark_page.verdict(yes[0], yes[1]) == "yes"
        and benchmark_page.verdict(no[0], no[1]) == "inconclusive"
    )
    lines = benchmark_page.claims(asked).splitlines()
    assert len(lines) == 4 and lines[2].startswith("| rest pays | 1 real |")


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
