"""A site's memory of a study, copied and brought back.

A backup is the store with the files of its log that were put aside; a job may run meanwhile. A store that was
brought back says so in its log; that partners know more of it than it does is then no reason to doubt it.
"""

from __future__ import annotations

import contextlib
import datetime
import shutil
import sqlite3
from pathlib import Path

from abps import files
from abps.core.errors import RequestError
from abps.sites.consent.keys import Signer
from abps.sites.store import audit
from abps.sites.store.rows import EntryKind, LogEntry
from abps.sites.store.store import Store


def backup(path: Path, out: Path) -> list[Path]:
    """Copy a study's store, and what was put aside of its log, into a folder. Returns the files."""
    store = Store.look(path)  # a damaged store is not worth a copy
    store.close()
    written = [files.folder(out) / path.name]
    with files.replacing(written[0]) as part:
        part.unlink()
        with (
            contextlib.closing(sqlite3.connect(f"file:{path.absolute()}?mode=ro", uri=True)) as live,
            contextlib.closing(sqlite3.connect(part)) as copy,
        ):
            live.backup(copy)
    for aside in sorted(path.parent.glob(f"{path.stem}.audit-*.jsonl")):
        with files.replacing(out / aside.name) as part:
            shutil.copyfile(aside, part)
        written.append(out / aside.name)
    return written


def restore(path: Path, source: Path, by: str, signer: Signer | None) -> audit.Verification:
    """Bring a study's store back from a backup; what was there is kept beside it.

    A backup whose log cannot be believed is refused.
    """
    if not by.strip():
        raise RequestError("a restored store needs the name of the person who restores it")
    found = source / path.name if source.is_dir() else source
    copy = Store.look(found)
    try:
        seen = audit.verify(copy, signer)
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
    for each in sorted(found.parent.glob(f"{path.stem}.audit-*.jsonl")):
        if each.parent != path.parent:
            with files.replacing(path.parent / each.name) as part:
                shutil.copyfile(each, part)
    store = Store.open(path, facts["site"], facts["agreement"])
    try:
        why = f"restored from a backup of round {store.round}, by {by.strip()}"
        at = now.isoformat(timespec="milliseconds")
        entry = LogEntry(at, store.round, facts["site"], False, EntryKind.RESTORED, 0, why)
        audit.record_restore(store, entry, signer)
        return audit.verify(store, signer)
    finally:
        store.close()
