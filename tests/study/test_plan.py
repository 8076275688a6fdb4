"""Plans: what makes two runs the same, and what is refused before anything is computed."""

from dataclasses import replace

import pytest

from abps.core.errors import RequestError
from abps.methods.catalog import CATALOG, REFERENCES
from abps.methods.settings import configure
from abps.study import plan as planning
from abps.study.plan import PAPER, PAPER_ROWS, PlannedRun, Request, Source, expand_methods, make_plan

SMALL = Source("icu-synthetic:centers=8,stays=800")


def request(**changes):
    given = {"sources": (SMALL,), "methods": ("local", "fedavg"), "seeds": (1, 2), "rounds": 2} | changes
    return Request(**given)


def planned(method):
    return PlannedRun(method, method, {}, None, 1, "f").keyed()


def test_a_plan_is_methods_times_seeds_times_data():
    other = Source("fedprox-synthetic:centers=6")
    plan = make_plan(request(sources=(SMALL, other)))
    assert len(plan.runs) == 2 * 2 * 2
    assert len({run.key for run in plan.runs}) == len({run.folder for run in plan.runs}) == 8


def test_the_same_request_has_the_same_keys_and_any_change_has_others():
    first = {run.key for run in make_plan(request()).runs}
    assert first == {run.key for run in make_plan(request()).runs}
    for changes in (
        {"rounds": 3},
        {"seeds": (3, 4)},
        {"settings": {"lr": "0.01"}},
        {"sources": (Source("icu-synthetic:centers=8,stays=801"),)},
    ):
        assert not first & {run.key for run in make_plan(request(**changes)).runs}


def test_methods_with_equal_settings_are_not_the_same_run():
    assert planned("local").key != planned("centralized").key


def test_another_version_is_another_run(monkeypatch):
    before = planned("local").key
    monkeypatch.setattr(planning, "VERSION", "0.0.0")
    assert planned("local").key != before


def test_a_method_of_ones_own_is_known_by_its_source(tmp_path, monkeypatch):
    def key(factor):
        (tmp_path / f"own{factor}.py").write_text(
            "from abps.methods.fedavg import FedAvg\n"
            f"class Mine(FedAvg):\n    factor = {factor}\n"
            'Mine.__module__, Mine.__qualname__ = __name__, "Mine"\n'
        )
        monkeypatch.syspath_prepend(tmp_path)
        kind = __import__(f"own{factor}").Mine
        content = planned("fedavg").identity(kind())
        return content.pop("source"), content.pop("kind"), content

    (one, _, rest), (two, _, same) = key(1), key(2)
    assert one != two and rest == same
    assert "source" not in planned("fedavg").identity(configure("fedavg"))  # the version stands for ours


def test_a_setting_reaches_the_methods_that_have_it():
    plan = make_plan(request(methods=("local", "abps-pq-k1"), seeds=(1,), settings={"gamma": "0.5"}))
    assert [run.label for run in plan.runs] == ["local", "abps-pq-k1"]
    assert plan.runs[0].settings == {} and plan.runs[1].settings == {"gamma": "0.5"}
    assert plan.runs[1].config().selection.gamma == 0.5


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"settings": {"gama": "1"}}, "none of the methods has a setting 'gama'"),
        ({"settings": {"lr": "fast"}}, "lr=fast"),
        ({"rounds": 0}, "rounds=0: choose at least 1"),
        ({"sources": (SMALL, SMALL)}, "the same federation is given twice"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_runs(changes, told):
    with pytest.raises(RequestError, match=told):
        make_plan(request(**changes))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"methods": ()}, "no method is named"),
        ({"seeds": ()}, "no seed is named"),
        ({"seeds": (1, -1)}, "whole numbers from 0"),
        ({"seeds": (1, 1)}, "1 is named twice"),
        ({"methods": ("local", "local")}, "local is named twice"),
    ],
)
def test_an_empty_or_doubled_list_is_refused(changes, told):
    with pytest.raises(RequestError, match=told):
        request(**changes)


def test_the_paper_has_nineteen_rows_its_bound_and_the_controls():
    assert len(PAPER_ROWS) == len(set(PAPER_ROWS)) == 19
    assert PAPER[19:] == ("centralized", "random-k1", "random-k3", "group-oracle-k1")


def test_all_is_everything_once():
    assert expand_methods(["paper"]) == PAPER and set(PAPER) <= set(CATALOG)
    assert sorted(expand_methods(["all"])) == sorted(CATALOG)
    assert expand_methods(["abps-x", "all"])[0] == "abps-x"
    with pytest.raises(RequestError, match="did you mean 'fedavg'"):
        expand_methods(["fedavgg"])


def test_what_needs_groups_is_left_out_of_sets_only():
    no_groups = Source("fedprox-synthetic:centers=6")
    asked = Request((no_groups,), ("local", "group-oracle-k1"), (1,), 2)
    plan = make_plan(replace(asked, words=("all",)))
    assert [run.method for run in plan.runs] == ["local"] and "needs a column" in plan.left_out[0]
    assert len(make_plan(replace(asked, words=("local", "group-oracle-k1"))).runs) == 2


def test_references_run_beside_the_methods_as_they_are():
    plan = make_plan(
        request(methods=("local", "local-best"), settings={"lr": "0.1"}, references=REFERENCES, seeds=(1,),
                rounds=3)
    )  # fmt: skip
    beside = {run.label: run for run in plan.runs if not run.settings}
    assert set(beside) == set(REFERENCES) - {"local-best"}  # what is asked for by name is set like all others
    assert beside["glm-exact"].rounds is None
    assert [run.settings for run in plan.runs if run.method == "local-best"] == [{"lr": "0.1"}]
