"""Label files of MEDS: who is to be predicted, when, and what came.

As written by ACES: ``subject_id``, ``prediction_time`` and one of ``boolean_value``, ``integer_value``,
``float_value``, ``categorical_value``. One Parquet or CSV file, or a folder of Parquet files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from abps.core.errors import RequestError, nearest

#: The columns of the format that hold a value, and the outcome that each is.
VALUES = {
    "boolean_value": "binary",
    "integer_value": "continuous",
    "float_value": "continuous",
    "categorical_value": "classes",
}


@dataclass(frozen=True, eq=False)
class Labels:
    """frame: patient, moment (without zone, UTC), value. outcome: binary, classes or continuous."""

    name: str
    frame: pl.DataFrame
    outcome: str
    about: str
    files: tuple[Path, ...] = ()


def read_labels(path: Path) -> Labels:
    """A label file. Rows without a value or a time stay in: they are the first exclusions of the flow."""
    path = Path(path)
    paths = sorted(path.glob("**/*.parquet")) if path.is_dir() else [path]
    if not paths or not all(p.is_file() for p in paths):
        raise RequestError(
            f"{path} is no label file; give a Parquet or CSV file, or a folder of Parquet files"
        )
    parts = []
    for each in paths:
        try:
            parts.append(
                pl.read_csv(each, try_parse_dates=True) if each.suffix == ".csv" else pl.read_parquet(each)
            )
        except (OSError, pl.exceptions.PolarsError):
            raise RequestError(f"{each} cannot be read as a table of labels; write it again") from None
    frames = [_checked(part, each) for part, each in zip(parts, paths)]
    kinds = {column for _, column in frames}
    if len(kinds) > 1:
        raise RequestError(f"{path}: some files have {' and others '.join(sorted(kinds))}; one task has one")
    frame = pl.concat([part for part, _ in frames])
    (column,) = kinds
    twice = frame.unique().group_by("patient", "moment").len().filter(pl.col("len") > 1)
    if twice.height:
        raise RequestError(
            f"{path} has {twice.height} times a subject and a prediction_time with two different values; "
            "a prediction has one"
        )
    return Labels(
        path.stem, frame.unique(maintain_order=True), VALUES[column], f"{column} of {path.name}", tuple(paths)
    )


def _checked(part: pl.DataFrame, path: Path) -> tuple[pl.DataFrame, str]:
    """patient, moment, value of one file, and the column that holds the value."""
    for column in ("subject_id", "prediction_time"):
        if column not in part.columns:
            raise RequestError(
                f"{path} has no column {column!r}{nearest(column, part.columns)}; a label file has "
                "subject_id, prediction_time and a value"
            )
    filled = [c for c in VALUES if c in part.columns and part[c].null_count() < part.height]
    if len(filled) != 1:
        raise RequestError(
            f"{path} has values in {', '.join(filled) or 'none'} of {', '.join(VALUES)}; "
            "it must be exactly one"
        )
    moment = part["prediction_time"]
    if moment.dtype == pl.Date:
        moment = moment.cast(pl.Datetime("us"))
    if not isinstance(moment.dtype, pl.Datetime):
        raise RequestError(f"{path}: prediction_time holds {moment.dtype}, not times")
    if moment.dtype.time_zone is not None:
        moment = moment.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    if not part["subject_id"].dtype.is_integer():
        raise RequestError(f"{path}: subject_id holds {part['subject_id'].dtype}, not whole numbers")
    value = part[filled[0]]
    kinds = {
        "boolean_value": (value.dtype == pl.Boolean or set(value.drop_nulls()) <= {0, 1}, pl.Int8),
        "categorical_value": (not value.dtype.is_nested(), pl.String),
    }
    fits, kind = kinds.get(filled[0], (value.dtype.is_numeric(), pl.Float64))
    try:
        if not fits:
            raise pl.exceptions.InvalidOperationError
        frame = pl.DataFrame(
            {
                "patient": part["subject_id"].cast(pl.Int64),
                "moment": moment.cast(pl.Datetime("us")),
                "value": value.cast(kind),
            }
        )
    except pl.exceptions.PolarsError:
        raise RequestError(f"{path}: {filled[0]} or subject_id holds what is no such value") from None
    return frame, filled[0]
