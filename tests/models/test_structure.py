"""Structure between centers: subspace, gate and clusters on made-up scores."""

import numpy as np
import pytest

from abps.models import families, structure
from abps.models.hierarchical import CenterRows, CommonModel, posterior

P = 6
CONTINUA = structure.HalfScores.as_continua


def _rows(n, each, deviations, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n * each, P)).astype(np.float32)
    b = np.linspace(0.8, -0.8, P) + deviations
    level = np.repeat(rng.normal(0, 0.3, n), each)
    z = np.einsum("rk,rk->r", x, np.repeat(b, each, axis=0)) + level
    y = (rng.random(n * each) < 1 / (1 + np.exp(-z))).astype(float)
    start = np.arange(n + 1) * each
    return CenterRows(x, y, start, families.Bernoulli(np.ones((1, 1)), np.zeros(1)))


def _common():
    mean = np.append(np.linspace(0.8, -0.8, P), 0.0)[None]
    return CommonModel(mean, np.append(np.full(P, 1e-3), 0.1)[None])


def _half_scores(rows, seed=0):
    half = structure.halves(rows, np.random.default_rng(seed).random(len(rows.y)))
    first, one = structure.orthogonal_scores(rows.select(half), _common())
    second, two = structure.orthogonal_scores(rows.select(~half), _common())
    return half, first, second, one + two


def test_halves_split_every_center():
    rows = _rows(4, 21, np.zeros((4, P)), 1)
    half = structure.halves(rows, np.random.default_rng(0).random(len(rows.y)))
    assert rows.totals(half.astype(float)).tolist() == [10.0] * 4


def test_scores_are_orthogonal_to_the_intercept():
    rows = _rows(3, 200, np.zeros((3, P)), 2)
    found, _ = structure.orthogonal_scores(rows, _common())
    moved = CommonModel(_common().mean + np.append(np.zeros(P), 0.05), _common().variance)
    again, _ = structure.orthogonal_scores(rows, moved)
    assert found == pytest.approx(again, abs=0.2)  # a plain score would move by about 2


def _halves(rows, seed=0):
    _, first, second, information = _half_scores(rows, seed)
    white = structure.Whitening.of(np.eye(P))
    return structure.HalfScores.of(first, second, information, white, np.full(P, 1e-3))


def test_clusters_are_recovered():
    rng = np.random.default_rng(3)
    kinds = np.repeat(np.arange(3), 12)
    centres = rng.normal(0, 0.9, (3, P))
    number, count = _halves(_rows(36, 250, centres[kinds] - centres.mean(axis=0), 3)).clusters()
    assert count == 3
    assert len({(a, b) for a, b in zip(kinds, number, strict=True)}) == 3


def test_the_gate_opens_for_structure_and_stays_shut_without():
    rng = np.random.default_rng(4)
    kinds = np.repeat(np.arange(2), 15)

    def z(deviations, seed):
        halves = _halves(_rows(30, 120, deviations, seed), seed)
        return structure.standard_errors(halves.held_out_gains(np.arange(30) % 5, CONTINUA)[-1])

    different = rng.normal(0, 0.8, (2, P))[kinds]
    assert z(different - different.mean(axis=0), 5) > 3
    opened = sum(z(np.zeros((30, P)), seed) > 1.64 for seed in range(40))
    assert opened <= 5


def test_the_gain_is_that_of_refitted_posteriors():
    """Quadratic losses from scores against posteriors fitted to one half of the rows, judged on the other."""
    rng = np.random.default_rng(8)
    direction = rng.normal(0, 0.5, P)
    rows = _rows(40, 400, rng.choice([-1.0, 1.0], (40, 1)) * direction, 8)
    half, first, second, _ = _half_scores(rows)
    fold, gains = np.arange(40) % 5, np.zeros(40)
    for k in range(5):
        loadings = np.linalg.svd(first[fold != k] + second[fold != k])[2][:1].T
        for i in np.flatnonzero(fold == k):
            x, y = rows.design(i), rows.outcomes(i)
            part = half[rows.start[i] : rows.start[i + 1]]
            for fit in (part, ~part):
                extra = np.concatenate([x, x[:, :P] @ loadings], axis=1)
                prior = _common()
                wide = CommonModel(np.append(prior.mean, 0.0)[None], np.append(prior.variance, 1.0)[None])
                for sign, design, common in ((1.0, x, prior), (-1.0, extra, wide)):
                    model = posterior(design[fit], y[fit], rows.family, common).model
                    z = design[~fit] @ model.T
                    gains[i] += sign * float(np.sum(np.logaddexp(0, z[:, 0]) - y[~fit] * z[:, 0]))
    refitted = gains.mean() / gains.std() * np.sqrt(40)
    continua, (clustered,) = (
        _halves(rows).held_out_gains(fold, way) for way in (CONTINUA, lambda others: others.as_clusters(2))
    )
    assert structure.standard_errors(continua[0]) == pytest.approx(refitted, rel=0.35)
    assert structure.standard_errors(clustered) > 3


def test_held_out_gains_tell_clusters_from_a_continuum_and_its_directions():
    rng = np.random.default_rng(9)
    ways = np.linalg.qr(rng.standard_normal((P, 2)))[0].T
    spread, kinds = rng.standard_normal((60, 2)) @ ways, rng.normal(0, 0.8, (5, P))[np.arange(60) // 12]

    def better(deviations):
        halves = _halves(_rows(60, 300, deviations - deviations.mean(axis=0), 9))
        continua, (clustered,) = (
            halves.held_out_gains(np.arange(60) % 20, way)
            for way in (CONTINUA, lambda others: others.as_clusters(5))
        )
        best = int(np.argmax(continua.mean(axis=1)))
        return best + 1, structure.standard_errors(continua[best] - clustered), halves

    count, z, halves = better(spread)
    assert count in (2, 3)
    found = np.linalg.qr(halves.shared_deviations(2).T)[0]
    assert np.linalg.svd(found.T @ ways.T)[1].min() > 0.9  # the same plane
    assert better(kinds)[1] < min(z, 0)


def test_expected_positions_are_those_of_a_sampled_mixture():
    rng = np.random.default_rng(10)
    mixture = structure.ClusterMixture(np.array([[-2.0], [1.0]]), np.array([0.3]), np.array([0.4, 0.6]))
    kind = rng.choice(2, 400_000, p=mixture.share)
    true = mixture.centre[kind, 0] + np.sqrt(0.3) * rng.standard_normal(len(kind))
    measured = true + np.sqrt(0.8) * rng.standard_normal(len(kind))
    near = np.abs(measured - 0.1) < 0.05
    assert mixture.expected(np.array([[0.1]]), np.array([[0.8]]))[0, 0] == pytest.approx(
        true[near].mean(), abs=0.02
    )


def test_one_cluster_where_places_differ_by_their_noise_alone():
    rng = np.random.default_rng(6)
    doubt = rng.uniform(0.5, 2.0, (60, 2))
    place = rng.standard_normal((60, 2)) * np.sqrt(doubt)
    assert len(structure.find_clusters(place, doubt).share) == 1


def _p_value(deviations, seed):
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], (99, 24))
    return _halves(_rows(24, 120, deviations, seed), seed).difference_test(signs)


def test_the_test_of_differences_has_its_level_and_power():
    null = [_p_value(np.zeros((24, P)), seed) for seed in range(200)]
    assert 0.02 <= np.mean(np.array(null) <= 0.05) <= 0.085
    assert 0.35 <= np.mean(np.array(null) <= 0.5) <= 0.65
    kind = np.where(np.arange(24) % 2, 0.8, -0.8)[:, None] * np.ones(P)
    assert np.mean([_p_value(kind, seed) <= 0.05 for seed in range(10)]) >= 0.9


def test_the_test_is_calibrated_where_what_is_common_was_taken_off():
    """With few centers random signs would make products smaller than they are, and p-values too."""
    rng, n, m = np.random.default_rng(6), 20, 25
    information = rng.uniform(20, 200, n)
    share = (information / information.sum())[:, None]
    chances = []
    for _ in range(300):
        halves = [rng.normal(size=(n, m)) * np.sqrt(information / 2)[:, None] for _ in range(2)]
        first, second = (half - share * half.sum(axis=0) for half in halves)
        scores = structure.HalfScores(first, second, information, np.zeros(m), np.eye(m))
        chances.append(scores.difference_test(rng.choice([-1.0, 1.0], (59, n))))
    assert np.mean(chances) == pytest.approx(0.5, abs=0.04)  # 0.42 without the correction
    assert np.mean(np.array(chances) <= 0.05) < 0.1
