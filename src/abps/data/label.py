"""The label column as numbers: which of its values is the event, which class, how long until the event."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core.errors import RequestError, nearest
from abps.data.outcome import BINARY, MOST_CLASSES, Outcome, parse_outcome
from abps.data.roles import WORDS, Roles

#: Words that say yes, and words that say no. Several words of one kind may stand in one column.
YES, NO = frozenset(WORDS["yes"]), frozenset(WORDS["no"])

_GOOD_OUTCOME = re.compile(r"surviv|alive|healthy|discharged_home|überleb|survie|superviv", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class EncodedLabel:
    """The label of a table as numbers.

    values: (rows,) 0 and 1 as small integers, or float32 as :mod:`abps.data.outcome` describes.
    positive, negative: what the two values of an event are called in the table.
    doubt: why the choice of the event may be wrong; empty if the words leave no doubt.
    event_words, other_words: values that count as the event, and those that do not, in lower case.
    """

    values: NDArray[Any]
    outcome: Outcome = BINARY
    positive: str = ""
    negative: str = ""
    doubt: str = ""
    event_words: tuple[str, ...] = ()
    other_words: tuple[str, ...] = ()

    @property
    def events(self) -> int:
        """Rows with the event (binary, survival), of a class other than the most frequent, or above the
        median."""
        return int(self.outcome.events(self.values).sum())


def encode_label(frame: pl.DataFrame, roles: Roles) -> EncodedLabel:
    """The outcome of a table: the one requested, survival where a duration is named, else binary."""
    asked = parse_outcome(roles.outcome or ("survival" if roles.duration else "binary"))
    if roles.duration and asked.kind != "survival":
        raise RequestError(
            f"duration={roles.duration!r} with outcome={asked.kind!r}: only survival has a duration; leave "
            "one of the two out"
        )
    if roles.positive is not None and asked.kind in ("classes", "continuous"):
        raise RequestError(
            f"positive={roles.positive!r}: an outcome of {asked.kind} has no event; leave it out"
        )
    column = frame[roles.label]
    if asked.kind == "classes":
        return _classes(column, roles.label, asked)
    if asked.kind == "continuous":
        return EncodedLabel(_numbers(column, roles.label, "label"), asked)
    if asked.kind == "survival":
        return _survival(frame, roles, asked)
    return binary_label(column, roles.label, roles.positive)


def binary_label(column: pl.Series, name: str, positive: str | None = None) -> EncodedLabel:
    """0 or 1 from a column with two values.

    positive: the value of the event. Default: the value that says yes (1, true, yes, died), else the larger
    number, else the later in the alphabet.
    """
    _require_complete(column, name, "label")
    lowered = column.cast(pl.String).str.strip_chars().str.to_lowercase()
    values = sorted(lowered.unique().to_list())
    events = {value for value in values if value in YES}
    others = {value for value in values if value in NO}
    if positive is not None:
        events, others = _chosen_event(name, values, positive)
    doubt = ""
    if not (events and others and events | others == set(values)):
        if len(values) != 2:
            shown = ", ".join(repr(v) for v in values[:5])
            raise RequestError(
                f"the label {name!r} has {len(values)} value(s) ({shown}{', …' if len(values) > 5 else ''}); "
                "a binary label has two; choose outcome=classes or outcome=continuous for other labels"
            )
        try:
            event = max(values, key=float)
        except ValueError:
            event = values[1]
        events, others = {event}, set(values) - {event}
        doubt = (
            f"the label {name!r} has the values {values[0]!r} and {values[1]!r}; {event!r} is taken as the "
            "event because it is the larger; if that is wrong, name the other with positive=VALUE"
        )
    if not doubt and positive is None and _GOOD_OUTCOME.search(name):
        doubt = (
            f"by its name the label {name!r} is a good outcome; {_or(events)} counts as the event; if that "
            "is wrong, name the other with positive=VALUE"
        )
    return EncodedLabel(
        lowered.is_in(sorted(events)).to_numpy().astype(np.int8),
        BINARY,
        _or(events),
        _or(others),
        doubt,
        tuple(sorted(events)),
        tuple(sorted(others)),
    )


def _chosen_event(name: str, values: list[str], positive: str) -> tuple[set[str], set[str]]:
    """The values that the user named as the event, and all others."""
    wanted = positive.strip().lower()
    events = {v for v in values if v == wanted or _same_number(v, wanted)}
    if not events:
        raise RequestError(
            f"the label {name!r} has no value {positive!r}{nearest(wanted, values)}; "
            f"it has {', '.join(repr(v) for v in values[:5])}"
        )
    if len(values) - len(events) > 1:
        raise RequestError(f"the label {name!r} has {len(values)} values; a binary label has exactly two")
    return events, set(values) - events


def align_label(label: EncodedLabel, agreed: Outcome, owner: str, name: str) -> EncodedLabel:
    """A center's label in the terms of the study; a sentence where it is another outcome."""
    own = label.outcome
    if own.asked != agreed.asked:
        raise RequestError(
            f"{owner}: the study predicts an outcome of {agreed.asked}, and the label {name!r} is read as "
            f"{own.asked}; set the study's outcome where the label is named"
        )
    if agreed.kind != "classes":
        return replace(label, outcome=agreed)
    unknown = [own.names[int(k)] for k in np.unique(label.values) if own.names[int(k)] not in agreed.names]
    if unknown:
        raise RequestError(
            f"{owner}: the label {name!r} has the class {unknown[0]!r}, which is none of the study's "
            f"({', '.join(agreed.names[:8])}); correct it, leave these rows out, or agree on another codebook"
        )
    code = np.array([agreed.names.index(n) if n in agreed.names else -1 for n in own.names], np.float32)
    return replace(label, values=code[label.values.astype(np.int64)], outcome=agreed)


def class_order(names: Iterable[str]) -> list[str]:
    """Distinct classes in numerical order where they are numbers, else in alphabetical order."""
    found = sorted(set(names))
    try:
        return sorted(found, key=float)
    except ValueError:
        return found


def _classes(column: pl.Series, name: str, asked: Outcome) -> EncodedLabel:
    _require_complete(column, name, "label")
    text = column.cast(pl.String).str.strip_chars()
    names = class_order(text.unique().to_list())
    if not 2 <= len(names) <= MOST_CLASSES:
        raise RequestError(
            f"the label {name!r} has {len(names)} value(s); an outcome of classes has 2 to {MOST_CLASSES}"
        )
    code = {level: k for k, level in enumerate(names)}
    values = text.replace_strict(code, return_dtype=pl.Int64).to_numpy().astype(np.float32)
    return EncodedLabel(values, replace(asked, names=tuple(names)))


def _survival(frame: pl.DataFrame, roles: Roles, asked: Outcome) -> EncodedLabel:
    if not roles.duration:
        raise RequestError("outcome=survival needs the time to the event: name its column with duration=COL")
    column = frame[roles.label]
    lowered = column.cast(pl.String).str.strip_chars().str.to_lowercase()
    if lowered.n_unique() == 1:
        raise RequestError(
            f"the label {roles.label!r} has the one value {lowered[0]!r}: all censored, or all with the "
            "event; survival needs both"
        )
    event = binary_label(column, roles.label, roles.positive)
    time = _numbers(frame[roles.duration], roles.duration, "duration")
    if (time < 0).any():
        first = int(np.flatnonzero(time < 0)[0])
        raise RequestError(
            f"the duration {roles.duration!r} is negative in {int((time < 0).sum())} row(s), first in line "
            f"{first + 2} ({time[first]:g}); correct or remove these rows"
        )
    # A row censored at time 0 is -0.0.
    return replace(event, values=np.where(event.values > 0, time, -time), outcome=asked)


def _numbers(column: pl.Series, name: str, role: str) -> NDArray[np.float32]:
    _require_complete(column, name, role)
    numbers = column.cast(pl.Float64, strict=False)
    bad = numbers.is_null() | numbers.is_infinite().fill_null(False)
    if bad.any():
        first = int(bad.arg_max() or 0)
        raise RequestError(
            f"the {role} {name!r} holds {column[first]!r} in line {first + 2}, which is no number; correct it"
        )
    return numbers.to_numpy().astype(np.float32)


def _require_complete(column: pl.Series, name: str, role: str) -> None:
    """Refuse gaps: a row without an outcome is an error, not a silent loss."""
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


def _or(values: set[str]) -> str:
    return " or ".join(sorted(values))
