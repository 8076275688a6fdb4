"""Whether a site's log can be trusted: its chain, its signed heads, and what partners know of them.

A row that was changed, removed or moved breaks the chain. Rows that were cut off at the end, or a chain that
was made anew, contradict a head that the site signed before; an attacker who also has the site's key
contradicts the heads that partners hold.

A restored backup lacks rows that partners know. Only a restore signed with the site's key explains that, and
only for heads that were signed before it: every head says how many restores came before it, so a head of the
present store always binds.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from abps import files
from abps.core.errors import RequestError
from abps.sites.consent.keys import Signer
from abps.sites.store import rows as chain
from abps.sites.store.rows import EntryKind, Head, LogEntry, Restore
from abps.sites.store.store import Store

#: What signatures of heads, and of restores, are for.
PURPOSE, RESTORE_PURPOSE = "head", "restore"

SCHEMA = "abps.heads/2"


@dataclass(frozen=True)
class Verification:
    """What was checked: rows of the log, own heads, and heads that partners hold; and what is wrong."""

    rows: int
    heads: int
    partner_heads: int
    faults: tuple[str, ...]


def signed_content(head: Head, agreement: str) -> bytes:
    """What a site signs of its log."""
    return chain.canonical([agreement, head.site, head.rows, head.round, head.digest.hex(), head.restores])


def sign_head(store: Store, round: int, signer: Signer) -> Head:
    """The log as it is now, signed and kept."""
    facts = store.facts()
    rows, digest = store.log_head()
    bare = Head(facts["site"], rows, round, digest, restores=len(store.restores()))
    head = replace(bare, signature=signer.sign(PURPOSE, signed_content(bare, facts["agreement"])))
    store.keep_head(head)
    return head


def record_restore(store: Store, entry: LogEntry, signer: Signer | None) -> None:
    """Write the restore of a backup into the log of the store that was brought back, signed."""
    facts = store.facts()
    store.log(replace(entry, kind=EntryKind.RESTORED))
    rows, digest = store.log_head()
    bare = Restore(len(store.restores()) + 1, rows, digest)
    content = _restore_content(bare, facts["agreement"])
    store.keep_restore(
        bare if signer is None else replace(bare, signature=signer.sign(RESTORE_PURPOSE, content))
    )


def _restore_content(restore: Restore, agreement: str) -> bytes:
    return chain.canonical([agreement, restore.number, restore.row, restore.digest.hex()])


def verify(store: Store, signer: Signer | None, partner_heads: Collection[Head] = ()) -> Verification:
    """Check a site's log.  signer: the site's own key.  partner_heads: its heads as partners hold them."""
    facts = store.facts()
    faults: list[str] = []
    digests = {0: store.log_start()}
    before = digests[0]
    marked: list[int] = []  # rows that claim a restore
    for number, *row, digest in store.log_rows():
        expected = len(digests)
        if number != expected:
            faults.append(f"row {expected} of the log is missing (row {number} stands there)")
            break
        if chain.link(before, (number, *row)) != digest:
            faults.append(f"row {number} of the log was changed, or a row before it")
            break
        before = digests[number] = bytes(digest)
        if row[4] == EntryKind.RESTORED:
            marked.append(number)
    own = store.heads(facts["site"])
    if not faults:
        restores = _valid_restores(store, signer)
        trusted = {each.row for each in restores}
        faults += [
            f"row {row} claims a restore that nobody here signed" for row in marked if row not in trusted
        ]
        signed = None if signer is None else _by(signer, facts["agreement"])
        faults += _contradictions(own, digests, restores, signed, "this site signed")
        # A head without this site's signature proves nothing: anybody could have made it up.
        theirs = [head for head in partner_heads if signed is None or signed(head)]
        faults += _contradictions(theirs, digests, restores, None, "a partner holds")
        faults += [f"{what} is not what the log says that was kept" for what in store.unbound()]
    return Verification(len(digests) - 1, len(own), len(partner_heads), tuple(faults))


def _by(signer: Signer, agreement: str) -> Callable[[Head], bool]:
    return lambda head: signer.signed(PURPOSE, signed_content(head, agreement), head.signature)


def _valid_restores(store: Store, signer: Signer | None) -> list[Restore]:
    """The restores that the log records and this site signed; without a key (a rehearsal) the recorded."""
    agreement = store.facts()["agreement"]
    return [
        each
        for each in store.restores()
        if store.digest_at(each.row) == each.digest
        and (
            signer is None
            or signer.signed(RESTORE_PURPOSE, _restore_content(each, agreement), each.signature)
        )
    ]


def _contradictions(
    heads: Iterable[Head],
    digests: dict[int, bytes],
    restores: list[Restore],
    signed: Callable[[Head], bool] | None,
    who: str,
) -> list[str]:
    found = []
    for head in heads:
        if signed is not None and not signed(head):
            found.append(f"the head of round {head.round} that {who} is not signed by this site's key")
        elif digests.get(head.rows) != head.digest and not _lost_by_restore(head, restores):
            why = "is cut short" if head.rows not in digests else "is another one"
            found.append(
                f"the head of round {head.round} that {who} is of a log with {head.rows} rows; this log {why}"
            )
    return found


def _lost_by_restore(head: Head, restores: list[Restore]) -> bool:
    """Whether a later restore explains that the log lacks the rows of a head."""
    return any(each.number > head.restores and each.row <= head.rows for each in restores)


def is_own(store: Store, head: Head, signer: Signer) -> bool:
    """Whether this site signed a head of this study's log; anybody could have made another one up."""
    facts = store.facts()
    return head.site == facts["site"] and _by(signer, facts["agreement"])(head)


def contradicts(store: Store, head: Head, signer: Signer) -> bool:
    """Whether a head that this site signed shows that its log is older now or was changed."""
    if store.digest_at(head.rows) == head.digest:
        return False
    return not _lost_by_restore(head, _valid_restores(store, signer))


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
            "restores": head.restores,
        }
        for head in store.heads()
    ]
    return {"schema": SCHEMA, "by": facts["site"], "agreement": facts["agreement"], "heads": held}


def read_heads(path: Path, site: str, agreement: str | None, signer: Signer | None = None) -> list[Head]:
    """The heads of a site's log in a partner's export.

    agreement: of the site's store; none: it has no such store, and only heads that its key signed count.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']!r}")
        found = [
            Head(site, int(h["rows"]), int(h["round"]), bytes.fromhex(h["digest"]),
                 bytes.fromhex(h["signature"]), int(h["restores"]))
            for h in data["heads"] if h["site"] == site
        ]  # fmt: skip
        signed = None if signer is None else _by(signer, str(data["agreement"]))
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}; name a partner's heads.json") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{path} is not a partner's heads.json ({error!r})") from error
    if agreement is None:
        return [head for head in found if signed is not None and signed(head)]
    if data["agreement"] != agreement:
        raise RequestError(f"{path} is of another study than this store")
    return found


def check_not_gone(path: Path, site: str, signer: Signer | None, partner: Collection[Path]) -> None:
    """Refuse a store that is not there, and of whose log partners hold heads: it was deleted."""
    known = [] if path.is_file() else [h for p in partner for h in read_heads(p, site, None, signer)]
    if known:
        last = max(known, key=lambda head: head.rows)
        raise RequestError(
            f"{path} is gone: a partner holds the head of its log with {last.rows} rows, signed here in "
            f"round {last.round}; bring the latest backup back with `abps site restore`"
        )


def backup(path: Path, out: Path) -> Path:
    """Copy a study's store into a folder; a job may run meanwhile. Returns the file."""
    Store.look(path).close()  # a damaged store is not worth a copy
    written = files.folder(out) / path.name
    with files.replacing(written) as part:
        part.unlink()
        with (
            contextlib.closing(sqlite3.connect(f"file:{path.absolute()}?mode=ro", uri=True)) as live,
            contextlib.closing(sqlite3.connect(part)) as copy,
        ):
            live.backup(copy)
    return written


def restore(path: Path, source: Path, by: str, signer: Signer | None) -> Verification:
    """Bring a study's store back from a backup; what was there is kept beside it.

    A backup whose log cannot be believed is refused.
    """
    if not by.strip():
        raise RequestError("a restored store needs the name of the person who restores it")
    found = source / path.name if source.is_dir() else source
    copy = Store.look(found)
    try:
        seen = verify(copy, signer)
        facts = copy.facts()
    finally:
        copy.close()
    if seen.faults:
        raise RequestError(f"{found} cannot be believed: {seen.faults[0]}")
    now = datetime.datetime.now(datetime.UTC)
    if path.exists():
        current = Store.open(path, facts["site"], facts["agreement"])  # no job must have it open
        current.close()
        aside = path.with_name(f"{path.name}.before-{now:%Y%m%dT%H%M%S}")
        path.rename(aside)
        for rest in ("-wal", "-shm"):
            Path(f"{path}{rest}").unlink(missing_ok=True)
    with files.replacing(path) as part:
        shutil.copyfile(found, part)
    store = Store.open(path, facts["site"], facts["agreement"])
    try:
        why = f"restored from a backup of round {store.round}, by {by.strip()}"
        at = now.isoformat(timespec="milliseconds")
        entry = LogEntry(at, store.round, facts["site"], False, EntryKind.RESTORED, 0, why)
        record_restore(store, entry, signer)
        return verify(store, signer)
    finally:
        store.close()
