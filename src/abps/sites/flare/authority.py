"""What only the authority can do: give a member a new certificate, and expel one, in a network that goes on.

The authority's folder (``kits/authority``) holds its own key, and of members the certificate that it made
last; never a member's key.
"""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from abps import files
from abps.core.errors import RequestError, nearest
from abps.sites.consent import membership
from abps.sites.consent.keys import CertificateRequest, replace_certificate
from abps.sites.consent.kit import read_kit
from abps.sites.consent.membership import Revoked
from abps.sites.flare import kits
from abps.sites.flare.kits import without_keys

#: Days that a new certificate is good for, if the authority lives as long.
DAYS = 360


@dataclass(frozen=True)
class Change:
    """What was written, and where the new list must be copied to if it is not on this machine."""

    member: str
    list: Path
    written: tuple[Path, ...]
    until: datetime.datetime | None = None


class Authority:
    """The authority of the network whose kits are in ``out``."""

    def __init__(self, out: Path) -> None:
        self.out = Path(out)
        self.folder = self.out / "authority"
        self._path = self.folder / kits.STATE
        if not self._path.is_file():
            raise RequestError(f"{out} has no authority; name the folder that `abps site provision` made")
        found: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
        self._state = without_keys(found)
        if self._state != found:  # of an earlier version, which kept every member's key here
            self._write_state()
        self._root_pem = str(self._state["root_cert"]).encode()
        self._root = x509.load_pem_x509_certificate(self._root_pem)
        self._key: Any = load_pem_private_key(str(self._state["root_pri_key"]).encode(), None)

    def revoked(self) -> Revoked:
        """The list as it stands."""
        path = self.folder / membership.FILE
        if not path.is_file():
            return Revoked()
        return membership.from_text(path.read_text(encoding="utf-8"), self._root_pem)

    def revoke(self, member: str) -> Change:
        """Expel a member: its certificate is not to be trusted any more, and nobody is to talk to it."""
        old = self._certificate(member)
        if self._kind(member) == "relay":
            raise RequestError(f"{member!r} is the relay; no network is without: rotate it instead")
        written = self._publish(self.revoked().without(member, old.serial_number, expel=True))
        del self._state[member]  # whoever gets this name again gets another key
        self._write_state()
        return Change(member, self.folder / membership.FILE, written)

    def rotate(self, member: str) -> Change:
        """Give a member a new key and certificate; the old certificate is not to be trusted any more.

        The key is made here and leaves with the folder ``rotated``: to be handed over and deleted. Better is
        a key that the member made itself (:meth:`certify`).
        """
        from nvflare.lighter.utils import generate_keys, serialize_pri_key

        self._certificate(member)
        private, public = generate_keys()
        return self._issue(member, public, serialize_pri_key(private).decode("ascii"))

    def certify(self, request: CertificateRequest, compared: str = "") -> Change:
        """Give a member a certificate for a key that it has made itself and that nobody else has seen.

        compared: the fingerprint of the request, as the member told it otherwise. It is needed unless the
        request is signed with the member's present key: whoever can send a file could ask in its name.
        """
        present = self._certificate(request.member).public_bytes(Encoding.PEM)
        if compared and not request.matches(compared):
            raise RequestError(
                f"the request has the fingerprint {request.fingerprint}, not {compared}; it is not of the "
                "same key: do not certify it, and ask the member for another"
            )
        if not compared and not request.signed_by(present):
            raise RequestError(
                f"the request is not signed with the present key of {request.member}; let somebody there "
                "read out its fingerprint over a channel you trust, and name it"
            )
        if self._kind(request.member) != "site":
            raise RequestError(
                f"{request.member!r} is no site; give the relay or an operator a key by rotating"
            )
        return self._issue(request.member, request.public, None)

    def _issue(self, member: str, public: Any, private: str | None) -> Change:
        """A certificate for a public key, in the folder ``rotated`` and, if it is here, in the kit."""
        from nvflare.lighter.utils import Identity, generate_cert, serialize_cert

        old, kind = self._certificate(member), self._kind(member)
        now = datetime.datetime.now(datetime.UTC)
        end = self._root.not_valid_after_utc
        if end <= now:
            raise RequestError(f"the authority itself ended on {end:%Y-%m-%d}; provision into a new folder")
        until = min(end, now + datetime.timedelta(days=DAYS))
        role = "project_admin" if kind == "operator" else None
        issuer = self._root.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value
        paper = generate_cert(
            subject=Identity(member, kits.ORGANISATION, role),
            issuer=Identity(issuer),
            signing_pri_key=self._key,
            subject_pub_key=public,
            server_default_host=member if kind == "relay" else None,
            not_valid_before=now - datetime.timedelta(minutes=5),  # clocks differ
            not_valid_after=until,
        )
        self._state[member] = {"cert": serialize_cert(paper).decode("ascii")}
        self._write_state()
        base = "server" if kind == "relay" else "client"
        place = files.folder(self.out / "rotated" / ("relay" if kind == "relay" else member))
        fresh = [place / f"{base}.crt", place / f"{base}.key"]
        files.write_text(fresh[0], self._state[member]["cert"])
        fresh[1].unlink(missing_ok=True)  # of an earlier rotation
        if private is None:
            fresh.pop()
        else:
            files.write_secret(fresh[1], private)
        kit = self.out / ("relay" if kind == "relay" else member)
        if private is not None and (kit / "startup").is_dir():
            replace_certificate(kit, place)
        written = self._publish(self.revoked().without(member, old.serial_number, expel=False))
        return Change(member, self.folder / membership.FILE, (*fresh, *written), until)

    def readmit(self, names: Sequence[str]) -> None:
        """Members that were expelled and are provisioned anew."""
        told = self.revoked()
        for name in sorted(set(told.expelled) & set(names)):
            told = told.without(name, None, expel=False)
        if told.number != self.revoked().number:
            self._publish(told)

    def sites(self) -> list[str]:
        """The names of all sites that are members."""
        return [name for name in self._members() if self._kind(name) == "site"]

    def _members(self) -> list[str]:
        return [name for name, value in self._state.items() if isinstance(value, dict) and "cert" in value]

    def _certificate(self, member: str) -> x509.Certificate:
        known = self._members()
        if member not in known:
            raise RequestError(f"no member is called {member!r}{nearest(member, known)}")
        return x509.load_pem_x509_certificate(str(self._state[member]["cert"]).encode())

    def _kind(self, member: str) -> str:
        """Operators are known by e-mail address, the relay by the host that the kits call."""
        if "@" in member:
            return "operator"
        hosts = set()
        for folder in self.out.iterdir():
            with contextlib.suppress(RequestError):
                hosts.add(read_kit(folder).host)
        return "relay" if member in hosts else "site"

    def _write_state(self) -> None:
        files.write_secret(self._path, files.as_json(self._state))

    def _publish(self, told: Revoked) -> tuple[Path, ...]:
        """Sign the list, keep it, and put it into every kit that is on this machine."""
        text = told.to_text(self._key)
        kept = [folder / "local" for folder in sorted(self.out.iterdir()) if (folder / "local").is_dir()]
        written = tuple(folder / membership.FILE for folder in (self.folder, *kept))
        for path in written:
            files.write_text(path, text)
        return written
