"""The built-in ICU federation: exact counts, the stated law of death, and knobs that do what they say."""

from dataclasses import fields, replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.data.prepare import prepare
from abps.data.table import load
from abps.lab.icu_synthetic import (
    CATEGORIES,
    COMORBIDITIES,
    UNITS,
    VITALS,
    IcuSynthetic,
    draw_with_risk,
    population_of,
)


@pytest.fixture(scope="module")
def default() -> pl.DataFrame:
    return IcuSynthetic().generate()


def explained(values: NDArray[np.float64], groups: list[str]) -> float:
    """Share of the variance of ``values`` that lies between groups."""
    frame = pl.DataFrame({"v": values, "g": groups})
    return float(np.var(frame.select(pl.col("v").mean().over("g"))["v"].to_numpy()) / np.var(values))


def test_the_default_has_the_stated_numbers(default: pl.DataFrame) -> None:
    assert default.height == 71_008
    assert default["center"].n_unique() == 230
    assert default["careunit"].n_unique() == 6
    years = default["center"].str.extract(r"/(\d+)$").cast(pl.Int64)
    assert (years.min(), years.max()) == (2110, 2190)
    assert (years % 2 == 0).all()
    assert default["admission_year"].is_between(years, years + 2, closed="left").all()


def test_every_default_center_takes_part_and_the_width_is_as_documented() -> None:
    federation = load("icu-synthetic")
    assert federation.size == 230 and federation.rows == 71_008 and federation.left_out == ()
    assert federation.descriptors == tuple(f"cci_{name}" for name in COMORBIDITIES)
    assert prepare(federation, 11).width == 69


def test_the_schema(default: pl.DataFrame) -> None:
    vitals = [f"{v}_{what}" for v in VITALS for what in ("mean", "min", "max")]
    assert default.columns == [
        *("died", "center", "careunit", "admission_year", "patient", "age", "sex"),
        *CATEGORIES,
        *(f"cci_{name}" for name in COMORBIDITIES),
        *vitals,
    ]
    for name, levels in CATEGORIES.items():
        assert set(default[name].unique().to_list()) == {level or None for level in levels}
    for vital in VITALS:
        low, mean, high = (default[f"{vital}_{what}"] for what in ("min", "mean", "max"))
        assert ((low <= mean) & (mean <= high)).drop_nulls().all()
        assert 0.3 < pl.DataFrame([low, mean]).drop_nulls().corr()[0, 1] < 0.95
    assert default["age"].is_between(18, 95).all()


def test_unit_mortality_is_as_stated(default: pl.DataFrame) -> None:
    rates = dict(default.group_by("careunit").agg(pl.col("died").mean()).iter_rows())
    for unit in UNITS:
        assert rates[unit.name] == pytest.approx(unit.mortality, abs=1e-4)
    assert rates["CVICU"] == min(rates.values()) and rates["MICU"] == max(rates.values())


def test_same_knobs_same_table_and_another_seed_another(default: pl.DataFrame) -> None:
    assert default.equals(IcuSynthetic().generate())
    assert not default.equals(IcuSynthetic(seed=1).generate())


def test_the_dead_do_not_come_back(default: pl.DataFrame) -> None:
    stays = default.sort("admission_year", maintain_order=True)
    per_patient = stays.group_by("patient", maintain_order=True).agg(
        pl.col("died"), pl.col("center").n_unique().alias("centers"), pl.col("sex").n_unique().alias("sexes")
    )
    assert (per_patient["centers"] == 1).all() and (per_patient["sexes"] == 1).all()
    several = per_patient.filter(pl.col("died").list.len() > 1)
    assert several.height > 1000
    assert all(sum(deaths[:-1]) == 0 for deaths in several["died"].to_list())


@pytest.mark.parametrize("column", ["temperature_mean", "race", "insurance"])
def test_what_is_missing_says_something(default: pl.DataFrame, column: str) -> None:
    missing = default[column].is_null().to_numpy()
    died = default["died"].to_numpy()
    a, b = died[missing], died[~missing]
    assert 0.02 < missing.mean() < 0.2
    difference = a.mean() - b.mean()
    assert difference > 4 * np.sqrt(
        a.var() / len(a) + b.var() / len(b)
    )  # more die where nobody wrote it down


def test_the_chance_of_death_is_logistic_in_the_risk() -> None:
    """Newton's fit of death on the risk, an intercept per unit, finds the slope 1 that was put in."""
    who = population_of(IcuSynthetic())
    table, risk = draw_with_risk(who, 0)
    unit = pl.Series(table["careunit"]).cast(pl.Categorical).to_physical().to_numpy()
    x = np.column_stack([risk, np.eye(6)[unit]])
    y = table["died"].to_numpy().astype(float)
    w = np.zeros(7)
    for _ in range(30):
        p = 1.0 / (1.0 + np.exp(-x @ w))
        curvature = (x * (p * (1 - p))[:, None]).T @ x
        w += np.linalg.solve(curvature, x.T @ (y - p))
    assert w[0] == pytest.approx(1.0, abs=4 * np.sqrt(np.linalg.inv(curvature)[0, 0]))


def test_vitals_are_dangerous_on_both_sides(default: pl.DataFrame) -> None:
    for vital in ("heart_rate", "sbp", "resp_rate", "temperature"):
        column = default[f"{vital}_mean"]
        low, high = column.quantile(0.03), column.quantile(0.97)
        middle = default.filter(column.is_between(column.quantile(0.3), column.quantile(0.7)))["died"].mean()
        assert default.filter(column < low)["died"].mean() > 1.3 * middle
        assert default.filter(column > high)["died"].mean() > 1.3 * middle


def test_risk_differences_grow_with_their_knob_and_vanish_at_zero() -> None:
    def size(**knobs: float) -> float:
        return float(np.linalg.norm(population_of(IcuSynthetic(**knobs)).own))

    assert size(heterogeneity=0) == 0.0
    assert size(heterogeneity=4) == pytest.approx(4 * size(heterogeneity=1))
    assert size(heterogeneity=4, risk=1) == pytest.approx(size(heterogeneity=1))
    assert size(heterogeneity=4, groups=1) == 0.0


def test_case_mix_has_its_own_knob() -> None:
    def spread(**knobs: float) -> float:
        who = population_of(IcuSynthetic(**knobs))
        return explained(who.comorbidity[:, 0], list(who.groups))

    assert spread(case_mix=0) < 0.1 < 0.9 < spread(case_mix=1, risk=0)
    assert spread(heterogeneity=0) > 0.9  # none: one risk function, but each unit keeps its patients


def test_metadata_tell_the_unit_only_if_aligned() -> None:
    def told(aligned: bool) -> list[float]:
        federation = load(f"icu-synthetic:heterogeneity=4,aligned={aligned}")
        prepared = prepare(federation, 11)
        assert prepared.groups is not None
        return [explained(column, list(prepared.groups)) for column in prepared.metadata.T]

    assert np.mean(told(True)) > 0.4
    # Six groups of 230 centers without any relation explain 5/229 of a variance on average.
    assert np.mean(told(False)) < 0.03 and np.max(told(False)) < 0.08


def test_not_aligned_moves_case_mix_and_leaves_the_risk() -> None:
    together, apart = (population_of(IcuSynthetic(aligned=aligned)) for aligned in (True, False))
    assert np.array_equal(together.own, apart.own) and together.groups == apart.groups
    assert sorted(together.sizes) == sorted(apart.sizes)
    rates, dealt = (np.sort(who.mortality[who.stratum]) for who in (together, apart))
    assert np.array_equal(rates, dealt)
    for group in set(apart.groups):  # every group has every unit's mortality, about equally often
        mine = apart.mortality[apart.stratum][np.array(apart.groups) == group]
        assert np.unique(mine, return_counts=True)[1].tolist() == pytest.approx([len(mine) / 6] * 6, abs=1.5)


def test_alike_centers_share_one_risk_and_form_one_group() -> None:
    who = population_of(IcuSynthetic(alike=0.25, heterogeneity=2))
    common = np.array([group == "COMMON" for group in who.groups])
    assert common.sum() == round(0.25 * 230)
    assert not who.own[common].any() and who.own[~common].any(axis=1).all()


def test_group_sizes() -> None:
    table = IcuSynthetic(centers=30, group_sizes=(20, 7, 3)).generate()
    counts = table.group_by("careunit").agg(pl.col("center").n_unique())
    assert dict(counts.iter_rows()) == {"CVICU": 20, "SICU": 7, "TSICU": 3}
    many = IcuSynthetic(centers=120, groups=8).generate()
    assert {"UNIT7", "UNIT8"} < set(many["careunit"].unique())


def test_a_changed_population_keeps_the_patients_and_changes_who_dies() -> None:
    """The same stays under another risk function."""
    knobs = IcuSynthetic(centers=24, heterogeneity=4)
    before = population_of(knobs)
    after = replace(before, own=-before.own)
    first, second = draw_with_risk(before, 0)[0], draw_with_risk(after, 0)[0]
    untouched = [c for c in first.columns if c not in ("died", "patient")]
    assert first.select(untouched).equals(second.select(untouched))
    assert (first["died"] != second["died"]).mean() > 0.02


def test_stays_are_exact_and_spread_is_obeyed() -> None:
    assert IcuSynthetic(centers=60).generate().height == round(71_008 * 60 / 230)
    assert IcuSynthetic(centers=60, stays=5_001).generate().height == 5_001
    assert 0.4 < np.std(np.log(population_of(IcuSynthetic()).sizes)) < 0.9


@settings(max_examples=25, deadline=None)
@given(
    st.builds(
        IcuSynthetic,
        heterogeneity=st.floats(0, 6),
        risk=st.none() | st.floats(0, 6),
        case_mix=st.none() | st.floats(0, 5),
        aligned=st.booleans(),
        alike=st.floats(0, 1),
        centers=st.integers(12, 60),
        groups=st.integers(1, 12),
        stays=st.integers(1_200, 3_000),
        seed=st.integers(0, 2**40),
    )
)
def test_any_knobs_give_a_valid_table(knobs: IcuSynthetic) -> None:
    table = knobs.generate()
    assert table.height == knobs.stays
    assert table["center"].n_unique() == knobs.centers
    assert table.group_by("center").agg(pl.col("careunit").n_unique())["careunit"].max() == 1
    assert set(table["died"].unique()) <= {0, 1}
    numbers = table.select(pl.selectors.numeric())
    assert np.isfinite(numbers.fill_null(0).to_numpy()).all()
    assert table["careunit"].n_unique() <= knobs.groups + 1


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"heterogeneity": -1}, "heterogeneity=-1"),
        ({"heterogeneity": float("nan")}, "heterogeneity=nan"),
        ({"alike": 1.5}, "alike=1.5"),
        ({"centers": 0}, "centers=0"),
        ({"centers": 3}, "every group needs a center"),
        ({"stays": 100}, "at least 4600"),
        ({"group_sizes": (10, 20)}, "add up to 30"),
        ({"group_sizes": (230, 0)}, "positive sizes"),
        ({"group_sizes": (200, 30), "groups": 3}, "leave groups out"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_impossible_knobs_are_refused_in_one_sentence(knobs: dict, says: str) -> None:
    with pytest.raises(RequestError, match=says) as error:
        IcuSynthetic(**knobs)
    assert "\n" not in str(error.value)


def test_every_knob_is_documented() -> None:
    assert IcuSynthetic.__doc__ is not None
    for field in fields(IcuSynthetic):
        assert f" {field.name}:" in IcuSynthetic.__doc__ or f" {field.name}," in IcuSynthetic.__doc__
