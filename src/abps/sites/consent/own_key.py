"""A site's own key: made at the site, which shows the authority its public half and nothing else.

The site asks (a certificate request in the usual form, PEM), the authority answers with a certificate, the
site puts both into its kit. Until then the kit is as it was. A request is also signed with the key that the
site has now, if it has one, so that the authority knows who asks.
"""

from __future__ import annotations

import base64
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from abps import files
from abps.core.errors import RequestError
from abps.sites.consent import signing
from abps.sites.consent.preflight import Kit

#: Where a kit keeps a key that was asked for and has no certificate yet.
PENDING = "pending"

#: What the signature with the present key is for.
PURPOSE = "key-request"

#: Bits of a key; the engine speaks RSA.
BITS = 2048

#: Digits of a fingerprint that have to be compared at least.
DIGITS = 16

_BEGIN, _END = "-----BEGIN ABPS SIGNATURE-----", "-----END ABPS SIGNATURE-----"


@dataclass(frozen=True, eq=False)
class Request:
    """Who asks, for which public key, and what the present key has signed (empty: nothing)."""

    member: str
    public: rsa.RSAPublicKey
    signature: bytes

    @property
    def fingerprint(self) -> str:
        """What people can compare: a digest of the public key, in groups of four digits."""
        digest = hashes.Hash(hashes.SHA256())
        digest.update(_public(self.public))
        told = digest.finalize().hex()
        return " ".join(told[k : k + 4] for k in range(0, 32, 4))

    def is_called(self, compared: str) -> bool:
        """Whether somebody who says this means this request; its beginning is enough."""
        said = re.sub(r"[\s:]", "", compared).lower()
        return len(said) >= DIGITS and self.fingerprint.replace(" ", "").startswith(said)

    def signed_by(self, certificate: bytes) -> bool:
        """Whether the owner of a certificate asks."""
        return signing.signed_by(certificate, PURPOSE, _public(self.public), self.signature)


def ask(kit: Kit, out: Path) -> Request:
    """Make a key in a site's kit, and write a request for its certificate to ``out``."""
    _site(kit)
    key = rsa.generate_private_key(65537, BITS)
    public = key.public_key()
    present = signing.signer(kit.folder)
    signature = b"" if present is None else present.sign(PURPOSE, _public(public))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, kit.name)])
    text = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(name)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
        .decode("ascii")
    )
    if signature:
        text += f"{_BEGIN}\n{base64.b64encode(signature).decode()}\n{_END}\n"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode("ascii")
    files.write_secret(_pending(kit), private)
    files.write_text(out, text)
    return Request(kit.name, public, signature)


def read(path: Path) -> Request:
    """A request, or one sentence; whoever sends it must have the key that it asks for."""
    try:
        text = Path(path).read_text(encoding="ascii")
        found = x509.load_pem_x509_csr(text.encode())
        names = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        public = found.public_key()
        if len(names) != 1 or not isinstance(public, rsa.RSAPublicKey) or public.key_size < BITS:
            raise ValueError(f"one name and an RSA key of {BITS} bits or more are needed")
        if not found.is_signature_valid:
            raise ValueError("it is not signed with the key that it asks for")
        _, told, rest = text.partition(_BEGIN)
        signature = base64.b64decode(rest.partition(_END)[0], validate=False) if told else b""
    except OSError as error:
        raise RequestError(f"{path} cannot be read ({error.strerror}); name the site's request") from error
    except ValueError as error:
        raise RequestError(f"{path} is no request for a certificate ({error}); ask the site again") from error
    return Request(str(names[0].value), public, signature)


def install(kit: Kit, certificate: Path) -> x509.Certificate:
    """Put the certificate that was asked for, and its key, into a site's kit."""
    _site(kit)
    pending = _pending(kit)
    if not pending.is_file():
        raise RequestError(f"{kit.folder} has not asked for a certificate; run `abps site request` first")
    try:
        pem = Path(certificate).read_bytes()
        paper = x509.load_pem_x509_certificate(pem)
        name, _ = signing.owner(pem, kit.root.read_bytes())
    except OSError as error:
        raise RequestError(f"{certificate} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise RequestError(f"{certificate} is no certificate of this network ({error})") from error
    key: Any = load_pem_private_key(pending.read_bytes(), None)
    if name != kit.name or _public(paper.public_key()) != _public(key.public_key()):
        raise RequestError(f"{certificate} is not the certificate that this site has asked for last")
    files.write_text(pending.with_name("client.crt"), pem.decode("ascii"))
    replace_papers(kit.folder, pending.parent)
    shutil.rmtree(pending.parent)
    return paper


def replace_papers(kit: Path, fresh: Path) -> None:
    """Put a new certificate and key into a kit; the old certificate is kept, the old key is not."""
    startup = Path(kit) / "startup"
    for paper in sorted(Path(fresh).glob("*.crt")):
        old = startup / paper.name
        if old.is_file() and old.read_bytes() != paper.read_bytes():
            serial = x509.load_pem_x509_certificate(old.read_bytes()).serial_number
            shutil.copy2(old, files.folder(startup / signing.FORMER) / f"{serial:x}.crt")
        files.write_text(old, paper.read_text(encoding="ascii"))
    for key in sorted(Path(fresh).glob("*.key")):
        files.write_secret(startup / key.name, key.read_text(encoding="ascii"))


def _pending(kit: Kit) -> Path:
    return kit.folder / "startup" / PENDING / "client.key"


def _site(kit: Kit) -> None:
    if kit.role != "site":
        raise RequestError(f"{kit.folder} is no site's kit; the relay's and operators' keys are rotated")


def _public(key: Any) -> bytes:
    der: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return der
