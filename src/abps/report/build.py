"""From a study to its report: tables, figures and one page."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from abps import files
from abps.core.errors import RequestError
from abps.data.repairs import RULES
from abps.engine.result import Run
from abps.evaluate.verdicts import MARGIN
from abps.report import study_tables, tables
from abps.report.analysis import Part, analyse
from abps.report.answer import FirstScreen, first_screen
from abps.report.clinical_part import ClinicalPart, clinical_part, within
from abps.report.figures import Drawing, draw_all
from abps.report.forest import calibration_picture, forest, shown_in_forest
from abps.report.hospitals import HospitalStory, hospitals_of
from abps.report.pages.document import render
from abps.report.privacy import PrivacyPart, privacy_part
from abps.report.study_tables import findings, in_ten
from abps.report.tables import Table
from abps.study.compare import Study
from abps.study.execute import words_of
from abps.study.plan import Request, slug
from abps.study.records import StudyFolder


@dataclass(frozen=True, eq=False)
class Section:
    """One federation's part of the report."""

    part: Part
    first: FirstScreen
    hospitals: tuple[HospitalStory, ...]
    findings: list[str]
    tables: list[Table]
    drawings: list[Drawing]
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


def parts_of(study: Study, margin: float = MARGIN, look: int = 1) -> list[Part]:
    """The analysis of every federation that has finished runs."""
    parts = []
    for data in study.record.data:
        planned = [run for run in study.record.runs if run.data == data.fingerprint]
        methods = {run.label: run.method for run in planned}
        inside: dict[str, list[Run]] = {run.label: [] for run in planned}
        for run, result in study.runs:
            if run.data == data.fingerprint:
                inside[run.label].append(result)
        finished = {label: found for label, found in inside.items() if found}
        if finished:
            parts.append(analyse(data, finished, methods, margin, look))
    if not parts:
        where = f" in {study.root}" if study.root else ""
        why = f" ({study.absent[0]})" if study.absent else ""
        raise RequestError(f"the study{where} has no finished run{why}; ask for the same comparison again")
    return parts


def headlines(study: Study) -> list[Table]:
    """The headline table of every federation of a study."""
    return [study_tables.headline(part) for part in parts_of(study)]


def figures(study: Study) -> list[Drawing]:
    """Every figure that the runs of a study's first federation allow."""
    return draw_all(parts_of(study)[0])


def section_of(part: Part, privacy: PrivacyPart | None = None, number: int = 1) -> Section:
    """Words, tables and figures of one federation."""
    hospitals = hospitals_of(part)
    return Section(
        part,
        first_screen(part, hospitals, brief=number > 1),
        hospitals,
        findings(part),
        [study_tables.headline(part)],
        draw_all(part),
        clinical_part(part),
        privacy,
    )


def build(study: Study, out: Path, margin: float | None = None) -> Report:
    """Write the report of a study into a folder.

    margin: methods that differ by less are equal.
    """
    seeds = sorted({run.seed for _, run in study.runs})
    look = 1 if study.root is None else StudyFolder(study.root).count_look(seeds)
    parts = parts_of(study, MARGIN if margin is None else margin, look)
    sections = [section_of(part, privacy_part(study, part), k) for k, part in enumerate(parts, 1)]
    for number, section in enumerate(sections, 1):
        inside = "" if len(study.record.data) == 1 else f"{number}-{slug(section.part.data.name)}"
        _write_tables(out / "tables" / inside, section)
        for drawing in (*section.drawings, *section.clinical.drawings):
            drawing.save(out / "figures" / inside)
    files.write_text(out / "timing.csv", tables.as_csv(_timing(study)))
    tuned = words_of(study.record.choices, study.record.request.tune)
    files.write_text(out / "report.html", page(study.record.request, sections, study.absent, tuned=tuned))
    return Report(out / "report.html", sections, study.absent, tuned)


def _write_tables(folder: Path, section: Section) -> None:
    for table in section.sheets:
        files.write_text(folder / f"{table.name}.md", tables.as_markdown(table))
        files.write_text(folder / f"{table.name}.tex", tables.as_latex(table))
        plain = study_tables.numbers(section.part) if table.name == "headline" else table
        files.write_text(folder / f"{table.name}.csv", tables.as_csv(plain))
    for table in (study_tables.runs(section.part), study_tables.centers(section.part)):
        files.write_text(folder / f"{table.name}.csv", tables.as_csv(table))


def _timing(study: Study) -> Table:
    """How long each run took: apart from the tables, because it changes from time to time."""
    rows = tuple(
        (planned.label, str(run.seed), run.data.name, str(run.rounds), f"{run.seconds:.3f}")
        for planned, run in study.runs
    )
    return Table("timing", "Seconds per run.", ("method", "seed", "data", "rounds", "seconds"), rows)


# ---------------------------------------------------------------- the page


@dataclass(frozen=True)
class Download:
    """A file inside the page."""

    name: str
    address: str


@dataclass(frozen=True, eq=False)
class View:
    """What a section shows besides its words: the plots, the files, and what was noticed about the data."""

    forest: Markup
    whole_forest: Markup
    drawings: list[Drawing]
    clinical_drawings: list[Drawing]
    downloads: list[Download]
    warnings: list[str]


def page(
    request: Request,
    sections: Sequence[Section],
    absent: Sequence[str],
    tuned: Sequence[str] = (),
) -> str:
    """The page of a study."""
    versions = sections[0].part.lines[0].result.runs[0].versions
    names = ", ".join(section.part.data.name for section in sections)
    return render(
        "report.html",
        title=f"{names} – federated comparison",
        views=[_view(section, number) for number, section in enumerate(sections, 1)],
        request=request,
        sections=sections,
        absent=absent,
        tuned=tuned,
        versions=versions,
        rules=RULES,
        within=within,
        in_ten=in_ten,
        curve=calibration_picture,
    )


def _view(section: Section, number: int) -> View:
    part, hospitals, found = section.part, section.hospitals, section.part.primary
    drawn = whole = Markup()
    if found is not None:
        drawn = forest(hospitals, found, part.measure, number)
        if len(shown_in_forest(hospitals)) and "gap" in drawn:
            whole = forest(hospitals, found, part.measure, number, whole=True)
    sheets = [study_tables.hospitals(part, hospitals)] if hospitals else []
    sheets += [study_tables.numbers(part), study_tables.centers(part), *section.clinical.tables]
    sheets += section.privacy.tables if section.privacy is not None else []
    return View(
        drawn,
        whole,
        [drawing.apart(number) for drawing in section.drawings],
        [drawing.apart(number) for drawing in section.clinical.drawings],
        [Download(f"{sheet.name}.csv", _inline(tables.as_csv(sheet))) for sheet in sheets],
        _warnings(section),
    )


def _warnings(section: Section) -> list[str]:
    """What was noticed about the table, each thing once."""
    check = section.part.data.check
    if check is None:
        return []
    return list(dict.fromkeys(check.remarks))


def _inline(text: str) -> str:
    """A CSV file as an address that needs no network."""
    return f"data:text/csv;charset=utf-8;base64,{base64.b64encode(text.encode()).decode()}"
