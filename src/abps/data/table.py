"""Bring your own table: a CSV or Parquet file with a label and a center column becomes a federation.

Every rule is stated, and what it did stands in the federation's ``notes``:

* the label must have two values (0/1, true/false, yes/no, or any two: the larger, or the later in the
  alphabet, is the positive one unless told), unless it is said to be another outcome
  (:mod:`abps.data.outcome`); a row without a label is an error, not a silent loss;
* a column of numbers is a number, of true/false or 0/1 a binary, of dates a number of days, of text a
  category; cells that were meant as numbers are mended first (:mod:`abps.data.repairs`);
* a column without any value or with one value only carries nothing to learn and is set aside; so is one
  that names rows, copies the label or is known only afterwards (:mod:`abps.data.suspects`);
* a row that repeats another in all columns is taken once;
* a center takes part if it has at least ``min_stays`` rows and three of each class (one for each split).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core.errors import RequestError, nearest
from abps.data.check import ColumnNote, TableCheck
from abps.data.codebook import Codebook, typed
from abps.data.federation import Federation, LeftOut
from abps.data.outcome import FEWEST, Outcome
from abps.data.outcome_label import Labelled, in_terms_of, labelled
from abps.data.reading import GAPS, RawTable, read_raw
from abps.data.repairs import Mended, Repair, mend, merged_names, to_levels
from abps.data.roles import Roles, completed
from abps.data.split import content_of, patient_numbers
from abps.data.suspects import Suspicion, copies, is_identifier, suspicions
from abps.data.synthetic.builtin import BUILTIN, builtin_table, is_builtin

#: The smallest center that takes part, unless the user says otherwise.
MIN_STAYS = 50

#: Positives and negatives that a center needs, so that each split can have one.
MIN_CLASS = FEWEST

#: The share of rows that must repeat others before they are taken once; fewer change nothing, and stay.
MANY_COPIES = 0.01

#: The share of rows in centers that are left out from which on people are warned.
MANY_LEFT_OUT = 0.1


def read_table(
    path: str | Path,
    label: str = "",
    center: str = "",
    patient: str | None = None,
    time: str | None = None,
    group: str | None = None,
    drop: tuple[str, ...] = (),
    min_stays: int = MIN_STAYS,
    eras: str | None = None,
    every: int | None = None,
    keep: tuple[str, ...] = (),
    positive: str | None = None,
    outcome: str | None = None,
    duration: str | None = None,
) -> Federation:
    """A federation from a CSV or Parquet file.

    Roles that are not given are those that a file of ``abps cohort`` or ``abps partition`` carries.
    """
    given = Roles(
        label,
        center,
        patient,
        time,
        group,
        tuple(drop),
        eras,
        every,
        tuple(keep),
        positive,
        outcome,
        duration,
    )
    return load_file(Path(path), given, min_stays)


def load(data: str, roles: Roles | None = None, min_stays: int | None = None) -> Federation:
    """The federation that a name means: a built-in one, or a file with its roles."""
    if is_builtin(data):
        frame, own = builtin_table(data)
        given = {} if roles is None else {k: v for k, v in vars(roles).items() if v}
        # The built-in federations are made: their small centers are meant to be there.
        least = MIN_CLASS if min_stays is None else min_stays
        return replace(federate(frame, replace(own, **given), data, least), in_order=True)
    path = Path(data)
    if not path.exists() and path.suffix not in (".csv", ".parquet", ".gz", ".tsv", ".txt"):
        raise RequestError(
            f"{data}: no such file, and no built-in federation of that name{nearest(data, BUILTIN)}; "
            f"built in are {', '.join(BUILTIN)}"
        )
    return load_file(path, roles or Roles("", ""), MIN_STAYS if min_stays is None else min_stays)


def load_file(path: Path, roles: Roles, min_stays: int = MIN_STAYS) -> Federation:
    """The federation in a file: read, mended, looked through, and put together."""
    raw = read_raw(path)
    roles = completed(path, roles)
    if not roles.label or not roles.center:
        raise RequestError(f"{path}: name its columns: label and center")
    return checked(raw, roles, path.stem, min_stays)


def checked(raw: RawTable, roles: Roles, name: str, min_stays: int = MIN_STAYS) -> Federation:
    """A table as it came from somebody: mended, looked through for what must not be learned, put together."""
    _check_roles(raw.frame, roles)
    frame, repairs, doubts = mended(raw.frame, roles)
    label = labelled(frame, roles)
    told = label.outcome.events(label.values).astype(np.int8)
    found = suspicions(frame.drop(roles_of(raw.frame, roles), strict=False), told)
    named = [s.column for s in found if s.kind == "identifier"]
    alike = copies(frame.drop(named))
    repeated = alike if alike.sum() > MANY_COPIES * frame.height else np.zeros_like(alike)
    kept = frame.filter(pl.Series(~repeated))
    aside = {s.column: s.sentence for s in found if s.aside and s.column not in roles.keep}
    federation = federate(kept, roles, name, min_stays, aside)
    assert federation.notes is not None
    warnings = [
        *([label.doubt] if label.doubt else []),
        *doubts,
        *(f"{s.column!r}: {s.sentence}{_done(s, roles)}" for s in found if s.kind != "identifier"),
    ]
    if alike.any():
        done = "each is taken once" if repeated.any() else "so few stay"
        warnings.append(
            f"{int(alike.sum())} of {frame.height} rows repeat another row in every column; {done}"
        )
    lost = sum(o.rows for o in federation.left_out)
    if lost > MANY_LEFT_OUT * kept.height:
        many = len(federation.left_out)
        warnings.append(
            f"{many} of {many + federation.size} centers ({lost:,} of {kept.height:,} rows) take no part"
        )
    notes = replace(
        federation.notes,
        form=raw.form,
        rows=frame.height,
        copies=int(repeated.sum()),
        repairs=tuple(repairs),
        suspicions=tuple(found),
        warnings=tuple(warnings),
    )
    return replace(federation, notes=notes)


def _done(suspicion: Suspicion, roles: Roles) -> str:
    if suspicion.column in roles.keep:
        return "; it is used, as asked for"
    return "; it is not used" if suspicion.aside else ""


def mended(frame: pl.DataFrame, roles: Roles) -> tuple[pl.DataFrame, list[Repair], list[str]]:
    """A table after the repairs: features by all rules, names of centers and groups by their spelling."""
    columns: list[pl.Series] = []
    repairs: list[Repair] = []
    doubts: list[str] = []
    other = set(roles_of(frame, roles))
    for column in frame.get_columns():
        if column.name in (roles.center, roles.group):
            result = merged_names(column)
        elif column.name in other and column.name != roles.time:
            result = Mended(column)
        else:
            result = mend(column)
        columns.append(result.values)
        repairs += result.repairs
        doubts += result.doubts
    return pl.DataFrame(columns), repairs, doubts


def roles_of(frame: pl.DataFrame, roles: Roles) -> list[str]:
    """The columns of a table that have a role or are dropped, and so are no features."""
    given = (
        roles.label, roles.duration, roles.center, roles.patient, roles.time, roles.group, roles.eras,
        *roles.drop,
    )  # fmt: skip
    return [name for name in dict.fromkeys(given) if name is not None and name in frame.columns]


def read_frame(path: Path) -> pl.DataFrame:
    """A CSV, TSV or Parquet file as a frame, its cells as they are."""
    return read_raw(path).frame


def _column(frame: pl.DataFrame, name: str, role: str) -> pl.Series:
    if name not in frame.columns:
        raise RequestError(
            f"there is no column {name!r} for {role}{nearest(name, frame.columns)}; "
            f"the table has {', '.join(frame.columns[:12])}{', …' if frame.width > 12 else ''}"
        )
    return frame[name]


def _check_roles(frame: pl.DataFrame, roles: Roles) -> None:
    """Every column that has a role is there."""
    in_column = roles.eras if roles.eras in frame.columns else None
    given = {
        "label": roles.label,
        "duration": roles.duration,
        "center": roles.center,
        "patient": roles.patient,
        "time": roles.time,
        "group": roles.group,
        "eras": in_column,
    }
    for role, column in given.items():
        if column is not None:
            _column(frame, column, role)
    for role, columns in (("drop", roles.drop), ("keep", roles.keep)):
        for column in columns:
            _column(frame, column, role)


def federate(
    frame: pl.DataFrame,
    roles: Roles,
    name: str,
    min_stays: int = MIN_STAYS,
    aside: Mapping[str, str] | None = None,
) -> Federation:
    """A frame with its roles as a federation; its cells are taken as they are.

    aside: columns that are no features although they have no role, and why.
    """
    aside = aside or {}
    _check_roles(frame, roles)
    label = labelled(frame, roles)
    values, outcome = label.values, label.outcome
    centers_of = center_names(frame[roles.center], roles.center)
    if roles.every is not None and (roles.every < 1 or roles.eras is None):
        why = "a window lasts at least 1 round" if roles.every < 1 else "name the windows with eras"
        raise RequestError(f"every={roles.every}: {why}")
    era = None if roles.eras is None else _eras(frame, roles)
    if min_stays < 1:
        raise RequestError(f"min_stays={min_stays}: choose at least 1")
    if roles.eras is not None and not outcome.binary:
        raise RequestError(
            f"eras={roles.eras} with outcome={outcome.kind}: windows of time are for binary outcomes; leave "
            "one of the two out"
        )
    kept, left_out = _who_takes_part(centers_of, values, outcome, min_stays, era)
    centers = tuple(sorted(kept))
    if len(centers) < 2:
        worst = "; ".join(f"{o.center!r}: {o.reason}" for o in left_out[:3])
        raise RequestError(
            f"{name}: {len(centers)} center(s) can take part and a federation needs 2 ({worst}); "
            "choose another center column or a smaller min_stays"
        )
    whole = frame
    chosen = np.isin(centers_of, centers)
    frame = frame.filter(pl.Series(chosen))
    centers_of, values = centers_of[chosen], values[chosen]
    era = None if era is None else era[chosen]
    groups = None if roles.group is None else _group_of(frame[roles.group], centers_of, centers, roles.group)
    features, reasons = judged(frame.drop([*roles_of(frame, roles), *aside], strict=False))
    if features.width == 0:
        why = "; ".join(f"{c!r}: {r}" for c, r in list((reasons | dict(aside)).items())[:3])
        raise RequestError(
            f"{name}: no column is left to learn from{f' ({why})' if why else ''}; check drop and the table"
        )
    years = None if roles.time is None else _years(frame[roles.time], roles.time)
    return Federation(
        name=name,
        features=features,
        label=values,
        center=np.searchsorted(np.array(centers), centers_of).astype(np.int32),
        centers=centers,
        patient=None if roles.patient is None else _patients(frame[roles.patient], features, values, years),
        time=years,
        groups=groups,
        descriptors=_descriptors(features),
        left_out=tuple(left_out),
        era=era,
        every=roles.every,
        outcome=outcome,
        aside=_aside(frame, roles, features.columns),
        notes=TableCheck(
            name=name,
            form="a table in memory",
            rows=whole.height,
            copies=0,
            label=roles.label,
            positive=label.positive,
            negative=label.negative,
            events=label.events,
            columns=_column_notes(whole, roles, features, reasons | dict(aside)),
            centers=centers,
            left_out=tuple(left_out),
        ),
    )


def _aside(frame: pl.DataFrame, roles: Roles, used: Sequence[str]) -> pl.DataFrame | None:
    """The columns that are not learned from and tell nobody's name or outcome."""
    never = {roles.label, roles.duration, roles.center, roles.patient, roles.time, roles.eras, *used}
    names = [name for name in frame.columns if name not in never]
    return frame.select(names) if names else None


def _column_notes(
    frame: pl.DataFrame, roles: Roles, features: pl.DataFrame, reasons: Mapping[str, str]
) -> tuple[ColumnNote, ...]:
    """A line on every column of the table."""
    role_of = dict.fromkeys(roles.drop, "dropped")
    for role in ("eras", "group", "time", "patient", "duration", "center", "label"):
        role_of[getattr(roles, role) or ""] = "windows" if role == "eras" else role
    notes = []
    for column in frame.get_columns():
        role = role_of.get(column.name, "feature")
        used = column.name in features.columns
        why = reasons.get(column.name, "")
        if role == "feature" and used and column.name in roles.keep:
            why = "asked for by name"
        shown = features[column.name] if used else column
        missing = column.null_count() / max(1, len(column))
        notes.append(ColumnNote(column.name, type_name(shown, column), role, used, why, round(missing, 6)))
    return tuple(notes)


def type_name(feature: pl.Series, column: pl.Series) -> str:
    """What a column holds, in one word."""
    if column.dtype.is_temporal():
        return "date"
    if feature.dtype == pl.Boolean:
        return "yes/no"
    if feature.dtype.is_numeric():
        known = feature.drop_nulls()
        if len(known) == 0:
            return "empty"
        binary = known.n_unique() <= 2 and set(known.unique().to_list()) <= {0, 1}
        return "yes/no" if binary else "number"
    if feature.dtype in (pl.String, pl.Categorical, pl.Enum):
        return "category"
    return "empty" if feature.dtype == pl.Null else "other"


def own_outcome(
    path: str | Path,
    label: str,
    positive: str | None = None,
    outcome: str | None = None,
    duration: str | None = None,
) -> Labelled:
    """The outcome of one center's own table: what it is, and which of its words are the event."""
    roles = Roles(label, "", positive=positive, outcome=outcome, duration=duration)
    return labelled(mended(_with_roles(read_raw(Path(path)).frame, roles), roles)[0], roles)


def _with_roles(frame: pl.DataFrame, roles: Roles) -> pl.DataFrame:
    """A center's own table, which has every column that was named."""
    for column, role in (
        (roles.label, "label"),
        (roles.duration, "duration"),
        (roles.patient, "patient"),
        (roles.time, "time"),
        *((d, "drop") for d in roles.drop),
    ):
        if column is not None:
            _column(frame, column, role)
    return frame


def _same_event(outcome: Labelled, book: Codebook, site: str, label: str) -> None:
    """Refuse a table whose event is not the codebook's: the model would learn the contrary from it."""
    events, others = {*outcome.event_words}, {*outcome.other_words}
    turned = sorted(events & {*book.others} | others & {*book.events})
    if turned:
        raise RequestError(
            f"{site}: the label {label!r} counts {turned[0]!r} the other way round than the codebook; say in "
            "the site's file which value is the event (positive), or agree on another codebook"
        )
    unknown = sorted((events | others) - {*book.events, *book.others})
    if unknown and outcome.doubt:
        raise RequestError(
            f"{site}: the codebook does not say whether {unknown[0]!r} of the label {label!r} is the event; "
            "say it in the site's file (positive), or agree on another codebook"
        )


def own_table(
    path: str | Path,
    site: str,
    label: str,
    patient: str | None = None,
    time: str | None = None,
    drop: tuple[str, ...] = (),
    book: Codebook | None = None,
    positive: str | None = None,
    outcome: str | None = None,
    duration: str | None = None,
) -> Federation:
    """One center's own table, read at that center: a federation of one.

    With a codebook the features are those that it asks for, and the outcome is in its terms; without, all
    that can be learned from.
    positive: the label's value that is the event, where its words leave doubt.
    outcome, duration: as in :class:`Roles`; nothing said, the outcome is the codebook's.
    """
    table = read_raw(Path(path))
    if outcome is None and book is not None and not book.outcome.binary:
        outcome = book.outcome.asked
    roles = Roles(label, "", patient, time, None, tuple(drop), positive=positive, outcome=outcome,
                  duration=duration)  # fmt: skip
    raw = _with_roles(table.frame, roles)
    frame, repairs, doubts = mended(raw, roles)
    found = labelled(frame, roles)
    if book is not None:
        found = in_terms_of(found, book.outcome, site, label)
        _same_event(found, book, site, label)
    values, what = found.values, found.outcome
    told = what.events(values).astype(np.int8)
    lacks = what.lacks(values)
    if what.binary and lacks:
        lacks = (
            f"{int(values.sum())} positive of {len(values)} rows; a center needs {MIN_CLASS} of each class"
        )
    if lacks:
        raise RequestError(f"{path}: {lacks}")
    if book is not None and book.time and time is None:
        raise RequestError(f"{site}: the codebook asks for a time column; name it with time")
    rest = frame.drop(roles_of(frame, roles))
    if book is None:
        aside = {s.column: s.sentence for s in suspicions(rest, told) if s.aside}
        features, reasons = judged(rest.drop(list(aside)))
        reasons |= aside
    else:
        features = as_agreed(rest, raw, book, site)
        reasons = dict.fromkeys(rest.columns, "not in the codebook")
    if features.width == 0:
        raise RequestError(f"{path}: no column is left to learn from; check drop and the table")
    years = None if time is None or (book is not None and not book.time) else _years(frame[time], time)
    return Federation(
        name=site,
        features=features,
        label=values,
        center=np.zeros(len(values), dtype=np.int32),
        centers=(site,),
        patient=None if patient is None else _patients(frame[patient], features, values, years),
        time=years,
        descriptors=_descriptors(features) if book is None else book.descriptors,
        outcome=what,
        notes=TableCheck(
            name=site,
            form=table.form,
            rows=len(values),
            copies=0,
            label=label,
            positive=found.positive,
            negative=found.negative,
            events=found.events,
            columns=_column_notes(frame, roles, features, reasons),
            repairs=tuple(repairs),
            warnings=tuple(([found.doubt] if found.doubt else []) + doubts),
            centers=(site,),
        ),
    )


def as_agreed(mended: pl.DataFrame, raw: pl.DataFrame, book: Codebook, owner: str) -> pl.DataFrame:
    """The columns that a codebook asks for, as it asks for them: levels by its own spelling."""
    levels: dict[str, list[str]] = {}
    for column in book.columns:
        if column.kind == "level":
            levels.setdefault(column.source, []).append(column.level)
    known = {column.name: as_feature(column) for column in mended.get_columns()}
    known |= {name: to_levels(raw[name], wanted) for name, wanted in levels.items() if name in raw.columns}
    return typed({name: column for name, column in known.items() if column is not None}, book, owner)


def center_names(column: pl.Series, name: str) -> NDArray[np.str_]:
    """(rows,) the center of every row as text."""
    if column.null_count():
        first = int(column.is_null().arg_max() or 0)
        raise RequestError(
            f"the center {name!r} is missing in {column.null_count()} row(s), first in line {first + 2}; "
            "remove these rows or fill them in"
        )
    text = column.cast(pl.String).str.strip_chars()
    bad = text.filter(text.str.contains(r"[\x00-\x1f\x7f]"))
    if len(bad):
        raise RequestError(
            f"the center {bad[0]!r} in column {name!r} contains a line break or control character; rename it"
        )
    if (text == "").any():
        raise RequestError(f"the center column {name!r} has empty names; fill them in")
    return text.to_numpy().astype(np.str_)


def _who_takes_part(
    centers_of: NDArray[np.str_],
    label: NDArray[Any],
    outcome: Outcome,
    min_stays: int,
    era: NDArray[np.int16] | None,
) -> tuple[list[str], list[LeftOut]]:
    """Names of the centers that can take part (with windows of time: in each of them), and the others."""
    if era is not None:
        could: list[list[str]] = []
        why: dict[str, LeftOut] = {}
        for e in range(int(era.max()) + 1):
            rows = era == e
            kept, left = _who_takes_part(centers_of[rows], label[rows], outcome, min_stays, None)
            could.append(kept)
            absent = set(np.unique(centers_of).tolist()) - set(kept) - {o.center for o in left}
            left += [LeftOut(name, 0, "no row") for name in sorted(absent)]
            for each in left:
                why.setdefault(each.center, replace(each, reason=f"{each.reason} in window {e + 1}"))
        everywhere = set.intersection(*map(set, could))
        return sorted(everywhere), [why[name] for name in sorted(why)]
    names, code = np.unique(centers_of, return_inverse=True)
    kept, left_out = [], []
    for k, name in enumerate(names.tolist()):
        mine = label[code == k]
        few = f"{len(mine)} row(s), fewer than {min_stays}" if len(mine) < min_stays else ""
        why_not = few or outcome.lacks(mine)
        if why_not:
            left_out.append(LeftOut(name, len(mine), why_not))
        else:
            kept.append(name)
    return kept, left_out


def judged(frame: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, str]]:
    """The columns that can be learned from, as numbers, booleans or text; and why the others cannot."""
    columns: list[pl.Series] = []
    reasons: dict[str, str] = {}
    for column in frame.get_columns():
        feature = as_feature(column)
        if feature is None:
            reasons[column.name] = "neither numbers nor dates nor text"
        elif feature.null_count() == len(feature):
            reasons[column.name] = "no value"
        elif feature.drop_nulls().n_unique() < 2:
            reasons[column.name] = "one value only"
        elif feature.dtype == pl.String and is_identifier(feature):
            reasons[column.name] = "nearly every row has a value of its own"
        else:
            columns.append(feature)
    return pl.DataFrame(columns), reasons


def as_feature(column: pl.Series) -> pl.Series | None:
    """A column as numbers, booleans or text with gaps as null; None if it is nothing of the kind."""
    if column.dtype.is_temporal():
        column = column.cast(pl.Date) if column.dtype != pl.Duration else column
        return column.to_physical().cast(pl.Float64)
    if column.dtype in (pl.String, pl.Categorical, pl.Enum):
        column = column.cast(pl.String).str.strip_chars()
        column = column.set(column.is_in(list(GAPS)), None)
        numbers = column.cast(pl.Float64, strict=False)
        return numbers if numbers.null_count() == column.null_count() else column
    if column.dtype == pl.Boolean:
        return column
    if column.dtype.is_numeric() or column.dtype == pl.Null:
        column = column.cast(pl.Float64).fill_nan(None)
        return column.set(column.is_infinite().fill_null(False), None)
    return None  # lists, structs, binary: nothing that a table of stays should hold


def _patients(
    keys: pl.Series, features: pl.DataFrame, label: NDArray[Any], years: NDArray[np.float64] | None
) -> NDArray[np.int64]:
    """(rows,) the numbers of the patients."""
    return patient_numbers(keys, content_of(features, label, years))


def _years(column: pl.Series, name: str) -> NDArray[np.float64]:
    """Dates as years with fraction; numbers as they are. A gap takes the mean of the column."""
    if column.dtype.is_temporal():
        date = column.cast(pl.Date)
        first = date.dt.truncate("1y")
        length = 365 + date.dt.is_leap_year().cast(pl.Int32)
        years = date.dt.year() + (date - first).dt.total_days() / length
    else:
        years = column.cast(pl.Float64, strict=False)
        if years.null_count() > column.null_count():
            raise RequestError(
                f"the time column {name!r} holds text that is neither a date nor a number; "
                "fix it or leave time out"
            )
    if years.null_count() == len(years):
        raise RequestError(f"the time column {name!r} has no values; leave time out")
    return years.fill_null(years.mean()).to_numpy()


def _eras(frame: pl.DataFrame, roles: Roles) -> NDArray[np.int16]:
    """(rows,) the window of every row: the order of a column's values, or the time column cut evenly."""
    assert roles.eras is not None
    if roles.eras not in frame.columns and roles.eras.isdigit():
        count = int(roles.eras)
        if roles.time is None:
            raise RequestError(f"eras={count} cuts the time column into windows; name the time column")
        if count < 2:
            raise RequestError(f"eras={count}: a change needs at least 2 windows")
        years = _years(_column(frame, roles.time, "time"), roles.time)
        # Windows of equal numbers of rows; rows of one moment stay together.
        cuts = np.quantile(years, np.arange(1, count) / count)
        code = np.searchsorted(cuts, years, side="right")
    else:
        column = _column(frame, roles.eras, "eras")
        if column.null_count():
            raise RequestError(f"eras={roles.eras}: no value in {column.null_count()} row(s); fill them in")
        code = np.unique(column.to_numpy(), return_inverse=True)[1]
    if len(np.unique(code)) != code.max() + 1 or code.max() == 0:
        raise RequestError(f"eras={roles.eras}: the rows fall into {len(np.unique(code))} window(s)")
    if code.max() > 1000:
        raise RequestError(f"eras={roles.eras}: {code.max() + 1} windows; a window needs many rows")
    return code.astype(np.int16)


def _group_of(
    column: pl.Series, centers_of: NDArray[np.str_], centers: tuple[str, ...], name: str
) -> tuple[str, ...]:
    """One group per center; a center in two groups is an error."""
    groups: dict[str, str] = {}
    pairs = (
        pl.DataFrame({"c": centers_of, "g": column.cast(pl.String).fill_null("(none)")})
        .unique()
        .sort("c", "g")
    )
    for center, group in pairs.iter_rows():
        if center in groups:
            raise RequestError(
                f"group={name}: center {center!r} is in the groups {groups[center]!r} and {group!r}; "
                "a center must lie in one group"
            )
        groups[center] = group
    return tuple(groups[c] for c in centers)


def _descriptors(features: pl.DataFrame) -> tuple[str, ...]:
    """The Charlson columns where there are any, else the first twelve binary features."""
    charlson = tuple(name for name in features.columns if name.startswith("cci_"))
    if charlson:
        return charlson
    binary = [
        c.name
        for c in features.get_columns()
        if c.dtype == pl.Boolean
        or (c.dtype.is_numeric() and set(c.drop_nulls().unique().to_list()) <= {0, 1})
    ]
    return tuple(binary[:12])
