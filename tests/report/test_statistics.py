"""What is said about runs, against loops and against numbers by hand."""

import math

import numpy as np
import pytest

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


def difference(estimate, low, high, p, seeds=5):
    return s.Difference(estimate, low, high, p, p, seeds, 30)


def test_verdicts():
    assert difference(0.02, 0.01, 0.03, 0.001).verdict == s.BETTER
    assert difference(-0.02, -0.03, -0.01, 0.001).verdict == s.WORSE
    assert difference(0.002, -0.004, 0.008, 0.4).verdict == s.EQUAL
    assert difference(-0.025, -0.067, 0.016, 0.2).verdict == s.UNSURE  # wide is not equal
    assert difference(0.002, -0.004, 0.0101, 0.4).verdict == s.UNSURE
    assert s.compare(results("a", seeds=(1,)), results("b", seeds=(1,))).verdict == s.ONE_SEED
    assert s.compare(results("a", seeds=(1,)), results("b", seeds=(2,))).verdict == s.ABSENT
    same = s.compare(results("a"), results("a"))
    assert (same.estimate, same.low, same.high, same.verdict) == (0.0, 0.0, 0.0, s.EQUAL)


def test_many_comparisons_are_corrected_for_their_number():
    alone = difference(0.02, 0.001, 0.039, 0.04)
    assert alone.verdict == s.BETTER
    family = s.corrected([alone, None, difference(0.0, -0.02, 0.02, 0.9), difference(0.03, 0.02, 0.04, 1e-6)])
    assert family[1] is None
    assert [d.corrected for d in family if d] == pytest.approx([0.08, 0.9, 3e-6])  # Holm, by hand
    assert [d.verdict for d in family if d] == [s.UNSURE, s.UNSURE, s.BETTER]


def test_the_margin_is_the_callers():
    seeds = (1, 2, 3, 4, 5)
    a, b = results("a", 0.7, seeds=seeds), results("b", 0.7, seeds=seeds)
    assert s.compare(a, b, margin=0.05).verdict == s.EQUAL
    assert s.compare(a, b, margin=1e-6).verdict == s.UNSURE


def test_training_alone_is_the_best_that_a_center_can_do_if_that_ran():
    found = [results("local", 0.66), results("local-best", 0.70), results("fedavg", 0.75)]
    part = s.analyse({}, found, CENTERS)
    assert part.alone == "local-best" and s.analyse({}, found[::2], CENTERS).alone == "local"
    assert part.lines[1].to_alone is None and part.lines[2].to_alone.estimate == pytest.approx(0.05, abs=0.01)
    assert part.lines[0].to_alone.estimate < 0


def test_who_is_harmed_is_not_read_off_the_noise():
    """A level 0.013 lower, scores that scatter by 0.014: some means lie below the limit, no center does."""
    a, alone = results("a", 0.687), results("local", 0.70, vs_fedavg=0.0)
    raw = np.nanmean(s.paired(a, alone), axis=0)
    assert (raw < -s.HARM).sum() >= 1
    harm = s.harmed(a, alone)
    assert harm.sure == 0 and harm.expected < 0.5 and harm.centers == np.isfinite(raw).sum()
    assert s.harmed(results("a", seeds=(1,)), alone) is None


def test_a_hospital_that_really_loses_is_named():
    alone = results("local", 0.70, vs_fedavg=0.0)
    runs = [made_run("a", seed, 0.72, 1.0) for seed in (1, 2, 3)]
    for run in runs:
        run.auroc.per_center["unit 05"] = 0.40
    a = s.gather("a", "a", runs, CENTERS)
    harm = s.harmed(a, alone)
    assert harm.sure == 1 and CENTERS[harm.worst] == "unit 05"
    assert 0.99 <= harm.expected < 1.3
    low, high = harm.gains.quantile(0.025), harm.gains.quantile(0.975)
    assert high[harm.worst] < -0.1 and (low <= harm.gains.mean).all() and (harm.gains.mean <= high).all()


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
