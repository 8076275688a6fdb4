"""A site's part in masked sums (:mod:`abps.privacy.secure_sum`).

Everything goes through the relay, which adds up and sees no summand. It cannot stand in for a site either:
each site's key for a job comes with its certificate and a signature of its kit's key, which the others check.
(In a rehearsal without certificates nobody can.) Two sums of different members reveal their difference, so
all sums of a study are of the same members; who they are is on the disk before a site's first summand leaves
it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.privacy import fixed_point
from abps.privacy.fixed_point import Ring
from abps.privacy.secure_sum import Group, Member, SumError
from abps.sites.consent.keys import Signer, signer_of
from abps.sites.protocol.commands import Command
from abps.sites.store.rows import EntryKind, canonical

if TYPE_CHECKING:
    from abps.sites.store.store import Store

Floats = NDArray[np.float64]

PURPOSE = "key of masked sums"  # what the signature of a kit's key is for
SUMMED = "summed"  # the fact of a store that says of which members the sums of its study are

#: Writes a row of the log: (kind, bytes, why, number, sent=True); on the disk, if it leaves.
Write = Callable[..., None]


class Masker(Protocol):
    def masked(self, group: Group, vector: Ring) -> Ring: ...

    def verified(self, group: Group, total: Ring) -> Ring: ...


class MaskedSums:
    """A site's masked sums in a job: keys at its beginning, then a summand for every sum.  summand: what this
    site adds to a sum of these members, or an error.  kind: what the log calls it.  objection: why a sum of
    these members, the first or not, is refused.  leaving: called before a summand leaves."""

    def __init__(
        self,
        member: Member,
        store: Store,
        write: Write,
        summand: Callable[[int, Sequence[str]], Floats],
        kind: EntryKind,
        what: str = "round",
    ) -> None:
        self.member, self._store, self._write, self._summand = member, store, write, summand
        self._kind, self._what = kind, what
        self.masker: Masker = member
        self.signer: Signer | None = None  # none in a rehearsal, as the authority's certificate
        self.authority: bytes | None = None
        self.leaving: Callable[[], None] = lambda: None
        self.objection: Callable[[list[str], bool], str] = lambda names, first: ""
        self._number = 0
        self._group: Group | None = None

    def commands(self) -> dict[Command, Callable[..., Any]]:
        return {
            Command.SUM_INTRODUCE: self.introduction,
            Command.SUM_MEET: self.meet,
            Command.SUM_KEEP: lambda parcels: self.keep(parcels.get(self.member.name, {})),
            Command.SUM_MASKED: self.masked,
        }

    # Once in a job

    def introduction(self) -> list[Any]:
        """This job's key, the site's certificate, and the signature under the key (the latter two are empty
        in a rehearsal); and of which members this site's sums are, if there was one."""
        own = [self.member.public, b"", b""]
        if self.signer is not None:
            content = self._signed(self.member.name, self.member.public)
            own[1:] = self.signer.certificate, self.signer.sign(PURPOSE, content)
        self._write(EntryKind.REPORT, sum(map(len, own)), "our key for masked sums, for all members", 0)
        return [*own, self.members or []]

    def meet(self, introductions: Mapping[str, Sequence[bytes]]) -> dict[str, bytes]:
        """Learn the keys of members, as the relay passes them on; for each, what checks totals, sealed. A
        site whose key is not proven is in no sum."""
        proven = {}
        for name, given in introductions.items():
            try:
                public, certificate, signature, *_ = given
                if self.authority is not None:
                    signed = self._signed(name, public), signature
                    if signer_of(certificate, self.authority, PURPOSE, *signed).name != name:
                        raise ValueError("it is another member's")
                proven[name] = public
            except (AttributeError, TypeError, ValueError) as error:
                why = f"the key for masked sums that came as {name}'s is not its own ({error})"
                self._write(EntryKind.DECISION, 0, f"{why}; no sum with it", 0, sent=False)
        with _refused():
            sealed = self.member.meet(proven)
        self._write(EntryKind.MASK, sum(map(len, sealed.values())), "bytes that check totals, sealed", 0)
        return sealed

    def keep(self, sealed: Mapping[str, bytes]) -> None:
        with _refused():
            self.member.keep(sealed)
            size = sum(map(len, sealed.values()))
        self._write(EntryKind.MASK, size, "bytes that check totals, of the others", 0, sent=False)

    def _signed(self, name: str, public: bytes) -> bytes:
        return canonical([self.member.context, name, public.hex()])

    # In every sum

    def begin(self, number: int, names: Sequence[str]) -> Floats:
        """What this site adds to a sum of these members; each is begun once, in their order."""
        if number <= self._number:
            raise RequestError(f"the sum of {self._what} {self._number} has begun; {number} is over")
        with _refused():
            group = Group(tuple(sorted(names)), f"{self.member.context}/{number}")
        adds = self._summand(number, group.members)
        before = self.members
        why = self.objection(list(group.members), before is None)
        if not why and before not in (None, list(group.members)):
            why = "is of other members than an earlier one, and the difference would reveal these"
        if why:
            what = f"the sum of {self._what} {number} {why}; nothing is added to it"
            self._write(EntryKind.DECISION, 0, what, number, sent=False)
            raise RequestError(what)
        self._number, self._group = number, group
        return adds

    def masked(self, number: int, names: Sequence[str]) -> bytes:
        """What this site adds to a sum, under its masks; whose sum it is stands on the disk before."""
        adds = self.begin(number, names)
        assert self._group is not None
        with _refused():
            ring = fixed_point.encode(adds, len(names))
            made = self.masker.masked(self._group, ring).astype("<u8").tobytes()
        self.leaving()
        if self.members is None:
            self._store.keep(**{SUMMED: json.dumps(self._group.members)})
        why = f"our summand of {self._what} {number}, under masks"
        self._write(self._kind, len(made), why, number)
        return made

    def total(self, number: int, data: bytes) -> Floats:
        """The sum as the relay says it: checked by what only members know."""
        if self._group is None or number != self._number:
            raise RequestError(f"there is no sum of {self._what} {number} under way")
        with _refused():
            ring = np.frombuffer(data, "<u8").astype(np.uint64)
            return fixed_point.decode(self.masker.verified(self._group, ring))

    @property
    def listed(self) -> tuple[str, ...]:
        """Whose summands are in the sum under way."""
        return () if self._group is None else self._group.members

    @property
    def members(self) -> list[str] | None:
        """Of which members all sums are; none before the first."""
        found: list[str] | None = json.loads(self._store.facts().get(SUMMED, "null"))
        return found


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except (SumError, ValueError, TypeError, KeyError) as error:
        raise RequestError(f"the masked sum: {error}") from error
