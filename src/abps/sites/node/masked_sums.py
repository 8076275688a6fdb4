"""A site's part in the masked sums of a study whose server sees nothing else.

The steps: :mod:`.sum_steps`; the masks: :mod:`abps.sites.protocol.masking`. All of it goes through the
conductor. Of sums over rows that the server may ask for twice, two that differ by few sites would show these:
such a sum is not opened (:mod:`abps.privacy.differencing`). Whose sums were opened stays in the store, over
all jobs of the study.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.methods.star import StarMethod
from abps.privacy.differencing import FEWEST, may_be_opened
from abps.sites.consent.keys import Signer
from abps.sites.node.context import SiteContext
from abps.sites.node.publishing import Publishing
from abps.sites.node.transport import RELAY, AuditedTransport

if TYPE_CHECKING:
    from abps.sites.node.sum_steps import SumSteps

#: The fact of a store that says whose sums were opened.
_OPENED = "opened"


class MaskedSums:
    """What the conductor may ask a site about the sum of a round."""

    def __init__(
        self,
        site_context: SiteContext,
        post: AuditedTransport,
        telling: Publishing,
        signer: Signer | None,
        authority: bytes | None,
    ) -> None:
        self.site_context, self.post, self.telling = site_context, post, telling
        self._made: SumSteps | None = None
        if site_context.method.kind == "star" and site_context.method.privacy.secure:
            from abps.sites.node.sum_steps import SumSteps
            from abps.sites.protocol.masking import Masking  # needs the extra that sites have

            context = masking_context(site_context.digest, site_context.job)
            self._made = SumSteps(
                Masking(site_context.name, context, signer, authority), self._write, "round"
            )
        self.begin()

    def begin(self) -> None:
        """A round begins."""
        self.summand: NDArray[np.float64] | None = None  # what this site adds

    @property
    def _steps(self) -> SumSteps:
        if self._made is None:
            raise RequestError(f"{self.site_context.agreement.method!r} as agreed has no masked sums")
        return self._made

    def introduce(self) -> list[bytes]:
        """This site's key for the sums of this job, and why it is to be believed."""
        return self._steps.introduce()

    def meet(self, introductions: Mapping[str, Sequence[bytes]]) -> None:
        """Everybody's keys, as the conductor passes them on; whose is not its own takes part in no sum."""
        for name in self._steps.meet(introductions):
            what = f"the key for masked sums that was told as {name}'s is not; no sum with it"
            self.telling.decided(what, round=0)

    def keys(self, round: int, names: Sequence[str]) -> list[bytes]:
        """Step 1: keys of the masks of a round's sum."""
        self.site_context.need(round, self.summand, "anything to add to a sum")
        return self._steps.keys(round, names)

    def shares(self, round: int, keys: Mapping[str, Sequence[bytes]]) -> dict[str, bytes]:
        """Step 2: shares of this site's secrets, each readable by one other site."""
        return self._steps.shares(round, keys)

    def masked(self, round: int, sealed: Mapping[str, bytes]) -> bytes:
        """Step 3: what this site adds, under its masks, once."""
        with self.site_context.lock:
            summand = self.site_context.need(round, self.summand, "a summand that the conductor has not got")
            self.summand = None
        return self._steps.masked(round, sealed, summand, "weights", f"our summand of round {round}")

    def present(self, round: int, names: Sequence[str]) -> bytes:
        """Step 4: sign whose summands have come."""
        if self._of_rows and not may_be_opened(self._opened(), names):
            what = (
                f"the sum of round {round} would be without, or with, fewer than {FEWEST} sites of an "
                "earlier one, and the difference would show these; it is not opened"
            )
            self.telling.decided(what, round=round)
            raise RequestError(what)
        return self._steps.present(round, names)

    def open(self, round: int, names: Sequence[str], signatures: Mapping[str, bytes]) -> list[Any]:
        """Step 5: the shares that take the masks off the sum; whose it is stands on the disk before."""
        told = self._steps.opened(round, names, signatures)
        opened, listed = self._opened(), sorted(names)
        if self._of_rows and listed not in opened:
            self.site_context.store.keep(**{_OPENED: json.dumps([*opened, listed])})
        return told

    @property
    def _of_rows(self) -> bool:
        return cast(StarMethod, self.site_context.method).asks

    def _opened(self) -> list[list[str]]:
        return list(json.loads(self.site_context.store.facts().get(_OPENED, "[]")))

    def _write(self, kind: str, size: int, why: str, number: int, sent: bool = True) -> None:
        self.post.log(RELAY, kind, size, why, sent, number)


def masking_context(study: str, job: str) -> str:
    """What the masks of a job are for: they fit no other."""
    return f"{study}/{job}"
