"""From a study to its report: tables, figures and one page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from abps import files
from abps.core.errors import RequestError
from abps.data.repairs import RULES
from abps.engine.result import Run
from abps.evaluate.verdicts import MARGIN, HospitalVerdict
from abps.report import study_tables, tables
from abps.report.analysis import Part, analyse
from abps.report.answer import PLAIN_NAMES, FirstScreen, bytes_of, expectation, first_screen
from abps.report.clinical_part import ClinicalPart, clinical_part, within
from abps.report.document import render
from abps.report.figures import Drawing, draw_all
from abps.report.hospitals import ForestPlot, HospitalStory, forest, hospitals_of
from abps.report.privacy import PrivacyPart, privacy_part
from abps.report.study_tables import headline, spoken
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
    forest: ForestPlot | None
    headline: tables.Table
    drawings: tuple[Drawing, ...]
    clinical: ClinicalPart
    privacy: PrivacyPart
    expectation: str

    @property
    def losing(self) -> int:
        return sum(h.evidence.verdict is HospitalVerdict.LOSES for h in self.hospitals)

    @property
    def rounds(self) -> float:
        return 0.0 if self.part.lead is None else self.part.lead.average(lambda run: run.rounds)

    @property
    def warnings(self) -> list[str]:
        """What was noticed about the table, each thing once."""
        check = self.part.data.check
        return [] if check is None else list(dict.fromkeys(check.remarks))


@dataclass(frozen=True, eq=False)
class Report:
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


def headlines(study: Study) -> list[tables.Table]:
    """The headline table of every federation of a study."""
    return [headline(part) for part in parts_of(study)]


def figures(study: Study) -> list[Drawing]:
    """The figures of a study's first federation."""
    return draw_all(parts_of(study)[0])


def section_of(part: Part, privacy: PrivacyPart) -> Section:
    hospitals = hospitals_of(part)
    clinical = clinical_part(part, hospitals)
    drawings = [*draw_all(part), *([clinical.decisions] if clinical.decisions else [])]
    return Section(
        part,
        first_screen(part, hospitals),
        hospitals,
        forest(hospitals, part.primary),
        headline(part),
        tuple(drawings),
        clinical,
        privacy,
        expectation(part),
    )


def build(study: Study, out: Path, margin: float | None = None) -> Report:
    """Write the report of a study into a folder.  margin: methods that differ by less are equal."""
    seeds = sorted({run.seed for _, run in study.runs})
    look = 1 if study.root is None else StudyFolder(study.root).count_look(seeds)
    parts = parts_of(study, MARGIN if margin is None else margin, look)
    sections = [section_of(part, privacy_part(study, part)) for part in parts]
    for number, section in enumerate(sections, 1):
        inside = "" if len(study.record.data) == 1 else f"{number}-{slug(section.part.data.name)}"
        _write_tables(out / "tables" / inside, section)
        for drawing in section.drawings:
            drawing.save(out / "figures" / inside)
    files.write_text(out / "timing.csv", tables.as_csv(_timing(study)))
    tuned = words_of(study.record.choices, study.record.request.tune)
    files.write_text(out / "report.html", page(study.record.request, sections, study.absent, tuned))
    return Report(out / "report.html", sections, study.absent, tuned)


def _write_tables(folder: Path, section: Section) -> None:
    part = section.part
    shown = [section.headline, section.clinical.subgroups, section.privacy.inferred]
    for table in filter(None, shown):
        files.write_text(folder / f"{table.name}.md", tables.as_markdown(table))
        files.write_text(folder / f"{table.name}.tex", tables.as_latex(table))
    sheets = [study_tables.numbers(part), study_tables.runs(part), study_tables.centers(part), *shown[1:]]
    if section.hospitals:
        sheets.append(study_tables.hospitals(section.hospitals))
    for sheet in filter(None, sheets):
        files.write_text(folder / f"{sheet.name}.csv", tables.as_csv(sheet))


def _timing(study: Study) -> tables.Table:
    """How long each run took: apart from the tables, because it changes from time to time."""
    rows = tuple(
        (planned.label, str(run.seed), run.data.name, str(run.rounds), f"{run.seconds:.3f}")
        for planned, run in study.runs
    )
    return tables.Table("timing", "", ("method", "seed", "data", "rounds", "seconds"), rows)


def page(
    request: Request, sections: Sequence[Section], absent: Sequence[str], tuned: Sequence[str] = ()
) -> str:
    return render(
        "report.html",
        title=f"{', '.join(section.part.data.name for section in sections)} – federated comparison",
        request=request,
        sections=sections,
        absent=absent,
        tuned=tuned,
        versions=sections[0].part.lines[0].runs[0].versions,
        rules=RULES,
        within=within,
        spoken=spoken,
        bytes_of=bytes_of,
        plain_names=PLAIN_NAMES,
    )
