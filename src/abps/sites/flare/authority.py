"""What only the authority can do: certify a member's new key, and expel a member, in a network that goes on.

The authority's folder (``kits/authority``) holds its own key, and of members the certificate that it made
last; never a member's key.
"""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from nvflare.lighter.utils import Identity, generate_cert, serialize_cert

from abps import files
from abps.core.errors import RequestError, nearest
from abps.sites.consent import kit as membership
from abps.sites.consent.keys import OPERATOR_ROLE, CertificateRequest
from abps.sites.consent.kit import RevocationList, Role, read_kit
from abps.sites.flare import kits

#: Days that a new certificate is good for, if the authority lives as long.
DAYS = 360


class Authority:
    """The authority of the network whose kits are in ``out``."""

    def __init__(self, out: Path) -> None:
        self.out = Path(out)
        self.folder = self.out / "authority"
        self.list = self.folder / membership.REVOKED
        self._path = self.folder / kits.STATE
        if not self._path.is_file():
            raise RequestError(f"{out} has no authority; name the folder that `abps site provision` made")
        self._state: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
        self._root_pem = str(self._state["root_cert"]).encode()
        self._root = x509.load_pem_x509_certificate(self._root_pem)
        self._key: Any = load_pem_private_key(str(self._state["root_pri_key"]).encode(), None)

    def revoked(self) -> RevocationList:
        """The list in force."""
        if not self.list.is_file():
            return RevocationList()
        return membership.from_text(self.list.read_text(encoding="utf-8"), self._root_pem)

    def revoke(self, member: str) -> None:
        """Expel a member: its certificate is not to be trusted any more, and nobody is to talk to it."""
        old = self._certificate(member)
        if self._role(member) is Role.RELAY:
            raise RequestError(f"{member!r} is the relay; give it a new certificate instead")
        self._publish(self.revoked().without(member, old.serial_number, expel=True))
        del self._state[member]  # whoever gets this name again gets another key
        self._write_state()

    def certify(self, request: CertificateRequest, fingerprint: str = "") -> tuple[Path, datetime.datetime]:
        """Give a member a certificate for a key that it has made itself, and revoke the old one: where it is,
        and when it ends.

        fingerprint: of the request, as somebody at the member read it out. It is needed unless the request is
        signed with the member's present key: whoever can send a file could ask in its name.
        """
        member, old = request.member, self._certificate(request.member)
        if fingerprint and not request.matches(fingerprint):
            raise RequestError(
                f"the request has the fingerprint {request.fingerprint}, not {fingerprint}; it is not of the "
                "same key: do not certify it, and ask the member for another"
            )
        if not fingerprint and not request.signed_by(old.public_bytes(Encoding.PEM)):
            raise RequestError(
                f"the request is not signed with the present key of {member}; let somebody there read out "
                "its fingerprint over a channel you trust, and name it with --fingerprint"
            )
        now, end = datetime.datetime.now(datetime.UTC), self._root.not_valid_after_utc
        if end <= now:
            raise RequestError(f"the authority itself ended on {end:%Y-%m-%d}; provision into a new folder")
        until, role = min(end, now + datetime.timedelta(days=DAYS)), self._role(member)
        issuer = self._root.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value
        certificate = generate_cert(
            subject=Identity(member, kits.ORGANISATION, OPERATOR_ROLE if role is Role.OPERATOR else None),
            issuer=Identity(issuer),
            signing_pri_key=self._key,
            subject_pub_key=request.public,
            server_default_host=member if role is Role.RELAY else None,
            not_valid_before=now - datetime.timedelta(minutes=5),  # clocks differ
            not_valid_after=until,
        )
        self._state[member] = {"cert": serialize_cert(certificate).decode("ascii")}
        self._write_state()
        path = files.folder(self.out / "certified") / f"{member}.crt"
        files.write_text(path, self._state[member]["cert"])
        self._publish(self.revoked().without(member, old.serial_number, expel=False))
        return path, until

    def readmit(self, names: Sequence[str]) -> None:
        """Take members that are provisioned anew off the list of the expelled."""
        before = found = self.revoked()
        for name in sorted(set(found.expelled) & set(names)):
            found = found.without(name, None, expel=False)
        if found != before:
            self._publish(found)

    def sites(self) -> list[str]:
        return [name for name in self._members() if self._role(name) is Role.SITE]

    def certificate(self, member: str) -> str:
        return self._certificate(member).public_bytes(Encoding.PEM).decode("ascii")

    def _members(self) -> list[str]:
        return [name for name, value in self._state.items() if isinstance(value, dict) and "cert" in value]

    def _certificate(self, member: str) -> x509.Certificate:
        known = self._members()
        if member not in known:
            raise RequestError(f"no member is called {member!r}{nearest(member, known)}")
        return x509.load_pem_x509_certificate(str(self._state[member]["cert"]).encode())

    def _role(self, member: str) -> Role:
        """Operators are known by e-mail address, the relay by the host that the kits call."""
        if "@" in member:
            return Role.OPERATOR
        hosts = set()
        for folder in self.out.iterdir():
            with contextlib.suppress(RequestError):
                hosts.add(read_kit(folder).host)
        return Role.RELAY if member in hosts else Role.SITE

    def _write_state(self) -> None:
        files.write_secret(self._path, files.as_json(self._state))

    def _publish(self, revoked: RevocationList) -> None:
        """Sign the list, keep it, and put it into every kit that is on this machine."""
        text = revoked.to_text(self._key)
        kept = [folder / "local" for folder in sorted(self.out.iterdir()) if (folder / "local").is_dir()]
        for folder in (self.folder, *kept):
            files.write_text(folder / membership.REVOKED, text)
