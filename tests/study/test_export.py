"""What MLflow and TensorBoard read back is what the runs say."""

import numpy as np
import pytest

import abps
from abps.study.export import to_mlflow, to_tensorboard


@pytest.fixture(scope="module")
def study():
    federation = abps.load("icu-synthetic:centers=6,stays=900")
    return abps.compare(federation, ["local", "fedavg"], [11], rounds=3, folds=1, references=False)


def test_mlflow_has_every_run_with_settings_rounds_and_scores(study, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a server's stand-in
    mlflow = pytest.importorskip("mlflow")
    uri = f"file:{tmp_path / 'records'}"
    ids = study.to_mlflow("hospitals", uri)
    assert len(ids) == 2 and len(to_mlflow([("again", study.runs[0][1])], "hospitals", uri)) == 1
    client = mlflow.MlflowClient(uri)
    for own, (planned, run) in zip(ids, study.runs):
        there = client.get_run(own)
        assert there.data.params["method"] == planned.label and there.data.params["seed"] == "11"
        assert int(there.data.params["config.stop.rounds"]) == 3
        assert there.data.metrics["mean/AUROC"] == pytest.approx(run.auroc.mean)
        rounds = client.get_metric_history(own, "round/validation")
        assert [(m.step, m.value) for m in rounds] == list(enumerate(run.history.validation_auroc, 1))
        assert there.data.metrics["bytes/all"] == run.bytes.all
        assert there.info.status == "FINISHED"


def test_a_place_that_mlflow_refuses_gets_one_sentence(study, tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with pytest.raises(abps.RequestError, match="give uri= of a tracking server"):
        study.to_mlflow("hospitals", "nonsense://nowhere")


def test_tensorboard_has_every_round(study, tmp_path):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    places = study.to_tensorboard(tmp_path)
    assert len(places) == 2 == len(to_tensorboard([(p.label, r) for p, r in study.runs], tmp_path / "again"))
    for place, (_, run) in zip(places, study.runs):
        events = loader.EventAccumulator(str(place)).Reload()
        assert [e.step for e in events.Scalars("round/test")] == [1, 2, 3]
        assert np.allclose([e.value for e in events.Scalars("round/test")], run.history.auroc)
        center = next(name for name, value in run.auroc.per_center.items() if np.isfinite(value))
        (last,) = events.Scalars(f"center/{center}/AUROC")
        assert last.value == pytest.approx(run.auroc.per_center[center])
