"""What a site accepts from each peer: how many messages, how far from its own model, and when it stops.

What a single message may say is checked by :mod:`abps.wire.admission`. Here are the checks that need more
than the message: the peer's rate, its refusals so far, and the site's own model.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from abps.core.arrays import Weights, distances, plausible
from abps.sites.node.context import SiteContext
from abps.wire.admission import RateLimit, Reason, Refusal

#: Refusals that no honest site causes: after some of them a peer is ignored.
_HOSTILE = frozenset(Reason) - {
    Reason.STRANGER, Reason.NOT_PARTNER, Reason.ROUND, Reason.RATE, Reason.QUARANTINE,
}  # fmt: skip


class Gate:
    """A site's limits for each of its peers, in one job."""

    def __init__(self, context: SiteContext, now: Callable[[], float]) -> None:
        self.context, self._now = context, now
        self._meters: dict[str, RateLimit] = {}
        self._hostile: dict[str, int] = {}
        self.begin()

    def begin(self) -> None:
        """A round begins."""
        self._messages: dict[str, int] = {}  # by peer: messages of this round

    def pass_on(self, peer: str) -> None:
        """Admit one more message of a peer, or refuse it, whatever it says."""
        limits = self.context.limits
        with self.context.lock:
            now = self._now()
            level = self._meters.get(peer) or RateLimit.full(limits, now)
            self._meters[peer] = level.take(peer, now, limits)
            self._messages[peer] = self._messages.get(peer, 0) + 1
            if self._messages[peer] > limits.per_round:
                raise Refusal(peer, Reason.RATE, f"more than {limits.per_round} messages in a round")
        if self.quarantined(peer):
            raise Refusal(peer, Reason.QUARANTINE, "it was refused too often in this job")

    def quarantined(self, peer: str) -> bool:
        """Whether a peer is ignored for the rest of this job."""
        return self._hostile.get(peer, 0) >= self.context.limits.refusals

    def note(self, refused: Refusal) -> None:
        """Count a refusal against its peer, and write it down."""
        if refused.reason in (Reason.NOT_FINITE, Reason.TOO_LARGE):
            self.context.round.refused.add(refused.peer)
        if refused.reason in _HOSTILE:
            with self.context.lock:
                self._hostile[refused.peer] = self._hostile.get(refused.peer, 0) + 1
        self.context.store.refused(refused.peer, str(refused.reason), refused.detail)

    def check_distance(self, peer: str, arrived: Weights, own: NDArray[np.float32]) -> None:
        """Refuse a model that is much farther from the common start than this site's own (shared,)."""
        start = self.context.learner.start
        near, far = distances(own[None], start), distances(arrived[None], start)
        if not plausible(far, near)[0]:
            detail = f"{far[0]:.3g} from the common start, ours is {near[0]:.3g} from it"
            raise Refusal(peer, Reason.TOO_LARGE, detail)
