"""A harmonisation map: a table's columns in the names, units and levels that a study agreed on.

``stays.harmonise.toml`` beside ``stays.parquet`` is applied whenever the table is read::

    ["Kreatinin (µmol/l)"]      # the column as the table spells it
    name = "creatinine"
    factor = 0.01131            # value * factor + offset
    [Geschlecht]
    name = "sex"
    levels = { m = "male", w = "female" }
"""

import difflib
import hashlib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core.errors import RequestError, nearest
from abps.data.codebook import Codebook
from abps.data.reading import RawTable, read_raw
from abps.data.repairs import repair_column, to_levels
from abps.data.roles import normalise
from abps.data.scales import FIRST, PROBABILITIES, Scales
from abps.data.screening import ENOUGH_VALUES, LEAST_FACTOR, conversion

#: An entry of a map, and what a value of it must be.
_KEYS: dict[str, Any] = {"name": str, "factor": (int, float), "offset": (int, float), "levels": dict}

Entries = Mapping[str, Mapping[str, Any]]


def map_path(table: str | Path) -> Path:
    return Path(table).with_suffix(".harmonise.toml")


def read_map(table: str | Path) -> Entries:
    path = map_path(table)
    if not path.is_file():
        return {}
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(f"{path} is not TOML ({error}); see `abps site harmonise --help`") from error
    for column, entry in entries.items():
        good = isinstance(entry, dict) and all(isinstance(v, _KEYS.get(k, ())) for k, v in entry.items())
        numbers = (entry.get("factor", 1), entry.get("offset", 0)) if good else (0, 0)
        if not numbers[0] or not all(map(math.isfinite, numbers)):
            raise RequestError(
                f"{path}: an entry may have name (text), factor (not 0), offset and levels (a table); "
                f"that of {column!r} is none"
            )
    return entries


def map_digest(table: str | Path) -> str:
    """Equal for two maps that do the same; empty if there is none."""
    entries = read_map(table)
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()[:16] if entries else ""


def read_harmonised(path: Path) -> RawTable:
    raw, entries, where = read_raw(path), read_map(path), map_path(path).name
    if not entries:
        return raw
    columns = {column.name: column for column in raw.frame.get_columns()}
    for name, entry in entries.items():
        if name not in columns:
            raise RequestError(f"{where}: the table has no column {name!r}{nearest(name, columns)}")
        columns[name] = _converted(columns[name], entry, where)
    names = [str(entries.get(name, {}).get("name", name)) for name in columns]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise RequestError(f"{where}: two columns would be called {twice[0]!r}; rename or drop one")
    frame = pl.DataFrame([column.alias(name) for column, name in zip(columns.values(), names)])
    return replace(raw, frame=frame, form=f"{raw.form}, {len(entries)} columns by {where}")


def _converted(column: pl.Series, entry: Mapping[str, Any], where: str) -> pl.Series:
    if "levels" in entry:
        words = {str(k): str(v) for k, v in entry["levels"].items()}
        column = column.cast(pl.String).str.strip_chars().replace(words)
    if "factor" in entry or "offset" in entry:
        found = repair_column(column).values
        if not found.dtype.is_numeric():
            raise RequestError(f"{where}: {column.name!r} is not a column of numbers; no factor converts it")
        column = found.cast(pl.Float64) * float(entry.get("factor", 1)) + float(entry.get("offset", 0))
    return column


def suggest(
    features: pl.DataFrame, book: Codebook, medians: Mapping[str, float]
) -> tuple[dict[str, Any], list[str]]:
    """Entries that would bring a table to a codebook, and a sentence for each; people decide.  medians: of
    all sites' values. A unit is doubtful if a column's median lies at least ``LEAST_FACTOR`` from the common
    one, which is outside the middle 80 % of its own values."""
    entries: dict[str, Any] = {}
    said: list[str] = []
    free = {normalise(name): name for name in features.columns if name not in book.sources}
    for source in book.sources:
        if source not in features.columns:
            close = difflib.get_close_matches(normalise(source), free, n=1, cutoff=0.5)
            like = f"; {free[close[0]]!r} is close" if close else ""
            said.append(f"the study's column {source!r} is not here{like}")
            entries |= {free[name]: {"name": source} for name in close}
            continue
        levels = [c.level for c in book.columns if (c.source, c.kind) == (source, "level")]
        found = to_levels(features[source], levels).drop_nulls().unique().to_list() if levels else []
        other = sorted(found)[:10]
        if other and not set(found) & set(levels):
            said.append(f"{source!r} has no level of the study's: {', '.join(other)}")
            entries[source] = {"levels": dict.fromkeys(other, levels[0])}
    for source, common in medians.items():
        if source not in features.columns or not features[source].dtype.is_numeric():
            continue
        values = features[source].drop_nulls().cast(pl.Float64).to_numpy()
        values = values[np.isfinite(values)]
        if len(values) < ENOUGH_VALUES or not common > 0 or values.min() < 0:
            continue
        low, here, high = np.quantile(values, [0.1, 0.5, 0.9])
        if here <= 0 or max(here / common, common / here) < LEAST_FACTOR or low <= common <= high:
            continue
        factor, offset, units = conversion(source, float(here), common)
        about = f"{units or 'unknown'}; median {here:.3g} here, about {common:.3g} in all"
        said.append(f"{source!r} seems to have another unit ({about})")
        entries[source] = {"factor": factor, **({"offset": offset} if offset else {})}
    return entries, said


def common_medians(scales: Scales | None) -> dict[str, float]:
    """Medians of the columns whose common scales a codebook has."""
    known = (scales or {}).items()
    return {n: float(np.interp(0.5, PROBABILITIES, s.quantiles)) for n, s in known if s.quantiles}


def coarse_medians(names: Sequence[str], total: NDArray[np.float64]) -> dict[str, float]:
    """Medians of columns from the total of the first count, whose bins are powers of ten by quarters: unlike
    the narrower bins of scales, one site in another unit does not stretch them."""
    positive = FIRST > 0
    shares = np.cumsum(total, axis=1)[:, :-1] / np.maximum(total.sum(axis=1, keepdims=True), 1e-9)
    logs = np.log(FIRST[positive])
    found = {name: row[positive] for name, row in zip(names, shares) if row[positive][0] < 0.5 < row[-1]}
    return {name: float(np.exp(np.interp(0.5, row, logs))) for name, row in found.items()}


def added(known: Entries, more: Entries) -> dict[str, Any]:
    """A map with further entries, which are about the columns as the map has them."""
    entries = {column: dict(entry) for column, entry in known.items()}
    raw = {str(entry.get("name", column)): column for column, entry in known.items()}
    for name, entry in more.items():
        mine = entries.setdefault(raw.get(name, name), {})
        if "factor" in entry:  # after what the map does so far
            offset = mine.get("offset", 0) * entry["factor"] + entry.get("offset", 0)
            mine["factor"] = mine.get("factor", 1) * entry["factor"]
            mine |= {"offset": offset} if offset else {}
        mine |= {key: value for key, value in entry.items() if key in ("name", "levels")}
    return entries
