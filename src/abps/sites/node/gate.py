"""What a site lets in of each peer: how much, how far from its own, and for how long it is heard at all.

What a single message may say is checked by :mod:`abps.wire.admission`. Here are the checks that need more
than the message: the peer's rate, its refusals so far, and the site's own model.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from abps.core.arrays import Weights
from abps.core.plausibility import distances, plausible
from abps.sites.node.context import SiteContext
from abps.wire.admission import RateLimit, Reason, Refusal

#: Refusals that no honest site gives cause for: after some of them a peer is not heard any more.
_HOSTILE = frozenset(Reason) - {
    Reason.STRANGER, Reason.NOT_PARTNER, Reason.ROUND, Reason.RATE, Reason.QUARANTINE,
    Reason.PLACE,
}  # fmt: skip


class Gate:
    """The patience of a site with each of its peers, in one job."""

    def __init__(self, site_context: SiteContext, now: Callable[[], float]) -> None:
        self.site_context, self._now = site_context, now
        self._meters: dict[str, RateLimit] = {}
        self._hostile: dict[str, int] = {}
        self.begin()

    def begin(self) -> None:
        """A round begins."""
        self._told: dict[str, int] = {}  # by peer: messages of this round

    def pass_on(self, peer: str) -> None:
        """Let one more message of a peer in, or refuse it, whatever it says."""
        limits = self.site_context.limits
        with self.site_context.lock:
            now = self._now()
            level = self._meters.get(peer) or RateLimit.full(limits, now)
            self._meters[peer] = level.take(peer, now, limits)
            self._told[peer] = self._told.get(peer, 0) + 1
            if self._told[peer] > limits.per_round:
                raise Refusal(peer, Reason.RATE, f"more than {limits.per_round} messages in a round")
        if self.quarantined(peer):
            raise Refusal(peer, Reason.QUARANTINE, "it was refused too often in this job")

    def quarantined(self, peer: str) -> bool:
        """Whether nothing of a peer is heard any more in this job."""
        return self._hostile.get(peer, 0) >= self.site_context.limits.refusals

    def note(self, refused: Refusal) -> None:
        """Count a refusal against its peer, and write it down."""
        if refused.reason in (Reason.NOT_FINITE, Reason.TOO_LARGE):
            self.site_context.round.refused.add(refused.peer)
        if refused.reason in _HOSTILE:
            with self.site_context.lock:
                self._hostile[refused.peer] = self._hostile.get(refused.peer, 0) + 1
        self.site_context.store.refused(refused.peer, str(refused.reason), refused.detail)

    def check_distance(self, peer: str, arrived: Weights, own: NDArray[np.float32]) -> None:
        """Refuse a model that is much farther from the common start than this site's own (shared,)."""
        start = self.site_context.learner.start
        near, far = distances(own[None], start), distances(arrived[None], start)
        if not plausible(far, near)[0]:
            detail = f"{far[0]:.3g} from the common start, ours is {near[0]:.3g} from it"
            raise Refusal(peer, Reason.TOO_LARGE, detail)
