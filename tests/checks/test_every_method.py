"""Checks that every method of the catalog must pass."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

import abps.engine.simulate as engine
from abps import CATALOG, Run, find, simulate
from abps.checks import check_method
from abps.checks.method_checks import CHECKS
from abps.data.federation import Federation
from abps.engine.result import SCHEMA
from abps.engine.rounds import RunState
from abps.methods.base import Context
from abps.methods.catalog import PRIVATE_FORMS
from abps.methods.settings import names, with_settings
from abps.models import batches
from abps.models.batched import StackedLearner
from abps.models.models import initial_weights
from abps.models.training import Training
from abps.wire.codecs import codec
from abps.wire.frames import frame_size
from pretend_device import THERE, PretendDevice

ROUNDS = 2

#: Small enough for the plain loop, large enough for several batches of unequal size in an epoch.
SMALL = {"batch": "32", "hidden": "16,8"}

#: The catalog (but for references that are fitted at once: tests/methods/test_references.py), and the forms
#: that are a setting away.
#: (and but for forms that differ from others in their wire alone).
SAME_BUT_PRIVATE = set(PRIVATE_FORMS) - {"pfedgraph-p"}
TRAINED = [
    name for name in CATALOG if not getattr(find(name), "fitted", False) and name not in SAME_BUT_PRIVATE
]
CASES: dict[str, tuple[str, dict[str, str]]] = {name: (name, {}) for name in TRAINED} | {
    "wpfed-kd": ("wpfed", {"exchange": "kd"}),
    "defta-pull": ("defta", {"links": "pull"}),
    "decefl-changing": ("decefl", {"graph": "changing-ring"}),
    "bnn-global-prior": ("bnn", {"prior": "global", "average": "mixture"}),
}

every_method = pytest.mark.parametrize("case", CASES)


def run(tiny: Federation, case: str, engine: str = "simulate", **more: Any) -> Run:
    """Two rounds of a case on the tiny federation."""
    name, settings = CASES[case]
    # Everybody on the paper's network, also those that would choose another model.
    settings = {"model": "mlp"} | SMALL | {k: str(v) for k, v in (settings | more).items()}
    return simulate(
        tiny, name, seed=11, rounds=int(settings.pop("rounds", ROUNDS)), settings=settings, engine=engine
    )


@pytest.fixture(scope="module")
def once(tiny: Federation) -> dict[str, Run]:
    """Every case, run once."""
    return {case: run(tiny, case) for case in CASES}


@every_method
def test_finite_and_learning(ready, once, case) -> None:
    result = once[case]
    assert torch.isfinite(result.models).all()
    assert 0.0 <= result.auroc.mean <= 1.0
    assert result.auroc.scored_centers == 6
    start = initial_weights(Training(hidden=(16, 8)).factory, ready.width, 11)
    steps = 8 * 1e-3  # what two rounds of four Adam steps can move a weight, give or take
    assert 0.05 * steps < (result.models - start).abs().mean() < 10 * steps


@every_method
def test_what_anybody_may_check(tiny, case) -> None:
    name, settings = CASES[case]
    family, skip = CATALOG[name].family, set()
    if family == "reference" and name != "local":
        skip = {
            "order is nothing"
        }  # the pooled rows are one center's, shuffled in the order they are pooled in
    if family in ("abps", "control") or name in ("abps-plus", "abps-plus-random", "abps-plus-plain"):
        skip = {"order is nothing"}  # ties between peers are broken by their place in the list
    assert len(check_method(with_settings(find(name), settings), tiny, skip)) == len(CHECKS) - len(skip)


@every_method
def test_chunks_do_not_matter(tiny, once, case, monkeypatch) -> None:
    monkeypatch.setattr(StackedLearner, "most", 1)
    monkeypatch.setattr(batches, "shares", lambda sizes, cores: np.flatnonzero(sizes)[:, None])
    same(run(tiny, case), once[case])


@every_method
def test_answers_that_a_round_hands_on_are_those_of_its_models(ready, case) -> None:
    name, settings = CASES[case]
    method = with_settings(find(name), SMALL | settings)
    learner = StackedLearner(ready, method.training, method.training.factory, 11)
    context = Context(learner, ready, learner.ids, 11, ROUNDS)
    course = RunState.start(method, context)
    for t in range(1, ROUNDS + 1):
        course, outcome = course.round(t)
        for rows, answers in zip((ready.validation, ready.test), outcome.answers or ()):
            again = method.logits(course.context, course.state, rows)
            np.testing.assert_array_equal(answers.start, again.start)
            np.testing.assert_allclose(answers.values, again.values, atol=1e-5, rtol=1e-5)
    if name == "abps":
        assert outcome.answers is not None


@every_method
def test_a_device_gives_the_same(tiny, once, case, monkeypatch) -> None:
    """Whole runs with every tensor where it must be, also those that methods bring along."""
    monkeypatch.setattr(engine, "find_device", lambda name: THERE)
    with PretendDevice() as device:
        found = run(tiny, case)
    assert device.there["_fused_adam_"] and not device.here["_fused_adam_"]
    assert found.to_json()["device"] == "meta"
    same(found, once[case])


@every_method
def test_engines_agree_in_every_weight_without_adam(tiny, case) -> None:
    """SGD does not divide by the gradient, so rounding stays rounding in every single weight."""
    more = {"optimizer": "sgd", "lr": 0.05}
    fast, plain = run(tiny, case, **more), run(tiny, case, engine="debug", **more)
    torch.testing.assert_close(fast.models, plain.models, rtol=0, atol=1e-4)


def same(a: Run, b: Run) -> None:
    """The same numbers but for rounding.

    Adam divides by the size of the gradient: where that vanishes, rounding alone may move a weight by up
    to the learning rate. Such weights are few, and they do not show in the predictions.
    """
    difference = (a.models - b.models).abs()
    assert (difference > 1e-4).float().mean() < 1e-3
    assert difference.max() < 2e-3
    for one, two in ((a.auroc, b.auroc), (a.brier, b.brier)):
        np.testing.assert_allclose(list(one.per_center.values()), list(two.per_center.values()), atol=1e-4)
    assert a.bytes == b.bytes
    assert a.rest == b.rest


#: Edge bytes over those of a round of FedAvg in fp32; None: depends on who met whom.
P = "private"
EDGE: dict[str, float | str | None] = {
    "centralized": 0.0,
    "local": 0.0,
    "local-stopped": 0.0,
    "fedavg": 1.0,
    "fedprox": 1.0,
    "feddyn": 1.0,
    "moon": 1.0,
    "fedavgm": 1.0,
    "ditto": 1.0,
    "bnn": 2.0,
    "bnn-global-prior": 2.0,
    "scaffold": 2.0,
    "decefl": 1.0,
    "decefl-changing": 1.0,
    "dpsgd": 1.0,
    "pfedgraph": 1.0,
    "pfedgraph-p": P,
    "fedper": P,
    "fedrep": P,
    "fedavg-p": P,
}


@every_method
def test_bytes(ready, once, case) -> None:
    result = once[case]
    size = result.models.shape[1]
    frame = frame_size(codec("fp32"), size)
    fedavg = 6 * frame
    spent = result.bytes
    # The unit is the paper's network, whatever size of it is run here.
    paper = frame_size(codec("fp32"), ready.width * 128 + 128 + 128 * 64 + 64 + 64 + 1)
    assert spent.vs_fedavg == pytest.approx(spent.edge / (50 * 6 * paper))
    assert spent.edge <= spent.directed <= 2 * spent.edge + 1
    if EDGE.get(case) == P:
        assert spent.edge == ROUNDS * 6 * frame_size(codec("fp32"), size - 9)  # the head: 8 weights, 1 bias
    elif case in EDGE:
        assert spent.edge == pytest.approx(ROUNDS * EDGE[case] * fedavg, rel=1e-9)
    if case in EDGE:
        assert spent.control == 0
    if case in ("defta", "wpfed"):
        # Two links each, made greedily: at most one center is left with a place to spare.
        assert 5 / 6 * ROUNDS * fedavg <= spent.edge <= ROUNDS * fedavg
        assert spent.directed == 2 * spent.edge
    if case == "defta-pull":
        assert spent.directed == ROUNDS * 2 * fedavg
    if case == "gossip":
        assert spent.directed == ROUNDS * fedavg
        assert ROUNDS * fedavg / 2 <= spent.edge <= ROUNDS * fedavg
    if case.startswith("ifca"):
        # A head has 8 weights and a bias.
        down = frame_size(codec("fp32"), size + 5 * 9) if case == "ifca-trunk" else 6 * frame
        assert spent.directed == ROUNDS * 6 * (frame + down)
        assert spent.edge == pytest.approx(spent.directed / 2, rel=1e-9)
    if case == "fedfomo":
        assert spent.directed == ROUNDS * (1 + 5) * fedavg and spent.edge == spent.directed // 2
    if case == "dpfl":
        assert spent.directed == 5 * fedavg  # one search in two rounds, among all others
    if case in ("facade", "facade-r1"):
        assert spent.edge == ROUNDS * (4 if case == "facade" else 1) / 2 * fedavg
    if case in ("ehrfl", "dac-k1", "pfedgraph-k1"):
        assert spent.edge == ROUNDS * fedavg / 2
    if case == "wpfed-kd":
        assert 0 < spent.edge < 0.1 * ROUNDS * fedavg
    entry = CATALOG[CASES[case][0]]
    # As it ran: the paper's network brings its own way to standardise.
    own = result.config["training"]["standardise"] == "own"
    if entry.family in ("reference", "star") and own and not case.startswith(("ifca", "fedfomo")):
        assert spent.control == 0  # (which send the number of a cluster, and wishes)
    elif case not in EDGE:
        assert spent.control > 0


@every_method
def test_history_and_rest(once, case) -> None:
    result = once[case]
    assert result.rounds == ROUNDS
    history = result.history
    for column in (history.auroc, history.validation_auroc, history.edge_bytes, history.rest):
        assert len(column) == ROUNDS
    assert all(len(v) == ROUNDS for v in history.rest_causes.values())
    assert history.edge_bytes[-1] == result.bytes.edge
    assert history.auroc[-1] == pytest.approx(result.auroc.mean)
    rest = result.rest
    causes = (rest.no_candidates, rest.all_full, rest.declined, rest.budget, rest.quiet)
    assert rest.share == pytest.approx(sum(causes))
    assert rest.share == pytest.approx(np.mean(history.rest))


@every_method
def test_settings_are_reachable_by_name(case) -> None:
    config = CATALOG[CASES[case][0]].config
    known = names(config)
    for field in fields(config):
        assert any(name.split(".")[0] == field.name for name in known), field.name
    for name in ("rounds", "lr", "epochs", "batch", "budget", "optimizer"):
        assert name in known
    changed = with_settings(config, {"lr": "0.01", "rounds": "7", "budget": "1e6"})
    assert (changed.training.lr, changed.stop.rounds, changed.budget) == (0.01, 7, 1e6)


@every_method
def test_result_json(once, case) -> None:
    out = json.loads(json.dumps(once[case].to_json(), allow_nan=False))
    assert out["schema"] == SCHEMA == "abps.run/1"
    assert out["method"] == CASES[case][0]
    assert (out["seed"], out["rounds"]) == (11, ROUNDS)
    assert out["data"]["centers"] == 6
    assert len(out["data"]["fingerprint"]) > 8
    assert {"mean", "scored_centers", "at_best_validation", "per_center"} <= set(out["auroc"])
    assert len(out["auroc"]["per_center"]) == 6
    assert {"edge", "directed", "control", "vs_fedavg"} <= set(out["bytes"])
    assert {"share", "no_candidates", "all_full", "declined"} <= set(out["rest"])
    assert {"auroc", "validation_auroc", "edge_bytes", "rest"} <= set(out["history"])
    assert math.isfinite(out["cost_usd"])
    assert out["partners_mean"] >= 0
    assert out["config"]["training"]["batch"] == 32
    assert set(out["versions"]) >= {"abps", "torch", "numpy"}


def test_the_catalog_names_all_methods_of_the_table() -> None:
    reference = {"centralized", "local", "fedavg"}
    star = {"fedprox", "feddyn", "moon", "bnn", "fedavg-p", "fedavg-pq", "fedavg-x"}
    extras = {"fedavgm", "scaffold", "fedper", "fedrep", "ditto"}
    peers = {"decefl", "defta", "wpfed", "dpsgd", "gossip"}
    controls = {"random-k1", "random-k3", "group-oracle-k1"}
    ours = {f"abps{form}" for form in ("", "-p", "-q", "-pq-k1", "-x")}
    goals = {f"abps-pq-k1-{goal}" for goal in ("hom", "div", "align")}
    wanted = reference | star | extras | peers | controls | ours | goals
    assert wanted <= set(CATALOG)
    for entry in CATALOG.values():
        assert entry.family in ("reference", "star", "p2p", "control", "abps", "extension")
        assert entry.summary
        assert entry.source
