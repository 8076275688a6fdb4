"""Which rows are learned from, which choose, which score: 70 % training, 15 % validation, 15 % test.

All follows from the seed and from what a row is, never from where it stands in a file:

* All stays of a patient are in one split, in every center that knows the patient. A patient of several
  centers is placed by the key alone, so that centers agree without asking each other; unless all have agreed
  that there are none (:attr:`abps.data.codebook.Codebook.shared_patients`), hospitals place everybody so.
* The other patients of a center fill its quotas, each stratum shuffled by the center's own stream.
* Without a patient column every row is a patient of its own, known by its content.
"""

import hashlib
import math
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core import streams
from abps.data.federation import Federation

#: Shares of training, validation and test rows.
SHARES = (0.70, 0.15, 0.15)

#: Numbers of patients stay below: the two highest bits separate digits, other keys and rows without a key.
_WORD = 1 << 62


def quotas(count: int) -> tuple[int, ...]:
    """How many of ``count`` units go to each split: the shares rounded, and one to each if it can be.

    >>> quotas(20), quotas(3), quotas(2)
    ((14, 3, 3), (1, 1, 1), (1, 0, 1))
    """
    if count == 2:
        return (1, 0, 1)  # better a scored center without validation than the reverse
    if count < 2:
        return (count, 0, 0)
    small = [max(1, math.floor(count * share + 0.5)) for share in SHARES[1:]]
    return (count - sum(small), *small)


def patient_numbers(keys: pl.Series, content: NDArray[np.uint64]) -> NDArray[np.int64]:
    """(rows,) a number for every row's patient: one key has one number, in every table and at every site.

    Keys of digits are their own number, others are hashed. A stay without a key is a patient of its own and
    gets a negative number from its content (rows,).
    """
    if keys.dtype.is_float() and (keys.drop_nulls() % 1 == 0).all():
        keys = keys.cast(pl.Int64)  # a column of whole numbers with gaps is often written as 17.0
    text = keys.cast(pl.String).str.strip_chars()
    known = text.unique().drop_nulls().to_list()
    number = {key: _number(key) for key in known if key}
    found = text.replace_strict(number, default=None, return_dtype=pl.Int64)
    nobody = found.is_null().to_numpy()
    numbers = found.fill_null(0).to_numpy().copy()
    own = streams.bits(0, "split", 0, content[nobody], _occurrence(content[nobody]))
    numbers[nobody] = -1 - (own % np.uint64(_WORD)).astype(np.int64)
    return numbers


def _number(key: str) -> int:
    if key.isascii() and key.isdigit() and len(key) <= 18:
        return int(key)
    return _WORD + int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") % _WORD


def _occurrence(values: NDArray[np.uint64]) -> NDArray[np.int64]:
    """(rows,) how many times a row's value occurred before it."""
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    start = np.searchsorted(ranked, ranked, side="left")
    counts = np.empty(len(values), dtype=np.int64)
    counts[order] = np.arange(len(values)) - start
    return counts


def content_of(
    features: pl.DataFrame, label: NDArray[Any], time: NDArray[np.float64] | None = None
) -> NDArray[np.uint64]:
    """(rows,) a digest of every row: features by name, label and time; gaps count as a value of their own."""
    total = np.zeros(len(label), dtype=np.uint64)
    parts = {column.name: column for column in features.get_columns()}
    for name, column in sorted(parts.items()):
        if column.dtype == pl.String or column.dtype == pl.Categorical:
            text = column.cast(pl.String)
            levels = {level: _number(f"text {level}") for level in text.unique().drop_nulls().to_list()}
            values = text.replace_strict(levels, default=None, return_dtype=pl.Int64).fill_null(-1).to_numpy()
        else:
            # A negative zero is a zero, and all that is not finite is a gap.
            numbers = column.cast(pl.Float64).fill_null(np.nan).to_numpy() + 0.0
            values = np.where(np.isfinite(numbers), numbers, np.nan).view(np.int64)
        total += streams.bits(0, "split", 0, streams.center_id(name), values.astype(np.int64).view(np.uint64))
    whole = label.astype(np.uint64) if label.dtype.kind in "iu" else label.astype(np.float64).view(np.uint64)
    total += streams.bits(0, "split", 1, 0, whole)
    if time is not None:
        total += streams.bits(0, "split", 2, 0, (time + 0.0).view(np.uint64))
    return np.asarray(total)


def canonical_order(federation: Federation) -> NDArray[np.int64]:
    """(rows,) by center, patient, time and content: an order that does not depend on the file."""
    content = content_of(federation.features, federation.label, federation.time)
    known: tuple[NDArray[Any] | None, ...] = (federation.time, federation.patient)
    return np.lexsort((content, *(key for key in known if key is not None), federation.center))


def _units(federation: Federation) -> NDArray[np.int64]:
    if federation.patient is not None:
        return federation.patient
    content = content_of(federation.features, federation.label, federation.time)
    # The same row in two centers is two people, and so is the same row twice in one.
    center = streams.center_ids(federation.centers)[federation.center]
    mixed = streams.bits(0, "split", 0, center, content)
    mixed = streams.bits(0, "split", 0, mixed, _occurrence(mixed))
    return np.asarray((mixed % np.uint64(_WORD)).astype(np.int64))


def by_key(units: NDArray[np.int64], seed: int) -> NDArray[np.int8]:
    """(units,) the split of patients that is the same wherever they are seen."""
    cuts = np.cumsum(SHARES[:-1])
    place = streams.uniforms(seed, "split", 1, units.view(np.uint64))
    return np.searchsorted(cuts, place, side="right").astype(np.int8)


def assign_splits(federation: Federation, seed: int, shared_patients: bool = False) -> NDArray[np.int8]:
    """(rows,) 0 training, 1 validation, 2 test; in each center patients are stratified by whether they have a
    positive stay (of several classes: the last).  shared_patients: whether unseen centers may know them."""
    split = np.zeros(federation.rows, dtype=np.int8)
    units = _units(federation)
    strata = federation.outcome.strata(federation.label)
    placed = _placed(federation, units, shared_patients)
    order = np.argsort(federation.center, kind="stable")
    bounds = np.searchsorted(federation.center[order], np.arange(federation.size + 1))
    for i, name in enumerate(federation.centers):
        rows = order[bounds[i] : bounds[i + 1]]
        rng = streams.generator(seed, "split", 0, streams.center_id(name))
        patients, unit = np.unique(units[rows], return_inverse=True)
        stratum_of = np.zeros(len(patients), dtype=np.int64)
        np.maximum.at(stratum_of, unit, strata[rows])
        fixed = np.isin(patients, placed, assume_unique=True)
        part = by_key(patients, seed)
        for stratum in range(int(strata.max(initial=1)), -1, -1):
            members = stratum_of == stratum
            free = rng.permutation(np.flatnonzero(members & ~fixed))
            part[free] = np.repeat(np.arange(3, dtype=np.int8), _left(members, fixed, part))
        split[rows] = part[unit]
    return split


def assign_folds(federation: Federation, seed: int, count: int) -> NDArray[np.int64]:
    """(rows,) the fold 0 … count - 1 of every row: one fold a patient, in all centers; those of one center as
    in :func:`folds_of`."""
    units = _units(federation)
    shared = np.isin(units, _placed(federation, units, False))
    place = streams.uniforms(seed, "split", 3, units.view(np.uint64))
    fold = np.floor(place * count).astype(np.int64)
    for i in range(federation.size):
        rows = np.flatnonzero((federation.center == i) & ~shared)
        fold[rows] = folds_of(units[rows], federation.outcome.events(federation.label[rows]), count, seed)
    return fold


def fold_split(fold: NDArray[np.int64], k: int, count: int) -> NDArray[np.int8]:
    """(rows,) the split in which fold k is for test, the next one for validation, all others for training."""
    split = np.zeros(len(fold), dtype=np.int8)
    split[fold == (k + 1) % count] = 1
    split[fold == k] = 2
    return split


def _placed(federation: Federation, units: NDArray[np.int64], shared_patients: bool) -> NDArray[np.int64]:
    """Patients whose split follows from their key: those in several centers, or all who might be."""
    if federation.patient is None:
        return np.empty(0, dtype=np.int64)
    if shared_patients:
        return np.unique(units)
    pairs = np.unique(np.stack([units, federation.center.astype(np.int64)]), axis=1)
    patients, centers = np.unique(pairs[0], return_counts=True)
    return patients[centers > 1]


def _left(members: NDArray[np.bool_], fixed: NDArray[np.bool_], part: NDArray[np.int8]) -> list[int]:
    """What those who are placed leave of a stratum's quotas to the others: training gives way first."""
    free = int((members & ~fixed).sum())
    taken = np.bincount(part[members & fixed], minlength=3)
    _, validation, test = quotas(int(members.sum()))
    test = min(max(test - int(taken[2]), 0), free)
    validation = min(max(validation - int(taken[1]), 0), free - test)
    return [free - test - validation, validation, test]


def patients_cross(federation: Federation) -> bool:
    """Whether a patient is known to more than one center."""
    return federation.patient is not None and bool(len(_placed(federation, federation.patient, False)))


def _by_patient(
    patient: NDArray[np.int64] | None, y: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Patients, the place of every row's among them, and who of them has an event; without numbers every row
    is a patient of its own."""
    patients, unit = np.unique(np.arange(len(y)) if patient is None else patient, return_inverse=True)
    return patients, unit, np.bincount(unit, weights=y, minlength=len(patients)) > 0


def folds_of(patient: NDArray[np.int64] | None, y: NDArray[Any], count: int, seed: int) -> NDArray[np.int64]:
    """(rows,) the fold 0 … count - 1 of every row: patients (None: a row is one) are dealt out in turn, those
    with an event first, in an order that follows from their numbers and the seed."""
    patients, unit, event = _by_patient(patient, y)
    place = streams.uniforms(seed, "split", 2, patients.view(np.uint64))
    fold = np.empty(len(patients), dtype=np.int64)
    fold[np.lexsort((place, ~event))] = np.arange(len(patients)) % count
    return fold[unit]


def most_folds(patient: NDArray[np.int64] | None, y: NDArray[Any]) -> int:
    """How many folds can each have a patient with an event and one without."""
    event = _by_patient(patient, y)[2]
    return int(min(event.sum(), (~event).sum()))
