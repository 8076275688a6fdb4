"""A package that floods: at ``site-1`` the first payload for a peer comes after one of a hundred megabytes.

Everything else is the method of ``rotation``.
"""

from __future__ import annotations

import contextlib

from nvflare.collab import CollabCallError
from rotation import ROTATION as FLOODING  # noqa: F401

from abps.sites.flare.app import FlareSite

#: What is sent, in bytes.
SIZE = 100 << 20

_done: set[str] = set()
_carry = FlareSite._carry


def _flood(self, peer, what, data):
    if self._name == "site-1" and peer not in _done:
        _done.add(peer)
        with contextlib.suppress(CollabCallError):
            self._peers[peer](timeout=8.0, secure=self._secure).receive("weights", bytes(SIZE))
    return _carry(self, peer, what, data)


FlareSite._carry = _flood
