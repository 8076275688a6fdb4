"""Whether a site's log can be believed: its chain, its signed heads, and what partners know of them.

A row that was changed, taken out or put elsewhere breaks the chain. Rows that were cut off at the end, or a
whole chain that was made anew, contradict a head that the site signed before; who has the site's key as
well as its files contradicts the heads that partners hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from abps.core.errors import RequestError
from abps.sites.consent.keys import Signer
from abps.sites.store import chain
from abps.sites.store.rows import Head
from abps.sites.store.store import Store

#: What signatures of heads are for.
PURPOSE = "head"

SCHEMA = "abps.heads/1"

#: The kind of a row that tells of a restored backup.
RESTORED = "restored"


@dataclass(frozen=True)
class Verification:
    """What was looked through: rows of the log, own heads, and heads that partners hold."""

    rows: int
    heads: int
    witnessed: int
    faults: tuple[str, ...]


def signed_content(head: Head, agreement: str) -> bytes:
    """What a site signs of its log."""
    return chain.canonical([agreement, head.site, head.rows, head.round, head.digest.hex()])


def sign_head(store: Store, round: int, signer: Signer) -> Head:
    """The log as it is now, signed and kept."""
    facts = store.facts()
    rows, digest = store.log_head()
    bare = Head(facts["site"], rows, round, digest)
    signature = signer.sign(PURPOSE, signed_content(bare, facts["agreement"]))
    head = Head(bare.site, rows, round, digest, signature)
    store.keep_head(head)
    return head


def verify(store: Store, signer: Signer | None, witnesses: Collection[Head] = ()) -> Verification:
    """Look through a site's log. signer: the site's own key.  witnesses: its heads as partners hold them."""
    facts = store.facts()
    faults: list[str] = []
    digests = {0: store.log_start()}
    before, number = digests[0], 0
    for number, *row, digest in store.log_rows():
        expected = len(digests)
        if number != expected:
            faults.append(f"row {expected} of the log is missing (row {number} stands there)")
            break
        if digest is None or chain.link(before, (number, *row)) != digest:
            faults.append(f"row {number} of the log was changed, or a row before it")
            break
        before = digests[number] = bytes(digest)
    own = store.heads(facts["site"])
    if not faults:
        restored = _restored(store)
        signed = None if signer is None else _by(signer, facts["agreement"])
        faults += _contradictions(own, digests, restored, signed, "this site signed")
        # What is not signed by this site says nothing of it: anybody could have made it up.
        theirs = [head for head in witnesses if signed is None or signed(head)]
        faults += _contradictions(theirs, digests, restored, None, "a partner holds")
    return Verification(len(digests) - 1, len(own), len(witnesses), tuple(faults))


def _by(signer: Signer, agreement: str) -> Callable[[Head], bool]:
    return lambda head: signer.signed(PURPOSE, signed_content(head, agreement), head.signature)


def _restored(store: Store) -> list[int]:
    """The rows that tell of a restored backup."""
    return [row[0] for row in store.log_rows() if row[5] == RESTORED]


def _contradictions(
    heads: Iterable[Head],
    digests: dict[int, bytes],
    restored: list[int],
    signed: Callable[[Head], bool] | None,
    who: str,
) -> list[str]:
    found = []
    for head in heads:
        if signed is not None and not signed(head):
            found.append(f"the head of round {head.round} that {who} is not signed by this site's key")
        elif digests.get(head.rows) != head.digest and not _excused(head, restored):
            why = "is cut short" if head.rows not in digests else "is another one"
            found.append(
                f"the head of round {head.round} that {who} is of a log with {head.rows} rows; this log {why}"
            )
    return found


def _excused(head: Head, restored: list[int]) -> bool:
    """Whether a restored backup explains that the log lacks the rows of a head."""
    return any(head.rows >= row for row in restored)


def contradicts(store: Store, head: Head, signer: Signer) -> bool:
    """Whether a head, which this site signed once, shows that its log is older now or was changed."""
    facts = store.facts()
    if head.site != facts["site"] or not _by(signer, facts["agreement"])(head):
        return False  # anybody could have made that up
    return store.digest_at(head.rows) != head.digest and not _excused(head, _restored(store))


def heads_json(store: Store) -> dict[str, Any]:
    """The heads that a site holds, its own and those of partners, for others to check theirs against."""
    facts = store.facts()
    held = [
        {
            "site": head.site,
            "rows": head.rows,
            "round": head.round,
            "digest": head.digest.hex(),
            "signature": head.signature.hex(),
        }
        for head in store.heads()
    ]
    return {"schema": SCHEMA, "by": facts["site"], "agreement": facts["agreement"], "heads": held}


def read_heads(path: Path, store: Store) -> list[Head]:
    """What a partner's export says of this site's log."""
    facts = store.facts()
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']!r}")
        if data["agreement"] != facts["agreement"]:
            raise RequestError(f"{path} is of another study than this store")
        return [
            Head(
                str(head["site"]),
                int(head["rows"]),
                int(head["round"]),
                bytes.fromhex(head["digest"]),
                bytes.fromhex(head["signature"]),
            )
            for head in data["heads"]
            if head["site"] == facts["site"]
        ]
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}; name a partner's heads.json") from error
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"{path} is not a partner's heads.json ({error!r})") from error
