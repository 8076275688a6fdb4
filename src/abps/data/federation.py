"""A federation: the stays of many centers in one table, with the role of every column settled.

Nothing here is encoded, imputed or split: that happens in :mod:`abps.data.prepare`, by the seed.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core.errors import DataWarning, RequestError, nearest
from abps.data.outcome import BINARY, Outcome
from abps.data.repairs import RULES, Repair
from abps.data.roles import Roles, is_called
from abps.data.screening import ColumnFinding
from abps.evaluate.performance import age_groups, frequent, thirds
from abps.registry import imported

CHECK_SCHEMA = "abps.check/1"

#: The federations that are generated instead of read; knobs follow a colon.
BUILTIN = ("icu-synthetic", "fedprox-synthetic")


def is_builtin(spec: str) -> bool:
    return spec.partition(":")[0] in BUILTIN


def builtin_table(spec: str) -> tuple[pl.DataFrame, Roles]:
    """The table of a built-in federation and its roles; a generator is imported when asked for by name."""
    made: tuple[pl.DataFrame, Roles] = imported("abps.lab.synthetic:builtin_table")(spec)
    return made


@dataclass(frozen=True)
class LeftOut:
    center: str
    rows: int
    reason: str


def left_out_lines(left_out: Sequence[LeftOut]) -> list[str]:
    """Centers left out, one line per reason (without its count in brackets), the largest group first."""
    groups: dict[str, list[LeftOut]] = defaultdict(list)
    for each in left_out:
        groups[each.reason.rsplit(" (", 1)[0]].append(each)
    lines = []
    for reason, centers in sorted(groups.items(), key=lambda pair: -len(pair[1])):
        names = ", ".join(c.center for c in centers[:8])
        more = f" and {len(centers) - 8} more" if len(centers) > 8 else ""
        many = f"{len(centers)} with {reason} ({sum(c.rows for c in centers):,} rows in all): {names}{more}"
        lines.append(f"{names}: {centers[0].reason}" if len(centers) == 1 else many)
    return lines


@dataclass(frozen=True)
class ColumnCheck:
    """One column: type is number, yes/no, category, date, empty or other; role label, center, patient, time,
    group, dropped or feature; why it is not used, or used all the same; missing: a share, after repairs."""

    name: str
    type: str
    role: str
    used: bool
    why: str
    missing: float


@dataclass(frozen=True)
class TableCheck:
    """Everything that was noticed about one table.

    form: how the file is written.  rows: in the file.  copies: duplicate rows that were removed.
    positive, negative: the label's values; events: rows with the positive one.
    warnings: what may be wrong and no rule can decide.  patient: the column that looks like patient IDs
    where none was named.
    """

    name: str
    form: str
    rows: int
    copies: int
    label: str
    positive: str
    negative: str
    events: int
    columns: tuple[ColumnCheck, ...]
    repairs: tuple[Repair, ...] = ()
    findings: tuple[ColumnFinding, ...] = ()
    warnings: tuple[str, ...] = ()
    centers: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    patient: str = ""

    @property
    def unused(self) -> tuple[ColumnCheck, ...]:
        """Columns without a role that are not learned from."""
        return tuple(c for c in self.columns if c.role == "feature" and not c.used)

    @property
    def remarks(self) -> tuple[str, ...]:
        """All that a reader should look at, each thing once: warnings, then other unused columns."""
        unused = {f"{c.name!r}: ": c.why for c in self.unused}
        said = {prefix for prefix in unused if any(w.startswith(prefix) for w in self.warnings)}
        return (*self.warnings, *(f"{p}not used, {why}" for p, why in unused.items() if p not in said))

    def to_json(self) -> dict[str, Any]:
        """As plain data, with the rules of the repairs that were made in words."""
        used = {r.rule for r in self.repairs}
        rules = {rule: words for rule, words in RULES.items() if rule in used}
        return {"schema": CHECK_SCHEMA, **asdict(self), "rules": rules}

    @staticmethod
    def from_json(data: dict[str, Any]) -> TableCheck:
        return msgspec.convert({k: v for k, v in data.items() if k not in ("schema", "rules")}, TableCheck)


def warn_about(notes: TableCheck | None) -> None:
    """Warn of what looks wrong, and of centers that take no part; of files the command line prints it."""
    if notes is not None:
        for sentence in (*notes.warnings, *(f"left out: {line}" for line in left_out_lines(notes.left_out))):
            warnings.warn(f"{notes.name}: {sentence}", DataWarning, stacklevel=3)


@dataclass(frozen=True)
class About:
    """What a result says of its federation.  features: columns, in a run the encoded.  groups: how many."""

    name: str
    centers: int
    rows: int
    features: int = 0
    fingerprint: str = ""
    left_out: tuple[LeftOut, ...] = ()
    positive_share: float | None = None
    groups: int | None = None
    check: TableCheck | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """Stays of n centers. Rows keep the order of their source; centers are sorted by name.

    features: one column per feature, numeric, boolean or text; null where missing.
    label: (rows,) 0 or 1, or as :mod:`abps.data.outcome` says.  center: (rows,) index into ``centers``.
    patient: (rows,) the number of every row's patient, the same in every table that has the key, or None.
    time: (rows,) years, or None.  groups: one declared group per center (for the oracle control), or None.
    descriptors: binary features whose prevalence a center publishes in its metadata vector.
    in_order: the order of rows is part of the data (a generator made it); that of a file never is.
    notes: what was noticed when the table was read.  aside: columns that are not learned from, for subgroups.
    Neither is part of the content.
    """

    name: str
    features: pl.DataFrame
    label: NDArray[Any]
    center: NDArray[np.int32]
    centers: tuple[str, ...]
    patient: NDArray[np.int64] | None = None
    time: NDArray[np.float64] | None = None
    groups: tuple[str, ...] | None = None
    descriptors: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    in_order: bool = False
    notes: TableCheck | None = None
    outcome: Outcome = BINARY
    aside: pl.DataFrame | None = None

    @property
    def size(self) -> int:
        return len(self.centers)

    @property
    def rows(self) -> int:
        return len(self.label)

    def about(self) -> About:
        return About(
            self.name,
            self.size,
            self.rows,
            self.features.width,
            self.fingerprint(),
            self.left_out,
            float(self.outcome.events(self.label).mean()),
            None if self.groups is None else len(set(self.groups)),
            self.notes,
        )

    @property
    def described(self) -> str:
        events = int(self.outcome.events(self.label).sum())
        if self.outcome.binary:
            return f"{events:,} of them positive"
        if self.outcome.kind == "survival":
            return f"{events:,} of them with the event"
        return f"outcome {self.outcome.kind}"

    def __repr__(self) -> str:
        share = f"outcome {self.outcome.kind}"
        if self.outcome.binary:
            share = f"{100 * float(self.label.mean()):.1f} % positive"
        return (
            f"<Federation {self.name}: {self.size} centers, {self.rows:,} stays, "
            f"{self.features.width} features, {share}>"
        )

    def only(self, rows: NDArray[np.bool_]) -> Federation:
        """The same federation with some of its rows: (rows,) true where a row stays."""
        return self.take(np.flatnonzero(rows))

    def take(self, rows: NDArray[np.int64]) -> Federation:

        def part(values: NDArray[Any] | None) -> NDArray[Any] | None:
            return None if values is None else values[rows]

        return replace(
            self,
            features=self.features[rows],
            aside=None if self.aside is None else self.aside[rows],
            label=self.label[rows],
            center=self.center[rows],
            patient=part(self.patient),
            time=part(self.time),
        )

    def fingerprint(self) -> str:
        """A digest of all content: two federations with one fingerprint give the same results."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(repr((self.features.columns, [str(t) for t in self.features.dtypes])).encode())
        digest.update(self.features.hash_rows(seed=0).to_numpy().tobytes())
        for column in (self.label, self.center, self.patient, self.time):
            digest.update(b"-" if column is None else np.ascontiguousarray(column).tobytes())
        digest.update(repr((self.centers, self.groups, self.descriptors)).encode())
        if not self.outcome.binary:
            digest.update(repr(self.outcome).encode())
        if self.in_order:
            digest.update(b"in order")
        return digest.hexdigest()


# --- parts of the cohort: sex, age groups, and any column that somebody asks for -------------------------


def groups_of(federation: Federation, columns: Sequence[str]) -> dict[str, list[str | None]]:
    """By column, the part of the cohort that every row belongs to: sex, age groups, and any column asked for,
    learned from or not."""
    features, aside = federation.features, federation.aside
    known = {name: features[name] for name in features.columns}
    if aside is not None:
        known |= {name: aside[name] for name in aside.columns}
    for column in columns:
        if column not in known:
            raise RequestError(f"there is no column {column!r} for subgroups{nearest(column, known)}")
    found = [c for c in features.columns if is_called(c, "sex") or is_called(c, "age")]
    return {name: part_names(known[name]) for name in dict.fromkeys([*found, *columns])}


def with_only(federation: Federation, columns: Sequence[str]) -> Federation:
    """The same federation, of what is not learned from only these columns."""
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
    return age_groups(values) if is_called(column.name, "age") else thirds(values)
