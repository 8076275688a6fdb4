"""The relay's process: the engine's server, which here also knows who is no longer a member.

The engine asks for a certificate of the authority and has no list of revoked ones. So whoever registers, or
gives a sign of life, is looked up in the relay's own list first; the list may change while the relay runs.
"""

from __future__ import annotations

import logging
import runpy
import sys
from pathlib import Path
from typing import Any

from abps.sites.membership import Known

log = logging.getLogger("abps")

ENGINE = "nvflare.private.fed.app.server.server_train"


def guard(known: Known) -> None:
    """Let the engine refuse members whose certificate is on the list."""
    from nvflare.apis.fl_constant import FLContextKey
    from nvflare.private.defs import CellMessageHeaderKeys
    from nvflare.private.fed.server.client_manager import ClientManager
    from nvflare.private.fed.utils import identity_utils

    verifies = identity_utils.IdentityVerifier.verify_common_name
    admits, lives = ClientManager.authenticated_client, ClientManager.heartbeat
    serials: dict[str, int] = {}

    def refusal(name: str, serial: int) -> str | None:
        if not known.now.has(serial) and name not in known.now.expelled:
            return None
        return f"the certificate of {name} was revoked by this network's authority; ask the operator"

    def verify_common_name(
        self: Any,
        asserted_cn: str,
        nonce: str,
        asserter_cert: Any,
        signature: Any,
        intermediate_certs: Any = None,
        expected_eku: Any = None,
    ) -> bool:
        done = verifies(self, asserted_cn, nonce, asserter_cert, signature, intermediate_certs, expected_eku)
        serials[asserted_cn] = asserter_cert.serial_number
        why = refusal(asserted_cn, asserter_cert.serial_number)
        if why:
            log.warning("%s may not register: %s", asserted_cn, why)
            raise identity_utils.InvalidAsserterCert(why)
        return bool(done)

    def authenticated_client(self: Any, request: Any, fl_ctx: Any, client_type: Any) -> Any:
        found = admits(self, request, fl_ctx, client_type)
        name = request.get_header(CellMessageHeaderKeys.CLIENT_NAME)
        why = refusal(name, serials.get(name, 0))
        if found is None and why:  # the engine keeps the reason to itself
            fl_ctx.set_prop(FLContextKey.UNAUTHENTICATED, why, sticky=False)
        return found

    def heartbeat(self: Any, token: str, client_name: str, client_fqcn: str, fl_ctx: Any) -> bool:
        why = refusal(client_name, serials.get(client_name, 0))
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


def main() -> None:
    """Run the engine's server with the list of the kit that it is started from."""
    kit = Path(sys.argv[sys.argv.index("-m") + 1])
    guard(Known(kit))
    sys.argv[0] = ENGINE
    runpy.run_module(ENGINE, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
