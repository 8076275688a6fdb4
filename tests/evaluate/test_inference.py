"""Inference against brute force, SciPy, closed forms and the reference figures of known situations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from abps.core import streams
from abps.evaluate.hospitals import Mixture, hospital_gains
from abps.evaluate.inference import (
    AverageGain,
    Scope,
    average_gain,
    fold_inflation,
    split_inflation,
)
from abps.evaluate.paired import (
    PairedCells,
    ScoredRows,
    auroc_values,
    concordance_values,
    level,
    loss_values,
    paired_cells,
    placements,
    variance_trend,
)
from abps.evaluate.verdicts import (
    HospitalVerdict,
    LossAgreement,
    Verdict,
    agreement,
    alpha_at_look,
    holm,
    hospital_evidence,
    hospital_verdicts,
    settles,
    verdict,
)


def numbers(seed):
    return streams.generator(seed, "generate", center=streams.center_id("test of inference"))


def scored(y, center=None, run=None, row=None, patient=None):
    size = len(y)
    center = np.zeros(size, np.int64) if center is None else center
    run = np.zeros(size, np.int64) if run is None else run
    row = np.arange(size) if row is None else row
    return ScoredRows(
        row,
        row if patient is None else patient,
        center,
        run,
        np.asarray(y, float),
        int(center.max()) + 1,
        int(run.max()) + 1,
    )


def auroc_cells(rows, a, b):
    return paired_cells(rows, auroc_values(rows, {"a": a, "b": b}), "a", "b")


def made_cells(gain, error, events=40.0):
    gain = np.asarray(gain, float)
    count = len(gain)
    m = np.broadcast_to(np.asarray(events, float), (count,)).copy()
    unit = 1 / m + 1 / (9 * m)
    variance = np.broadcast_to(np.asarray(error, float) ** 2, (count,)).copy()
    return PairedCells(gain, m, 9 * m, gain[None], np.ones((1, count)), variance, m - 1, unit)


# ------------------------------------------------------------------------------------------ cells


def test_placements_are_the_shares_of_a_double_loop():
    rng = numbers(0)
    cell = rng.integers(0, 4, 80)
    y = (rng.random(80) < 0.3).astype(float)
    score = np.round(rng.normal(size=80), 1)  # ties
    found = placements(cell, y, score)
    for i in range(80):
        other = (cell == cell[i]) & (y != y[i])
        wins = (score[i] > score[other]) if y[i] else (score[other] > score[i])
        assert found[i] == pytest.approx((wins + 0.5 * (score[i] == score[other])).mean())


def test_variance_is_delongs_closed_form_in_one_cell():
    rng = numbers(1)
    for _ in range(10):
        y = np.r_[np.ones(9), np.zeros(51)]
        a, b = np.round(rng.normal(size=60) + y, 1), np.round(rng.normal(size=60) + 0.5 * y, 1)
        cells = auroc_cells(scored(y), a, b)
        kernel = [(s[:9, None] > s[None, 9:]) + 0.5 * (s[:9, None] == s[None, 9:]) for s in (a, b)]
        by_event, by_other = ((kernel[0] - kernel[1]).mean(axis=k) for k in (1, 0))
        assert cells.gain[0] == pytest.approx(by_event.mean())
        assert cells.variance[0] == pytest.approx(by_event.var(ddof=1) / 9 + by_other.var(ddof=1) / 51)
        u = [stats.mannwhitneyu(s[:9], s[9:]).statistic / (9 * 51) for s in (a, b)]
        assert cells.gain[0] == pytest.approx(u[0] - u[1])


def test_pairs_are_formed_within_runs_only():
    rng = numbers(2)
    repeats, folds, size = 2, 4, 40
    y = (rng.random(size) < 0.3).astype(float)
    row = np.tile(np.arange(size), repeats)
    run = np.concatenate([r * folds + rng.permutation(size) % folds for r in range(repeats)])
    a, b = rng.normal(size=2 * size) + y[row], rng.normal(size=2 * size)
    a += 10.0 * run  # an intercept of every model's own must not matter
    rows = scored(y[row], run=run, row=row)
    cells = auroc_cells(rows, a, b)
    right = pairs = 0.0
    for g in range(repeats * folds):
        i, j = (np.flatnonzero((run == g) & (y[row] == k)) for k in (1, 0))
        right += ((a[i][:, None] > a[j]).astype(float) - (b[i][:, None] > b[j])).sum()
        pairs += len(i) * len(j)
    assert cells.gain[0] == pytest.approx(right / pairs)
    values = auroc_values(rows, {"a": a, "b": b})
    assert level(rows, values, "a")[0] - level(rows, values, "b")[0] == pytest.approx(cells.gain[0])
    assert cells.weight.sum() == pytest.approx(pairs)


def test_variance_over_repeats_is_that_of_a_bootstrap_of_patients():
    rng = numbers(3)
    size, repeats = 300, 3
    y = (rng.random(size) < 0.3).astype(float)
    row = np.tile(np.arange(size), repeats)
    run = np.repeat(np.arange(repeats), size)
    a = np.tile(rng.normal(size=size) + y, repeats) + 0.3 * rng.normal(size=size * repeats)
    b = np.tile(rng.normal(size=size) + 0.5 * y, repeats) + 0.3 * rng.normal(size=size * repeats)
    found = auroc_cells(scored(y[row], run=run, row=row), a, b).variance[0]
    psi = np.zeros((int(y.sum()), int(size - y.sum())))
    for r in range(repeats):
        i, j = (np.flatnonzero((run == r) & (y[row] == k)) for k in (1, 0))
        psi += ((a[i][:, None] > a[j]).astype(float) - (b[i][:, None] > b[j])) / repeats
    draws = []
    for _ in range(3000):
        i, j = rng.integers(0, psi.shape[0], psi.shape[0]), rng.integers(0, psi.shape[1], psi.shape[1])
        draws.append(psi[np.ix_(i, j)].mean())
    assert found == pytest.approx(np.var(draws), rel=0.12)


def test_concordance_is_the_share_of_a_double_loop_and_auroc_where_nobody_is_censored_late():
    rng = numbers(4)
    size = 70
    time, y = rng.integers(1, 20, size).astype(float), (rng.random(size) < 0.5).astype(float)
    center, run = rng.integers(0, 2, size), rng.integers(0, 2, size)
    risk = {name: np.round(rng.normal(size=size), 1) for name in "ab"}
    rows = scored(y, center, run)
    values = concordance_values(rows, time, risk)
    for c in range(2):
        hits, pairs = {"a": 0.0, "b": 0.0}, 0
        for i in range(size):
            for j in range(size):
                if center[i] != c or center[j] != c or run[i] != run[j] or not y[i]:
                    continue
                if time[j] > time[i] or (time[j] == time[i] and not y[j]):
                    pairs += 1
                    for name, r in risk.items():
                        hits[name] += (r[i] > r[j]) + 0.5 * (r[i] == r[j])
        for name in "ab":
            assert level(rows, values, name)[c] == pytest.approx(hits[name] / pairs)
    at_once = concordance_values(rows, np.where(y > 0, 1.0, 2.0), risk)
    areas = auroc_values(rows, risk)
    for name in "ab":
        assert level(rows, at_once, name) == pytest.approx(level(rows, areas, name))
    one, two = (paired_cells(rows, v, "a", "b") for v in (at_once, areas))
    assert one.variance == pytest.approx(two.variance)


def test_loss_cells_are_means_with_the_usual_variance():
    rng = numbers(5)
    center = rng.integers(0, 9, 900)
    gain = rng.normal(0.1, 1, 900)
    rows = scored(np.zeros(900), center)
    cells = paired_cells(rows, loss_values(rows, {"a": np.zeros(900), "b": gain}), "a", "b")
    for c in range(9):
        own = gain[center == c]
        assert cells.gain[c] == pytest.approx(own.mean())
        assert cells.variance[c] == pytest.approx(own.var(ddof=1) / len(own))


def test_variances_follow_their_size_as_a_gamma_regression_says():
    """The trend is the optimum that SciPy finds; of equal hospitals it is their mean."""
    rng = numbers(21)
    freedom, x = rng.integers(3, 60, 80).astype(float), rng.normal(-3, 1, 80)
    seen = np.exp(-4 + 0.8 * x) * rng.chisquare(freedom) / freedom

    def penalised(beta):
        log = beta[0] + beta[1] * (x - freedom @ x / freedom.sum())
        return (0.5 * freedom * (log + seen * np.exp(-log))).sum() + 0.5 * (beta[1] / 0.5) ** 2

    best = optimize.minimize(
        penalised, [-6.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-9}
    ).x
    found = variance_trend(seen, freedom, x)
    np.testing.assert_allclose(
        np.log(found), best[0] + best[1] * (x - freedom @ x / freedom.sum()), atol=1e-4
    )
    np.testing.assert_allclose(variance_trend(np.full(9, 0.3), np.ones(9), np.zeros(9)), 0.3)
    two = variance_trend(np.array([1.0, 3.0]), np.array([1.0, 3.0]), np.array([0.0, 5.0]))
    np.testing.assert_allclose(two, 2.5)


def test_repeated_patients_and_patients_of_two_hospitals_widen_the_interval():
    rng = numbers(6)
    half = 1000
    y = np.tile((rng.random(half) < 0.1).astype(float), 2)
    a, b = np.tile(rng.normal(size=half) + y[:half], 2), np.tile(rng.normal(size=half), 2)
    person = np.tile(np.arange(half), 2)
    center = np.repeat([0, 1], half)
    one, two = (
        average_gain(auroc_cells(scored(y, center, patient=who), a, b), 1.0) for who in (None, person)
    )
    assert two.patients / one.patients == pytest.approx(2.0, rel=0.1)
    one, two = (auroc_cells(scored(y, patient=who), a, b).variance[0] for who in (None, person))
    assert two / one == pytest.approx(2.0, rel=0.1)


def test_order_of_rows_and_of_methods_and_large_patient_numbers_do_not_matter():
    rng = numbers(7)
    size = 2000
    y, center = (rng.random(size) < 0.1).astype(float), rng.integers(0, 12, size)
    run, a, b = rng.integers(0, 5, size), rng.normal(size=size) + y, rng.normal(size=size) + y
    base = average_gain(auroc_cells(scored(y, center, run), a, b), 1.25)
    swapped = average_gain(auroc_cells(scored(y, center, run), b, a), 1.25)
    assert swapped.estimate == pytest.approx(-base.estimate)
    assert swapped.half_width() == pytest.approx(base.half_width())
    assert swapped.p() == pytest.approx(base.p(), rel=1e-6)
    p = rng.permutation(size)
    shuffled = scored(y[p], center[p], run[p], patient=p + (1 << 62))
    again = average_gain(auroc_cells(shuffled, a[p], b[p]), 1.25)
    assert again.half_width() == pytest.approx(base.half_width())


# ------------------------------------------------------------------------------------------ average gain


def test_interval_is_made_of_the_documented_parts():
    rng = numbers(8)
    size = 3000
    y, center = (rng.random(size) < 0.2).astype(float), rng.integers(0, 6, size)
    run = rng.integers(0, 10, size)
    cells = auroc_cells(scored(y, center, run), rng.normal(size=size) + y, rng.normal(size=size) + y)
    gain = average_gain(cells, fold_inflation(5))
    v, f = cells.moderated
    assert gain.estimate == pytest.approx(cells.gain.mean())
    assert gain.patients == pytest.approx(1.125 * v.sum() / 36)
    assert gain.between == pytest.approx(cells.gain.var(ddof=1) / 6)
    assert gain.patient_freedom == pytest.approx(v.sum() ** 2 / (v**2 / f).sum())
    e = cells.weight / cells.weight.sum(axis=0) / 6 * (cells.cell - cells.gain)
    scatter = 10 / 9 * max(0.0, (e.sum(axis=1) ** 2).sum() - (e**2).sum())
    assert gain.runs == pytest.approx(scatter)
    t = stats.t.isf(0.025, [gain.patient_freedom, 9, 5])
    assert gain.half_width() == pytest.approx(math.sqrt(t[0] ** 2 * gain.patients + t[1] ** 2 * gain.runs))
    like = math.sqrt(t[2] ** 2 * max(gain.between, gain.patients) + t[1] ** 2 * gain.runs)
    assert gain.half_width(scope=Scope.LIKE_THESE) == pytest.approx(like)


def test_p_is_the_level_whose_interval_touches_zero():
    gain = AverageGain(0.03, 1e-4, 2e-4, 5e-5, 4, 30.0, 20)
    for scope in Scope:
        assert gain.half_width(1 - gain.p(scope), scope) == pytest.approx(0.03, rel=1e-6)
    only_t = AverageGain(0.03, 1e-4, 2e-4, 0.0, 4, 30.0, 20)
    assert only_t.p() == pytest.approx(2 * stats.t.sf(3.0, 30))


def test_one_run_has_no_interval():
    rng = numbers(9)
    size = 3000
    y, center, run = (
        (rng.random(size) < 0.2).astype(float),
        rng.integers(0, 6, size),
        rng.integers(0, 6, size),
    )
    cells = auroc_cells(scored(y, center, run), rng.normal(size=size) + y, rng.normal(size=size))
    assert average_gain(cells, 1.25).run_freedom == 5
    one = average_gain(auroc_cells(scored(y, center), rng.normal(size=size), rng.normal(size=size)), 1.25)
    assert math.isnan(one.half_width()) and math.isnan(one.p()) and verdict(one) is Verdict.NO_INTERVAL


def test_identical_methods_are_equal():
    rng = numbers(10)
    y, a = (rng.random(1000) < 0.1).astype(float), rng.normal(size=1000)
    rows = scored(y, rng.integers(0, 8, 1000), rng.integers(0, 3, 1000))
    gain = average_gain(auroc_cells(rows, a, a), 1.25)
    assert gain.estimate == 0 and gain.half_width() == 0 and verdict(gain) is Verdict.EQUAL


def test_hospitals_without_a_class_do_not_count():
    rng = numbers(11)
    center = np.repeat([0, 1, 2], 200)
    y = (rng.random(600) < 0.2).astype(float)
    y[center == 2] = 0.0
    gain = average_gain(auroc_cells(scored(y, center, np.tile([0, 1], 300)), rng.normal(size=600), y), 1.25)
    assert gain.hospitals == 2 and math.isfinite(gain.half_width())
    nobody = average_gain(auroc_cells(scored(np.zeros(9)), np.ones(9), np.ones(9)), 1.25)
    assert nobody.hospitals == 0 and math.isnan(nobody.estimate)


def test_inflation():
    assert fold_inflation(5) == 1.125 and split_inflation(15, 70) == pytest.approx(1 + 15 / 70)


# ------------------------------------------------------------------------------------------ hospitals


def test_mixture_agrees_with_scipy():
    weight, middle, spread = np.array([[0.3, 0.7]]), np.array([[-1.0, 2.0]]), np.array([[0.5, 1.5]])
    mixture = Mixture(weight, middle, spread)
    density = lambda x: (weight[0] * stats.norm.pdf(x, middle[0], spread[0])).sum()  # noqa: E731
    assert mixture.above(0.7)[0] == pytest.approx(integrate.quad(density, 0.7, 20)[0], abs=1e-8)
    assert mixture.above(mixture.quantile(0.3)[0])[0] == pytest.approx(0.7)
    assert mixture.mean[0] == pytest.approx(1.1)


def test_posterior_is_that_of_numerical_integration():
    """The same model by brute force: a grid over mu, slope, tau, how tau grows with 1/events and the share of
    the variance that is true, with exact mixtures of normal laws."""
    rng = numbers(12)
    gain = rng.normal(0.04, 0.03, 6)
    gain[2] = -0.1
    cells = made_cells(gain, 0.03, events=np.array([20, 30, 40, 60, 100, 200.0]))
    found = hospital_gains(cells, inflation=1.0)
    v, f = cells.moderated
    x = 1 / cells.events
    relative = np.clip(x / np.median(x), 0.2, 5.0)
    x = (x - x.mean()) / x.std()
    from abps.evaluate.hospitals import POWERS, SHARES, TAUS

    mu, slope = np.meshgrid(np.linspace(-0.2, 0.25, 91), np.linspace(-0.15, 0.15, 61), indexing="ij")
    where = mu[..., None] + slope[..., None] * x
    total, first = 0.0, np.zeros(6)
    for power, part, (k, tau) in itertools.product(POWERS, SHARES, enumerate(TAUS)):
        prior_tau = (tau + 0.002) ** 2 * math.exp(-0.5 * (tau / 0.05) ** 2)
        prior_tau *= TAUS[1] if k == 0 else TAUS[k] - TAUS[k - 1]
        own = tau * relative**power
        laws = [
            share * stats.norm.pdf(gain, where, np.sqrt(part * v + (factor * own) ** 2))
            for share, factor in ((0.98, 1), (0.02, 5))
        ]
        each = laws[0] + laws[1]
        mass = prior_tau * each.prod(axis=-1) * stats.norm.pdf(slope, 0, 0.05)
        noise, post = v * f / (f - 2), 0.0
        for law, factor in zip(laws, (1, 5)):
            kept = 1 - noise / (noise + (factor * own) ** 2)
            post = post + law / each * (where + kept * (gain - where))
        total += mass.sum()
        first += (mass[..., None] * post).sum(axis=(0, 1))
    assert found.model.mean == pytest.approx(first / total, abs=0.004)


def test_hospitals_that_truly_differ_keep_their_difference():
    gain = 0.05 + numbers(13).normal(0, 0.02, 30)
    gain[:3] = -0.3
    cells = made_cells(gain, 0.02)
    found = hospital_gains(cells, inflation=1.0)
    words = hospital_verdicts(found, cells)
    assert words[:3] == [HospitalVerdict.LOSES] * 3
    assert sum(word is HospitalVerdict.GAINS for word in words[3:]) > 16
    assert found.expected_below(0.02) == pytest.approx(3.0, abs=0.5)


def test_next_hospital_is_covered():
    rng = numbers(14)
    inside = 0
    for _ in range(200):
        true = rng.normal(0.05, 0.04, 25)
        cells = made_cells(true + rng.normal(0, 0.03, 25), 0.03, 50.0)
        low, high = hospital_gains(cells, inflation=1.0).further.interval()
        inside += low[0] <= rng.normal(0.05, 0.04) <= high[0]
    assert 180 <= inside <= 199


def test_nothing_is_said_of_hospitals_with_few_events():
    cells = made_cells([0.3, 0.3, 0.3, 0.3], 0.01, events=np.array([4.0, 5.0, 50.0, 50.0]))
    words = hospital_verdicts(hospital_gains(cells, 1.0), cells)
    assert words[0] is HospitalVerdict.TOO_FEW and words[1] is HospitalVerdict.GAINS
    assert hospital_gains(made_cells([math.nan], 0.1), 1.0) is None


# ------------------------------------------------------------------------------------------ verdicts


def gain_of(estimate, patients=1e-4, runs=0.0, freedom=14):
    return AverageGain(estimate, patients, patients, runs, freedom, 1e6, 40)


def test_verdicts():
    assert verdict(gain_of(0.03)) is Verdict.BETTER
    assert verdict(gain_of(-0.03)) is Verdict.WORSE
    assert verdict(gain_of(0.01)) is Verdict.INCONCLUSIVE
    assert verdict(gain_of(0.001, patients=1e-5)) is Verdict.EQUAL
    # two one-sided tests: the 90 % interval decides, not the 95 % interval
    assert verdict(gain_of(0.0, patients=(0.0098 / 1.96) ** 2)) is Verdict.EQUAL
    assert verdict(gain_of(0.0, patients=(0.0115 / 1.96) ** 2)) is Verdict.EQUAL
    assert verdict(gain_of(0.0, patients=(0.0125 / 1.96) ** 2)) is Verdict.INCONCLUSIVE
    assert verdict(gain_of(0.03), p=0.2) is Verdict.INCONCLUSIVE
    assert verdict(gain_of(0.022), alpha=alpha_at_look(2)) is Verdict.INCONCLUSIVE


def test_levels_of_looks_sum_to_less_than_eight_percent():
    assert alpha_at_look(1) == pytest.approx(0.05)
    assert sum(alpha_at_look(k) for k in range(1, 10_000)) <= 0.075 + 1e-9


def test_what_settles_is_enough():
    by_runs = gain_of(0.02, patients=2e-5, runs=9e-5, freedom=4)
    needed = settles(by_runs, events=500, folds=5)
    assert needed.repeats and needed.repeats > 1
    more = needed.repeats * 5
    after = gain_of(0.02, patients=2e-5, runs=9e-5 * 5 / more, freedom=more - 1)
    assert verdict(by_runs) is Verdict.INCONCLUSIVE and verdict(after) is Verdict.BETTER
    by_patients = gain_of(0.015)
    needed = settles(by_patients, events=500, folds=5)
    assert needed.repeats is None and needed.events
    assert verdict(gain_of(0.0151, patients=1e-4 * 500 / needed.events)) is Verdict.BETTER


def test_events_needed_have_the_power():
    cells = made_cells([0.05, 0.05, 0.05], 0.05, events=30.0)
    found = hospital_gains(cells, 1.0)
    needed = hospital_evidence(found, cells, 1.0)[0].needed
    error = math.sqrt(cells.moderated[0][0] * 30 / needed)
    power = stats.norm.sf(1.96 - max(found.model.mean[0], 0.02) / error)
    assert power == pytest.approx(0.80, abs=0.005)


def test_agreement_with_log_loss():
    assert agreement(gain_of(0.05), gain_of(0.05)) is LossAgreement.AGREES
    assert agreement(gain_of(0.05), gain_of(-0.05)) is LossAgreement.DISAGREES
    assert agreement(gain_of(0.05), gain_of(0.001)) is LossAgreement.UNCLEAR


def test_holm_agrees_with_statsmodels():
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    p = [0.001, 0.2, 0.04, 0.013, 0.9]
    assert holm(p) == pytest.approx(list(multitest.multipletests(p, method="holm")[1]))
    assert holm([0.01, math.nan, 0.03])[0] == pytest.approx(0.02)
    assert math.isnan(holm([0.01, math.nan])[1])
