"""What a site must not take part with: two tables, or two studies, that differ by a few patients or
hospitals: the difference of two totals, of whatever is released, would be the sums of these alone.

So a site joins a study only with an earlier table, or one that differs from each by the minimum cell of
patients or more (digests of rows stay beside the stores). Studies of sums use complete rows: their stores
hold which patients those are, to compare before another one, and the members before a first sum. Patients are
those of the patient column or, without one, rows by their place in the table.
"""

import base64
import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from abps import files
from abps.core.errors import RequestError
from abps.data.prepare import Prepared
from abps.data.table import find_column, read_frame
from abps.methods.sum_study import SumStudy
from abps.sites.consent.sitefile import SiteFile
from abps.sites.protocol.masking import SUMMED
from abps.sites.store.store import Store

_USED: Final = "used"  # the fact of a store that says which patients a study of sums uses
FOLDER: Final = "tables"  # where digests of tables lie, beside the stores
FEWEST: Final = 3  # hospitals by which two studies of the same patients must differ, if they do


def check_table(own: SiteFile, least: int) -> None:
    """Refuse a table that differs from an earlier one by fewer than ``least`` patients; keep a new one."""
    now = _digests(own)
    known = files.folder(Path(own.store) / FOLDER)
    path = known / f"{hashlib.blake2b(now.tobytes(), digest_size=8).hexdigest()}.npy"
    if path.is_file():
        return
    for other in sorted(known.glob("*.npy")):
        few = changed_patients(np.load(other, allow_pickle=False), now)
        if 0 < few < least and not own.another_table:
            why = f"differs by {few} patients from an earlier one, and totals of both would show them"
            what = f'put that back, add {least} patients, or allow "another_table" in the site\'s own file'
            raise RequestError(f"{own.table} {why}; {what}")
    with files.replacing(path) as part, part.open("wb") as stream:
        np.save(stream, now)


def changed_patients(before: NDArray[np.uint64], now: NDArray[np.uint64]) -> int:
    """How few patients tell two tables (rows, 2) of digests of patient and row apart: those that only one has
    or, if both have the same, those with another row."""
    left, came = (np.setdiff1d(a[:, 0], b[:, 0]) for a, b in ((before, now), (now, before)))
    if len(left) or len(came):
        return len(left) + len(came)
    rows = {tuple(row) for row in before.tolist()} ^ {tuple(row) for row in now.tolist()}
    return len({patient for patient, _ in rows})


def _digests(own: SiteFile) -> NDArray[np.uint64]:
    """(rows, 2) of every row of the site's file, sorted; without a patient column a row is a patient."""
    frame = read_frame(Path(own.table))
    whose = None if own.patient is None else frame.get_column(find_column(frame, own.patient, "patient"))
    rows = [_digest(repr(row)) for row in frame.iter_rows()]
    owner = rows if whose is None else [_digest(repr(value)) for value in whose.to_list()]
    found = np.array([owner, rows], dtype=np.uint64).T
    return np.ascontiguousarray(found[np.lexsort(found.T)])


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def remember(store: Store, method: SumStudy, data: Prepared) -> None:
    """Note which patients a study of sums uses; refuse one that uses all but a few of another's."""
    assert data.source is not None and data.book is not None
    rows, patient = np.flatnonzero(method.used(data)), data.source.patient  # complete in its columns
    used = np.unique(rows if patient is None else patient[rows]).astype(np.int64)
    for other, patients, _ in _earlier(store):
        apart = len(np.setxor1d(used, patients))
        if 0 < apart < data.min_cell:
            why = f"this study uses the same patients as {other!r} but for fewer than {data.min_cell}"
            what = "ask for the same columns, or leave out the one that is known of some patients only"
            raise RequestError(f"{why}: the difference of the sums would reveal these; {what}")
    store.keep(**{_USED: base64.b64encode(used.astype("<i8").tobytes()).decode()})


def revealing_members(store: Store, names: Sequence[str]) -> str:
    """Why a first sum of these members is not opened: they differ by one or two from those of another study
    of our patients. Empty if it may be."""
    for other, _, members in _earlier(store):
        apart = sorted(set(members) ^ set(names))
        if 0 < len(apart) < FEWEST:
            return (
                f"is of other members than those of {other!r} ({', '.join(apart)} in one of them), and the "
                f"difference would reveal these (ask for the same members, or for {FEWEST} others)"
            )
    return ""


def _earlier(store: Store) -> Iterator[tuple[str, NDArray[np.int64], list[str]]]:
    """Other such studies of this site of which a sum was opened: name, patients and members."""
    for path in sorted(store.path.parent.glob("*.sqlite")):
        if path == store.path:
            continue
        with contextlib.closing(Store.look(path)) as other:
            facts = other.facts()
        if _USED in facts and SUMMED in facts:
            patients = np.frombuffer(base64.b64decode(facts[_USED]), dtype="<i8").astype(np.int64)
            yield facts["study"], patients, json.loads(facts[SUMMED])
