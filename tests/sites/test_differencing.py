"""Differencing: what two releases that differ by a few patients, members or columns would show.

Every kind of number that leaves a site is tried. Two tables that differ by fewer patients than the minimum
cell are never both released; and nothing that leaves in clear lets a smaller cell be derived.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from abps.core.errors import RequestError
from abps.core.streams import center_ids
from abps.data.codebook import Column
from abps.data.prepare import codebook
from abps.data.scales import published_counts
from abps.data.table import own_table
from abps.methods.base import Context, with_derived
from abps.models.learners import learner_for
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.proposal import Proposal, SignedProposal
from abps.sites.consent.sitefile import SiteFile
from abps.sites.flare.opening import SiteJob, open_study
from abps.sites.node.context import may_score
from abps.sites.node.differencing import changed_patients, check_table
from abps.sites.protocol.commands import DeclineCode, DeclineError

from .network import OPEN

FLOOR = 10


def tables(folder, changed: int, how: str):
    """A hospital's table, and the same with so many patients more, or with other values."""
    draw = np.random.default_rng(7)
    n = 200
    frame = pl.DataFrame({
        "patient": [f"p{k}" for k in range(n)],
        "died": (draw.random(n) < 0.3).astype(int),
        "age": np.round(draw.normal(60, 10, n), 1),
        "ward": draw.choice(["medical", "surgical", "other"], n),
    })  # fmt: skip
    if how == "added":
        both = frame.head(n - changed), frame
    elif how == "removed":
        both = frame, frame.head(n - changed)
    else:
        age = pl.when(pl.int_range(pl.len()) < changed).then(99.0).otherwise(pl.col("age"))
        both = frame, frame.with_columns(age.alias("age"))
    paths = [folder / "one.parquet", folder / "two.parquet"]
    for path, each in zip(paths, both):
        each.write_parquet(path)
    return paths


def own_files(folder, paths, patient: str | None):
    return [
        SiteFile("a", str(p), "died", str(folder / "studies"), patient, drop=("patient",), policy=OPEN)
        for p in paths
    ]


def agreed(own, study: str, **settings) -> Agreement:
    rows = own.read_table()
    book = codebook(rows, seed=0, min_cell=FLOOR)
    if "formula" in settings:
        return Agreement(study, "regression", book, 11, 8, settings)
    return Agreement(study, "abps-plus", book, 11, 8, {"model": "linear", **settings})


def opened(own, folder, agreement, counting=False):
    """A site's door: what every release of a study passes."""
    proposal = SignedProposal(Proposal(agreement)).text()
    job = SiteJob("a", folder / "local", "job", proposal)
    return open_study(job, own, own.journal(folder), lambda peer, kind, data: b"", counting, None)


#: Kinds of releases, and the study whose door they leave by: scores, losses, curvature and AUROCs by that of
#: the exchanges, with and without masks; counts by that of the scales.
DOORS = [
    ("scores", {"secure": "yes", "standardise": "own"}, False),
    ("scores", {"secure": "no", "standardise": "own"}, False),
    ("counts", {"secure": "yes", "standardise": "common"}, True),
    ("sums of a regression", {"formula": "age"}, False),
    ("sums of a regression", {"formula": "age + ward", "intercepts": "fixed"}, False),
]


@pytest.mark.parametrize(("what", "settings", "counting"), DOORS)
@pytest.mark.parametrize(("changed", "how"), [(1, "added"), (3, "removed"), (2, "edited"), (FLOOR, "added")])
@pytest.mark.parametrize("patient", ["patient", None])
def test_two_studies_on_tables_that_differ_by_a_few_patients(
    tmp_path, what, settings, counting, changed, how, patient
):
    """Another study, another seed, another name: the difference of all its totals would be these patients."""
    one, two = own_files(tmp_path, tables(tmp_path, changed, how), patient)
    opened(one, tmp_path, agreed(one, "first", **settings), counting).store.close()
    opened(one, tmp_path, agreed(one, "again", **settings), counting).store.close()  # the same table
    second = replace(agreed(one, "second", **settings), seed=5)
    if changed >= FLOOR:
        opened(two, tmp_path, second, counting).store.close()
        return
    with pytest.raises(DeclineError, match="totals of both would show them") as declined:
        opened(two, tmp_path, second, counting)
    assert declined.value.code is DeclineCode.TABLE
    check_table(replace(two, another_table=True), FLOOR)  # its owner may say so


def test_another_column_does_not_hide_who_was_added(tmp_path):
    """Every row changes, and still two patients are new."""
    one, two = own_files(tmp_path, tables(tmp_path, 2, "added"), "patient")
    check_table(one, FLOOR)
    pl.read_parquet(two.table).with_columns(height=pl.lit(1.7)).write_parquet(two.table)
    with pytest.raises(RequestError, match="differs by 2 patients"):
        check_table(two, FLOOR)
    rows = np.array([[1, 1], [2, 2], [2, 3]], dtype=np.uint64)
    assert changed_patients(rows, rows) == 0 and changed_patients(rows, rows[:2]) == 1
    assert changed_patients(rows, rows[:1]) == 1  # one patient with two rows


# Within one release


@pytest.mark.parametrize("few", [3, 9])
def test_a_column_that_few_have_adds_nothing_to_counts(few):
    """Not even under masks: a total that one site alone adds to would be that site's."""
    values = np.full((2, 60), np.nan)
    values[0, :few], values[1] = 2.0, 3.0
    edges, owner = np.array([[0.5, 1.5, 2.5]] * 2), np.zeros(60, dtype=np.int64)
    rare, common = published_counts(values, owner, 1, edges, np.array([FLOOR]))[0]
    assert not rare.any() and common.sum() == 60


@pytest.mark.parametrize("rare", [4, 9])
def test_no_level_of_few_patients_follows_from_the_others(tmp_path, rare):
    """The codebook lists levels of enough patients; what is left over is not one small level either."""
    n = 200
    ward = ["rare"] * rare + ["medical"] * 90 + ["surgical"] * (n - 90 - rare)
    pl.DataFrame({"died": [0, 1] * (n // 2), "ward": ward, "age": np.arange(n) % 70}).write_csv(
        tmp_path / "t.csv"
    )
    table = own_table(tmp_path / "t.csv", "a", "died")
    book = codebook(table, seed=0, min_cell=FLOOR)
    assert "rare" not in str(book.to_json())


@pytest.mark.parametrize(("events", "others", "leaves"), [(9, 50, False), (50, 9, False), (10, 10, True)])
def test_scores_leave_with_enough_patients_of_each_outcome(tmp_path, events, others, leaves):
    label = np.array([1.0] * events + [0.0] * others)
    outcome = own_files(tmp_path, tables(tmp_path, 1, "added"), None)[0].read_table().outcome
    assert may_score(label, None, outcome, FLOOR) is leaves
    same = np.zeros(len(label), dtype=np.int64)  # many rows of one patient
    assert not may_score(label, same, outcome, FLOOR)


@pytest.mark.parametrize("secure", [True, False])
@pytest.mark.parametrize(("small", "weight"), [(2, 0.0), (7, 0.0), (2, 40.0), (7, -40.0)])
def test_scores_losses_and_curvature_hide_small_columns(tmp_path, secure, small, weight):
    """Uploads at known coefficients give counts away; a coordinator that lied about the common model read
    47 of 60 small cells by putting weight on one level. With and without the patients of a small cell they
    are the same, number by number."""
    one, _ = own_files(tmp_path, tables(tmp_path, 1, "added"), "patient")
    frame = pl.read_parquet(one.table)
    uploads = []
    for positive in (small, 0):
        flag = pl.Series("transplant", [1.0] * positive + [0.0] * (frame.height - positive))
        frame.with_columns(flag).write_parquet(one.table)
        if positive:
            agreement = agreed(one, "first", secure="yes" if secure else "no", standardise="own")
            column = Column("transplant", "number")
            book = replace(agreement.book, columns=(*agreement.book.columns, column))
            agreement = replace(agreement, book=book)  # another member lists it
        data = agreement.prepare(one.read_table(agreement.book))
        config = agreement.config()
        learner = learner_for(data, config.training, 11)
        context = with_derived(config, Context(learner, data, center_ids(("a",)), 11, 8))
        state = config.init(context)
        if weight:  # the second exchange, at a point of the coordinator's choice
            point = np.zeros_like(state.fit.point)
            point[data.columns.index("transplant")] = weight
            state = replace(state, fit=replace(state.fit, point=point), exchanges=1)
        uploads.append(config.upload(context, state, 2 if weight else 1).values)
    np.testing.assert_array_equal(uploads[0], uploads[1])
