"""A courier file: one step of a study by one site, signed with its key, with a sealed letter for each reader.
The envelope (study, step, sender, and the history that it follows from) is JSON that anybody can read; a
letter repeats it, so that nobody can sign another site's letter as his own."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from abps.core.errors import RequestError
from abps.privacy.fixed_point import Ring
from abps.privacy.secure_sum import Group, masked_vector
from abps.sites.consent import keys
from abps.sites.consent.keys import Signer, seal, unseal
from abps.sites.consent.kit import RevocationList
from abps.sites.protocol import commands
from abps.sites.store.rows import canonical

SCHEMA = "abps.courier/1"

PURPOSE = "courier"  # what signatures of courier files are for
MOST_BYTES = 256_000_000  # more bytes than any file of a study has


class CourierStep(StrEnum):
    HELLO = "hello"
    COUNT = "count"
    SUM = "sum"


@dataclass(frozen=True)
class Letter:
    """What one site says to another in a step.  rows: its training rows.  key: its public key for the masks
    of the next sum.  vector: its masked summand.  messages: heads of logs, as over a network: (kind,
    bytes)."""

    rows: int = 0
    key: bytes = b""
    vector: bytes = b""
    messages: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True)
class CourierFile:
    """proposal: digest of the study's approved proposal.  number: of the step, from 0.  before: digest of the
    files that it follows from, the same at all sites.  letters: sealed, by reader, in Base64."""

    proposal: str
    step: CourierStep
    number: Annotated[int, msgspec.Meta(ge=0, lt=10_000)]
    sender: str
    before: str
    letters: Mapping[str, str]
    certificate: str = ""
    signature: str = ""

    @property
    def envelope(self) -> list[Any]:
        return [self.proposal, str(self.step), self.number, self.sender, self.before]

    @property
    def _signed(self) -> bytes:
        return canonical([*self.envelope, dict(self.letters)])

    def text(self) -> str:
        facts = {"schema": SCHEMA, **self.__dict__, "letters": dict(self.letters)}
        return json.dumps(facts, indent=1, sort_keys=True) + "\n"

    def check(self, authority: bytes, revoked: RevocationList) -> None:
        """Refuse a file that its sender, a member of the network, has not signed as it is."""
        certificate = self.certificate.encode()
        try:
            owner, _ = keys.certificate_owner(certificate, authority)
            serial = x509.load_pem_x509_certificate(certificate).serial_number
            signature = bytes.fromhex(self.signature)
        except ValueError as error:
            raise RequestError(f"the signature of {self.sender!r} cannot be trusted: {error}") from error
        if self.sender in revoked.expelled or revoked.has(serial):
            raise RequestError(f"{self.sender} is no member of the network any more")
        if owner != self.sender or not keys.signed_by(certificate, PURPOSE, self._signed, signature):
            raise RequestError(f"it was altered, or {self.sender} has not signed it; ask for it again")

    def open(self, reader: str, signer: Signer) -> Letter:
        try:
            data = json.loads(unseal(signer, base64.b64decode(self.letters[reader], validate=True)))
            if data["envelope"] != self.envelope:
                raise RequestError("it holds a letter of another file; do not trust who signed it")
            rows = commands.whole(data["rows"], 0, commands.MOST_ROWS)
            messages = tuple((str(kind), base64.b64decode(each)) for kind, each in data["messages"])
            return Letter(rows, bytes.fromhex(data["key"]), base64.b64decode(data["vector"]), messages)
        except (ValueError, KeyError, TypeError) as error:
            raise RequestError(f"its letter to this site cannot be read ({error})") from error


def make(envelope: CourierFile, letters: Mapping[str, tuple[bytes, Letter]], signer: Signer) -> CourierFile:
    """The file with a letter sealed for every reader (certificate, letter), signed."""
    sealed = {}
    for reader, (certificate, letter) in letters.items():
        facts = {
            "envelope": envelope.envelope,
            "rows": letter.rows,
            "key": letter.key.hex(),
            "vector": base64.b64encode(letter.vector).decode(),
            "messages": [[kind, base64.b64encode(each).decode()] for kind, each in letter.messages],
        }
        sealed[reader] = base64.b64encode(seal(certificate, canonical(facts))).decode()
    made = replace(envelope, letters=sealed, certificate=signer.certificate.decode())
    return replace(made, signature=signer.sign(PURPOSE, made._signed).hex())


def read_json(path: Path) -> dict[str, Any]:
    """What somebody brought, as plain data; one sentence if it is none."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError("it is too long")
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"{path} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{path} is no courier file, or was cut short ({error}); copy it again") from error
    if not isinstance(data, dict):
        raise RequestError(f"{path} is no courier file")
    return data


def parse(path: Path, data: Mapping[str, Any]) -> CourierFile:
    """A courier file; nothing of it is believed yet."""
    facts = {name: value for name, value in data.items() if name != "schema"}
    try:
        if data.get("schema") != SCHEMA or set(facts) != set(CourierFile.__dataclass_fields__):
            raise ValueError("another schema")
        canonical(facts)  # what cannot be written cannot have been signed
        return msgspec.convert(facts, CourierFile)
    except ValueError as error:
        raise RequestError(f"{path} is no courier file ({error}); copy it again") from error


@dataclass(frozen=True)
class CourierMasks:
    """The masks of one sum.  key, keys: this site's, and the others', made for it alone.  history: the files
    that all sites have alike before it."""

    name: str
    key: X25519PrivateKey
    keys: Mapping[str, bytes]
    history: str

    def masked(self, group: Group, vector: Ring) -> Ring:
        own = Group(group.members, f"{group.context}/{self.history}")
        return masked_vector(vector, self.key, self.keys, own, self.name)

    def verified(self, group: Group, total: Ring) -> Ring:
        return total  # every member adds up for itself
