"""Letters that only the owner of a certificate can open: for what the relay carries and must not read."""

from __future__ import annotations

import secrets
from typing import Any

from abps.core.errors import RequestError
from abps.sites.consent.signing import Signer

#: Bytes of the key of one letter, and of what makes every letter another.
_KEY, _NONCE = 32, 12


def seal(certificate: bytes, data: bytes) -> bytes:
    """A letter to the owner of a certificate (PEM): a key of its own, in the owner's hands, and the text."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    owner = x509.load_pem_x509_certificate(certificate).public_key()
    if not isinstance(owner, RSAPublicKey):
        raise RequestError("the certificate has no key that letters can be sealed with")
    key, nonce = secrets.token_bytes(_KEY), secrets.token_bytes(_NONCE)
    wrapped = owner.encrypt(key, _padding())
    return len(wrapped).to_bytes(2, "big") + wrapped + nonce + AESGCM(key).encrypt(nonce, data, None)


def unseal(signer: Signer, letter: bytes) -> bytes:
    """The text of a letter to this signer; a sentence if it is none, or was changed."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    size = int.from_bytes(letter[:2], "big")
    wrapped, rest = letter[2 : 2 + size], letter[2 + size :]
    try:
        key = signer.key.decrypt(wrapped, _padding())
        return AESGCM(key).decrypt(rest[:_NONCE], rest[_NONCE:], None)
    except (ValueError, InvalidTag) as error:
        raise RequestError("a letter cannot be opened: it is to somebody else, or was changed") from error


def _padding() -> Any:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    return padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None)
