"""A job as data: what to start where, and the signed proposal. No code travels with it.

The package is installed at every site and at the relay; a site admits the job because its own
``class_allow_list`` names these classes (``abps site provision`` writes that list).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from nvflare.collab import CollabRecipe

from abps.sites.consent.proposal import SignedProposal
from abps.sites.flare.app import FlareScheduler, FlareSite
from abps.sites.protocol.commands import Timeouts

#: What a site must allow for our jobs, and nothing more.
ALLOW = (
    "abps.sites.flare.app.FlareSite",
    "abps.sites.flare.app.FlareScheduler",
    "nvflare.collab.runtime.executor.CollabExecutor",
    "nvflare.collab.runtime.controller.CollabController",
)

#: Seconds between two requests of a site for its next task; the engine's default is two.
TASK_SECONDS = 0.5


@dataclass(frozen=True)
class JobTimeouts(Timeouts):
    """Seconds of a job: the scheduler's, one call between sites, and a site's whole turn."""

    call: float = 10.0
    turn: float = 60.0

    def scheduler(self) -> dict[str, float]:
        """Those of the scheduler, as plain data."""
        return {f.name: getattr(self, f.name) for f in fields(Timeouts)}


class ABPSRecipe(CollabRecipe):
    """A job for the engine: some rounds of a study or, without an agreement, the gathering of codebooks."""

    def __init__(
        self, signed: SignedProposal, rounds: int = 1, min_sites: int = 2, timeouts: JobTimeouts | None = None
    ) -> None:
        """rounds: of this job; a site that was away can come back with the next one."""
        agreement, timeouts = signed.proposal.agreement, timeouts or JobTimeouts()
        if agreement is not None:
            agreement.config()  # what cannot be run is refused here, not at the sites
        super().__init__(
            job_name=f"abps-{signed.proposal.study}{'' if agreement is not None else '-codebooks'}",
            server=FlareScheduler(signed.text(), rounds, timeouts.scheduler()),
            client=FlareSite(signed.text(), timeouts.call, timeouts.turn),
            min_clients=min_sites,
            sync_task_timeout=max(60.0, timeouts.talk),
        )
        self._job.job.set_app_packages(["abps"])

    @staticmethod
    def _user_source_entries(objs: Any) -> list[tuple[str, str | None]]:
        """No source is shipped: the package is installed wherever the job runs."""
        return []

    def write(self, folder: Path) -> Path:
        """Write the job into a folder, for the engine to submit."""
        self.export(str(folder))
        for path in folder.rglob("config_fed_server.json"):
            config = json.loads(path.read_text(encoding="utf-8"))
            config["server"] = {**config.get("server", {}), "task_request_interval": TASK_SECONDS}
            path.write_text(json.dumps(config), encoding="utf-8")
        return folder / self.job_name
