"""A startup kit as a folder: whose it is, where the relay is, and where its certificates lie."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from abps import files
from abps.core.errors import RequestError
from abps.sites.store import rows as chain


class Role(StrEnum):
    SITE = "site"
    RELAY = "relay"
    OPERATOR = "operator"


#: The engine's file by which a kit is known, and the base name of its certificate and key.
_FILES = {
    Role.SITE: ("fed_client.json", "client"),
    Role.RELAY: ("fed_server.json", "server"),
    Role.OPERATOR: ("fed_admin.json", "client"),
}


@dataclass(frozen=True)
class Kit:
    """host, port: the relay's."""

    folder: Path
    role: Role
    name: str
    host: str
    port: int

    @property
    def local(self) -> Path:
        return self.folder / "local"

    @property
    def member(self) -> str:
        """Its name in certificates: the relay's is its host."""
        return self.host if self.role is Role.RELAY else self.name

    @property
    def certificate(self) -> Path:
        return self.folder / "startup" / f"{_FILES[self.role][1]}.crt"

    @property
    def key(self) -> Path:
        return self.certificate.with_suffix(".key")

    @property
    def root(self) -> Path:
        return self.folder / "startup" / "rootCA.pem"


def read_kit(folder: Path) -> Kit:
    folder = Path(folder)
    paths = {role: folder / "startup" / name for role, (name, _) in _FILES.items()}
    role = next((role for role, path in paths.items() if path.is_file()), None)
    if role is None:
        raise RequestError(f"{folder} is not a startup kit; make kits with `abps site provision`")
    try:
        data = json.loads(paths[role].read_text(encoding="utf-8"))
        if role is Role.OPERATOR:
            admin = data["admin"]
            return Kit(folder, role, str(admin["username"]), str(admin["host"]), int(admin["port"]))
        server = data["servers"][0]
        name = data["client"]["fqsn"] if role is Role.SITE else server.get("identity", str(role))
        host, _, port = str(server["service"]["target"]).rpartition(":")
        return Kit(folder, role, str(name), host, int(port))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise RequestError(f"{folder} is a damaged kit ({error!r}); ask for a new one") from error


def participant_kit(folder: Path) -> Kit:
    kit = read_kit(folder)
    if kit.role is Role.OPERATOR:
        raise RequestError(f"{folder} is an operator's kit, not the startup kit of a site or relay")
    return kit


def read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RequestError(f"{path} cannot be read as a certificate ({error}); ask for a new kit") from error


REVOKED = "revoked.json"  # the list of revoked members: in the ``local`` folder of kits, and at the authority
_SCHEMA = "abps.revoked/1"


@dataclass(frozen=True)
class RevocationList:
    """certificates: serial number (hexadecimal) to the name of its owner.  expelled: names."""

    number: int = 0
    certificates: Mapping[str, str] = field(default_factory=dict)
    expelled: tuple[str, ...] = ()

    def has(self, serial: int) -> bool:
        return f"{serial:x}" in self.certificates

    def without(self, name: str, serial: int | None, expel: bool) -> RevocationList:
        """The next list: with one more certificate and, if its owner is to go, with its name."""
        more = {} if serial is None else {f"{serial:x}": name}
        names = {*self.expelled, name} if expel else {*self.expelled} - {name}
        return RevocationList(self.number + 1, {**self.certificates, **more}, tuple(sorted(names)))

    def to_text(self, key: rsa.RSAPrivateKey) -> str:
        plain = {"schema": _SCHEMA, **asdict(self)}
        signature = key.sign(chain.canonical(plain), padding.PKCS1v15(), hashes.SHA256())
        return files.as_json({**plain, "signature": base64.b64encode(signature).decode()})


def from_text(text: str, root: bytes) -> RevocationList:
    """A list that the owner of this root certificate (PEM) has signed, or one sentence."""
    try:
        data = json.loads(text)
        signature = base64.b64decode(data.pop("signature"), validate=True)
        key: Any = x509.load_pem_x509_certificate(root).public_key()
        key.verify(signature, chain.canonical(data), padding.PKCS1v15(), hashes.SHA256())
        if data["schema"] != _SCHEMA:
            raise ValueError(f"schema {data['schema']!r}")
        return msgspec.convert(data, RevocationList)
    except InvalidSignature as error:
        raise RequestError("a list of revoked members is not signed by this network's authority") from error
    except (KeyError, TypeError, ValueError, AttributeError, msgspec.ValidationError) as error:
        raise RequestError(f"this is no list of revoked members ({error!r})") from error


class Membership:
    """The newest list that a participant has seen: in its kit, or passed on by the relay."""

    def __init__(self, kit: Path) -> None:
        self.path = Path(kit) / "local" / REVOKED
        root = Path(kit) / "startup" / "rootCA.pem"
        self._root = root.read_bytes() if root.is_file() else b""
        self._seen: tuple[int, int] | None = None
        self._text, self._list = "", RevocationList()

    @property
    def now(self) -> RevocationList:
        """The list in force; a file that changed is read again, one that is not signed changes nothing."""
        with contextlib.suppress(RequestError, OSError):
            stat = self.path.stat()
            before, self._seen = self._seen, (stat.st_mtime_ns, stat.st_size)
            if before != self._seen:
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
