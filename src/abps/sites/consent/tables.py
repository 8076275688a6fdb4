"""Which tables a site has taken part with. Totals of two tables that differ by a few patients show these, in
whatever is released: scores, losses, curvature, counts, levels, scores of models, numbers of rows.

So a site joins a study only with a table that is one of the earlier ones, or differs from each of them by the
minimum cell of patients or more. Digests of rows stay beside the stores; they never leave.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from abps import files
from abps.core.errors import RequestError
from abps.data.table import find_column, read_frame
from abps.sites.consent.sitefile import SiteFile

FOLDER = "tables"


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
            raise RequestError(
                f"{own.table} differs by {few} patients from a table that this site took part with before, "
                f"and totals of both would show them; put that one back, add {least} patients, or say "
                '"another_table": true in the site\'s own file for one job'
            )
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
