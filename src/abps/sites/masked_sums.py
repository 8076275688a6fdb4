"""A site's steps in the masked sums of a study whose server sees nothing else, each written into its log.

The masks themselves: :mod:`abps.sites.masking`. All of it goes through the conductor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.sites.outlook import Outlook
from abps.sites.post import CONDUCTOR, Post
from abps.sites.signing import Signer
from abps.sites.telling import Telling

if TYPE_CHECKING:
    from abps.sites.masking import Masking

T = TypeVar("T")


class MaskedSums:
    """What the conductor may ask a site about the sum of a round."""

    def __init__(
        self, outlook: Outlook, post: Post, telling: Telling, signer: Signer | None, authority: bytes | None
    ) -> None:
        self.outlook, self.post, self.telling = outlook, post, telling
        self._masking: Masking | None = None
        if outlook.method.kind == "star" and outlook.method.privacy.secure:
            from abps.sites.masking import Masking  # needs the extra that sites have

            context = masking_context(outlook.digest, outlook.job)
            self._masking = Masking(outlook.name, context, signer, authority)
        self.begin()

    def begin(self) -> None:
        """A round begins."""
        self.summand: NDArray[np.float64] | None = None  # what this site adds

    @property
    def _masks(self) -> Masking:
        if self._masking is None:
            raise RequestError(f"{self.outlook.agreement.method!r} as agreed has no masked sums")
        return self._masking

    def introduce(self) -> list[bytes]:
        """This site's key for the sums of this job, and why it is to be believed."""
        told = self._masks.introduction()
        size = sum(map(len, told))
        self.post.log(CONDUCTOR, "told", size, "our key for masked sums, for all members", round=0)
        return told

    def meet(self, introductions: Mapping[str, Sequence[bytes]]) -> None:
        """Everybody's keys, as the conductor passes them on; whose is not its own takes part in no sum."""
        for name in self._masks.meet(introductions):
            what = f"the key for masked sums that was told as {name}'s is not; no sum with it"
            self.telling.decided(what, round=0)

    def keys(self, round: int, names: Sequence[str]) -> list[bytes]:
        """Step 1: keys of the masks of a round's sum."""
        self.outlook.need(round, self.summand, "anything to add to a sum")
        told = self._masks.keys(round, names)
        return self._step(round, told, sum(map(len, told)), "keys of the masks")

    def shares(self, round: int, keys: Mapping[str, Sequence[bytes]]) -> dict[str, bytes]:
        """Step 2: shares of this site's secrets, each readable by one other site."""
        self._heard(round, sum(len(part) for each in keys.values() for part in each), "keys")
        told = self._masks.shares(round, keys)
        return self._step(round, told, sum(map(len, told.values())), "shares of our masks, sealed")

    def masked(self, round: int, sealed: Mapping[str, bytes]) -> bytes:
        """Step 3: what this site adds, under its masks, once."""
        with self.outlook.lock:
            summand = self.outlook.need(round, self.summand, "a summand that the conductor has not got")
            self.summand = None
        self._heard(round, sum(map(len, sealed.values())), "shares of masks")
        told = self._masks.masked(round, sealed, summand)
        self.post.log(CONDUCTOR, "weights", len(told), f"our summand of round {round}, under masks")
        return told

    def present(self, round: int, names: Sequence[str]) -> bytes:
        """Step 4: sign whose summands have come."""
        told = self._masks.present(round, names)
        return self._step(round, told, len(told), "our signature under the list of who is there")

    def open(self, round: int, names: Sequence[str], signatures: Mapping[str, bytes]) -> list[Any]:
        """Step 5: the shares that take the masks off the sum."""
        self._heard(round, sum(map(len, signatures.values())), "signatures")
        told = self._masks.opened(round, names, signatures)
        size = sum(len(share) for part in told for share in part.values())
        return self._step(round, told, size, "shares that take the masks off the sum")

    def _step(self, round: int, told: T, size: int, why: str) -> T:
        self.post.log(CONDUCTOR, "mask", size, f"{why}, in round {round}", round=round)
        return told

    def _heard(self, round: int, size: int, what: str) -> None:
        self.post.log(CONDUCTOR, "mask", size, f"{what} of all, in round {round}", sent=False, round=round)


def masking_context(study: str, job: str) -> str:
    """What the masks of a job are for: they fit no other."""
    return f"{study}/{job}"
