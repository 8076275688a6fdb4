"""Survival: against lifelines, and against the definitions told plainly."""

import numpy as np
import pytest

from abps.core.errors import RequestError
from abps.evaluate import survival as s


def made(rows=80, seed=0, ties=True):
    rng = np.random.default_rng(seed)
    time = rng.exponential(10.0, rows)
    if ties:
        time = np.ceil(time)
    event = rng.random(rows) < 0.6
    risk = np.round(-np.log(time + 0.1) + rng.normal(size=rows), 1 if ties else 9)
    return time, event, risk


@pytest.mark.parametrize("seed", range(5))
def test_censoring_is_lifelines_kaplan_meier_of_the_end_of_watching(seed):
    import lifelines

    time, event, _ = made(seed=seed)
    # Where both fall on one time the event came first: the end of watching is a moment later.
    theirs = lifelines.KaplanMeierFitter().fit(time + 1e-6 * ~event, ~event).survival_function_["KM_estimate"]
    steps = np.unique(time)
    wanted = theirs.to_numpy()[np.searchsorted(theirs.index.to_numpy(), steps + 1e-5) - 1]
    np.testing.assert_allclose(s.censoring(time, event).at(steps), wanted, atol=1e-12)


def test_scores_weighted_for_censoring_by_their_definition():
    time, event, risk = made(60, 2)
    grid = np.array([3.0, 8.0, 15.0])
    watched = s.censoring(time, event)
    chance = np.clip(np.random.default_rng(3).random((60, 3)), 0.05, 0.95)
    ours = s.brier(time, event, chance, grid, watched)
    for k, t in enumerate(grid):
        total = 0.0
        for i in range(60):
            if time[i] <= t and event[i]:
                total += chance[i, k] ** 2 / watched.before(time[i : i + 1])[0]
            elif time[i] > t:
                total += (1 - chance[i, k]) ** 2 / watched.at(np.array([t]))[0]
        assert ours[k] == pytest.approx(total / 60, abs=1e-12)
        above = below = 0.0
        for i in np.flatnonzero(event & (time <= t)):
            w = 1.0 / watched.before(time[i : i + 1])[0]
            for j in np.flatnonzero(time > t):
                above += w * (1.0 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0.0)
                below += w
        assert s.auroc_at(time, event, risk, t, watched) == pytest.approx(above / below, abs=1e-12)


def test_without_censoring_the_weighted_scores_are_the_plain_ones():
    from sklearn.metrics import roc_auc_score

    time, _, risk = made(50, 4)
    everybody = np.ones(50, dtype=bool)
    watched = s.censoring(time, everybody)
    assert s.auroc_at(time, everybody, risk, 6.0, watched) == pytest.approx(roc_auc_score(time <= 6.0, risk))
    chance = np.full((50, 1), 0.3)
    plain = np.mean(((time > 6.0) - 0.3) ** 2)
    assert s.brier(time, everybody, chance, np.array([6.0]), watched)[0] == pytest.approx(plain)


@pytest.mark.parametrize(("time", "event"), [([], []), ([1.0, -2.0], [True, True]), ([np.nan], [True])])
def test_what_is_no_time_to_an_event_is_refused(time, event):
    with pytest.raises(RequestError):
        s.censoring(np.array(time), np.array(event, dtype=bool))


def test_one_kind_only_has_no_auroc():
    time, nobody = np.array([1.0, 2.0]), np.zeros(2, dtype=bool)
    assert np.isnan(s.auroc_at(time, nobody, time, 1.5, s.censoring(time, nobody)))


def test_weighted_scores_agree_with_scikit_survival() -> None:
    """The numbers are those of scikit-survival 0.28.0 on these rows (its licence keeps it out of the tests):
    concordance_index_ipcw, cumulative_dynamic_auc and brier_score."""
    rng = np.random.default_rng(8)
    time, event = rng.exponential(10, 400), rng.random(400) < 0.6
    train, test = slice(0, 250), slice(250, 400)
    risk, until = rng.normal(size=400) - 0.1 * time, float(np.quantile(time[:250], 0.9))
    watched = s.censoring(time[train], event[train])
    got = s.weighted_concordance(time[test], event[test], risk[test], watched, until)
    assert got == pytest.approx(0.646809018091404, abs=1e-6)
    inside = time[test] < time[train].max()
    t, e, r = time[test][inside], event[test][inside], risk[test][inside]
    assert s.auroc_at(t, e, r, 4.0, watched) == pytest.approx(0.6839927397709724, abs=1e-6)
    grid = np.array([2.0, 4.0, 6.0])
    alive = np.exp(-grid[None] / 10 * np.exp(0.3 * r[:, None]))
    wanted = [0.0827834846925747, 0.1502609815478921, 0.19595711785722614]
    np.testing.assert_allclose(s.brier(t, e, alive, grid, watched), wanted, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_weighted_scores_by_their_definitions_with_the_curve_of_lifelines(seed) -> None:
    """Pair by pair and row by row; the chance to be watched is Kaplan-Meier's of lifelines."""
    import lifelines

    time, event, risk = made(90, seed, ties=False)
    watched = s.censoring(time, event)
    theirs = lifelines.KaplanMeierFitter().fit(time, ~event).survival_function_["KM_estimate"]
    steps, values = theirs.index.to_numpy(), theirs.to_numpy()

    def chance(t: float, before: bool) -> float:
        return float(values[np.searchsorted(steps, t, "left" if before else "right") - 1])

    until, at = float(np.quantile(time, 0.8)), float(np.median(time))
    good = pairs = cases = case_pairs = 0.0
    for i in range(len(time)):
        if event[i] and time[i] < until:
            weight = chance(time[i], True) ** -2
            for j in range(len(time)):
                if time[j] > time[i]:
                    pairs += weight
                    good += weight * (1.0 if risk[j] < risk[i] else 0.5 if risk[j] == risk[i] else 0.0)
        if event[i] and time[i] <= at:
            for j in np.flatnonzero(time > at):
                case_pairs += 1 / chance(time[i], True)
                right = 1.0 if risk[j] < risk[i] else 0.5 if risk[j] == risk[i] else 0.0
                cases += right / chance(time[i], True)
    assert s.weighted_concordance(time, event, risk, watched, until) == pytest.approx(good / pairs, abs=1e-9)
    assert s.auroc_at(time, event, risk, at, watched) == pytest.approx(cases / case_pairs, abs=1e-9)
    alive = np.exp(-at / 10 * np.exp(0.3 * risk))
    error = 0.0
    for i in range(len(time)):
        if time[i] <= at and event[i]:
            error += alive[i] ** 2 / chance(time[i], True)
        elif time[i] > at:
            error += (1 - alive[i]) ** 2 / chance(at, False)
    got = s.brier(time, event, alive[:, None], np.array([at]), watched)
    assert got[0] == pytest.approx(error / len(time), abs=1e-9)
