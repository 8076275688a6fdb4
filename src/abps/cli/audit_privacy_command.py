"""``abps audit-privacy``: what a partner could infer from a study's exchanges, and what was spent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abps.cli import options
from abps.core.errors import RequestError

if TYPE_CHECKING:
    from abps.data.federation import Federation
    from abps.privacy.attack_findings import PrivacyAudit
    from abps.study.plan import PlannedRun
    from abps.study.records import StudyRecord

#: Training rows of the centers that are attacked, by default.
SIZES = (13, 40, 200)


def audit_privacy(
    study: Annotated[Path, typer.Argument(help="Folder of a study (`abps compare`), or of sites' exports.")],
    method: Annotated[
        str, typer.Option(help="Comma-separated methods of the study. Default: the first that sends.")
    ] = "",
    sizes: Annotated[
        str, typer.Option(help="Comma-separated training rows of attacked centers. Default: 13, 40, 200.")
    ] = "",
    rounds: Annotated[
        str, typer.Option(help="Comma-separated rounds to attack. Default: the first, and the 10th or last.")
    ] = "",
    epsilon: Annotated[
        str, typer.Option(help="Comma-separated ε of private training to compare with; empty: none.")
    ] = "8,2",
    out: Annotated[Path | None, typer.Option(help="Folder to write to. Default: the study's own.")] = None,
    as_json: options.Json = False,
) -> None:
    """Attack a study's exchanges by membership and attribute inference, with and without protection.

    Recomputes ε from every ledger in the folder (privacy.json). Writes audit-privacy.md and .csv, and adds
    the findings to the study's report. For a folder with sites' exports alone, it only recomputes ε.

    Example: abps audit-privacy my-study --sizes 40 --epsilon 4
    """
    from abps.report.privacy import conclusions, write
    from abps.study.compare import load_study
    from abps.study.records import StudyFolder

    there, found, written = StudyFolder(study), [], []
    spent, differ = _ledgers(study)
    if there.path.exists():
        record = there.read()
        known = {each.fingerprint(): each for each in (source.load() for source in record.request.sources)}
        rows, at = _numbers(sizes, "--sizes", int), _numbers(rounds, "--rounds", int)
        budgets = _numbers(epsilon, "--epsilon", float)
        found = [_audit(run, known, rows, at, budgets) for run in _chosen(study, record, method)]
        written = write(out or study, found, spent)
    elif not spent:
        raise RequestError(f"{study} holds no study and no ledger; give the --out of `abps compare`")
    page = None
    if found and out is None and (study / "report.html").exists():  # the page again, with what was found
        page = load_study(study).report().page
    if as_json:
        findings = [{"method": each.method} | vars(f) for each in found for f in each.findings]
        content = {"methods": [each.method for each in found], "findings": findings, "ledgers": spent}
        print(json.dumps(content | {"report": None if page is None else str(page)}))
    else:
        lines = [*conclusions(found), *spent, *(f"written to {path}" for path in written[:1])]
        for line in lines + ([] if page is None else [f"report: {page}"]):
            options.terminal().print(line, soft_wrap=True)
    if differ:
        raise RequestError(f"{differ[0]}: the ε that is written does not follow from its releases")


def _audit(
    run: PlannedRun, known: dict[str, Federation], sizes: list[int], rounds: list[int], budgets: list[float]
) -> PrivacyAudit:
    """The attacks on one run of a study."""
    from abps.data.prepare import prepare
    from abps.lab.privacy_attacks import audit, fitting, protections
    from abps.methods.accounting import counting_of, with_noise
    from abps.privacy.attack_findings import PrivacyAudit

    if run.data not in known:
        raise RequestError(f"the data of {run.label!r} are not what they were; run the study again")
    config = with_noise(run.config())
    last = (
        getattr(config, "steps", config.stop.rounds - 1) + 1
    )  # of abps-plus: while it fits the common model
    rounds = rounds or sorted({1, min(10, last)})
    if max(rounds) > last:
        raise RequestError(f"--rounds {max(rounds)}: {run.label} ran for {last} rounds; choose up to {last}")
    prepared = prepare(
        known[run.data],
        run.seed,
        standardise=config.training.standardise,
        splines=config.training.splines,
        min_cell=config.privacy.min_cell,
        histograms=counting_of(config, run.seed),
    )
    sizes = sizes or fitting(prepared, SIZES)
    found = audit(config, prepared, run.seed, sizes, rounds, protections(config, budgets))
    return PrivacyAudit(run.label, run.seed, run.key, tuple(found))


def _numbers(text: str, flag: str, kind: type) -> list[Any]:
    values = options.numbers(text, flag, kind)
    if any(value <= 0 for value in values):
        raise RequestError(f"{flag} {text}: give numbers above 0")
    return values


def _chosen(folder: Path, record: StudyRecord, method: str) -> list[PlannedRun]:
    """The first run of every method that was asked for."""
    from abps.lab.privacy_attacks import attackable

    first: dict[str, PlannedRun] = {}
    for run in record.runs:
        if attackable(run.config()):
            first.setdefault(run.label, run)
    if not first:
        raise RequestError(
            f"{folder}: no method of this study sends models or sums, so there is nothing to attack"
        )
    wanted = list(dict.fromkeys(options.split(method))) or [next(iter(first))]
    for name in wanted:
        if name not in first:
            raise RequestError(
                f"--method {name}: no such method here sends models or sums; choose from {', '.join(first)}"
            )
    return [first[name] for name in wanted]


def _ledgers(folder: Path) -> tuple[list[str], list[str]]:
    """A sentence for every ledger in the folder, and the files whose ε does not follow."""
    from abps.engine.result import PRIVACY
    from abps.report.privacy import read_ledger, spent_words

    said, differ = [], []
    for path in sorted(folder.rglob(PRIVACY)):
        try:
            sentence, wrong = spent_words(path.parent.name, read_ledger(path))
        except RequestError as error:
            raise RequestError(f"{path}: {error}") from error
        said.append(sentence)
        differ += [str(path)] if wrong else []
    return said, differ
