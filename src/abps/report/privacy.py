"""What an audit of privacy found: as a table, as files of its own, and as a part of a study's report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abps import files
from abps.core.errors import RequestError
from abps.engine.result import PRIVACY
from abps.privacy.attack_findings import Finding, PrivacyAudit, keep, kept
from abps.privacy.budget import recount
from abps.report.tables import Table, as_csv, as_markdown, number, signed
from abps.study.records import StudyFolder

if TYPE_CHECKING:
    from abps.report.analysis import Part
    from abps.study.compare import Study

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
    """What the page shows of one federation.  unaudited: something was sent, and nobody attacked it.
    sentences: what follows from attacks.  spent: by private runs, computed again.  doubts: ledgers from which
    ε does not follow."""

    unaudited: bool = False
    sentences: tuple[str, ...] = ()
    inferred: Table | None = None
    spent: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def privacy_part(study: Study, part: Part) -> PrivacyPart:
    keys = {run.key for run in study.record.runs if run.data == part.data.fingerprint}
    looked = () if study.root is None else kept(study.root)
    mine = [each for each in looked if each.key in keys]
    spent: dict[str, None] = {}
    doubts = []
    for planned, run in study.runs:
        if planned.data != part.data.fingerprint:
            continue
        stated, name = run.config.get("privacy"), f"{planned.label}, seed {planned.seed}"
        private = isinstance(stated, Mapping) and stated.get("dp_epsilon") is not None
        path = None if study.root is None else StudyFolder(study.root).folder(planned) / PRIVACY
        try:
            if run.privacy is not None:
                ledger = run.privacy.to_json()
            elif path is not None and (private or path.exists()):
                ledger = read_ledger(path)
            else:
                continue
            sentence, wrong = spent_words(name, ledger)
        except RequestError as error:
            doubts.append(f"{name}: ε cannot be computed again ({error}).")
            continue
        if wrong:
            doubts.append(sentence)
        spent |= dict.fromkeys([sentence, *(f"Not covered: {gap}." for gap in ledger["not_covered"])])
    unaudited = not mine and any(line.sends for line in part.lines)
    table = inferred(mine) if mine else None
    return PrivacyPart(unaudited, tuple(conclusions(mine)), table, tuple(spent), tuple(doubts))


def read_ledger(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(f"it cannot be read: {error}") from error


def spent_words(name: str, ledger: Any) -> tuple[str, bool]:
    """What a ledger's releases spent, computed again, and whether it differs from what is written."""
    found = recount(ledger)
    return f"{name}: ε computed again is {found.most:.3f} at most, {found.words}.", bool(found.wrong)


def inferred(found: Sequence[PrivacyAudit]) -> Table:
    columns = ("method", "protection", "training rows", "round", "centers", "alignment", "shadow models")
    rows = []
    for method, f in ((each.method, f) for each in found for f in each.findings):
        areas = ((f.alignment, f.alignment_se), (f.shadow, f.shadow_se))
        shown = [f"{number(area)} ± {number(se)}" for area, se in areas]
        counts = (str(f.rows), str(f.round), str(f.centers))
        rows.append((method, f.protection, *counts, *shown, signed(f.attribute)))
    seeds = ", ".join(str(seed) for seed in sorted({each.seed for each in found}))
    caption = f"Attacks on what is exchanged (seed {seeds})"
    return Table("inferred", caption, (*columns, "attribute"), tuple(rows), MEANING)


def conclusions(found: Sequence[PrivacyAudit]) -> list[str]:
    """For every method and size, what protection keeps the attacks at guessing in all rounds."""
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


def write(folder: Path, found: Sequence[PrivacyAudit], spent: Sequence[str]) -> list[Path]:
    """Write what was found in words (Markdown), with all digits (CSV) and, for reports, as data.  spent:
    sentences on ledgers."""
    files.folder(folder)
    names = ", ".join(each.method for each in found)
    lines = [f"## What a partner of {names} can infer", "", as_markdown(inferred(found))]
    lines += [f"- {sentence}" for sentence in conclusions(found)]
    lines += ["", *spent] if spent else []
    fields = tuple(Finding.__dataclass_fields__)
    rows = tuple((a.method, *(str(getattr(f, name)) for name in fields)) for a in found for f in a.findings)
    written = [folder / "audit-privacy.md", folder / "audit-privacy.csv"]
    files.write_text(written[0], "\n".join(lines) + "\n")
    files.write_text(written[1], as_csv(Table("audit-privacy", "", ("method", *fields), rows)))
    return [*written, keep(folder, found)]
