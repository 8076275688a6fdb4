"""Cross-validation by patient: everybody is scored once, by a model that saw none of the patient's stays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abps.core import streams


def folds_of(patient: NDArray[np.int64] | None, y: NDArray[Any], count: int, seed: int) -> NDArray[np.int64]:
    """(rows,) the fold 0 … count - 1 of every row: patients dealt out in turn, those with an event first.

    patient: (rows,) numbers; None: every row is a patient of its own.  The order in which patients are dealt
    follows from their numbers and the seed.
    """
    if patient is None:
        patients, unit = np.arange(len(y)), np.arange(len(y))
    else:
        patients, unit = np.unique(patient, return_inverse=True)
    event = np.bincount(unit, weights=y, minlength=len(patients)) > 0
    place = streams.uniforms(seed, "split", 2, patients.view(np.uint64))
    fold = np.empty(len(patients), dtype=np.int64)
    fold[np.lexsort((place, ~event))] = np.arange(len(patients)) % count
    return fold[unit]


def most_folds(patient: NDArray[np.int64] | None, y: NDArray[Any]) -> int:
    """How many folds can each have a patient with an event and one without."""
    if patient is None:
        events = int((y > 0).sum())
        return min(events, len(y) - events)
    patients, unit = np.unique(patient, return_inverse=True)
    event = np.bincount(unit, weights=y, minlength=len(patients)) > 0
    return int(min(event.sum(), (~event).sum()))
