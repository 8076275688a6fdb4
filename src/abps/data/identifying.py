"""Columns that name people: by what they are called, by how few share a value, by what the values look like.

Such columns never enter a codebook that leaves a site: no name, date of birth, address or free text does.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl
from numpy.typing import NDArray

#: A text this long, in characters or words, is a sentence and not a level.
LONG, WORDS = 60, 8

#: Values that look so in at least this share of a column's known rows decide about the column.
MOSTLY = 0.2

_CALLED = re.compile(
    r"(^|[\W_])((pat(ient)?|full|first|last|sur|fore|given|family|maiden|middle)[\W_]?names?|name|nom|prenom"
    r"|vorname|nachname|dob|birth[\W_]?(date|day)|date[\W_]?of[\W_]?birth|born([\W_]?on)?|geburtsdatum"
    r"|ssn|social[\W_]?security|mrn|passport|insurance[\W_]?(no|nr|number)|address|street|strasse|post[\W_]?code"
    r"|zip([\W_]?code)?|phone|telephone|mobile|fax|e?[\W_]?mail|iban|ip[\W_]?address|comments?|notes?|free[\W_]?text"
    r"|remarks?)([\W_]|$)",
    re.IGNORECASE,
)
_DATE = re.compile(r"^\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))(\D|$)")
_REACHED = re.compile(r"@\w+\.\w+|^\+?[\d ()/-]{9,}$|https?://")
_PERSON = re.compile(
    r"^\s*((mr|mrs|ms|miss|dr|prof|herr|frau|mme|sr|sra)\.?\s+\w+|[^\W\d_][\w'’-]+,\s*[^\W\d_][\w'’.-]*\.?)",
    re.IGNORECASE,
)


def identifies(column: pl.Series, patient: NDArray[np.int64] | None, floor: int) -> str:
    """Why a column names people, in half a sentence; nothing if it does not.

    patient: (rows,) whose a row is; none: every row is another's.  floor: how many patients must share a
    value of a text for it not to name them.
    """
    if _CALLED.search(column.name):
        return "by its name it tells who somebody is"
    if column.dtype.is_temporal():
        return "it holds dates"
    if column.dtype not in (pl.String, pl.Categorical):
        return ""
    text = column.cast(pl.String)
    known = text.is_not_null().to_numpy()
    values = text.drop_nulls()
    if not len(values):
        return ""
    for pattern, why in ((_DATE, "dates"), (_REACHED, "addresses or numbers"), (_PERSON, "names of people")):
        if np.mean([bool(pattern.search(value)) for value in values.to_list()]) >= MOSTLY:
            return f"its values look like {why}"
    long = (values.str.len_chars() > LONG) | (values.str.count_matches(r"\S+") > WORDS)
    if np.mean(long.to_numpy()) >= MOSTLY:
        return "its values are free text"
    whose = np.flatnonzero(known) if patient is None else patient[known]
    people = pl.DataFrame({"value": values, "who": whose}).unique()
    shared = people.group_by("value").len()
    few = shared.filter(pl.col("len") < floor)["len"].sum()
    if few > 0.5 * people.height and shared.height > floor:
        return "most of its values are of a few patients each"
    return ""
