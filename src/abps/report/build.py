"""From a study's folder to its report: tables, figures and one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from abps import files
from abps.core.errors import RequestError
from abps.report import tables
from abps.report.figures import Drawing, draw_all
from abps.report.pages.study_page import page
from abps.report.statistics import TARGETS, Part, analyse, gather
from abps.report.words import summary
from abps.study.plan import PlannedRun, slug
from abps.study.records import Study


@dataclass(frozen=True, eq=False)
class Section:
    """One federation's part of the report."""

    part: Part
    sentences: list[str]
    tables: list[tables.Table]
    drawings: list[Drawing]


@dataclass(frozen=True, eq=False)
class Report:
    """A study's report as it was written."""

    page: Path
    sections: list[Section]
    absent: list[str]


def read_study(
    study: Study,
) -> tuple[dict[str, Any], dict[str, list[tuple[PlannedRun, dict[str, Any]]]], list[str]]:
    """The plan, the finished runs of every federation, and one line for every run that is not there."""
    document = study.read()
    finished: dict[str, list[tuple[PlannedRun, dict[str, Any]]]] = {
        d["fingerprint"]: [] for d in document["data"]
    }
    absent = list(document["left_out"])
    for value in document["runs"]:
        run = PlannedRun.from_json(value)
        found = study.look(run)
        if found.result is not None:
            finished[run.data].append((run, found.result))
        else:
            why = found.problem or study.failure(run) or "not computed yet"
            absent.append(f"{run.label}, seed {run.seed}: {why}")
    return document, finished, absent


def sections_of(
    document: Mapping[str, Any],
    finished: Mapping[str, Sequence[tuple[PlannedRun, dict[str, Any]]]],
    targets: Sequence[float],
) -> list[Section]:
    """The analysis of every federation that has finished runs."""
    sections = []
    for data in document["data"]:
        runs = finished[data["fingerprint"]]
        if not runs:
            continue
        by_label: dict[str, list[tuple[PlannedRun, dict[str, Any]]]] = {}
        for run, result in runs:
            by_label.setdefault(run.label, []).append((run, result))
        planned = dict.fromkeys(r["label"] for r in document["runs"] if r["data"] == data["fingerprint"])
        centers = sorted({c for _, result in runs for c in result["auroc"]["per_center"]})
        results = [
            gather(label, by_label[label][0][0].method, [result for _, result in by_label[label]], centers)
            for label in planned
            if label in by_label
        ]
        part = analyse(data, results, centers)
        sections.append(
            Section(
                part,
                summary(part),
                [
                    tables.headline(part),
                    tables.direct(part),
                    tables.equal_bytes(part),
                    tables.targets(part, targets),
                ],
                draw_all(part),
            )
        )
    return sections


def build(root: Path, out: Path | None = None, targets: Sequence[float] = TARGETS) -> Report:
    """Write the report of a study into its folder, or into another one."""
    study = Study(root)
    place = Path(out) if out is not None else study.root
    document, finished, absent = read_study(study)
    sections = sections_of(document, finished, targets)
    if not sections:
        why = f" ({absent[0]})" if absent else ""
        raise RequestError(f"the study in {root} has no finished run{why}; run the same `abps compare` again")
    for number, section in enumerate(sections, 1):
        inside = "" if len(document["data"]) == 1 else f"{number}-{slug(section.part.data['name'])}"
        _write_tables(place / "tables" / inside, section)
        for drawing in section.drawings:
            drawing.save(place / "figures" / inside)
    files.write_text(place / "timing.csv", tables.as_csv(_timing(finished)))
    files.write_text(place / "report.html", page(document, sections, absent))
    return Report(place / "report.html", sections, absent)


def _write_tables(folder: Path, section: Section) -> None:
    for table in section.tables:
        files.write_text(folder / f"{table.name}.md", tables.as_markdown(table))
        files.write_text(folder / f"{table.name}.tex", tables.as_latex(table))
        plain = tables.numbers(section.part) if table.name == "headline" else table
        files.write_text(folder / f"{table.name}.csv", tables.as_csv(plain))
    for table in (tables.runs(section.part), tables.centers(section.part)):
        files.write_text(folder / f"{table.name}.csv", tables.as_csv(table))


def _timing(finished: Mapping[str, Sequence[tuple[PlannedRun, dict[str, Any]]]]) -> tables.Table:
    """How long each run took: apart from the tables, because it changes from time to time."""
    rows = tuple(
        (run.label, str(run.seed), result["data"]["name"], str(result["rounds"]), f"{result['seconds']:.3f}")
        for runs in finished.values()
        for run, result in runs
    )
    return tables.Table("timing", "Seconds per run.", ("method", "seed", "data", "rounds", "seconds"), rows)
