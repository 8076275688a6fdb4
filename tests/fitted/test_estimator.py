"""The classifier is a citizen of scikit-learn, and its probabilities are those of each row's hospital."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from scipy.special import expit
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import abps
from abps.core.errors import RequestError
from abps.data.prepare import prepare
from abps.data.reading import frame_of
from abps.methods.settings import configure
from abps.models.learners import learner_for

HOSPITALS = np.array(["north", "south", "west"])


@parametrize_with_checks([abps.ABPSClassifier(), abps.ABPSClassifier(model="linear")])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def rows():
    """Three hospitals whose levels differ: (X, y, hospitals, the true probabilities)."""
    rng = np.random.default_rng(3)
    x, where = rng.normal(size=(3000, 3)), np.arange(3000) % 3
    p = expit(x @ [1.0, -0.5, 0.0] + np.array([-2.0, 0.0, 2.0])[where])
    return x, (rng.random(3000) < p).astype(int), HOSPITALS[where], p


def test_every_hospital_has_its_own_model_and_strangers_the_common_one(rows):
    x, y, hospital, p = rows
    fitted = abps.ABPSClassifier().fit(x, y, groups=hospital)
    assert fitted.centers_.tolist() == HOSPITALS.tolist() and fitted.bytes_ > 0
    assert np.abs(fitted.predict_proba(x, groups=hospital)[:, 1] - p).mean() < 0.03
    level = [fitted.predict_proba(np.zeros((1, 3)), groups=[name])[0, 1] for name in HOSPITALS]
    common = fitted.predict_proba(np.zeros((1, 3)))[0, 1]
    assert level[0] < 0.25 < common < 0.75 < level[2]
    assert fitted.predict_proba(np.zeros((1, 3)), groups=["elsewhere"])[0, 1] == common


def test_one_hospital_alone_gets_a_logistic_regression():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(5000, 2))
    y = np.where(rng.random(5000) < expit(x @ [1.0, -1.0] - 1), "died", "lived")
    ours = abps.ABPSClassifier(model="linear").fit(x, y)
    theirs = LogisticRegression(C=1e6).fit(x, y)
    assert ours.classes_.tolist() == theirs.classes_.tolist()
    assert np.abs(ours.predict_proba(x) - theirs.predict_proba(x)).max() < 0.01


@pytest.mark.parametrize("seed", [6, 12])
def test_several_classes_agree_with_a_multinomial_regression(seed):
    """Rounded scores have no part along the sum of all classes, where there is no curvature."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(6000, 2))
    y = np.argmax(x @ np.array([[1, 0, -1], [0, 1, 0]]) + rng.gumbel(size=(6000, 3)), axis=1)
    plain = abps.ABPSClassifier(model="linear", settings={"interactions": False})
    ours = plain.fit(x, y).predict_proba(x)
    assert np.abs(ours - LogisticRegression(C=1e6).fit(x, y).predict_proba(x)).max() < 0.02


def frame(rows) -> pd.DataFrame:
    x, y, hospital, _ = rows
    made = pd.DataFrame({"age": x[:, 0], "sex": np.where(x[:, 1] > 0, "f", "m"), "hospital": hospital})
    made.loc[::7, "age"] = np.nan
    return made.assign(died=y)


def test_frames_with_names_and_gaps_give_the_same_from_pandas_and_polars(rows):
    table = frame(rows)
    made = abps.ABPSClassifier(center="hospital")
    one = made.fit(table.drop(columns="died"), table["died"]).predict_proba(table.drop(columns="died"))
    other = pl.DataFrame(table.to_dict(orient="list")).with_columns(pl.col("age").fill_nan(None))
    two = clone(made).fit(other.drop("died"), other["died"]).predict_proba(other.drop("died"))
    assert np.array_equal(one, two)
    assert made.feature_names_in_.tolist() == ["age", "sex", "hospital"]


def test_pipelines_and_splitters_of_whole_hospitals_need_no_routing(rows):
    x, y, hospital, _ = rows
    table = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "hospital": hospital})
    scaled = ColumnTransformer(
        [("scale", StandardScaler(), ["a", "b"])], remainder="passthrough", verbose_feature_names_out=False
    ).set_output(transform="pandas")
    line = make_pipeline(scaled, abps.ABPSClassifier(center="hospital"))
    within = cross_val_score(line, table, y, cv=KFold(3), scoring="roc_auc")
    left_out = cross_val_score(line, table, y, groups=hospital, cv=GroupKFold(3), scoring="roc_auc")
    assert within.min() > 0.85 > left_out.max() > 0.7  # the level of a hospital nobody saw is unknown


def test_groups_are_routed_to_fit_and_score(rows):
    x, y, hospital, _ = rows
    with sklearn.config_context(enable_metadata_routing=True):
        made = abps.ABPSClassifier().set_fit_request(groups=True).set_score_request(groups=True)
        routed = cross_val_score(made, x, y, params={"groups": hospital}, cv=KFold(3))
        plain = cross_val_score(abps.ABPSClassifier(), x, y, cv=KFold(3))
    assert routed.min() > plain.max() + 0.05


@pytest.mark.parametrize(
    "settings, arguments, says",
    [
        ({}, {"groups": ["a", None, "b", "a"]}, "1 rows have no hospital"),
        ({}, {"groups": ["a", "b"]}, "inconsistent"),
        ({"center": "ward"}, {}, "no such column"),
        ({"center": 0}, {"groups": ["a"] * 4}, "give one of them"),
        ({"model": "mlp"}, {}, "choose linear or gam"),
    ],
)
def test_wrong_requests_say_what_to_do(settings, arguments, says):
    x, y = [[1.0, 2.0], [2.0, 1.0], [3.0, 5.0], [4.0, 0.0]], [0, 1, 0, 1]
    with pytest.raises(ValueError, match=says):
        abps.ABPSClassifier(**settings).fit(x, y, **arguments)


def test_one_class_is_refused():
    with pytest.raises(RequestError, match="one class alone"):
        abps.ABPSClassifier().fit([[1.0], [2.0]], [1, 1])


def test_predictions_with_pairs_of_columns_are_those_of_the_engine():
    rng = np.random.default_rng(8)
    x, where = rng.normal(size=(6000, 3)), np.arange(6000) % 4
    chance = expit(x[:, 0] + x[:, 1] - 1.5 * np.minimum(x[:, 0], x[:, 1]) + where / 2)
    y = (rng.random(6000) < chance).astype(int)
    ours = abps.ABPSClassifier(seed=3).fit(x, y, groups=where)
    said = ours.predict_proba(x, groups=where)[:, 1]
    assert np.abs(said - chance).mean() < 0.05
    names, how = tuple("abcd"), configure("abps-plus").training
    made = abps.Federation("X", frame_of(x), y.astype(float), where.astype(np.int32), names)
    data = prepare(made, 3, None, np.zeros(6000, np.int8), how.standardise, how.splines)
    assert ours.models_.shape[1] > data.width + 1  # pairs are there
    theirs = learner_for(data, how, 3).logits(ours.models_[:-1].astype(np.float32), data.train)
    assert np.allclose(expit(theirs.values), said[data.train.place], atol=1e-4)
