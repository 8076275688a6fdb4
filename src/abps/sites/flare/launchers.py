"""How a participant starts the process of a job: with the engine's launchers, running :mod:`.job_process`."""

from __future__ import annotations

from typing import Any

from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher

from abps.sites.flare import job_process


class SiteLauncher(ClientProcessJobLauncher):
    """At a site."""

    def get_command(self, job_meta: Any, fl_ctx: Any) -> str:
        """The engine's command, run through our module."""
        return job_process.command(super().get_command(job_meta, fl_ctx))


class RelayLauncher(ServerProcessJobLauncher):
    """At the relay."""

    def get_command(self, job_meta: Any, fl_ctx: Any) -> str:
        """The engine's command, run through our module."""
        return job_process.command(super().get_command(job_meta, fl_ctx))
