"""The simulator: what a run must show, whatever the method."""

import json
import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score
from torch import nn

import abps
import abps.engine.simulate
import abps.methods.settings
from abps.core.errors import RequestError
from abps.core.selection import Selection
from abps.engine.result import SCHEMA
from abps.methods.abps import ABPS, Filter
from abps.methods.base import Method, Stopping
from abps.models.learners import learner_for
from federations import tiny

SMALL = {"hidden": (8, 4)}
FED = "icu-synthetic:centers=24,stays=3000"


@pytest.fixture(scope="module")
def icu():
    return abps.load(FED)


def run(data, method, **settings):
    return abps.simulate(data, method, seed=3, settings=SMALL | settings)


def test_a_rerun_is_the_same_but_for_the_time(icu):
    first, second = (abps.simulate(icu, "abps-pq-k1", seed=3, rounds=3).to_json() for _ in range(2))
    for result in (first, second):
        result.pop("seconds")
    assert json.dumps(first) == json.dumps(second)


def test_the_result_has_the_form_of_the_contract(icu):
    result = abps.simulate(icu, "abps", seed=3, rounds=3)
    content = result.to_json()
    assert content["schema"] == SCHEMA == "abps.run/1"
    assert content["data"]["centers"] == icu.size and content["data"]["rows"] == icu.rows
    assert content["data"]["fingerprint"] == icu.fingerprint()
    assert content["config"]["selection"]["gamma"] == math.sqrt(2)
    assert set(content["auroc"]["per_center"]) == set(icu.centers)
    assert len(content["history"]["auroc"]) == content["rounds"] == 3
    assert content["history"]["edge_bytes"][-1] == content["bytes"]["edge"]
    causes = ("no_candidates", "all_full", "declined", "budget")
    assert sum(content["rest"][c] for c in causes) == pytest.approx(content["rest"]["share"])
    assert content["cost_usd"] == pytest.approx(
        (content["bytes"]["directed"] + content["bytes"]["control"]) / 1e9 * 0.09
    )
    json.dumps(content, allow_nan=False)


def test_the_audit_trail_tells_every_decision(icu):
    result = abps.simulate(icu, "abps-pq-k1-div", seed=3, rounds=4)
    trail = result.decisions
    assert set(trail["decision"].unique()) <= {
        "proposed",
        "accepted",
        "full",
        "declined",
        "filtered",
        "rested",
    }
    proposals = trail.filter(pl.col("decision") == "proposed")
    answers = trail.filter(pl.col("decision").is_in(["accepted", "full", "declined", "filtered"]))
    assert proposals.height == answers.height
    # The answer follows its proposal, decided by the peer.
    assert proposals["center"].to_list() == answers["peer"].to_list()
    assert proposals["score"].null_count() == 0 and answers["posterior_mean"].is_between(0, 1).all()
    rested = trail.filter(pl.col("decision") == "rested")
    assert rested.height == round(result.rest.share * 4 * icu.size)
    assert rested["reason"].is_in(["no candidates", "all full", "declined"]).all()
    accepted = trail.filter(pl.col("decision") == "accepted").group_by("round").len()["len"].sum()
    assert result.partners_mean * icu.size * 4 == pytest.approx(2 * accepted)


BYTES = {"abps": 1.50, "abps-p": 1.49, "abps-q": 0.75, "abps-pq-k1": 0.25, "fedavg-pq": 0.50, "fedavg": 1.00}


@pytest.mark.parametrize("method", BYTES)
def test_bytes_relative_to_fedavg(method):
    # The ratio is of counts and layer sizes: the real network, the paper's width, few rows, few rounds.
    data = tiny((20,) * 40, width=66)
    result = abps.simulate(data, method, seed=1, rounds=2)
    assert result.bytes.vs_fedavg * 50 / 2 == pytest.approx(BYTES[method], abs=0.005)


def test_random_pairing_spends_what_abps_spends():
    data = tiny((20,) * 30)
    control = run(data, "random-k1", rounds=6)
    abps_ = run(data, "abps-pq-k1", rounds=6, gamma=1000.0)
    assert control.bytes.edge == abps_.bytes.edge and control.bytes.directed == abps_.bytes.directed


def test_the_papers_settings_decline_nobody_in_fifty_rounds():
    result = run(tiny((16,) * 8), "abps-pq-k1", rounds=50)
    assert result.rest.declined == 0
    assert "declined" not in result.decisions["decision"].to_list()


def test_a_harmful_peer_is_declined_when_gamma_lets_it():
    data = tiny((120,) * 6, signal=4.0)
    start, stop = data.train.start[0], data.train.start[1]
    data.train.y[start:stop] = 1 - data.train.y[start:stop]  # center 0 has learned everything upside down
    settings = {"hidden": (8, 4), "gamma": 0.1, "lr": 0.02}
    runs = [abps.simulate(data, "abps-pq-k1", seed=s, rounds=30, settings=settings) for s in range(1, 6)]
    declined = pl.concat([r.decisions.filter(pl.col("decision") == "declined") for r in runs])
    assert declined.height > 10
    assert (declined["peer"] == "c0").mean() > 0.5


def test_partners_are_symmetric_and_within_capacity(icu):
    result = abps.simulate(icu, "abps", seed=3, rounds=3)
    accepted = result.decisions.filter(pl.col("decision") == "accepted")
    for t in range(1, 4):
        pairs = {tuple(sorted(p)) for p in accepted.filter(round=t).select("center", "peer").iter_rows()}
        degree = {c: sum(c in p for p in pairs) for c in icu.centers}
        assert max(degree.values()) <= 3
        assert sum(degree.values()) == 2 * len(pairs) == 2 * accepted.filter(round=t).height


def test_a_resting_center_still_trains():
    data = tiny((40,) * 3)  # an odd number: with one partner each, somebody rests every round
    result = run(data, "abps-pq-k1", rounds=1)
    resting = result.decisions.filter(pl.col("decision") == "rested")["center"].to_list()
    assert len(resting) == 1
    alone = run(data, "local", rounds=1)
    k = data.centers.index(resting[0])
    assert np.array_equal(result.models[k], alone.models[k])
    assert not np.array_equal(
        result.models[k],
        learner_for(data, ABPS().training, 3).start[: result.models.shape[1]],
    )


def test_debug_gives_the_same_answers():
    data = tiny((60, 45, 30, 20))
    for method in ("fedavg-p", "abps", "abps-x", "centralized"):
        runs = [
            abps.simulate(data, method, seed=3, rounds=3, settings=SMALL, engine=engine)
            for engine in ("simulate", "debug")
        ]
        np.testing.assert_allclose(runs[0].models, runs[1].models, atol=1e-5, rtol=1e-4)
        assert runs[0].auroc.mean == pytest.approx(runs[1].auroc.mean, abs=1e-6)
        a, b = (r.decisions.drop("score", "posterior_mean") for r in runs)
        assert a.equals(b)


def test_a_budget_ends_communication():
    data = tiny((20,) * 10)
    free = run(data, "abps-pq-k1", rounds=6)
    per_round = free.bytes.edge / 6
    for method in ("abps-pq-k1", "fedavg"):
        full = run(data, method, rounds=6)
        capped = run(data, method, rounds=6, budget=full.bytes.edge * 0.55)
        assert capped.bytes.edge == pytest.approx(full.bytes.edge / 2)
        assert capped.rest.budget == pytest.approx(0.5)
        assert capped.rounds == 6
    assert per_round > 0


def test_early_stopping_and_the_best_round():
    data = tiny((60,) * 6)
    result = run(data, "fedavg", rounds=40, patience=3, lr=0.05)
    best = int(np.argmax(result.history.validation_auroc))
    assert result.rounds == min(40, best + 1 + 3)
    assert result.auroc.at_best_validation == result.history.auroc[best]
    restored = run(data, "fedavg", rounds=40, patience=3, lr=0.05, restore_best=True)
    assert restored.auroc.mean == pytest.approx(result.history.auroc[best])


def test_smoothing_keeps_half_of_the_old_trunk():
    data = tiny((60,) * 4)
    plain = run(data, "fedavg", rounds=1)
    half = run(data, "fedavg", rounds=1, smoothing=0.5)
    start = learner_for(data, abps.methods.settings.configure("fedavg", SMALL).training, 3).start
    np.testing.assert_allclose(half.models[0], 0.5 * start + 0.5 * plain.models[0], atol=1e-6, rtol=1e-5)


def test_group_oracle_stays_in_the_group_and_needs_one():
    groups = ("x", "x", "y", "y", "y", "y")
    data = tiny((30,) * 6, groups=groups)
    trail = run(data, "group-oracle-k1", rounds=4).decisions.filter(pl.col("decision") == "accepted")
    index = dict(zip(data.centers, groups))
    assert all(index[a] == index[b] for a, b in trail.select("center", "peer").iter_rows())
    with pytest.raises(RequestError, match="group=COL"):
        run(tiny((30,) * 4), "group-oracle-k1", rounds=1)


def test_goals_of_their_own_and_mixed():
    data = tiny((30,) * 8)
    mixed = ABPS(
        selection=Selection(kappa=1),
        filter=Filter(goals=("homogeneity", "diversity", "none", "alignment") * 2),
        stop=Stopping(rounds=2),
    )
    assert abps.simulate(data, mixed, seed=3, settings=SMALL).rounds == 2

    def nearest_size(centers, peers):
        return -np.abs(centers[:, None, 1] - peers[None, :, 1])

    own = ABPS(filter=Filter(goal_function=nearest_size), stop=Stopping(rounds=2))
    result = abps.simulate(data, own, seed=3, settings=SMALL)
    assert "nearest_size" in result.to_json()["config"]["filter"]["goal_function"]
    with pytest.raises(RequestError, match="3 given for 8 centers"):
        abps.simulate(data, ABPS(filter=Filter(goals=("none",) * 3)), seed=3, rounds=1)


def test_a_model_of_ones_own():
    class Linear(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.out = nn.Linear(width, 1)

        def forward(self, x):
            return self.out(x)

    result = abps.simulate(tiny((40,) * 4), "fedavg", seed=3, rounds=3, model=Linear)
    assert result.models.shape == (4, 13) and math.isfinite(result.auroc.mean)


def test_a_method_of_ones_own():
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Frozen(Method):
        """Never learns anything."""

        def train(self, context, state, t, alone):
            return state

    result = abps.simulate(tiny((40,) * 4), Frozen(), seed=3, rounds=2)
    assert result.method == "frozen" and len(set(result.history.auroc)) == 1


def test_undefined_utilities_leave_beliefs_alone():
    data = tiny((30,) * 4)
    data.validation.y[:] = 0  # no positive anywhere: AUROC is undefined
    skip = run(data, "abps-pq-k1", rounds=3)
    assert len(skip.beliefs.key) == 0
    half = run(data, "abps-pq-k1", rounds=3, undefined_utility="half")
    known = half.beliefs.posterior(*np.divmod(half.beliefs.key, half.beliefs.n))
    assert len(half.beliefs.key) > 0 and known.mean.max() == 0.5
    assert math.isnan(skip.history.validation_auroc[0])


def test_beliefs_are_the_sum_of_clipped_shapley_values():
    data = tiny((50,) * 5)
    result = run(data, "abps", rounds=1, kappa=2)
    beliefs = result.beliefs
    posterior = beliefs.posterior(*np.divmod(beliefs.key, beliefs.n))
    np.testing.assert_allclose(posterior.alpha + posterior.beta, 2 + posterior.count)
    assert len(beliefs.key) == result.decisions.filter(pl.col("decision") == "accepted").height * 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"method": "abps-xx"}, "did you mean 'abps-x'"),
        ({"method": "abps", "settings": {"gama": 1}}, "did you mean 'gamma'"),
        ({"method": "abps", "settings": {"kappa": "0"}}, "kappa=0"),
        ({"method": "abps", "settings": {"kappa": "two"}}, "type int"),
        ({"method": "abps", "settings": {"codec": "bf17"}}, "did you mean 'bf16'"),
        ({"method": "abps", "settings": {"private_layers": 3}}, "3 layers"),
        ({"method": "abps", "settings": {"goal": "homo"}}, "did you mean 'homogeneity'"),
        ({"method": "fedavg", "settings": {"weighting": "big"}}, "size or uniform"),
        ({"method": "fedavg", "rounds": 0}, "rounds=0"),
        ({"method": "fedavg", "seed": -1}, "seed=-1"),
        ({"method": "fedavg", "engine": "ray"}, "simulate or debug"),
    ],
)
def test_wrong_requests_are_answered_in_one_sentence(arguments, says):
    with pytest.raises(RequestError, match=says) as raised:
        abps.simulate(tiny((20, 20)), **{"rounds": 1} | arguments)
    assert "\n" not in str(raised.value)


def test_settings_reach_every_field_by_name():
    config = abps.methods.settings.configure(
        "abps",
        {
            "gamma": "0.25",
            "selection.kappa": "2",
            "prior": "2,3",
            "mutual_filter": "no",
            "hidden": "32+16",
            "patience": "none",
            "budget": "1e6",
        },
    )
    assert (config.selection.gamma, config.selection.kappa, config.selection.prior) == (0.25, 2, (2.0, 3.0))
    assert config.filter.mutual_filter is False and config.training.hidden == (32, 16)
    assert config.stop.patience is None and config.budget == 1e6


def test_more_than_five_partners_are_credited_by_sampling():
    data = tiny((30,) * 9)
    result = run(data, "abps", rounds=2, kappa=7)
    assert result.partners_mean > 5 and len(result.beliefs.key) > 0


def test_the_result_says_where_it_was_computed():
    data = tiny((60, 50, 40))
    assert run(data, "local", rounds=1).to_json()["device"] == "cpu"
    assert abps.simulate(data, "local", rounds=1, settings=SMALL, device="cpu").device == "cpu"
    with pytest.raises(RequestError, match="device='gpu': PyTorch cannot use it here"):
        abps.simulate(data, "local", device="gpu")


def test_a_configuration_of_the_catalog_keeps_its_name(icu):
    assert abps.simulate(icu, abps.find("abps-pq-k1"), rounds=1).method == "abps-pq-k1"
    assert abps.simulate(icu, abps.find("pfedgraph"), rounds=1).method == "pfedgraph"
    own = replace(abps.find("fedavg"), stop=Stopping(rounds=1))
    assert abps.simulate(icu, own).method == "fedavg"  # the class's name


def test_own_metrics_stand_beside_ours(icu):
    def area(y, p):
        return roc_auc_score(y, p) if 0 < y.sum() < len(y) else math.nan

    metrics = {"AUROC again": area, "share": lambda y, p: p.mean()}
    run = abps.simulate(icu, "fedavg", rounds=2, metrics=metrics)
    ours, theirs = run.auroc.per_center, run.measures["AUROC again"].per_center
    np.testing.assert_allclose(list(ours.values()), list(theirs.values()), atol=1e-6)
    assert 0 < run.measures["share"].mean < 1
    assert abps.Run.from_json(run.to_json()).measures["share"].mean == run.measures["share"].mean
    with pytest.raises(TypeError, match="did you mean 'metrics'"):
        abps.simulate(icu, "fedavg", rounds=1, metric={})


def test_a_saved_run_comes_back_with_its_models_rounds_and_predictions(icu, tmp_path):
    run = abps.simulate(icu, "abps-pq-k1", rounds=3)
    run.save(tmp_path / "run")
    back = abps.load_run(tmp_path / "run")
    np.testing.assert_array_equal(back.models, run.models)
    assert back.center_history().equals(run.center_history())
    assert back.predictions().equals(run.predictions())
    rounds = run.center_history()
    assert rounds.height == 3 * icu.size
    means = rounds.with_columns(pl.col("test").fill_nan(None)).group_by("round").agg(pl.col("test").mean())
    np.testing.assert_allclose(means.sort("round")["test"], run.history.auroc)
    assert run.history.directed_bytes[-1] == run.bytes.directed
    assert np.diff([0, *run.history.control_bytes]).min() >= 0
    assert run.history.control_bytes[-1] <= run.bytes.control
    with pytest.raises(RequestError, match="load the folder"):
        abps.Run.from_json(run.to_json()).center_history()
