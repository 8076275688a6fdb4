"""What was found in a table before anything is learned from it, and what its centers and columns look like.

The same findings are shown on the terminal, written as JSON and put on the report's page.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from abps.core.errors import DataWarning
from abps.data.repairs import RULES, Repair
from abps.data.screening import ColumnFinding

SCHEMA = "abps.check/1"


@dataclass(frozen=True)
class LeftOut:
    """A center that takes no part, and why."""

    center: str
    rows: int
    reason: str


def left_out_lines(left_out: Sequence[LeftOut], shown: int = 8) -> list[str]:
    """Centers left out, one line per reason (without its count in brackets), the largest group first.

    shown: how many centers a line names.
    """
    groups: dict[str, list[LeftOut]] = defaultdict(list)
    for each in left_out:
        groups[each.reason.rsplit(" (", 1)[0]].append(each)
    lines = []
    for reason, centers in sorted(groups.items(), key=lambda pair: -len(pair[1])):
        names = ", ".join(c.center for c in centers[:shown])
        more = f" and {len(centers) - shown} more" if len(centers) > shown else ""
        rows = sum(c.rows for c in centers)
        one = f"{names}: {centers[0].reason}"
        lines.append(
            one
            if len(centers) == 1
            else f"{len(centers)} with {reason} ({rows:,} rows in all): {names}{more}"
        )
    return lines


@dataclass(frozen=True)
class ColumnCheck:
    """One column of the table.

    type: number, yes/no, category, date, empty or other.  role: label, center, patient, time, group,
    dropped, or feature.  why: why a column is not used (or used in spite of a finding).
    missing: the share of rows without a value, after repairs.
    """

    name: str
    type: str
    role: str
    used: bool
    why: str
    missing: float


@dataclass(frozen=True)
class TableCheck:
    """Everything that was noticed about one table.

    form: how the file is written.  rows: rows in the file.  copies: duplicate rows that were removed.
    positive, negative: the label's values; events: rows with the positive one.
    warnings: sentences about what may be wrong and no rule can decide; each thing is said once.
    patient: the column that looks like patient IDs, where none was named.
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
        """All that a reader should look at, each thing once: warnings, then columns that are not used and
        that no warning names."""
        unused = (f"{c.name!r}: not used, {c.why}" for c in self.unused)
        named = tuple(f"{c.name!r}: " for c in self.unused)
        said = {prefix for prefix in named if any(w.startswith(prefix) for w in self.warnings)}
        return (*self.warnings, *(u for u, prefix in zip(unused, named) if prefix not in said))

    def to_json(self) -> dict[str, Any]:
        """As plain data, with the rules of the repairs that were made in words."""
        used = {r.rule for r in self.repairs}
        rules = {rule: words for rule, words in RULES.items() if rule in used}
        return {"schema": SCHEMA, **asdict(self), "rules": rules}

    @staticmethod
    def from_json(data: dict[str, Any]) -> TableCheck:
        """From plain data."""
        return msgspec.convert({k: v for k, v in data.items() if k not in ("schema", "rules")}, TableCheck)


def warn_about(notes: TableCheck | None) -> None:
    """Warn of what looks wrong in data from memory or a generator, and of the centers that take no part. Of a
    file the command line prints the same."""
    if notes is not None:
        for sentence in (*notes.warnings, *(f"left out: {line}" for line in left_out_lines(notes.left_out))):
            warnings.warn(f"{notes.name}: {sentence}", DataWarning, stacklevel=3)
