"""Plans: what makes two runs the same, and what is refused before anything is computed."""

import ast

import pytest

from abps.core.errors import RequestError
from abps.methods.catalog import CATALOG, REFERENCES, find
from abps.methods.settings import configure
from abps.study import calculation
from abps.study import plan as planning
from abps.study.plan import PAPER, PAPER_ROWS, Request, Source, expand_methods, identity, key_of, make_plan

SMALL = Source("icu-synthetic:centers=8,stays=800")


def request(**changes):
    given = {"sources": (SMALL,), "methods": ("local", "fedavg"), "seeds": (1, 2), "rounds": 2} | changes
    return Request(**given)


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
    a, b = configure("local"), configure("centralized")
    assert key_of(identity("local", a, "f", 1)) != key_of(identity("centralized", b, "f", 1))


def test_another_calculation_is_another_run(monkeypatch):
    before = key_of(identity("local", configure("local"), "f", 1))
    monkeypatch.setattr(planning, "calculation", lambda config, how=(): {"code": "other"})
    assert key_of(identity("local", configure("local"), "f", 1)) != before


def test_a_setting_reaches_the_methods_that_have_it_and_varies_them():
    plan = make_plan(
        request(
            methods=("local", "abps-pq-k1"),
            seeds=(1,),
            settings={"lr": "0.01"},
            vary={"gamma": ("0.1", "0.5")},
        )
    )
    assert [run.label for run in plan.runs] == ["local", "abps-pq-k1 gamma=0.1", "abps-pq-k1 gamma=0.5"]
    assert plan.runs[0].settings == {"lr": "0.01"}
    assert plan.runs[2].settings == {"lr": "0.01", "gamma": "0.5"}
    assert plan.runs[2].config().selection.gamma == 0.5


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"settings": {"gama": "1"}}, "none of the methods has a setting 'gama'"),
        ({"vary": {"nothing": ("1",)}}, "none of the methods has a setting 'nothing'"),
        ({"settings": {"lr": "fast"}}, "lr=fast"),
        ({"rounds": 0}, "at least 1 round"),
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


def test_paper_names_what_the_catalog_lacks(monkeypatch):
    monkeypatch.setattr(planning, "CATALOG", {name: None for name in PAPER if name != "feddyn"})
    with pytest.raises(RequestError, match="the catalog lacks feddyn"):
        expand_methods(["paper"])
    monkeypatch.setattr(planning, "CATALOG", dict.fromkeys(PAPER))
    assert expand_methods(["paper"]) == PAPER


def test_all_is_everything_once():
    assert sorted(expand_methods(["all"])) == sorted(CATALOG)
    assert expand_methods(["abps-x", "all"])[0] == "abps-x"
    with pytest.raises(RequestError, match="did you mean 'fedavg'"):
        expand_methods(["fedavgg"])


def test_what_needs_groups_is_left_out_of_sets_only():
    no_groups = Source("fedprox-synthetic:centers=6")
    asked = Request((no_groups,), ("local", "group-oracle-k1"), (1,), 2)
    plan = make_plan(asked, ["all"])
    assert [run.method for run in plan.runs] == ["local"] and "needs a column" in plan.left_out[0]
    assert len(make_plan(asked, ["local", "group-oracle-k1"]).runs) == 2


def test_the_calculation_is_its_code_not_its_comments():
    def digest(text):
        return ast.dump(calculation.without_docstrings(ast.parse(text)))

    plain = "def f(x):\n    return x + 1\n"
    assert digest(plain) == digest('"""Doc."""\ndef f(x):\n    """Doc."""\n    # why\n    return x  +  1\n')
    assert digest(plain) != digest("def f(x):\n    return x + 2\n")


def test_the_calculation_follows_imports_into_every_layer_below():
    seen = calculation.followed(frozenset({calculation.ENTRY, *calculation.modules_of(find("abps"))}))
    for needed in (
        "learn.kernels",
        "core.selection",
        "core.streams",
        "wire.codecs",
        "methods.abps",
        "data.prepare",
    ):
        assert f"abps.{needed}" in seen
    assert not any(name.startswith(("abps.cli", "abps.report", "abps.study")) for name in seen)
    assert "abps.lab.rivals.moon" not in seen and "abps.methods.catalog" not in seen


def test_references_run_beside_the_methods_as_they_are():
    plan = make_plan(
        request(methods=("local", "local-best"), settings={"lr": "0.1"}, vary={"epochs": ("1", "2")},
                references=REFERENCES, seeds=(1,), rounds=3)
    )  # fmt: skip
    beside = {run.label: run for run in plan.runs if not run.settings}
    assert set(beside) == set(REFERENCES) - {"local-best"}  # what is asked for by name is set like all others
    assert beside["local-stopped"].rounds == 3 and beside["glm-exact"].rounds is None
    assert [run.label for run in plan.runs if run.method == "local-best"] == [
        "local-best epochs=1", "local-best epochs=2",
    ]  # fmt: skip
