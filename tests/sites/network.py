"""Small federations for the tests of real sites: one table per site, and the same rows in one table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from abps.core.beliefs import Beliefs
from abps.core.protocol import Stage
from abps.data.codebook import Codebook, merge_statistics
from abps.data.federation import Federation
from abps.data.prepare import codebook, with_statistics
from abps.data.roles import Roles
from abps.data.synthetic.builtin import builtin_table
from abps.data.table import MIN_CLASS, federate, own_table
from abps.methods.settings import configure
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.sitefile import Policy
from abps.sites.node.site import Site
from abps.sites.store.store import Store
from abps.wire import versions

from .loopback import LoopbackNetwork

#: Sites that let every study in, for tests of something else.
OPEN = Policy("auto", server=True, rows=1, events=1, floor=0)

NAMES = tuple(f"site-{k + 1}" for k in range(16))


@dataclass(frozen=True)
class Hospitals:
    """The tables of some hospitals, each in a file of its own, and the federation they would be together."""

    names: tuple[str, ...]
    tables: dict[str, Path]
    together: Federation
    roles: Roles

    def book(self, seed: int, standardise: str = "own") -> Codebook:
        """The columns of all together and, if they are to have a common scale, what sites tell of them."""
        book = codebook(self.together, seed)
        if standardise == "own":
            return book
        told = [with_statistics(book, self.table(name, book), seed).site_statistics[0] for name in self.names]
        statistics, took = merge_statistics(told, book.numbers, None)
        return replace(book, statistics=statistics, statistics_source=took)

    def table(self, name: str, book: Codebook | None = None) -> Federation:
        roles = self.roles
        return own_table(self.tables[name], name, roles.label, roles.patient, roles.time, (), book)

    def agreement(self, method: str, seed: int = 11, rounds: int = 5, **settings) -> Agreement:
        training = configure(method, settings, rounds).training
        return Agreement("test", method, self.book(seed, training.standardise), seed, rounds, settings)


def hospitals(folder: Path, count: int, stays: int = 1600, more: str = "") -> Hospitals:
    """Centers of the built-in federation under the names that sites have."""
    kinds = more or f"groups={min(count, 6)}"
    frame, roles = builtin_table(f"icu-synthetic:centers={count},stays={stays},{kinds}")
    old = sorted(frame["center"].unique().to_list())
    names = NAMES[:count]
    frame = frame.with_columns(pl.col("center").replace_strict(dict(zip(old, names))))
    folder.mkdir(parents=True, exist_ok=True)
    tables = {}
    for name in names:
        tables[name] = folder / f"{name}.parquet"
        frame.filter(pl.col("center") == name).drop("center", "careunit").write_parquet(tables[name])
    return Hospitals(names, tables, federate(frame, roles, "hospitals", MIN_CLASS), roles)


def open_site(
    given: Hospitals, name: str, agreement: Agreement, store: Path, network: LoopbackNetwork, **more
) -> Site:
    """A site that reads its own table and has its own store."""
    data = agreement.prepare(given.table(name, agreement.book))
    kept = Store.open(store / f"{name}.sqlite", name, agreement.digest(), agreement.notes())
    try:
        site = Site(name, agreement, data, kept, network.sender(name), **more)
    except BaseException:
        kept.close()
        raise
    network.sites[name] = site
    return site


def join(site: Site, members, first: int = 1, rows: dict[str, int] | None = None) -> None:
    """Let a site into a job."""
    site.join(members, first, rows or {}, list(versions.VERSION))


def close(network: LoopbackNetwork) -> None:
    for site in network.sites.values():
        site.store.close()


def same_beliefs(stores: dict[str, Store], beliefs: Beliefs) -> None:
    """Every site's stored evidence is the simulation's, and there is no more of it."""
    names = sorted(stores)
    stored = 0
    for i, name in enumerate(names):
        for peer, evidence in stores[name].beliefs().items():
            expected = beliefs.posterior(i, names.index(peer))
            told = [evidence.gain + beliefs.prior[0], evidence.loss + beliefs.prior[1], evidence.count]
            np.testing.assert_allclose(
                told, [float(expected.alpha), float(expected.beta), float(expected.count)], rtol=0, atol=1e-12
            )
            stored += 1
    assert stored == beliefs.observed


def agree_about_partners(stores: dict[str, Store], kappa: int, doubt: bool) -> None:
    """No pair is asymmetric in the stores' records, and nobody has more than kappa partners.

    doubt: a match may still be in doubt at the other end (never denied); else everything is settled.
    """
    for name, store in stores.items():
        if not doubt:
            assert store.in_doubt() == []
        for t, partners in store.partners().items():
            assert len(partners) <= kappa
            for peer in partners:
                other = stores[peer]
                held = any(r.peer == name and r.stage is Stage.HELD for r in other.promises(t))
                assert name in other.partners().get(t, ()) or (doubt and held), (t, name, peer)


def counted_once(store: Store) -> None:
    """Every belief consists of the observations that are written down, which are of partners."""
    seen = store.observations()
    counts: dict[str, int] = {}
    gains: dict[str, float] = {}
    for (t, peer), value in sorted(seen.items()):
        assert peer in store.partners()[t]
        counts[peer] = counts.get(peer, 0) + 1
        gains[peer] = gains.get(peer, 0.0) + value
    beliefs = store.beliefs()
    assert {peer: e.count for peer, e in beliefs.items()} == counts
    for peer, e in beliefs.items():
        np.testing.assert_allclose(e.gain, gains[peer], rtol=0, atol=1e-9)
        np.testing.assert_allclose(e.loss, counts[peer] - gains[peer], rtol=0, atol=1e-9)
