"""From a table to a federation: a file or frame with a label and a center column, checked and repaired.

Every rule is stated, and what it did stands in the federation's ``notes``. The label, and which of its values
is the event: :mod:`abps.data.outcome`; cells meant as numbers: :mod:`abps.data.repairs`; columns that are not
learned from: :mod:`abps.data.screening`, and those without two values. A row without a label is an error, not
a silent loss. A center takes part if it has at least ``min_stays`` rows and three of each class (one for each
split). A hospital reads its own table as a federation of one, in the terms of the study's codebook.
"""

import shlex
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core.errors import DataWarning, RequestError, nearest
from abps.data.codebook import Codebook, is_binary
from abps.data.federation import (
    BUILTIN,
    ColumnCheck,
    Federation,
    LeftOut,
    TableCheck,
    builtin_table,
    is_builtin,
    warn_about,
)
from abps.data.harmonise import read_harmonised
from abps.data.outcome import FEWEST, EncodedLabel, align_label, encode_label, require_complete
from abps.data.reading import GAPS, RawTable, column_of, frame_of, free_name, has_parts, stack
from abps.data.repairs import Repair, RepairResult, merge_spellings, not_a_date, repair_column, to_levels
from abps.data.roles import RoleOptions, Roles, completed, normalise
from abps.data.screening import (
    ColumnFinding,
    FindingKind,
    center_warnings,
    duplicates,
    screen,
    suggest_patient,
)
from abps.data.split import content_of, patient_numbers

#: The smallest center that takes part, unless the user says otherwise.
MIN_STAYS = 50

#: Positives and negatives that a center needs, so that each split can have one.
MIN_CLASS = FEWEST

#: The share of rows that must be duplicates before they are removed; fewer change nothing, and stay.
MANY_COPIES = 0.01

#: The share of rows in centers that are left out from which on people are warned.
MANY_LEFT_OUT = 0.1


def read_table(
    path: str | Path,
    label: str = "",
    center: str = "",
    min_stays: int = MIN_STAYS,
    **more: Unpack[RoleOptions],
) -> Federation:
    """A federation from a CSV, Excel or Parquet file.

    Roles that are not given are those that a file of ``abps cohort`` or ``abps partition`` carries.
    more: patient, time, group, drop, keep, positive, outcome, duration (see :class:`Roles`).
    """
    if not isinstance(path, str | Path):
        raise RequestError(f"read_table reads files, not a {type(path).__name__}; use abps.federation")
    return load_file(Path(path), Roles.of(label, center, **more), min_stays)


def load(data: str, roles: Roles | None = None, min_stays: int | None = None) -> Federation:
    """The federation that a name means: a built-in one, or a file with its roles."""
    if is_builtin(data):
        frame, own = builtin_table(data)
        given = {} if roles is None else {k: v for k, v in vars(roles).items() if v}
        # The built-in federations are generated: their small centers are meant to be there.
        least = MIN_CLASS if min_stays is None else min_stays
        made = federate(frame, replace(own, **given), data, least)
        warn_about(made.notes)
        return replace(made, in_order=True)
    path = Path(data)
    if not path.exists() and path.suffix not in (".csv", ".parquet", ".gz", ".tsv", ".txt", ".xlsx", ".xls"):
        raise RequestError(
            f"{data}: no such file, and no built-in federation of that name{nearest(data, BUILTIN)}; "
            f"built in are {', '.join(BUILTIN)}"
        )
    return load_file(path, roles or Roles("", ""), MIN_STAYS if min_stays is None else min_stays)


def load_file(path: Path, roles: Roles, min_stays: int = MIN_STAYS) -> Federation:
    raw = read_harmonised(path)
    roles = completed(path, roles)
    if not roles.label or not roles.center:
        lacking = "center=COL" if roles.label else "label=COL" if roles.center else "label=COL and center=COL"
        shown = ", ".join(raw.frame.columns[:12]) + (", …" if raw.frame.width > 12 else "")
        raise RequestError(f"{path}: name its columns with {lacking}; the table has {shown}")
    return checked(raw, roles, path.stem, min_stays)


@dataclass(frozen=True, eq=False)
class _Repaired:
    """A table with its roles as it spells them, after repairs, and its label.  doubts: sentences."""

    roles: Roles
    frame: pl.DataFrame
    label: EncodedLabel
    repairs: tuple[Repair, ...]
    doubts: tuple[str, ...]

    @property
    def rest(self) -> pl.DataFrame:
        """The columns without a role."""
        return self.frame.drop(role_columns(self.frame, self.roles))

    def findings(self) -> list[ColumnFinding]:
        return screen(self.rest, self.label.outcome.events(self.label.values).astype(np.int8))


def _repaired(raw: RawTable, roles: Roles) -> _Repaired:
    roles = resolve(raw.frame, roles)
    frame, repairs, doubts = repair_table(raw.frame, roles)
    label = encode_label(frame, roles, raw.first_line)
    if roles.center:
        require_complete(frame[roles.center], "center", raw.first_line)
    doubt = [label.doubt] if label.doubt else []
    return _Repaired(roles, frame, label, tuple(repairs), (*raw.warnings, *doubt, *doubts))


def checked(raw: RawTable, roles: Roles, name: str, min_stays: int = MIN_STAYS) -> Federation:
    """The federation in somebody's table: repaired, screened for columns that must not be learned from."""
    table = _repaired(raw, roles)
    roles, frame, findings = table.roles, table.frame, table.findings()
    alike = duplicates(frame.drop(f.column for f in findings if f.kind is FindingKind.IDENTIFIER))
    removed = alike & (alike.sum() > MANY_COPIES * frame.height)
    kept, label = frame.filter(pl.Series(~removed)), replace(table.label, values=table.label.values[~removed])
    excluded = {
        f.column: f"{f.sentence}; keep={shlex.quote(f.column)} uses it"
        for f in findings
        if f.excluded and f.column not in roles.keep
    }
    federation = _assemble(kept, roles, label, name, min_stays, excluded)
    warnings = [
        f"{f.column!r}: {f.sentence}{_action(f, roles)}"
        for f in findings
        if f.kind is not FindingKind.IDENTIFIER
    ]
    patient = None if roles.patient else suggest_patient(table.rest)
    if patient is not None:
        warnings.append(
            f"{patient[0]!r}: {patient[1]:,} patients in {frame.height:,} rows; "
            f"patient={shlex.quote(patient[0])} keeps the rows of a patient in one split"
        )
    if alike.any():
        done = "removed" if removed.any() else "kept"
        warnings.append(f"{int(alike.sum())} of {frame.height} rows are exact duplicates; {done}")
    assert federation.notes is not None
    warnings += federation.notes.warnings
    lost, many = sum(o.rows for o in federation.left_out), len(federation.left_out)
    if lost > MANY_LEFT_OUT * kept.height:
        share = f"({lost:,} of {kept.height:,} rows) take no part"
        warnings.append(f"{many} of {many + federation.size} centers {share}")
    notes = replace(
        federation.notes,
        form=raw.form,
        rows=frame.height,
        copies=int(removed.sum()),
        repairs=table.repairs,
        findings=tuple(findings),
        warnings=(*table.doubts, *warnings),
        patient=patient[0] if patient else "",
    )
    return replace(federation, notes=notes)


def _action(finding: ColumnFinding, roles: Roles) -> str:
    if finding.column in roles.keep:
        return "; used, as requested"
    name = shlex.quote(finding.column)
    if finding.kind is FindingKind.DATE:
        return f"; not used (time={name} makes it the time of the stays, keep={name} a predictor)"
    return f"; not used (keep={name} uses it)" if finding.excluded else ""


def repair_table(frame: pl.DataFrame, roles: Roles) -> tuple[pl.DataFrame, list[Repair], list[str]]:
    """A table after the repairs (centers and groups: of spelling only), and what remains doubtful."""
    columns: list[pl.Series] = []
    repairs: list[Repair] = []
    doubts: list[str] = []
    other = {*role_columns(frame, roles)} - {roles.time}
    for column in frame.get_columns():
        if column.name in (roles.center, roles.group):
            result = merge_spellings(column)
        elif column.name in other:
            result = RepairResult(column)
        else:
            result = repair_column(column)
        columns.append(result.values)
        repairs += result.repairs
        doubts += result.doubts
    return pl.DataFrame(columns), repairs, doubts


def role_columns(frame: pl.DataFrame, roles: Roles) -> list[str]:
    """The columns of a table that have a role or are dropped, and so are no features."""
    given = (*roles.columns().values(), *roles.drop)
    return [name for name in dict.fromkeys(given) if name in frame.columns]


def read_frame(path: Path) -> pl.DataFrame:
    return read_harmonised(path).frame


def find_column(frame: pl.DataFrame, name: str, role: str) -> str:
    """The column that a name means: itself, or the one that differs in case, accents or separators only."""
    if name in frame.columns:
        return name
    same = [column for column in frame.columns if normalise(column) == normalise(name)]
    if len(same) == 1:
        return same[0]
    lower = {column.lower(): column for column in frame.columns}
    close = nearest(name.lower(), lower)
    for low, column in lower.items():
        close = close.replace(repr(low), repr(column))
    raise RequestError(
        f"there is no column {name!r} for {role}{close}; "
        f"the table has {', '.join(frame.columns[:12])}{', …' if frame.width > 12 else ''}"
    )


def resolve(frame: pl.DataFrame, roles: Roles) -> Roles:
    """The roles with every column named as the table spells it; a sentence where there is none."""
    found: dict[str, Any] = {role: find_column(frame, name, role) for role, name in roles.columns().items()}
    for role in ("drop", "keep"):
        found[role] = tuple(find_column(frame, name, role) for name in getattr(roles, role))
    return replace(roles, **found)


def federate(frame: pl.DataFrame, roles: Roles, name: str, min_stays: int = MIN_STAYS) -> Federation:
    """A frame with its roles as a federation, its cells as they are: no repairs, no screening."""
    roles = resolve(frame, roles)
    return _assemble(frame, roles, encode_label(frame, roles), name, min_stays, {})


def _assemble(
    frame: pl.DataFrame,
    roles: Roles,
    label: EncodedLabel,
    name: str,
    min_stays: int,
    excluded: Mapping[str, str],
) -> Federation:
    """The federation of a frame with its label encoded.  excluded: columns besides, and why they are."""
    if min_stays < 1:
        raise RequestError(f"min_stays={min_stays}: choose at least 1")
    centers_of = center_names(frame[roles.center])
    kept, left_out = _who_takes_part(centers_of, label, min_stays)
    centers = tuple(sorted(kept))
    if len(centers) < 2:
        raise RequestError(_too_few_centers(name, roles.center, centers, left_out))
    whole, chosen = frame, np.isin(centers_of, centers)
    frame, centers_of = frame.filter(pl.Series(chosen)), centers_of[chosen]
    groups = None if roles.group is None else _group_of(frame[roles.group], centers_of, centers, roles.group)
    features, reasons = usable_features(frame.drop([*role_columns(frame, roles), *excluded], strict=False))
    reasons |= dict(excluded)
    if features.width == 0:
        why = "; ".join(f"{c!r}: {r}" for c, r in list(reasons.items())[:3])
        raise RequestError(
            f"{name}: no column is left to learn from{f' ({why})' if why else ''}; check drop and the table"
        )
    owner = np.searchsorted(np.array(centers), centers_of).astype(np.int32)
    noted = {
        "rows": whole.height,
        "events": label.events,
        "columns": _column_checks(whole, roles, features, reasons),
        "centers": centers,
        "left_out": tuple(left_out),
        "warnings": (*_alike(centers), *center_warnings(features, owner, centers)),
    }
    label = replace(label, values=label.values[chosen])
    made = _federation(frame, roles, label, features, reasons, name, **noted)
    # What is not learned from and shows neither identity nor outcome is kept for subgroups.
    shown = {roles.label, roles.duration, roles.center, roles.patient, roles.time, *features.columns}
    aside = [column for column in frame.columns if column not in shown]
    return replace(
        made,
        center=owner,
        centers=centers,
        groups=groups,
        left_out=tuple(left_out),
        aside=frame.select(aside) if aside else None,
    )


def _federation(
    frame: pl.DataFrame,
    roles: Roles,
    label: EncodedLabel,
    features: pl.DataFrame,
    reasons: Mapping[str, str],
    name: str,
    **noted: Any,
) -> Federation:
    """A federation of one center, called as the federation is.  reasons: why columns are no features.  noted:
    more of its notes."""
    years = None if roles.time is None else _years(frame[roles.time], roles.time)
    patient = None
    if roles.patient is not None:
        patient = patient_numbers(frame[roles.patient], content_of(features, label.values, years))
    notes = TableCheck(
        name=name,
        form="a table in memory",
        rows=frame.height,
        copies=0,
        label=roles.label,
        positive=label.positive,
        negative=label.negative,
        events=label.events,
        columns=_column_checks(frame, roles, features, reasons),
        centers=(name,),
    )
    return Federation(
        name=name,
        features=features,
        label=label.values,
        center=np.zeros(frame.height, dtype=np.int32),
        centers=(name,),
        patient=patient,
        time=years,
        descriptors=_descriptors(features),
        outcome=label.outcome,
        notes=replace(notes, **noted),
    )


def _too_few_centers(name: str, column: str, able: Sequence[str], left_out: Sequence[LeftOut]) -> str:
    many, other = len(able) + len(left_out), "or name another column with center=COL"
    if many == 1:
        one = able[0] if able else left_out[0].center
        return (
            f"{name}: the column {column!r} names one hospital only: {one!r}; a federation needs two; add "
            f"the rows of other hospitals, {other}"
        )
    largest = sorted(left_out, key=lambda o: -o.rows)[:3]
    reasons = "; ".join(f"{o.center!r}: {o.reason}" for o in largest)
    return (
        f"{name}: {len(able)} of {many} centers can take part and a federation needs two (the largest left "
        f"out: {reasons}); lower min_stays=N, {other}"
    )


def _alike(centers: Sequence[str]) -> list[str]:
    """A warning for hospitals whose names differ in accents, case or punctuation only."""
    same: dict[str, list[str]] = {}
    for center in centers:
        same.setdefault(normalise(center), []).append(center)
    return [
        f"the hospitals {' and '.join(map(repr, names))} differ in accents or punctuation only; if they are "
        "one, write them alike"
        for key, names in same.items()
        if key and len(names) > 1
    ]


def _column_checks(
    frame: pl.DataFrame, roles: Roles, features: pl.DataFrame, reasons: Mapping[str, str]
) -> tuple[ColumnCheck, ...]:
    role_of = dict.fromkeys(roles.drop, "dropped")
    role_of |= {name: role for role, name in reversed(roles.columns().items())}
    checks = []
    for column in frame.get_columns():
        name, used = column.name, column.name in features.columns
        role = role_of.get(name, "feature")
        kept = role == "feature" and used and name in roles.keep
        why = "kept by request" if kept else reasons.get(name, "")
        kind = "date" if column.dtype.is_temporal() else _type_name(features[name] if used else column)
        missing = round(column.null_count() / max(1, len(column)), 6)
        checks.append(ColumnCheck(name, kind, role, used, why, missing))
    return tuple(checks)


def _type_name(column: pl.Series) -> str:
    if column.dtype == pl.Null or (column.dtype.is_numeric() and column.null_count() == len(column)):
        return "empty"
    if is_binary(column):
        return "yes/no"
    if column.dtype.is_numeric():
        return "number"
    return "category" if column.dtype in (pl.String, pl.Categorical, pl.Enum) else "other"


def center_names(column: pl.Series) -> NDArray[np.str_]:
    require_complete(column, "center")
    text = column.cast(pl.String).str.strip_chars()
    bad = text.filter(text.str.contains(r"[\x00-\x1f\x7f]"))
    if len(bad):
        raise RequestError(
            f"the center {bad[0]!r} in column {column.name!r} contains a line break or control character; "
            "rename it"
        )
    if (text == "").any():
        raise RequestError(f"the center column {column.name!r} has empty names; fill them in")
    return text.to_numpy().astype(np.str_)


def _who_takes_part(
    centers_of: NDArray[np.str_], label: EncodedLabel, min_stays: int
) -> tuple[list[str], list[LeftOut]]:
    """Names of the centers that can take part, and the others."""
    kept, left_out = [], []
    for name in np.unique(centers_of).tolist():
        mine = label.values[centers_of == name]
        few = f"fewer than {min_stays} rows ({len(mine)})" if len(mine) < min_stays else ""
        why_not = few or label.outcome.lacks(mine)
        if why_not:
            left_out.append(LeftOut(name, len(mine), why_not))
        else:
            kept.append(name)
    return kept, left_out


def usable_features(frame: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, str]]:
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
                f"the time column {name!r} holds {not_a_date(column)!r}, which is neither a date nor a "
                "number; correct it, or leave time out"
            )
    if years.null_count() == len(years):
        raise RequestError(f"the time column {name!r} has no values; leave time out")
    return years.fill_null(years.mean()).to_numpy()


def _group_of(
    column: pl.Series, centers_of: NDArray[np.str_], centers: tuple[str, ...], name: str
) -> tuple[str, ...]:
    groups: dict[str, str] = {}
    pairs = pl.DataFrame({"c": centers_of, "g": column.cast(pl.String).fill_null("(none)")})
    for center, group in pairs.unique().sort("c", "g").iter_rows():
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
    return tuple(c.name for c in features.get_columns() if is_binary(c))[:12]


# --- data in memory ---------------------------------------------------------------------------------

#: Roles that may be given as an array instead of the name of a column.
ARRAYS = ("label", "center", "patient", "time", "group", "duration")


def federation(
    data: Any,
    label: Any = None,
    center: Any = None,
    *,
    patient: Any = None,
    feature_names: Sequence[str] | None = None,
    name: str = "table",
    min_stays: int = MIN_STAYS,
    **more: Any,
) -> Federation:
    """A federation from data in memory.

    data: a pandas or polars frame, a PyArrow table, a mapping of columns, a NumPy array (rows, features), a
    mapping from each center's name to its frame, or the path of a file.
    label, center, patient: the name of a column, or an array (rows,); no center for one frame per center.
    feature_names: the columns of an array.
    more: time, group, duration (names or arrays), drop, keep, positive, outcome, as in
    :func:`abps.read_table`.

    >>> rng = np.random.default_rng(0)
    >>> X, hospital = rng.normal(size=(300, 2)), np.repeat(["a", "b", "c"], 100)
    >>> federation(X, label=X[:, 0] + rng.normal(size=300) > 0, center=hospital, name="toy")
    <Federation toy: 3 centers, 300 stays, 2 features, 46.7 % positive>
    """
    if isinstance(data, str | Path):
        if not isinstance(label, str | None) or not isinstance(center, str | None):
            raise RequestError(f"{data}: name the columns label= and center= of a file")
        return read_table(data, label or "", center or "", min_stays, patient=patient, **more)
    if isinstance(data, Mapping) and has_parts(data):
        if center is not None:
            raise RequestError("one frame per center: the names are the centers; leave center out")
        frame, center = stack(data, feature_names)
    else:
        frame = frame_of(data, feature_names)
    given: dict[str, Any] = {"label": label, "center": center, "patient": patient, **more}
    for role in more:
        if role not in RoleOptions.__annotations__:
            raise RequestError(f"there is no argument {role!r}{nearest(role, RoleOptions.__annotations__)}")
    for role in ARRAYS:
        value = given.get(role)
        if value is not None and not isinstance(value, str):
            series = column_of(free_name(role, frame.columns), value)
            if len(series) != frame.height:
                counts = f"{len(series)} values for {frame.height} rows"
                raise RequestError(f"{role} has {counts}; give one value per row")
            frame, given[role] = frame.with_columns(series), series.name
    for role in ("label", "center"):
        if given[role] is None:
            raise RequestError(
                f"{name}: give {role}= as the name of a column or as an array with one value per row"
            )
    if frame.height == 0:
        raise RequestError(f"{name} has no rows; give a table with rows")
    made = checked(RawTable(frame, "a table in memory"), Roles.of(**given), name, min_stays)
    warn_about(made.notes)
    return made


def check(data: Any, label: Any = None, center: Any = None, **more: Any) -> TableCheck:
    """What is in a table, what will be used and what looks wrong; arguments as in :func:`federation`.

    >>> rng = np.random.default_rng(0)
    >>> stays = {"died": rng.integers(0, 2, 300), "age": rng.normal(60, 9, 300), "id": np.arange(300)}
    >>> found = check({**stays, "hospital": ["a", "b", "c"] * 100}, label="died", center="hospital")
    >>> len(found.centers), [column.name for column in found.unused]
    (3, ['id'])
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        notes = federation(data, label, center, **more).notes
    assert notes is not None
    return notes


# --- one hospital's own table -------------------------------------------------------------------------


def own_outcome(path: str | Path, label: str, **more: Unpack[RoleOptions]) -> EncodedLabel:
    """The outcome of one center's own table: what it is, and which of its words are the event."""
    return _repaired(read_harmonised(Path(path)), Roles.of(label, "", **more)).label


def own_table(
    path: str | Path, site: str, label: str, book: Codebook | None = None, **more: Unpack[RoleOptions]
) -> Federation:
    """One center's own table, read at that center: a federation of one, in the terms of the codebook."""
    roles = Roles.of(label, "", **more)
    if roles.outcome is None and book is not None and not book.outcome.binary:
        roles = replace(roles, outcome=book.outcome.kind)
    raw = read_harmonised(Path(path))
    table = _repaired(raw, roles)
    roles, found = table.roles, table.label
    if book is not None:
        found = align_label(found, book.outcome, site, roles.label)
        _same_event(found, book, site, roles.label)
    lacks = found.outcome.lacks(found.values)
    if lacks:
        raise RequestError(f"{path}: {lacks}")
    if book is not None and book.time and roles.time is None:
        raise RequestError(f"{site}: the codebook asks for a time column; name it with time")
    if book is None:
        excluded = {f.column: f.sentence for f in table.findings() if f.excluded}
        features, reasons = usable_features(table.rest.drop(list(excluded)))
        reasons |= excluded
    else:
        features = as_agreed(table.rest, raw.frame, book, site)
        reasons = dict.fromkeys(table.rest.columns, "not in the codebook")
        roles = roles if book.time else replace(roles, time=None)
    if features.width == 0:
        raise RequestError(f"{path}: no column is left to learn from; check drop and the table")
    noted = {"form": raw.form, "repairs": table.repairs, "warnings": table.doubts}
    made = _federation(table.frame, roles, found, features, reasons, site, **noted)
    return made if book is None else replace(made, descriptors=book.descriptors)


def _same_event(outcome: EncodedLabel, book: Codebook, site: str, label: str) -> None:
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


def as_agreed(repaired: pl.DataFrame, raw: pl.DataFrame, book: Codebook, owner: str) -> pl.DataFrame:
    """The columns that a codebook asks for, as it asks for them: levels by its own spelling."""
    columns = []
    for source in book.sources:
        if source not in repaired.columns:
            raise RequestError(
                f"{owner}: the codebook asks for the column {source!r}, which the table does not have"
                f"{nearest(source, repaired.columns)}; add it (empty where unknown) or agree on another "
                "codebook"
            )
        levels = [c.level for c in book.columns if (c.source, c.kind) == (source, "level")]
        column = to_levels(raw[source], levels) if levels else as_feature(repaired[source])
        if not levels and (column is None or (column.dtype == pl.String and len(column.drop_nulls()))):
            raise RequestError(
                f"{owner}: the column {source!r} holds text where the codebook asks for a number; "
                "fix the table or agree on another codebook"
            )
        assert column is not None
        columns.append(column.cast(pl.String if levels else pl.Float64))
    return pl.DataFrame(columns)
