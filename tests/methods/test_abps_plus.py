"""abps-plus in the simulator."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import abps
from abps.core.streams import center_ids
from abps.data.prepare import prepare
from abps.data.table import load
from abps.lab.attacks import attackers_of
from abps.lab.icu_synthetic import IcuSynthetic, draw_with_risk, population_of
from abps.methods import abps_plus, plus_filter, plus_own
from abps.methods.plus_state import as_models, column_groups, local_rows
from abps.methods.settings import configure
from abps.models.hierarchical import CommonModel, alone
from abps.models.learners import learner_for
from abps.models.metrics import labels_of, log_loss
from abps.models.structure import Whitening
from abps.models.training import Training


@pytest.fixture(scope="module")
def small():
    return load("icu-synthetic:heterogeneity=0,centers=12,stays=3000,seed=5")


def test_groups_of_columns():
    group = column_groups(("age ~1", "age ~2", "age ~3", "sex", "hr ~1", "hr ~2"), 1)
    assert group.tolist() == [1, 2, 2, 0, 1, 2, -1]
    assert column_groups(("a", "b ~1"), 2).tolist() == [0, 1, -1, 2, 3, -1]


def test_it_beats_every_center_alone_and_a_run_repeats(small):
    run = abps.simulate(small, "abps-plus", seed=3)
    again = abps.simulate(small, "abps-plus", seed=3)
    alone = abps.simulate(small, "local-best", seed=3)
    assert run.rounds == 8
    assert run.auroc.mean > alone.auroc.mean + 0.02
    assert np.array_equal(run.models, again.models)
    assert 0 < run.bytes.all_vs_fedavg < 0.02
    assert run.bytes.edge == 0 and run.bytes.control > 0
    weights = run.decisions.filter(run.decisions["decision"] == "weight")
    sums = weights.group_by("center").agg(pl.col("score").sum())["score"].to_numpy()
    assert len(sums) == 12 and sums == pytest.approx(1.0)


def _with_product(strength, seed=4):
    """Ten hospitals; the outcome depends on two columns and on their product."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((4000, 4))
    z = 0.8 * x[:, 0] - 0.6 * x[:, 1] + strength * x[:, 0] * x[:, 1] - 0.5
    columns = {f"x{k}": x[:, k] for k in range(4)}
    frame = pl.DataFrame(columns).with_columns(
        y=pl.Series((rng.random(4000) < 1 / (1 + np.exp(-z))).astype(int)),
        h=pl.Series([f"h{k}" for k in rng.integers(0, 10, 4000)]),
    )
    return abps.federation(frame, label="y", center="h")


@pytest.mark.parametrize("settings", [{}, {"secure": "yes"}])
def test_a_pair_of_columns_is_found_where_there_is_one(settings):
    federation = _with_product(0.8)
    run = abps.simulate(federation, "abps-plus", seed=3, settings=settings)
    additive = abps.simulate(federation, "abps-plus", seed=3, settings=settings | {"interactions": "no"})
    assert run.rounds == additive.rounds == 8
    assert run.auroc.mean > additive.auroc.mean + 0.01
    assert run.models.shape[1] > additive.models.shape[1]


def test_without_interactions_nothing_changes():
    federation = _with_product(0.0, seed=5)
    run = abps.simulate(federation, "abps-plus", seed=3)
    additive = abps.simulate(federation, "abps-plus", seed=3, settings={"interactions": "no"})
    assert np.array_equal(run.models, additive.models)


def test_other_models_are_refused():
    with pytest.raises(abps.RequestError, match="linear or gam"):
        configure("abps-plus", {"model": "mlp"})


@pytest.fixture(scope="module")
def severe():
    return load("icu-synthetic:heterogeneity=4,centers=36,groups=3,stays=9000,seed=7")


def test_clusters_are_found_and_used_where_centers_differ(severe):
    with_clusters = abps.simulate(severe, "abps-plus", seed=3)
    without = abps.simulate(severe, "abps-plus", seed=3, settings={"structure": "no"})
    assert without.rounds == 8
    assert 8 < with_clusters.rounds <= 20
    assert with_clusters.auroc.mean > without.auroc.mean + 0.02
    peers = with_clusters.decisions.filter(pl.col("reason") == "cluster peer")
    assert len(peers) > 36


def _continuum(n, seed):
    """Centers whose risk varies along two directions, each with a position of its own."""
    people = population_of(IcuSynthetic(heterogeneity=4, case_mix=0.65, centers=n, seed=seed))
    rng = np.random.default_rng(seed)
    ways = rng.standard_normal((2, people.own.shape[1]))
    own = rng.standard_normal((n, 2)) @ ways * (2.4 / np.linalg.norm(ways))
    rows = draw_with_risk(replace(people, own=own), seed)[0].drop("careunit", "admission_year")
    return abps.federation(rows, label="died", center="center", patient="patient")


def test_a_continuum_is_found_and_used_where_centers_differ_by_degrees():
    federation = _continuum(60, 21)
    run = abps.simulate(federation, "abps-plus", seed=3)
    without = abps.simulate(federation, "abps-plus", seed=3, settings={"structure": "no"})
    assert run.rounds == 9
    assert "a continuum is used" in set(run.decisions["reason"])
    assert run.auroc.mean > without.auroc.mean + 0.02
    lied_to = abps.simulate(federation, "abps-plus", seed=3, attack="scale:share=0.2")
    assert lied_to.auroc.mean > without.auroc.mean


def test_one_member_moves_shared_directions_only_so_far():
    rng = np.random.default_rng(0)
    honest = {"place_squares": rng.random((12, 2)), "pull": rng.standard_normal((12, 8))}
    lying = {name: values.copy() for name, values in honest.items()}
    lying["place_squares"][0] = lying["pull"][0] = 1e6
    plus_filter._bound_positions(lying, np.ones(12, dtype=bool))
    length = np.linalg.norm(honest["pull"], axis=1)
    assert np.linalg.norm(lying["pull"][0]) <= 3.5 * np.median(length)
    assert lying["place_squares"].max() == 9.0
    assert all((lying[name][1:] == values[1:]).all() for name, values in honest.items())


def test_a_small_cluster_that_differs_much_is_not_taken_for_liars():
    """Three members say that the model of their cluster is far off; one of the others lies, and a further one
    says that it belongs to the three."""
    rng = np.random.default_rng(0)
    far = rng.uniform(0.8, 1.2, 35)
    cluster = np.repeat([0, 1, 2], [15, 16, 4])
    far[0], far[31:34], far[34] = 9.0, (3.5, 4.0, 4.5), 40.0
    usual = plus_filter._usual_distance(far, cluster, np.ones(35, dtype=bool))
    assert np.flatnonzero(far > plus_filter.EXCLUDE * usual).tolist() == [0, 34]
    # One of two: nothing that a single member sends makes room for itself.
    pair = plus_filter._usual_distance(np.array([1.0, 1e6]), np.zeros(2, dtype=int), np.ones(2, dtype=bool))
    assert pair.tolist() == [1.0, 1.0]


def test_clusters_are_not_begun_where_rounds_do_not_suffice(severe):
    run = abps.simulate(severe, "abps-plus", seed=3, settings={"steps": "12"})
    assert run.rounds == 1 + 12 + 2
    weights = run.decisions.filter(pl.col("decision") == "weight")
    assert weights["center"].n_unique() == 36


@pytest.fixture(scope="module")
def forty():
    """A federation whose centers are alike, and the mean AUROC of those who will not attack."""
    federation = load("icu-synthetic:heterogeneity=0,centers=40,stays=20000,seed=10")
    clean = abps.simulate(federation, "abps-plus", seed=3)
    bad = attackers_of("nan:share=0.2", 3, center_ids(federation.centers)).who
    scores = clean.auroc.per_center.values()
    return federation, np.nanmean([score for score, bad in zip(scores, bad, strict=True) if not bad])


def test_poisoned_rows_do_not_loosen_the_others_models(forty):
    """Attackers whose rows are false stay out once they were left out twice, also where sums look possible:
    their deviations would enlarge the variance between centers, and honest centers would shrink less."""
    federation, honest = forty
    run = abps.simulate(federation, "abps-plus", seed=3, attack="poison:share=0.2")
    assert run.auroc.honest_mean > honest - 0.01
    excluded = run.decisions.filter(pl.col("decision") == "excluded")
    last = excluded.filter(pl.col("round") == run.rounds)
    assert last.height == 8 and set(last["reason"]) == {"left out before"}
    assert 0.5 < run.partners.expected_better < 1.0  # of all centers, also where some are left out


@pytest.mark.parametrize("attack", ["sign-flip", "scale", "nan", "label-flip"])
def test_attackers_cost_honest_centers_little(forty, attack):
    federation, honest = forty
    run = abps.simulate(federation, "abps-plus", seed=3, attack=f"{attack}:share=0.2")
    assert run.auroc.honest_mean > honest - 0.01
    if attack != "label-flip":
        excluded = run.decisions.filter(pl.col("decision") == "excluded")
        assert len(excluded) > 0


def _together(values):
    """The same push for all attackers, hidden in a little noise of each one's own."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(values.shape[1:]) + 0.4 * rng.standard_normal(values.shape)
    return np.abs(values).mean() * noise


@pytest.mark.parametrize(
    ("kind", "made", "bound"),
    [
        ("score", _together, "FARTHEST_PUSH"),
        ("squares", lambda values: 1e4 * values, "LONGEST_SQUARES"),
        ("pair_scores", lambda values: 30 * values, "LONGEST_PAIR"),
    ],
)
def test_sums_that_members_make_up_cost_the_others_little(forty, kind, made, bound, monkeypatch):
    """They say the truth otherwise, so that nobody can leave them out; without the bound it costs much."""
    federation, honest = forty
    bad = attackers_of("nan:share=0.2", 3, center_ids(federation.centers)).who
    said = abps_plus.upload_values

    def upload_values(*args):
        values = dict(said(*args))
        if kind in values:
            values[kind] = np.array(values[kind], dtype=np.float64)
            values[kind][bad] = made(values[kind][bad])
        return values

    monkeypatch.setattr(abps_plus, "upload_values", upload_values)
    scores = []
    for most in (getattr(plus_filter, bound), 1e9):
        monkeypatch.setattr(plus_filter, bound, most)
        run = abps.simulate(federation, "abps-plus", seed=3)
        names = [name for name, lies in zip(federation.centers, bad, strict=True) if not lies]
        scores.append(np.nanmean([run.auroc.per_center[name] for name in names]))
    assert scores[0] > honest - 0.01 > scores[1] + 0.005


def test_far_is_what_rows_and_the_usual_deviation_do_not_explain():
    """Some members know twenty times as much and differ as the others do; a quarter, small ones, lie."""
    rng = np.random.default_rng(0)
    share = np.repeat([0.001, 0.02], 20)
    square = (rng.chisquare(30, 40) / 30) * (1 + 400 * share)
    everybody = np.ones(40, dtype=bool)
    explained = plus_filter._explained(np.sqrt(square), share, everybody)
    assert (np.sqrt(square) / explained).max() < plus_filter.SHORTEN
    assert explained[-1] ** 2 == pytest.approx(9.0, rel=0.3)
    square[:10] = 1e4
    lying = np.sqrt(square) / plus_filter._explained(np.sqrt(square), share, everybody)
    assert lying[:10].min() > plus_filter.EXCLUDE > plus_filter.SHORTEN > lying[10:].max()


def test_copies_are_found_whatever_their_size_and_others_are_not():
    """Some send the same or in proportion; the others say much of the same in noise of their own."""
    rng = np.random.default_rng(0)
    honest = rng.standard_normal((700, 40)) + 3.0 * np.sign(np.arange(40) - 19.5)
    honest[0] *= 1e-3  # who says next to nothing copies nobody
    assert not plus_filter.copied(honest).any()
    honest[[1, 3, 600]] = honest[2] * np.array([[1.0], [2.5], [0.8]]) + 0.01 * rng.standard_normal((3, 40))
    assert np.flatnonzero(plus_filter.copied(honest)).tolist() == [1, 2, 3, 600]


def test_attackers_that_all_send_the_same_score_are_left_out(forty, monkeypatch):
    federation, _ = forty
    bad = attackers_of("nan:share=0.2", 3, center_ids(federation.centers)).who
    said = abps_plus.upload_values

    def upload_values(*args):
        values = dict(said(*args))
        if "score" in values:
            values["score"] = np.array(values["score"])
            noise = np.random.default_rng(0).standard_normal(values["score"].shape[1])
            values["score"][bad] = np.abs(values["score"]).mean() * noise
        return values

    monkeypatch.setattr(abps_plus, "upload_values", upload_values)
    run = abps.simulate(federation, "abps-plus", seed=3)
    found = set(run.decisions.filter(pl.col("reason") == plus_filter.COPIED)["center"])
    liars = {name for name, lies in zip(federation.centers, bad, strict=True) if lies}
    assert found <= liars and len(found) >= 6  # of eight: of a large one it is too little to say anything


@pytest.mark.parametrize("others", [["all"], ["one", "two", "three"]])
def test_a_member_with_a_column_of_its_own_may_return_after_the_first_exchange(others, monkeypatch):
    """Of its column the curvature says next to nothing: the step along it is far too long, all parts of it
    are refused, and the next step must be another one. With several levels it says nothing: in units of that
    its scores would be so large that rounding takes all others of its message."""
    rng = np.random.default_rng(4)
    center = rng.integers(0, 12, 6000)
    x = rng.standard_normal((6000, 4))
    odds = x @ [1.0, -0.8, 0.6, 0.0] - 1.0
    rows = pl.DataFrame({f"x{k}": each for k, each in enumerate(x.T)}).with_columns(
        airline=pl.Series(np.where((center == 3) & (x[:, 3] > 0), "own", np.resize(others, 6000))),
        died=pl.Series((rng.random(6000) < 1 / (1 + np.exp(-odds))).astype(int)),
        center=pl.Series(center.astype(str)),
    )
    federation = abps.federation(rows, label="died", center="center")
    clean = abps.simulate(federation, "abps-plus", seed=1)
    screen = abps_plus.screen

    def first_time(fields, uploads, reported, state, *rest):
        uploads = np.array(uploads)
        if state.exchanges == 0:
            uploads[federation.centers.index("3")] = np.inf
        return screen(fields, uploads, reported, state, *rest)

    monkeypatch.setattr(abps_plus, "screen", first_time)
    returned = abps.simulate(federation, "abps-plus", seed=1, settings={"robust": "no"})
    assert set(returned.decisions.filter(pl.col("decision") == "excluded")["round"]) == {1}
    assert returned.auroc.mean > clean.auroc.mean - 0.001


def test_half_scores_cannot_hide_or_make_up_much():
    """A member's half scores count as far as its information and the usual deviation explain; what two halves
    of the same rows do not say does not count."""
    rng = np.random.default_rng(0)
    information = rng.uniform(5, 50, 40)
    halves = rng.standard_normal((40, 2, 30)) * np.sqrt(information / 2)[:, None, None]
    whitening = Whitening(np.eye(30), np.eye(30))
    honest = plus_filter.bounded_halves(halves, information, whitening)
    assert (honest == halves).all()
    halves[0] *= 1e4
    halves[1, 1] = -halves[1, 0]
    found = plus_filter.bounded_halves(halves, information, whitening)
    assert np.linalg.norm(found[0], axis=1).max() == pytest.approx(
        1.5 * np.sqrt(30 * information[0] / 2), rel=0.2
    )
    assert (found[1] == 0).all() and (found[2:] == halves[2:]).all()
    claimed = plus_filter.bounded_information(np.append(information, 1e9), np.append(information, 20.0) * 10)
    assert claimed[:40] == pytest.approx(information) and claimed[40] == pytest.approx(2.5 * 20)


def test_an_odd_center_rests():
    federation = load("icu-synthetic:heterogeneity=8,centers=13,group_sizes=12+1,stays=9000,seed=2")
    run = abps.simulate(federation, "abps-plus", seed=1, settings={"structure": "no"})
    alone = abps.simulate(federation, "local-best", seed=1)
    assert run.auroc.mean > alone.auroc.mean


def test_a_center_whose_level_of_risk_alone_differs_does_not_rest(monkeypatch):
    """It would if its intercept were bound to those of the others: then it would lose what they know."""
    rng = np.random.default_rng(3)
    sizes = rng.lognormal(4.7, 0.5, 90).astype(int) + 60
    center, x = np.repeat(np.arange(90), sizes), rng.standard_normal((sizes.sum(), 4))
    sicker = np.argsort(sizes)[75]
    odds = x @ np.array([0.8, 0.6, -0.4, 0.2]) - 2.0 + 4.0 * (center == sicker)
    died = (rng.random(len(odds)) < 1 / (1 + np.exp(-odds))).astype(int)
    rows = pl.DataFrame({f"x{k}": each for k, each in enumerate(x.T)} | {"died": died, "center": center})
    federation = abps.federation(rows, label="died", center="center")
    run = abps.simulate(federation, "abps-plus", seed=1)
    monkeypatch.setattr(plus_own, "ALONE_INTERCEPT_VARIANCE", 1e-9)
    bound = abps.simulate(federation, "abps-plus", seed=1)
    rested = [
        each.decisions.filter(pl.col("decision") == "rested")["center"].to_list() for each in (run, bound)
    ]
    assert rested == [[], [str(sicker)]]


def test_masked_sums_give_the_same_model(small):
    plain = abps.simulate(small, "abps-plus", seed=3, settings={"structure": "no", "robust": "no"})
    masked = abps.simulate(small, "abps-plus", seed=3, settings={"secure": "yes"})
    assert masked.auroc.mean == pytest.approx(plain.auroc.mean, abs=0.01)
    assert masked.bytes.control > plain.bytes.control


def test_classes_numbers_and_times():
    rng = np.random.default_rng(0)
    center = np.repeat([f"h{k}" for k in range(8)], 150)
    x = rng.standard_normal((1200, 3))
    score = x @ [1.0, -0.7, 0.0] + rng.standard_normal(1200)
    frame = pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "hospital": center})
    numbers = frame.with_columns(y=pl.Series(score))
    run = abps.simulate(
        abps.federation(numbers, label="y", center="hospital", outcome="continuous"), "abps-plus", seed=1
    )
    assert run.score.mean > 0.4  # R²; the truth has .6
    classes = frame.with_columns(
        y=pl.Series(np.array(["low", "mid", "high"])[np.digitize(score, [-0.8, 0.8])])
    )
    run = abps.simulate(
        abps.federation(classes, label="y", center="hospital", outcome="classes"), "abps-plus", seed=1
    )
    assert run.score.mean > 0.75


def test_the_chance_that_collaboration_helps_is_calibrated_on_average(monkeypatch):
    """Worlds alike, mild, and with a risk of their own each; alone a hospital fits the same form."""
    monkeypatch.setattr(plus_own, "NEXT_PATIENTS", 37.0)  # test rows of a center
    said, happened = [], []
    for seed, knobs in enumerate(("heterogeneity=0", "heterogeneity=1", "heterogeneity=2,groups=40") * 2, 21):
        federation = load(f"icu-synthetic:{knobs},centers=40,stays=10000,seed={seed}")
        run = abps.simulate(federation, "abps-plus", seed=seed)
        data = prepare(federation, seed, standardise="common", splines=True)
        local = local_rows(data, np.random.default_rng(0).random(len(data.own.y)))
        common = CommonModel(np.zeros(local.rows.shape), np.zeros(local.rows.shape))
        rows, group = local.rows, local.group.reshape(local.rows.shape)
        fits = [alone(rows.design(i), rows.outcomes(i), rows.family, group, common) for i in range(data.size)]
        own = np.stack([each.model.ravel() for each in fits])
        learner = learner_for(data, Training.of("gam"), seed)
        labels = labels_of(data.test)
        together, apart = (
            log_loss(learner.logits(models, data.test), labels)
            for models in (run.models, as_models(own, local))
        )
        chance = run.decisions.filter(pl.col("decision") == "collaboration")["score"].to_list()
        assert len(chance) == 1
        said.append(chance[0])
        happened.append(np.nanmean(together < apart))
    assert abs(np.mean(said) - np.mean(happened)) < 0.05


#: What is wrong with one center, and what the audit trail or the list of centers left out says of it.
FAULTS = {
    "no events": "fewer than 3 positive rows",
    "three rows": "rows",
    "separable": "column x2 separates its outcomes",
    "constant": "column x0 is constant",
    "all missing": "column x1 is constant",
    "300 levels": "",
    "heavy tails": "column x1 has values far out",
    "half of all rows": "of all rows",
}


def _with_fault(fault):
    """Eight hospitals that are alike, and a bad one."""
    rng = np.random.default_rng(6)
    x, center = rng.standard_normal((2400, 3)), rng.integers(0, 8, 2400)
    y = (rng.random(2400) < 1 / (1 + np.exp(-x @ [1.0, -0.7, 0.3]))).astype(int)
    rows = {"three rows": 3, "half of all rows": 2400}.get(fault, 320)
    bad, worse = rng.standard_normal((rows, 3)), (rng.random(rows) < 0.4).astype(int)
    code = ["a", "b"] * 1200 + (
        ["a"] * rows if fault != "300 levels" else [f"c{k % 300}" for k in range(rows)]
    )
    if fault == "separable":
        worse = (bad[:, 2] > 0).astype(int)
    elif fault in ("no events", "three rows"):
        worse[:] = 0
    elif fault == "constant":
        bad[:, 0] = 0.0
    elif fault == "all missing":
        bad[:, 1] = np.nan
    elif fault == "heavy tails":
        bad[:, 1] = rng.standard_cauchy(rows) ** 3
    every = np.concatenate([x, bad])
    columns = {f"x{k}": pl.Series(every[:, k]).fill_nan(None) for k in range(3)}
    names = [f"h{k}" for k in center] + ["bad"] * rows
    return pl.DataFrame(columns | {"code": code, "y": np.concatenate([y, worse]), "h": names})


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_center_harms_nobody_and_is_named(fault):
    frame = _with_fault(fault)
    with_it = abps.simulate(abps.federation(frame, label="y", center="h"), "abps-plus", seed=2)
    clean = frame.filter(pl.col("h") != "bad")
    without = abps.simulate(abps.federation(clean, label="y", center="h"), "abps-plus", seed=2)
    assert np.isfinite(with_it.models).all()
    others = [with_it.auroc.per_center[name] for name in without.auroc.per_center]
    assert np.mean(others) > without.auroc.mean - 0.01
    warned = with_it.decisions.filter((pl.col("decision") == "warning") & (pl.col("center") == "bad"))
    said = [*warned["reason"], *(each.reason for each in with_it.data.left_out if each.center == "bad")]
    assert any(FAULTS[fault] in each for each in said) or not FAULTS[fault]
    assert without.decisions.filter(pl.col("decision") == "warning").is_empty()


def test_a_mean_without_ones_own_rows_is_that_of_the_others():
    """Least squares of centers with one design: what is left when one of them is taken away is exact."""
    rng = np.random.default_rng(2)
    x, outcomes = rng.standard_normal((30, 3)), rng.standard_normal((5, 30))
    each = np.linalg.lstsq(x, outcomes.T, rcond=None)[0].T
    mean, score = each.mean(axis=0), (outcomes - x @ each.mean(axis=0)) @ x
    nothing = SimpleNamespace(by_name={}, number=np.zeros(5, dtype=int))
    fit = SimpleNamespace(point=mean, curvature=5 * x.T @ x, penalty=np.zeros(3), centers=5)
    state = SimpleNamespace(fit=fit, clusters=nothing, rows=150.0)
    local = SimpleNamespace(rows=SimpleNamespace(n=5, sizes=np.full(5, 30)))
    found = plus_own.without_own(state, local, score)
    others = (5 * mean - each) / 4
    assert found == pytest.approx(others, abs=1e-12)


def test_members_are_as_certain_of_their_cluster_as_they_may_be(severe):
    """Of what peers are said to be in one's cluster, about so much is of one's own kind."""
    run = abps.simulate(severe, "abps-plus", seed=3)
    kind = {name: name.split("/")[0] for name in severe.centers}
    said, right = [], []
    for name, share in run.partners.per_center.items():
        if share.peers:
            most = Counter(kind[peer] for peer in share.peers).most_common(1)[0][0]
            said.append(share.certainty)
            right.append(kind[name] == most)
    assert len(said) > 30 and all(0 < each <= 1 for each in said)
    assert np.mean(said) == pytest.approx(np.mean(right), abs=0.1)
