"""What in a table should not be learned from: identifiers, copies of the label, times after the outcome,
rows that stand there twice.

Each is recognised by a stated rule. What is beyond doubt is set aside and said; what is only likely is a
warning, and the column stays. A column that was asked for by name (``keep``) always stays.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.data.identifying import tells_who

#: One column alone that ranks the label as well as this is suspected to know it.
SUSPECT_AUROC = 0.95

#: … and is set aside as a copy of it.
COPY_AUROC = 0.99

#: Rows of each class that a column's AUROC needs to mean anything.
ENOUGH = 10

_ID_NAME = re.compile(
    r"(^|[\W_])(id|ids|uid|guid|uuid|mrn|key|idx|index|rownum|row|nr|no|stayid|subjectid|patientid|hadmid)$"
    r"|(?<=[a-z])(Id|ID)$"
)
_AFTER = re.compile(
    r"disch|death|dead|deceas|expire|(^|[\W_])(dod|outtime|exit|followup|last_seen|date_of_outcome)([\W_]|$)",
    re.IGNORECASE,
)
_TIME_WORD = re.compile(
    r"time|date|offset|minute|hour|day|year|(^|[\W_])(dod|at|on|ts|dt)([\W_]|$)", re.IGNORECASE
)
_PLACE = re.compile(
    r"(^|[\W_])(hospital|hosp|site|center|centre|clinic|ward|unit|doctor|physician|provider|surgeon|zip|postcode)"
    r"([\W_]?(id|nr|no|num|number|code))?$",
    re.IGNORECASE,
)
_LENGTH = re.compile(r"(^|[\W_])los([\W_]|$)|length_?of_?stay|stay_?length|(days|hours)_in", re.IGNORECASE)


@dataclass(frozen=True)
class Suspicion:
    """One finding about one column.

    kind: identifier, copy of the label, after the outcome, strong alone, numbers that are names, somebody, or
    a date.
    aside: whether the column is set aside; otherwise it stays and people are warned.
    """

    column: str
    kind: str
    sentence: str
    aside: bool


def suspicions(features: pl.DataFrame, label: NDArray[np.int8]) -> list[Suspicion]:
    """What looks wrong about each column that would be a feature; at most one finding a column.

    features: columns as they came from the file, mended.  label: (rows,) 0 or 1.
    """
    found = (_suspicion(column, label) for column in features.get_columns())
    return [each for each in found if each is not None]


def _suspicion(column: pl.Series, label: NDArray[np.int8]) -> Suspicion | None:
    name = column.name
    if is_identifier(column):
        distinct = column.drop_nulls().n_unique()
        return Suspicion(
            name, "identifier", f"{distinct} different values in {len(column)} rows: an identifier", True
        )
    timely = column.dtype.is_temporal() or (column.dtype.is_numeric() and bool(_TIME_WORD.search(name)))
    if timely and _AFTER.search(name):
        return Suspicion(name, "after the outcome", "by its name a time that is known only afterwards", True)
    value = auroc_alone(column, label)
    if value is not None and value >= COPY_AUROC:
        return Suspicion(
            name, "copy of the label", f"it alone tells the label (AUROC {value:.3f}): a copy of it", True
        )
    if value is not None and value > SUSPECT_AUROC:
        return Suspicion(
            name,
            "strong alone",
            f"it alone tells the label with AUROC {value:.3f}; make sure that it is known beforehand",
            False,
        )
    if column.dtype.is_numeric() and _LENGTH.search(name):
        return Suspicion(
            name, "after the outcome", "by its name the length of the stay, known only at its end", False
        )
    if _names_places(column):
        return Suspicion(
            name,
            "numbers that are names",
            "by its name its whole numbers name places or people, and are learned from as numbers; "
            "leave it out if that is so",
            False,
        )
    who = tells_who(column)
    if who:
        return Suspicion(
            name, "somebody", f"{who}, and it is learned from; leave it out if that is so", False
        )
    if column.dtype.is_temporal():
        return Suspicion(
            name,
            "a date",
            "a date that is learned from as a number, and patients to come are later than all of these; "
            "name it as the time of the stays, or leave it out",
            False,
        )
    return None


def _names_places(column: pl.Series) -> bool:
    """Whether whole numbers, more than two of them, stand in a column called like hospitals or doctors."""
    if not column.dtype.is_numeric() or not _PLACE.search(column.name):
        return False
    numbers = column.drop_nulls().cast(pl.Float64)
    return numbers.n_unique() > 2 and bool((numbers == numbers.round()).all())


def is_identifier(column: pl.Series) -> bool:
    """Whether a column names rows or people instead of describing them.

    Text: more than fifty different values, in more than half of the known rows. Whole numbers: all
    different in at least a hundred rows; or called like an identifier (stay_id, mrn), with more than
    fifty different values and each in fewer than ten rows on average.
    """
    known = column.drop_nulls()
    distinct = known.n_unique()
    if column.dtype == pl.String:
        return distinct > 50 and distinct > 0.5 * len(known)
    if not column.dtype.is_numeric() or distinct <= 50:
        return False
    numbers = known.cast(pl.Float64).to_numpy()
    numbers = numbers[np.isfinite(numbers)]
    if not np.array_equal(numbers, np.round(numbers)):
        return False
    every = distinct == len(known) >= 100
    return every or (bool(_ID_NAME.search(column.name)) and distinct > 0.1 * len(known))


def auroc_alone(column: pl.Series, label: NDArray[np.int8]) -> float | None:
    """How well one column ranks the label by itself, in either direction; None if that cannot be told.

    A number ranks by its value, a category by the share of positives of its levels (rare levels together).
    Where the column has gaps, whether it is known may tell more than what it says: the better of the two.
    """
    known = column.is_not_null().to_numpy()
    if column.dtype == pl.String:
        levels, code = np.unique(column.fill_null("").to_numpy().astype(np.str_), return_inverse=True)
        size = np.bincount(code, minlength=len(levels))
        code = np.where(size[code] < ENOUGH, len(levels), code)
        size = np.maximum(np.bincount(code, minlength=len(levels) + 1), 1)
        scores = (np.bincount(code, weights=label, minlength=len(levels) + 1) / size)[code]
    elif column.dtype.is_temporal():
        scores = column.to_physical().cast(pl.Float64).fill_null(0.0).to_numpy()
    elif column.dtype.is_numeric() or column.dtype == pl.Boolean:
        scores = column.cast(pl.Float64).to_numpy()
        known = known & np.isfinite(scores)
        scores = np.where(known, scores, 0.0)
    else:
        return None
    values = [_auroc(scores[known], label[known]), _auroc(known.astype(np.float64), label)]
    told = [v for v in values if v is not None]
    return max(told) if told else None


def _auroc(scores: NDArray[np.float64], label: NDArray[np.int8]) -> float | None:
    """The area under the ROC curve, whichever direction is larger; None with too few of a class."""
    positive = int(label.sum())
    negative = len(label) - positive
    if min(positive, negative) < ENOUGH:
        return None
    ranks = pl.Series(scores).rank("average").to_numpy()
    wins = ranks[label > 0].sum() - positive * (positive + 1) / 2
    area = float(wins / (positive * negative))
    return max(area, 1.0 - area)


def copies(frame: pl.DataFrame) -> NDArray[np.bool_]:
    """(rows,) true where a row repeats an earlier one in every column, and that cannot be chance.

    In a table of a few yes/no columns different people have equal rows. So the number of equal pairs is
    compared with the number to be expected if the columns were drawn independently of each other: copies
    are called copies if they are at least a hundred times as many.
    """
    none = np.zeros(frame.height, dtype=np.bool_)
    if frame.width == 0 or frame.height < 2:
        return none
    code = frame.hash_rows(seed=0).to_numpy()
    different, first, size = np.unique(code, return_index=True, return_counts=True)
    if len(different) == frame.height:
        return none
    pairs = float((size * (size - 1) / 2).sum())
    log_chance = 0.0
    for column in frame.get_columns():
        share = column.value_counts(name="rows of it")["rows of it"].to_numpy() / frame.height
        log_chance += math.log(float((share**2).sum()))
    expected = math.exp(min(log_chance, 0.0)) * frame.height * (frame.height - 1) / 2
    if pairs < 100 * expected:
        return none
    repeated = np.ones(frame.height, dtype=np.bool_)
    repeated[first] = False
    return repeated
