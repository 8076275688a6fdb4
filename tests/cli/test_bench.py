"""``abps bench``: the form of its answer (never its speed)."""

import json

import numpy as np
import pytest

from abps.cli.main import main
from abps.core.arrays import repeated
from abps.lab import speed as bench
from abps.models.training import Training


def test_bench_prints_what_the_contract_names(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["bench", "--data", "uniform:6x40x5", "--turns", "1", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert not stop.value.code
    for key in (
        "center_rounds_per_s",
        "loop_center_rounds_per_s",
        "ratio_to_loop",
        "useful_gflops",
        "sgemm_gflops",
        "fraction_of_roof",
        "peak_mb",
    ):
        assert found[key] > 0
    assert (found["centers"], found["rows"], found["features"]) == (6, 240, 5)


def test_the_scale_of_selection_is_told_with_its_memory(capsys, monkeypatch):
    monkeypatch.setattr(bench, "SIZES", (20, 600))
    monkeypatch.setattr(bench, "FIT_SIZES", (12,))
    monkeypatch.setattr(bench, "in_its_own_process", lambda work, *args: work(*args))
    with pytest.raises(SystemExit):
        main(["bench", "--data", "uniform:3x20x4", "--turns", "1", "--scale", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert set(found["select_s_per_round"]) == set(found["select_peak_mb"]) == {"20", "600"}
    assert min(found["select_s_per_round"].values()) > 0
    assert found["abps_plus_s"]["12"] > 0 and found["abps_plus_peak_mb"]["12"] > 0


def test_what_a_size_of_selection_tells():
    seconds, memory = bench.in_its_own_process(bench.selection_cost, 700, 2, 2)
    assert seconds > 0 and memory > 0


@pytest.mark.parametrize("spec", ["uniform:6x4", "uniform:axbxc", "uniform:0x1x1"])
def test_a_wrong_shape_is_refused(capsys, spec):
    with pytest.raises(SystemExit) as stop:
        main(["bench", "--data", spec])
    assert stop.value.code == 2 and "uniform:CENTERSxROWSxFEATURES" in capsys.readouterr().err


def test_useful_operations_are_counted_by_hand():
    data = bench.uniform(2, 10, 4)
    training = Training(hidden=(3, 2), epochs=2)
    forward = 2 * (4 * 3 + 3 * 2 + 2 * 1)
    inner = 2 * (3 * 2 + 2 * 1)
    assert bench.flops_per_round(data, training) == 20 * 2 * (2 * forward + inner)
    assert bench.flops_per_round(data, Training.of("gam", epochs=3)) == 20 * 3 * 2 * (2 * 4)


def test_linear_models_are_measured_as_they_train():
    found = bench.measure(bench.uniform(12, 40, 5), turns=1, loop_centers=4, training=Training.of("gam"))
    assert found.center_rounds_per_s > 0 and found.loop_center_rounds_per_s > 0


def test_the_plain_loop_learns_what_the_engine_learns():

    data, training = bench.uniform(3, 200, 6), Training(hidden=(16, 8), lr=0.01)
    models = [training.factory(6) for _ in range(3)]
    for _ in range(15):
        bench.plain_round(data, training, models)
    from torch.nn.utils import parameters_to_vector

    from abps.models.learners import learner_for
    from abps.models.metrics import auroc, labels_of

    learner = learner_for(data, training, 1, plain=True)
    w = repeated(learner.start, 3).copy()
    plain = np.stack([parameters_to_vector(m.parameters()).detach() for m in models])
    for t in range(15):
        w = learner.train(w, t)
    a, b = (auroc(learner.logits(each, data.test), labels_of(data.test)).mean() for each in (plain, w))
    assert abs(a - b) < 0.1 and min(a, b) > 0.6
    assert np.isfinite([a, b]).all()
