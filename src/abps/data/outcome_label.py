"""The label column of a table as the outcome that it is said to be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.data.label import BinaryLabel, binary_label, known_label
from abps.data.outcome import BINARY, MOST_CLASSES, Outcome, parse_outcome
from abps.data.roles import Roles


@dataclass(frozen=True, eq=False)
class Labelled:
    """values: (rows,) 0 and 1 as small integers, or float32 as :mod:`abps.data.outcome` says.

    positive, negative: what the two values of an event are called in the table.  doubt: what may be wrong.
    event_words, other_words: the values that count as the event, and those that do not, in small letters.
    """

    values: NDArray[Any]
    outcome: Outcome
    positive: str = ""
    negative: str = ""
    doubt: str = ""
    event_words: tuple[str, ...] = ()
    other_words: tuple[str, ...] = ()

    @property
    def events(self) -> int:
        """Rows with the event (binary, survival), of other than the most frequent class, or above the
        median."""
        return int(self.outcome.events(self.values).sum())


def labelled(frame: pl.DataFrame, roles: Roles) -> Labelled:
    """The outcome of a table: as it was asked for, survival where a duration is named, else binary."""
    asked = parse_outcome(roles.outcome or ("survival" if roles.duration else "binary"))
    if roles.duration and asked.kind != "survival":
        raise RequestError(
            f"duration={roles.duration!r} with outcome={asked.kind!r}: a duration belongs to survival; leave "
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
        return Labelled(_numbers(column, roles.label, "label"), asked)
    if asked.kind == "survival":
        return _survival(frame, roles, asked)
    label = binary_label(column, roles.label, roles.positive)
    return _of_event(label, label.values, BINARY)


def _of_event(label: BinaryLabel, values: NDArray[Any], outcome: Outcome) -> Labelled:
    return Labelled(values, outcome, label.positive, label.negative, label.doubt, label.events, label.others)


def in_terms_of(label: Labelled, agreed: Outcome, owner: str, name: str) -> Labelled:
    """A center's label in the terms that all agreed on; a sentence where it is another outcome."""
    own = label.outcome
    if own.asked != agreed.asked:
        raise RequestError(
            f"{owner}: the study predicts an outcome of {agreed.asked}, and the label {name!r} is read as "
            f"{own.asked}; say the study's outcome where the label is named"
        )
    if agreed.kind != "classes":
        return replace(label, outcome=agreed)
    unknown = [own.names[int(k)] for k in np.unique(label.values) if own.names[int(k)] not in agreed.names]
    if unknown:
        raise RequestError(
            f"{owner}: the label {name!r} has the class {unknown[0]!r}, which is none of the study's "
            f"({', '.join(agreed.names[:8])}); mend it, leave these rows out, or agree on another codebook"
        )
    place = np.array([agreed.names.index(n) if n in agreed.names else -1 for n in own.names], np.float32)
    return replace(label, values=place[label.values.astype(np.int64)], outcome=agreed)


def class_order(names: Iterable[str]) -> list[str]:
    """Classes in the order of their numbers, or else of the alphabet; each once."""
    found = sorted(set(names))
    try:
        return sorted(found, key=float)
    except ValueError:
        return found


def _classes(column: pl.Series, name: str, asked: Outcome) -> Labelled:
    known_label(column, name)
    text = column.cast(pl.String).str.strip_chars()
    names = class_order(text.unique().to_list())
    if not 2 <= len(names) <= MOST_CLASSES:
        raise RequestError(
            f"the label {name!r} has {len(names)} value(s); an outcome of classes has 2 to {MOST_CLASSES}"
        )
    place = {level: k for k, level in enumerate(names)}
    codes = text.replace_strict(place, return_dtype=pl.Int64).to_numpy().astype(np.float32)
    return Labelled(codes, replace(asked, names=tuple(names)))


def _survival(frame: pl.DataFrame, roles: Roles, asked: Outcome) -> Labelled:
    if not roles.duration:
        raise RequestError("an outcome of survival needs the time to the event: name its column as duration")
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
            f"{first + 2} ({time[first]:g}); mend or remove these rows"
        )
    signed = np.where(event.values > 0, time, -time)  # -0.0 is a row that was not watched at all
    return _of_event(event, signed, asked)


def _numbers(column: pl.Series, name: str, role: str) -> NDArray[np.float32]:
    known_label(column, name, role)
    numbers = column.cast(pl.Float64, strict=False)
    bad = numbers.is_null() | numbers.is_infinite().fill_null(False)
    if bad.any():
        first = int(bad.arg_max() or 0)
        raise RequestError(
            f"the {role} {name!r} holds {column[first]!r} in line {first + 2}, which is no number; mend it"
        )
    return numbers.to_numpy().astype(np.float32)
