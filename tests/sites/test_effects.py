"""Effects with intervals between sites: the pooled fit, from totals that nobody sees a part of."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import statsmodels.api as sm

from abps.core.errors import RequestError
from abps.fitted.handover import site_statistics
from abps.sites.consent.sitefile import SiteFile
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.protocol.commands import Timeouts
from abps.statistics.newton import Fit

from .network import close, open_site
from .test_masking import Relay

QUICK = Timeouts(poll=0.0)


def pooled(tables, label, columns):
    """The fit of statsmodels on all sites' complete rows."""
    frame = pl.concat([pl.read_parquet(path).select(label, *columns) for path in tables])
    known = frame.drop_nulls().drop_nans()
    x = sm.add_constant(known.select(columns).to_numpy().astype(float))
    return sm.GLM(known[label].to_numpy(), x, family=sm.families.Binomial()).fit(tol=1e-13), known.height


def test_four_sites_arrive_at_the_pooled_fit_and_see_totals_alone(four, tmp_path):
    label, tables = four.roles.label, [four.tables[name] for name in four.names]
    columns = four.book(11, "own").numbers[:3]
    agreement = four.agreement("regression", rounds=40, formula=" + ".join(columns))
    network = Relay()
    for name in four.names:
        open_site(four, name, agreement, tmp_path / "sites", network)
    report = Scheduler(network, agreement, 40, QUICK).run(four.names)
    theirs, rows = pooled(tables, label, columns)
    assert report.stopped_early and report.rounds[-1].round <= 8
    for name in four.names:
        site = network.sites[name].context
        found = site.method.replayed(site.method_context, site.state, 0)
        assert isinstance(found, Fit) and found.rows == rows
        np.testing.assert_allclose(found.beta, theirs.params, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(np.sqrt(np.diag(found.covariance)), theirs.bse, rtol=1e-6)
        roles = four.roles
        own = SiteFile(name, str(four.tables[name]), label, str(tmp_path), roles.patient, roles.time)
        result = site_statistics(site.store, own)
        np.testing.assert_allclose([e.estimate for e in result.effects], theirs.params, rtol=1e-6, atol=1e-8)
        assert result.taking_part == 4 and not result.hospitals and result.events > 0
    close(network)


def test_a_column_that_is_not_there_is_named_before_anything_is_sent(four):
    with pytest.raises(RequestError, match="'lactat' is not among the codebook's columns"):
        four.agreement("regression", formula="age + lactat").config()
