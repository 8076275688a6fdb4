"""A job as data: what to start where, and the agreement. No code travels with it.

The package is installed at every site and at the relay; a site admits the job because its own
``class_allow_list`` names these classes (``abps site provision`` writes that list).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from nvflare.collab import CollabRecipe
from nvflare.recipe import SimEnv
from nvflare.recipe.spec import ExecEnv

from abps.core.errors import RequestError
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.proposal import Proposal, Signed
from abps.sites.flare.app import FlareConductor, FlareSite
from abps.sites.protocol.steps import Timeouts

#: What a site must allow for our jobs, and nothing more.
ALLOW = (
    "abps.sites.flare.app.FlareSite",
    "abps.sites.flare.app.FlareConductor",
    "nvflare.collab.runtime.executor.CollabExecutor",
    "nvflare.collab.runtime.controller.CollabController",
)


@dataclass(frozen=True)
class JobTimeouts(Timeouts):
    """Seconds of a job: the scheduler's, one call between sites, and a site's whole turn."""

    call: float = 10.0
    turn: float = 60.0

    def scheduler(self) -> dict[str, float]:
        """Those of the scheduler, as plain data."""
        return {f.name: getattr(self, f.name) for f in fields(Timeouts)}


class ABPSRecipe(CollabRecipe):
    """Some rounds of a study as a job, for ``SimEnv`` or ``ProdEnv``.

    rounds: of this job; short jobs let a site that was away come back with the next one.
    """

    def __init__(
        self,
        agreement: Agreement | None,
        rounds: int | None = None,
        min_sites: int = 2,
        timeouts: JobTimeouts | None = None,
        name: str | None = None,
        signed: Signed | None = None,
    ) -> None:
        """agreement: none, where codebooks are asked for.

        signed: the agreement as a signed proposal, which sites with certificates ask for.
        """
        if agreement is not None:
            agreement.config()  # what cannot be run is refused here, not at the sites
            signed = signed or Signed(Proposal(agreement.study, agreement))
        if signed is None:
            raise RequestError("a job without an agreement needs a proposal")
        timeouts = timeouts or JobTimeouts()
        text = signed.text()
        super().__init__(
            job_name=name or f"abps-{signed.proposal.study}",
            server=FlareConductor(
                text, rounds or (1 if agreement is None else agreement.rounds), timeouts.scheduler()
            ),
            client=FlareSite(text, timeouts.call, timeouts.turn),
            min_clients=min_sites,
            sync_task_timeout=max(60.0, timeouts.talk),
        )
        self._job.job.set_app_packages(["abps"])

    @staticmethod
    def _user_source_entries(objs: Any) -> list[tuple[str, str | None]]:
        """No source is shipped: the package is installed wherever the job runs."""
        return []

    def process_env(self, env: ExecEnv) -> None:
        """Make the engine's simulator admit the job, as provisioned sites do by their own file."""
        if isinstance(env, SimEnv):
            if env.num_threads < env.num_clients:
                # The engine would end with success while every call fails.
                raise RequestError(
                    f"SimEnv has {env.num_threads} threads for {env.num_clients} sites; give as many"
                )
            local = Path(env.workspace_root) / self._job.name / "local"
            local.mkdir(parents=True, exist_ok=True)
            (local / "resources.json").write_text(
                json.dumps({"format_version": 2, "class_allow_list": list(ALLOW)}), encoding="utf-8"
            )
