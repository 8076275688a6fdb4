"""Who is no longer a member: a list that the authority signs, the relay keeps and every site checks.

It names certificates (by serial number) that are not to be trusted any more, because their owner has a newer
one or was expelled, and the members that were expelled. A list with a higher number replaces one with a
lower; nobody can make one without the authority's key, and the relay cannot go back to an older one.
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
from abps.sites.store import rows as chain

#: The list's name: in the ``local`` folder of kits, and beside the authority.
FILE = "revoked.json"

_SCHEMA = "abps.revoked/1"


@dataclass(frozen=True)
class RevocationList:
    """certificates: serial number (hexadecimal) to the name of its owner.  expelled: names."""

    number: int = 0
    certificates: Mapping[str, str] = field(default_factory=dict)
    expelled: tuple[str, ...] = ()

    def has(self, serial: int) -> bool:
        """Whether a certificate is on the list."""
        return f"{serial:x}" in self.certificates

    def without(self, name: str, serial: int | None, expel: bool) -> RevocationList:
        """The next list: with one more certificate and, if its owner is to go, with its name."""
        more = {} if serial is None else {f"{serial:x}": name}
        names = {*self.expelled, name} if expel else {*self.expelled} - {name}
        return RevocationList(self.number + 1, {**self.certificates, **more}, tuple(sorted(names)))

    def to_text(self, key: rsa.RSAPrivateKey) -> str:
        """The list with the authority's signature, for a file or a message."""
        signature = key.sign(chain.canonical(self._plain()), padding.PKCS1v15(), hashes.SHA256())
        return files.as_json({**self._plain(), "signature": base64.b64encode(signature).decode()})

    def _plain(self) -> dict[str, Any]:
        return {
            "schema": _SCHEMA,
            "number": self.number,
            "certificates": dict(self.certificates),
            "expelled": list(self.expelled),
        }


def from_text(text: str, root: bytes) -> RevocationList:
    """A list that the owner of this root certificate (PEM) has signed, or one sentence."""
    try:
        data = json.loads(text)
        if data["schema"] != _SCHEMA:
            raise ValueError(f"schema {data['schema']!r}")
        found = RevocationList(
            int(data["number"]),
            {str(serial): str(name) for serial, name in data["certificates"].items()},
            tuple(str(name) for name in data["expelled"]),
        )
        signature = base64.b64decode(data["signature"], validate=True)
        key: Any = x509.load_pem_x509_certificate(root).public_key()
        key.verify(signature, chain.canonical(found._plain()), padding.PKCS1v15(), hashes.SHA256())
    except InvalidSignature as error:
        raise RequestError("a list of revoked members is not signed by this network's authority") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RequestError(f"this is no list of revoked members ({error!r})") from error
    return found


class Membership:
    """The newest list that a participant has seen: in its kit, or passed on by the relay."""

    def __init__(self, kit: Path) -> None:
        self.path = Path(kit) / "local" / FILE
        root = Path(kit) / "startup" / "rootCA.pem"
        self._root = root.read_bytes() if root.is_file() else b""
        self._seen: tuple[int, int] | None = None
        self._text, self._list = "", RevocationList()

    @property
    def now(self) -> RevocationList:
        """The list in force; a file that changed is read again, one that is not signed changes nothing."""
        with contextlib.suppress(RequestError, OSError):
            stat = self.path.stat()
            if self._seen != (stat.st_mtime_ns, stat.st_size):
                self._seen = (stat.st_mtime_ns, stat.st_size)
                text = self.path.read_text(encoding="utf-8")
                found = from_text(text, self._root)
                if found.number >= self._list.number:
                    self._text, self._list = text, found
        return self._list

    @property
    def text(self) -> str:
        """The same as it was signed; empty if there is none."""
        return self._text if self.now.number else ""

    def hear(self, text: str) -> bool:
        """Take a list that somebody passes on, if it is signed and newer. Returns whether it is."""
        found = from_text(text, self._root)
        if found.number <= self.now.number:
            return False
        self._text, self._list = text, found
        with contextlib.suppress(RequestError):  # a full disk does not make it less true
            files.write_text(self.path, text)
        return True
