"""A server that sees masked sums alone: the same models within the rounding of a millionth, and the bytes."""

from __future__ import annotations

import numpy as np
import pytest

import abps
from abps.core.errors import RequestError
from abps.data.prepare import prepare
from abps.data.scales import HistogramSum, outcome_size, scales_size
from abps.data.split import assign_splits
from abps.data.table import federate
from abps.lab.synthetic import builtin_table
from abps.methods.references import GlmExact
from abps.methods.star import masked, summands
from abps.privacy import fixed_point
from abps.privacy.fixed_point import masked_bytes
from federations import outcome_of, tiny

SMALL = {"model": "linear", "standardise": "own", "epochs": 1}


def run(method, secure, rounds=3, **settings):
    data = tiny(sizes=(120, 90, 60, 40, 80), width=6)
    told = SMALL | settings | ({"secure": "yes"} if secure else {})
    return abps.simulate(data, method, seed=3, rounds=rounds, settings=told)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedavg", {}),
        ("fedavg", {"weighting": "uniform", "private_layers": "0"}),
        ("fedavgm", {}),
        ("feddyn", {}),
        ("scaffold", {}),
        ("fedprox", {}),
        ("ditto", {}),
    ],
)
def test_models_are_those_of_the_plain_server(method, settings):
    plain, hidden = run(method, False, **settings), run(method, True, **settings)
    np.testing.assert_allclose(hidden.models, plain.models, atol=2e-5)
    assert hidden.bytes.edge != plain.bytes.edge or method == "scaffold"
    assert hidden.bytes.control == 0


def test_the_sum_is_what_masked_centers_arrive_at():
    secure_sum = pytest.importorskip("abps.privacy.secure_sum")
    sent, sizes = (
        (*(np.random.default_rng(k).normal(size=(4, k)).astype(np.float32) for k in (7, 3)),),
        np.array([100.0, 20.0, 7.0, 51.0]),
    )
    rows = summands(sent, sizes, "size")
    names = tuple("abcd")
    members = {name: secure_sum.Member(name, "x") for name in names}
    keys = {name: member.public for name, member in members.items()}
    sealed = {name: member.meet(keys) for name, member in members.items()}
    for name, member in members.items():
        member.keep({sender: each[name] for sender, each in sealed.items() if sender != name})
    group = secure_sum.Group(names, "x/1")
    rings = [members[name].masked(group, fixed_point.encode(row, 4)) for name, row in zip(names, rows)]
    total = fixed_point.decode(members["a"].verified(group, np.sum(rings, axis=0, dtype=np.uint64)))
    assert np.array_equal(total, fixed_point.exact_sum(rows))
    means, say = masked(sent, sizes, "size")
    np.testing.assert_allclose(means[1][0], (sizes / sizes.sum()) @ sent[1].astype(np.float64), atol=1e-6)
    assert float(say[0]) == sizes.sum()


@pytest.fixture(scope="module")
def icu():
    frame, roles = builtin_table("icu-synthetic:centers=6,stays=900")
    return federate(frame, roles, "icu", 1)


def test_the_pooled_regression_follows_from_masked_sums(icu):
    plain, hidden = (
        abps.simulate(icu, "glm-exact", seed=3, rounds=25, settings={"secure": secure, "standardise": "own"})
        for secure in ("no", "yes")
    )
    assert isinstance(abps.methods.catalog.find("glm-exact"), GlmExact)
    assert hidden.auroc.mean == pytest.approx(plain.auroc.mean, abs=1e-4)
    np.testing.assert_allclose(hidden.models, plain.models, atol=1e-3)


def test_common_scales_follow_from_masked_counts(icu):
    told = [
        prepare(icu, 3, standardise="common", histograms=HistogramSum(masked=masked))
        for masked in (False, True)
    ]
    plain, counted = (data.book.statistics for data in told)
    assert plain == counted and told[1].counted.masked and told[0].agreed < told[1].agreed
    settings = {"model": "gam", "epochs": 1, "secure": "yes"}
    made = abps.simulate(icu, "fedavg", seed=3, rounds=2, settings=settings)
    # Three counts of all columns.
    assert made.bytes.control == told[1].agreed
    assert told[1].agreed > 3 * masked_bytes(6, 30 * len(counted))


@pytest.mark.parametrize("spec", ["survival", "continuous"])
@pytest.mark.parametrize("standardise", ["common", "own"])
def test_what_is_agreed_of_an_outcome_follows_from_masked_counts(spec, standardise):
    fed = outcome_of(spec, rows=900)
    counted = prepare(fed, 3, standardise=standardise, histograms=HistogramSum(masked=True))
    mine, theirs = counted.outcome, fed.outcome.settled(fed.label[assign_splits(fed, 3) == 0])
    if spec == "continuous":
        assert abs(mine.level - theirs.level) < 0.1 * theirs.scale
        assert mine.scale == pytest.approx(theirs.scale, rel=0.15)
    else:
        # The ends of intervals are ends of bins; as many events lie between them.
        assert len(mine.grid) == pytest.approx(len(theirs.grid), abs=3)
        middle = np.interp(0.5, np.linspace(0, 1, len(mine.grid)), mine.grid)
        assert middle == pytest.approx(
            np.interp(0.5, np.linspace(0, 1, len(theirs.grid)), theirs.grid), rel=0.3
        )
    columns = 2 if spec == "survival" else 1
    columns += len(counted.book.numbers) if standardise == "common" else 0
    masks = sum(masked_bytes(5, columns * bins) for bins in (131 + 1, 42, 34))
    assert counted.agreed == masks + 5 * (
        (scales_size(columns - (2 if spec == "survival" else 1))) + outcome_size(mine)
    )
    made = abps.simulate(fed, "fedavg", 3, 1, settings={"secure": "yes", "model": "linear", "epochs": 1})
    assert np.isfinite(made.models).all()


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        ("fedavg", {"aggregate": "median"}, "more than the sum"),
        ("ifca", {}, "more than the sum"),
        ("bnn", {"model": "mlp"}, "more than the sum"),
        ("abps-pq-k1", {}, "nothing of this method is a sum"),
        ("local", {}, "nothing of this method is a sum"),
    ],
)
def test_what_needs_more_than_sums_is_refused(method, settings, words):
    with pytest.raises(RequestError, match=words):
        run(method, True, **settings)


def test_two_centers_have_no_secret_sum():
    with pytest.raises(RequestError, match="fewer than 3"):
        abps.simulate(tiny(sizes=(60, 60), width=4), "fedavg", 3, 1, settings=SMALL | {"secure": "yes"})


def test_a_budget_of_bytes_counts_what_masks_take():
    made = run("fedavg", True, rounds=4, budget="700")
    assert made.rest.budget > 0
