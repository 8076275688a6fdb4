"""Nothing small leaves a site in a study, whatever other members put into the codebook."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from abps.core.errors import RequestError
from abps.data.codebook import Column
from abps.sites.consent.agreement import small_columns
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.node import measuring
from abps.sites.protocol.commands import Timeouts
from abps.sites.store.store import Store

from .loopback import LoopbackNetwork
from .network import LINEAR, close, open_site
from .test_masking import Looking

FLOOR = 10


def with_rare(given, folder, patients, sites=1):
    """The tables of the first sites have a column with a level of so many patients."""
    folder.mkdir(parents=True)
    tables = {}
    for k, name in enumerate(given.names):
        frame = pl.read_parquet(given.tables[name])
        rare = ["HIV programme" if k < sites and i < patients else "public" for i in range(frame.height)]
        tables[name] = folder / f"{name}.parquet"
        frame.with_columns(pl.Series("insurance", rare)).write_parquet(tables[name])
    return replace(given, tables=tables)


def study(given, secure):
    agreement = given.agreement("abps-plus", rounds=12, **LINEAR, secure=secure)
    levels = (Column("insurance", "level", "HIV programme"), Column("insurance", "level", "public"))
    others = [column for column in agreement.book.columns if column.source != "insurance"]
    book = replace(agreement.book, columns=(*others, *levels), min_cell=FLOOR)
    return replace(agreement, book=book)


@pytest.mark.parametrize("secure", ["yes", "no"])
@pytest.mark.parametrize("patients", [4, 60])
def test_one_member_s_codebook_does_not_override_another_s_minimum_cell(six, tmp_path, secure, patients):
    """A level that others list: where it has few patients nothing of them is in what leaves."""
    given = with_rare(six, tmp_path / "tables", patients)
    agreement = study(given, secure)
    network = LoopbackNetwork()
    for name in given.names:
        open_site(given, name, agreement, tmp_path, network)
    data = network.sites[given.names[0]].context.data
    k = data.columns.index("insurance=HIV programme")
    counts = bool(data.train.x[:, k].any())
    assert counts if patients > FLOOR and secure == "yes" else not counts or patients > FLOOR
    Scheduler(network, agreement, 12, Timeouts(poll=0.0)).run(given.names)
    weights = [abs(float(network.sites[name].models[0][k])) for name in given.names]
    assert (max(weights) > 1e-6) == counts, weights
    close(network)


@pytest.mark.parametrize(("patients", "intercepts"), [(4, "common"), (9, "fixed"), (60, "common")])
def test_a_regression_s_exact_counts_are_in_totals_alone_and_a_small_total_ends_it(
    six, tmp_path, patients, intercepts
):
    """A regression needs exact sums, also of levels that few patients of a site have. So no coordinator may
    see a site's, and where all hospitals together have too few, the first total is the last."""
    given = with_rare(six, tmp_path / "tables", patients, sites=1 if patients < FLOOR else 6)
    settings = {"formula": "insurance", "intercepts": intercepts}
    agreement = replace(study(given, "yes"), method="regression", rounds=12, settings=settings)
    with pytest.raises(RequestError, match="exact counts of single sites"):
        replace(agreement, settings={**settings, "secure": "no"}).config()
    network = Looking()
    for name in given.names:
        open_site(given, name, agreement, tmp_path, network)
    report = Scheduler(network, agreement, 12, Timeouts(poll=0.0)).run(given.names)
    masked = {name: np.frombuffer(each, "<u8") for what, name, each in network.seen if what == "sum_masked"}
    assert set(masked) == set(given.names)
    for name, added in network.taken.items():  # of the last exchange
        plain = np.rint(added * 2.0**20).astype(np.int64).view(np.uint64)
        assert not np.any(masked[name][:-1] == plain)
    for site in network.sites.values():
        assert not any(e.kind == "upload" and e.peer != "server" for e in site.store.traffic())
        context = site.context
        ended = context.method.replayed(context.method_context, context.state, 0)
        small = isinstance(ended, str) and "minimum cell" in ended
        assert (small and len(report.rounds) == 1) == (patients < FLOOR), ended
    close(network)


@pytest.mark.parametrize("secure", [True, False])
def test_every_yes_no_column_that_counts_has_enough_patients(six, tmp_path, secure):
    agreement = study(with_rare(six, tmp_path / "tables", 4), "yes" if secure else "no")
    given = with_rare(six, tmp_path / "again", 4)
    hidden = 0
    for name in given.names:
        data = agreement.prepare(given.table(name, agreement.book))
        assert not small_columns(data, True).any()  # what was small is gone
        y = data.train.y > 0
        for column in data.train.x.T:
            if not np.isin(column, (0, 1)).all():
                continue
            cells = [(column == v).sum() for v in (0, 1)]
            if not secure:
                cells += [((column == v) & (y == w)).sum() for v in (0, 1) for w in (False, True)]
            hidden += not column.any()
            assert all(c == 0 or c >= FLOOR for c in cells) or not column.any(), (name, cells)
    assert hidden > 5


@pytest.mark.parametrize("more", [1, 3])
def test_counts_of_two_tables_that_differ_by_a_patient_are_not_both_given(four, tmp_path, more):
    """A count is of one table: the difference of two would be the patients that were added."""
    agreement = four.agreement("abps-plus", rounds=2, **(LINEAR | {"standardise": "common"}))
    agreement = replace(agreement, book=replace(agreement.book, statistics=None, min_cell=FLOOR))
    name = four.names[0]
    table = four.table(name, agreement.book)

    def counting(rows):
        store = Store.open(tmp_path / "scales.sqlite", name, agreement.digest(), agreement.notes())
        try:
            return measuring.ScaleCounting(name, agreement, rows, store)
        finally:
            store.close()

    assert counting(table) is not None and counting(table) is not None
    fewer = pl.read_parquet(four.tables[name]).head(table.rows - more)
    fewer.write_parquet(tmp_path / "fewer.parquet")
    other = replace(four, tables=four.tables | {name: tmp_path / "fewer.parquet"})
    with pytest.raises(RequestError, match="another table"):
        counting(other.table(name, agreement.book))
