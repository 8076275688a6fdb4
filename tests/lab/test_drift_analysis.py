"""The drift analysis of a table, against SciPy and plain loops."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from scipy import stats
from scipy.spatial import distance

from abps.core.errors import RequestError
from abps.lab.drift_analysis import Question, analyse


@pytest.fixture(scope="module")
def table() -> pl.DataFrame:
    rng = np.random.default_rng(6)
    rows = 4_000
    era = rng.choice(["2008 - 2010", "2014 - 2016", "2020 - 2022"], rows)
    unit = rng.choice(["CVICU", "MICU", "SICU"], rows)
    year = rng.uniform(2110, 2118, rows)
    rate = np.where(unit == "CVICU", 0.03, 0.15)
    heart = rng.normal(85, 15, rows) - 3.0 * (era == "2020 - 2022")
    heart[rng.choice(rows, 12, replace=False)] = 190.0
    breath = rng.normal(19, 5, rows)
    return pl.DataFrame(
        {
            "died": (rng.uniform(size=rows) < rate).astype(np.int8),
            "unit": unit,
            "center": [f"{u}/{int(y // 2 * 2)}" for u, y in zip(unit, year)],
            "anchor_year_group": era,
            "admission_year": year,
            "heart_rate_mean": heart,
            "resp_rate_mean": pl.Series(breath).set(pl.Series(rng.uniform(size=rows) < 0.1), None),
        }
    )


QUESTION = Question("died", "center", "unit", "admission_year")


def test_welch_after_the_outlier_rule(table: pl.DataFrame) -> None:
    found = analyse(table, QUESTION)
    assert found.between == ("2008 - 2010", "2020 - 2022") and found.era_source == "anchor_year_group"
    assert [s.column for s in found.shifts] == ["heart_rate_mean", "resp_rate_mean"]
    for shift in found.shifts:
        samples = []
        for era, removed in zip(found.between, shift.removed):
            values = [
                v
                for e, v in table.select("anchor_year_group", shift.column).iter_rows()
                if e == era and v is not None
            ]
            mean, sd = np.mean(values), np.std(values, ddof=1)
            inside = [v for v in values if abs(v - mean) <= 3 * sd]
            assert removed == len(values) - len(inside)
            samples.append(inside)
        expected = stats.ttest_ind(*samples, equal_var=False)
        assert shift.test.t == pytest.approx(expected.statistic)
        assert shift.test.p == pytest.approx(expected.pvalue)
        assert shift.test.sd == pytest.approx(tuple(np.std(s, ddof=1) for s in samples))
        assert [int(c.sum()) for c in shift.counts] == [len(s) for s in samples]
    assert found.shifts[0].removed[0] > 0 and found.shifts[0].test.p < 1e-4
    smallest = min(s.p for s in found.shifts)
    assert min(s.p_holm for s in found.shifts) == pytest.approx(2 * smallest)


def test_outcome_between_and_within_units(table: pl.DataFrame) -> None:
    found = analyse(table, QUESTION).outcome
    assert found is not None
    rates = dict(table.group_by("center").agg(pl.col("died").mean()).iter_rows())
    between, within = [], []
    names = sorted(rates)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            js = distance.jensenshannon([rates[a], 1 - rates[a]], [rates[b], 1 - rates[b]]) ** 2
            (within if a.split("/")[0] == b.split("/")[0] else between).append(js)
    assert found.between == pytest.approx(np.mean(between)) and found.within == pytest.approx(np.mean(within))
    assert found.between > 3 * found.within


def test_the_era_of_the_stay_comes_before_the_era_of_the_anchor(table: pl.DataFrame) -> None:
    both = table.with_columns(era=pl.col("anchor_year_group").replace("2008 - 2010", "2005 - 2007"))
    found = analyse(both, QUESTION)
    assert found.era_source == "era" and found.between == ("2005 - 2007", "2020 - 2022")


def test_windows_against_eras(table: pl.DataFrame) -> None:
    found = analyse(table, QUESTION).association
    assert found is not None
    counts = (
        table.with_columns(window=(pl.col("admission_year") / 2).floor())
        .pivot("anchor_year_group", index="window", values="died", aggregate_function="len")
        .drop("window")
        .to_numpy()
    )
    assert found.v == pytest.approx(stats.contingency.association(counts, method="cramer"))
    assert found.purity == pytest.approx(np.mean(counts.max(axis=1) / counts.sum(axis=1)))
    assert counts.sum(axis=0).max() / counts.sum() < found.chance_purity < found.purity + 0.02


def test_eras_from_windows_where_there_is_no_era(table: pl.DataFrame) -> None:
    found = analyse(table.drop("anchor_year_group"), QUESTION)
    assert found.era_source == "window" and found.between == ("2110", "2116") and found.association is None
    assert [line.name for line in found.eras] == ["2110", "2112", "2114", "2116"]
    assert sum(line.stays for line in found.eras) == table.height


def test_named_eras_columns_and_no_groups(table: pl.DataFrame) -> None:
    question = Question(
        "died",
        "center",
        era="anchor_year_group",
        between=("2020 - 2022", "2014 - 2016"),
        columns=("admission_year",),
    )
    found = analyse(table, question)
    assert found.between == ("2020 - 2022", "2014 - 2016") and found.association is None
    assert found.outcome is not None and found.outcome.within_pairs == 0
    content = found.to_json()
    assert content["outcome_js_nats"]["within"] is None  # JSON has no NaN
    assert content["shifts"][0]["column"] == "admission_year"


def test_column_without_values_or_spread_is_named_and_has_no_row(table: pl.DataFrame) -> None:
    odd = table.with_columns(none=pl.lit(None, pl.Float64), same=pl.lit(1.0), nan=pl.lit(math.nan))
    columns = ("none", "same", "nan", "heart_rate_mean")
    found = analyse(odd, Question("died", time="admission_year", columns=columns))
    assert [s.column for s in found.shifts] == ["heart_rate_mean"]
    assert [column for column, _ in found.skipped] == ["none", "same", "nan"]
    assert found.shifts[0].p_holm == found.shifts[0].p  # what is skipped does not count
    assert not math.isnan(found.shifts[0].p) and found.shifts[0].mean is None  # no center: Welch alone
    with pytest.raises(RequestError, match=r"nothing to compare between .*none: 0 values in 2008 - 2010"):
        analyse(odd, Question("died", columns=("none",)))


def test_spread_is_tested_as_well_as_the_mean() -> None:
    rng = np.random.default_rng(3)
    rows = 3_000
    late = np.arange(rows) % 2 == 1
    breath = rng.normal(19.3, np.where(late, 4.2, 5.7))
    frame = pl.DataFrame({"died": rng.random(rows) < 0.1, "era": np.where(late, "b", "a")})
    frame = frame.with_columns(resp_rate_mean=breath, center=rng.integers(0, 20, rows))
    question = Question("died", "center", deviations=1e9)
    (shift,) = analyse(frame, question).shifts
    samples = [breath[~late], breath[late]]
    away = [abs(s - np.median(s)) for s in samples]
    assert shift.spread_test.p == pytest.approx(stats.ttest_ind(*away, equal_var=False).pvalue)
    levene = stats.levene(*samples, center="median")  # equal variances of the distances: nearly the same
    assert shift.spread_test.t**2 == pytest.approx(levene.statistic, rel=0.02)
    assert shift.sd_ratio == pytest.approx(5.7 / 4.2, rel=0.05)
    assert shift.spread_p_holm < 1e-4 < shift.p_holm  # the spread has changed, the mean has not


def test_a_hospital_more_in_one_era_is_no_drift() -> None:
    """Hospitals differ, eras do not: Welch finds drift nearly always, the clustered test rarely."""
    rng = np.random.default_rng(8)
    found = []
    for _ in range(200):
        hospital = np.repeat(np.arange(24), 50)
        late = rng.random(24) < 0.5  # a hospital reports mostly in one era
        frame = pl.DataFrame(
            {
                "died": rng.random(1_200) < 0.1,
                "era": np.where(rng.random(1_200) < np.where(late, 0.9, 0.1)[hospital], "b", "a"),
                "hospital": hospital,
                "heart_rate_mean": rng.normal(size=24)[hospital] * 5 + rng.normal(85, 15, 1_200),
            }
        )
        (shift,) = analyse(frame, Question("died", "hospital")).shifts
        assert shift.mean is not None and shift.mean.clusters == 24
        found.append((shift.test.p < 0.05, shift.p < 0.05))
    welch, clustered = np.mean(found, axis=0)
    assert welch > 0.25 and clustered < 0.10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": "dead"}, "no column 'dead' .did you mean 'died'"),
        ({"label": "heart_rate_mean"}, "must be 0 or 1"),
        ({"between": ("2008 - 2010", "2021")}, "between='2021'"),
        ({"between": ("2008 - 2010", "2008 - 2010")}, "two different eras"),
        ({"columns": ("unit",)}, "holds String, not numbers"),
        ({"era": "heart_rate_mean"}, "different values; an era groups many stays"),
        ({"group": "anchor_year_group"}, "lies in several groups"),
        ({"window_years": 0}, "at least 1 year"),
        ({"deviations": 0.0}, "must be above 0"),
    ],
)
def test_wrong_questions(table: pl.DataFrame, change: dict[str, object], message: str) -> None:
    base = {"label": "died", "center": "center", "group": "unit", "time": "admission_year"}
    with pytest.raises(RequestError, match=message):
        analyse(table, Question(**{**base, **change}))  # type: ignore[arg-type]


def test_nothing_to_tell_early_from_late(table: pl.DataFrame) -> None:
    with pytest.raises(RequestError, match="nothing says which rows are early and which late"):
        analyse(table.drop("anchor_year_group"), Question("died"))
    one = table.filter(pl.col("anchor_year_group") == "2008 - 2010")
    with pytest.raises(RequestError, match="all rows are of one era"):
        analyse(one, QUESTION)
