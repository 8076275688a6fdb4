"""Batched metrics against scikit-learn, ties and all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as oracle

from abps.data.prepare import Rows
from abps.models import outcomes as compiled
from abps.models.metrics import Segments, auprc, auroc, brier, labels_of, log_loss, mean_over_centers

groups = st.lists(
    st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=0, max_size=15), min_size=1, max_size=6
)


def ragged(data):
    start = np.concatenate([[0], np.cumsum([len(g) for g in data])])
    scores = np.array([s / 2 for g in data for s, _ in g], dtype=np.float32)
    labels = np.array([y for g in data for _, y in g], dtype=np.float32)
    return Segments(scores, start), Segments(labels, start)


@given(groups)
def test_auroc_and_auprc_equal_scikit_learn(data):
    scores, labels = ragged(data)
    for kind, want in ((auroc, oracle.roc_auc_score), (auprc, oracle.average_precision_score)):
        got = kind(scores, labels)
        for g in range(len(scores)):
            if 0 < labels[g].sum() < len(labels[g]):
                assert got[g] == pytest.approx(want(labels[g], scores[g]))
            else:
                assert np.isnan(got[g])


@pytest.mark.parametrize("rows", [200, 400])
def test_auroc_of_many_rows_is_counted_otherwise_and_the_same(rows):
    rng = np.random.default_rng(rows)
    y, score = (rng.random(rows) < 0.4).astype(np.float32), rng.integers(0, 50, rows).astype(np.float32)
    positives = int(y.sum())
    assert (positives * (rows - positives) > compiled.COMPARED_UP_TO) == (rows == 400)
    for times in (1, 2):  # one center alone, and compiled
        start = np.arange(times + 1) * rows
        got = auroc(Segments(np.tile(score, times), start), Segments(np.tile(y, times), start))
        np.testing.assert_allclose(got, oracle.roc_auc_score(y, score), atol=1e-12)


@given(groups)
def test_brier_and_log_loss_equal_scikit_learn(data):
    logits, labels = ragged(data)
    got, losses = brier(logits, labels), log_loss(logits, labels)
    for g in range(len(logits)):
        if len(labels[g]):
            p = 1 / (1 + np.exp(-logits[g].astype(float)))
            assert got[g] == pytest.approx(oracle.brier_score_loss(labels[g], p, pos_label=1), abs=1e-6)
            assert losses[g] == pytest.approx(oracle.log_loss(labels[g], p, labels=[0, 1]), rel=1e-5)
        else:
            assert np.isnan(got[g])


def test_labels_of_owners_repeat_their_rows():
    rows = Rows(
        np.zeros((6, 1), np.float32), np.array([0, 1, 1, 0, 0, 1], np.float32), np.array([0, 2, 3, 6])
    )
    labels = labels_of(rows, np.array([2, 0, 2]))
    assert [labels[g].tolist() for g in range(3)] == [[0, 0, 1], [0, 1], [0, 0, 1]]


def test_means_skip_what_is_not_defined_and_say_how_many_count():
    assert mean_over_centers(np.array([0.5, np.nan, 1.0])) == (0.75, 2)
    mean, scored = mean_over_centers(np.array([np.nan]))
    assert np.isnan(mean) and scored == 0


def test_groups_are_split_in_two():
    whole = Segments(np.arange(6.0), np.array([0, 3, 3, 6]))
    first, second = whole.split(np.array([1, 0, 3]))
    assert [first[g].tolist() for g in range(3)] == [[0.0], [], [3.0, 4.0, 5.0]]
    assert [second[g].tolist() for g in range(3)] == [[1.0, 2.0], [], []]
