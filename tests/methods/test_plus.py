"""abps-plus: what centers measure, publish, refuse and adopt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score

from abps import simulate
from abps.core.errors import RequestError
from abps.core.ledger import Traffic, directory
from abps.core.matching import Rest
from abps.core.usefulness import Experience, believe
from abps.engine.rounds import Course
from abps.methods.base import grounded
from abps.methods.catalog import find
from abps.methods.plus import ABPSPlus, Calling, Public, adopt, associations, judge
from abps.methods.settings import with_settings
from abps.models.metrics import gains
from abps.models.training import Training


@pytest.fixture
def here(world):
    """All centers of the small world."""
    return world(Training(hidden=(16, 8)))


def pairs_of(n):
    """Neighbours as partners; an odd one out has none."""
    lists = [np.zeros(0, dtype=np.int64)] * n
    for a in range(0, n - 1, 2):
        lists[a], lists[a + 1] = np.array([a + 1]), np.array([a])
    return lists


def moved(here, seed=0):
    torch.manual_seed(seed)
    start = here.learner.start.expand(here.n, -1)
    return start + 0.05 * torch.randn_like(start)


def test_a_received_model_is_judged_on_all_own_rows_under_the_own_head(here):
    trained = moved(here)
    shared = here.learner.layout.shared(1)
    arrived = trained[:, :shared] + 0.01
    center, peer, value, _ = judge(here, trained, arrived, pairs_of(here.n))
    for i, j, got in zip(center, peer, value):
        model = trained[i : i + 1].clone()
        model[0, :shared] = arrived[j]
        parts = (here.data.train, here.data.validation)
        scores = np.concatenate([here.learner.logits(model, part, np.array([i])).values for part in parts])
        labels = np.concatenate([part.only(int(i)).y for part in parts])
        assert got == pytest.approx(roc_auc_score(labels, scores), abs=1e-6)


def test_several_partners_share_what_they_are_worth_together(here):
    trained = moved(here)
    arrived = trained[:, : here.learner.layout.shared(1)]
    three = [np.array([1, 2, 3])] + [np.zeros(0, dtype=np.int64)] * (here.n - 1)
    _, _, value, _ = judge(here, trained, arrived, three)
    alike = arrived.clone()
    alike[1:] = arrived[1]
    _, _, same, _ = judge(here, trained, alike, three)
    _, _, single, _ = judge(here, trained, alike, [np.array([1]), *three[1:]])
    assert same == pytest.approx(np.repeat(single, 3), abs=1e-6)  # equals get what each has alone
    whole = np.average(arrived[1:4].numpy(), axis=0, weights=here.sizes()[1:4].numpy())
    model = trained[:1].clone()
    model[0, : len(whole)] = torch.from_numpy(whole.astype(np.float32))
    rows = here.data.own
    score = here.learner.logits(model, rows, np.array([0])).values
    together = roc_auc_score(rows.only(0).y, score)
    assert (value - 0.5).sum() / 3 == pytest.approx(together - 0.5, abs=2e-3)


def test_own_rows_hold_training_and_validation_rows_of_each_center(here):
    rows = here.data.own
    for i in range(here.n):
        wanted = np.concatenate([here.data.train.only(i).y, here.data.validation.only(i).y])
        np.testing.assert_array_equal(rows.only(i).y, wanted)


def test_trust_decides_how_much_of_a_peer_is_adopted(here):
    trained = moved(here)
    shared = here.learner.layout.shared(1)
    arrived = trained[:, :shared].clone()
    helps = np.ones((here.n, here.n))
    helps[0, 1], helps[1, 0] = 0.2, 0.4
    mixed, answers = adopt(here, trained, arrived, pairs_of(here.n), helps)
    again = here.learner.logits(mixed, here.data.validation)
    np.testing.assert_array_equal(answers.values, again.values)
    sizes = here.sizes()
    assert torch.equal(mixed[0], trained[0])  # probably harmful: nothing is taken
    say = 0.8 * sizes[0]
    wanted = (sizes[1] * trained[1, :shared] + say * arrived[0]) / (sizes[1] + say)
    torch.testing.assert_close(mixed[1, :shared], wanted)
    whole = (sizes[2] * trained[2, :shared] + sizes[3] * arrived[3]) / (sizes[2] + sizes[3])
    torch.testing.assert_close(mixed[2, :shared], whole)
    assert torch.equal(mixed[:, shared:], trained[:, shared:])


def test_associations_are_standardised_differences_and_few_positives_are_not_told(here):
    rows = here.data.train
    few = int(np.sort(rows.positives())[here.n // 2])
    table, variance = associations(here, Public(min_positives=few))
    for i in range(here.n):
        own = rows.only(i)
        count = int(own.y.sum())
        if count < few:
            assert not table[i].any() and np.isinf(variance[i])
            continue
        sd = own.x.std(axis=0, dtype=np.float64)
        gap = own.x[own.y > 0].mean(axis=0) - own.x[own.y == 0].mean(axis=0)
        wanted = np.where(sd > 1e-5, gap / np.where(sd > 0, sd, 1), 0)
        np.testing.assert_allclose(table[i], wanted, atol=1e-4)
        assert variance[i] == pytest.approx(1 / count + 1 / (len(own.y) - count))
    noisy, _ = associations(here, Public(min_positives=few, noise=0.5))
    assert not noisy[~np.isfinite(variance)].any()
    assert not np.allclose(noisy[np.isfinite(variance)], table[np.isfinite(variance)])


def test_a_center_that_is_sure_that_nobody_helps_does_not_call(here):
    method = ABPSPlus()
    here = grounded(method, here)
    diary = Experience.none()
    for t in range(1, 6):
        i, j = (a.ravel() for a in np.nonzero(~np.eye(here.n, dtype=bool)))
        diary = diary.observe(i, j, t, np.full(len(i), 0.45), np.full(len(i), 0.01))
    belief = believe(here.ground.features, here.ground.slopes, diary, 6, method.expect)
    strong = np.full(here.n, 0.95)  # own models are excellent
    even = method.break_even(here, belief, strong, np.zeros(here.n))
    willing = method.willing(here, belief, even, method.scores(here, belief, even, 6))
    assert not willing.any()
    fresh = np.ones((here.n, here.n))
    assert method.rankings(willing, belief.mean, even, fresh) == [[]] * here.n


def test_centers_that_want_nobody_rest_by_their_own_decision(here):
    """Everybody is sure that nobody helps: no proposal, no byte of weights, and the cause is told."""
    method = with_settings(find("abps-plus-v1"), {"price": "10"})
    _, outcome = Course.start(method, here).round(1)
    assert (outcome.rest == Rest.DECLINED).all() and outcome.traffic.edge == 0


def test_the_audit_trail_tells_prior_evidence_and_posterior(tiny):
    run = simulate(tiny, "abps-plus-v1", seed=11, rounds=3)
    accepted = run.decisions.filter(pl.col("decision") == "accepted")
    assert accepted.height and accepted["reason"].str.contains(r"prior .*measured .*now .*break-even").all()


def test_bytes_are_those_of_the_packed_frames_and_warm_up_is_free(tiny):
    whole = simulate(tiny, "abps-plus-v1", seed=11, rounds=4)
    late = simulate(tiny, "abps-plus-v1", seed=11, rounds=4, settings={"warm_up": "2"})
    assert 0 < late.bytes.edge < whole.bytes.edge
    bf16 = simulate(tiny, "abps-plus-v1-bf16", seed=11, rounds=1)
    int4, int3 = (simulate(tiny, name, seed=11, rounds=1) for name in ("abps-plus-v1-int4", "abps-plus-v1"))
    # 16 bits against 4 or 3 and a share of a scale, and the frames' headers.
    assert 3.3 < bf16.bytes.edge / int4.bytes.edge < 16 / 4.25
    assert 4.0 < bf16.bytes.edge / int3.bytes.edge < 16 / 3.25


@pytest.mark.parametrize("policy", ["thompson", "bayes-ucb", "gumbel", "mean", "random"])
@pytest.mark.parametrize("kappa", [1, 3])
def test_every_policy_pairs_symmetrically_within_capacity(tiny, policy, kappa):
    run = simulate(tiny, "abps-plus-v1", seed=11, rounds=3, settings={"policy": policy, "kappa": str(kappa)})
    accepted = run.decisions.filter(pl.col("decision") == "accepted")
    for (t,), rows in accepted.group_by(["round"]):
        ends = rows["center"].to_list() + rows["peer"].to_list()
        assert max(ends.count(name) for name in set(ends)) <= kappa, t


def test_bad_settings_are_refused():
    plus = find("abps-plus-v1")
    for setting in (
        {"policy": "ucb2"},
        {"kappa": "0"},
        {"utility": "profit"},
        {"every": "0"},
        {"renewal": "-1"},
    ):
        with pytest.raises(RequestError):
            with_settings(plus, setting)


def test_a_peer_that_was_just_met_has_little_news_and_is_asked_after_its_equals(here):
    method = with_settings(find("abps-plus-v1"), {"renewal": "5", "policy": "mean"})
    diary = Experience.none().observe(
        np.array([0, 0]), np.array([1, 2]), 3, np.full(2, 0.7), np.full(2, 0.05)
    )
    here = grounded(method, here)
    seen = replace(here.ground, differ=0.0)
    news = method.news(diary, seen, 8)
    assert news[0, 1] == news[0, 2] == pytest.approx(0.5) and news[0, 3] == news[1, 0] == 1.0
    assert method.news(diary, seen, 13)[0, 1] == pytest.approx(0.75)
    assert method.news(diary, replace(seen, differ=0.5), 8)[0, 1] == pytest.approx(0.75)
    assert (method.news(diary, replace(seen, differ=1.0), 8) == 1.0).all()
    assert (with_settings(method, {"renewal": "0"}).news(diary, seen, 4) == 1.0).all()
    # All peers are believed equally useful: center 0 prefers those that it has not just met.
    belief = believe(np.zeros_like(seen.features), seen.slopes, Experience.none(), 8, method.expect)
    even = np.full(here.n, 0.5)
    score = method.scores(here, belief, even, 8)
    asked = method.rankings(method.willing(here, belief, even, score), score, even, news)[0]
    assert len(asked) == 5 and not {1, 2} & set(asked[:3])


def test_likeness_counts_where_risks_differ_beyond_chance(here, monkeypatch):
    for share, differ in ((0.0, 0.0), (0.2, 0.4), (0.9, 1.0)):
        monkeypatch.setattr("abps.methods.plus.inconsistency", lambda told, variances, share=share: share)
        method = ABPSPlus(public=Public(association_slope=0.1, metadata_slope=0.2))
        found = grounded(method, here).ground
        assert found.differ == differ and found.slopes.tolist() == [0.1 * differ, 0.2 * differ]
    alone = grounded(ABPSPlus(public=Public(association=False, metadata_slope=0.2)), here).ground
    assert alone.differ == 1.0 and alone.slopes.tolist() == [0.2]


def test_what_a_change_of_models_gains_on_validation_rows(here):
    before, after = moved(here, 1), moved(here, 2)
    shown = [here.learner.logits(models, here.data.validation) for models in (before, after)]
    gain, se = gains(here.data.validation, *shown)
    for i in range(here.n):
        mine = here.data.validation.only(i)
        lost = [
            log_loss(
                mine.y, 1 / (1 + np.exp(-here.learner.logits(w, here.data.validation)[i])), labels=[0, 1]
            )
            for w in (before, after)
        ]
        assert gain[i] == pytest.approx(lost[0] - lost[1], abs=1e-6)
    assert (se > 0).all()
    assert not gains(here.data.validation, shown[0], shown[0])[0].any()


def test_a_center_that_loses_by_mixing_asks_more_of_its_peers(here):
    method = ABPSPlus()
    here = grounded(method, here)
    belief = believe(here.ground.features, here.ground.slopes, Experience.none(), 1, method.expect)
    own, returns = np.full(here.n, 0.8), method.init(here).returns
    assert not method.doubt(returns).any()
    hurt = np.arange(here.n) == 2
    for _ in range(10):
        returns = returns.observe(
            np.ones(here.n, dtype=bool), np.where(hurt, -0.05, 0.02), np.full(here.n, 0.01)
        )
    doubt = method.doubt(returns)
    assert doubt[2] > 0.95 and not doubt[~hurt].any()
    even = method.break_even(here, belief, own, doubt)
    sure = method.break_even(here, belief, own, np.zeros(here.n))
    assert even[2] > 0.78 and (even[~hurt] == sure[~hurt]).all()
    assert not with_settings(method, {"returns": "0"}).doubt(returns).any()


def test_new_data_are_published_anew_and_paid_for(here, world):
    """In the first round after they came; in the others nobody pays for what is known."""
    method = with_settings(find("abps-plus-v1"), {"price": "10"})  # so dear that nobody calls
    course = Course.start(method, here)
    other = world(here.learner.training, replace(here.data, metadata=here.data.metadata[::-1]))
    entries, spent = here.data.metadata.shape[1] + here.data.width, []
    for t in range(1, 5):
        if t == 3:
            before, course = course, course.on(other, t)
            assert not np.allclose(course.world.ground.features, before.world.ground.features)
        course, outcome = course.round(t)
        spent.append(outcome.traffic)
    assert spent == [directory(here.n, entries), Traffic(), directory(here.n, entries), Traffic()]


def test_calling_every_second_round_after_a_warm_up():
    assert [t for t in range(1, 9) if Calling(every=2, warm_up=3).on(t)] == [4, 6, 8]
    assert replace(Calling(), every=3).on(1)
