"""Runs that go on: callbacks, checkpoints, warm starts, and centers drawn for every round."""

import numpy as np
import polars as pl
import pytest

import abps
from abps.core import streams
from abps.core.errors import RequestError
from abps.methods.catalog import CATALOG
from abps.methods.settings import configure
from abps.methods.star import StarMethod


@pytest.fixture(scope="module")
def icu():
    return abps.load("icu-synthetic:centers=8,stays=1600")


class Killed(Exception):
    """The process ends here."""


@pytest.mark.parametrize("method", ["fedavg", "fedavgm", "scaffold", "abps-pq-k1", "random-k1", "abps-plus"])
def test_an_interrupted_run_goes_on_to_the_same_result(icu, method, tmp_path):
    rounds = None if method == "abps-plus" else 4
    whole = abps.simulate(icu, method, rounds=rounds)
    seen = []

    def die(report):
        seen.append(report.round)
        if report.round == 2:
            raise Killed

    file = tmp_path / "run.checkpoint"
    with pytest.raises(Killed):
        abps.simulate(icu, method, rounds=rounds, checkpoint=file, callback=die)
    again = abps.simulate(
        icu, method, rounds=rounds, checkpoint=file, callback=lambda r: seen.append(r.round)
    )
    assert seen == list(range(1, whole.rounds + 1))
    assert np.array_equal(whole.models, again.models) and whole.history == again.history
    assert whole.decisions.equals(again.decisions) and whole.center_history().equals(again.center_history())
    assert whole.bytes == again.bytes


def test_a_checkpoint_of_another_run_or_a_damaged_one_is_refused(icu, tmp_path):
    file = tmp_path / "run.checkpoint"
    abps.simulate(icu, "fedavg", rounds=1, checkpoint=file)
    with pytest.raises(RequestError, match="another run"):
        abps.simulate(icu, "fedavg", rounds=1, seed=12, checkpoint=file)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(RequestError, match="cannot be read"):
        abps.simulate(icu, "fedavg", rounds=1, checkpoint=file)
    with pytest.raises(RequestError, match="attacks"):
        abps.simulate(icu, "fedavg", rounds=1, attack="sign-flip:share=0.3", checkpoint=tmp_path / "x")


def test_a_callback_sees_every_round_and_may_end_the_run(icu):
    reports = []

    def watch(report):
        reports.append(report)
        return report.round == 3

    run = abps.simulate(icu, "fedavg", rounds=9, callback=watch)
    assert run.rounds == 3 and [r.round for r in reports] == [1, 2, 3]
    last = run.center_history().filter(round=3)
    assert np.array_equal(reports[-1].validation, last["validation"].to_numpy())
    assert sum(r.bytes for r in reports) == run.bytes.all
    assert np.array_equal(reports[-1].models, run.models) and reports[0].centers == icu.centers


def test_histories_are_frames_also_in_folds(icu):
    run = abps.simulate(icu, "fedavg", rounds=3)
    rounds = run.round_history()
    assert rounds.columns == ["round", "validation", "test", "bytes", "rest"] and rounds.height == 3
    assert rounds["bytes"].sum() == run.history.directed_bytes[-1] + run.history.control_bytes[-1]
    means = (
        run.center_history()
        .with_columns(pl.col("test").fill_nan(None))
        .select("round", "test")
        .group_by("round")
        .mean()
    )
    assert np.allclose(means.sort("round")["test"], rounds["test"])
    ((_, folded),) = abps.compare(icu, ["fedavg"], [1], rounds=2, folds=3, references=False).runs
    assert folded.center_history().height == 3 * 2 * icu.size


def test_a_warm_start_begins_where_the_other_run_ended(icu, tmp_path):
    first = abps.simulate(icu, "fedavg", rounds=6)
    first.save(tmp_path / "first")
    warm = abps.simulate(icu, "fedavg", rounds=1, warm_start=abps.load_run(tmp_path / "first"))
    cold = abps.simulate(icu, "fedavg", rounds=1)
    moved = [np.linalg.norm(run.models[0] - first.models[0]) for run in (warm, cold)]
    assert 0 < moved[0] < 0.5 * moved[1]
    again = abps.simulate(icu, "fedavg", rounds=1, warm_start=first.models[:1])
    assert np.array_equal(warm.models, again.models)
    for method, model, says in [("fedavg", "linear", "shape"), ("abps-plus", "linear", "without a start")]:
        with pytest.raises(RequestError, match=says):
            abps.simulate(icu, method, rounds=1, model=model, warm_start=first)


def test_sampled_centers_are_those_of_federated_averaging_written_out(icu):
    share, rounds, models = 0.4, 3, []
    run = abps.simulate(
        icu,
        "fedavg",
        rounds=rounds,
        settings={"participation": share},
        callback=lambda report: models.append(report.models.copy()),
    )
    count, ids = 3, streams.center_ids(icu.centers)
    history = run.center_history()
    for t in range(1, rounds + 1):
        drawn = set(np.argsort(streams.uniforms(11, "participation", t, ids))[:count].tolist())
        quiet = set(history.filter(round=t, rest="quiet")["center"])
        assert quiet == {name for i, name in enumerate(icu.centers) if i not in drawn}
        assert np.ptp(models[t - 1], axis=0).max() == 0  # all have the server's model
    full = abps.simulate(icu, "fedavg", rounds=rounds)
    assert run.bytes.directed * 8 == full.bytes.directed * count
    alone = abps.simulate(icu, "local", rounds=1)  # the first round: local training alone
    chosen = np.argsort(streams.uniforms(11, "participation", 1, ids))[:count]
    sizes = prepared_sizes(icu)[chosen]
    expected = (alone.models[chosen].astype(np.float64) * sizes[:, None]).sum(0) / sizes.sum()
    assert np.allclose(models[0][0], expected, atol=1e-6)


def prepared_sizes(federation):
    from abps.data.prepare import prepare

    config = configure("fedavg", {"model": "linear"})
    return prepare(federation, 11, standardise=config.training.standardise).train.sizes.astype(float)


@pytest.mark.parametrize("method", [n for n in CATALOG if isinstance(configure(n), StarMethod)])
def test_every_star_method_takes_part_of_the_centers(icu, method):
    run = abps.simulate(icu, method, rounds=2, settings={"participation": 0.5})
    assert run.rest.share == 0.5 and run.main.scored_centers > 0


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_a_share_is_a_share(share):
    with pytest.raises(RequestError, match="participation"):
        configure("fedavg", {"participation": share})
