"""Masked sums between sites: a site's part, and the relay's, of :mod:`abps.privacy.secure_sum`.

Everything goes through the relay, which adds up and sees no summand. It cannot stand in for a site either: at
the beginning of a job each site makes a key for signatures, and sends it with its certificate and a signature
of its kit's key; the others check both with the authority's certificate. (In a rehearsal without certificates
nobody can.) The group of a sum is all members of the job; a site that drops out is left out of the sum, and
without more than two thirds of the group there is none.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.privacy import fixed_point
from abps.privacy.secure_sum import Collector, Group, Keys, Member, SumError, UnmaskShares
from abps.sites.consent import keys as site_keys
from abps.sites.consent.keys import Signer
from abps.sites.protocol import commands
from abps.sites.protocol.commands import Answers, Command, Failure
from abps.sites.store.rows import EntryKind, canonical

if TYPE_CHECKING:
    from abps.sites.store.store import Store

Floats = NDArray[np.float64]
T = TypeVar("T")

#: What the signature of a kit's key is for.
PURPOSE = "key of masked sums"

#: The fact of a store that says whose sums were opened, by key; and the key of those of a study.
OPENED, ALL = "opened", "all"


#: Writes a row of the log: (kind, bytes, why, round, sent=True); on the disk, if it leaves.
Write = Callable[..., None]


@dataclass
class Masking:
    """A site's part in the masked sums of a job; the scheduler asks for its steps in their order.

    context: study and job; sums of one fit no other.  authority: the certificate that signs all others;
    none in a rehearsal.  write: logs every step, before it leaves or when it came.  what: a round, a count.
    """

    name: str
    context: str
    signer: Signer | None = None
    authority: bytes | None = None
    _identity: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    _known: dict[str, bytes] = field(default_factory=dict)
    _member: Member | None = None
    _round: int = 0
    write: Write = lambda *row, sent=True: None
    what: str = "round"

    def introduction(self) -> list[bytes]:
        """This job's key, the site's certificate, and the signature under the key; the latter two are empty
        in a rehearsal."""
        public = self._identity.public_key().public_bytes_raw()
        own = [public, b"", b""]
        if self.signer is not None:
            own[1:] = self.signer.certificate, self.signer.sign(PURPOSE, self._signed(self.name, public))
        self.write(EntryKind.REPORT, _size(own), "our key for masked sums, for all members", 0)
        return own

    def meet(self, introductions: Mapping[str, Sequence[bytes]]) -> None:
        """Learn the keys of members of the job, as the relay passes them on; a site that comes back has
        another one. A site whose key is not proven is in no sum."""
        for name, given in introductions.items():
            try:
                public, certificate, signature = given
                if self.authority is not None:
                    signed = self._signed(name, public), signature
                    owner = site_keys.signer_of(certificate, self.authority, PURPOSE, *signed)
                    if owner.name != name:
                        raise ValueError("it is another member's")
                self._known[name] = public
            except (AttributeError, TypeError, ValueError) as error:
                why = f"the key for masked sums that came as {name}'s is not its own ({error})"
                self.write(EntryKind.DECISION, 0, f"{why}; no sum with it", 0, sent=False)

    def keys(self, round: int, group: Sequence[str]) -> list[bytes]:
        """Step 1 of the sum of a round, which is begun once."""
        if round <= self._round:
            raise RequestError(f"the sum of round {self._round} has begun; that of round {round} is over")
        if self.name not in group:
            raise RequestError(f"{self.name} is not in the group of the sum")
        identities = {name: self._known[name] for name in group if name in self._known}
        with _refused():
            made = Group(tuple(sorted(group)), f"{self.context}/{round}", identities)
        self._member, self._round = Member(made, self.name, self._identity), round
        return self._sent(list(self._member.keys()), "keys of the masks", round)

    def shares(self, round: int, keys: Mapping[str, Sequence[bytes]]) -> dict[str, bytes]:
        """Step 2: what each other shall keep of this site's secrets, readable by that one alone."""
        self._came(keys, "keys", round)
        with _refused():
            found = self._of(round).shares({name: Keys(*each) for name, each in keys.items()})
        return self._sent(found, "shares of our masks, sealed", round)

    def masked(
        self, round: int, sealed: Mapping[str, bytes], summand: Floats, kind: EntryKind, why: str
    ) -> bytes:
        """Step 3: keep what the others gave, and send the summand under all masks."""
        self._came(sealed, "shares of masks", round)
        member = self._of(round)
        with _refused():
            for sender, parcel in sorted(sealed.items()):
                member.keep(sender, parcel)
            ring = fixed_point.encode(summand, len(member.group.members))
            made = member.masked(ring).astype("<u8").tobytes()
        self.write(kind, len(made), f"{why}, under masks", round)
        return made

    def present(self, round: int, names: Sequence[str]) -> bytes:
        """Step 4: sign the list of those whose vectors have come."""
        with _refused():
            signature = self._of(round).present(names)
        return self._sent(signature, "our signature under the list of who is there", round)

    def opened(self, round: int, signatures: Mapping[str, bytes]) -> list[dict[str, bytes]]:
        """Step 5: the shares that take the masks off, once enough have signed the same list."""
        self._came(signatures, "signatures", round)
        with _refused():
            shares = [dict(each) for each in self._of(round).open(signatures)]
        return self._sent(shares, "shares that take the masks off the sum", round)

    def total(self, round: int, data: bytes) -> Floats:
        """The sum as the relay says it: checked by what only members know."""
        with _refused():
            return fixed_point.decode(self._of(round).verified(np.frombuffer(data, "<u8").astype(np.uint64)))

    def _sent(self, made: T, why: str, number: int) -> T:
        self.write(EntryKind.MASK, _size(made), f"{why}, in {self.what} {number}", number)
        return made

    def _came(self, given: Any, what: str, number: int) -> None:
        self.write(
            EntryKind.MASK, _size(given), f"{what} of all, in {self.what} {number}", number, sent=False
        )

    def _of(self, round: int) -> Member:
        if self._member is None or round != self._round:
            raise RequestError(f"there is no sum of round {round} under way")
        return self._member

    def _signed(self, name: str, public: bytes) -> bytes:
        return canonical([self.context, name, public.hex()])


def _size(value: Any) -> int:
    """Bytes in lists and mappings of bytes."""
    if isinstance(value, bytes):
        return len(value)
    return sum(map(_size, value.values() if isinstance(value, Mapping) else value))


class SumSteps:
    """What the scheduler may ask a site about its masked sums, step by step.

    Two sums of different members reveal their difference, and exchanges ask about nearly the same models
    again and again. So all sums with the same key are of the same members; who they are stays in the store.
    """

    def __init__(
        self,
        masking: Masking,
        store: Store,
        summand: Callable[[int, Sequence[str]], Floats],
        kind: EntryKind,
        key: Callable[[int], str] = lambda number: ALL,
        leaving: Callable[[], None] = lambda: None,
        objection: Callable[[list[str], bool], str] = lambda names, first: "",
    ) -> None:
        """summand: what this site adds to a sum of a group, or an error.  leaving: called before it leaves.
        kind: what the log calls it.  objection: why a sum of these members, the first or not, is not opened;
        empty if it may be."""
        self.masking, self._store, self._summand, self._kind = masking, store, summand, kind
        self._key, self._leaving, self._objection = key, leaving, objection
        self._adds: Floats | None = None
        self.listed: tuple[str, ...] = ()  # whose summands are in the sum under way

    def commands(self) -> dict[Command, Callable[..., Any]]:
        """What the scheduler may ask for; what it says of the total is for the owner of the sums."""
        return {
            Command.SUM_INTRODUCE: self.masking.introduction,
            Command.SUM_MEET: self.masking.meet,
            Command.SUM_KEYS: self.keys,
            Command.SUM_SHARES: self.masking.shares,
            Command.SUM_MASKED: lambda number, parcels: self.masked(
                number, parcels.get(self.masking.name, {})
            ),
            Command.SUM_PRESENT: self.present,
            Command.SUM_OPEN: self.open,
        }

    def keys(self, number: int, group: Sequence[str]) -> list[bytes]:
        """Step 1: keys of the masks."""
        adds = self._summand(number, group)
        made = self.masking.keys(number, group)
        self._adds = adds  # only now: nothing leaves twice
        return made

    def masked(self, number: int, sealed: Mapping[str, bytes]) -> bytes:
        """Step 3: what this site adds, under its masks, once."""
        adds, self._adds = self._adds, None
        if adds is None:
            raise RequestError(f"there is no summand of {self.masking.what} {number} that has not left yet")
        self._leaving()
        what = f"our summand of {self.masking.what} {number}"
        return self.masking.masked(number, sealed, adds, self._kind, what)

    def present(self, number: int, names: Sequence[str]) -> bytes:
        """Step 4: sign whose summands have come."""
        self.listed, opened = tuple(sorted(names)), self.opened(number)
        why = self._objection(list(self.listed), opened is None)
        if not why and opened not in (None, list(self.listed)):
            why = "is of other members than an earlier one, and the difference would reveal these"
        if why:
            what = f"the sum of {self.masking.what} {number} {why}; it is not opened"
            self.masking.write(EntryKind.DECISION, 0, what, number, sent=False)
            raise RequestError(what)
        return self.masking.present(number, names)

    def open(self, number: int, names: Sequence[str], signatures: Mapping[str, bytes]) -> list[Any]:
        """Step 5: the shares that take the masks off; whose sum it is stands on the disk before."""
        shares = self.masking.opened(number, signatures)
        known = self._known()
        if known.setdefault(self._key(number), sorted(names)) == sorted(names):
            self._store.keep(**{OPENED: json.dumps(known)})
        return shares

    def opened(self, number: int) -> list[str] | None:
        """The members of such sums; none before the first."""
        return self._known().get(self._key(number))

    def _known(self) -> dict[str, list[str]]:
        return dict(json.loads(self._store.facts().get(OPENED, "{}")))


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    """What a sum does not allow, as a refused request: the site goes on, the sum does not."""
    try:
        yield
    except (SumError, ValueError, TypeError, KeyError) as error:
        raise RequestError(f"the masked sum: {error}") from error


#: How the relay asks sites something: (sites, command, *arguments) -> answers, and why there is none.
Ask = Callable[..., Answers]


@dataclass(frozen=True)
class MaskedTotal:
    """A sum with its check, as it goes to members; whose summands are in it; who failed and why."""

    data: bytes
    names: tuple[str, ...]
    missing: dict[str, Failure]

    @property
    def values(self) -> Floats:
        return fixed_point.decode(np.frombuffer(self.data, "<u8").astype(np.uint64)[:-1])


def masked_total(
    ask: Ask, context: str, round: int, group: Sequence[str], present: Sequence[str], entries: int
) -> MaskedTotal:
    """The relay's part of one sum; ``SumError`` if there is none.

    group: all members of the job.  present: those of them that can take part now.
    """
    missing: dict[str, Failure] = {}

    def asked(
        sites: Sequence[str], command: Command, check: Callable[[Any], Any], *arguments: Any
    ) -> dict[str, Any]:
        replies, failed = ask(sites, command, round, *arguments)
        good, invalid = commands.check_all(replies, check)
        missing.update(failed | invalid)
        return good

    everybody = tuple(sorted(group))
    made = Group(everybody, f"{context}/{round}", {})
    keys = asked(sorted(present), Command.SUM_KEYS, three_parts, list(everybody))
    sealed = asked(sorted(keys), Command.SUM_SHARES, lambda v: _by_name(v, everybody), keys)
    collector = Collector(made, {name: Keys(*each) for name, each in keys.items()})
    # All parcels to all at once, of which each site opens its own: a call per site would take as many turns.
    parcels = {name: {sender: g[name] for sender, g in sealed.items() if name in g} for name in sealed}
    masked = asked(sorted(sealed), Command.SUM_MASKED, lambda v: _ring(v, entries + 1), parcels)
    for name, vector in masked.items():
        collector.take(name, vector)
    listed = sorted(masked)
    signatures = asked(listed, Command.SUM_PRESENT, _some_bytes, listed)
    shares = asked(sorted(signatures), Command.SUM_OPEN, lambda v: _opened(v, everybody), listed, signatures)
    try:
        ring = collector.total(shares, sorted(sealed))
    except SumError as error:
        why = "; ".join(f"{name}: {failure}" for name, failure in sorted(missing.items()))
        raise SumError(f"{error}{f' ({why})' if why else ''}") from error
    return MaskedTotal(ring.astype("<u8").tobytes(), tuple(listed), missing)


def _some_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes) or len(value) > 10_000:
        raise ValueError("no bytes")
    return value


def three_parts(value: Any) -> list[bytes]:
    """Keys with a signature, as a site sends them."""
    first, second, third = value
    return [_some_bytes(part) for part in (first, second, third)]


def _by_name(value: Any, names: Sequence[str]) -> dict[str, bytes]:
    if not isinstance(value, dict) or not set(value) <= set(names):
        raise ValueError("not of members")
    return {name: _some_bytes(part) for name, part in value.items()}


def _ring(value: Any, entries: int) -> fixed_point.Ring:
    if not isinstance(value, bytes) or len(value) != 8 * entries:
        raise ValueError("no masked vector")
    return np.frombuffer(value, dtype="<u8").astype(np.uint64)


def _opened(value: Any, names: Sequence[str]) -> UnmaskShares:
    seeds, masks = (_by_name(part, names) for part in value)
    return UnmaskShares(seeds, masks)
