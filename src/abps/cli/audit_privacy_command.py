"""``abps audit-privacy``: what a partner could infer from a study's exchanges, and what was spent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abps.cli import options
from abps.core.errors import RequestError

if TYPE_CHECKING:
    from abps.data.federation import Federation
    from abps.lab.privacy_attacks import Protection
    from abps.lab.privacy_findings import Inferred
    from abps.methods.base import Method
    from abps.study.plan import PlannedRun
    from abps.study.records import StudyRecord

#: Training rows of the centers that are attacked, unless told.
SIZES = (13, 40, 200)

#: The settings of private training that hide a row, taken back.
WITHOUT_NOISE = {"dp_epsilon": None, "sampling": 1.0, "noise_multiplier": 0.0, "clip": None}

AS_IT_RAN = "as it ran"


def audit_privacy(
    study: Annotated[
        Path, typer.Argument(help="The folder of a study (`abps compare`) or of a run (`abps run`).")
    ],
    columns: options.DataOptions,
    method: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated methods of the study. Default: abps-plus, or the first that sends models."
        ),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated training rows of the attacked centers. Default: 13, 40, 200, where found."
        ),
    ] = None,
    rounds: Annotated[
        str | None,
        typer.Option(help="Comma-separated rounds to attack. Default: the first, and the 10th or last."),
    ] = None,
    epsilon: Annotated[
        str, typer.Option(help="Comma-separated ε of private training to compare with; empty: none.")
    ] = "8,2",
    out: Annotated[Path | None, typer.Option(help="Folder to write to. Default: the study's own.")] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Table of a run made from a file; name its columns as for `abps run`."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Attack a study's exchanges by membership and attribute inference, with and without protection.

    Recomputes ε from every ledger in the folder (privacy.json). Writes audit-privacy.md and .csv, and adds
    the findings to the study's report. For a folder with sites' exports alone, it only recomputes ε.

    Example: abps audit-privacy my-study --sizes 40 --epsilon 4
    """
    from abps.engine.output import PRIVACY
    from abps.report.privacy import conclusions, write

    if not study.is_dir():
        raise RequestError(f"{study}: no such folder; give the --out of `abps compare` or `abps run`")
    if not _ran_here(study) and any(study.rglob(PRIVACY)):
        _only_ledgers(study, as_json)
        return
    asked = Asked(
        None if sizes is None else _numbers(sizes, "--sizes", int),
        None if rounds is None else _numbers(rounds, "--rounds", int),
        _numbers(epsilon, "--epsilon", float),
    )
    found = [_attacked(each, asked) for each in _what_ran(study, method, (data, columns))]
    spent, differ = _ledgers(study)
    written = write(out or study, found, spent)
    page = _report_again(study) if out is None else None
    if as_json:
        findings = [{"method": each.method} | vars(f) for each in found for f in each.findings]
        told = {"methods": [each.method for each in found], "findings": findings, "ledgers": spent}
        print(json.dumps(told | {"report": None if page is None else str(page)}))
    else:
        for line in (*conclusions(found), *spent):
            options.terminal().print(line, soft_wrap=True)
        options.terminal().print(f"written to {written[0]} and {written[1].name}", soft_wrap=True)
        if page is not None:
            options.terminal().print(f"report: {page}", soft_wrap=True)
    if differ:
        raise RequestError(f"{differ[0]}: the ε that is written does not follow from its releases")


@dataclass(frozen=True)
class Asked:
    """How to attack; None: as the study allows."""

    sizes: list[int] | None
    rounds: list[int] | None
    budgets: list[float]


@dataclass(frozen=True, eq=False)
class Ran:
    """What is attacked.  key: of a study's run."""

    label: str
    config: Method
    federation: Federation
    seed: int
    key: str = ""


def _attacked(ran: Ran, asked: Asked) -> Inferred:
    from abps.data.prepare import prepare
    from abps.lab.privacy_attacks import audit, fitting
    from abps.lab.privacy_findings import Inferred
    from abps.methods.accounting import counting_of, with_noise

    config = with_noise(ran.config)
    last = config.stop.rounds
    rounds = sorted({1, min(10, last)}) if asked.rounds is None else asked.rounds
    if max(rounds) > last:
        raise RequestError(f"--rounds {max(rounds)}: {ran.label} ran for {last} rounds; choose up to {last}")
    prepared = prepare(
        ran.federation,
        ran.seed,
        standardise=config.training.standardise,
        splines=config.training.splines,
        min_cell=config.privacy.min_cell,
        histograms=counting_of(config, ran.seed),
    )
    sizes = fitting(prepared, SIZES) if asked.sizes is None else asked.sizes
    protections = _protections(config, asked.budgets)
    return Inferred(
        ran.label, ran.seed, ran.key, tuple(audit(config, prepared, ran.seed, sizes, rounds, protections))
    )


def _report_again(folder: Path) -> Path | None:
    """The page of a study that has one, with what was found."""
    from abps.report.comparison import load_study
    from abps.study.records import StudyFolder

    if not StudyFolder(folder).path.exists() or not (folder / "report.html").exists():
        return None
    return load_study(folder).report().page


def _ran_here(folder: Path) -> bool:
    """Whether the folder holds a study or a run, and not only what sites exported of theirs."""
    from abps.engine.output import RESULT
    from abps.study.records import StudyFolder

    return StudyFolder(folder).path.exists() or (folder / RESULT).exists()


def _only_ledgers(folder: Path, as_json: bool) -> None:
    """Compute ε again from the accounts that sites exported."""
    spent, differ = _ledgers(folder)
    if as_json:
        print(json.dumps({"ledgers": spent}))
    else:
        for line in spent:
            options.terminal().print(line, soft_wrap=True)
    if differ:
        raise RequestError(f"{differ[0]}: the ε that is written does not follow from its releases")


def _numbers(text: str, flag: str, kind: type) -> list[Any]:
    try:
        values = [kind(part) for part in options.split(text)]
    except ValueError as error:
        raise RequestError(f"{flag} {text}: give numbers with commas between") from error
    if any(value <= 0 for value in values):
        raise RequestError(f"{flag} {text}: give numbers above 0")
    return values


def _what_ran(folder: Path, method: str | None, source: tuple[str | None, options.DataOptions]) -> list[Ran]:
    """What of a folder is to be attacked: methods of a study, with their first seeds, or a run."""
    from abps.engine.output import RESULT
    from abps.study.records import StudyFolder

    there = StudyFolder(folder)
    if there.path.exists():
        record = there.read()
        found = _chosen(folder, record, method)
        federations = [each.load() for each in record.request.sources]
        known = {each.fingerprint(): each for each in federations}
        for run in found:
            if run.data not in known:
                raise RequestError(
                    f"{folder}: the data of {run.label!r} are not what they were; run it again"
                )
        return [Ran(run.label, run.config(), known[run.data], run.seed, run.key) for run in found]
    if not (folder / RESULT).exists():
        raise RequestError(f"{folder} holds neither a study nor a run; give the --out of `abps compare`")
    return [_one_run(folder, source)]


def _chosen(folder: Path, record: StudyRecord, method: str | None) -> list[PlannedRun]:
    """The first run of every method that was asked for."""
    from abps.lab.privacy_attacks import sends_updates

    first: dict[str, PlannedRun] = {}
    for run in record.runs:
        if not run.leave_out and sends_updates(run.config()):
            first.setdefault(run.label, run)
    if not first:
        raise RequestError(f"{folder}: no method of this study sends what follows from steps on rows")
    if method is None:
        return [
            next((run for run in first.values() if run.method == "abps-plus"), next(iter(first.values())))
        ]
    wanted = options.split(method)
    for name in wanted:
        if name not in first:
            raise RequestError(
                f"--method {name}: no such method here sends what follows from steps on rows; "
                f"choose from {', '.join(first)}"
            )
    return [first[name] for name in dict.fromkeys(wanted)]


def _one_run(folder: Path, source: tuple[str | None, options.DataOptions]) -> Ran:
    from abps.engine.output import load_run
    from abps.lab.privacy_attacks import sends_updates
    from abps.methods.settings import configure, undescribed

    run = load_run(folder)
    data, columns = source
    federation = columns.federation(data or run.data.name)
    if federation.fingerprint() != run.data.fingerprint:
        raise RequestError(
            f"{folder}: the run was made from other rows than {data or run.data.name!r}; "
            "name the same table and columns with --data, --label and --center"
        )
    config = undescribed(configure(run.method), run.config)
    if not sends_updates(config):
        raise RequestError(
            f"{folder}: {run.method!r} sends nothing that follows from steps on rows: nothing to attack"
        )
    return Ran(run.method, config, federation, run.seed)


def _protections(config: Method, budgets: list[float]) -> list[Protection]:
    """What is compared: as it ran, without rounding on the wire, and with what hides rows, or without it."""
    from abps.lab.privacy_attacks import Protection
    from abps.methods.settings import names
    from abps.methods.star import StarMethod

    found = [Protection(AS_IT_RAN, {})]
    if "codec" in names(config) and config.line.codec != "fp32":
        found.append(Protection("all digits", {"codec": "fp32"}))
    if isinstance(config, StarMethod) and config.adds is not None and not config.noted:
        secure = config.privacy.secure
        found.append(Protection("without masks" if secure else "masked sums", {"secure": not secure}))
    if config.privacy.budget is not None:
        found.append(Protection("no noise", WITHOUT_NOISE))
    elif config.training.model in ("mlp", "linear", "gam"):
        found += [Protection(f"ε = {b:g}", {"clip": 1.0, "dp_epsilon": b}) for b in budgets]
    return found


def _ledgers(folder: Path) -> tuple[list[str], list[str]]:
    """A sentence for every ledger in the folder, and the files whose ε does not follow."""
    from abps.engine.output import PRIVACY
    from abps.privacy.budget import recount

    said, differ = [], []
    for path in sorted(folder.rglob(PRIVACY)):
        try:
            found = recount(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, RequestError) as error:
            raise RequestError(f"{path}: {error}") from error
        said.append(f"{path.parent.name}: ε computed again is {found.most:.3f} at most, {found.words}.")
        if found.wrong:
            differ.append(str(path))
    return said, differ
