"""The label: which of its two values is the event."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core.errors import RequestError, nearest

#: Words that say yes, and words that say no. Several words of one kind may stand in one column.
YES = frozenset(
    {
        "1", "1.0", "true", "t", "yes", "y", "positive", "pos", "+", "present", "event", "case", "dead",
        "died", "death", "deceased", "expired", "ja", "oui", "si", "sí", "sì", "sim", "verstorben",
    }
)  # fmt: skip
NO = frozenset(
    {
        "0", "0.0", "false", "f", "no", "n", "negative", "neg", "-", "absent", "no event", "censored",
        "control", "alive", "survived", "living", "nein", "nee", "nej", "non", "não", "lebend",
    }
)  # fmt: skip

_GOOD_OUTCOME = re.compile(r"surviv|alive|healthy|discharged_home", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class BinaryLabel:
    """values: (rows,) 0 or 1.  positive, negative: what the two values are called in the table.

    doubt: why the positive value may be the wrong one; empty if the words leave no doubt.
    events, others: the values that count as the event, and those that do not, in small letters.
    """

    values: NDArray[np.int8]
    positive: str
    negative: str
    doubt: str = ""
    events: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def binary_label(column: pl.Series, name: str, positive: str | None = None) -> BinaryLabel:
    """0 or 1 from a column with two values.

    positive: the value of the event. Where it is not given: the value that says yes (1, true, yes, died),
    else the larger number, else the later in the alphabet.
    """
    known_label(column, name)
    lowered = column.cast(pl.String).str.strip_chars().str.to_lowercase()
    values = sorted(lowered.unique().to_list())
    events = {value for value in values if value in YES}
    others = {value for value in values if value in NO}
    doubt = ""
    if positive is not None:
        wanted = positive.strip().lower()
        events = {v for v in values if v == wanted or _same_number(v, wanted)}
        others = set(values) - events
        if not events:
            raise RequestError(
                f"the label {name!r} has no value {positive!r}{nearest(wanted, values)}; "
                f"it has {', '.join(repr(v) for v in values[:5])}"
            )
    if not (events and others and events | others == set(values)):
        if len(values) != 2:
            shown = ", ".join(repr(v) for v in values[:5])
            raise RequestError(
                f"the label {name!r} has {len(values)} value(s) ({shown}{', …' if len(values) > 5 else ''}); "
                "a label must have exactly two, unless the outcome is said to be classes or continuous"
            )
        try:
            event = max(values, key=float)
        except ValueError:
            event = values[1]
        events, others = {event}, set(values) - {event}
        doubt = (
            f"the label {name!r} has the values {values[0]!r} and {values[1]!r}; {event!r} is taken as the "
            "event because it is the larger; name the other as positive if that is wrong"
        )
    if positive is not None and len(others) > 1:
        raise RequestError(f"the label {name!r} has {len(values)} values; a label must have exactly two")
    if not doubt and positive is None and _GOOD_OUTCOME.search(name):
        doubt = (
            f"by its name the label {name!r} is a good outcome; {_named(events)} counts as the event; name "
            "the other as positive if that is wrong"
        )
    return BinaryLabel(
        lowered.is_in(sorted(events)).to_numpy().astype(np.int8),
        _named(events),
        _named(others),
        doubt,
        tuple(sorted(events)),
        tuple(sorted(others)),
    )


def known_label(column: pl.Series, name: str, role: str = "label") -> None:
    """Refuse a column with gaps: a row without an outcome is an error, not a silent loss."""
    missing = column.is_null()
    if column.dtype.is_float():
        missing = missing | column.is_nan()
    if missing.any():
        first = int(missing.arg_max() or 0)
        raise RequestError(
            f"the {role} {name!r} is missing in {int(missing.sum())} row(s), first in line {first + 2}; "
            "remove these rows or fill them in"
        )


def _same_number(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return False


def _named(values: set[str]) -> str:
    return " or ".join(sorted(values))
