"""Linear and additive models: compiled steps are those of the plain loop, and end where scikit-learn does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import abps
from abps.core.errors import RequestError
from abps.data.federation import Federation
from abps.data.prepare import prepare
from abps.data.scales import HistogramSum, Scale, sum_histograms
from abps.data.splines import bends, design_of, terms_of
from abps.methods.catalog import CATALOG
from abps.methods.settings import configure
from abps.models.learners import learner_for
from abps.models.metrics import labels_of, log_loss
from abps.models.models import Linear
from abps.models.training import MODELS, ModelSpec, Training, find_model
from federations import tiny


def learners(data, training, seed=3):
    return (
        learner_for(data, training, seed),
        learner_for(data, training, seed, plain=True),
    )


def test_a_center_takes_the_same_steps_alone_as_among_others():
    data = tiny()
    training = Training.of("linear")
    together = learner_for(data, training, 3)
    w = np.zeros((data.size, data.width + 1), dtype=np.float32)
    after = together.train(w, 1)
    for i in range(data.size):
        alone = learner_for(data.only(i), training, 3)
        np.testing.assert_allclose(alone.train(w[i : i + 1], 1)[0], after[i], rtol=0, atol=0)


def scale_of(values: np.ndarray) -> Scale:
    found, _ = sum_histograms(values[None], np.array([0, len(values)]), ("a",), HistogramSum())
    return found.scales(0.0)[0]


def test_terms_span_the_piecewise_linear_functions_inside_and_have_logarithmic_tails():
    values = np.random.default_rng(0).normal(10.0, 2.0, 900)
    scale = scale_of(values)
    terms = terms_of(scale)
    low, high = terms.edges
    z = np.linspace(low, high, 300)
    made = np.c_[np.ones(300), terms.of(z)]
    # Any function with bends at the knots alone is a combination of the terms, and of nothing else.
    target = bends(z, terms.knots) @ np.arange(1.0, len(terms.knots) + 2)
    fit = np.linalg.lstsq(made, target, rcond=None)[0]
    np.testing.assert_allclose(made @ fit, target, atol=1e-6)
    assert terms.matrix.shape == (4, 4) and not made[:, 5:].any()
    beyond = np.array([0.5, 3.0, 7.0])
    above, below, edge = terms.of(high + beyond), terms.of(low - beyond), terms.of(terms.edges)
    np.testing.assert_allclose(above[:, :4], np.tile(edge[1, :4], (3, 1)))
    np.testing.assert_allclose(below[:, :4], np.tile(edge[0, :4], (3, 1)))
    np.testing.assert_allclose(above[:, 4:], np.c_[np.zeros(3), np.log1p(beyond)])
    np.testing.assert_allclose(below[:, 4:], np.c_[np.log1p(beyond), np.zeros(3)])


def test_terms_are_components_that_shrink():
    scale = scale_of(np.random.default_rng(0).gamma(2.0, 3.0, 2000))
    z = scale.read(np.array(scale.quantiles))
    made = terms_of(scale).of(z)[:, :-2]  # without tails
    cross = made.T @ made / len(z)
    np.testing.assert_allclose(cross, np.diag(np.diag(cross)), atol=1e-8)
    assert np.diag(cross)[0] == pytest.approx(1.0) and (np.diff(np.diag(cross)) < 0).all()


def test_few_distinct_values_make_few_terms_or_none():
    rng = np.random.default_rng(0)
    assert terms_of(Scale(0.0, 0.0, 0.0)) is None
    assert terms_of(Scale(70.0, 10.0, 70.0)) is None  # a range alone has no quantiles
    two = terms_of(scale_of(rng.integers(0, 2, 500).astype(float)))
    three = terms_of(scale_of(rng.integers(0, 3, 500).astype(float)))
    assert two is None or np.isfinite(two.matrix).all()
    assert three is None or np.isfinite(three.of(np.linspace(-10, 10, 5))).all()


def test_prepared_with_splines_has_the_terms_of_every_number():
    fed = abps.load("icu-synthetic:centers=6,stays=1500")
    plain = prepare(fed, 11, standardise="common")
    data = prepare(fed, 11, standardise="common", splines=True)
    design = design_of(data.book)
    assert data.columns == design.names and len(design.owner) == data.width
    assert data.plain == plain.width < data.width and data.splines
    np.testing.assert_array_equal(data.test.x, design.of(plain.test.x))
    with pytest.raises(RequestError, match="standardise=common"):
        prepare(fed, 11, splines=True)
    with pytest.raises(RequestError, match="as the model needs it"):
        abps.simulate(plain, "fedavg", model="gam", rounds=1)
    assert abps.simulate(data, "fedavg", model="gam", rounds=1).rounds == 1


@pytest.mark.parametrize("name", list(CATALOG))
def test_every_method_learns_with_every_model(name):
    fed = abps.load("icu-synthetic:centers=8,stays=1600,heterogeneity=4")
    for model in ("gam", "linear"):
        run = abps.simulate(fed, name, seed=11, rounds=2, model=model)
        assert np.isfinite(run.auroc.mean)
        assert run.config["training"]["model"] == model or name == "boosting"  # trees of its own
        assert run.models is None or np.isfinite(run.models).all()
        if run.bytes.edge and name != "glm-exact":  # which sends squares of as many numbers
            assert 0 < run.bytes.vs_fedavg < 0.02


def test_one_private_layer_is_the_intercept():
    fed = abps.load("icu-synthetic:centers=6,stays=1200")
    run = abps.simulate(fed, "fedavg-p", rounds=3, model="gam")
    spread = np.ptp(run.models, axis=0)
    assert (spread[:-1] == 0).all() and spread[-1] > 0
    assert configure("abps-x", {"model": "gam"}).wire.private_layers == 1  # of two; one must be shared
    assert configure("abps-x").wire.private_layers == 2


def test_a_model_brings_its_training_and_settings_replace_it():
    gam = configure("fedavg", {"weight_decay": "0.1", "model": "gam"}).training
    assert (gam.optimizer, gam.weight_decay, gam.standardise) == ("newton", 0.1, "common")
    assert configure("dpsgd", {"model": "gam"}).training.epochs == 1
    assert configure("fedavg", {"model": "gam"}).training.weight_decay is None
    assert configure("fedavg").training == Training() == configure("fedavg", {"model": "mlp"}).training
    with pytest.raises(RequestError, match=r"no model 'gamm' .did you mean 'gam'"):
        configure("fedavg", {"model": "gamm"})
    with pytest.raises(RequestError, match="choose model=gam or model=linear"):
        abps.simulate(tiny(), "fedavg", rounds=1, settings={"optimizer": "newton"})


def test_models_of_one_s_own_by_place_and_by_factory():
    data = tiny()
    by_place = abps.simulate(data, "fedavg", rounds=1, model="abps.models.models:Linear")
    by_factory = abps.simulate(data, "fedavg", rounds=1, model=Linear)
    np.testing.assert_allclose(by_place.models, by_factory.models, rtol=0, atol=0)
    assert by_factory.config["training"]["model"] == "abps.models.models.Linear"
    assert isinstance(find_model("gam"), ModelSpec) and set(MODELS) >= {"mlp", "linear", "gam"}
    with pytest.raises(RequestError, match="is not a model"):
        find_model("math:pi")
    with pytest.raises(RequestError, match="a float was given"):
        find_model(3.0)


def test_bytes_have_one_unit_whatever_the_model():
    fed = abps.load("icu-synthetic:centers=6,stays=1200")
    runs = {m: abps.simulate(fed, "fedavg", rounds=2, model=m) for m in ("mlp", "gam")}
    unit = {m: r.bytes.edge / r.bytes.vs_fedavg for m, r in runs.items()}
    assert unit["gam"] == pytest.approx(unit["mlp"]) and runs["mlp"].bytes.vs_fedavg == pytest.approx(2 / 50)


def hostile() -> Federation:
    """Five centers with a constant, a column that two lack, wild tails, another unit, and 300 levels."""
    rng = np.random.default_rng(7)
    n, center = 600, np.repeat(np.arange(5), 120).astype(np.int32)
    x = rng.normal(size=n)
    unit = 37 + 0.5 * rng.normal(size=n)
    unit[center == 3] = unit[center == 3] * 1.8 + 32
    tails = rng.standard_cauchy(n) ** 3
    tails[5] = 1e300
    gone = np.where(center < 2, np.nan, rng.normal(size=n))
    features = pl.DataFrame(
        {
            "x": x,
            "constant": np.full(n, 4.0),
            "gone": pl.Series(gone).fill_nan(None),
            "tails": tails,
            "unit": unit,
            "levels": [f"level {k}" for k in rng.integers(0, 300, n)],
        }
    )
    label = (rng.random(n) < 1 / (1 + np.exp(1 - 2 * x))).astype(np.int8)
    return Federation("hostile", features, label, center, tuple(f"h{i}" for i in range(5)))


#: Every model that is built in, by both scales; smooth terms have the common one alone.
SCALED = [(m, s) for m in MODELS for s in ("own", "common") if s == "common" or "gam" not in m]


@pytest.mark.parametrize(("model", "standardise"), SCALED)
def test_hostile_columns_leave_every_model_finite(model, standardise):
    settings = {"model": model, "standardise": standardise}
    for method in ("local", "fedavg", "random-k1", *(["abps-plus"] if model in ("linear", "gam") else [])):
        run = abps.simulate(hostile(), method, rounds=5, settings=settings)
        assert np.isfinite(run.models).all() and np.isfinite(run.auroc.mean)
        assert run.auroc.mean > 0.6 or model == "mlp"


def test_the_best_round_by_validation_loss_is_restored():
    fed = abps.load("icu-synthetic:centers=6,stays=1200")
    hasty = {"metric": "loss", "restore_best": "yes", "epochs": "1", "weight_decay": "0"}
    run = abps.simulate(fed, "local", rounds=8, model="gam", settings=hasty)
    data = prepare(fed, 11, standardise="common", splines=True)
    training = Training.of("gam", epochs=1, weight_decay=0.0)
    learner = learner_for(data, training, 11)
    w, losses, kept = np.zeros((data.size, data.width + 1), dtype=np.float32), [], []
    for t in range(1, 9):
        w = learner.train(w, t)
        kept.append(w)
        losses.append(np.nanmean(log_loss(learner.logits(w, data.validation), labels_of(data.validation))))
    assert np.argmin(losses) < 7  # it overfits, so that there is something to choose
    np.testing.assert_allclose(run.models, kept[int(np.argmin(losses))], rtol=0, atol=0)
    assert run.auroc.mean == pytest.approx(run.auroc.at_best_validation)


def test_linear_models_are_trained_without_pytorch():
    script = (
        "import sys\nsys.path.insert(0, 'tests')\nfrom federations import tiny\n"
        "from abps.models.learners import learner_for\nfrom abps.models.training import Training\n"
        "learner = learner_for(tiny((60, 40)), Training.of('linear'), 1)\n"
        "print(learner.train(learner.start[None].repeat(2, 0), 1).any(), 'torch' in sys.modules)\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "False"]
