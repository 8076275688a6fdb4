"""Federations from data in memory: pandas, polars, PyArrow, NumPy arrays, or one frame per center.

The same checks and repairs as for files (:mod:`abps.data.table`), which may be given too.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from abps.core.errors import DataWarning, RequestError, nearest
from abps.data.check import TableCheck, warn_about
from abps.data.federation import Federation
from abps.data.reading import RawTable
from abps.data.roles import RoleOptions, Roles
from abps.data.table import MIN_STAYS, checked, read_frame, read_table

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
    if isinstance(data, Mapping) and _has_parts(data):
        if center is not None:
            raise RequestError("one frame per center: the names are the centers; leave center out")
        frame, center = _stack(data, feature_names)
    else:
        frame = frame_of(data, feature_names)
    given: dict[str, Any] = {"label": label, "center": center, "patient": patient, **more}
    for role in more:
        if role not in RoleOptions.__annotations__:
            raise RequestError(f"there is no argument {role!r}{nearest(role, RoleOptions.__annotations__)}")
    for role in ARRAYS:
        value = given.get(role)
        if value is not None and not isinstance(value, str):
            frame, given[role] = _with_column(frame, role, value)
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


def _has_parts(data: Mapping[Any, Any]) -> bool:
    """Whether a mapping holds one table per center, and not one column per name."""
    first = next(iter(data.values()), None)
    return _is_frame(first) or getattr(first, "ndim", 1) == 2


def _is_pandas(data: Any) -> bool:
    return type(data).__module__.startswith("pandas.") and getattr(data, "ndim", 0) == 2


def _is_frame(data: Any) -> bool:
    """Whether this is a table of some library, and not a single column."""
    known = isinstance(data, pl.LazyFrame) or hasattr(data, "__arrow_c_stream__")
    return _is_pandas(data) or (known and not isinstance(data, pl.Series) and getattr(data, "ndim", 2) == 2)


def _stack(parts: Mapping[Any, Any], feature_names: Sequence[str] | None) -> tuple[pl.DataFrame, str]:
    """One frame of all centers' tables, and the name of the column with the centers."""
    frames = [frame_of(part, feature_names) for part in parts.values()]
    columns = frames[0].columns
    for center, frame in zip(parts, frames):
        odd = sorted({*frame.columns} ^ {*columns})
        if odd:
            raise RequestError(
                f"center {center!r}: the column {odd[0]!r} is not in every center's frame; add it (empty "
                "where unknown) or remove it"
            )
    column = _free("center", columns)
    whole = pl.concat(
        [frame.select(columns).with_columns(pl.lit(str(c)).alias(column)) for c, frame in zip(parts, frames)],
        how="vertical_relaxed",
    )
    return whole, column


def frame_of(data: Any, feature_names: Sequence[str] | None = None) -> pl.DataFrame:
    """Any table as a polars frame; a path is read."""
    if isinstance(data, str | Path):
        return read_frame(Path(data))
    if isinstance(data, pl.LazyFrame):
        return data.collect()
    if isinstance(data, pl.DataFrame):
        return data
    if isinstance(data, Mapping) or _is_pandas(data):
        return _from_columns({str(name): data[name] for name in data}, len(list(data)))
    if _is_frame(data):
        return pl.DataFrame(data)
    array = np.asarray(data)
    if array.ndim != 2 or (array.dtype == object and array.size == 0):
        raise RequestError(
            f"data of type {type(data).__name__} and shape {array.shape} is no table; give a frame, or an "
            "array with rows and columns"
        )
    names = [f"x{k + 1}" for k in range(array.shape[1])] if feature_names is None else list(feature_names)
    if len(names) != array.shape[1] or len(set(names)) != len(names):
        raise RequestError(
            f"feature_names has {len(set(names))} different names for {array.shape[1]} columns; give one each"
        )
    return _from_columns({name: array[:, k] for k, name in enumerate(names)}, len(names))


def _from_columns(columns: Mapping[str, Any], count: int) -> pl.DataFrame:
    if len(columns) < count:
        raise RequestError("two columns have the same name; rename one")
    made = [column_of(name, values) for name, values in columns.items()]
    sizes = {len(series) for series in made}
    if len(sizes) > 1:
        raise RequestError(
            f"the columns have different lengths ({min(sizes)} and {max(sizes)}); make them equal"
        )
    return pl.DataFrame(made)


def column_of(name: str, values: Any) -> pl.Series:
    """A column of any library; mixed types become text, and missing values of all kinds become null."""
    if isinstance(values, pl.Series):
        return values.alias(name)
    array = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
    if array.ndim != 1:
        raise RequestError(f"the column {name!r} has the shape {array.shape}; give one value per row")
    if array.dtype.kind in "biufM":
        series = pl.Series(name, np.ascontiguousarray(array))
        return series.fill_nan(None) if array.dtype.kind == "f" else series
    cells = [None if _is_missing(value) else value for value in array.tolist()]
    kinds = {type(value) for value in cells if value is not None}
    if len(kinds) > 1 and not kinds <= {int, float, bool}:
        cells = [None if value is None else str(value) for value in cells]
    try:
        return pl.Series(name, cells, strict=False)
    except (TypeError, ValueError, pl.exceptions.PolarsError):
        return pl.Series(name, [None if value is None else str(value) for value in cells])


def _is_missing(value: Any) -> bool:
    """None, NaN, pandas' NA and NaT."""
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")
        or (isinstance(value, float) and value != value)
    )


def _with_column(frame: pl.DataFrame, role: str, values: Any) -> tuple[pl.DataFrame, str]:
    """The frame with an array as a column, and the column's name."""
    series = column_of(_free(role, frame.columns), values)
    if len(series) != frame.height:
        raise RequestError(f"{role} has {len(series)} values for {frame.height} rows; give one value per row")
    return frame.with_columns(series), series.name


def _free(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "_"
    return name
