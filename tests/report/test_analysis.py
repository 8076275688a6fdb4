"""What is said about pairs of methods: families, one verdict per pair, looks, hospitals; made-up runs."""

import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

from abps.core.errors import RequestError
from abps.data.federation import About
from abps.evaluate.verdicts import HospitalVerdict, Verdict
from abps.report.analysis import analyse, inflation_of, page_method
from abps.report.answer import first_screen
from abps.report.hospitals import hospitals_of
from made_runs import CENTERS, METHODS, ROWS, made_run

ABOUT = About("made", len(CENTERS), len(CENTERS) * ROWS, 5, "f", positive_share=0.2)


def part_of(methods=METHODS, seeds=(1, 2, 3), **more):
    runs = {
        name: [made_run(name, seed, level, cost, rest, kappa=kappa) for seed in seeds]
        for name, (level, cost, rest, kappa) in methods.items()
    }
    return analyse(ABOUT, runs, {name: name for name in methods}, **more)


@pytest.fixture(scope="module")
def part():
    return part_of()


def test_levels_and_differences_are_those_of_the_rows(part):
    runs = [made_run("fedavg", seed, 0.75, 1.0) for seed in (1, 2, 3)]
    right = pairs = 0.0
    for run in runs:
        for (_,), cell in run.row_scores.filter(center=4).group_by("fold"):
            y = cell["y"].to_numpy()
            count = y.sum() * (1 - y.astype(int)).sum() if len(set(y.tolist())) == 2 else 0
            if count:
                right += float(y.sum()) * float(len(y) - y.sum()) * roc_auc_score(y, cell["logit"])
                pairs += float(y.sum()) * float(len(y) - y.sum())
    fedavg, alone = part.find("fedavg"), part.find("local")
    assert fedavg.level[4] == pytest.approx(right / pairs)
    found = part.compare("fedavg", "local")
    assert found.gain.estimate == pytest.approx(fedavg.mean - alone.mean)
    assert found.loss.estimate == pytest.approx(alone.mean_loss - fedavg.mean_loss)


def test_every_pair_has_one_verdict_whichever_way_it_is_asked(part):
    for (first, second), found in part.comparisons.items():
        assert (second, first) not in part.comparisons
        turned = part.compare(second, first)
        assert turned.gain.estimate == -found.gain.estimate and turned.corrected == found.corrected
        opposite = {Verdict.BETTER: Verdict.WORSE, Verdict.WORSE: Verdict.BETTER}
        assert turned.verdict is opposite.get(found.verdict, found.verdict)
    lines = {line.label: line for line in part.lines}
    assert lines["random-k1"].to_fedavg.corrected == part.compare("fedavg", "random-k1").corrected


def test_verdicts_of_the_made_up_methods(part):
    lines = {line.label: line for line in part.lines}
    assert lines["fedavg"].to_alone.verdict is Verdict.BETTER
    assert lines["abps-pq-k1-div"].to_random.verdict is Verdict.WORSE
    assert lines["abps-pq-k1"].to_random.verdict is Verdict.EQUAL
    assert lines["centralized"].to_fedavg.verdict is Verdict.REFERENCE  # nobody may pool rows
    assert lines["local"].to_alone is None and lines["abps"].random == "random-k3"


def test_the_primary_comparison_is_not_corrected_and_not_chosen_by_its_score(part):
    assert part.page == "abps" and part.primary.corrected == part.primary.p  # the first that was named
    better = METHODS | {"abps-x": (0.9, 0.09, 0.05, 1)}
    assert part_of(better).page == "abps"
    results = list(part.lines)
    plus = replace(results[1], label="abps-plus", method="abps-plus")
    assert page_method([*results, plus]) == "abps-plus"
    assert page_method([r for r in results if r.label in ("local", "centralized")]) is None


def test_families_are_corrected_by_holm(part):
    family = [
        found
        for (_, second), found in part.comparisons.items()
        if second == "local" and found is not part.comparisons["abps", "local"] and not found.reference
    ]
    ordered = sorted(family, key=lambda found: found.p)
    largest = 0.0
    for rank, found in enumerate(ordered):
        largest = max(largest, min(1.0, found.p * (len(ordered) - rank)))
        assert found.corrected == pytest.approx(largest)


def test_a_later_look_asks_for_more():
    close = {"local": (0.70, 0.0, 0.0, None), "fedavg": (0.702, 1.0, 0.0, None)}
    first, second = part_of(close, look=1).primary, part_of(close, look=2).primary
    assert (first.alpha, second.alpha) == (pytest.approx(0.05), pytest.approx(0.05 / 6))
    assert first.p == second.p
    weak = replace(first.gain, estimate=2.2 * math.sqrt(first.gain.patients), runs=0.0)
    p = weak.p()
    assert replace(first, gain=weak, p=p, corrected=p).verdict is Verdict.BETTER
    assert replace(second, gain=weak, p=p, corrected=p).verdict is not Verdict.BETTER


def test_the_margin_is_the_callers():
    same = {"local": (0.70, 0.0, 0.0, None), "fedavg": (0.70, 1.0, 0.0, None)}
    assert part_of(same, margin=0.05).primary.verdict is Verdict.EQUAL
    assert part_of(same, margin=1e-7).primary.verdict is Verdict.INCONCLUSIVE


def test_methods_with_other_seeds_are_compared_on_those_in_common():
    runs = {
        "local": [made_run("local", seed, 0.7, 0.0) for seed in (1, 2, 3)],
        "fedavg": [made_run("fedavg", seed, 0.75, 1.0) for seed in (2, 3, 4)],
    }
    part = analyse(ABOUT, runs, {"local": "local", "fedavg": "fedavg"})
    assert part.primary.repeats == 2 and part.primary.gain.run_freedom == 9
    apart = {"local": runs["local"][:1], "fedavg": runs["fedavg"][1:]}
    with pytest.raises(RequestError, match="no seed in common"):
        analyse(ABOUT, apart, {"local": "local", "fedavg": "fedavg"})
    lost = {"local": [with_scores(runs["local"][0], None)]}
    with pytest.raises(RequestError, match=r"scores\.parquet"):
        analyse(ABOUT, lost, {"local": "local"})


def with_scores(run, scores):
    return replace(run, artifacts=replace(run.artifacts, scores=scores))


def shifted(run, center, level_shift):
    """A run in which one center's events score higher by so much."""
    mine = (pl.col("center") == center) & (pl.col("y") == 1)
    moved = pl.when(mine).then(pl.col("logit") + level_shift).otherwise(pl.col("logit")).cast(pl.Float32)
    return with_scores(run, run.row_scores.with_columns(logit=moved))


def test_a_hospital_that_really_loses_is_named_and_nobody_else():
    runs = {
        "local": [made_run("local", seed, 0.75, 0.0) for seed in (1, 2, 3)],
        "fedavg": [shifted(made_run("fedavg", seed, 0.75, 1.0), 5, -3.0) for seed in (1, 2, 3)],
    }
    part = analyse(ABOUT, runs, {"local": "local", "fedavg": "fedavg"})
    assert part.primary.evidence[5].verdict is HospitalVerdict.LOSES
    assert part.primary.count(HospitalVerdict.LOSES) == 1
    assert 0.95 < part.primary.expected_losing < 3.5  # one for sure; of the others little is known
    stories = hospitals_of(part)
    assert stories[5].name == CENTERS[5] and "Keep your own model" in stories[5].advice
    assert stories[5].evidence.gain.high < 0 and stories[5].evidence.better < 0.05


def test_one_split_is_widened_by_its_share_of_test_rows(part):
    run = part.lines[0].runs[0]
    assert inflation_of(run) == 1.125
    once = replace(run, scored=replace(run.scored, folds=0, per_center_rows={"a": 15}))
    assert inflation_of(replace(once, data=replace(run.data, rows=100))) == pytest.approx(1 + 15 / 70)


def noisy(run, key):
    """The same run with a noise of its own in every score."""
    noise = pl.Series(np.random.default_rng([key, run.seed]).normal(size=run.row_scores.height))
    return with_scores(run, run.row_scores.with_columns(logit=(pl.col("logit") + noise).cast(pl.Float32)))


def test_inconclusive_says_why_and_what_would_settle_it():
    runs = {
        "local": [noisy(made_run("local", seed, 0.7, 0.0), 1) for seed in (1, 2, 3)],
        "fedavg": [noisy(made_run("fedavg", seed, 0.7, 1.0), 2) for seed in (1, 2, 3)],
    }
    part = analyse(ABOUT, runs, {"local": "local", "fedavg": "fedavg"}, margin=1e-4)
    assert part.primary.verdict is Verdict.INCONCLUSIVE
    screen = first_screen(part, hospitals_of(part))
    assert screen.title.startswith("Inconclusive.") and "would settle it" in screen.lead
