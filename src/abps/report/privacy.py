"""What an audit of privacy found: as a table, as a section of its own, and as a part of a study's report."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abps import files
from abps.core.errors import RequestError
from abps.engine.result import PRIVACY
from abps.privacy.attack_findings import Finding, PrivacyAudit, keep, kept
from abps.privacy.budget import PrivacyLedger, Recount, recount
from abps.report.tables import Table, as_csv, as_markdown, number, signed
from abps.study.records import StudyFolder

if TYPE_CHECKING:
    from abps.engine.result import Run
    from abps.report.analysis import Part
    from abps.study.compare import Study
    from abps.study.plan import PlannedRun

#: Up to this area an attack is called no better than guessing.
HARMLESS = 0.55

#: Areas that differ by less are shown as one.
MATTERS = 0.02

#: How the columns of the table are to be read.
MEANING = (
    "alignment, shadow models: the area under the curve of guessing who was learned from, with its standard "
    "error over centers; 0.5 is a coin",
    "attribute: how much better a yes/no entry is guessed for members than for others; 0 is nothing",
    "centers are cut to so many training rows; the attacker is given the model that a round began with",
)


@dataclass(frozen=True)
class PrivacyPart:
    """What the page shows of one federation.

    absent: how an audit is made, where there is none.  sentences: what follows from the attacks.
    doubts: ledgers from which ε does not follow, or that are not there.
    """

    absent: str = ""
    sentences: tuple[str, ...] = ()
    inferred: Table | None = None
    accounts: Table | None = None
    doubts: tuple[str, ...] = ()

    @property
    def tables(self) -> list[Table]:
        """Those that there are."""
        return [table for table in (self.inferred, self.accounts) if table is not None]


def privacy_part(study: Study, part: Part) -> PrivacyPart:
    """What a partner could infer, if somebody looked, and what was spent, computed again."""
    keys = {run.key for run in study.record.runs if run.data == part.data.fingerprint}
    looked = () if study.root is None else kept(study.root)
    mine = [each for each in looked if each.key in keys]
    accounts, doubts = _accounts(study, part)
    absent = ""
    if not mine and any(line.result.sends for line in part.lines):
        absent = (
            "Nobody has looked yet who could be recognised in what is exchanged: "
            "abps audit-privacy, with the folder of this study, attacks it and adds what it finds here."
        )
    return PrivacyPart(absent, tuple(conclusions(mine)), inferred(mine) if mine else None, accounts, doubts)


def inferred(found: Sequence[PrivacyAudit]) -> Table:
    """One row per method, protection, size and round."""
    columns = ("method", "protection", "training rows", "round", "centers", "alignment", "shadow models")
    rows = tuple(
        (
            each.method,
            f.protection,
            str(f.rows),
            str(f.round),
            str(f.centers),
            f"{number(f.alignment)} ± {number(f.alignment_se)}",
            f"{number(f.shadow)} ± {number(f.shadow_se)}",
            signed(f.attribute),
        )
        for each in found
        for f in each.findings
    )
    seeds = ", ".join(str(seed) for seed in sorted({each.seed for each in found}))
    caption = f"Attacks on what is exchanged (seed {seeds})"
    return Table("inferred", caption, (*columns, "attribute"), rows, MEANING)


def conclusions(found: Sequence[PrivacyAudit]) -> list[str]:
    """For every method and size, what protection keeps the attacks at guessing in all rounds that were looked
    at."""
    said = []
    for each in found:
        for rows in sorted({f.rows for f in each.findings}):
            worst: dict[str, float] = {}
            for f in each.findings:
                if f.rows == rows:
                    worst[f.protection] = max(worst.get(f.protection, 0.0), f.alignment, f.shadow)
            (first, area), *others = worst.items()
            said.append(
                f"{each.method} {first}, {rows} training rows: who was learned from is recognised with an "
                f"area of {area:.2f} (0.5 is a coin); {_beside(area, dict(others))}."
            )
    return said


def _beside(area: float, others: Mapping[str, float]) -> str:
    """What other protections make of an area, and what it would be with less of them."""
    safe = [name for name, other in others.items() if other <= HARMLESS]
    worse = [f"{other:.2f} with {name}" for name, other in others.items() if other > area + MATTERS]
    if area <= HARMLESS:
        finding = "no better than guessing"
    elif safe:
        finding = f"{HARMLESS} or less only with {', '.join(safe)}"
    else:
        finding = f"nothing that was tried brings it to {HARMLESS}"
    return "; ".join([finding, *worse])


# ---------------------------------------------------------------- accounts


def _accounts(study: Study, part: Part) -> tuple[Table | None, tuple[str, ...]]:
    """The accounts of a federation's private runs, and what is wrong with them."""
    seen: dict[str, list[tuple[PrivacyLedger, Recount]]] = {}
    doubts = []
    for planned, run in study.runs:
        if planned.data != part.data.fingerprint:
            continue
        try:
            data = _ledger(study.root, planned, run)
            if data is None:
                continue
            found = PrivacyLedger.from_json(data), recount(data)
        except (OSError, ValueError, RequestError) as error:
            doubts.append(f"{planned.label}, seed {planned.seed}: ε cannot be computed again ({error}).")
            continue
        seen.setdefault(planned.label, []).append(found)
        if found[1].wrong:
            doubts.append(f"{planned.label}, seed {planned.seed}: ε {found[1].words}.")
    if not seen:
        return None, tuple(doubts)
    gaps = dict.fromkeys(gap for found in seen.values() for ledger, _ in found for gap in ledger.not_covered)
    plain = [line.result for line in part.lines if line.result.label not in seen]
    without = ", ".join(result.label for result in plain if result.sends)
    notes = (
        "ε follows from the releases that privacy.json of a run lists; δ is the chance that it fails",
        *gaps,
        *([f"without an account, and without noise: {without}"] if without else []),
    )
    columns = ("method", "seeds", "centers", "budget ε", "δ", "ε computed again, at most", "what is written")
    rows = tuple(_account_row(label, found) for label, found in seen.items())
    return Table("accounts", "What was spent of the privacy budget", columns, rows, notes), tuple(doubts)


def _account_row(label: str, found: Sequence[tuple[PrivacyLedger, Recount]]) -> tuple[str, ...]:
    accounts = [account for ledger, _ in found for account in ledger.accounts.values()]
    budget, delta = (
        max((getattr(each, name) for each in accounts), default=0.0) for name in ("epsilon", "delta")
    )
    most = max(again.most for _, again in found)
    return (
        label,
        str(len(found)),
        str(max(len(ledger.accounts) for ledger, _ in found)),
        _finite(budget),
        f"{delta:.0e}",
        _finite(most),
        "differs" if any(again.wrong for _, again in found) else "agrees",
    )


def _finite(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "no limit"


def _ledger(root: Path | None, planned: PlannedRun, run: Run) -> Any:
    """A run's ledger as data; None if it is not private."""
    if run.privacy is not None:
        return run.privacy.to_json()
    path = None if root is None else StudyFolder(root).folder(planned) / PRIVACY
    if path is not None and path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    stated = run.config.get("privacy")
    if path is not None and isinstance(stated, Mapping) and stated.get("dp_epsilon") is not None:
        raise RequestError(f"{PRIVACY} is not there")
    return None


# ---------------------------------------------------------------- files of an audit


def section(found: Sequence[PrivacyAudit], spent: Sequence[str]) -> str:
    """Markdown: the table, and what follows.  spent: sentences on accounts, if there are some."""
    names = ", ".join(each.method for each in found)
    lines = [f"## What a partner of {names} can infer", "", as_markdown(inferred(found))]
    lines += [f"- {sentence}" for sentence in conclusions(found)]
    return "\n".join([*lines, *(["", *spent] if spent else [])]) + "\n"


def flat(found: Sequence[PrivacyAudit]) -> Table:
    """All digits, for programs."""
    names = tuple(Finding.__dataclass_fields__)
    rows = tuple(
        (each.method, *(str(getattr(f, name)) for name in names)) for each in found for f in each.findings
    )
    return Table("audit-privacy", "", ("method", *names), rows)


def write(folder: Path, found: Sequence[PrivacyAudit], spent: Sequence[str]) -> list[Path]:
    """What was found as a table, a section and, for reports, as data."""
    files.folder(folder)
    written = [folder / "audit-privacy.md", folder / "audit-privacy.csv"]
    files.write_text(written[0], section(found, spent))
    files.write_text(written[1], as_csv(flat(found)))
    return [*written, keep(folder, found)]
