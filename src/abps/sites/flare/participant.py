"""A participant's process: the engine's own, with a list of revoked certificates.

The engine asks for a certificate of the authority and knows no revocation. So the relay looks up whoever
registers, or sends a heartbeat, in its own list, which may change while it runs. A site whose job process
fails does not end the job for all.
"""

from __future__ import annotations

import logging
import os
import runpy
import sys
from pathlib import Path
from typing import Any

from abps.sites.consent.kit import Membership

log = logging.getLogger("abps")

#: The engine's modules for the relay and for a site.
RELAY = "nvflare.private.fed.app.server.server_train"
SITE = "nvflare.private.fed.app.client.client_train"


def guard(known: Membership) -> None:
    """Let the engine refuse members whose certificate is on the list."""
    from nvflare.apis.fl_constant import FLContextKey
    from nvflare.private.fed.server.client_manager import ClientManager
    from nvflare.private.fed.utils import identity_utils

    verifies = identity_utils.IdentityVerifier.verify_common_name
    lives = ClientManager.heartbeat
    serials: dict[str, int] = {}  # of the certificates of who has registered

    def refused(name: str) -> str | None:
        if known.now.has(serials.get(name, 0)) or name in known.now.expelled:
            return f"the certificate of {name} was revoked by this network's authority; ask the operator"
        return None

    def verify_common_name(
        self: Any, asserted_cn: str, nonce: str, asserter_cert: Any, *more: Any, **named: Any
    ) -> bool:
        done = verifies(self, asserted_cn, nonce, asserter_cert, *more, **named)
        serials[asserted_cn] = asserter_cert.serial_number
        why = refused(asserted_cn)
        if why:
            log.warning("%s may not register: %s", asserted_cn, why)
            raise identity_utils.InvalidAsserterCert(why)
        return bool(done)

    def heartbeat(self: Any, token: str, client_name: str, client_fqcn: str, fl_ctx: Any) -> bool:
        why = refused(client_name)
        if why is None:
            return bool(lives(self, token, client_name, client_fqcn, fl_ctx))
        with self.lock:
            self.clients.pop(token, None)
            gone = self.name_to_clients.pop(client_name, None)
        if gone is not None:
            log.warning("%s is not connected any more: %s", client_name, why)
        fl_ctx.set_prop(FLContextKey.UNAUTHENTICATED, why, sticky=False)
        return False

    identity_utils.IdentityVerifier.verify_common_name = verify_common_name
    ClientManager.heartbeat = heartbeat


def go_on() -> None:
    """Let a job go on without a site whose process has failed; the engine would end it for all."""
    from nvflare.apis.job_launcher_spec import JobReturnCode
    from nvflare.private.defs import CellMessageHeaderKeys, JobFailureMsgKey
    from nvflare.private.fed.server.fed_server import FederatedServer

    judge = FederatedServer.process_job_failure

    def process_job_failure(self: Any, request: Any) -> Any:
        payload = request.payload if isinstance(request.payload, dict) else {}
        code = payload.get(JobFailureMsgKey.CODE)
        if payload and code != JobReturnCode.SUCCESS:
            client = self.client_manager.clients.get(request.get_header(CellMessageHeaderKeys.TOKEN))
            name = "an unknown site" if client is None else client.name
            log.warning("the job goes on without %s, whose process has failed (%s)", name, code)
            # The engine checks who reports it, and records that this site is done; the others go on.
            request.payload = {**payload, JobFailureMsgKey.CODE: JobReturnCode.SUCCESS}
        return judge(self, request)

    FederatedServer.process_job_failure = process_job_failure


def main() -> None:
    """Run the engine from the kit that it is started with."""
    from abps.sites.flare import job_process

    os.environ[job_process.PARTICIPANT] = str(os.getpid())  # what is started here ends with this process
    job_process.limit_frames()
    kit = Path(sys.argv[sys.argv.index("-m") + 1])
    engine = RELAY if "fed_server.json" in sys.argv else SITE
    if engine == RELAY:
        guard(Membership(kit))
        go_on()
    sys.argv[0] = engine
    runpy.run_module(engine, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
