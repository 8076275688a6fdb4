"""Which columns must not be learned from: identifiers, copies of the label, values that are known only after
the outcome, dates, columns that name people; rows that occur twice; and columns in two units.

Columns beyond doubt are excluded, likely ones kept with a warning; a column that the user keeps by name
(``keep``) always stays. Columns that name people never enter a codebook that leaves a site.
"""

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.data.roles import WORDS, is_called, is_patient_name, normalise

#: One column alone that ranks the label as well as this is suspected to know it …
SUSPECT_AUROC = 0.95

#: … and is excluded as a copy of it.
COPY_AUROC = 0.99

#: Rows of each class that a column's AUROC needs to mean anything.
ENOUGH = 10

#: Different values that an identifier has at least.
MANY_VALUES = 50

#: A text this long, in characters or words, is a sentence and not a level.
LONG, MANY_WORDS = 60, 8

#: Values that look so in at least this share of a column's known rows decide about the column.
MOSTLY = 0.2

_DATE = re.compile(r"^\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))(\D|$)")
_REACHED = re.compile(r"@\w+\.\w+|^\+?[\d ()/-]{9,}$|https?://")
_PERSON = re.compile(
    r"^\s*((mr|mrs|ms|miss|dr|prof|herr|frau|mme|sr|sra)\.?\s+\w+|[^\W\d_][\w'’-]+,\s*[^\W\d_][\w'’.-]*\.?)",
    re.IGNORECASE,
)

#: Given names that mean little else: "Anna Huber" is somebody, "Medical Ward" is not; and those that a column
#: may be called for another reason: max_temp, ana_titre, jan_admissions.
_GIVEN, _AMBIGUOUS = frozenset(WORDS["given_names"]), frozenset(WORDS["ambiguous_names"])


class FindingKind(StrEnum):
    IDENTIFIER = "identifier"
    LABEL_COPY = "copy of the label"
    AFTER_OUTCOME = "after the outcome"
    STRONG_ALONE = "strong alone"
    PLACE_CODE = "place code"
    PERSONAL = "personal"
    DATE = "date"


@dataclass(frozen=True)
class ColumnFinding:
    """One finding about one column.  excluded: whether the column is left out; else people are warned."""

    column: str
    kind: FindingKind
    sentence: str
    excluded: bool


def screen(features: pl.DataFrame, label: NDArray[np.int8]) -> list[ColumnFinding]:
    """What is wrong with columns (after repairs) that would be features; at most one finding per column."""
    found = ((column.name, _screen_column(column, label)) for column in features.get_columns())
    return [ColumnFinding(name, *rule) for name, rule in found if rule is not None]


def _screen_column(column: pl.Series, label: NDArray[np.int8]) -> tuple[FindingKind, str, bool] | None:
    name = column.name
    if is_identifier(column):
        distinct = column.drop_nulls().n_unique()
        return FindingKind.IDENTIFIER, f"an identifier: {distinct} values in {len(column)} rows", True
    timely = column.dtype.is_temporal() or column.dtype.is_numeric()
    if timely and is_called(name, "after") and is_called(name, "time"):
        return FindingKind.AFTER_OUTCOME, "by its name a time that is known only after the outcome", True
    value = auroc_alone(column, label)
    if value is not None and value >= COPY_AUROC:
        return FindingKind.LABEL_COPY, f"a copy of the label: AUROC {value:.3f} by itself", True
    if column.dtype.is_numeric() and is_called(name, "stay"):
        return FindingKind.AFTER_OUTCOME, "by its name the length of stay, known only at its end", True
    if _holds_dates(column):
        return FindingKind.DATE, "a date: future patients lie beyond all dates learned from", True
    personal = personal_reason(column)
    if personal:
        return FindingKind.PERSONAL, personal, True
    if value is not None and value > SUSPECT_AUROC:
        sentence = f"predicts the label alone with AUROC {value:.3f}; make sure that it is known beforehand"
        return FindingKind.STRONG_ALONE, sentence, False
    if _codes_places(column):
        sentence = (
            f"numbers that look like codes of places or people, used as numbers; drop={name} leaves it out"
        )
        return FindingKind.PLACE_CODE, sentence, False
    return None


def _holds_dates(column: pl.Series) -> bool:
    """Whether a column holds dates, or whole numbers such as 20200131 under the name of a date."""
    if column.dtype.is_temporal():
        return column.dtype != pl.Duration
    if not column.dtype.is_numeric() or not is_called(column.name, "date"):
        return False
    known = column.drop_nulls().cast(pl.Float64)
    day, month = known % 100, (known // 100) % 100
    return len(known) > 0 and bool(
        (known.is_between(19000101, 21001231) & day.is_between(1, 31) & month.is_between(1, 12)).all()
    )


def _codes_places(column: pl.Series) -> bool:
    """Whether whole numbers, more than two of them, stand in a column called like hospitals or doctors."""
    if not column.dtype.is_numeric() or not is_called(column.name, "place"):
        return False
    numbers = column.drop_nulls().cast(pl.Float64)
    return numbers.n_unique() > 2 and bool((numbers == numbers.round()).all())


def is_identifier(column: pl.Series) -> bool:
    """Whether a column names rows or people instead of describing them.

    Text: more than fifty different values, in more than half of the known rows, or in a tenth under the name
    of an identifier. Whole numbers: all different in at least a hundred rows; or called like an identifier
    (stay_id, Fallnummer), with more than fifty different values in more than a tenth of the rows.
    """
    known = column.drop_nulls()
    distinct = known.n_unique()
    if distinct <= MANY_VALUES:
        return False
    named = is_called(column.name, "id") and distinct > 0.1 * len(known)
    if column.dtype == pl.String:
        return named or distinct > 0.5 * len(known)
    if not column.dtype.is_numeric():
        return False
    numbers = known.cast(pl.Float64).to_numpy()
    numbers = numbers[np.isfinite(numbers)]
    if not np.array_equal(numbers, np.round(numbers)):
        return False
    return named or distinct == len(known) >= 100


def suggest_patient(frame: pl.DataFrame) -> tuple[str, int] | None:
    """Of columns without a role, one that looks like IDs with repeated patients, and how many these are."""
    for column in frame.get_columns():
        whole = column.dtype == pl.String or column.dtype.is_integer()
        if not whole and column.dtype.is_float():
            whole = bool((column.drop_nulls() % 1 == 0).all())
        if not whole or not is_patient_name(column.name):
            continue
        known = column.drop_nulls()
        distinct = known.n_unique()
        if max(10, 0.1 * len(known)) < distinct < len(known):
            return column.name, distinct
    return None


def auroc_alone(column: pl.Series, label: NDArray[np.int8]) -> float | None:
    """How well one column ranks the label by itself, in either direction; None without enough rows.

    A number ranks by its value, a category by the share of positives of its levels (rare levels together).
    Where the column has gaps, whether it is known may rank better than its value: the better of the two.
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
    values = [_auroc(scores[known], label[known])]
    if not known.all():
        values.append(_auroc(known.astype(np.float64), label))
    return max((v for v in values if v is not None), default=None)


def _auroc(scores: NDArray[np.float64], label: NDArray[np.int8]) -> float | None:
    """The area under the ROC curve, whichever direction is larger; None with too few rows of a class."""
    positive = int(label.sum())
    negative = len(label) - positive
    if min(positive, negative) < ENOUGH:
        return None
    ranks = pl.Series(scores).rank("average").to_numpy()
    wins = ranks[label > 0].sum() - positive * (positive + 1) / 2
    area = float(wins / (positive * negative))
    return max(area, 1.0 - area)


def duplicates(frame: pl.DataFrame) -> NDArray[np.bool_]:
    """(rows,) true where a row repeats an earlier one in every column, and that cannot be chance.

    In a table of a few yes/no columns different people have equal rows: rows are duplicates if there are at
    least a hundred times as many equal pairs as expected of independent columns.
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


def _is_person(value: str) -> bool:
    """Whether a text is somebody's name: one with a title, "last, first", or two or three words of which the
    first or the last is a given name."""
    if _PERSON.search(value):
        return True
    words = value.split()
    return 2 <= len(words) <= 3 and bool({words[0].lower(), words[-1].lower()} & _GIVEN)


def _named_after_person(name: str) -> bool:
    """Whether a column is called after somebody: a given name and a word beside it, both capitalised."""
    words = re.split(r"[\W_]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name))
    names = [{*pair} for pair in itertools.pairwise(words) if all(word[:1].isupper() for word in pair)]
    return any({word.lower() for word in pair} & (_GIVEN - _AMBIGUOUS) for pair in names)


#: How a single value may show who somebody is.
_LOOKS: tuple[tuple[Callable[[str], object], str], ...] = (
    (_DATE.search, "dates"),
    (_REACHED.search, "addresses or numbers"),
    (_is_person, "names of people"),
)


def is_personal_value(level: str) -> bool:
    """Whether a value looks like a person, a date or an address, or is a sentence: then it is no level, even
    if many share it."""
    return any(seen(level) for seen, _ in _LOOKS) or len(level) > LONG or len(level.split()) > MANY_WORDS


def personal_reason(column: pl.Series) -> str:
    """Why a column identifies people, by its name or its values; empty if it does not."""
    if is_called(column.name, "person"):
        return "by its name it identifies people"
    if _named_after_person(column.name):
        return "it is called after a person"
    if column.dtype not in (pl.String, pl.Categorical):
        return ""
    counted = column.cast(pl.String).drop_nulls().alias("value").value_counts(name="rows")
    values, rows = counted["value"], counted["rows"].to_numpy()
    if not len(values):
        return ""
    for seen, why in _LOOKS:
        if np.average([bool(seen(value)) for value in values.to_list()], weights=rows) >= MOSTLY:
            return f"its values look like {why}"
    long = (values.str.len_chars() > LONG) | (values.str.count_matches(r"\S+") > MANY_WORDS)
    return "its values are free text" if np.average(long.to_numpy(), weights=rows) >= MOSTLY else ""


def identifying_reason(column: pl.Series, patient: NDArray[np.int64] | None, min_cell: int) -> str:
    """Why a column must not enter a codebook that leaves a site; empty if it may.

    patient: (rows,); None: every row is another's.  min_cell: how many must share a value of a text.
    """
    personal = personal_reason(column) or ("it holds dates" if column.dtype.is_temporal() else "")
    if personal or column.dtype not in (pl.String, pl.Categorical):
        return personal
    text = column.cast(pl.String)
    known = text.is_not_null().to_numpy()
    owner = np.flatnonzero(known) if patient is None else patient[known]
    people = pl.DataFrame({"value": text.drop_nulls(), "patient": owner}).unique()
    shared = people.group_by("value").len()
    few = shared.filter(pl.col("len") < min_cell)["len"].sum() > 0.5 * people.height
    return "most of its values are of a few patients each" if few and shared.height > min_cell else ""


# --- columns that say nothing at some centers, or too much ----------------------------------------------

#: Of a category's levels so many are encoded, the most frequent ones.
MOST_LEVELS = 30

#: A value so many times the spread of the middle half from the median is far out.
FAR_OUT = 50.0


def center_warnings(features: pl.DataFrame, center: NDArray[np.int32], centers: tuple[str, ...]) -> list[str]:
    """Sentences that name column and center: another unit (or else values far out), no value, one value; and
    categories with more levels than are used."""
    found: list[str] = []
    for column in features.get_columns():
        rows = np.bincount(center, minlength=len(centers))
        known = column.is_not_null().to_numpy()
        if column.dtype in (pl.String, pl.Categorical):
            levels = column.drop_nulls().n_unique()
            if levels > MOST_LEVELS:
                found.append(
                    f"{column.name!r}: {levels} levels; the {MOST_LEVELS} most frequent are used, and the "
                    "others count as one"
                )
        elif column.dtype.is_numeric():
            values = column.cast(pl.Float64).to_numpy()
            known = np.isfinite(values)
            unit = _unit_warning(column, center, centers)
            found += [unit] if unit else _number_warnings(column.name, values[known], center[known], centers)
        values_at = np.bincount(center[known], minlength=len(centers))
        empty = np.flatnonzero((values_at == 0) & (rows > 0))
        if 0 < len(empty) < len(centers):
            found.append(f"{column.name!r}: no value at {_named(centers, empty)}; it is filled there")
    return found


def _number_warnings(
    name: str, values: NDArray[np.float64], center: NDArray[np.int32], centers: tuple[str, ...]
) -> list[str]:
    """About known values of a numeric column with more than two: constant, or far out, at some centers."""
    if len(np.unique(values)) <= 2:
        return []
    found, n = [], len(centers)
    low, high = np.full(n, np.inf), np.full(n, -np.inf)
    np.minimum.at(low, center, values)
    np.maximum.at(high, center, values)
    constant = np.flatnonzero((low == high) & (np.bincount(center, minlength=n) >= ENOUGH_VALUES))
    if len(constant):
        found.append(f"{name!r}: one value alone at {_named(centers, constant)}; it says nothing there")
    lower, middle, upper = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    far = np.abs(values - middle) > FAR_OUT * (upper - lower)
    if upper > lower and far.any():
        worst = float(values[far][np.argmax(np.abs(values[far] - middle))])
        found.append(
            f"{name!r}: {int(far.sum())} value(s) far out, such as {worst:.4g} (median {middle:.4g}), at "
            f"{_named(centers, np.unique(center[far]))}; they count as ten deviations"
        )
    return found


def _named(centers: tuple[str, ...], which: NDArray[np.int64]) -> str:
    shown = ", ".join(repr(centers[i]) for i in which[:3])
    return shown + (f" and {len(which) - 3} more" if len(which) > 3 else "")


# --- columns that some centers seem to record in another unit: their values lie apart by a factor --------

#: Values of a column that a center needs before its unit is judged.
ENOUGH_VALUES = 20

#: Medians closer than this factor are differences in case mix.
LEAST_FACTOR = 1.7

#: A known conversion factor explains a ratio of medians within this factor of it.
NEAR = 1.35


def _unit_warning(column: pl.Series, center: NDArray[np.int32], centers: tuple[str, ...]) -> str:
    """A sentence if some centers seem to record a numeric column in another unit: medians are in two groups
    at least ``LEAST_FACTOR`` apart, and the middle 80 % of the two groups' values do not overlap."""
    known = pl.DataFrame({"center": center, "value": column.cast(pl.Float64)}).filter(
        pl.col("value").is_finite()
    )
    value = known["value"]
    if not len(value) or value.lt(0).any() or value.n_unique() <= 10:
        return ""
    quantiles = [pl.col("value").quantile(q).alias(name) for name, q in (("low", 0.1), ("high", 0.9))]
    parts = known.group_by("center").agg(pl.len(), *quantiles, middle=pl.col("value").quantile(0.5))
    parts = parts.filter(pl.col("len") >= ENOUGH_VALUES, pl.col("middle") > 0).sort("middle", "center")
    if parts.height < 2:
        return ""
    usable, rows, low, high, middle = (part.to_numpy() for part in parts.get_columns())
    gaps = middle[1:] / middle[:-1]
    cut = int(np.argmax(gaps)) + 1
    if gaps[cut - 1] < LEAST_FACTOR or high[:cut].max() >= low[cut:].min():
        return ""
    few_low = (cut, rows[:cut].sum()) < (len(usable) - cut, rows[cut:].sum())
    few, most = (slice(0, cut), slice(cut, None)) if few_low else (slice(cut, None), slice(0, cut))
    here, elsewhere = float(np.median(middle[few])), float(np.median(middle[most]))
    return (
        f"{column.name!r}: the values of {_named(centers, usable[few])} seem to have another unit (median "
        f"{here:.3g}, elsewhere {elsewhere:.3g}{_factor(column.name, here, elsewhere)}); convert them, or "
        f"leave the column out (drop={column.name})"
    )


def _factor(name: str, here: float, elsewhere: float) -> str:
    """The factor between two medians: that of a known conversion where one fits, else their ratio."""
    factor, offset, units = conversion(name, here, elsewhere)
    if offset:
        return f"; {units}?"
    larger = max(factor, 1 / factor)
    if not units:
        return f"; a factor of about {larger:g}"
    return f"; {units}? {'multiply' if here < elsewhere else 'divide'} by {larger:.6g}"


def conversion(name: str, here: float, elsewhere: float) -> tuple[float, float, str]:
    """(factor, offset) that bring values with the median ``here`` to ``elsewhere``, and the two units: a
    known conversion where one fits, else the ratio of the medians and no units."""
    plain, ratio = normalise(name), max(here, elsewhere) / min(here, elsewhere)
    if "temp" in plain and 2.3 < ratio < 3.1:
        return (5 / 9, -160 / 9, "°F and °C") if here > elsewhere else (1.8, 32.0, "°F and °C")
    fitting = [
        (abs(np.log(ratio / each["factor"])), each["factor"], each["units"])
        for each in WORDS["conversions"]
        if re.search(each["column"], plain) and 1 / NEAR < ratio / each["factor"] < NEAR
    ]
    _, factor, units = min(fitting) if fitting else (0.0, float(f"{ratio:.2g}"), "")
    return (factor if here < elsewhere else 1 / factor), 0.0, units
