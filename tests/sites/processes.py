"""A provisioned network of real processes on this machine's loopback address, with the tests' hospitals."""

from __future__ import annotations

import os
from pathlib import Path

from abps.lab import rehearsal as on_one_machine
from abps.sites.consent.sitefile import Policy, SiteFile
from abps.sites.flare import kits
from abps.sites.flare.submit import JobOutcome, submit
from abps.sites.protocol.commands import Timeouts
from abps.sites.store.store import Store

from .network import OPEN, Hospitals

#: The longest that anything is waited for; the machine may be busy with other things.
LONG = 420.0


class Processes(on_one_machine.Processes):
    """The relay and the sites, each a process of its own, from kits that were provisioned here."""

    def __init__(
        self, folder: Path, given: Hospitals, spy: bool = False, policies: dict[str, Policy] | None = None
    ) -> None:
        self.given = given
        self.folder = folder
        self.spy = folder / "spy" if spy else None
        port = on_one_machine.free_port()
        network = kits.provision(folder / "kits", given.names, "localhost", port)
        super().__init__(network, port, self._variables(network))
        self.policies = dict(policies or {})
        for name in given.names:
            self.site_file(name).write(self.network.sites[name] / "local")

    def _variables(self, network: kits.Network) -> dict[str, dict[str, str]]:
        """Where methods from outside the package are and, inside the relay, a reader of all frames."""
        foreign = str(Path(__file__).parents[1] / "foreign")
        path = os.pathsep.join([kits.command(network.relay)[1]["PYTHONPATH"], foreign])
        told = {name: {"PYTHONPATH": path} for name in (*network.sites, on_one_machine.RELAY)}
        if self.spy is not None:
            spy = str(Path(__file__).with_name("relay_spy"))
            told[on_one_machine.RELAY] = {
                "PYTHONPATH": os.pathsep.join([spy, path]), "RELAY_SPY": str(self.spy),
            }  # fmt: skip
        return told

    def site_file(self, name: str) -> SiteFile:
        roles = self.given.roles
        return SiteFile(
            name,
            str(self.given.tables[name]),
            roles.label,
            str(self.folder / "stores" / name),
            roles.patient,
            roles.time,
            allow=("federated_mean", "flooding"),
            policy=self.policies.get(name, OPEN),
        )

    def run(self, agreement, rounds: int, timeouts: Timeouts | None = None) -> JobOutcome:
        timeouts = timeouts or Timeouts(call=8.0, sign=8.0)
        return submit(self.network.operator, agreement, rounds, 2, timeouts, wait=LONG)

    def store(self, name: str, study: str = "test") -> Store:
        return Store.look(self.site_file(name).store_of(study))
