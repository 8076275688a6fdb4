"""From a study to its report: tables, figures and one page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from abps import files
from abps.core.errors import RequestError
from abps.engine.result import Run
from abps.report import tables
from abps.report.clinical_part import ClinicalPart, clinical_part
from abps.report.figures import Drawing, draw_all
from abps.report.hospitals import Hospitals, hospitals_of
from abps.report.pages.study_page import page
from abps.report.privacy import PrivacyPart, privacy_part
from abps.report.statistics import MARGIN, Answer, Part, analyse, answers, gather
from abps.report.tables import Table
from abps.report.words import summary
from abps.study.plan import AWAY, PlannedRun, slug
from abps.study.tuning import words_of

if TYPE_CHECKING:
    from abps.report.comparison import Study


@dataclass(frozen=True, eq=False)
class Section:
    """One federation's part of the report.  privacy: not told while a study runs."""

    part: Part
    sentences: list[str]
    answers: list[Answer]
    tables: list[tables.Table]
    drawings: list[Drawing]
    hospitals: Hospitals | None
    clinical: ClinicalPart
    privacy: PrivacyPart | None = None

    @property
    def sheets(self) -> list[Table]:
        """The tables that are written beside the page."""
        return [*self.tables, *self.clinical.tables, *(self.privacy.tables if self.privacy else [])]


@dataclass(frozen=True, eq=False)
class Report:
    """A study's report as it was written."""

    page: Path
    sections: list[Section]
    absent: tuple[str, ...]
    tuned: tuple[str, ...] = ()


def parts_of(study: Study, margin: float = MARGIN) -> list[Part]:
    """The analysis of every federation that has finished runs."""
    parts = []
    for data in study.record.data:
        runs = [(planned, run) for planned, run in study.runs if planned.data == data.fingerprint]
        if not runs:
            continue
        by_label: dict[str, list[Run]] = {}
        stayed: dict[str, list[Run]] = {}
        method = {planned.label: planned.method for planned in study.record.runs}
        for planned, run in runs:
            if planned.leave_out:
                stayed.setdefault(planned.label.removesuffix(AWAY), []).append(run)
            else:
                by_label.setdefault(planned.label, []).append(run)
        mine = [r for r in study.record.runs if r.data == data.fingerprint]
        order = dict.fromkeys(r.label for r in mine if not r.leave_out)
        outside = {
            label: gather(f"{label}{AWAY}", method[label], found, centers_of(runs))
            for label, found in stayed.items()
        }
        centers = centers_of(runs)
        results = [
            gather(label, method[label], by_label[label], centers) for label in order if label in by_label
        ]
        if results:
            parts.append(analyse(data, results, centers, margin, outside))
    if not parts:
        where, why = (
            f" in {study.root}" if study.root else "",
            f" ({study.absent[0]})" if study.absent else "",
        )
        raise RequestError(f"the study{where} has no finished run{why}; ask for the same comparison again")
    return parts


def centers_of(runs: Sequence[tuple[PlannedRun, Run]]) -> list[str]:
    """The names of all centers that runs are about."""
    return sorted({center for _, run in runs for center in run.main.per_center})


def section_of(part: Part, targets: Sequence[float] | None, privacy: PrivacyPart | None = None) -> Section:
    """Words, tables and figures of one federation."""
    shown = [
        tables.headline(part),
        tables.direct(part),
        tables.equal_bytes(part),
        tables.targets(part, targets),
    ]
    found = hospitals_of(part)
    return Section(
        part, summary(part), answers(part), shown, draw_all(part), found, clinical_part(part, found), privacy
    )


def build(study: Study, out: Path, targets: Sequence[float] | None = None, margin: float = MARGIN) -> Report:
    """Write the report of a study into a folder.

    targets: AUROCs for the table of bytes needed; unless told, on the way from training alone to the best.
    margin: methods that differ by less are equal.
    """
    sections = [section_of(part, targets, privacy_part(study, part)) for part in parts_of(study, margin)]
    for number, section in enumerate(sections, 1):
        inside = "" if len(study.record.data) == 1 else f"{number}-{slug(section.part.data.name)}"
        _write_tables(out / "tables" / inside, section)
        for drawing in (*section.drawings, *section.clinical.drawings):
            drawing.save(out / "figures" / inside)
    files.write_text(out / "timing.csv", tables.as_csv(_timing(study)))
    told = words_of(study.record.choices, study.record.request.tune)
    files.write_text(out / "report.html", page(study.record.request, sections, study.absent, tuned=told))
    return Report(out / "report.html", sections, study.absent, told)


def _write_tables(folder: Path, section: Section) -> None:
    for table in section.sheets:
        files.write_text(folder / f"{table.name}.md", tables.as_markdown(table))
        files.write_text(folder / f"{table.name}.tex", tables.as_latex(table))
        plain = tables.numbers(section.part) if table.name == "headline" else table
        files.write_text(folder / f"{table.name}.csv", tables.as_csv(plain))
    for table in (tables.runs(section.part), tables.centers(section.part)):
        files.write_text(folder / f"{table.name}.csv", tables.as_csv(table))


def _timing(study: Study) -> tables.Table:
    """How long each run took: apart from the tables, because it changes from time to time."""
    rows = tuple(
        (planned.label, str(run.seed), run.data.name, str(run.rounds), f"{run.seconds:.3f}")
        for planned, run in study.runs
    )
    return tables.Table("timing", "Seconds per run.", ("method", "seed", "data", "rounds", "seconds"), rows)
