"""What centers forget, and when: comparisons against SciPy, decay against hand calculation."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import pytest
from scipy import stats

from abps.core.beliefs import Beliefs
from abps.core.errors import RequestError
from abps.core.selection import Selection
from abps.data.codebook import Codebook
from abps.data.prepare import Prepared, Rows
from abps.data.table import load
from abps.engine.simulate import simulate
from abps.lab import change_detection as drift
from abps.lab.change_detection import two_sided_p
from abps.lab.forgetting import (
    AdaptiveABPS,
    DriftMonitor,
    Forgetting,
    Observations,
    joined,
    p_values,
    relation_p,
    summary_of,
)
from abps.methods.abps import ABPS
from abps.methods.base import Alarm, Context, Stopping
from abps.methods.settings import configure, describe, undescribed
from abps.models.metrics import Segments
from abps.models.training import Training
from abps.sites.consent.agreement import Agreement

ALARM = Forgetting(forget="alarm", kept=0.25)


def segments(groups: list[np.ndarray]) -> Segments:
    return Segments(np.concatenate(groups), np.concatenate([[0], np.cumsum([len(g) for g in groups])]))


def test_comparisons_are_scipys() -> None:
    rng = np.random.default_rng(0)
    old = [rng.normal(0, 1, n) for n in (5, 30, 100)]
    new = [rng.normal(0.5, 2, n) for n in (40, 8, 200)]
    p = p_values(summary_of(segments(old)), summary_of(segments(new)))
    want = [stats.ttest_ind(a, b).pvalue for a, b in zip(old, new, strict=True)]
    np.testing.assert_allclose(p, want, rtol=1e-8)
    nothing = segments([np.zeros(0), np.ones(3), np.ones(3)])
    assert p_values(summary_of(nothing), summary_of(segments(new)))[0] == 1.0


def test_joined_keeps_groups_together() -> None:
    a, b = segments([np.array([1.0, 2]), np.array([3.0])]), segments([np.array([4.0]), np.array([5.0, 6])])
    both = joined(a, b)
    assert [both[0].tolist(), both[1].tolist()] == [[1, 2, 4], [3, 5, 6]]


def test_an_alarm_fades_what_the_center_believes_and_what_is_believed_of_it() -> None:
    beliefs = Beliefs(4).observe([0, 0, 1, 2, 3], [1, 2, 0, 3, 1], [1.0, 0.5, 0.8, 0.2, 0.6])
    faded = ALARM.fade(beliefs, (Alarm(1, "loss", 0.001), Alarm(1, "outcome", 0.002)))
    count = faded.posterior([0, 0, 1, 2, 3], [1, 2, 0, 3, 1]).count
    np.testing.assert_allclose(count, [0.25, 1, 0.25, 1, 0.25])
    assert faded.posterior(1, 0).alpha == pytest.approx(1 + 0.25 * 0.8)
    silent = replace(ALARM, announce=False).fade(beliefs, (Alarm(1, "loss", 0.001),))
    np.testing.assert_allclose(silent.posterior([0, 1, 3], [1, 0, 1]).count, [1, 0.25, 1])
    assert ALARM.fade(beliefs, ()) is beliefs


def observed(values: list[float], surprise: float = 0.0) -> Observations:
    n = len(values)
    return Observations(np.arange(n), (np.arange(n) + 1) % n, np.array(values), np.full(n, surprise))


def test_a_window_of_rounds_holds_just_those() -> None:
    memory = Forgetting(forget="window", recall=3)
    rounds = [replace(observed([0.1 * t, 0.2, 0.3]), round=t) for t in range(8)]
    state, beliefs = DriftMonitor(), Beliefs(3)
    for each in rounds:
        state = memory.remember(state, each)
        beliefs = memory.recalled(beliefs.observe(each.center, each.peer, each.value), state, np.arange(3))
    want = Beliefs(3)
    for each in rounds[-3:]:
        want = want.observe(each.center, each.peer, each.value)
    np.testing.assert_allclose(beliefs.gain, want.gain)
    np.testing.assert_allclose(beliefs.count, [3, 3, 3])


def moved_world(context: Context, flip: list[int], seed: int) -> Context:
    """New rows of the same centers: the same features and labels in another order, some labels turned."""
    rng = np.random.default_rng(seed)

    def again(rows: Rows) -> Rows:
        x, y = rows.x.copy(), rows.y.copy()
        for i in range(len(rows.sizes)):
            part = slice(rows.start[i], rows.start[i + 1])
            order = rng.permutation(part.stop - part.start)
            x[part], y[part] = x[part][order], y[part][order]
            if i in flip:
                y[part] = 1.0 - y[part]
        return Rows(x, y, rows.start)

    data: Prepared = replace(
        context.data, train=again(context.data.train), validation=again(context.data.validation)
    )
    return replace(context, data=data, learner=context.learner.on(data))


def test_a_center_whose_outcomes_no_longer_fit_its_model_raises_the_alarm(
    context: Callable[..., Context],
) -> None:
    before = context(Training(epochs=20, dropout=0.0, hidden=(16,), lr=0.01))
    models = before.learner.train(before.common_start(), 1)
    after = moved_world(before, flip=[3, 5], seed=1)
    memory = Forgetting(forget="alarm", watch=("loss",), alarm_level=1e-3)
    assert {a.center for a in memory.look(before, after, models, 2)} == {3, 5}
    assert replace(memory, forget="never").look(before, after, models, 2) == ()
    # there are more positive rows than before as well
    outcome = replace(memory, watch=("outcome",)).look(before, after, models, 2)
    assert {a.center for a in outcome} == {3, 5}


def test_outcome_and_case_mix_are_watched(context: Callable[..., Context]) -> None:
    before = context(Training(dropout=0.0))
    models = before.common_start()
    train = before.data.train
    y, x = train.y.copy(), train.x.copy()
    y[train.start[4] : train.start[5]] = 1.0
    flags = [k for k in range(x.shape[1]) if np.isin(x[:, k], (0, 1)).all()]
    x[train.start[2] : train.start[3], flags[0]] = 1.0 - x[train.start[2] : train.start[3], flags[0]]
    data = replace(before.data, train=Rows(x, y, train.start))
    after = replace(before, data=data, learner=before.learner.on(data))
    memory = Forgetting(forget="alarm", watch=("outcome", "case_mix"))
    assert {(a.center, a.statistic) for a in memory.look(before, after, models, 2)} == {
        (4, "outcome"),
        (2, "case_mix"),
    }


def test_utilities_that_turn_raise_an_alarm_and_the_past_is_cleared() -> None:
    rng = np.random.default_rng(4)
    memory = Forgetting(forget="alarm", watch=("utility",), block=6)
    state, when = DriftMonitor(), []
    for t in range(1, 61):
        surprise = rng.normal(0, 0.1, 3)
        surprise[1] -= 0.5 if t > 30 else 0.0
        each = Observations(np.arange(3), np.array([1, 2, 0]), np.full(3, 0.5), surprise)
        state, alarms = memory.surprises(state, each, 3)
        when += [(t, a.center) for a in alarms]
        state = memory.clear(state, alarms)
    assert when and {c for _, c in when} == {1}
    assert 30 < when[0][0] <= 45


@pytest.mark.parametrize(("old_rows", "new_rows"), [(46, 263), (150, 850)])
@pytest.mark.parametrize("typical", [-2.5, -4.0])
def test_false_alarms_keep_their_level_on_rare_outcomes(old_rows: int, new_rows: int, typical: float) -> None:
    """Deviance residuals of a fair model on rare outcomes: skewed, few on one side, many on the other."""
    rng = np.random.default_rng(7)
    centers = 4000

    def residuals(rows: int) -> Segments:
        risk = 1 / (1 + np.exp(-rng.normal(typical, 1.5, (centers, rows))))
        died = rng.random((centers, rows)) < risk
        loss = -np.where(died, np.log(risk), np.log1p(-risk))
        return Segments(np.sqrt(2 * loss).ravel(), np.arange(0, centers * rows + 1, rows))

    old, new = summary_of(residuals(old_rows)), summary_of(residuals(new_rows))
    p = p_values(old, new)
    for level in (0.05, 0.01):
        assert (p <= level).mean() <= level + 3 * np.sqrt(level * (1 - level) / centers)
    welch = two_sided_p(*drift.welch(old, new))
    if old_rows == 46:  # why the variances are pooled
        assert (welch <= 0.01).mean() > 1.5 * (p <= 0.01).mean()


def test_relations_against_every_division_of_the_rows() -> None:
    """Sampled permutations against all of them, with the statistic written out feature by feature."""
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(9, 3)), np.array([0.0, 1, 0, 0, 1, 0, 1, 0, 0])
    x[5:, 0] += 3 * y[5:]

    def statistic(new: tuple[int, ...]) -> float:
        old = [i for i in range(9) if i not in new]
        total = 0.0
        for k in range(3):
            z = (x[:, k] - x[:, k].mean()) * (y - y.mean())
            total += ((z[list(new)].mean() - z[old].mean()) / z.std()) ** 2
        return total

    found = statistic((5, 6, 7, 8))
    chance = [statistic(new) for new in itertools.combinations(range(9), 4)]
    exact = np.mean(np.array(chance) >= found - 1e-12)
    sampled = relation_p(x[:5], y[:5], x[5:], y[5:], np.random.default_rng(0), 20_000)
    assert sampled == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 20_000))
    assert 0.01 < exact < 0.5


def rare(rng: np.random.Generator, rows: int, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(size=(rows, len(weights)))
    return x, (rng.random(rows) < 1 / (1 + np.exp(3.0 - x @ weights))).astype(float)


def test_relations_keep_their_level_and_find_a_new_risk_function() -> None:
    rng = np.random.default_rng(6)
    weights = rng.normal(size=10) * 0.5
    other = rng.normal(size=10) * 0.5
    same, changed = [], []
    for k in range(400):
        old = rare(rng, 200, weights)
        same.append(relation_p(*old, *rare(rng, 240, weights), np.random.default_rng(k), 199))
        if k < 60:
            changed.append(relation_p(*old, *rare(rng, 240, other), np.random.default_rng(k), 199))
    for level in (0.01, 0.05, 0.2):
        assert np.mean(np.array(same) <= level) <= level + 3 * np.sqrt(level * (1 - level) / 400)
    assert np.mean(np.array(changed) <= 0.05) > 0.8


def test_relations_that_cannot_be_compared() -> None:
    x, rng = np.ones((4, 2)), np.random.default_rng(0)
    assert relation_p(x, np.zeros(4), x, np.zeros(4), rng, 99) == 1.0  # nobody died
    assert relation_p(x[:0], np.zeros(0), x, np.ones(4), rng, 99) == 1.0
    assert relation_p(x, np.array([0.0, 1, 0, 1]), x, np.ones(4), rng, 99) == 1.0  # no feature varies


def test_a_new_relation_at_equal_rates_raises_the_alarm(context: Callable[..., Context]) -> None:
    before = context(Training(dropout=0.0))
    train = before.data.train
    y = train.y.copy()
    part = slice(train.start[4], train.start[5])
    risk = train.x[part] @ np.linspace(-1, 1, train.x.shape[1])
    deaths = int(y[part].sum())
    y[part] = 0.0
    y[part.start + np.argsort(-risk)[:deaths]] = 1.0
    data = replace(before.data, train=Rows(train.x, y, train.start))
    after = replace(before, data=data, learner=before.learner.on(data))
    models = before.common_start()
    memory = Forgetting(forget="alarm", watch=("outcome", "relation"))
    found = memory.look(before, after, models, 2)
    assert {(a.center, a.statistic) for a in found} == {(4, "relation")}
    assert found == memory.look(before, after, models, 2)


# --------------------------------------------------------------------------- inside a run

SPEC = "icu-stream:centers=9,groups=3,stays=2700,heterogeneity=4,rounds=12,every=4,at=5,share=0.4"
QUICK = AdaptiveABPS(
    selection=Selection(kappa=1, gamma=0.1),
    training=Training(epochs=1, hidden=(8,)),
    stop=Stopping(rounds=12),
)


def test_by_default_nothing_is_forgotten_and_the_paper_is_untouched() -> None:
    assert type(configure("abps")) is ABPS and Forgetting().forget == "never"
    changed = configure("abps", {"forget": "alarm", "watch": "loss+utility", "gamma": 0.1})
    assert isinstance(changed, AdaptiveABPS) and changed.memory.watch == ("loss", "utility")
    assert changed.selection.gamma == 0.1 and changed.discount == 1.0
    assert undescribed(configure("abps"), describe(changed)) == changed
    with pytest.raises(RequestError, match="has no setting 'forget'"):
        configure("fedavg", {"forget": "alarm"})


def test_an_adaptive_method_that_never_forgets_is_abps() -> None:
    federation = load(SPEC)
    plain = simulate(federation, ABPS(**{f.name: getattr(QUICK, f.name) for f in fields(ABPS)}), seed=11)
    never = simulate(federation, QUICK, seed=11)
    assert plain.history.auroc == never.history.auroc and plain.decisions.equals(never.decisions)


def test_runs_on_a_stream_forget_where_an_alarm_was_and_say_so() -> None:
    federation = load(SPEC)
    never = simulate(federation, QUICK, seed=11)
    loud = replace(QUICK, memory=Forgetting(forget="alarm", kept=0.0, watch=("loss",), alarm_level=0.9))
    alarm = simulate(federation, loud, seed=11)
    rows = alarm.decisions.filter(alarm.decisions["decision"] == "alarm")
    assert rows.height > 0 and set(rows["round"]) <= {5, 9} and set(rows["reason"]) == {"loss"}
    assert rows["score"].is_between(0, 0.9).all()
    assert never.history.auroc[:4] == alarm.history.auroc[:4]  # the same until the first alarm
    assert alarm.beliefs.count.sum() < never.beliefs.count.sum()
    assert alarm.bytes.control > never.bytes.control
    assert len(never.history.auroc) == 12
    again = simulate(federation, loud, seed=11)
    assert again.history.auroc == alarm.history.auroc and again.decisions.equals(alarm.decisions)


def test_the_debug_engine_gives_the_same_on_a_stream() -> None:
    federation = load(SPEC)
    config = replace(QUICK, stop=Stopping(rounds=6), memory=replace(ALARM, alarm_level=0.5))
    fast, slow = (simulate(federation, config, seed=11, engine=e) for e in ("simulate", "debug"))
    np.testing.assert_allclose(fast.history.auroc, slow.history.auroc, atol=2e-3)


@pytest.mark.parametrize(
    "method", ["local", "fedavg", "centralized", "random-k1", "wpfed", "defta", "feddyn"]
)
def test_every_kind_of_method_learns_from_the_window_in_force(method: str) -> None:
    federation = load(SPEC)
    run = simulate(federation, method, seed=11, rounds=9, settings={"epochs": "1", "hidden": "8"})
    assert len(run.history.auroc) == 9
    assert all(0.2 < v < 1 for v in run.history.auroc)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Forgetting(forget="sometimes"), "sometimes"),
        (lambda: Forgetting(kept=2.0), "kept"),
        (lambda: Forgetting(recall=0), "recall"),
        (lambda: Forgetting(alarm_level=0.0), "alarm_level"),
        (lambda: Forgetting(watch=("weather",)), "weather"),
        (lambda: AdaptiveABPS(discount=0.9, memory=Forgetting(forget="window")), "one way"),
    ],
)
def test_wrong_settings(make: Callable[[], object], word: str) -> None:
    with pytest.raises(RequestError, match=word):
        make()


def test_sites_refuse_what_needs_old_rows_in_a_sentence() -> None:
    def agreed(**settings: str) -> object:
        return Agreement("study", "abps", Codebook((), (), False), settings=settings).config()

    for watch in ("loss", "utility"):
        with pytest.raises(RequestError, match="set forget=window or forget=never"):
            agreed(forget="alarm", watch=watch)
    for settings in ({"forget": "window"}, {"discount": "0.9"}):
        assert isinstance(agreed(**settings), ABPS)
