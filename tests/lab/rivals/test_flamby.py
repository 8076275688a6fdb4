"""UCI Heart by FLamby's split: its sizes, and the FedAvg that it published."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from abps.models.training import Training

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import flamby_heart as heart


def test_local_is_flambys_to_the_last_prediction(data):
    """One of the five seeds; all of them are in docs/external-checks.md."""
    published = heart.published(data("flamby") / "published")["Local"][-1]
    np.testing.assert_allclose(heart.alone(heart.prepared(data("heart-disease")), heart.SEEDS[-1]), published)


@pytest.mark.slow
def test_fedavg_is_flambys(data):
    rows = heart.prepared(data("heart-disease"))
    assert rows.train.sizes.tolist() == [199, 172, 30, 85]
    assert rows.test.sizes.tolist() == [104, 89, 16, 45]
    assert rows.width == 13
    ours = []
    for seed in heart.SEEDS:
        steps = Training(
            epochs=1, batch=heart.BATCH, lr=1e-3, weight_decay=0.0, optimizer="sgd",
            model=heart.linear_from(seed),
        )  # fmt: skip
        run = heart.simulate(rows, heart.EqualUpdates(training=steps), seed, rounds=15)
        ours.append(heart.of_models(rows, steps, seed, run.models))
    published = heart.published(data("flamby") / "published")["FedAvg"]
    np.testing.assert_allclose(np.mean(ours, axis=0), published.mean(axis=0), atol=0.01)
