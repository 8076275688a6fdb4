"""Regressions between four sites with masked sums on real tables, absent members, and differencing attacks.

The sites are whole sites with stores of their own: on real tables each is a process of its own, elsewhere
they are in one process with a relay between them.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pytest
import statsmodels.api as sm
from lifelines import CoxPHFitter
from statsmodels.stats.meta_analysis import combine_effects

from abps.core.errors import RequestError
from abps.data.prepare import codebook
from abps.data.roles import Roles
from abps.data.table import MIN_CLASS, federate
from abps.fitted.handover import site_statistics
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.proposal import Proposal
from abps.sites.consent.sitefile import SiteFile
from abps.sites.coordinator.scheduler import Scheduler, measure
from abps.sites.node import measuring
from abps.sites.node.site import Site
from abps.sites.store.store import Store
from abps.statistics.evaluation import evaluate_models
from abps.statistics.regression import regress, summary
from sites.hub import Hub
from sites.network import close
from sites.test_masking import LOST, QUICK, Relay

NAMES = ("east", "north", "south", "west", "isle", "coast", "hill")


@dataclass
class Study:
    """Some sites with tables of their own, which can run several studies one after the other."""

    folder: Path
    frame: pl.DataFrame
    label: str
    duration: str | None = None
    outcome: str | None = None
    patient: str | None = None

    method: str = "regression"

    def run(self, formula, study="effects", names=NAMES[:4], network=None, rounds=40, **settings):
        """The network after a study, and the job's report."""
        network = network or Relay()
        (self.folder / study).mkdir(parents=True, exist_ok=True)
        agreement = self.counted(self.agreement(formula, study, names, **settings), names)
        for name in names:
            own = self.own(name, study)
            store = Store.open(
                self.folder / name / f"{study}.sqlite", name, agreement.digest(), agreement.notes()
            )
            try:
                data = agreement.prepare(own.read_table(agreement.book))
                network.sites[name] = Site(name, agreement, data, store, network.sender(name))
            except BaseException:
                store.close()
                close(network)
                raise
        try:
            return network, Scheduler(network, agreement, rounds, QUICK).run(names)
        except BaseException:
            close(network)
            raise

    def counted(self, agreement, names):
        """The study with what sites count of its outcome first: times of events, or a scale."""
        if not agreement.uncounted:
            return agreement
        network = Relay()
        for name in names:
            path = self.folder / "scales" / f"{name}.sqlite"
            store = Store.open(path, name, agreement.digest(), agreement.notes())
            table = self.own(name, agreement.study).read_table(agreement.book)
            network.sites[name] = measuring.ScaleCounting(name, agreement, table, store)
        scales = measure(network, agreement, names, QUICK)
        close(network)
        return measuring.with_scales(agreement, scales)

    def own(self, name, study):
        """A site's own file, and its table as it is at the time of a study."""
        path = self.folder / study / f"{name}.parquet"
        self.frame.filter(pl.col("site") == name).drop("site").write_parquet(path)
        return SiteFile(
            name, str(path), self.label, str(self.folder / name), self.patient, outcome=self.outcome,
            duration=self.duration,
        )  # fmt: skip

    def agreement(self, formula, study, names, **settings):
        rows = self.frame.filter(pl.col("site").is_in(list(names)))
        book = codebook(federate(rows, roles_of(self), "four", MIN_CLASS), 11, min_cell=10)
        if self.method == "regression":
            settings["formula"] = formula
        return Agreement(study, self.method, book, 11, 40, settings)

    def results(self, network, study="effects"):
        """What every site exports."""
        return [site_statistics(site.store, self.own(name, study)) for name, site in network.sites.items()]


def split(frame, center, names=NAMES[:4]):
    """The hospitals of a table dealt out to sites."""
    codes = frame[center].cast(pl.String).rank("dense").cast(pl.Int64).to_list()
    return frame.with_columns(site=pl.Series([names[k % len(names)] for k in codes]))


def rows_of(hospitals=4, rows=160, seed=5, names=NAMES):
    rng = np.random.default_rng(seed)
    n = hospitals * rows
    age, lactate = rng.normal(60, 12, n), rng.gamma(2.0, 1.0, n)
    eta = -1.0 + 0.03 * (age - 60) + 0.4 * (lactate - 2) + 0.3 * rng.normal(size=hospitals).repeat(rows)
    return pl.DataFrame(
        {
            "site": np.repeat(names[:hospitals], rows), "person": [f"p{k}" for k in range(n)], "age": age,
            "lactate": lactate, "weight": rng.normal(80, 10, n),
            "died": (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int),
            "visits": rng.poisson(np.exp(eta + 1)),
        }
    )  # fmt: skip


def roles_of(study):
    return Roles(study.label, "site", study.patient, outcome=study.outcome, duration=study.duration)


@contextlib.contextmanager
def processes(study, formula, **settings):
    """Four sites of a study, each a process of its own with its own table and store."""
    names, folder = NAMES[:4], study.folder / "effects"
    folder.mkdir(parents=True)
    agreement = study.counted(study.agreement(formula, "effects", names, **settings), names)
    tables = {name: Path(study.own(name, "effects").table) for name in names}
    hub = Hub(SimpleNamespace(names=names, tables=tables, roles=roles_of(study)), agreement, study.folder)
    hub.start(*names)
    try:
        yield hub, agreement
    finally:
        hub.stop()


def result_of(study, hub, name):
    """What a site exports."""
    store = Store.look(hub.path(name))
    try:
        return site_statistics(store, study.own(name, "effects"))
    finally:
        store.close()


@pytest.mark.parametrize(
    ("file", "center", "label", "columns", "roles"),
    [
        ("gusto.csv.gz", "hospital", "died", ["age", "sysbp", "pulse"], {}),
        ("rand_hie.csv.gz", "site", "mhi", ["xage", "female", "educdec"], {"outcome": "continuous"}),
        (
            "dialysis_rio_survival.csv.gz",
            "hospital",
            "event",
            ["age", "start_month"],
            {"duration": "duration"},
        ),
    ],
)
def test_four_processes_with_a_real_table_arrive_at_the_pooled_fit(
    data, tmp_path, file, center, label, columns, roles
):
    """Logistic, linear and Cox regressions equal statsmodels and lifelines on pooled rows to 1e-6."""
    keep = [label, "site", *columns, *([roles["duration"]] if "duration" in roles else [])]
    frame = split(pl.read_csv(data("hospitals") / file), center).select(keep)
    study, known = Study(tmp_path, frame, label, **roles), frame.drop_nulls()
    with processes(study, " + ".join(columns)) as (hub, agreement):
        report = Scheduler(hub, agreement, 40, QUICK).run(NAMES[:4])
    x = known.select(columns).to_numpy().astype(float)
    if roles.get("duration"):
        table = pd.DataFrame(x, columns=columns).assign(
            t=known["duration"].to_numpy(), e=known[label].to_numpy(), s=known["site"].to_list()
        )
        theirs = CoxPHFitter().fit(table, "t", "e", strata=["s"], fit_options={"precision": 1e-13})
        beta, se = theirs.params_.to_numpy(), theirs.standard_errors_.to_numpy()
    else:
        family = sm.families.Gaussian() if roles else sm.families.Binomial()
        theirs = sm.GLM(known[label].to_numpy(), sm.add_constant(x), family=family).fit(tol=1e-13)
        beta, se = theirs.params, theirs.bse
    assert report.stopped_early and report.rounds[-1].round <= 8
    for name in NAMES[:4]:
        result = result_of(study, hub, name)
        assert result.rows == known.height and result.taking_part == 4
        np.testing.assert_allclose([e.estimate for e in result.effects], beta, atol=1e-6)
        np.testing.assert_allclose([e.se for e in result.effects], se, atol=1e-6)
        assert not result.hospitals and not result.ratios


@pytest.mark.parametrize("absent", ["wait", "without"])
def test_a_killed_process_is_waited_for_or_left_out_as_was_approved(tmp_path, absent):
    study = Study(tmp_path, rows_of().select("site", "age", "died"), "died")
    with processes(study, "age", absent=absent) as (hub, agreement):
        hub.kill("south")
        if absent == "wait":
            with pytest.raises(RequestError, match="south"):
                Scheduler(hub, agreement, 40, QUICK).run(NAMES[:4])
            return
        assert Scheduler(hub, agreement, 40, QUICK).run(NAMES[:4]).stopped_early
    result = result_of(study, hub, "east")
    assert result.taking_part == 3 and "without south" in result.notes[0]


def test_counts_and_differences_between_sites_are_those_of_one_table(tmp_path):
    frame = rows_of(7)
    study = Study(tmp_path, frame.select("site", "age", "lactate", "visits"), "visits", outcome="continuous")
    network, report = study.run("age + lactate", names=NAMES, family="poisson")
    x = sm.add_constant(frame.select("age", "lactate").to_numpy())
    theirs = sm.GLM(frame["visits"].to_numpy(), x, family=sm.families.Poisson()).fit(tol=1e-13)
    one = regress(frame, "visits", "site", "age + lactate", "poisson")
    assert report.rounds[-1].round <= 8
    for result in study.results(network):
        np.testing.assert_allclose([e.estimate for e in result.effects], theirs.params, atol=1e-6)
        np.testing.assert_allclose([e.se for e in result.effects], theirs.bse, atol=1e-6)
        for ours, table in zip(result.effects[1:], one.effects[1:], strict=True):
            b, se = np.array(list(one.hospitals[table.name].values())).T
            w = se**-2.0
            q = float((w * (b - (w @ b) / w.sum()) ** 2).sum())
            tau2 = max(0.0, (q - 6) / (w.sum() - (w**2).sum() / w.sum()))
            found = ours.heterogeneity
            assert found.method == "DL" and found.hospitals == 7
            np.testing.assert_allclose([found.q, found.tau2], [q, tau2], rtol=1e-5, atol=1e-9)
            v = 1 / (se**2 + tau2)
            assert found.mean == pytest.approx((v @ b) / v.sum(), rel=1e-6)
            assert found.next_low < found.low < found.mean < found.high < found.next_high
        assert result.equal[0] == pytest.approx(one.equal[0], rel=1e-5)
    close(network)


def test_four_hospitals_show_differences_but_no_average_and_three_nothing(tmp_path):
    study = Study(tmp_path, rows_of(4).select("site", "age", "lactate", "died"), "died")
    network, _ = study.run("age + lactate")
    (effect,) = {e.name: e for e in study.results(network)[0].effects if e.name == "age"}.values()
    close(network)
    assert np.isfinite(effect.heterogeneity.tau2) and np.isnan(effect.heterogeneity.mean)
    fewer = Study(tmp_path / "three", study.frame, "died")
    network, _ = fewer.run("age + lactate", names=NAMES[:3])
    assert all(e.heterogeneity is None for e in fewer.results(network)[0].effects)
    close(network)


# Table 1 and evaluation ------------------------------------------------------------------------------


def test_table_one_between_sites_is_that_of_all_rows(tmp_path):
    frame = rows_of(4).select("site", "age", "lactate", "died")
    gaps = pl.int_range(pl.len()) % 20 == 0
    ward = pl.Series([("icu", "step-down", "ward")[k % 3] for k in range(frame.height)])
    frame = frame.with_columns(age=pl.when(gaps).then(None).otherwise("age"), ward=ward)
    study = Study(tmp_path, frame, "died", method="table-one")
    network, report = study.run("")
    assert report.rounds[-1].round == 1
    for found in study.results(network):
        lines = {(line.column, line.level): line.overall for line in found.lines}
        n, events = frame.height, int(frame["died"].sum())
        assert found.total == n and "all approved members took part" in found.notes[0]
        assert lines["outcome", "1"] == f"{events} ({100 * events / n:.1f} %)"
        assert lines["ward", "icu"] == f"{(n + 2) // 3} ({100 * ((n + 2) // 3) / n:.1f} %)"
        age = frame["age"].drop_nulls()
        assert lines["age", "mean (SD)"] == f"{age.mean():.4g} ({age.std():.4g})"
        assert lines["age", "missing"] == f"{n - len(age)} ({100 * (n - len(age)) / n:.1f} %)"
        median, low, high = map(float, re.findall(r"[-\d.]+", lines["age", "median [IQR]"]))
        for value, share in ((low, 0.25), (median, 0.5), (high, 0.75)):
            assert abs((age < value).mean() - share) < 0.03
    close(network)


def test_few_patients_are_suppressed_in_table_one(tmp_path):
    frame = rows_of(4).select("site", "age", "lactate", "died")
    frame = frame.with_columns(age=pl.when(pl.int_range(pl.len()) == 5).then(None).otherwise("age"))
    study = Study(tmp_path, frame, "died", method="table-one")
    network, _ = study.run("", columns="age")
    lines = {(line.column, line.level): line.overall for line in study.results(network)[0].lines}
    close(network)
    assert lines["age", "missing"] == "<10" and ("lactate", "mean (SD)") not in lines


def test_a_model_is_evaluated_between_sites_as_at_one_table(tmp_path):
    frame = rows_of(7).select("site", "age", "lactate", "died")
    p = 1 / (1 + np.exp(3.2 - 0.03 * frame["age"].to_numpy() - 0.3 * frame["lactate"].to_numpy()))
    study = Study(tmp_path, frame, "died", method="evaluation")
    network, report = study.run("", names=NAMES, predictor="-3.2 + 0.03*age + 0.3*lactate")
    assert report.rounds[-1].round <= 8
    y = frame["died"].to_numpy().astype(float)
    one = evaluate_models({"m": p}, y, frame["site"].to_list())
    line = sm.GLM(y, sm.add_constant(np.log(p / (1 - p))), family=sm.families.Binomial()).fit(tol=1e-13)
    a = np.array([r.auroc for r in one.results])
    b, v = np.log(a / (1 - a)), np.array([(r.auroc_se / (r.auroc * (1 - r.auroc))) ** 2 for r in one.results])
    theirs = combine_effects(b, v, method_re="chi2", use_t=True)
    for found in study.results(network):
        assert (found.hospitals, found.rows, found.events) == (7, len(y), y.sum())
        assert found.brier == pytest.approx(np.mean((p - y) ** 2), abs=1e-9)
        assert found.observed_expected == pytest.approx(y.sum() / p.sum(), abs=1e-9)
        np.testing.assert_allclose([found.intercept[0], found.slope[0]], line.params, atol=1e-6)
        np.testing.assert_allclose([found.intercept[1], found.slope[1]], line.bse, atol=1e-6)
        assert found.benefit[0.2] == pytest.approx(
            ((p >= 0.2) & (y == 1)).mean() - 0.25 * ((p >= 0.2) & (y == 0)).mean(), abs=1e-9
        )
        assert found.auroc.tau2 == pytest.approx(max(theirs.tau2, 0.0), abs=1e-9)
        assert found.auroc.mean == pytest.approx(theirs.mean_effect_re, abs=1e-6)
        (path,) = found.write(tmp_path)
        assert 0.5 < json.loads(path.read_text())["auroc"]["mean"] < 1.0
    close(network)


@pytest.mark.parametrize("method", ["table-one", "evaluation"])
def test_nothing_of_a_hospital_below_the_minimum_cell_is_in_a_total(tmp_path, method):
    """The attack: members who add up their own numbers take them from the totals; what is left is a small
    hospital's. It adds nothing, so nothing is left."""
    frame = rows_of(4).select("site", "age", "lactate", "died")
    small = (pl.col("site") == "west") & (pl.int_range(pl.len()).over("site") >= 9)
    frame = frame.filter(~small)
    settings = {"predictor": "-3.2 + 0.03*age + 0.3*lactate"} if method == "evaluation" else {}
    network, _ = Study(tmp_path / "four", frame, "died", method=method).run("", **settings)
    with_small = totals(network)
    close(network)
    others = frame.filter(pl.col("site") != "west")
    network, _ = Study(tmp_path / "three", others, "died", method=method).run("", names=NAMES[:3], **settings)
    without = totals(network)
    close(network)
    np.testing.assert_allclose(with_small[0], without[0], atol=1e-6)


@pytest.mark.parametrize(
    ("method", "settings", "says"),
    [
        ("table-one", {"columns": "agee"}, "'agee' is not among the codebook's columns"),
        ("evaluation", {"predictor": "score"}, "'score' is not among the codebook's columns"),
        ("evaluation", {"predictor": "-3 + x*age"}, "write log odds as"),
    ],
)
def test_wrong_columns_and_models_are_named_before_anything_leaves(tmp_path, method, settings, says):
    study = Study(tmp_path, rows_of().select("site", "age", "died"), "died", method=method)
    with pytest.raises(RequestError, match=says):
        study.run("", **settings)


# Absent members --------------------------------------------------------------------------------------


def lose(gone):
    """A relay that does not get through to a site when a round begins."""
    return Relay(lambda name, what, value: LOST if (name, what) == (gone, "begin") else value)


def test_a_study_that_waits_opens_no_sum_without_a_member_and_names_it(tmp_path):
    study = Study(tmp_path, rows_of().select("site", "age", "died"), "died")
    with pytest.raises(RequestError, match="south"):
        study.run("age", network=lose("south"))
    store = Store.look(tmp_path / "east" / "effects.sqlite")
    assert "opened" not in store.facts()
    store.close()
    terms = Proposal(study.agreement("age", "effects", NAMES[:4]), NAMES[:4]).terms()
    assert "no sum is opened without every approved member" in terms["if a member is absent"]


def test_a_study_that_goes_on_says_without_whom(tmp_path):
    frame = rows_of().select("site", "age", "died")
    study = Study(tmp_path, frame, "died")
    network, report = study.run("age", network=lose("south"), absent="without")
    assert report.stopped_early
    del network.sites["south"]
    result = study.results(network)[0]
    assert result.taking_part == 3 and "without south" in result.notes[0]
    assert "members absent at the first sum are left out" in result.notes[0]
    left = regress(frame.filter(pl.col("site") != "south"), "died", "site", "age")
    np.testing.assert_allclose(
        [e.estimate for e in result.effects], [e.estimate for e in left.effects], atol=1e-6
    )
    close(network)


def test_everybody_took_part_stands_in_the_result(tmp_path):
    study = Study(tmp_path, rows_of().select("site", "age", "died"), "died")
    network, _ = study.run("age", intercepts="random")
    result = study.results(network)[0]
    close(network)
    assert "all approved members took part" in result.notes[0]
    assert result.rounds <= 8 and "under masked sums" in summary(result)


# Differencing: two studies whose totals, one less the other, would be those of few --------------------


def totals(network):
    """What every member, and the relay, knows of a study: its totals."""
    site = next(iter(network.sites.values())).context
    return np.split(site.state.totals, np.cumsum(site.state.lengths)[:-1])


def test_two_studies_that_differ_by_one_hospital_are_refused_by_the_others(tmp_path):
    study = Study(tmp_path, rows_of(4).select("site", "age", "died"), "died")
    network, _ = study.run("age")
    close(network)
    with pytest.raises(RequestError, match=r"other members than those of .effects. .west in one of them"):
        study.run("age", "again", NAMES[:3])
    log = Store.look(tmp_path / "east" / "again.sqlite")
    assert "opened" not in log.facts()
    log.close()


def test_two_studies_that_differ_by_three_hospitals_show_the_sum_of_the_three(tmp_path):
    frame = rows_of(7).select("site", "age", "died")
    study = Study(tmp_path, frame, "died")
    whole, _ = study.run("age", names=NAMES)
    close(whole)
    part, _ = study.run("age", "part", NAMES[:4])
    close(part)
    apart = totals(whole)[0] - totals(part)[0]
    left = frame.filter(pl.col("site").is_in(list(NAMES[4:])))
    n = len(apart) // 3
    assert apart[:n][0] * 2.0**20 + apart[n] == left.height  # no single one's


def test_two_studies_that_differ_by_one_row_are_refused(tmp_path):
    frame = rows_of().select("site", "person", "age", "died")
    study = Study(tmp_path, frame, "died", patient="person")
    network, _ = study.run("age")
    close(network)
    study.frame = frame.tail(-1)  # one patient of the first site less
    with pytest.raises(RequestError, match="the same patients as 'effects' but for fewer than 10"):
        study.run("age", "again")
    study.frame = frame.filter((pl.col("site") != "east") | (pl.int_range(pl.len()) >= 10))
    network, _ = study.run("age", "later")  # ten are a cell
    close(network)


def test_two_studies_that_differ_by_one_column_are_refused_where_it_singles_out_rows(tmp_path):
    """Rows with a gap are left out: a column that one patient lacks gives the sums of all but this one."""
    frame = rows_of().select("site", "age", "lactate", "weight", "died")
    frame = frame.with_columns(weight=pl.when(pl.int_range(pl.len()) == 3).then(None).otherwise("weight"))
    study = Study(tmp_path, frame, "died")
    network, _ = study.run("age")
    close(network)
    with pytest.raises(RequestError, match="but for fewer than 10"):
        study.run("age + weight", "again")
    network, report = study.run("age + lactate", "more")  # the same rows: sums of all of them, as before
    assert report.stopped_early
    close(network)


def test_a_site_that_lacks_a_patient_column_counts_rows(tmp_path):
    frame = rows_of().select("site", "age", "died")
    study = Study(tmp_path, frame, "died")
    network, _ = study.run("age")
    close(network)
    study.frame = frame.tail(-2)
    with pytest.raises(RequestError, match="but for fewer than 10"):
        study.run("age", "again")
