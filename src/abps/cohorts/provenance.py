"""Where a table comes from: source files with sizes and hashes, recipe, options, exclusions, columns."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import polars as pl

from abps import files
from abps.cohorts.duck import Progress, silent
from abps.cohorts.tidy import Cohort, Step, Variable
from abps.core.errors import RequestError
from abps.data.roles import PROVENANCE_KEY
from abps.data.roles import read_provenance as read_provenance
from abps.data.roles import recorded_roles as recorded_roles


@dataclass(frozen=True)
class SourceFile:
    """One file that was read."""

    name: str
    bytes: int
    sha256: str


def describe_files(paths: Iterable[Path], root: Path, progress: Progress = silent) -> tuple[SourceFile, ...]:
    """Sizes and SHA-256 of files, named relative to the source's folder."""
    paths = list(paths)
    total = sum(path.stat().st_size for path in paths) or 1
    done, described = 0, []
    for path in paths:
        digest = hashlib.sha256()
        with path.open("rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
                done += len(block)
                progress("fingerprinting the source files", done / total)
        name = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
        described.append(SourceFile(name, path.stat().st_size, digest.hexdigest()))
    return tuple(described)


def versions() -> dict[str, str]:
    """The versions of what makes the table."""
    found = {}
    for package in ("abps", "polars", "duckdb"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def of_cohort(cohort: Cohort) -> dict[str, Any]:
    """Everything about a cohort except its rows, ready for JSON."""
    return {
        "schema": "abps.cohort/1",
        "source": cohort.source,
        "recipe": cohort.recipe,
        "options": cohort.options,
        "rows": cohort.table.height,
        "outcome": cohort.outcome,
        "roles": {k: v for k, v in asdict(cohort.roles).items() if v},
        "files": [asdict(f) for f in cohort.files],
        "flow": [asdict(step) for step in cohort.steps],
        "facts": cohort.facts,
        "warnings": list(cohort.warnings),
        "columns": [asdict(column) for column in cohort.dictionary],
        "versions": versions(),
    }


def write_table(table: pl.DataFrame, provenance: dict[str, Any], out: Path) -> None:
    """Write a Parquet file whole, with its provenance inside and, for people, beside it."""
    text = json.dumps(provenance, ensure_ascii=False)
    files.write_with(out, lambda part: table.write_parquet(part, metadata={PROVENANCE_KEY: text}))
    files.write_json(out.with_suffix(".provenance.json"), provenance)


def check_out(out: Path) -> Path:
    """A path that a Parquet table can be written to; asked before the work, not after it."""
    out = Path(out)
    if out.suffix != ".parquet":
        raise RequestError(f"out={out} must end in .parquet (the cohort is one Parquet table)")
    if out.is_dir():
        raise RequestError(f"out={out} is a folder; give a file name that ends in .parquet")
    files.folder(out.parent)
    return out


def dictionary_markdown(columns: Iterable[Variable], title: str) -> str:
    """The data dictionary as a Markdown table."""
    lines = [f"# {title}", "", "| column | role | unit | meaning |", "|---|---|---|---|"]
    lines += [f"| `{c.name}` | {c.role} | {c.unit} | {c.meaning} |" for c in columns]
    return "\n".join(lines) + "\n"


def dictionary_csv(columns: Iterable[Variable]) -> str:
    """The data dictionary as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["column", "role", "unit", "meaning"])
    writer.writerows([c.name, c.role, c.unit, c.meaning] for c in columns)
    return out.getvalue()


def positives_word(label: str) -> str:
    """What a positive label is called in tables: deaths, where the label is death."""
    return "deaths" if label == "died" else f"{label} = 1"


def flow_markdown(steps: Iterable[Step], label: str) -> str:
    """The flow of exclusions as a Markdown table."""

    def number(value: int | None) -> str:
        return "" if value is None else f"{value:,}"

    lines = [f"| step | left out | stays | patients | {positives_word(label)} |", "|---|---:|---:|---:|---:|"]
    for i, step in enumerate(steps):
        lines.append(
            f"| {'left out: ' if i else ''}{step.label} | {number(step.left_out) if i else ''} "
            f"| {number(step.stays)} | {number(step.patients)} | {number(step.positives)} |"
        )
    return "\n".join(lines) + "\n"
