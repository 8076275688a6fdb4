"""WPFed."""

from __future__ import annotations

import numpy as np

from abps.lab.rivals.wpfed import WPFed, codes, hamming, ranked, scores, set_aside
from abps.methods.peers import Preferences, agree
from abps.models.training import Training


def choose(method, here, weight, t):
    """Mutual links, each center asking peers best first."""
    return agree(method, here, Preferences(method.rankings(here, weight, t)), t)


def test_reference_rows_come_from_training_and_are_not_trained_on(ready) -> None:
    train, reference = set_aside(ready, 0.1)
    np.testing.assert_array_equal(train.sizes + reference.sizes, ready.train.sizes)
    np.testing.assert_array_equal(reference.sizes, np.maximum(1, np.round(0.1 * ready.train.sizes)))
    for i in range(6):
        mine = {row.tobytes() for row in ready.train.only(i).x}
        kept = {row.tobytes() for row in train.only(i).x}
        held = {row.tobytes() for row in reference.only(i).x}
        assert kept | held == mine
        assert not kept & held


def test_codes_are_of_what_was_learnt(context, play) -> None:
    """Under a common start, codes of the weights are nearly alike; codes of theta - theta_0 are not."""
    here = context(Training())
    method = WPFed()
    derived = method.derived(here)
    trained = derived.learner.train(here.common_start(), 1)
    raw = hamming(codes(trained, derived.sketch))
    moved = hamming(codes(trained - here.learner.start, derived.sketch))
    other = ~np.eye(6, dtype=bool)
    assert raw[other].max() < 0.1
    assert moved[other].mean() > 3 * raw[other].mean()


def test_hamming_estimates_the_angle() -> None:
    """Two vectors at an angle a differ in a / pi of the bits."""
    sketch = np.random.default_rng(0).normal(size=(2, 20_000)).astype(np.float32)
    angle = np.array([0.0, 0.3, 1.0, np.pi / 2, np.pi], dtype=np.float32)
    vectors = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    np.testing.assert_allclose(hamming(codes(vectors, sketch))[0], angle / np.pi, atol=0.01)


def test_rankings_become_scores() -> None:
    """0 ranks 1 before 2; 3 ranks 2 only; nobody ranks 0 and 3; an undefined loss is no rank."""
    links = np.array([0, 0, 3, 3]), np.array([1, 2, 2, 0]), np.array([0.1, 0.2, 0.7, np.nan])
    table = ranked(*links, r=4, most=2)
    assert table.tolist() == [[1, 2], [-1, -1], [-1, -1], [2, -1]]
    found = scores(4, table)
    np.testing.assert_allclose(found, [0.5, 1.0, (0.5 + 1.0) / 2, 0.5])


def test_nobody_is_overrun(context) -> None:
    """All prefer center 3, which takes two."""
    here = context(Training())
    weight = np.full((6, 6), 0.2)
    weight[:, 3] = 0.9
    plan = choose(WPFed(), here, weight, 1)
    degrees = np.bincount(plan.pairs.ravel(), minlength=6)
    assert degrees.max() == 2
    assert degrees[3] == 2
    assert len(plan.pairs) in (5, 6)


def test_parameters_are_averaged_with_the_weights(context, play) -> None:
    here = context(Training())
    method = WPFed(gamma=2.0)
    before, after = play(method, here, 2)[-2:]
    derived = method.derived(here)
    trained = derived.learner.train(before.models, 2)
    score = scores(6, before.ranking)
    weight = method.weights(codes(trained - here.learner.start, derived.sketch), score)
    pairs = choose(method, here, weight, 2).pairs
    for i in range(6):
        mine = np.concatenate([pairs[pairs[:, 0] == i, 1], pairs[pairs[:, 1] == i, 0]])
        say = np.array([1.0, *weight[i, mine]], dtype=np.float32)
        models = np.stack([trained[i], *trained[mine]])
        np.testing.assert_allclose(after.models[i], (say / say.sum()) @ models, rtol=1e-4, atol=1e-6)
