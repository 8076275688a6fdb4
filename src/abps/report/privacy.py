"""What an audit of privacy found, as a table and as a section of a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from abps import files
from abps.simulator.inference import Finding

#: Up to this area an attack is called no better than guessing.
HARMLESS = 0.55


def table(findings: Sequence[Finding]) -> pl.DataFrame:
    """One row per protection, size and round."""
    return pl.DataFrame([vars(each) for each in findings])


def section(method: str, findings: Sequence[Finding], spent: Sequence[str]) -> str:
    """Markdown: what was tried, the table, and what follows.

    spent: sentences on the privacy account, if there is one.
    """
    lines = [
        f"## What a partner of {method} can infer",
        "",
        "Area under the curve of guessing who was learned from; 0.5 is a coin. The attribute column is how "
        "much better a yes/no entry is guessed for members than for others; 0 is nothing.",
        "",
        "| protection | training rows | round | centers | alignment | shadow models | attribute |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {f.protection} | {f.rows} | {f.round} | {f.centers} | {f.alignment:.3f} ± {f.alignment_se:.3f} | "
        f"{f.shadow:.3f} ± {f.shadow_se:.3f} | {f.attribute:+.3f} |"
        for f in findings
    ]
    lines += ["", *conclusions(findings), *(["", *spent] if spent else [])]
    return "\n".join(lines) + "\n"


def conclusions(findings: Sequence[Finding]) -> list[str]:
    """For every size, what protection keeps the attacks at guessing in all rounds that were looked at."""
    said = []
    for rows in sorted({f.rows for f in findings}):
        mine = [f for f in findings if f.rows == rows]
        names = list(dict.fromkeys(f.protection for f in mine))
        worst = {
            name: max(max(f.alignment, f.shadow) for f in mine if f.protection == name) for name in names
        }
        safe = [name for name in names if worst[name] <= HARMLESS]
        enough = (
            f"at most {HARMLESS} with {', '.join(safe)}" if safe else f"above {HARMLESS} with each of them"
        )
        said.append(f"- {rows} training rows: {worst[names[0]]:.2f} with {names[0]}; {enough}.")
    return said


def write(folder: Path, method: str, findings: Sequence[Finding], spent: Sequence[str]) -> list[Path]:
    """The table and the section in a folder."""
    files.folder(folder)
    written = [folder / "audit-privacy.csv", folder / "audit-privacy.md"]
    files.write_with(written[0], table(findings).write_csv)
    files.write_text(written[1], section(method, findings, spent))
    return written
