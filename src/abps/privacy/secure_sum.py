"""Masked sums: a total whose summands nobody sees.

Every two members share a secret (X25519), from which follows a mask for each sum that one of them adds to its
vector and the other subtracts (Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving
Machine Learning", without its recovery of members that drop out: sums over different members would reveal
their difference). The masks cancel when the vectors of all members of a group are added, and only then. No
key or mask depends on the study's seed, which all know.

Members can check a total that the relay adds up: each gives all others the same random bytes, sealed, and
from everybody's follow weights that the relay does not know. Every vector has one more entry, the sum of its
entries times these weights; a total whose last entry does not fit its others was changed. (The relay together
with a member can still change it.)
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from abps.privacy.fixed_point import Ring


class SumError(Exception):
    """The sum cannot be had, or a message of it is not what it should be."""


@dataclass(frozen=True)
class Group:
    """Who adds up what.  context: study, job and number of the sum; with the members, masks fit no other."""

    members: tuple[str, ...]
    context: str

    def __post_init__(self) -> None:
        if len(self.members) < 3:
            raise SumError(f"{len(self.members)} members: with fewer than 3 a sum shows a summand")
        if len(set(self.members)) != len(self.members):
            raise SumError("a member is listed twice")

    @property
    def purpose(self) -> str:
        return "\0".join([self.context, *self.members])


@dataclass
class Member:
    name: str
    context: str
    _key: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate)
    _keys: dict[str, bytes] = field(default_factory=dict)  # public, of the others
    _proofs: dict[str, bytes] = field(default_factory=dict)  # random bytes for checks, of all

    @property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def meet(self, keys: Mapping[str, bytes]) -> dict[str, bytes]:
        """Others' public keys; returns this member's bytes for checks, sealed for each of them."""
        self._keys.update((name, key) for name, key in keys.items() if name != self.name)
        proof = self._proofs.setdefault(self.name, secrets.token_bytes(32))
        return {
            name: ChaCha20Poly1305(self._line(name, self.name)).encrypt(bytes(12), proof, None)
            for name in keys
            if name != self.name
        }

    def keep(self, sealed: Mapping[str, bytes]) -> None:
        for sender, parcel in sealed.items():
            if sender not in self._keys:
                raise SumError(f"bytes for checks of {sender}, whose key is not known")
            try:
                line = ChaCha20Poly1305(self._line(sender, sender))
                self._proofs[sender] = line.decrypt(bytes(12), parcel, None)
            except InvalidTag as error:
                raise SumError(f"what {sender} sealed was altered on its way") from error

    def masked(self, group: Group, vector: Ring) -> Ring:
        """The vector and its check, under the masks of all pairs."""
        checked = np.append(vector, self._check(group, vector))
        return masked_vector(checked, self._key, self._keys, group, self.name)

    def verified(self, group: Group, total: Ring) -> Ring:
        """The sum as the relay says it, without its check; ``SumError`` if the relay has changed it."""
        if len(total) < 2 or self._check(group, total[:-1]) != total[-1]:
            raise SumError("the total is not the sum of what members sent: it was changed on its way")
        return total[:-1]

    def _check(self, group: Group, vector: Ring) -> np.uint64:
        """The sum of a vector times weights that only members know."""
        lacking = [name for name in group.members if name not in self._proofs]
        if lacking:
            raise SumError(f"the bytes for checks of {lacking[0]} have not come")
        key = _derive(b"".join(self._proofs[name] for name in group.members), group.purpose, "check")
        return np.uint64((vector * _stream(key, len(vector))).sum(dtype=np.uint64))

    def _line(self, other: str, sender: str) -> bytes:
        """The key of what one of the two sends the other."""
        receiver = other if sender == self.name else self.name
        secret = _shared(self._key, self._keys[other], other)
        return _derive(secret, self.context, f"bytes of {sender} for {receiver}")


def masked_vector(
    vector: Ring, key: X25519PrivateKey, keys: Mapping[str, bytes], group: Group, name: str
) -> Ring:
    """A member's vector under the masks of all pairs that it is in.  keys: the others' public keys."""
    lacking = [other for other in group.members if other not in keys and other != name]
    if lacking or name not in group.members:
        raise SumError(f"the group of the sum has {lacking[0] if lacking else 'others'} without a proven key")
    place = group.members.index(name)
    for at, other in enumerate(group.members):
        if other == name:
            continue
        pair = "\0".join(sorted((name, other)))
        secret = _derive(_shared(key, keys[other], other), group.purpose, f"mask of {pair}")
        mask = _stream(secret, len(vector))
        vector = vector + mask if place < at else vector - mask
    return vector


def _shared(key: X25519PrivateKey, public: bytes, name: str) -> bytes:
    try:
        return key.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise SumError(f"the key for masks of {name} is none ({error})") from error


def _derive(secret: bytes, context: str, words: str) -> bytes:
    info = f"abps.secure-sum/2\0{context}\0{words}".encode()
    return HKDF(hashes.SHA256(), 32, None, info).derive(secret)


def _stream(key: bytes, count: int) -> Ring:
    """(count,) random words of a key (ChaCha20)."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()
    return np.frombuffer(cipher.update(bytes(8 * count)), dtype="<u8").astype(np.uint64)
