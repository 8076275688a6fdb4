"""Goals and their thresholds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from abps.core import goals
from abps.core.errors import RequestError

VECTORS = np.array([[0.1, 5.0, 1.0], [0.2, 5.1, 1.0], [0.15, 2.0, 1.1], [0.03, 6.0, 1.0], [0.3, 4.0, 0.9]])


def by_hand(v, w):
    return float(v @ w / np.linalg.norm(v) / np.linalg.norm(w))


def test_the_three_goals_by_hand():
    for i, v in enumerate(VECTORS):
        for j, w in enumerate(VECTORS):
            if i == j:
                continue
            scores = {
                name: goals.pair_scores(VECTORS, [g] * 5)[i, j] for name, g in goals.GOALS.builtin.items()
            }
            assert scores["homogeneity"] == pytest.approx(by_hand(v, w))
            assert scores["diversity"] == pytest.approx(-by_hand(v, w))
            assert scores["alignment"] == pytest.approx(-abs(v[0] - w[0]))


vectors = hnp.arrays(np.float64, st.tuples(st.integers(3, 12), st.just(3)), elements=st.floats(0.01, 5))


@given(vectors, st.sampled_from(sorted(goals.GOALS.builtin)), st.floats(0.05, 1))
def test_thresholds_keep_the_share_that_was_asked_for(v, name, keep):
    chosen = [goals.GOALS.find(name)] * len(v)
    scores = goals.pair_scores(v, chosen)
    pairs = len(v) * (len(v) - 1)
    wanted = max(1, round(keep * pairs))
    kept = goals.admitted(scores, goals.thresholds(scores, chosen, keep, "global_pairs"))
    threshold = goals.thresholds(scores, chosen, keep, "global_pairs")[0]
    ties = (scores == threshold).sum()
    assert wanted <= kept.sum() <= wanted + ties
    own = goals.admitted(scores, goals.thresholds(scores, chosen, keep, "per_center"))
    assert (own.sum(axis=1) >= max(1, round(keep * (len(v) - 1)))).all()
    assert not own.diagonal().any() and not kept.diagonal().any()


def test_mixed_goals_are_calibrated_each_on_its_own_scale():
    chosen = [goals.homogeneity, goals.alignment, goals.homogeneity, goals.alignment, goals.diversity]
    scores = goals.pair_scores(VECTORS, chosen)
    kept = goals.admitted(scores, goals.thresholds(scores, chosen, 0.25, "global_pairs"))
    assert kept[[0, 2]].sum() == 2 and kept[[1, 3]].sum() == 2 and kept[4].sum() == 1


def test_a_users_own_goal_and_its_mistakes():
    def nearest_year(centers, peers):
        return -np.abs(centers[:, None, 2] - peers[None, :, 2])

    assert goals.pair_scores(VECTORS, [nearest_year] * 5)[0, 1] == 0
    with pytest.raises(RequestError, match="must return an array"):
        goals.pair_scores(VECTORS, [lambda c, p: np.zeros(3)] * 5)
    with pytest.raises(RequestError, match="2 goals for 5 centers"):
        goals.pair_scores(VECTORS, [goals.homogeneity] * 2)


def test_wrong_requests():
    with pytest.raises(RequestError, match="did you mean 'diversity'"):
        goals.GOALS.find("divercity")
    with pytest.raises(RequestError, match="keep=0"):
        goals.thresholds(np.zeros((2, 2)), [goals.diversity] * 2, 0.0, "global_pairs")


def test_zscore():
    z = goals.scaled(np.c_[VECTORS, np.ones(5)], "zscore")
    np.testing.assert_allclose(z[:, :3].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(z[:, :3].std(axis=0), 1)
    assert (z[:, 3] == 0).all()
