"""abps-plus: kin where there are kinds, chance where there are none, and a center's own judgement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from abps.core import streams
from abps.core.errors import RequestError
from abps.core.usefulness import Experience
from abps.data.table import load
from abps.data.timeline import timeline
from abps.engine.simulate import simulate
from abps.methods.base import World
from abps.methods.kindred import Judging, Kindred, Roll
from abps.methods.memory import freeze, thaw
from abps.methods.patient_sums import own_slopes, score_columns, scores
from abps.methods.peers import Notice
from abps.models.batched import StackedLearner
from abps.wire.numerals import Numerals, Stretch

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
    # But for the rounds after a roll call, in which nobody calls.
    assert pairs(chosen) == {pair for pair in pairs(control) if pair[0] in (1, 2, 3, 6, 8)}


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
    training = SHORT.training
    data = timeline(kinds, 11, 5, training.standardise, training.splines).at(1)
    ids = streams.center_ids(data.centers)
    learner = StackedLearner(data, training, training.factory, 11)
    world = World(learner, data, ids, 11, 5)
    reference = 0.01 * torch.arange(SHORT.wire.shared(world), dtype=torch.float32)
    whole = scores(world, world.common_start(), reference, 4, SHORT.roll.least)
    one = data.only(5)
    alone = World(StackedLearner(one, training, training.factory, 11), one, ids, 11, 5, place=np.array([5]))
    single = scores(alone, alone.common_start(), reference, 4, SHORT.roll.least)
    np.testing.assert_allclose(single.values[0], whole.values[5], rtol=1e-5, atol=1e-5)
    assert single.form == whole.form


def test_a_center_with_few_events_tells_nothing_of_them(kinds) -> None:
    silent = simulate(kinds, replace(SHORT, roll=Roll(first=3, again=(6,), least=10_000)), seed=11, rounds=7)
    assert silent.heterogeneity.p == 1.0 and silent.heterogeneity.dimensions == 0


def standing(federation, method, seed=11):
    """The world of a federation, and the method's state at its start."""
    training = method.training
    data = timeline(federation, seed, 5, training.standardise, training.splines).at(1)
    learner = StackedLearner(data, training, training.factory, seed)
    world = World(learner, data, streams.center_ids(data.centers), seed, method.stop.rounds)
    return world, method.init(world)


def test_tilted_losses_of_centers_that_agree_are_least_where_all_together_are_best(kinds) -> None:
    # Each center alone would leave the optimum of all; with the slopes of all told there, it stays.
    method = replace(SHORT, roll=replace(SHORT.roll, tilt=1.0))
    world, state = standing(kinds, method)
    rows, penalty = world.data.train, method.training.weight_decay
    x, y = rows.x.astype(np.float64), rows.y.astype(np.float64)
    owner = np.repeat(np.arange(world.n), rows.sizes)
    slope, level = np.zeros(x.shape[1]), np.zeros(world.n)
    for _ in range(30):  # Newton's steps, a common slope and everybody's own level
        p = 1.0 / (1.0 + np.exp(-(x @ slope + level[owner])))
        v = p * (1.0 - p)
        total = np.bincount(owner, v)
        centred = x - np.stack([np.bincount(owner, v * column) / total for column in x.T], axis=1)[owner]
        curvature = centred.T @ (v[:, None] * centred) + penalty * len(y) * np.eye(x.shape[1])
        step = np.linalg.solve(curvature, centred.T @ (y - p) - penalty * len(y) * slope)
        slope = slope + step
        for _ in range(20):
            p = 1.0 / (1.0 + np.exp(-(x @ slope + level[owner])))
            level += np.bincount(owner, y - p) / np.maximum(np.bincount(owner, p * (1.0 - p)), 1e-9)
    models = torch.from_numpy(np.column_stack([np.tile(slope, (world.n, 1)), level]).astype(np.float32))
    state = replace(state, models=models)
    t = SHORT.roll.again[0] + 1
    question = method.asked(t).index("slopes")
    reply = method.reply(world, state, t, question)
    notice = method.board(reply.values, rows.sizes.astype(float), t, question)
    after = method.informed(world, state, notice, t, question)
    alone, together = (
        float((method.train(world, each, 4, False).models - models)[:, :-1].norm()) for each in (state, after)
    )
    assert together < 0.1 * alone


def test_slopes_are_those_of_all_or_of_kin(kinds) -> None:
    world, state = standing(kinds, SHORT)
    t = SHORT.roll.again[0] + 1
    question, sizes = SHORT.asked(t).index("slopes"), world.data.train.sizes.astype(float)
    own = world.learner.gradient(state.models, world.data.train)[:, :-1].numpy()
    lengths = np.linalg.norm(own, axis=1)
    held = own * np.minimum(1.0, 2.0 * np.median(lengths) / lengths)[:, None]
    told = SHORT.board(SHORT.reply(world, state, t, question).values, sizes, t, question)
    assert not told.own
    assert np.allclose(told.common.values, sizes @ held / sizes.sum(), atol=0.01 * np.abs(held).max())
    # Two kinds far apart, with places well known: a center's slope is that of its own kind.
    kind = np.arange(world.n) % 2
    place = np.column_stack([np.full(world.n, 200.0), np.zeros(world.n), 100.0 * kind])
    apart = replace(state, place=place, share=1.0)
    told = SHORT.board(SHORT.reply(world, apart, t, question).values, sizes, t, question)
    assert set(told.own) == set(range(world.n)) and not len(told.common.values)
    for i in range(world.n):
        mean = held[kind == kind[i]].mean(axis=0)
        assert np.allclose(told.own[i].values, mean, atol=0.02 * np.abs(held).max())
    # What a board makes up leads no center farther than a few times its own slope.
    wild = Notice(Numerals.of(np.full(own.shape[1], 1e6), (Stretch("single", own.shape[1]),)))
    after = SHORT.informed(world, state, wild, t, question)
    assert (after.tilt.norm(dim=1).numpy() <= 3.001 * lengths).all()
    with pytest.raises(ValueError, match="slopes"):
        SHORT.informed(world, state, Notice(Numerals.of(np.ones(3), (Stretch("single", 3),))), t, question)


def test_slopes_tell_nothing_of_small_cells(kinds) -> None:
    world, state = standing(kinds, SHORT)
    free = own_slopes(world, state.models, state.tilt.shape[1])
    guarded = replace(world, data=replace(world.data, floor=10))
    told = own_slopes(guarded, state.models, state.tilt.shape[1])
    rows, hidden = world.data.train, 0
    for i in range(world.n):
        x, y = (part[rows.start[i] : rows.start[i + 1]] for part in (rows.x, rows.y))
        least = int(guarded.data.least[i])  # rows of surely ten patients
        for k, column in enumerate(x.T):
            cells = [((column == v) & (y == w)).sum() for v in (0, 1) for w in (0, 1)]
            small = np.isin(column, (0, 1)).all() and any(0 < cell < least for cell in cells)
            small |= min(y.sum(), len(y) - y.sum()) < least
            hidden += small
            assert told[i, k] in ((0.0,) if small else (0.0, free[i, k]))
    assert hidden > 0 and (told == free).mean() > 0.3


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
    from abps.engine.rounds import Course
    from abps.methods.base import World
    from abps.models.batched import StackedLearner

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
    from abps.engine.rounds import Course
    from abps.methods.base import World
    from abps.models.batched import StackedLearner

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
    from abps.engine.attacks import parse

    how = f"{attack}:share=0.2"
    bad = parse(how).attackers(22, center_ids(alike.centers))
    attackers = {name for name, one in zip(alike.centers, bad) if one}
    run = simulate(alike, SHORT, seed=22, rounds=10, attack=how)
    late = [(a in attackers, b in attackers) for t, a, b in pairs(run) if t > 6]
    assert late and all(a == b for a, b in late)
    early = [(a in attackers, b in attackers) for t, a, b in pairs(run) if t <= 3]
    assert any(a != b for a, b in early)


def test_made_up_slopes_that_do_not_help_are_not_followed() -> None:
    """Each center tries a round with what it was told and one without: a fifth that lies is not believed."""
    icu, attack = load("icu-synthetic:centers=30"), "copy:share=0.2"
    believed = simulate(icu, "abps-plus", seed=11, attack=attack)
    tried = simulate(icu, "abps-plus", seed=11, attack=attack, settings={"heed": "2"})
    assert tried.auroc.honest_mean > believed.auroc.honest_mean + 0.05
    assert tried.bytes.edge == believed.bytes.edge and tried.bytes.control > believed.bytes.control
