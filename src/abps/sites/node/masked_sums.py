"""A site's part in masked sums: the relay adds up and sees no summand.

The masks: :mod:`abps.sites.protocol.masking`. Every step is written into the log, before it leaves or when it
came. The group of a sum is the roster of the job, which the site has checked against the members that its
people approved.

A star method may ask twice for sums over the same rows; two such sums that differ by few sites would reveal
these, so the second one is not opened (:mod:`abps.privacy.differencing`). Whose sums were opened stays in the
store, over all jobs of the study.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.methods.star import StarMethod
from abps.privacy.differencing import FEWEST, may_be_opened
from abps.sites.consent.keys import Signer
from abps.sites.node.context import SiteContext
from abps.sites.node.transport import RELAY, AuditedTransport
from abps.sites.protocol.commands import Command
from abps.sites.store.rows import EntryKind

if TYPE_CHECKING:
    from abps.sites.protocol.masking import Masking

T = TypeVar("T")

#: The fact of a store that says whose sums were opened.
_OPENED = "opened"


class Write(Protocol):
    """Writes a row of the log: its kind, how many bytes, why, in which round, and whether it leaves."""

    def __call__(self, kind: EntryKind, size: int, why: str, number: int, sent: bool = True) -> None:
        """Write it down, on the disk if it leaves."""


class SumSteps:
    """The steps of a sum, logged.  masking: the site's part in the sums of a job.  what: a round, a count."""

    def __init__(self, masking: Masking, write: Write, what: str) -> None:
        self._masking, self._write, self._what = masking, write, what

    def introduce(self) -> list[bytes]:
        """This site's key for the sums of this job, and proof that it is the site's."""
        own = self._masking.introduction()
        self._write(EntryKind.REPORT, sum(map(len, own)), "our key for masked sums, for all members", 0)
        return own

    def meet(self, introductions: Mapping[str, Sequence[bytes]]) -> list[str]:
        """Everybody's keys, as the relay passes them on. Returns the sites whose key is not proven: there is
        no sum with them."""
        return self._masking.meet(introductions)

    def keys(self, number: int, group: Sequence[str]) -> list[bytes]:
        """Step 1: keys of the masks of a sum over a group."""
        made = self._masking.keys(number, group)
        return self._leaves(made, sum(map(len, made)), "keys of the masks", number)

    def shares(self, number: int, keys: Mapping[str, Sequence[bytes]]) -> dict[str, bytes]:
        """Step 2: shares of this site's secrets, each readable by one other site."""
        self._came(sum(len(part) for each in keys.values() for part in each), "keys", number)
        made = self._masking.shares(number, keys)
        return self._leaves(made, sum(map(len, made.values())), "shares of our masks, sealed", number)

    def masked(
        self,
        number: int,
        sealed: Mapping[str, bytes],
        summand: NDArray[np.float64],
        kind: EntryKind,
        why: str,
    ) -> bytes:
        """Step 3: what this site adds, under its masks."""
        self._came(sum(map(len, sealed.values())), "shares of masks", number)
        made = self._masking.masked(number, sealed, summand)
        self._write(kind, len(made), f"{why}, under masks", number)
        return made

    def present(self, number: int, names: Sequence[str]) -> bytes:
        """Step 4: sign whose summands have come."""
        made = self._masking.present(number, names)
        return self._leaves(made, len(made), "our signature under the list of who is there", number)

    def opened(self, number: int, names: Sequence[str], signatures: Mapping[str, bytes]) -> list[Any]:
        """Step 5: the shares that take the masks off the sum."""
        self._came(sum(map(len, signatures.values())), "signatures", number)
        made = self._masking.opened(number, names, signatures)
        size = sum(len(share) for part in made for share in part.values())
        return self._leaves(made, size, "shares that take the masks off the sum", number)

    def _leaves(self, made: T, size: int, why: str, number: int) -> T:
        self._write(EntryKind.MASK, size, f"{why}, in {self._what} {number}", number)
        return made

    def _came(self, size: int, what: str, number: int) -> None:
        self._write(EntryKind.MASK, size, f"{what} of all, in {self._what} {number}", number, sent=False)


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
        self._made: SumSteps | None = None
        if context.method.privacy.secure and context.method.kind in ("star", "coordinated"):
            from abps.sites.protocol.masking import (  # needs the extra that sites have
                Masking,
                masking_context,
            )

            masks = Masking(context.name, masking_context(context.digest, context.job), signer, authority)
            self._made = SumSteps(masks, self._write, "round")
        self.begin()

    def begin(self) -> None:
        """A round begins."""
        self.summand: NDArray[np.float64] | None = None  # what this site adds

    def commands(self) -> dict[Command, Callable[..., Any]]:
        """What the scheduler may ask for."""
        return {
            Command.SUM_INTRODUCE: lambda: self._steps.introduce(),
            Command.SUM_MEET: self.meet,
            Command.SUM_KEYS: self.keys,
            Command.SUM_SHARES: lambda round, keys: self._steps.shares(round, keys),
            Command.SUM_MASKED: self.masked,
            Command.SUM_PRESENT: self.present,
            Command.SUM_OPEN: self.open,
        }

    @property
    def _steps(self) -> SumSteps:
        if self._made is None:
            raise RequestError(f"{self.context.agreement.method!r} as agreed has no masked sums")
        return self._made

    def meet(self, introductions: Mapping[str, Sequence[bytes]]) -> None:
        """Everybody's keys, as the relay passes them on; a site whose key is not proven is in no sum."""
        for name in self._steps.meet(introductions):
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
        return self._steps.keys(round, group)

    def masked(self, round: int, sealed: Mapping[str, bytes]) -> bytes:
        """Step 3: what this site adds, under its masks, once."""
        with self.context.lock:
            summand = self.context.need(round, self.summand, "a summand that has not left yet")
            self.summand = None
        kind = EntryKind.WEIGHTS if self.context.method.kind == "star" else EntryKind.UPLOAD
        return self._steps.masked(round, sealed, summand, kind, f"our summand of round {round}")

    def present(self, round: int, names: Sequence[str]) -> bytes:
        """Step 4: sign whose summands have come."""
        if self._of_rows and not may_be_opened(self._opened(), names):
            what = (
                f"the sum of round {round} differs by fewer than {FEWEST} sites from an earlier one, and the "
                "difference would reveal these; it is not opened"
            )
            self.transport.log_decision(what, round=round)
            raise RequestError(what)
        return self._steps.present(round, names)

    def open(self, round: int, names: Sequence[str], signatures: Mapping[str, bytes]) -> list[Any]:
        """Step 5: the shares that take the masks off the sum; whose it is stands on the disk before."""
        shares = self._steps.opened(round, names, signatures)
        opened, listed = self._opened(), sorted(names)
        if self._of_rows and listed not in opened:
            self.context.store.keep(**{_OPENED: json.dumps([*opened, listed])})
        return shares

    @property
    def _of_rows(self) -> bool:
        """Whether the sums are over rows and can be asked for twice."""
        return self.context.method.kind == "star" and cast(StarMethod, self.context.method).asks

    def _opened(self) -> list[list[str]]:
        return list(json.loads(self.context.store.facts().get(_OPENED, "[]")))

    def _write(self, kind: EntryKind, size: int, why: str, number: int, sent: bool = True) -> None:
        self.transport.log(RELAY, kind, size, why, sent, number)
