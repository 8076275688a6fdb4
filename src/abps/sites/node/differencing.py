"""Which studies a site must not add to: two whose sums differ by a few patients, or by one or two hospitals.

The difference of two totals would be the sums of these alone. A site keeps, in the store of every regression,
which of its patients are in it; before it takes part in another one it compares, and before it signs the
members of a first sum it compares those. Patients are those of the patient column or, without one, rows by
their place in the table.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.data.prepare import Prepared
from abps.methods.regression import Regression
from abps.sites.store.store import Store

#: Facts of a store: which patients a regression uses, and whose sums were opened
#: (:class:`abps.sites.protocol.masking.SumSteps`).
_USED: Final = "used"
OPENED: Final = "opened"

#: Hospitals by which two studies of the same patients must differ, if they do.
FEWEST: Final = 3


def remember(store: Store, method: Regression, data: Prepared) -> None:
    """Note which patients a regression uses; refuse one that uses all but a few of another's."""
    used = _patients(method, data)
    for other, patients, _ in _earlier(store):
        apart = len(np.setxor1d(used, patients))
        if 0 < apart < data.min_cell:
            raise RequestError(
                f"this study uses the same patients as {other!r} but for fewer than {data.min_cell}, and the "
                "difference of the sums would reveal these; ask for the same columns, or leave out the one "
                "that is known of some patients only"
            )
    store.keep(**{_USED: base64.b64encode(used.astype("<i8").tobytes()).decode()})


def revealing_members(store: Store, names: Sequence[str]) -> str:
    """Why a first sum of these members is not opened: they differ by one or two from those of another study
    of our patients. Nothing if it may be."""
    for other, _, members in _earlier(store):
        apart = sorted(set(members) ^ set(names))
        if 0 < len(apart) < FEWEST:
            return (
                f"is of other members than those of {other!r} ({', '.join(apart)} in one of them), and the "
                f"difference would reveal these (ask for the same members, or for {FEWEST} others)"
            )
    return ""


def _patients(method: Regression, data: Prepared) -> NDArray[np.int64]:
    """Sorted numbers of the patients whose rows are complete in the columns of the formula."""
    assert data.source is not None and data.book is not None
    rows = np.flatnonzero(method.used(data))
    return np.unique(rows if data.source.patient is None else data.source.patient[rows]).astype(np.int64)


def _earlier(store: Store) -> Iterator[tuple[str, NDArray[np.int64], list[str]]]:
    """Other regressions of this site of which a sum was opened: name, patients and members."""
    for path in sorted(store.path.parent.glob("*.sqlite")):
        if path == store.path:
            continue
        other = Store.look(path)
        try:
            facts = other.facts()
        finally:
            other.close()
        if _USED in facts and OPENED in facts:
            patients = np.frombuffer(base64.b64decode(facts[_USED]), dtype="<i8").astype(np.int64)
            yield facts["study"], patients, json.loads(facts[OPENED])["all"]
