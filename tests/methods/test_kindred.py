"""abps-plus: kin where there are kinds, chance where there are none, and a center's own judgement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from abps.core.errors import RequestError
from abps.core.usefulness import Experience
from abps.data.table import load
from abps.methods.kindred import Judging, Kindred, Roll, score_columns
from abps.methods.memory import freeze, thaw
from abps.simulator.simulate import simulate

ALIKE = "icu-synthetic:centers=16,heterogeneity=0,stays=4800"
KINDS = "icu-synthetic:centers=24,groups=3,heterogeneity=6,stays=9600"
SHORT = Kindred(roll=Roll(first=3, again=(6,)), last=())


@pytest.fixture(scope="module")
def alike():
    return load(ALIKE)


@pytest.fixture(scope="module")
def kinds():
    return load(KINDS)


def pairs(run):
    made = run.decisions.filter(run.decisions["decision"] == "accepted")
    return set(made.select("round", "center", "peer").rows())


def test_where_nothing_differs_it_is_random_pairs_to_the_last_bit(alike) -> None:
    chosen = simulate(alike, SHORT, seed=22, rounds=8)
    chance = simulate(alike, replace(SHORT, policy="random"), seed=22, rounds=8)
    assert chosen.heterogeneity is not None and chosen.heterogeneity.dimensions == 0
    assert torch.equal(chosen.models, chance.models)
    assert chosen.bytes.edge == chance.bytes.edge and chosen.bytes.control > chance.bytes.control
    control = simulate(alike, "random-k1", seed=22, rounds=8, model="gam")
    assert pairs(chosen) == pairs(control)


def test_kinds_are_found_named_and_kept_to(kinds) -> None:
    run = simulate(kinds, SHORT, seed=11, rounds=12)
    assert run.heterogeneity.p < 1e-3 and run.heterogeneity.kinds == 3
    unit = dict(zip(kinds.centers, kinds.groups))
    late = [pair for pair in pairs(run) if pair[0] > 6]
    assert np.mean([unit[a] == unit[b] for _, a, b in late]) > 0.9
    chance = simulate(kinds, replace(SHORT, policy="random"), seed=11, rounds=12)
    assert run.auroc.mean > chance.auroc.mean + 0.02
    early = [pair for pair in pairs(run) if pair[0] <= 3]
    assert set(early) == {pair for pair in pairs(chance) if pair[0] <= 3}


def test_roll_calls_are_paid_for(kinds) -> None:
    asked = simulate(kinds, SHORT, seed=11, rounds=4)
    once = simulate(kinds, SHORT, seed=11, rounds=7)
    free = simulate(kinds, replace(SHORT, policy="random"), seed=11, rounds=7)
    assert asked.heterogeneity is None and once.heterogeneity is not None
    # Each of 24 centers sends 9 null draws of at least 60 columns, a byte each, and more.
    assert once.bytes.control - free.bytes.control > 24 * 8 * 60


def test_what_a_center_tells_does_not_depend_on_who_else_is_here(kinds) -> None:
    from abps.core import streams
    from abps.data.timeline import timeline
    from abps.learn.batched import StackedLearner
    from abps.methods.base import World
    from abps.methods.kindred import scores

    training = SHORT.training
    data = timeline(kinds, 11, 5, training.standardise, training.splines).at(1)
    ids = streams.center_ids(data.centers)
    learner = StackedLearner(data, training, training.factory, 11)
    world = World(learner, data, ids, 11, 5)
    reference = 0.01 * torch.arange(SHORT.wire.shared(world), dtype=torch.float32)
    whole = scores(world, world.common_start(), reference, 4, SHORT.roll)
    one = data.only(5)
    alone = World(StackedLearner(one, training, training.factory, 11), one, ids, 11, 5, place=np.array([5]))
    single = scores(alone, alone.common_start(), reference, 4, SHORT.roll)
    np.testing.assert_allclose(single.values[0], whole.values[5], rtol=1e-5, atol=1e-5)
    assert single.form == whole.form


def test_a_center_with_few_events_tells_nothing_of_them(kinds) -> None:
    silent = simulate(kinds, replace(SHORT, roll=Roll(first=3, again=(6,), least=10_000)), seed=11, rounds=7)
    assert silent.heterogeneity.p == 1.0 and silent.heterogeneity.dimensions == 0


def test_own_measurements_overrule_the_board() -> None:
    method = Kindred(judging=Judging(spread=0.1))
    harm = np.array([-0.3, -0.4, -0.001])
    seen = Experience(
        np.array([0, 0, 1]), np.array([4, 4, 4]), np.array([3, 5, 5]), harm, np.array([0.01, 0.01, 0.01])
    )
    known = method.effects(seen, 6)
    assert known.center.tolist() == [0, 1] and known.count.tolist() == [2, 1]
    assert method.harmful(known).tolist() == [True, False]
    assert not replace(method, judging=Judging(harm=0.0)).harmful(known).any()


def test_the_belief_is_the_normal_posterior() -> None:
    method = Kindred(judging=Judging(spread=0.02, ageing=0.0))
    seen = Experience(
        np.zeros(2, dtype=np.int64), np.full(2, 3), np.array([1, 2]), np.array([0.03, 0.01]), np.full(2, 0.02)
    )
    known = method.effects(seen, 9)
    # Prior N(0, .02²) and two measurements with error .02: three equal weights.
    assert known.mean[0] == pytest.approx((0.0 + 0.03 + 0.01) / 3)
    assert known.sd[0] == pytest.approx(0.02 / np.sqrt(3))
    assert known.helps()[0] == pytest.approx(0.8759, abs=1e-3)


def test_last_steps_are_taken_only_if_surely_better() -> None:
    method = Kindred(last=(2.0, 0.3))
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.02, (40, 2))
    assert method.strongest(noise - noise.mean(axis=0)) == 0.0
    assert method.strongest(noise + np.array([0.01, 0.03])) == 0.3
    assert method.strongest(np.full((2, 2), 1.0)) == 0.0


def test_last_steps_help_where_every_center_is_its_own_kind() -> None:
    own = load("icu-synthetic:centers=24,groups=24,heterogeneity=6,aligned=false,stays=12000")
    held, free = (simulate(own, replace(SHORT, last=last), seed=11, rounds=12) for last in ((), (0.3, 0.1)))
    assert free.auroc.mean > held.auroc.mean


def test_the_state_can_be_written_down(kinds) -> None:
    from abps.data.timeline import timeline
    from abps.learn.batched import StackedLearner
    from abps.methods.base import World
    from abps.simulator.rounds import Course

    training = SHORT.training
    data = timeline(kinds, 11, 6, training.standardise, training.splines).at(1)
    learner = StackedLearner(data, training, training.factory, 11)
    course = Course.start(SHORT, World(learner, data, learner.ids, 11, 6))
    for t in range(1, 5):
        course, _ = course.round(t)
    content = freeze(course.state, ("models",))
    back = thaw(type(course.state), content, models=course.state.models)
    assert freeze(back, ("models",)) == content
    on, _ = course.round(5)
    again, _ = replace(course, state=back).round(5)
    assert torch.equal(on.state.models, again.state.models)


def test_scores_are_told_of_each_column_once() -> None:
    assert score_columns(("age ~1", "age ~2", "sex=F", "age ~10", "bp ~1")) == [0, 2, 4]


@pytest.mark.parametrize("bad", [{"first": 0}, {"first": 5, "again": (5,)}, {"level": 1.0}])
def test_bad_roll_calls_are_refused(bad) -> None:
    with pytest.raises(RequestError):
        Roll(**bad)


def test_who_is_surely_harmed_does_not_follow_the_board(kinds) -> None:
    from abps.data.timeline import timeline
    from abps.learn.batched import StackedLearner
    from abps.methods.base import World
    from abps.simulator.rounds import Course

    training = SHORT.training
    data = timeline(kinds, 11, 6, training.standardise, training.splines).at(1)
    learner = StackedLearner(data, training, training.factory, 11)
    course = Course.start(SHORT, World(learner, data, learner.ids, 11, 6))
    for t in range(1, 3):
        course, _ = course.round(t)
    world, state = course.world, course.state
    backwards = -8.0 * state.models[:, :-1].mean(axis=0)
    told = replace(state, reference=backwards, kindred=state.models[:, :-1])
    chosen = list(SHORT.tried(world, told))[1]
    logits = [learner.logits(each, data.validation) for each in (state.models, chosen)]
    gain, se, harmed = SHORT.measured(world, *logits)
    went = SHORT.gone_on(world, told, 1)
    # Those with events enough to be sure; who has fewer than three cannot be.
    assert harmed.sum() >= 5 and not harmed[data.validation.positives() < 3].any()
    assert (gain[harmed] + 2 * se[harmed] < -SHORT.judging.harm).all()
    assert torch.equal(went.models[torch.from_numpy(harmed)], state.models[torch.from_numpy(harmed)])
    assert torch.equal(went.models[torch.from_numpy(~harmed)], chosen[torch.from_numpy(~harmed)])


@pytest.mark.parametrize("attack", ["sign-flip", "random", "scale"])
def test_who_was_cast_out_stays_out(alike, attack) -> None:
    """Whatever choice follows: those whose models a board left out are met by nobody honest afterwards."""
    from abps.core.streams import center_ids
    from abps.simulator.attacks import parse

    how = f"{attack}:share=0.2"
    bad = parse(how).attackers(22, center_ids(alike.centers))
    attackers = {name for name, one in zip(alike.centers, bad) if one}
    run = simulate(alike, SHORT, seed=22, rounds=10, attack=how)
    late = [(a in attackers, b in attackers) for t, a, b in pairs(run) if t > 6]
    assert late and all(a == b for a, b in late)
    early = [(a in attackers, b in attackers) for t, a, b in pairs(run) if t <= 3]
    assert any(a != b for a, b in early)
