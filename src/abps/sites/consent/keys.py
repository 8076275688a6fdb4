"""Keys of startup kits: signatures, sealed letters, and a member's request for a certificate.

What is signed says what it is (``purpose``): no signature can be used for something else. A member makes its
new key itself and asks (a certificate request, PEM, also signed with its present key, if it has one); the
authority answers with a certificate, and the member installs both in its kit.
"""

import base64
import datetime
import hashlib
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as pem
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID

from abps import files
from abps.core.errors import RequestError
from abps.sites.consent.kit import Kit

OPERATOR_ROLE = "project_admin"  # what a certificate says of an operator
FORMER = "former"  # where a kit keeps the certificates of its earlier keys, to verify what they signed
PENDING = "pending"  # where a kit keeps a key that was asked for and has no certificate yet
REQUEST_PURPOSE = "key-request"  # what the signature of a request with the present key is for
BITS = 2048  # bits of a key; the engine speaks RSA
DIGITS = 16  # digits of a fingerprint that have to be compared at least
_LETTER_KEY, _NONCE = 32, 12  # bytes of the symmetric key and of the nonce of a sealed letter

_BEGIN, _END = "-----BEGIN ABPS SIGNATURE-----", "-----END ABPS SIGNATURE-----"
_PSS = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
_OAEP = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None)


@dataclass(frozen=True, eq=False)
class Signer:
    """A private key with its certificate (PEM).  former: certificates of keys that it replaced."""

    key: Any
    certificate: bytes
    former: tuple[bytes, ...] = ()

    def sign(self, purpose: str, data: bytes) -> bytes:
        signature: bytes = self.key.sign(_framed(purpose, data), _PSS, hashes.SHA256())
        return signature

    def signed(self, purpose: str, data: bytes, signature: bytes) -> bool:
        """Whether this key, or one that it replaced, signed these bytes for this purpose."""
        return any(signed_by(known, purpose, data, signature) for known in (self.certificate, *self.former))


def read_signer(kit: Path, base: str = "client") -> Signer | None:
    """The key of a startup kit; None where there is none (a trial without certificates)."""
    startup = Path(kit) / "startup"
    key, certificate = startup / f"{base}.key", startup / f"{base}.crt"
    if not (key.is_file() and certificate.is_file()):
        return None
    try:
        former = tuple(path.read_bytes() for path in sorted((startup / FORMER).glob("*.crt")))
        return Signer(load_pem_private_key(key.read_bytes(), None), certificate.read_bytes(), former)
    except (ValueError, TypeError) as error:
        raise RequestError(f"{key} is not a private key ({error}); take the kit as it was made") from error


def read_root(kit: Path) -> bytes | None:
    """The certificate of the authority in a startup kit; None where there is none."""
    path = Path(kit) / "startup" / "rootCA.pem"
    return path.read_bytes() if path.is_file() else None


def signed_by(certificate: bytes, purpose: str, data: bytes, signature: bytes) -> bool:
    try:
        key: Any = x509.load_pem_x509_certificate(certificate).public_key()
        key.verify(signature, _framed(purpose, data), _PSS, hashes.SHA256())
    except (InvalidSignature, ValueError, TypeError, AttributeError):
        return False
    return True


class Owner(NamedTuple):
    name: str
    role: str


def signer_of(certificate: bytes, authority: bytes, purpose: str, data: bytes, signature: bytes) -> Owner:
    """The member of this network who signed these bytes for this purpose, or ValueError."""
    owner = certificate_owner(certificate, authority)
    if not signed_by(certificate, purpose, data, signature):
        raise ValueError(f"it was changed after it was signed, or {owner.name} has not signed it")
    return owner


def certificate_owner(certificate: bytes, authority: bytes) -> Owner:
    """The owner of a certificate that the authority made and that is valid now, or ValueError."""
    found = x509.load_pem_x509_certificate(certificate)
    try:
        found.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    except (InvalidSignature, TypeError) as error:
        raise ValueError("the certificate is of another authority") from error
    if not found.not_valid_before_utc <= datetime.datetime.now(datetime.UTC) <= found.not_valid_after_utc:
        raise ValueError(f"the certificate was valid until {found.not_valid_after_utc:%Y-%m-%d}")
    names = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    roles = found.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)
    return Owner(str(names[0].value) if names else "", str(roles[0].value) if roles else "")


def _framed(purpose: str, data: bytes) -> bytes:
    return b"abps " + purpose.encode() + b"\0" + data


def seal(certificate: bytes, data: bytes) -> bytes:
    """A letter that only the owner of a certificate (PEM) can open: for what the relay must not read."""
    owner = x509.load_pem_x509_certificate(certificate).public_key()
    if not isinstance(owner, rsa.RSAPublicKey):
        raise RequestError("the certificate has no key that letters can be sealed with")
    key, nonce = secrets.token_bytes(_LETTER_KEY), secrets.token_bytes(_NONCE)
    wrapped = owner.encrypt(key, _OAEP)
    return len(wrapped).to_bytes(2, "big") + wrapped + nonce + AESGCM(key).encrypt(nonce, data, None)


def unseal(signer: Signer, letter: bytes) -> bytes:
    """The text of a letter to this signer; a sentence if it is none, or was changed."""
    size = int.from_bytes(letter[:2], "big")
    wrapped, rest = letter[2 : 2 + size], letter[2 + size :]
    try:
        return AESGCM(signer.key.decrypt(wrapped, _OAEP)).decrypt(rest[:_NONCE], rest[_NONCE:], None)
    except (ValueError, InvalidTag) as error:
        raise RequestError("a letter cannot be opened: it is to somebody else, or was changed") from error


@dataclass(frozen=True, eq=False)
class CertificateRequest:
    """Who asks, for which public key, and the signature of the present key (empty: none)."""

    member: str
    public: rsa.RSAPublicKey
    signature: bytes

    @property
    def fingerprint(self) -> str:
        """What people can compare: a digest of the public key, in groups of four digits."""
        text = hashlib.sha256(_public(self.public)).hexdigest()
        return " ".join(text[k : k + 4] for k in range(0, 32, 4))

    def matches(self, fingerprint: str) -> bool:
        """Whether a fingerprint that somebody read out is this request's; its beginning is enough."""
        digits = re.sub(r"[\s:]", "", fingerprint).lower()
        return len(digits) >= DIGITS and self.fingerprint.replace(" ", "").startswith(digits)

    def signed_by(self, certificate: bytes) -> bool:
        return signed_by(certificate, REQUEST_PURPOSE, _public(self.public), self.signature)


def request_certificate(kit: Kit, out: Path) -> CertificateRequest:
    """Make a new key in a kit, and write a request for its certificate to ``out``."""
    key = rsa.generate_private_key(65537, BITS)
    present = read_signer(kit.folder, kit.key.stem)
    signature = b"" if present is None else present.sign(REQUEST_PURPOSE, _public(key.public_key()))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, kit.member)])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    text = request.public_bytes(Encoding.PEM).decode("ascii")
    if signature:
        text += f"{_BEGIN}\n{base64.b64encode(signature).decode()}\n{_END}\n"
    private = key.private_bytes(Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())
    files.write_secret(_pending(kit), private.decode("ascii"))
    files.write_text(out, text)
    return CertificateRequest(kit.member, key.public_key(), signature)


def read_request(path: Path) -> CertificateRequest:
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
        _, mark, rest = text.partition(_BEGIN)
        signature = base64.b64decode(rest.partition(_END)[0], validate=False) if mark else b""
    except OSError as error:
        raise RequestError(f"{path} cannot be read ({error.strerror}); name the member's request") from error
    except ValueError as error:
        raise RequestError(f"{path} is no request for a certificate ({error}); ask again") from error
    return CertificateRequest(str(names[0].value), public, signature)


def install_certificate(kit: Kit, certificate: Path) -> x509.Certificate:
    """Put the certificate that was asked for, and its key, into the kit; keep the old certificate."""
    pending = _pending(kit)
    if not pending.is_file():
        raise RequestError(f"{kit.folder} has not asked for a certificate; run `abps site request` first")
    try:
        text = Path(certificate).read_bytes()
        found = x509.load_pem_x509_certificate(text)
        name, _ = certificate_owner(text, kit.root.read_bytes())
    except OSError as error:
        raise RequestError(f"{certificate} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise RequestError(f"{certificate} is no certificate of this network ({error})") from error
    key: Any = load_pem_private_key(pending.read_bytes(), None)
    if name != kit.member or _public(found.public_key()) != _public(key.public_key()):
        raise RequestError(f"{certificate} is not the certificate that was asked for last")
    if kit.certificate.is_file():
        serial = x509.load_pem_x509_certificate(kit.certificate.read_bytes()).serial_number
        former = files.folder(kit.certificate.parent / FORMER)
        shutil.copy2(kit.certificate, former / f"{serial:x}.crt")
    files.write_text(kit.certificate, text.decode("ascii"))
    files.write_secret(kit.key, pending.read_text(encoding="ascii"))
    shutil.rmtree(pending.parent)
    return found


def _pending(kit: Kit) -> Path:
    return kit.key.parent / PENDING / kit.key.name


def _public(key: Any) -> bytes:
    der: bytes = key.public_bytes(Encoding.DER, pem.PublicFormat.SubjectPublicKeyInfo)
    return der
