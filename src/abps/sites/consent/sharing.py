"""A site's codebook on its way to the operator: shared once by a person, asked for, sealed, and merged.

``abps site share`` records in the site's journal that exactly this codebook may be given to the operators of
the network. When a signed proposal asks for it, the site sends it in a letter that the operator alone can
open, with a signature that says whose it is. The relay carries both and can neither read nor change them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from abps.core.errors import RequestError
from abps.data.codebook import Codebook
from abps.sites.consent import keys, sitefile
from abps.sites.consent.approval import Consent
from abps.sites.consent.journal import Journal, JournalEvent, JournalLine
from abps.sites.consent.keys import Signer, seal, unseal
from abps.sites.consent.kit import Membership
from abps.sites.consent.proposal import SignedProposal
from abps.sites.coordinator.steps import run_with_approval
from abps.sites.protocol import commands
from abps.sites.protocol.commands import Command, DeclineCode, DeclineError, SiteLine, Timeouts
from abps.sites.store import rows as chain

#: What signatures of codebooks are for.
PURPOSE = "codebook"

#: More bytes than any codebook has.
MOST_BYTES = 20_000_000

#: The parts of a letter.
_PARTS = ("book", "certificate", "signature")


def read(local: Path) -> Codebook:
    """The codebook that this site proposes."""
    path = Path(local) / sitefile.CODEBOOK
    if not path.is_file():
        raise RequestError(f"{path}: no codebook is here; write it with `abps site init`, and read it")
    try:
        return Codebook.from_json(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise RequestError(f"{path}: {error}") from error


def digest(book: Codebook) -> str:
    """Equal for two codebooks that say the same."""
    return chain.digest(chain.canonical(book.to_json())).hex()


def share(journal: Journal, book: Codebook, by: str) -> JournalLine:
    """Let the operators of the network have this codebook, and no other."""
    if not by.strip():
        raise RequestError("sharing needs the name of the person who decides it")
    return journal.write(JournalEvent.SHARED, codebook=digest(book), by=by.strip())


def shared(journal: Journal, book: Codebook) -> JournalLine | None:
    """The line by which somebody let this codebook out."""
    wanted = digest(book)
    lines = [line for line in journal.lines() if line.what == JournalEvent.SHARED]
    return next((line for line in reversed(lines) if line.facts.get("codebook") == wanted), None)


def letter(own: sitefile.SiteFile, local: Path, signed: SignedProposal) -> dict[str, Any]:
    """This site's codebook for the operator who asks for it; :class:`DeclineError` if nobody shared it.

    It is recorded before it leaves.
    """
    kit = Path(local).parent
    journal, book = own.journal(kit), read(local)
    if book.min_cell < own.policy.floor:
        raise DeclineError(
            DeclineCode.POLICY,
            f"the codebook's minimum cell size is {book.min_cell} patients; this site's policy asks for "
            f"{own.policy.floor}; run `abps site init` again",
        )
    consent = Consent(Path(own.store), journal, own.policy, signed, keys.read_root(kit), Membership(kit).now)
    consent.given(shared(journal, book))
    data = chain.canonical(book.to_json())
    journal.write(
        JournalEvent.SENT, to=signed.operator(keys.read_root(kit)), codebook=digest(book), bytes=len(data)
    )
    if journal.signer is None:
        return {"book": data, "certificate": b"", "signature": b""}
    signature = journal.signer.sign(PURPOSE, _signed_content(signed, data))
    sealed = seal(signed.certificate.encode(), data)
    return {"book": sealed, "certificate": journal.signer.certificate, "signature": signature}


def gather(
    line: SiteLine,
    sites: Sequence[str],
    timeouts: Timeouts | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """The scheduler's part: every site's letter, which it cannot read, and why there is none."""
    timeouts = timeouts or Timeouts()
    replies, why = run_with_approval(line, sorted(sites), timeouts.talk, timeouts, Command.LETTER)
    letters, invalid = commands.check_all(replies, _letter)
    left_out = {name: str(each) for name, each in sorted((why | invalid).items())}
    for name, reason in left_out.items():
        log(f"{name} has sent no codebook: {reason}")
    if not letters:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise RequestError(f"no site has sent a codebook ({reasons or 'no site is there'})")
    return {"schema": "abps.gathered/1", "codebooks": letters, "left_out": left_out}


def _letter(value: Any) -> dict[str, str]:
    """A letter in its proper form, as text for a file."""
    if not isinstance(value, dict) or set(value) != set(_PARTS):
        raise ValueError("no letter")
    if not all(isinstance(part, bytes) and len(part) <= MOST_BYTES for part in value.values()):
        raise ValueError("no bytes")
    return {name: value[name].hex() for name in _PARTS}


def open_letter(
    site: str, letter: Mapping[str, Any], signed: SignedProposal, key: Signer | None, authority: bytes | None
) -> Codebook:
    """A site's codebook as the operator gets it: opened, and checked that it is this site's answer."""
    try:
        data, certificate, signature = (bytes.fromhex(letter[k]) for k in _PARTS)
        if len(data) > MOST_BYTES:
            raise ValueError("it is too long")
        if key is not None and authority is not None:
            name, _ = keys.certificate_owner(certificate, authority)
            data = unseal(key, data)
            if name != site or not keys.signed_by(
                certificate, PURPOSE, _signed_content(signed, data), signature
            ):
                raise ValueError("it is not signed by that site")
        return Codebook.from_json(json.loads(data))
    except (ValueError, KeyError, TypeError) as error:
        raise RequestError(f"what came as the codebook of {site} cannot be used: {error}") from error


def _signed_content(signed: SignedProposal, data: bytes) -> bytes:
    """What a site signs: its codebook, as the answer to this proposal."""
    return signed.proposal.digest().encode() + b"\0" + data
