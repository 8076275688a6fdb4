"""What was found in a table before anything is learned from it, as plain data.

The same findings are shown on the terminal, written as JSON and put on the report's page.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from abps.data.repairs import RULES, Repair
from abps.data.suspects import Suspicion

SCHEMA = "abps.check/1"


@dataclass(frozen=True)
class LeftOut:
    """A center that takes no part, and why."""

    center: str
    rows: int
    reason: str


@dataclass(frozen=True)
class ColumnNote:
    """One column of the table.

    type: number, yes/no, category, date, empty or other.  role: label, center, patient, time, group,
    windows, dropped, or feature.  why: why a column is not used (or used in spite of a suspicion).
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

    form: how the file is written.  rows: rows in the file.  copies: rows that repeat others and were taken
    once.  positive, negative: the label's values; events: rows with the positive one.
    warnings: sentences about what may be wrong and could not be settled by a rule.
    """

    name: str
    form: str
    rows: int
    copies: int
    label: str
    positive: str
    negative: str
    events: int
    columns: tuple[ColumnNote, ...]
    repairs: tuple[Repair, ...] = ()
    suspicions: tuple[Suspicion, ...] = ()
    warnings: tuple[str, ...] = ()
    centers: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    @property
    def unused(self) -> tuple[ColumnNote, ...]:
        """Columns that nobody gave a role and that are not learned from all the same."""
        return tuple(c for c in self.columns if c.role == "feature" and not c.used)

    def to_json(self) -> dict[str, Any]:
        """As plain data, with the rules of the repairs that were made in words."""
        return {
            "schema": SCHEMA,
            **asdict(self),
            "rules": {
                rule: words for rule, words in RULES.items() if any(r.rule == rule for r in self.repairs)
            },
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> TableCheck:
        """From plain data."""
        plain = {k: v for k, v in data.items() if k not in ("schema", "rules")}
        plain["columns"] = tuple(ColumnNote(**c) for c in data["columns"])
        plain["repairs"] = tuple(
            Repair(r["column"], r["rule"], r["cells"], tuple((a, b) for a, b in r["examples"]))
            for r in data["repairs"]
        )
        plain["suspicions"] = tuple(Suspicion(**s) for s in data["suspicions"])
        plain["left_out"] = tuple(LeftOut(**o) for o in data["left_out"])
        plain["warnings"], plain["centers"] = tuple(data["warnings"]), tuple(data["centers"])
        return TableCheck(**plain)
