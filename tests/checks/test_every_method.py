"""Every method of the catalog in a short run, and all checks for one method of every mechanism."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from abps import CATALOG, Run, find, simulate
from abps.checks import CHECKS, check_method
from abps.data.federation import Federation
from abps.engine.result import SCHEMA
from abps.engine.rounds import RunState
from abps.methods.base import Context
from abps.methods.settings import names, with_settings
from abps.models import draws
from abps.models.learners import learner_for
from abps.wire.codecs import codec, frame_size

ROUNDS = 2

#: Small enough for the plain loop, large enough for several batches of unequal size in an epoch.
SMALL = {"batch": "32", "hidden": "16,8"}

#: References that are fitted in one step, or by an exchange of their own: tests/methods/test_references.py.
TRAINED = [
    name
    for name in CATALOG
    if not getattr(find(name), "fitted", False) and CATALOG[name].config.kind != "coordinated"
]

#: The catalog, and a few forms that are one setting away.
CASES: dict[str, tuple[str, dict[str, str]]] = {name: (name, {}) for name in TRAINED} | {
    "defta-pull": ("defta", {"links": "pull"}),
    "decefl-changing": ("decefl", {"graph": "changing-ring"}),
}

#: One method of every mechanism: alone, pooled, by a server (one message, two, a model each), by mutual
#: proposals, by pulling, on a graph.
MECHANISMS = ("local", "centralized", "fedavg-x", "scaffold", "pfedgraph", "abps-pq-k1", "dac", "decefl")

#: One method of every way to train: plain, with an anchor and a shift, contrastive, with random weights, in
#: two phases.
TRAININGS = ("fedavg", "feddyn", "moon", "bnn", "fedrep")

every_method = pytest.mark.parametrize("case", CASES)


def run(tiny: Federation, case: str, engine: str = "simulate", **more: Any) -> Run:
    """Two rounds of a case on the tiny federation, with the paper's network."""
    name, settings = CASES[case]
    settings = {"model": "mlp"} | SMALL | {k: str(v) for k, v in (settings | more).items()}
    return simulate(tiny, name, seed=11, rounds=ROUNDS, settings=settings, engine=engine)


@pytest.fixture(scope="module")
def once(tiny: Federation) -> dict[str, Run]:
    """The cases that have been run."""
    return {}


@every_method
def test_a_short_run(ready, tiny, once, case) -> None:
    result = once[case] = run(tiny, case)
    models = np.asarray(result.models)
    assert np.isfinite(models).all()
    assert 0.0 <= result.auroc.mean <= 1.0
    assert result.auroc.scored_centers == 6
    config = with_settings(find(CASES[case][0]), {"model": "mlp"} | SMALL)
    start = np.asarray(learner_for(ready, config.training, 11).start)
    steps = 8 * 1e-3  # what two rounds of four Adam steps can move a weight, give or take
    assert 0.05 * steps < np.abs(models - start).mean() < 10 * steps
    bytes_are_those_of_the_method(ready, case, result)
    history_and_rest_add_up(result)
    result_is_plain_data(case, result)


def history_and_rest_add_up(result: Run) -> None:
    assert result.rounds == ROUNDS
    history = result.history
    for column in (history.auroc, history.validation_auroc, history.edge_bytes, history.rest):
        assert len(column) == ROUNDS
    assert history.edge_bytes[-1] == result.bytes.edge
    assert history.auroc[-1] == pytest.approx(result.auroc.mean)
    rest = result.rest
    causes = (rest.no_candidates, rest.all_full, rest.declined, rest.budget, rest.quiet)
    assert rest.share == pytest.approx(sum(causes))
    assert rest.share == pytest.approx(np.mean(history.rest))


def result_is_plain_data(case: str, result: Run) -> None:
    out = json.loads(json.dumps(result.to_json(), allow_nan=False))
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
    assert set(out["versions"]) >= {"abps", "numpy"}


#: Edge bytes over those of a round of FedAvg in fp32.
P = "private"
EDGE: dict[str, float | str] = {
    "centralized": 0.0,
    "local": 0.0,
    "fedavg": 1.0,
    "fedprox": 1.0,
    "feddyn": 1.0,
    "moon": 1.0,
    "fedavgm": 1.0,
    "ditto": 1.0,
    "bnn": 2.0,
    "scaffold": 2.0,
    "decefl": 1.0,
    "decefl-changing": 1.0,
    "dpsgd": 1.0,
    "pfedgraph": 1.0,
    "fedper": P,
    "fedrep": P,
    "fedavg-p": P,
}


def bytes_are_those_of_the_method(ready, case: str, result: Run) -> None:
    size = np.asarray(result.models).shape[1]
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
    expected = {
        "defta-pull": spent.directed == ROUNDS * 2 * fedavg,
        "gossip": spent.directed == ROUNDS * fedavg and spent.edge >= ROUNDS * fedavg / 2,
        "fedfomo": spent.directed == ROUNDS * (1 + 5) * fedavg and spent.edge == spent.directed // 2,
        "dpfl": spent.directed == 5 * fedavg,  # one search in two rounds, among all others
        "facade": spent.edge == ROUNDS * 4 / 2 * fedavg,
    }
    expected["ehrfl"] = spent.edge == ROUNDS * fedavg / 2
    for two_links in ("defta", "wpfed"):  # made greedily: at most one center is left with a place to spare
        expected[two_links] = 5 / 6 * ROUNDS * fedavg <= spent.edge <= ROUNDS * fedavg
    assert expected.get(case, True)
    # The paper's network standardises by each center's own rows, so that nothing but models travels.
    own = result.config["training"]["standardise"] == "own"
    star = CATALOG[CASES[case][0]].family in ("reference", "star")
    noted = case.startswith(("ifca", "fedfomo", "fedmap", "clustered"))
    if case in EDGE or (star and own and not noted):
        assert spent.control == 0  # (others send the number of a cluster, a weight, or wishes)
    else:
        assert spent.control > 0


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


@pytest.mark.parametrize("case", MECHANISMS)
def test_all_checks(tiny, case) -> None:
    name, settings = CASES[case]
    skip: set[str] = set()
    if name == "centralized" or CATALOG[name].family in ("abps", "control"):
        # Pooled rows are shuffled in the order they are pooled in; ties between peers are broken by their
        # place in the list.
        skip = {"order is nothing"}
    assert len(check_method(with_settings(find(name), settings), tiny, skip)) == len(CHECKS) - len(skip)


@pytest.mark.parametrize("case", MECHANISMS)
def test_predictions_of_a_round_are_those_of_its_models(ready, case) -> None:
    name, settings = CASES[case]
    method = with_settings(find(name), SMALL | settings)
    learner = learner_for(ready, method.training, 11)
    state = RunState.start(method, Context(learner, ready, learner.ids, 11, ROUNDS))
    for t in range(1, ROUNDS + 1):
        state, outcome = state.round(t)
        for rows, answers in zip((ready.validation, ready.test), outcome.answers or ()):
            again = method.logits(state.context, state.state, rows)
            np.testing.assert_array_equal(answers.start, again.start)
            np.testing.assert_allclose(answers.values, again.values, atol=1e-5, rtol=1e-5)
    if CATALOG[name].family == "abps":
        assert outcome.answers is not None


@pytest.mark.parametrize("case", TRAININGS)
def test_chunks_do_not_matter(tiny, once, case, monkeypatch) -> None:
    if case not in once:
        once[case] = run(tiny, case)
    monkeypatch.setattr(draws, "shares", lambda sizes, cores: np.flatnonzero(sizes)[:, None])
    same(run(tiny, case), once[case])


@pytest.mark.parametrize("case", TRAININGS)
def test_engines_agree_in_every_weight_without_adam(tiny, case) -> None:
    """SGD does not divide by the gradient, so rounding stays rounding in every single weight."""
    more = {"optimizer": "sgd", "lr": 0.05}
    fast, plain = run(tiny, case, **more), run(tiny, case, engine="debug", **more)
    np.testing.assert_allclose(np.asarray(fast.models), np.asarray(plain.models), rtol=0, atol=1e-4)


def same(a: Run, b: Run) -> None:
    """The same numbers but for rounding.

    Adam divides by the size of the gradient: where that vanishes, rounding alone may move a weight by up
    to the learning rate. Such weights are few, and they do not show in the predictions.
    """
    difference = np.abs(np.asarray(a.models) - np.asarray(b.models))
    assert (difference > 1e-4).mean() < 1e-3
    assert difference.max() < 2e-3
    for one, two in ((a.auroc, b.auroc), (a.brier, b.brier)):
        np.testing.assert_allclose(list(one.per_center.values()), list(two.per_center.values()), atol=1e-4)
    assert a.bytes == b.bytes
    assert a.rest == b.rest


def test_the_catalog_names_all_methods_of_the_table() -> None:
    reference = {"centralized", "local", "fedavg", "local-best", "pooled-best", "glm-exact"}
    star = {"fedprox", "feddyn", "moon", "bnn", "fedavg-p", "fedavg-pq", "fedavg-x"}
    extras = {"fedavgm", "scaffold", "fedper", "fedrep", "ditto"}
    peers = {"decefl", "defta", "wpfed", "dpsgd", "gossip"}
    controls = {"random-k1", "random-k3", "group-oracle-k1"}
    ours = {f"abps{form}" for form in ("", "-p", "-q", "-pq-k1", "-x")}
    goals = {f"abps-pq-k1-{goal}" for goal in ("hom", "div", "align")}
    choosing = {"pfedgraph", "dac", "pens", "ifca", "dfca", "facade", "fedfomo", "ehrfl", "dpfl"}
    wanted = reference | star | extras | peers | controls | ours | goals | choosing
    assert wanted <= set(CATALOG)
    for entry in CATALOG.values():
        assert entry.family in ("reference", "star", "p2p", "control", "abps", "extension", "sums")
        assert entry.summary
        assert entry.source
