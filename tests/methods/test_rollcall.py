"""What a board makes of a roll call: means that a few cannot move, and a choice that they cannot make."""

from __future__ import annotations

import numpy as np
import pytest

from abps.methods import rollcall
from abps.wire.numerals import Numerals, Stretch


def told(weights, sizes=None, beside=None, form=()):
    sizes = np.ones(len(weights)) if sizes is None else sizes
    return rollcall.read(rollcall.answer(weights, beside=beside, form=form).values, sizes)


@pytest.fixture
def models():
    rng = np.random.default_rng(3)
    return rng.normal(0, 1, 90) + 0.1 * rng.normal(0, 1, (40, 90))


def test_the_mean_of_all_goes_by_rows(models) -> None:
    sizes = np.arange(1.0, 41.0)
    notice = rollcall.common_model(told(models, sizes))
    step = np.abs(models).max() / 127
    assert np.abs(notice.common.values - np.average(models, axis=0, weights=sizes)).max() < 2 * step
    assert notice.common.size < 90 + 30


@pytest.mark.parametrize("bad", [lambda w: -w, lambda w: 1e6 * w, lambda w: np.full_like(w, np.nan)])
def test_a_fifth_that_send_something_else_does_not_move_the_mean(models, bad) -> None:
    answers = rollcall.answer(models).values
    answers[:8, rollcall.FRONT :] = bad(answers[:8, rollcall.FRONT :])
    read = rollcall.read(answers, np.ones(40))
    assert read.trusted.tolist() == [False] * 8 + [True] * 32
    honest = models[8:].mean(axis=0)
    assert np.abs(rollcall.mean_of(read) - honest).max() < 0.02


def test_one_that_cannot_be_trusted_keeps_its_own_model_and_nobody_else_gets_it(models) -> None:
    place = np.zeros((40, 3))
    place[:, 0], place[:, 2] = 50.0, np.repeat([0.0, 1.0], 20)
    weights = models.copy()
    weights[20:] += 1.0
    weights[0] = -weights[0]
    read = told(weights, beside=place, form=rollcall.place_form(3))
    assert not read.trusted[0] and read.trusted[1:].all()
    notice = rollcall.means_of_kin(read, 1.0)
    mean, _ = rollcall.cast_out(notice.common, 40)
    first, second, other = (rollcall.heard(notice.own[i], mean, False).mean for i in (0, 5, 30))
    assert np.abs(second - weights[1:20].mean(axis=0)).max() < 0.05
    assert np.abs(other - weights[20:].mean(axis=0)).max() < 0.05
    # A twentieth of it is its own.
    assert np.abs(first - second).max() > 0.05


def test_without_kinds_the_mean_of_kin_is_that_of_all(models) -> None:
    read = told(models, beside=np.full((40, 2), 7.0), form=rollcall.place_form(2))
    notice = rollcall.means_of_kin(read, 1.0)
    assert not notice.own
    heard = rollcall.heard(None, notice.common.values, False)
    assert heard.everybody and np.array_equal(heard.mean, notice.common.values)


def test_the_choice_is_the_least_loss_and_one_member_cannot_make_it() -> None:
    rng = np.random.default_rng(5)
    losses = 0.4 + 0.02 * rng.standard_normal((30, 1)) + np.array([0.03, 0.02, 0.0, 0.01])
    losses += 0.002 * rng.standard_normal((30, 4))
    assert rollcall.best(losses, np.ones(30)) == 2
    losses[0] = [-1e9, 0.0, 0.0, 0.0]
    losses[1] = np.nan
    assert rollcall.best(losses, np.ones(30)) == 2
    assert rollcall.best(np.full((3, 4), np.nan), np.ones(3)) == 1


def test_own_models_are_gone_on_from_only_if_they_are_surely_better() -> None:
    rng = np.random.default_rng(6)
    noise = 0.02 * rng.standard_normal((40, 1))
    means = np.zeros((40, 3))
    luck = np.hstack([noise - noise.mean() - 0.001, means])  # a third of a standard error ahead
    assert luck[:, 0].mean() < 0 and rollcall.best(luck, np.ones(40)) == 1
    assert rollcall.best(np.hstack([noise - noise.mean() - 0.02, means]), np.ones(40)) == 0


def test_who_cannot_be_trusted_is_told_to_all(models) -> None:
    place = np.full((40, 2), 7.0)
    weights = models.copy()
    weights[[3, 30]] *= -1.0
    for notice in (
        rollcall.common_model(told(weights)),
        rollcall.means_of_kin(told(weights, beside=place, form=rollcall.place_form(2)), 1.0),
    ):
        mean, out = rollcall.cast_out(notice.common, 40)
        assert out.tolist() == [3, 30] and len(mean) == 90
    clean = rollcall.common_model(told(models)).common
    assert rollcall.cast_out(clean, 40)[1].size == 0
    assert notice.common.size - clean.size == 7 + 2 * 4  # a stretch and two places


def test_who_answers_with_no_numbers_is_cast_out_and_who_is_away_is_not(models) -> None:
    answers = rollcall.answer(models.copy()).values
    answers[5, rollcall.FRONT + 3] = np.nan
    answers[9] = np.nan
    read = rollcall.read(answers, np.ones(40))
    assert not read.there[[5, 9]].any() and read.there.sum() == 38
    assert rollcall.outcasts(read).tolist() == [5]


def test_a_board_that_casts_out_most_is_not_heard() -> None:
    said = Numerals.of(np.arange(20.0), (Stretch("single", 10), Stretch("place", 10)))
    with pytest.raises(ValueError, match="most members"):
        rollcall.cast_out(said, 20)
    assert rollcall.cast_out(said, 21)[1].tolist() == list(range(10, 20))
    # An honest one says nobody rather than most.
    rng = np.random.default_rng(0)
    far = rollcall.Answers(
        np.ones(9, dtype=bool), rng.normal(size=(9, 4)), np.arange(9) < 4, np.ones(9), 0, 0, np.zeros((9, 0))
    )
    assert rollcall.outcasts(far).size == 0


@pytest.mark.parametrize("hiding", [0.0, 0.5])
def test_slopes_that_go_one_way_together_do_not_move_the_mean(hiding) -> None:
    """A fifth behaves in its models and tells slopes that are made up; half of them may be noise."""
    rng = np.random.default_rng(5)
    honest = rng.normal(0, 1, (48, 160)) * rng.uniform(0.5, 1.5, (48, 1))
    way = rng.normal(0, 1, 160)
    bad = 2 * (1 - hiding) * way + 2 * hiding * rng.normal(0, 1, (12, 160))
    both = np.concatenate([honest, bad])
    there = np.ones(60, dtype=bool)
    assert rollcall.together(both, there, 4.0).tolist() == [True] * 48 + [False] * 12
    beside = np.zeros((60, 1))
    notice = rollcall.slopes_of_kin(told(both, beside=beside, form=(Stretch("share", 1),)), 1.0, 4.0)
    clean = rollcall.slopes_of_kin(told(honest, beside=beside[:48], form=(Stretch("share", 1),)), 1.0)
    moved = np.linalg.norm(notice.common.values - clean.common.values)
    assert moved < 0.05 * np.median(np.linalg.norm(honest, axis=1))


def test_honest_slopes_are_all_believed() -> None:
    rng = np.random.default_rng(6)
    for n in (5, 12, 60, 230):
        there = np.ones(n, dtype=bool)
        there[0] = n < 12
        plain = rng.normal(0, 1, (n, 90)) * rng.uniform(0.3, 2.0, (n, 1)) + 0.3 * rng.normal(0, 1, 90)
        assert np.array_equal(rollcall.together(np.where(there[:, None], plain, 0.0), there, 4.0), there)
    # Some that want something else, one in six, are no liars.
    kinds = rng.normal(0, 1, (60, 90)) + np.repeat([[3.0 / np.sqrt(90)], [0.0]], [10, 50], axis=0)
    assert rollcall.together(kinds, np.ones(60, dtype=bool), 4.0).all()


def test_what_helps_must_surely_help_all_together():
    rng = np.random.default_rng(3)
    sizes = rng.integers(20, 200, 60).astype(float)
    noise = 0.02 * rng.standard_normal(60)
    assert not rollcall.helps(noise - noise.mean(), sizes, 2.0)
    assert rollcall.helps(noise + 0.02, sizes, 2.0) and not rollcall.helps(noise - 0.02, sizes, 2.0)
    away = np.where(np.arange(60) % 7 == 0, np.nan, noise + 0.02)  # who cannot tell is not asked
    assert rollcall.helps(away, sizes, 2.0)
    loud = np.append(noise[1:] - 0.02, 1e6)  # one alone cannot shout all others down
    assert not rollcall.helps(loud, np.append(sizes[1:], 1e9), 2.0)
    assert not rollcall.helps(np.array([1.0, 1.0, np.nan]), np.ones(3), 2.0), "two are too few to be sure"
    # The rule in plain words: weighted mean above twice its standard error.
    weight = np.minimum(sizes, 10 * np.median(sizes))
    weight /= weight.sum()
    for shift in np.linspace(-0.01, 0.02, 7):
        gain = np.clip(noise + shift, *(np.array([-5, 5]) * np.median(np.abs(noise + shift))))
        mean = weight @ gain
        expected = mean > 2 * np.sqrt((weight**2 * (gain - mean) ** 2).sum())
        assert rollcall.helps(noise + shift, sizes, 2.0) == expected
