"""A package that floods: before its first payload ``site-1`` sends every peer a hundred megabytes.

Everything else is the method of ``rotation``.
"""

from __future__ import annotations

import contextlib

from nvflare.collab import CollabCallError
from rotation import ROTATION as FLOODING  # noqa: F401

from abps.sites.flare.app import FlareSite

#: What is sent, in bytes.
SIZE = 100 << 20

_done: list[bool] = []
_carry = FlareSite._carry


def _flood(self, peer, what, data):
    if self._job.site == "site-1" and not _done:
        _done.append(True)
        for proxy in self._peers.values():
            with contextlib.suppress(CollabCallError):
                proxy(timeout=3.0, secure=self._secure).receive("weights", bytes(SIZE))
    return _carry(self, peer, what, data)


FlareSite._carry = _flood
