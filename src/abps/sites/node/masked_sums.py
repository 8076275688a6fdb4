"""A site's part in masked sums: the relay adds up and sees no summand.

The masks: :mod:`abps.sites.protocol.masking`. Every step is written into the log, before it leaves or when it
came. The group of a sum is the roster of the job, which the site has checked against the members that its
people approved.

Two sums of different members would reveal their difference, and exchanges ask about nearly the same models
again and again. So all sums of a study are of the same members; who they are stays in the store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.methods.regression import Regression
from abps.sites.consent.keys import Signer
from abps.sites.node.context import SiteContext
from abps.sites.node.differencing import OPENED, revealing_members
from abps.sites.node.transport import AuditedTransport
from abps.sites.protocol.commands import Command
from abps.sites.store.rows import EntryKind

if TYPE_CHECKING:
    from abps.sites.protocol.masking import Masking


class MaskedSums:
    """What the scheduler may ask a site about the sum of a round."""

    def __init__(
        self,
        context: SiteContext,
        transport: AuditedTransport,
        signer: Signer | None,
        authority: bytes | None,
    ) -> None:
        self.context, self.transport = context, transport
        self._made: Masking | None = None
        if context.method.privacy.secure:
            from abps.sites.protocol.masking import Masking  # needs the extra that sites have

            purpose = f"{context.digest}/{context.job}"
            self._made = Masking(context.name, purpose, signer, authority, write=self.write)
        self.begin()

    def begin(self) -> None:
        """A round begins."""
        self.summand: NDArray[np.float64] | None = None  # what this site adds

    def commands(self) -> dict[Command, Callable[..., Any]]:
        """What the scheduler may ask for."""
        return {
            Command.SUM_INTRODUCE: lambda: self.steps.introduction(),
            Command.SUM_MEET: self.meet,
            Command.SUM_KEYS: self.keys,
            Command.SUM_SHARES: lambda round, keys: self.steps.shares(round, keys),
            Command.SUM_MASKED: self.masked,
            Command.SUM_PRESENT: self.present,
            Command.SUM_OPEN: self.open,
        }

    @property
    def steps(self) -> Masking:
        """The masks of this job."""
        if self._made is None:
            raise RequestError(f"{self.context.agreement.method!r} as agreed has no masked sums")
        return self._made

    @steps.setter
    def steps(self, made: Masking) -> None:
        self._made = made

    def meet(self, introductions: Mapping[str, Sequence[bytes]]) -> None:
        """Everybody's keys, as the relay passes them on; a site whose key is not proven is in no sum."""
        for name in self.steps.meet(introductions):
            what = f"the key for masked sums that came as {name}'s is not signed by it; no sum with it"
            self.transport.log_decision(what, round=0)

    def keys(self, round: int, group: Sequence[str]) -> list[bytes]:
        """Step 1: keys of the masks of a round's sum; the group is the roster of the job, and no other."""
        self.context.need(round, self.summand, "anything to add to a sum")
        if set(group) != set(self.context.roster):
            raise RequestError(
                f"the relay names {len(group)} sites for a sum, and the job has {len(self.context.roster)}; "
                "a sum of others than all members is refused"
            )
        return self.steps.keys(round, group)

    def masked(self, round: int, sealed: Mapping[str, bytes]) -> bytes:
        """Step 3: what this site adds, under its masks, once."""
        with self.context.lock:
            summand = self.context.need(round, self.summand, "a summand that has not left yet")
            what = f"our summand of round {round}"
            made = self.steps.masked(round, sealed, summand, EntryKind.UPLOAD, what)
            self.summand = None
        return made

    def present(self, round: int, names: Sequence[str]) -> bytes:
        """Step 4: sign whose summands have come."""
        why = self._not_to_be_opened(sorted(names))
        if why:
            what = f"the sum of round {round} {why}; it is not opened"
            self.transport.log_decision(what, round=round)
            raise RequestError(what)
        return self.steps.present(round, names)

    def _not_to_be_opened(self, names: list[str]) -> str:
        """Why this site does not open a sum of these members; nothing if it does."""
        context, opened = self.context, self.opened()
        absent = sorted(set(context.roster) - set(names))
        if absent and context.method.if_absent()[0]:
            return f"is without {', '.join(absent)}, and the study waits for everybody"
        if opened not in (None, names):
            return "is of other members than an earlier one, and the difference would reveal these"
        if opened is None and isinstance(context.method, Regression):
            return revealing_members(context.store, names)
        return ""

    def open(self, round: int, names: Sequence[str], signatures: Mapping[str, bytes]) -> list[Any]:
        """Step 5: the shares that take the masks off the sum; whose it is stands on the disk before."""
        shares = self.steps.opened(round, names, signatures)
        if self.opened() is None:
            self.context.store.keep(**{OPENED: json.dumps(sorted(names))})
        return shares

    def opened(self) -> list[str] | None:
        """The members of the study's sums; none before the first."""
        kept: list[str] | None = json.loads(self.context.store.facts().get(OPENED, "null"))
        return kept

    def write(self, kind: EntryKind, size: int, why: str, number: int, sent: bool = True) -> None:
        self.transport.log(self.transport.relay, kind, size, why, sent, number)
