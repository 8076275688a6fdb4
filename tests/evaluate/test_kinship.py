"""Kinds and kin against planted groups, closed forms and a plain loop over all pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abps.lab.kinship import (
    Whereabouts,
    _nearest,
    cells,
    fit,
    kin,
    kinds_by_public,
    kinds_of_others,
    shares,
    whereabouts,
)


def planted(rng, kinds, each, r=3, gap=1.5, low=8, high=40):
    """(positions, information, kind) of centers in well separated kinds."""
    centre = np.zeros((0, r))
    while len(centre) < kinds:
        new = rng.uniform(-gap, gap, r)
        if all(np.linalg.norm(centre - new, axis=1) > 0.9 * gap):
            centre = np.vstack([centre, new])
    kind = np.repeat(np.arange(kinds), each)
    information = rng.uniform(low, high, len(kind))
    return (
        centre[kind] + rng.standard_normal((len(kind), r)) / np.sqrt(information)[:, None],
        information,
        kind,
    )


def test_kinds_are_found_and_counted():
    rng = np.random.default_rng(1)
    position, information, kind = planted(rng, 5, 30)
    found = fit(position, information)
    assert len(found.share) == 5
    same = found.member.argmax(axis=1)
    assert all(len(set(same[kind == g])) == 1 or (np.bincount(same[kind == g]).max() >= 28) for g in range(5))


def test_one_kind_of_known_spread_is_the_textbook_shrinkage():
    rng = np.random.default_rng(2)
    information = rng.uniform(5, 50, 2000)
    truth = rng.normal(0, 0.5, (2000, 2))
    position = truth + rng.standard_normal((2000, 2)) / np.sqrt(information)[:, None]
    found = fit(position, information)
    assert len(found.share) == 1 and found.spread == pytest.approx(0.25, rel=0.08)
    where = whereabouts(position, information)
    keep = found.spread / (found.spread + 1 / information)
    assert where.mean == pytest.approx(found.centre + keep[:, None] * (position - found.centre))
    assert where.variance == pytest.approx(2 * keep / information)
    error = ((where.mean - truth) ** 2).sum(axis=1)
    assert error.mean() == pytest.approx(where.variance.mean(), rel=0.06)


def test_the_single_odd_center_is_a_kind_of_its_own():
    rng = np.random.default_rng(3)
    information = np.full(60, 20.0)
    position = rng.standard_normal((60, 2)) / np.sqrt(20.0)
    position[17] += 3.0
    where = whereabouts(position, information)
    own = where.member[17].argmax()
    assert where.member[17, own] > 0.99 and np.delete(where.member[:, own], 17).max() < 0.05
    found = kin(where, information, 30.0)
    assert 17 not in found.of(0) and len(found.of(17)) == 0 and not found.everybody[17]


def test_public_vectors_help_where_they_go_with_the_kinds_and_only_there():
    rng = np.random.default_rng(5)
    position, information, kind = planted(rng, 4, 40, gap=0.9, low=4, high=12)
    matters = rng.standard_normal((4, 6))[kind] * 2 + rng.standard_normal((160, 6))
    nothing = rng.standard_normal((160, 6))

    def right(public):
        where = whereabouts(position, information, public)
        pairs = np.triu_indices(160, 1)
        guess = where.same_kind(*pairs)
        return float(((guess - (kind[pairs[0]] == kind[pairs[1]])) ** 2).mean()), where.public

    alone, with_noise, with_more = right(None), right(nothing), right(matters)
    assert with_more[0] < 0.7 * alone[0] and with_more[1] > 0.1
    assert with_noise[0] <= alone[0] + 0.005 and with_noise[1] < 0.02


def test_a_center_is_not_judged_by_its_own_public_vector():
    rng = np.random.default_rng(6)
    member = rng.dirichlet(np.ones(3), 20)
    vectors = rng.standard_normal((20, 2))
    said = kinds_by_public(member, vectors)
    assert said.shape == (20, 3)
    # Alone in its kind, a center with an odd vector is not at home there: the kind without it is unknown.
    member = np.zeros((20, 2))
    member[:, 0], member[3] = 1, (0, 1)
    odd = vectors.copy()
    odd[3] = 8.0
    own = kinds_by_public(member, odd)
    assert own[3, 1] < 0


def risk_by_loop(where, s, parameters, i, members):
    """Variance plus the mean over ``members`` (with i) of the expected squared distance, one by one."""
    apart = [
        0.0
        if j == i
        else float(((where.mean[i] - where.mean[j]) ** 2).sum() + where.variance[i] + where.variance[j])
        for j in members
    ]
    return parameters / s[members].sum() + float(s[members] @ apart) / s[members].sum()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(1.0, 200.0))
def test_kin_are_those_of_the_plain_loop(seed, parameters):
    rng = np.random.default_rng(seed)
    n, r = 14, 2
    where = Whereabouts(rng.normal(0, 1, (n, r)), rng.uniform(0.01, 0.3, n), np.ones((n, 1)), 0.0)
    s = rng.uniform(5, 40, n)
    found = kin(where, s, parameters)
    chosen, orders = [], []
    for i in range(n):
        distance = where.distance(np.full(n, i), np.arange(n))
        order = [i, *(j for j in np.argsort(distance, kind="stable") if j != i)]
        risks = [risk_by_loop(where, s, parameters, i, np.array(order[: h + 1])) for h in range(n)]
        best = int(np.argmin(risks))
        assert found.everybody[i] == (best == n - 1)
        assert found.gain[i] == pytest.approx(risks[-1] - risks[best])
        chosen.append(set() if best == n - 1 else set(order[1 : best + 1]))
        orders.append(order[1:])
    for i in np.flatnonzero(~found.everybody).tolist():
        assert found.of(i).tolist() == [j for j in orders[i] if j in chosen[i] or i in chosen[j]]


def test_few_neighbours_are_enough_where_kin_are_few():
    rng = np.random.default_rng(8)
    position, information, _ = planted(rng, 12, 12, gap=3.0)
    where = whereabouts(position, information)
    whole, few = kin(where, information, 30.0, most=143), kin(where, information, 30.0, most=40)
    assert np.array_equal(whole.start, few.start) and np.array_equal(whole.peer, few.peer)


def test_centers_that_hardly_differ_keep_to_nobody():
    rng = np.random.default_rng(9)
    where = Whereabouts(rng.normal(0, 0.05, (40, 2)), np.full(40, 0.01), np.ones((40, 1)), 0.0)
    assert kin(where, np.full(40, 20.0), 60.0).everybody.all()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), parameters=st.floats(0.5, 60.0))
def test_shares_are_those_that_minimise_variance_and_bias(seed, parameters):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 20))
    where = Whereabouts(rng.normal(0, 1, (n, 2)), rng.uniform(0.0, 0.4, n), np.ones((n, 1)), 0.0)
    information = rng.uniform(2, 40, n)
    peer, share = shares(where, information, parameters)
    np.testing.assert_allclose(share.sum(axis=1), 1.0)
    i = int(rng.integers(n))
    apart = where.distance(np.full(n, i), np.arange(n))
    apart[i] = 0.0
    full = np.zeros(n)
    full[peer[i]] = share[i]

    def risk(a):
        return (a**2 * parameters / information).sum() + (a * apart).sum()

    # Convex: no small move of weight from one peer to another may lower it.
    for _ in range(200):
        a, b = rng.integers(n, size=2)
        moved = full.copy()
        step = min(1e-3, moved[a])
        moved[a] -= step
        moved[b] += step
        assert risk(full) <= risk(moved) + 1e-10


def test_kin_count_each_other():
    rng = np.random.default_rng(4)
    position, information, _ = planted(rng, 3, 12)
    found = kin(whereabouts(position, information), information, 20.0)
    assert not found.everybody.any()
    for i in range(36):
        assert i not in found.of(i)
        assert all(i in found.of(j) for j in found.of(i))


def test_kinds_of_very_many_are_fitted_to_some(monkeypatch):
    rng = np.random.default_rng(6)
    position, information, kind = planted(rng, 4, 40)
    whole = whereabouts(position, information)
    monkeypatch.setattr("abps.lab.kinship.MOST_FITTED", 80)
    monkeypatch.setattr("abps.lab.kinship.FITTED", 80)
    some = whereabouts(position, information)
    assert some.member.shape == whole.member.shape == (160, 4)
    assert np.abs(some.mean - whole.mean).max() < 0.2
    told = some.member.argmax(axis=1)
    assert np.mean([np.bincount(told[kind == g]).max() for g in range(4)]) >= 38


def test_public_vectors_of_very_many_are_judged_by_those_of_some(monkeypatch):
    rng = np.random.default_rng(8)
    position, information, kind = planted(rng, 4, 60, gap=0.9, low=4, high=12)
    public = rng.standard_normal((4, 6))[kind] * 2 + rng.standard_normal((240, 6))
    whole = whereabouts(position, information, public)
    monkeypatch.setattr("abps.lab.kinship.MOST_FITTED", 120)
    monkeypatch.setattr("abps.lab.kinship.FITTED", 120)
    some = whereabouts(position, information, public)
    assert some.public > 0.1 and some.member.sum(axis=1) == pytest.approx(np.ones(240))
    pairs = np.triu_indices(240, 1)
    truth = kind[pairs[0]] == kind[pairs[1]]
    exact, sampled = (float(((w.same_kind(*pairs) - truth) ** 2).mean()) for w in (whole, some))
    alone = float(((whereabouts(position, information).same_kind(*pairs) - truth) ** 2).mean())
    assert sampled < 0.5 * alone and sampled < exact + 0.02


def test_others_are_judged_by_the_means_of_kinds_alone():
    rng = np.random.default_rng(9)
    member = np.repeat(np.eye(2), 500, axis=0)
    vectors = rng.standard_normal((1000, 3)) + 3.0 * member[:, :1]
    others = rng.standard_normal((7, 3))
    told = kinds_of_others(member, vectors, others)
    means = [vectors[:500].mean(axis=0), vectors[500:].mean(axis=0)]
    inside = np.cov(np.concatenate([vectors[:500] - means[0], vectors[500:] - means[1]]).T)
    gaps = [others - mean for mean in means]
    plain = np.stack([-0.5 * np.einsum("ia,ab,ib->i", g, np.linalg.inv(inside), g) for g in gaps], axis=1)
    assert told[:, 0] - told[:, 1] == pytest.approx(plain[:, 0] - plain[:, 1], rel=0.1, abs=0.1)


def test_cells_hold_everybody_once():
    points = np.random.default_rng(2).standard_normal((1000, 3))
    found = cells(points, 64)
    assert sorted(np.concatenate(found).tolist()) == list(range(1000))
    assert max(len(cell) for cell in found) <= 64
    wide = [np.ptp(points[cell], axis=0).max() for cell in found]
    assert np.mean(wide) < 0.5 * np.ptp(points, axis=0).max()


@pytest.mark.parametrize("spread", [1e-6, 0.05, 0.5])
def test_neighbours_of_very_many_are_nearly_the_nearest(monkeypatch, spread):
    """Also where a few stand apart from all others: they are found, not cut in two."""
    rng = np.random.default_rng(4)
    centre = rng.normal(0.0, 1.0, (6, 4))
    kind = rng.integers(6, size=3000)
    mean = centre[kind] + spread * rng.standard_normal((3000, 4))
    mean[100:120] += 6.0
    where = Whereabouts(mean, rng.uniform(0.01, 0.05, 3000), np.ones((3000, 1)), 0.0)
    exact = _nearest(where, 32)
    monkeypatch.setattr("abps.lab.kinship.MOST_SEARCHED", 1000)
    near = _nearest(where, 32)
    assert near.shape == exact.shape
    assert not (near == np.arange(3000)[:, None]).any()
    assert all(len(set(row)) == 32 for row in near[::50].tolist())
    row = np.arange(3000)[:, None]
    sums = [where.distance(row, found).sum(axis=1) for found in (near, exact)]
    assert np.median(sums[0] / sums[1]) < 1.05 and np.quantile(sums[0] / sums[1], 0.9) < 1.4
    assert all(set(row[:19]) <= set(range(100, 120)) for row in near[100:120].tolist())
    order = where.distance(row, near)
    assert (np.diff(order, axis=1) >= -1e-9).all()
