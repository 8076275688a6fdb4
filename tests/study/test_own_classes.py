"""Methods and metrics of one's own, also where no other process could import them."""

import subprocess
import sys

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, roc_auc_score

import abps
from abps.study.plan import source_of

NOTEBOOK = '''
from dataclasses import dataclass
import sys
import abps
from abps.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Timid(FedAvg):
    """Half of the average."""

    def receive(self, context, state, trained, down, t):
        after = super().receive(context, state, trained, down, t)
        return type(after)((trained.models + after.models) / 2)

def made():
    @dataclass(frozen=True)
    class Inner(FedAvg):
        """A class of a function, which is known by its code as well."""

    return Inner()

federation = abps.load("icu-synthetic:centers=6,stays=900")
how = dict(rounds=2, folds=1, references=False)
methods = {"timid": Timid(), "inner": made()}
one = abps.compare(federation, methods, [1, 2], **how)
two = abps.compare(federation, methods, [1, 2], sys.argv[1], jobs=2, **how)
assert not two.absent, two.absent
key = lambda study: study.frame().sort("method", "seed", "center")
assert key(one).equals(key(two))
again = abps.compare(federation, methods, [1, 2], sys.argv[1], **how)  # nothing is computed twice
print([run.seconds for _, run in again.runs] == [run.seconds for _, run in two.runs])
'''


@pytest.mark.parametrize("how", ["a script", "a notebook"])
def test_a_class_of_a_script_or_a_notebook_runs_in_several_processes(tmp_path, how):
    if how == "a script":
        (tmp_path / "main.py").write_text(NOTEBOOK)
        words = [sys.executable, "main.py", "study"]
    else:  # no file holds the source
        words = [sys.executable, "-c", NOTEBOOK, "study"]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "True"


def test_code_without_a_file_is_known_by_what_it_does():
    made = []
    for value in (1, 1, 2):
        space: dict = {"__name__": "elsewhere"}
        exec(f"class Own:\n    def f(self):\n        return lambda x: x + {value}", space)
        made.append(source_of(space["Own"]))
    assert made[0] == made[1] != made[2] and source_of(abps.Federation) == ""


def test_own_metrics_stand_in_the_frame_and_several_federations_beside_each_other():
    two = {f"draw {k}": abps.load(f"icu-synthetic:centers=6,stays=900,seed={k}") for k in (1, 2)}
    study = abps.compare(
        two,
        ["fedavg"],
        [1],
        rounds=2,
        folds=1,
        model="linear",
        references=False,
        metrics={"ours": roc_auc_or_nan, "brier again": brier_score_loss},
    )
    frame = study.frame()
    assert set(frame["data"]) == set(two) and "linear" in frame["settings"][0]
    known = frame.filter(frame["ours"].is_not_null() & frame["auroc"].is_not_null())
    assert known.height > 6 and np.allclose(known["ours"], known["auroc"])
    assert np.allclose(frame["brier again"], frame["brier"], atol=1e-6)


def roc_auc_or_nan(y, probability):
    return roc_auc_score(y, probability) if len(set(y.tolist())) > 1 else float("nan")


@pytest.mark.parametrize(
    ("given", "options", "says"),
    [
        ("stays.csv", {}, "make one with abps.federation"),
        ([np.zeros(3)], {}, "make one with abps.federation"),
        (None, {"folds": 2}, "folds=2: choose 1"),
    ],
)
def test_wrong_comparisons_are_one_sentence_before_anything_runs(tmp_path, given, options, says):
    given = abps.load("icu-synthetic:centers=6,stays=900") if given is None else given
    with pytest.raises(abps.RequestError, match=says):
        abps.compare(given, ["fedavg"], [1], tmp_path / "study", jobs=2, rounds=1, **options)
    assert not (tmp_path / "study").exists()
