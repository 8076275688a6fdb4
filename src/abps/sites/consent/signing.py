"""Signatures with the keys of startup kits, and the certificates that say whose they are.

What is signed says what it is (``purpose``), so that no signature can be used for something else.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from abps.core.errors import RequestError

#: What a certificate says of an operator.
OPERATOR = "project_admin"

#: Where a kit keeps the certificates of its earlier keys, to read what they signed.
FORMER = "former"


@dataclass(frozen=True, eq=False)
class Signer:
    """A private key with its certificate (PEM).  former: certificates of keys that it took the place of."""

    key: Any
    certificate: bytes
    former: tuple[bytes, ...] = ()

    def signed(self, purpose: str, data: bytes, signature: bytes) -> bool:
        """Whether this key, or one that it took the place of, signed these bytes for this purpose."""
        return any(signed_by(known, purpose, data, signature) for known in (self.certificate, *self.former))

    def sign(self, purpose: str, data: bytes) -> bytes:
        """A signature of some bytes for one purpose."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import padding

        scheme = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
        signature: bytes = self.key.sign(_framed(purpose, data), scheme, hashes.SHA256())
        return signature


def signer(kit: Path) -> Signer | None:
    """The key of a startup kit; None where there is none (a trial without certificates)."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key, certificate = (Path(kit) / "startup" / name for name in ("client.key", "client.crt"))
    if not (key.is_file() and certificate.is_file()):
        return None
    try:
        former = tuple(path.read_bytes() for path in sorted((Path(kit) / "startup" / FORMER).glob("*.crt")))
        return Signer(load_pem_private_key(key.read_bytes(), None), certificate.read_bytes(), former)
    except (ValueError, TypeError) as error:
        raise RequestError(f"{key} is not a private key ({error}); take the kit as it was made") from error


def root(kit: Path) -> bytes | None:
    """The certificate of the authority in a startup kit; None where there is none."""
    path = Path(kit) / "startup" / "rootCA.pem"
    return path.read_bytes() if path.is_file() else None


def signed_by(certificate: bytes, purpose: str, data: bytes, signature: bytes) -> bool:
    """Whether the owner of a certificate signed these bytes for this purpose."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    try:
        key: Any = x509.load_pem_x509_certificate(certificate).public_key()
        scheme = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
        key.verify(signature, _framed(purpose, data), scheme, hashes.SHA256())
    except (InvalidSignature, ValueError, TypeError, AttributeError):
        return False
    return True


def owner(certificate: bytes, authority: bytes, now: datetime.datetime | None = None) -> tuple[str, str]:
    """The name and the role in a certificate that the authority made and that is valid now, or ValueError."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.x509.oid import NameOID

    found = x509.load_pem_x509_certificate(certificate)
    try:
        found.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    except (InvalidSignature, TypeError) as error:
        raise ValueError("the certificate is of another authority") from error
    now = now or datetime.datetime.now(datetime.UTC)
    if not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
        raise ValueError(f"the certificate was valid until {found.not_valid_after_utc:%Y-%m-%d}")
    names = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    roles = found.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)
    return str(names[0].value) if names else "", str(roles[0].value) if roles else ""


def _framed(purpose: str, data: bytes) -> bytes:
    return b"abps " + purpose.encode() + b"\0" + data
