"""Bring your own table: a CSV or Parquet file with a label and a center column becomes a federation.

Every rule is stated and every center left out is listed with its reason:

* the label must have two values (0/1, true/false, yes/no, or any two: the larger, or the later in the
  alphabet, is the positive one); a row without a label is an error, not a silent loss;
* a column of numbers is a number, of true/false or 0/1 a binary, of dates a number of days, of text a
  category; text in which every value is a number is a number;
* a column without any value, with one value only, or a text column in which nearly every row is
  different (a name, an identifier) carries nothing to learn and is set aside;
* a center takes part if it has at least ``min_stays`` rows and three of each class (one for each split).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core.errors import RequestError, nearest
from abps.data.codebook import Codebook, typed
from abps.data.federation import Federation, LeftOut
from abps.data.split import content_of, patient_numbers
from abps.data.synthetic.builtin import Roles, builtin_table, is_builtin

#: The smallest center that takes part, unless the user says otherwise.
MIN_STAYS = 50

#: Positives and negatives that a center needs, so that each split can have one.
MIN_CLASS = 3

_TRUE = {"1", "1.0", "true", "t", "yes", "y", "positive", "pos", "dead", "died"}
_FALSE = {"0", "0.0", "false", "f", "no", "n", "negative", "neg", "alive", "survived"}
_GAPS = ["", "NA", "N/A", "na", "n/a", "NaN", "nan", "NULL", "null", "None", "?"]


def read_table(
    path: str | Path,
    label: str,
    center: str,
    patient: str | None = None,
    time: str | None = None,
    group: str | None = None,
    drop: tuple[str, ...] = (),
    min_stays: int = MIN_STAYS,
    eras: str | None = None,
    every: int | None = None,
) -> Federation:
    """A federation from a CSV or Parquet file."""
    roles = Roles(label, center, patient, time, group, tuple(drop), eras, every)
    return federate(read_frame(Path(path)), roles, Path(path).stem, min_stays)


def load(data: str, roles: Roles | None = None, min_stays: int | None = None) -> Federation:
    """The federation that a ``--data`` argument means: a built-in one, or a file with its roles."""
    if is_builtin(data):
        frame, own = builtin_table(data)
        given = {} if roles is None else {k: v for k, v in vars(roles).items() if v}
        # The built-in federations are made: their small centers are meant to be there.
        least = MIN_CLASS if min_stays is None else min_stays
        return replace(federate(frame, replace(own, **given), data, least), in_order=True)
    path = Path(data)
    if not path.exists() and path.suffix not in (".csv", ".parquet", ".gz", ".tsv"):
        from abps.data.synthetic.builtin import BUILTIN

        raise RequestError(
            f"--data {data}: no such file, and no built-in federation of that name{nearest(data, BUILTIN)}; "
            f"built in are {', '.join(BUILTIN)}"
        )
    if roles is None or not roles.label or not roles.center:
        raise RequestError(f"--data {data}: name its columns with --label COL and --center COL")
    return federate(read_frame(path), roles, path.stem, MIN_STAYS if min_stays is None else min_stays)


def read_frame(path: Path) -> pl.DataFrame:
    """A CSV, TSV or Parquet file as a frame."""
    if not path.exists():
        raise RequestError(f"{path}: no such file; check --data")
    if path.is_dir():
        raise RequestError(f"{path} is a folder; give a CSV or Parquet file")
    if path.stat().st_size == 0:
        raise RequestError(f"{path} is empty; give a table with a header and rows")
    try:
        if path.suffix == ".parquet":
            frame = pl.read_parquet(path)
        else:
            separator = "\t" if ".tsv" in path.suffixes else ","
            header = pl.read_csv(path, separator=separator, has_header=False, n_rows=1, infer_schema=False)
            _no_twins([str(v) for v in header.row(0)], path)
            frame = pl.read_csv(
                path,
                separator=separator,
                infer_schema_length=None,
                null_values=_GAPS,
                try_parse_dates=True,
                encoding="utf8",
            )
    except RequestError:
        raise
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RequestError(
            f"{path} cannot be read as a table ({first}); give a UTF-8 CSV or a Parquet file"
        ) from error
    if frame.height == 0:
        raise RequestError(f"{path} has a header and no rows; give a table with rows")
    return frame


def _no_twins(names: list[str], path: Path) -> None:
    twins = sorted({name for name in names if names.count(name) > 1})
    if twins:
        raise RequestError(
            f"{path}: the column name {twins[0]!r} occurs {names.count(twins[0])} times; rename one"
        )


def _column(frame: pl.DataFrame, name: str, role: str) -> pl.Series:
    if name not in frame.columns:
        raise RequestError(
            f"there is no column {name!r} for --{role}{nearest(name, frame.columns)}; "
            f"the table has {', '.join(frame.columns[:12])}{', …' if frame.width > 12 else ''}"
        )
    return frame[name]


def federate(frame: pl.DataFrame, roles: Roles, name: str, min_stays: int = MIN_STAYS) -> Federation:
    """A frame with its roles as a federation."""
    label = binary_label(_column(frame, roles.label, "label"), roles.label)
    centers_of = center_names(_column(frame, roles.center, "center"), roles.center)
    used = [roles.label, roles.center]
    if roles.every is not None and (roles.every < 1 or roles.eras is None):
        why = "a window lasts at least 1 round" if roles.every < 1 else "name the windows with --eras"
        raise RequestError(f"--every {roles.every}: {why}")
    era = None if roles.eras is None else _eras(frame, roles)
    in_column = roles.eras if roles.eras in frame.columns else None
    for column, role in (
        (roles.patient, "patient"),
        (roles.time, "time"),
        (roles.group, "group"),
        (in_column, "eras"),
    ):
        if column is not None:
            _column(frame, column, role)
            used.append(column)
    for column in roles.drop:
        _column(frame, column, "drop")
    if min_stays < 1:
        raise RequestError(f"--min-stays {min_stays}: choose at least 1")
    kept, left_out = _who_takes_part(centers_of, label, min_stays, era)
    centers = tuple(sorted(kept))
    if len(centers) < 2:
        worst = "; ".join(f"{o.center!r}: {o.reason}" for o in left_out[:3])
        raise RequestError(
            f"{name}: {len(centers)} center(s) can take part and a federation needs 2 ({worst}); "
            "choose another --center column or a smaller --min-stays"
        )
    chosen = np.isin(centers_of, centers)
    frame = frame.filter(pl.Series(chosen))
    centers_of, label = centers_of[chosen], label[chosen]
    era = None if era is None else era[chosen]
    groups = None if roles.group is None else _group_of(frame[roles.group], centers_of, centers, roles.group)
    features = feature_columns(frame.drop([*dict.fromkeys(used + list(roles.drop))]))
    if features.width == 0:
        raise RequestError(f"{name}: no column is left to learn from; check --drop and the table")
    years = None if roles.time is None else _years(frame[roles.time], roles.time)
    return Federation(
        name=name,
        features=features,
        label=label,
        center=np.searchsorted(np.array(centers), centers_of).astype(np.int32),
        centers=centers,
        patient=None if roles.patient is None else _patients(frame[roles.patient], features, label, years),
        time=years,
        groups=groups,
        descriptors=_descriptors(features),
        left_out=tuple(left_out),
        era=era,
        every=roles.every,
    )


def own_table(
    path: str | Path,
    site: str,
    label: str,
    patient: str | None = None,
    time: str | None = None,
    drop: tuple[str, ...] = (),
    book: Codebook | None = None,
) -> Federation:
    """One center's own table, read at that center: a federation of one.

    With a codebook the features are those that it asks for; without, all that can be learned from.
    """
    frame = read_frame(Path(path))
    values = binary_label(_column(frame, label, "label"), label)
    used = [label, *(column for column in (patient, time) if column is not None)]
    for column, role in ((patient, "patient"), (time, "time"), *((d, "drop") for d in drop)):
        if column is not None:
            _column(frame, column, role)
    if min(values.sum(), len(values) - values.sum()) < MIN_CLASS:
        raise RequestError(
            f"{path}: {int(values.sum())} positive of {len(values)} rows; "
            f"a center needs {MIN_CLASS} of each class"
        )
    if book is not None and book.time and time is None:
        raise RequestError(f"{site}: the codebook asks for a time column; name it with --time COL")
    rest = frame.drop([*dict.fromkeys([*used, *drop])])
    if book is None:
        features = feature_columns(rest)
    else:
        known = {column.name: as_feature(column) for column in rest.get_columns()}
        features = typed({name: column for name, column in known.items() if column is not None}, book, site)
    if features.width == 0:
        raise RequestError(f"{path}: no column is left to learn from; check --drop and the table")
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
    )


def binary_label(column: pl.Series, name: str) -> NDArray[np.int8]:
    """(rows,) 0 or 1 from a column with two values."""
    missing = column.is_null()
    if column.dtype.is_float():
        missing = missing | column.is_nan()
    if missing.any():
        first = int(missing.arg_max() or 0)
        raise RequestError(
            f"the label {name!r} is missing in {int(missing.sum())} row(s), first in line {first + 2}; "
            "remove these rows or fill them in"
        )
    text = [str(v).strip().lower() for v in column.unique().to_list()]
    values = sorted(dict.fromkeys(text))
    if len(values) != 2:
        shown = ", ".join(repr(v) for v in values[:5])
        raise RequestError(
            f"the label {name!r} has {len(values)} value(s) ({shown}{', …' if len(values) > 5 else ''}); "
            "a label must have exactly two"
        )
    if set(values) <= _TRUE | _FALSE and len(set(values) & _TRUE) == 1:
        positive = next(v for v in values if v in _TRUE)
    else:
        try:
            positive = max(values, key=float)
        except ValueError:
            positive = values[1]
    lowered = column.cast(pl.String).str.strip_chars().str.to_lowercase()
    return (lowered == positive).to_numpy().astype(np.int8)


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
    centers_of: NDArray[np.str_], label: NDArray[np.int8], min_stays: int, era: NDArray[np.int16] | None
) -> tuple[list[str], list[LeftOut]]:
    """Names of the centers that can take part (with windows of time: in each of them), and the others."""
    if era is not None:
        could: list[list[str]] = []
        why: dict[str, LeftOut] = {}
        for e in range(int(era.max()) + 1):
            rows = era == e
            kept, left = _who_takes_part(centers_of[rows], label[rows], min_stays, None)
            could.append(kept)
            absent = set(np.unique(centers_of).tolist()) - set(kept) - {o.center for o in left}
            left += [LeftOut(name, 0, "no row") for name in sorted(absent)]
            for each in left:
                why.setdefault(each.center, replace(each, reason=f"{each.reason} in window {e + 1}"))
        everywhere = set.intersection(*map(set, could))
        return sorted(everywhere), [why[name] for name in sorted(why)]
    names, code = np.unique(centers_of, return_inverse=True)
    rows, positives = np.bincount(code), np.bincount(code, weights=label).astype(int)
    kept, left_out = [], []
    for name, n, p in zip(names.tolist(), rows.tolist(), positives.tolist()):
        if n < min_stays:
            left_out.append(LeftOut(name, n, f"{n} row(s), fewer than {min_stays}"))
        elif min(p, n - p) < MIN_CLASS:
            rare = "positive" if p < n - p else "negative"
            left_out.append(
                LeftOut(
                    name,
                    n,
                    f"{min(p, n - p)} {rare} row(s), fewer than the {MIN_CLASS} that three splits need",
                )
            )
        else:
            kept.append(name)
    return kept, left_out


def feature_columns(frame: pl.DataFrame) -> pl.DataFrame:
    """The columns that can be learned from, as numbers, booleans or text."""
    columns = []
    for column in frame.get_columns():
        feature = as_feature(column)
        if feature is None or feature.drop_nulls().n_unique() < 2:
            continue
        if feature.dtype == pl.String and _is_identifier(feature):
            continue
        columns.append(feature)
    return pl.DataFrame(columns)


def as_feature(column: pl.Series) -> pl.Series | None:
    """A column as numbers, booleans or text with gaps as null; None if it is nothing of the kind."""
    if column.dtype.is_temporal():
        column = column.cast(pl.Date) if column.dtype != pl.Duration else column
        return column.to_physical().cast(pl.Float64)
    if column.dtype in (pl.String, pl.Categorical, pl.Enum):
        column = column.cast(pl.String).str.strip_chars()
        column = column.set(column.is_in(_GAPS), None)
        numbers = column.cast(pl.Float64, strict=False)
        return numbers if numbers.null_count() == column.null_count() else column
    if column.dtype == pl.Boolean:
        return column
    if column.dtype.is_numeric() or column.dtype == pl.Null:
        column = column.cast(pl.Float64).fill_nan(None)
        return column.set(column.is_infinite().fill_null(False), None)
    return None  # lists, structs, binary: nothing that a table of stays should hold


def _is_identifier(column: pl.Series) -> bool:
    known = column.drop_nulls()
    return known.n_unique() > 50 and known.n_unique() > 0.5 * len(known)


def _patients(
    keys: pl.Series, features: pl.DataFrame, label: NDArray[np.int8], years: NDArray[np.float64] | None
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
                "fix it or leave --time out"
            )
    if years.null_count() == len(years):
        raise RequestError(f"the time column {name!r} has no values; leave --time out")
    return years.fill_null(years.mean()).to_numpy()


def _eras(frame: pl.DataFrame, roles: Roles) -> NDArray[np.int16]:
    """(rows,) the window of every row: the order of a column's values, or the time column cut evenly."""
    assert roles.eras is not None
    if roles.eras not in frame.columns and roles.eras.isdigit():
        count = int(roles.eras)
        if roles.time is None:
            raise RequestError(f"--eras {count} cuts the time column into windows; name it with --time COL")
        if count < 2:
            raise RequestError(f"--eras {count}: a change needs at least 2 windows")
        years = _years(_column(frame, roles.time, "time"), roles.time)
        # Windows of equal numbers of rows; rows of one moment stay together.
        cuts = np.quantile(years, np.arange(1, count) / count)
        code = np.searchsorted(cuts, years, side="right")
    else:
        column = _column(frame, roles.eras, "eras")
        if column.null_count():
            raise RequestError(f"--eras {roles.eras}: no value in {column.null_count()} row(s); fill them in")
        code = np.unique(column.to_numpy(), return_inverse=True)[1]
    if len(np.unique(code)) != code.max() + 1 or code.max() == 0:
        raise RequestError(f"--eras {roles.eras}: the rows fall into {len(np.unique(code))} window(s)")
    if code.max() > 1000:
        raise RequestError(f"--eras {roles.eras}: {code.max() + 1} windows; a window needs many rows")
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
                f"--group {name}: center {center!r} is in the groups {groups[center]!r} and {group!r}; "
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
