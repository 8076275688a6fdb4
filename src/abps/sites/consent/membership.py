"""Who is no longer a member: a list that the authority signs, the relay keeps and every site checks.

It names certificates (by serial number) that are not to be trusted any more, because their owner has a newer
one or was expelled, and the members that were expelled. A list with a higher number takes the place of one
with a lower; nobody can make one without the authority's key, and the relay cannot go back to an older one.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from abps import files
from abps.core.errors import RequestError

#: The list's name: in the ``local`` folder of kits, and beside the authority.
FILE = "revoked.json"

_SCHEMA = "abps.revoked/1"


@dataclass(frozen=True)
class Revoked:
    """certificates: serial number (hexadecimal) to the name of its owner.  expelled: names."""

    number: int = 0
    certificates: Mapping[str, str] = field(default_factory=dict)
    expelled: tuple[str, ...] = ()

    def has(self, serial: int) -> bool:
        """Whether a certificate is on the list."""
        return f"{serial:x}" in self.certificates

    def without(self, name: str, serial: int | None, expel: bool) -> Revoked:
        """The next list: with one more certificate and, if its owner is to go, with its name."""
        more = {} if serial is None else {f"{serial:x}": name}
        names = {*self.expelled, name} if expel else {*self.expelled} - {name}
        return Revoked(self.number + 1, {**self.certificates, **more}, tuple(sorted(names)))

    def to_text(self, key: rsa.RSAPrivateKey) -> str:
        """The list with the authority's signature, for a file or a message."""
        signature = key.sign(self._content(), padding.PKCS1v15(), hashes.SHA256())
        told = {**self._plain(), "signature": base64.b64encode(signature).decode()}
        return json.dumps(told, indent=1) + "\n"

    def _plain(self) -> dict[str, Any]:
        return {
            "schema": _SCHEMA,
            "number": self.number,
            "certificates": dict(sorted(self.certificates.items())),
            "expelled": list(self.expelled),
        }

    def _content(self) -> bytes:
        return json.dumps(self._plain(), sort_keys=True, separators=(",", ":")).encode()


def from_text(text: str, root: bytes) -> Revoked:
    """A list that the owner of this root certificate (PEM) has signed, or one sentence."""
    try:
        data = json.loads(text)
        if data["schema"] != _SCHEMA:
            raise ValueError(f"schema {data['schema']!r}")
        told = Revoked(
            int(data["number"]),
            {str(serial): str(name) for serial, name in data["certificates"].items()},
            tuple(str(name) for name in data["expelled"]),
        )
        signature = base64.b64decode(data["signature"], validate=True)
        key = x509.load_pem_x509_certificate(root).public_key()
        if not isinstance(key, rsa.RSAPublicKey):
            raise ValueError("the authority has no RSA key")
        key.verify(signature, told._content(), padding.PKCS1v15(), hashes.SHA256())
    except InvalidSignature as error:
        raise RequestError("a list of revoked members is not signed by this network's authority") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RequestError(f"this is no list of revoked members ({error!r})") from error
    return told


class Known:
    """The newest list that a participant has seen: in its kit, and kept up to date by what it is told."""

    def __init__(self, kit: Path) -> None:
        self.path = Path(kit) / "local" / FILE
        root = Path(kit) / "startup" / "rootCA.pem"
        self._root = root.read_bytes() if root.is_file() else b""
        self._seen: tuple[int, int] | None = None
        self._text, self._list = "", Revoked()

    @property
    def now(self) -> Revoked:
        """The list in force; a file that changed is read again, one that is not signed changes nothing."""
        self._look()
        return self._list

    @property
    def text(self) -> str:
        """The same as it was signed; empty if there is none."""
        self._look()
        return self._text

    def hear(self, text: str) -> bool:
        """Take a list that somebody passes on, if it is signed and newer. Returns whether it is."""
        told = from_text(text, self._root)
        if told.number <= self.now.number:
            return False
        self._text, self._list = text, told
        with contextlib.suppress(RequestError):  # a full disk does not make it less true
            files.write_text(self.path, text)
        return True

    def _look(self) -> None:
        try:
            found = self.path.stat()
        except OSError:
            return
        if self._seen == (found.st_mtime_ns, found.st_size):
            return
        self._seen = (found.st_mtime_ns, found.st_size)
        with contextlib.suppress(RequestError, OSError):
            text = self.path.read_text(encoding="utf-8")
            told = from_text(text, self._root)
            if told.number >= self._list.number:
                self._text, self._list = text, told
