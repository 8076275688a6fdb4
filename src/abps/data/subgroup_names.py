"""Which part of the cohort a row belongs to: sex, age groups, and any column that somebody asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from abps.core.errors import RequestError, nearest
from abps.data.federation import Federation
from abps.data.roles import is_age, is_sex
from abps.evaluate.subgroups import age_groups, frequent, thirds


def groups_of(federation: Federation, columns: Sequence[str]) -> dict[str, list[str | None]]:
    """By column, the part of the cohort that every row belongs to: sex, age groups, and what is asked for.

    What is asked for need not be learned from: a column that was dropped will do.
    """
    features, aside = federation.features, federation.aside
    known = {name: features[name] for name in features.columns}
    if aside is not None:
        known |= {name: aside[name] for name in aside.columns}
    for column in columns:
        if column not in known:
            raise RequestError(f"there is no column {column!r} for subgroups{nearest(column, known)}")
    found = [c for c in features.columns if is_sex(c) or is_age(c)]
    return {name: part_names(known[name]) for name in dict.fromkeys([*found, *columns])}


def with_only(federation: Federation, columns: Sequence[str]) -> Federation:
    """The same federation; of what is not learned from it keeps these columns alone."""
    if federation.aside is None:
        return federation
    kept = [name for name in federation.aside.columns if name in columns]
    return replace(federation, aside=federation.aside.select(kept) if kept else None)


def part_names(column: pl.Series) -> list[str | None]:
    """(rows,) the part of the cohort by one column: its level, its age group, or a third of its numbers."""
    if column.dtype == pl.Boolean:
        return [None if value is None else "yes" if value else "no" for value in column.to_list()]
    if not column.dtype.is_numeric():
        return frequent(column.cast(pl.String).to_list())
    values = column.cast(pl.Float64).to_numpy()
    known = values[np.isfinite(values)]
    if len(np.unique(known)) <= 5:
        return [None if not np.isfinite(v) else f"{v:g}" for v in values.tolist()]
    return age_groups(values) if is_age(column.name) else thirds(values)
