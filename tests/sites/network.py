"""Small federations for the tests of real sites: one table per site, and the same rows in one table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from abps.data.codebook import Codebook
from abps.data.federation import Federation
from abps.data.prepare import codebook, prepare
from abps.data.roles import Roles
from abps.data.table import MIN_CLASS, federate, own_table
from abps.lab.synthetic import builtin_table
from abps.methods.settings import configure
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.sitefile import Policy
from abps.sites.node.context import JobTerms
from abps.sites.node.site import Site
from abps.sites.store.store import Store
from abps.wire import messages

from .loopback import LoopbackNetwork

#: Sites that let every study in, for tests of something else.
OPEN = Policy("auto", rows=1, events=1, floor=0)

#: The smallest study of the flagship: linear, uploads seen by coordinators.
LINEAR = {"model": "linear", "standardise": "own"}

NAMES = tuple(f"site-{k + 1}" for k in range(16))


@dataclass(frozen=True)
class Hospitals:
    """The tables of some hospitals, each in a file of its own, and the federation they would be together."""

    names: tuple[str, ...]
    tables: dict[str, Path]
    together: Federation
    roles: Roles

    def book(self, seed: int, standardise: str = "own") -> Codebook:
        """The columns of all together and, if they are to have a common scale, the simulation's."""
        book = codebook(self.together, seed)
        if standardise == "own":
            return book
        return replace(
            book, statistics=prepare(self.together, seed, book, standardise=standardise).book.statistics
        )

    def table(self, name: str, book: Codebook | None = None) -> Federation:
        roles = self.roles
        return own_table(self.tables[name], name, roles.label, book, patient=roles.patient, time=roles.time)

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
        site = Site(name, agreement, data, kept, network.sender(name), JobTerms(**more))
    except BaseException:
        kept.close()
        raise
    network.sites[name] = site
    return site


def join(site: Site, members, first: int = 1, rows: dict[str, int] | None = None) -> None:
    """Let a site into a job."""
    site.join(members, first, rows or {}, list(messages.VERSION))


def close(network: LoopbackNetwork) -> None:
    for site in network.sites.values():
        site.store.close()
