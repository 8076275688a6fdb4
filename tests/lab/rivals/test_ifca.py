"""IFCA and DFCA: clusters found, named as one likes, or one alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from abps import simulate
from abps.core.errors import RequestError
from abps.data.prepare import Rows
from abps.lab.rivals.choosing import choose, head_start, spread_out
from abps.lab.rivals.clusters import DFCA, IFCA
from abps.methods.fedavg import FedAvg
from abps.methods.star import Server
from abps.models.metrics import labels_of, log_loss
from abps.models.training import Training
from abps.wire.codecs import codec, frame_size
from federations import tiny as make


def planted(groups: int = 2):
    """Eight centers whose risk points one way or the other."""
    data = make(sizes=(120,) * 8, width=6, seed=4)
    slope = np.array([2.0, -1.5, 1.0, 0.5, 0.0, 0.0])

    def relabelled(rows: Rows, seed: int) -> Rows:
        rng = np.random.default_rng(seed)
        group = np.repeat(np.arange(8) % groups, rows.sizes)
        z = rows.x @ slope * np.where(group == 0, 1.0, -1.0)
        return replace(rows, y=(rng.random(len(z)) < 1 / (1 + np.exp(-z))).astype(np.float32))

    return replace(
        data,
        train=relabelled(data.train, 1),
        validation=relabelled(data.validation, 2),
        test=relabelled(data.test, 3),
    )


LINEAR = Training.of("linear")


def test_one_cluster_is_fedavg(context, play, one_step) -> None:
    found = play(IFCA(training=one_step, clusters=1, warmup=0, spread=0.0), context(one_step), 3)[-1]
    wanted = play(FedAvg(training=one_step), context(one_step), 3)[-1]
    np.testing.assert_allclose(found.models, wanted.models, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("method", [
    IFCA(training=LINEAR, clusters=2, warmup=0, spread=0.3),
    DFCA(training=LINEAR, clusters=2, spread=0.3, most=3),
])  # fmt: skip
def test_planted_clusters_are_found(context, play, method) -> None:
    states = play(method, context(method.training, planted()), 6)
    found = states[-1].cluster
    assert len(set(found[::2])) == 1 and len(set(found[1::2])) == 1 and found[0] != found[1]


def test_names_of_clusters_mean_nothing(context, one_step) -> None:
    place = context(one_step)
    rng = np.random.default_rng(0)
    options = place.learner.start + 0.3 * rng.normal(size=(3, place.learner.layout.size)).astype(np.float32)
    found = choose(place, place.common_start(), options, "train")
    turned = choose(place, place.common_start(), options[[2, 0, 1]], "train")
    np.testing.assert_array_equal(np.array([2, 0, 1])[turned], found)
    rows = place.data.train
    by_hand = [
        int(np.argmin([
            log_loss(place.learner.logits(o[None], rows, np.array([i])), labels_of(rows, np.array([i])))[0]
            for o in options
        ]))
        for i in range(6)
    ]  # fmt: skip
    np.testing.assert_array_equal(found, by_hand)


def test_the_server_by_hand() -> None:
    method = IFCA(clusters=3, warmup=1, spread=0.5)
    layout = make_layout()
    start, server = np.zeros(3, dtype=np.float32), Server(seed=7, layout=layout)
    models = np.array([[1.0, 2, 3], [3, 4, 5], [9, 9, 9]], dtype=np.float32)
    sizes, number = np.array([1.0, 3.0, 4.0], dtype=np.float32), np.array([0.0, 0.0, 2.0], dtype=np.float32)
    first, _ = method.serve(start, server, (models, number), sizes, 1)
    mean = (models * sizes[:, None]).sum(0) / 8
    np.testing.assert_allclose(np.stack(first), spread_out(mean, 3, 0.5, 7))
    later, _ = method.serve(start, replace(server, last=first), (models, number), sizes, 2)
    np.testing.assert_allclose(later[0], np.array([2.5, 3.5, 4.5], dtype=np.float32))
    np.testing.assert_allclose(later[1], first[1])  # nobody is in it
    np.testing.assert_allclose(later[2], models[2])


def make_layout():
    from abps.models.models import Linear, layout_of

    return layout_of(Linear(2))


def test_heads() -> None:
    layout = make_layout()
    assert head_start(layout, 1) == 2 and head_start(layout, 2) == head_start(layout, 9) == 0


def test_a_round_of_dfca_by_hand(context, play, one_step) -> None:
    method, place = DFCA(training=one_step, clusters=2, spread=0.2, fewest=2, most=2), context(one_step)
    before, after = play(method, place, 1)
    trained = place.learner.train(before.models, 1)
    copies = before.copies.copy()
    for i in range(6):
        copies[i, before.cluster[i]] = trained[i]
    to, by = method.transfers(place, 1)
    assert (np.bincount(by, minlength=6) == 2).all() and (to != by).all()
    from abps.core import streams

    order = streams.uniforms(11, "proposal-order", 1, place.ids[to], place.ids[by])
    for k in np.argsort(order):
        i, j = to[k], by[k]
        c = before.cluster[j]
        own = 0.5 if before.cluster[i] == c else 0.4
        copies[i, c] = own * copies[i, c] + (1 - own) * trained[j]
    np.testing.assert_allclose(after.copies, copies, atol=1e-5, rtol=1e-4)
    np.testing.assert_array_equal(after.cluster, choose(place, trained, copies, "train"))


def test_bad_settings() -> None:
    for wrong in ({"clusters": 0}, {"spread": -1.0}, {"warmup": -1}):
        with pytest.raises(RequestError, match="choose"):
            IFCA(**wrong)
    with pytest.raises(RequestError, match="most not below"):
        DFCA(fewest=3, most=2)


def test_the_additive_model(tiny) -> None:
    for name in ("ifca", "dfca"):
        assert np.isfinite(simulate(tiny, name, 11, 2, {"model": "gam"}).auroc.mean)


def test_the_warm_up_sends_one_model_and_then_one_per_cluster(ready):
    method = IFCA(clusters=3, warmup=3, training=Training(hidden=(8, 4), epochs=1))
    run = simulate(ready, method, seed=11, rounds=4)
    frame = frame_size(codec("fp32"), run.models.shape[1])
    edges = np.diff([0, *run.history.edge_bytes])  # half of what goes up and comes down, at six centers
    np.testing.assert_array_equal(edges, [6 * frame, 6 * frame, 6 * 2 * frame, 6 * 2 * frame])
