"""Secure aggregation: a sum whose summands nobody sees, and that survives members that drop out.

After Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning", with
signatures, so that a relay which alters what it carries learns no more than one that does not. Members are
listed in one order, known to all. Four steps, each a message to the relay and one back:

1. **keys**: every member makes two fresh key pairs, one for masks and one for shares, and signs them.
2. **shares**: every member draws a seed of its own and splits it, and its mask key, into shares, one for each
   other, which only that one can read.
3. **masked**: every member sends its vector plus a mask from its own seed, plus one mask for every pair it is
   in (added by one of the two and subtracted by the other).
4. **unmask**: at least ``threshold`` members sign one list of those who sent a vector. Each of them then
   sends, for a member on the list, its share of that member's own seed, and for one that dropped out, its
   share of the mask key. Never both for one member: that would reveal its vector.

The sum can be checked by every member: in step 2 each also gives all others the same random bytes, and from
everybody's follow weights that the relay does not know. Every vector has one more entry, the sum of its
entries times these weights; a total whose last entry does not fit its others was changed. (The relay together
with a member can still change it.)

With a threshold above two thirds of the members no two lists can both be signed by enough honest members, so
a relay that shows different lists to different members gains nothing. Everybody may know the sum itself: with
few members, or when all others collude, it reveals a single one.

No key or mask depends on the study's seed, which all members know; the sum does not depend on any draw.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from abps.privacy.fixed_point import SHARE, Ring


class SumError(Exception):
    """The sum cannot be had, or a message of it is not what it should be."""


@dataclass(frozen=True)
class Group:
    """Who adds up what.

    members: all names, in one order.  context: study, round and purpose; masks of one sum fit no other.
    identities: each member's key for signatures, known beforehand.
    """

    members: tuple[str, ...]
    context: str
    identities: Mapping[str, bytes]

    def __post_init__(self) -> None:
        if len(self.members) < 3:
            raise SumError(f"{len(self.members)} members: with fewer than 3 a sum shows a summand")
        if len(set(self.members)) != len(self.members):
            raise SumError("a member is listed twice")

    @property
    def threshold(self) -> int:
        """How many must go on to the end: more than two thirds, which is at least three."""
        return 2 * len(self.members) // 3 + 1

    def place(self, name: str) -> int:
        """A member's place, from 1."""
        return self.members.index(name) + 1

    def signed(self, words: str, *parts: bytes) -> bytes:
        """What is put under a signature: the whole context, so that it fits nothing else."""
        head = "\0".join(["abps.secure-sum/1", self.context, words, *self.members]).encode()
        return hashlib.blake2b(b"".join([len(p).to_bytes(8, "big") + p for p in (head, *parts)])).digest()

    def check(self, name: str, signature: bytes, content: bytes) -> None:
        """Raise unless the member signed the content."""
        try:
            Ed25519PublicKey.from_public_bytes(self.identities[name]).verify(signature, content)
        except (InvalidSignature, KeyError, ValueError) as error:
            raise SumError(
                f"a message said to be {name}'s, or the list of who is present in it, was not signed by it"
            ) from error


class Keys(NamedTuple):
    """A member's public keys of one sum, signed: for masks and for shares, 32 bytes each."""

    mask: bytes
    share: bytes
    signature: bytes


class UnmaskShares(NamedTuple):
    """A member's shares: of the seeds of those on the list, of the mask keys of those that fell away."""

    seeds: Mapping[str, bytes]
    masks: Mapping[str, bytes]


@dataclass
class Member:
    """One member's part in one sum; its steps are called in their order, once each."""

    group: Group
    name: str
    identity: Ed25519PrivateKey
    _mask: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate)
    _share: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate)
    _seed: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _proofs: dict[str, bytes] = field(default_factory=dict)
    _keys: dict[str, Keys] = field(default_factory=dict)
    _held: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    _listed: tuple[str, ...] | None = None
    _open: bool = False

    def keys(self) -> Keys:
        """Step 1: fresh public keys, signed."""
        mask, share = _public(self._mask), _public(self._share)
        return Keys(mask, share, self.identity.sign(self.group.signed(f"keys of {self.name}", mask, share)))

    def shares(self, keys: Mapping[str, Keys]) -> dict[str, bytes]:
        """Step 2: from everybody's keys, what each other member shall keep, readable by it alone."""
        if self._keys:
            raise SumError("the keys of this sum came twice")
        for name, each in keys.items():
            content = self.group.signed(f"keys of {name}", each.mask, each.share)
            self.group.check(name, each.signature, content)
        if keys.get(self.name) != self.keys() or len(keys) < self.group.threshold:
            raise SumError(
                f"{len(keys)} of {len(self.group.members)} members sent keys, too few or not all ours"
            )
        if len({each.mask for each in keys.values()}) < len(keys):
            raise SumError("two members sent the same key")
        self._keys = dict(keys)
        count, threshold = len(self.group.members), self.group.threshold
        seed = split_secret(self._seed, count, threshold)
        mask = split_secret(self._mask.private_bytes_raw(), count, threshold)
        sealed, proof = {}, secrets.token_bytes(32)
        self._proofs[self.name] = proof
        for name in keys:
            place = self.group.place(name)
            if name == self.name:
                self._held[name] = (seed[place], mask[place])
                continue
            plain = seed[place] + mask[place] + proof
            sealed[name] = ChaCha20Poly1305(self._line(name, self.name)).encrypt(bytes(12), plain, None)
        return sealed

    def keep(self, sender: str, sealed: bytes) -> None:
        """Step 2, the other end: another member's shares for this one."""
        if sender in self._held or sender not in self._keys:
            raise SumError(f"shares of {sender}, which sent none before, or twice")
        try:
            plain = ChaCha20Poly1305(self._line(sender, sender)).decrypt(bytes(12), sealed, None)
        except InvalidTag as error:
            raise SumError(f"the shares of {sender} were altered on their way") from error
        if len(plain) != 2 * SHARE + 32:
            raise SumError(f"the shares of {sender} have {len(plain)} bytes")
        self._held[sender] = (plain[:SHARE], plain[SHARE : 2 * SHARE])
        self._proofs[sender] = plain[2 * SHARE :]

    def masked(self, vector: Ring) -> Ring:
        """Step 3: the vector and its check, under all masks. Those who gave no shares do not take part."""
        if len(self._held) < self.group.threshold:
            raise SumError(f"{len(self._held)} members gave shares, {self.group.threshold} must")
        vector = np.append(vector, self._check(vector))
        total = vector + _stream(_derive(self._seed, self.group.context, "own mask"), len(vector))
        for name in self._held:
            if name != self.name:
                total = total + pair_mask(
                    self._mask, self._keys[name].mask, self.group, self.name, name, len(vector)
                )
        return total

    def present(self, names: Iterable[str]) -> bytes:
        """Step 4, first half: sign the list of those whose vectors the relay has."""
        listed = tuple(name for name in self.group.members if name in set(names))
        if self._listed is not None and listed != self._listed:
            raise SumError("the relay shows two lists of who is present; the sum is not opened")
        if len(listed) < self.group.threshold:
            raise SumError(f"{len(listed)} members sent a vector, {self.group.threshold} must")
        if self.name not in listed or not set(listed) <= set(self._held):
            raise SumError("the list of who is present is not true here; the sum is not opened")
        self._listed = listed
        return self.identity.sign(self.group.signed("present", "\0".join(listed).encode()))

    def open(self, signatures: Mapping[str, bytes]) -> UnmaskShares:
        """Step 4, second half: once enough have signed the same list, give the shares that belong to it."""
        if self._open or self._listed is None:
            raise SumError("nothing is opened twice, or before the list is signed")
        content = self.group.signed("present", "\0".join(self._listed).encode())
        for name, signature in signatures.items():
            self.group.check(name, signature, content)
        if len(set(signatures) & set(self._listed)) < self.group.threshold:
            raise SumError(f"{len(signatures)} members signed the list, {self.group.threshold} must")
        self._open = True
        gone = [name for name in self._held if name not in self._listed]
        return UnmaskShares(
            {name: self._held[name][0] for name in self._listed}, {name: self._held[name][1] for name in gone}
        )

    def verified(self, total: Ring) -> Ring:
        """The sum as the relay says it, without its check; ``SumError`` if the relay has changed it."""
        if len(total) < 2 or self._check(total[:-1]) != total[-1]:
            raise SumError("the total is not the sum of what members sent: it was changed on its way")
        return total[:-1]

    def _check(self, vector: Ring) -> np.uint64:
        """The sum of a vector times weights that only members know."""
        said = b"".join(self._proofs[name] for name in self.group.members if name in self._proofs)
        key = _derive(said, self.group.context, "check")
        return np.uint64((vector * _stream(key, len(vector))).sum(dtype=np.uint64))

    def _line(self, other: str, sender: str) -> bytes:
        """The key of what one of the two sends the other."""
        peer = X25519PublicKey.from_public_bytes(self._keys[other].share)
        receiver = other if sender == self.name else self.name
        words = f"shares of {sender} for {receiver}"
        return _derive(self._share.exchange(peer), self.group.context, words)


@dataclass
class Collector:
    """The relay's part: it carries, adds up, takes the masks off again. It sees no bare vector."""

    group: Group
    keys: Mapping[str, Keys]
    vectors: dict[str, Ring] = field(default_factory=dict)

    def take(self, name: str, masked: Ring) -> None:
        """A member's masked vector."""
        if name in self.vectors or name not in self.keys:
            raise SumError(f"a second vector of {name}, or one without keys")
        if self.vectors and len(masked) != len(next(iter(self.vectors.values()))):
            raise SumError(f"the vector of {name} has {len(masked)} entries")
        self.vectors[name] = masked

    def total(self, opened: Mapping[str, UnmaskShares], sharing: Sequence[str]) -> Ring:
        """The sum of all vectors that came.

        sharing: who gave shares in step 2, present or not: those whose masks are in the vectors.
        """
        if len(opened) < self.group.threshold:
            raise SumError(f"{len(opened)} members opened their shares, {self.group.threshold} must")
        size = len(next(iter(self.vectors.values())))
        total = np.zeros(size, dtype=np.uint64)
        for vector in self.vectors.values():
            total = total + vector
        for name in self.vectors:
            seed = self._joined(name, {who: each.seeds for who, each in opened.items()})
            total = total - _stream(_derive(seed, self.group.context, "own mask"), size)
        for name in (each for each in sharing if each not in self.vectors):
            raw = self._joined(name, {who: each.masks for who, each in opened.items()})
            mask = X25519PrivateKey.from_private_bytes(raw)
            if _public(mask) != self.keys[name].mask:
                raise SumError(f"the shares of {name} do not give back its key")
            for other in self.vectors:  # what the present ones added for the pair with the absent one
                total = total + pair_mask(mask, self.keys[other].mask, self.group, name, other, size)
        return total

    def _joined(self, name: str, shares: Mapping[str, Mapping[str, bytes]]) -> bytes:
        found = {self.group.place(who): each[name] for who, each in shares.items() if name in each}
        if len(found) < self.group.threshold:
            raise SumError(f"{len(found)} shares of {name}, {self.group.threshold} are needed")
        try:
            return join_shares(dict(list(found.items())[: self.group.threshold]))
        except ValueError as error:
            raise SumError(f"the shares of {name} do not belong together") from error


def _public(key: X25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def _derive(secret: bytes, context: str, words: str) -> bytes:
    info = f"abps.secure-sum/1\0{context}\0{words}".encode()
    return HKDF(hashes.SHA256(), 32, None, info).derive(secret)


def _stream(key: bytes, count: int) -> Ring:
    """(count,) random words of a key (ChaCha20)."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()
    return np.frombuffer(cipher.update(bytes(8 * count)), dtype="<u8").astype(np.uint64)


def pair_mask(mine: X25519PrivateKey, theirs: bytes, group: Group, me: str, peer: str, count: int) -> Ring:
    """(count,) the pair's mask as the first named adds it: what one adds, the other subtracts."""
    names = sorted((me, peer), key=group.place)
    secret = mine.exchange(X25519PublicKey.from_public_bytes(theirs))
    words = _stream(_derive(secret, group.context, f"mask of {names[0]} and {names[1]}"), count)
    return words if me == names[0] else np.uint64(0) - words


#: The smallest prime above 2^256: a secret of 32 bytes is one element of its field.
PRIME = 2**256 + 297


def split_secret(secret: bytes, places: int, threshold: int) -> dict[int, bytes]:
    """Shamir shares of a secret of 32 bytes for the places 1..places (Shamir 1979).

    Any ``threshold`` of them give the secret back; fewer reveal nothing.
    """
    if len(secret) != 32:
        raise ValueError(f"a secret of {len(secret)} bytes; 32 are shared")
    if not 1 <= threshold <= places:
        raise ValueError(f"threshold {threshold} of {places} places")
    constant = int.from_bytes(secret, "big")
    coefficients = [constant, *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    shares = {}
    for x in range(1, places + 1):
        value = 0
        for c in reversed(coefficients):
            value = (value * x + c) % PRIME
        shares[x] = value.to_bytes(SHARE, "big")
    return shares


def join_shares(shares: Mapping[int, bytes]) -> bytes:
    """The secret from at least ``threshold`` shares by place (Lagrange interpolation at zero).

    Fewer shares give an unrelated number, or ValueError.
    """
    total = 0
    for x, y in shares.items():
        above = below = 1
        for other in shares:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        total = (total + int.from_bytes(y, "big") * above * pow(below, -1, PRIME)) % PRIME
    if total >= 2**256:
        raise ValueError("these shares do not belong together")
    return total.to_bytes(32, "big")
