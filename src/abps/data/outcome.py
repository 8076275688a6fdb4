"""The outcome: what is predicted, how it is written down, and how it is read from a label column.

From it follow loss, scores and references. A model answers for **binary** one log-odds; for **survival** the
log-odds to fail in each interval of a common grid of times, of those who reach it (discrete hazards); for
**classes** a log-weight each (softmax); for **continuous** the mean (squared loss).

A row's outcome is one number, so that rows stay rows: 0 or 1, a class's place, the number itself, and for
survival the time with a sign: positive where the event happened then, negative where watching ended.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast, get_args

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core.errors import RequestError, nearest
from abps.data.roles import WORDS, Roles

Kind = Literal["binary", "survival", "classes", "continuous"]
KINDS: Final = get_args(Kind)

#: The most classes: with more, an outcome is rather a number or a text.
MOST_CLASSES: Final = 50

#: Intervals of a time grid at most, and events that each must have in the whole federation.
MOST_INTERVALS: Final = 10
EVENTS_EACH: Final = 10

#: Rows that a center needs of an event, a class or a number, so that each of three splits can have one.
FEWEST: Final = 3


@dataclass(frozen=True)
class Outcome:
    """names: of the classes.

    Settled on training rows (:meth:`settled`): grid, the ends of the intervals of time, and hazards, the
    chances to fail in each of those who reach it; level and scale, by which numbers are standardised.
    """

    kind: Kind = "binary"
    names: tuple[str, ...] = ()
    grid: tuple[float, ...] = ()
    hazards: tuple[float, ...] = ()
    level: float = 0.0
    scale: float = 0.0

    @property
    def binary(self) -> bool:
        return self.kind == "binary"

    @property
    def agreed(self) -> bool:
        """Whether centers have nothing left to agree on: a time grid, or a level and scale of numbers."""
        return bool(self.grid or self.scale) or self.kind in ("binary", "classes")

    @property
    def outputs(self) -> int:
        """How many numbers a model answers for a row."""
        if self.kind == "survival":
            return max(1, len(self.grid))
        return len(self.names) if self.kind == "classes" else 1

    @property
    def measure(self) -> str:
        names = {"binary": "AUROC", "survival": "C-index", "classes": "macro AUROC", "continuous": "R²"}
        return names[self.kind]

    @property
    def mix(self) -> NDArray[np.float32]:
        """(terms, outputs) how the terms of a linear model make its answers: a term for each, or, over time,
        one that is always there and one that grows from -1 to 1: effects that may fade and turn."""
        if self.kind != "survival":
            return np.eye(self.outputs, dtype=np.float32)
        always = np.ones((1, self.outputs), dtype=np.float32)
        if self.outputs == 1:
            return always
        return np.concatenate([always, np.linspace(-1.0, 1.0, self.outputs, dtype=np.float32)[None]])

    @property
    def start(self) -> NDArray[np.float32]:
        """(outputs,) the answers of a linear model that knows nothing yet."""
        if self.kind != "survival":
            return np.zeros(self.outputs, dtype=np.float32)
        chance = np.clip(np.array(self.hazards), 1e-3, 1.0 - 1e-3)
        return np.log(chance / (1.0 - chance)).astype(np.float32)

    @property
    def curvature(self) -> float:
        """The largest curvature of a row's loss along a term, in units of the logistic loss's quarter; of
        hazards twice that at the hazards of all, because a bound would be far above it."""
        if self.kind == "survival":
            chance = np.array(self.hazards)
            return float(np.clip(8.0 * (chance * (1.0 - chance)).sum(), 1.0, self.outputs))
        return {"binary": 1.0, "classes": 2.0, "continuous": 4.0}[self.kind]

    def events(self, label: NDArray[Any]) -> NDArray[np.bool_]:
        """(rows,) what is rare about an outcome: the event; a class but the most frequent; a high number."""
        if self.kind == "survival":
            return ~np.signbit(label)
        if self.kind == "classes":
            count = np.bincount(label.astype(np.int64), minlength=1)
            return np.asarray(label.astype(np.int64) != int(np.argmax(count)))
        if self.kind == "continuous":
            return np.asarray(label > np.median(label)) if len(label) else np.zeros(0, dtype=bool)
        return np.asarray(label > 0)

    def strata(self, label: NDArray[Any]) -> NDArray[np.int64]:
        """(rows,) what splits are balanced by: event or not, the class, the half of the numbers."""
        if self.kind == "classes":
            return label.astype(np.int64)
        return self.events(label).astype(np.int64)

    def informative(self, label: NDArray[Any]) -> int:
        """The number of informative rows: events, rows of the rarer side, half of the numbers."""
        events = int(self.events(label).sum())
        if self.kind == "survival":
            return events
        return min(events, len(label) - events)

    def lacks(self, label: NDArray[Any]) -> str:
        """Why a center with these rows cannot take part; nothing if it can."""
        events = int(self.events(label).sum())
        if self.kind == "survival":
            found, least, what = events, FEWEST, f"{FEWEST} events"
        elif self.kind == "classes":
            count = np.bincount(label.astype(np.int64), minlength=len(self.names))
            found, least, what = int((count >= FEWEST).sum()), 2, f"two classes with {FEWEST} rows"
        elif self.kind == "continuous":
            found, least, what = len(np.unique(label)), FEWEST, f"{FEWEST} different values"
        else:
            found, least = min(events, len(label) - events), FEWEST
            what = f"{FEWEST} {'positive' if events < len(label) - events else 'negative'} rows"
        return f"fewer than {what} ({found})" if found < least else ""

    def settled(self, label: NDArray[Any]) -> Outcome:
        """With what all agree on, from sums over all training rows: time grid, or level and scale."""
        if self.grid or self.scale:
            return self  # agreed before
        if self.kind == "survival":
            grid = time_grid(label)
            return replace(self, grid=grid, hazards=grid_hazards(label, grid))
        if self.kind == "continuous":
            values = label.astype(np.float64)
            scale = float(values.std())
            return replace(self, level=float(values.mean()), scale=scale if scale > 0 else 1.0)
        return self

    def coded(self, label: NDArray[Any]) -> NDArray[np.float32]:
        """(rows,) what learners see."""
        if self.kind == "continuous":
            return ((label.astype(np.float64) - self.level) / self.scale).astype(np.float32)
        return label.astype(np.float32)

    def to_json(self) -> dict[str, Any]:
        known = ("grid", "hazards") if self.grid else ("level", "scale") if self.scale else ()
        plain = as_plain(self)
        classes = {"classes": plain["names"]} if self.names else {}
        return {"predicts": self.kind, **classes, **{key: plain[key] for key in known}}

    @staticmethod
    def from_json(data: Any) -> Outcome:
        """From a file's content; ``ValueError`` says what is wrong with it."""
        try:
            asked = parse_outcome(str(data.get("predicts", "binary")))
        except RequestError as error:
            raise ValueError(str(error)) from error
        settled = ("grid", "hazards", "level", "scale")
        plain = {"names": data.get("classes", ()), **{k: data[k] for k in settled if k in data}}
        made = msgspec.convert({"kind": asked.kind, **plain}, Outcome)
        made = replace(made, hazards=made.hazards or (0.1,) * len(made.grid))
        numbers = [*made.grid, *made.hazards, made.level, made.scale]
        rising = all(a < b for a, b in itertools.pairwise((0.0, *made.grid)))
        if not np.isfinite(numbers).all() or not rising or made.scale < 0:
            raise ValueError("a time grid rises from 0, and a scale is positive")
        if len(made.hazards) != len(made.grid) or not all(0 <= h <= 1 for h in made.hazards):
            raise ValueError("every interval of a time grid has one hazard, between 0 and 1")
        if (made.kind == "classes") != bool(made.names) or len(set(made.names)) != len(made.names):
            raise ValueError("an outcome of classes names each of them once, and no other outcome does")
        if (made.grid and made.kind != "survival") or (made.scale and made.kind != "continuous"):
            raise ValueError(f"an outcome of {made.kind} has no grid or scale like this")
        return made

    def published(self, label: NDArray[Any]) -> tuple[NDArray[np.float64], tuple[str, ...]]:
        """(rows, k) whose means a center publishes, and their names."""
        if self.kind == "classes":
            shares = np.eye(len(self.names))[label.astype(np.int64)]
            return shares, tuple(f"share of {name}" for name in self.names)
        if self.kind == "continuous":
            return ((label.astype(np.float64) - self.level) / self.scale)[:, None], ("mean outcome",)
        name = "positive rate" if self.binary else "event rate"
        values = label if self.binary else self.events(label)
        return values.astype(np.float64)[:, None], (name,)


BINARY: Final = Outcome()


def as_plain(value: Any) -> Any:
    """Typed values as JSON has them: dicts, lists, texts and numbers."""
    return msgspec.json.decode(msgspec.json.encode(value))


def time_grid(signed: NDArray[Any]) -> tuple[float, ...]:
    """Ends of intervals of time that hold about equally many events, and at least ``EVENTS_EACH`` each.

    signed: (rows,) times, negative where watching ended. Nothing later than the last event is predicted.
    """
    times = np.sort(np.abs(signed[~np.signbit(signed)].astype(np.float64)))
    if not len(times):
        raise RequestError("nobody has the event in the training rows (all are censored): nothing to learn")
    count = int(np.clip(len(times) // EVENTS_EACH, 1, MOST_INTERVALS))
    cuts = np.quantile(times, np.arange(1, count + 1) / count, method="inverted_cdf")
    return tuple(float(cut) for cut in np.unique(cuts.astype(np.float32)))


def grid_hazards(signed: NDArray[Any], grid: tuple[float, ...]) -> tuple[float, ...]:
    """Of those who reach each interval and do not leave within it, the share that fails in it."""
    time, event = np.abs(signed), ~np.signbit(signed)
    ends = np.array(grid, dtype=np.float32)
    lived = np.where(event, np.searchsorted(ends, time, "left"), np.searchsorted(ends, time, "right"))
    failed = event & (lived < len(ends))
    died = np.bincount(lived[failed], minlength=len(ends))
    through = np.array([(lived > k).sum() for k in range(len(ends))])
    return tuple(float(d / max(n, 1)) for d, n in zip(died, died + through))


def parse_outcome(text: str) -> Outcome:
    """An outcome as people write it, in any case."""
    word = text.strip().lower()
    if word not in KINDS:
        known = word.partition(":")[0]
        more = "; for proportional hazards see `abps regress`" if known == "survival" else ""
        raise RequestError(
            f"there is no outcome {word!r}{nearest(known, KINDS)}; choose {', '.join(KINDS[:-1])} "
            f"or {KINDS[-1]}{more}"
        )
    return Outcome(cast(Kind, word))


# --- the label column as numbers ------------------------------------------------------------------------

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
        return int(self.outcome.events(self.values).sum())


def encode_label(frame: pl.DataFrame, roles: Roles, first_line: int = 2) -> EncodedLabel:
    """The outcome of a table: the one requested, survival where a duration is named, else binary."""
    asked = parse_outcome(roles.outcome or ("survival" if roles.duration else "binary"))
    if roles.duration and asked.kind != "survival":
        raise RequestError(
            f"duration={roles.duration!r} with outcome={asked.kind!r}: only survival has a duration; leave "
            "one of the two out"
        )
    if roles.positive is not None and asked.kind in ("classes", "continuous"):
        raise RequestError(f"positive={roles.positive!r}: outcome {asked.kind} has no event; leave it out")
    column = frame[roles.label]
    require_complete(column, "label", first_line)
    if asked.kind == "classes":
        return _classes(column, asked)
    if asked.kind == "continuous":
        return EncodedLabel(_numbers(column, "label", first_line), asked)
    if asked.kind == "survival":
        return _survival(frame, roles, asked, first_line)
    return binary_label(column, roles.positive, first_line)


def binary_label(column: pl.Series, positive: str | None = None, first_line: int = 2) -> EncodedLabel:
    """0 or 1 from a column with two values.  positive: the event; else the value that says yes (1, died), the
    larger number, or the later in the alphabet."""
    name = column.name
    require_complete(column, "label", first_line)
    if column.dtype.is_float() and (column % 1 == 0).all():
        column = column.cast(pl.Int64)  # as spreadsheets have whole numbers
    lowered = column.cast(pl.String).str.strip_chars().str.to_lowercase()
    values = sorted(lowered.unique().to_list())
    events = {value for value in values if value in YES}
    others = {value for value in values if value in NO}
    if positive is not None:
        events, others = _chosen_event(name, values, positive)
    doubt = ""
    if not (events and others and events | others == set(values)):
        if len(values) != 2:
            raise RequestError(_not_binary(lowered, first_line))
        try:
            event = max(values, key=float)
        except ValueError:
            event = values[1]
        events, others = {event}, set(values) - {event}
        doubt = (
            f"the label {name!r} has the values {values[0]!r} and {values[1]!r}; {event!r} is taken as the "
            "event because it is the larger; if that is wrong, name the other with positive=VALUE"
        )
    words = tuple(sorted(events)), tuple(sorted(others))
    event, other = (" or ".join(each) for each in words)
    if not doubt and positive is None and _GOOD_OUTCOME.search(name):
        doubt = (
            f"by its name the label {name!r} is a good outcome; {event} counts as the event; if that is "
            "wrong, name the other with positive=VALUE"
        )
    coded = lowered.is_in(list(words[0])).to_numpy().astype(np.int8)
    return EncodedLabel(coded, BINARY, event, other, doubt, *words)


def _not_binary(label: pl.Series, first_line: int) -> str:
    counts = label.alias("value").value_counts(sort=True)
    values, rows = counts["value"].to_list(), counts["count"].to_list()
    shown = ", ".join(repr(v) for v in sorted(values)[:5]) + (", …" if len(values) > 5 else "")
    what = f"the label {label.name!r} has {len(values)} value(s) ({shown}); a binary label has two"
    few = sum(rows[2:])
    if 0 < few <= 0.01 * len(label):
        line = first_line + int((label == values[2]).arg_max() or 0)
        return (
            f"{what}; {few} row(s) have neither {values[0]!r} nor {values[1]!r}, such as line {line} with "
            f"{values[2]!r}; correct or remove these rows"
        )
    return f"{what}; choose outcome=classes or outcome=continuous for other labels"


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
    if own.kind != agreed.kind:
        raise RequestError(
            f"{owner}: the study predicts an outcome of {agreed.kind}, and the label {name!r} is read as "
            f"{own.kind}; set the study's outcome where the label is named"
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


def _classes(column: pl.Series, asked: Outcome) -> EncodedLabel:
    text = column.cast(pl.String).str.strip_chars()
    names = class_order(text.unique().to_list())
    if not 2 <= len(names) <= MOST_CLASSES:
        raise RequestError(
            f"the label {column.name!r} has {len(names)} value(s); an outcome of classes has 2 to "
            f"{MOST_CLASSES}"
        )
    code = {level: k for k, level in enumerate(names)}
    values = text.replace_strict(code, return_dtype=pl.Int64).to_numpy().astype(np.float32)
    return EncodedLabel(values, replace(asked, names=tuple(names)))


def _survival(frame: pl.DataFrame, roles: Roles, asked: Outcome, first_line: int) -> EncodedLabel:
    if not roles.duration:
        raise RequestError("outcome=survival needs the time to the event: name its column with duration=COL")
    column = frame[roles.label]
    lowered = column.cast(pl.String).str.strip_chars().str.to_lowercase()
    if lowered.n_unique() == 1:
        raise RequestError(
            f"the label {roles.label!r} has the one value {lowered[0]!r}: all censored, or all with the "
            "event; survival needs both"
        )
    event = binary_label(column, roles.positive, first_line)
    time = _numbers(frame[roles.duration], "duration", first_line)
    if (time < 0).any():
        first = int(np.flatnonzero(time < 0)[0])
        raise RequestError(
            f"the duration {roles.duration!r} is negative in {int((time < 0).sum())} row(s), first in line "
            f"{first + first_line} ({time[first]:g}); correct or remove these rows"
        )
    # A row censored at time 0 is -0.0.
    return replace(event, values=np.where(event.values > 0, time, -time), outcome=asked)


def _numbers(column: pl.Series, role: str, first_line: int) -> NDArray[np.float32]:
    require_complete(column, role, first_line)
    numbers = column.cast(pl.Float64, strict=False)
    bad = numbers.is_null() | numbers.is_infinite().fill_null(False)
    if bad.any():
        first = int(bad.arg_max() or 0)
        raise RequestError(
            f"the {role} {column.name!r} holds {column[first]!r} in line {first + first_line}, which is no "
            "number; correct it"
        )
    return numbers.to_numpy().astype(np.float32)


def require_complete(column: pl.Series, role: str, first_line: int = 2) -> None:
    """Refuse gaps: a row without an outcome or a center is an error, not a silent loss."""
    missing = column.is_null()
    if column.dtype.is_float():
        missing = missing | column.is_nan()
    if missing.any():
        first = int(missing.arg_max() or 0)
        raise RequestError(
            f"the {role} {column.name!r} is missing in {int(missing.sum())} row(s), first in line "
            f"{first + first_line}; remove these rows or fill them in"
        )


def _same_number(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return False
