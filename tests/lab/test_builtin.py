"""Built-in federations by name, with their knobs written as text."""

import pytest

from abps.core.errors import RequestError
from abps.data.federation import BUILTIN, is_builtin
from abps.lab.icu_synthetic import IcuSynthetic
from abps.lab.synthetic import GENERATORS, FedproxSynthetic, builtin_table, parse_builtin


def test_a_bare_name_means_the_defaults() -> None:
    assert parse_builtin("icu-synthetic")[0] == IcuSynthetic()
    assert parse_builtin("fedprox-synthetic:")[0] == FedproxSynthetic()
    assert set(BUILTIN) == set(GENERATORS)
    assert is_builtin("icu-synthetic:centers=60") and not is_builtin("stays.csv")


def test_knobs_are_read_by_their_type() -> None:
    knobs, roles = parse_builtin(
        "icu-synthetic: heterogeneity=4, centers=60 ,aligned=no,risk=2,group_sizes=40+20,stays=9000,seed=7"
    )
    assert knobs == IcuSynthetic(
        heterogeneity=4.0, centers=60, aligned=False, risk=2.0, group_sizes=(40, 20), stays=9000, seed=7
    )
    assert (roles.label, roles.center, roles.group) == ("died", "center", "careunit")


def test_the_roles_name_columns_of_the_table() -> None:
    for spec in ("icu-synthetic:centers=12", "fedprox-synthetic:centers=3,features=5"):
        table, roles = builtin_table(spec)
        named = (roles.label, roles.center, roles.patient, roles.time, roles.group, *roles.drop)
        assert {name for name in named if name is not None} <= set(table.columns)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("icu-synthetik", "did you mean 'icu-synthetic'"),
        ("icu-synthetic:heterogenity=4", "did you mean 'heterogeneity'"),
        ("icu-synthetic:centers=many", "not a whole number"),
        ("icu-synthetic:centers=6.5", "not a whole number"),
        ("icu-synthetic:heterogeneity=high", "not a number"),
        ("icu-synthetic:aligned=maybe", "not true or false"),
        ("icu-synthetic:group_sizes=a+b", "whole numbers with"),
        ("icu-synthetic:centers", "has no value"),
        ("icu-synthetic:centers=", "has no value"),
        ("icu-synthetic:centers=60,centers=70", "set twice"),
        ("icu-synthetic:centers=-4", "out of range"),
        ("fedprox-synthetic:alpha=-1", "out of range"),
        ("fedprox-synthetic:largest=50,smallest=100", "below smallest"),
        ("fedprox-synthetic:gamma=1", "has no knob 'gamma'"),
    ],
)
def test_a_wrong_specification_is_answered_in_one_sentence(spec: str, says: str) -> None:
    with pytest.raises(RequestError, match=says) as error:
        parse_builtin(spec)
    assert "\n" not in str(error.value)
