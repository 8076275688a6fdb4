"""A participant's process: the engine's own, with a list of revoked certificates.

The engine asks for a certificate of the authority and knows no revocation. So the relay looks up whoever
registers, or sends a heartbeat, in its own list, which may change while it runs. A site's process logs why it
was refused. A site whose job process fails does not end the job for all.
"""

from __future__ import annotations

import datetime
import logging
import os
import runpy
import sys
from pathlib import Path
from typing import Any

from abps.sites.consent.kit import Membership, RevocationList

log = logging.getLogger("abps")

#: The engine's modules for the relay and for a site.
RELAY = "nvflare.private.fed.app.server.server_train"
SITE = "nvflare.private.fed.app.client.client_train"

#: What the relay's refusals say.
_REVOKED = "was revoked by this network's authority"
_ENDED = "has ended"


def refusal(
    revoked: RevocationList, name: str, serial: int, ends: datetime.datetime | None, now: datetime.datetime
) -> str | None:
    """Why a member may not register, or stay; None if it may.  ends: when its certificate does."""
    if revoked.has(serial) or name in revoked.expelled:
        return f"the certificate of {name} {_REVOKED}; ask the operator"
    # The engine looks at the dates when a line is made; a line may outlive its certificate.
    if ends is not None and now > ends:
        return f"the certificate of {name} {_ENDED} on {ends:%Y-%m-%d}; have it rotated"
    return None


def guard(known: Membership) -> None:
    """Let the engine refuse members whose certificate is on the list."""
    from nvflare.apis.fl_constant import FLContextKey
    from nvflare.private.defs import CellMessageHeaderKeys
    from nvflare.private.fed.server.client_manager import ClientManager
    from nvflare.private.fed.utils import identity_utils

    verifies = identity_utils.IdentityVerifier.verify_common_name
    admits, lives = ClientManager.authenticated_client, ClientManager.heartbeat
    serials: dict[str, int] = {}
    ends: dict[str, datetime.datetime] = {}

    def refused(name: str, serial: int) -> str | None:
        return refusal(known.now, name, serial, ends.get(name), datetime.datetime.now(datetime.UTC))

    def verify_common_name(
        self: Any, asserted_cn: str, nonce: str, asserter_cert: Any, *more: Any, **named: Any
    ) -> bool:
        done = verifies(self, asserted_cn, nonce, asserter_cert, *more, **named)
        serials[asserted_cn] = asserter_cert.serial_number
        ends[asserted_cn] = asserter_cert.not_valid_after_utc
        why = refused(asserted_cn, asserter_cert.serial_number)
        if why:
            log.warning("%s may not register: %s", asserted_cn, why)
            raise identity_utils.InvalidAsserterCert(why)
        return bool(done)

    def authenticated_client(self: Any, request: Any, fl_ctx: Any, client_type: Any) -> Any:
        found = admits(self, request, fl_ctx, client_type)
        name = request.get_header(CellMessageHeaderKeys.CLIENT_NAME)
        why = refused(name, serials.get(name, 0))
        if found is None and why:  # the engine keeps the reason to itself
            fl_ctx.set_prop(FLContextKey.UNAUTHENTICATED, why, sticky=False)
        return found

    def heartbeat(self: Any, token: str, client_name: str, client_fqcn: str, fl_ctx: Any) -> bool:
        why = refused(client_name, serials.get(client_name, 0))
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
    ClientManager.authenticated_client = authenticated_client
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


def log_refusals() -> None:
    """Let a site's process log why the relay refused it, which the engine keeps to itself."""
    from nvflare.private.fed import authenticator
    from nvflare.private.fed.client import communicator

    plain: Any = communicator.FLCommunicationError

    class LoggedError(plain):
        """The engine's error, logged if it is about membership."""

        def __init__(self, *parts: Any) -> None:
            super().__init__(*parts)
            text = " ".join(str(part) for part in parts)
            if "the certificate of" in text and (_REVOKED in text or _ENDED in text):
                start = text.index("the certificate of")
                log.error("the relay refuses this site: %s", text[start:].strip("'}\""))

    communicator.FLCommunicationError = authenticator.FLCommunicationError = LoggedError


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
    else:
        log_refusals()
    sys.argv[0] = engine
    runpy.run_module(engine, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
