"""A startup kit as a folder: whose it is, where the relay is, and where its certificates lie."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cryptography import x509

from abps.core.errors import RequestError


class Role(StrEnum):
    """Whose kit it is."""

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
        """The participant's own folder."""
        return self.folder / "local"

    @property
    def member(self) -> str:
        """Its name in certificates: the relay's is its host."""
        return self.host if self.role is Role.RELAY else self.name

    @property
    def certificate(self) -> Path:
        """The participant's certificate."""
        return self.folder / "startup" / f"{_FILES[self.role][1]}.crt"

    @property
    def key(self) -> Path:
        """Its private key."""
        return self.certificate.with_suffix(".key")

    @property
    def root(self) -> Path:
        """The certificate of the network's authority."""
        return self.folder / "startup" / "rootCA.pem"


def read_kit(folder: Path) -> Kit:
    """A kit of any participant, or one sentence."""
    folder = Path(folder)
    here = [role for role, (name, _) in _FILES.items() if (folder / "startup" / name).is_file()]
    if not here:
        raise RequestError(f"{folder} is not a startup kit; make kits with `abps site provision`")
    role = here[0]
    try:
        path = folder / "startup" / _FILES[role][0]
        data = json.loads(path.read_text(encoding="utf-8"))
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
    """The kit of a site or of the relay: of somebody who runs a process."""
    kit = read_kit(folder)
    if kit.role is Role.OPERATOR:
        raise RequestError(f"{folder} is an operator's kit, not the startup kit of a site or relay")
    return kit


def read_certificate(path: Path) -> x509.Certificate:
    """A certificate, or one sentence."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RequestError(f"{path} cannot be read as a certificate ({error}); ask for a new kit") from error
