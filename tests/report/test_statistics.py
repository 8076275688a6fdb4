"""Statistics against loops, SciPy and simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from abps.report import statistics as s
from made_runs import CENTERS, UNIT, made_run


def results(method="m", level=0.7, seeds=(1, 2, 3), vs_fedavg=1.0, **more):
    return s.gather(
        method, method, [made_run(method, seed, level, vs_fedavg, **more) for seed in seeds], CENTERS
    )


def test_results_keep_seeds_sorted_and_centers_in_order():
    r = s.gather("m", "m", [made_run("m", seed, 0.7, 1.0) for seed in (3, 1, 2)], CENTERS)
    assert r.seeds == (1, 2, 3) and r.auroc.shape == (3, len(CENTERS))
    for row, run in zip(r.auroc, r.runs):
        known = [run.auroc.per_center[c] for c in CENTERS]
        np.testing.assert_array_equal(row, known)
    assert r.mean == pytest.approx(np.nanmean(r.auroc, axis=1).mean())
    assert r.deviation == pytest.approx(np.std(np.nanmean(r.auroc, axis=1), ddof=1))


values_strategy = arrays(
    np.float64,
    st.tuples(st.integers(1, 4), st.integers(1, 7)),
    elements=st.floats(-0.5, 0.5) | st.just(math.nan),
)


@given(values_strategy)
def test_the_bootstrap_is_what_a_plain_loop_does(values):
    draws = 40
    fast = s.bootstrap(values, draws)
    centers = s.draw_counts(draws, values.shape[1], 0).astype(int)
    seeds = s.draw_counts(draws, values.shape[0], 1).astype(int)
    for b in range(draws):
        picked = [c for c, often in enumerate(centers[b]) for _ in range(often)]
        means = []
        for i, often in enumerate(seeds[b]):
            row = [values[i, c] for c in picked if math.isfinite(values[i, c])]
            means += [sum(row) / len(row)] * often if row else []
        assert fast[b] == pytest.approx(sum(means) / len(means) if means else 0.0, abs=1e-12)


def test_draws_are_with_replacement_and_always_the_same():
    counts = s.draw_counts(2000, 9, 0)
    assert (counts.sum(axis=1) == 9).all() and np.array_equal(counts, s.draw_counts(2000, 9, 0))
    assert counts.mean() == 1.0 and counts.var() == pytest.approx(1 - 1 / 9, rel=0.05)  # multinomial


def test_with_one_seed_the_interval_is_scipys_bootstrap_over_centers():
    rng = np.random.default_rng(4)
    values = rng.normal(0.02, 0.1, 60)
    ours = np.quantile(s.bootstrap(values[None], 20000), [0.025, 0.975])
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=20000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    assert ours == pytest.approx([theirs.low, theirs.high], abs=0.001)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    """Centers and seeds both differ; the true difference is zero."""
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(300):
        values = rng.normal(0, 0.05, 40)[None] + rng.normal(0, 0.01, (5, 1)) + rng.normal(0, 0.05, (5, 40))
        low, high = np.quantile(s.bootstrap(values, 400), [0.025, 0.975])
        covered += low <= 0 <= high
    assert 0.90 <= covered / 300 <= 0.995


def test_a_difference_is_paired_by_seed_and_center():
    a, b = results("a", 0.72), results("b", 0.70, seeds=(2, 3, 4))
    d = s.compare(a, b)
    loop = []
    for run in a.runs:
        other = next((o for o in b.runs if o.seed == run.seed), None)
        if other is not None:
            pairs = [(run.auroc.per_center[c], other.auroc.per_center[c]) for c in CENTERS]
            loop.append(np.mean([x - y for x, y in pairs if math.isfinite(x - y)]))
    assert d.seeds == len(loop) == 2
    assert d.estimate == pytest.approx(np.mean(loop)) and d.low < d.estimate < d.high
    assert d.verdict == s.BETTER and s.compare(b, a).verdict == s.WORSE
    # The splits scatter by 0.05, the methods by 0.01: only pairing can see a difference of 0.02.
    assert d.high - d.low < 0.02 < np.nanstd(a.auroc)


def test_a_tie_is_an_interval_that_covers_zero():
    d = s.compare(results("a", 0.7), results("b", 0.7))
    assert d.low <= 0 <= d.high and d.verdict == s.TIE
    assert s.compare(results("a", seeds=(1,)), results("b", seeds=(2,))).verdict == s.UNKNOWN


def test_harm_is_counted_per_center_over_seeds():
    a, local = results("a", 0.69), results("local", 0.70, vs_fedavg=0.0)
    count = total = 0
    for c in range(len(CENTERS)):
        differences = [x - y for x, y in zip(a.auroc[:, c], local.auroc[:, c]) if math.isfinite(x - y)]
        if differences:
            total += 1
            count += np.mean(differences) < -0.02
    assert s.harmed(a, local) == (count, total) and 0 < count < total
    assert s.harmed(a, a) == (0, total)


def test_bytes_at_a_budget_and_to_a_target_are_read_off_the_curve():
    r = results("m", 0.7, vs_fedavg=1.2, rounds=6)
    assert s.fedavg_bytes([results("local", vs_fedavg=0.0), r]) == pytest.approx(UNIT)
    # Rounds cost 0.2: a budget of 0.5 pays for two of them.
    assert s.at_budget(r, 0.5, UNIT) == pytest.approx(np.mean([run.history.auroc[1] for run in r.runs]))
    assert s.at_budget(r, 0.4, UNIT) == s.at_budget(r, 0.5, UNIT)  # exactly two rounds fit
    assert s.at_budget(r, 9.0, UNIT) == pytest.approx(r.mean)
    assert math.isnan(s.at_budget(r, 0.1, UNIT))
    target = min(run.history.auroc[3] for run in r.runs)
    needed = []
    for run in r.runs:
        for value, edge in zip(run.history.auroc, run.history.edge_bytes):
            if value >= target:
                needed.append(edge / UNIT)
                break
    assert s.to_target(r, target, UNIT) == (pytest.approx(np.mean(needed)), 3)
    assert s.to_target(r, 0.999, UNIT)[1] == 0


def test_a_target_that_only_some_seeds_reach_is_counted():
    r = results("m", 0.7)
    between = float(np.median(r.means))
    assert 0 < s.to_target(r, between, UNIT)[1] < 3


def test_every_method_is_held_against_its_own_control():
    present = {
        name: results(name, kappa=kappa)
        for name, kappa in (("random-k1", 1), ("random-k3", 3), ("abps", 3), ("abps-x", 1), ("fedavg", None))
    }
    found = {name: s.control_of(r, present) for name, r in present.items()}
    assert found["abps"] == "random-k3" and found["abps-x"] == found["fedavg"] == "random-k1"
    assert found["random-k1"] is None and found["random-k3"] is None
    assert s.control_of(present["abps"], {"random-k1": present["random-k1"]}) == "random-k1"
