"""The built-in ICU federation: exact counts, and knobs that do what they say."""

import numpy as np
import polars as pl
import pytest

from abps.cohorts.icu_synthetic import UNITS, IcuSynthetic


@pytest.fixture(scope="module")
def default() -> pl.DataFrame:
    return IcuSynthetic().generate()


def test_the_default_has_the_stated_numbers(default: pl.DataFrame) -> None:
    assert default.height == 71_008
    assert default["center"].n_unique() == 230
    assert default["careunit"].n_unique() == 6
    years = default["center"].str.extract(r"/(\d+)$").cast(pl.Int64).unique()
    assert (years.min(), years.max()) == (2110, 2190)
    assert (years % 2 == 0).all()


def test_unit_mortality_is_as_stated(default: pl.DataFrame) -> None:
    rates = dict(default.group_by("careunit").agg(pl.col("died").mean()).iter_rows())
    for unit in UNITS:
        assert rates[unit.name] == pytest.approx(unit.mortality, abs=1e-4)
    assert rates["CVICU"] == min(rates.values()) and rates["MICU"] == max(rates.values())


def test_same_knobs_same_table_and_another_seed_another(default: pl.DataFrame) -> None:
    assert default.equals(IcuSynthetic().generate())
    assert not default.equals(IcuSynthetic(seed=1).generate())


def test_the_dead_do_not_come_back(default: pl.DataFrame) -> None:
    per_patient = default.group_by("patient", maintain_order=True).agg(
        pl.col("died"), pl.col("center").n_unique().alias("centers")
    )
    assert (per_patient["centers"] == 1).all()
    several = per_patient.filter(pl.col("died").list.len() > 1)
    assert several.height > 1000
    assert np.all([sum(deaths[:-1]) == 0 for deaths in several["died"].to_list()])
