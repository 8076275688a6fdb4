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
    from abps.methods.base import Method
    from abps.simulator.inference import Protection


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("audit-privacy")(audit_privacy)


def audit_privacy(
    study: Annotated[
        Path, typer.Argument(help="The folder of a study (`abps compare`) or of a run (`abps run`).")
    ],
    method: Annotated[
        str | None, typer.Option(help="A method of the study; default: the first that sends something.")
    ] = None,
    sizes: Annotated[str, typer.Option(help="Training rows of a center, with commas.")] = "13,40,200",
    rounds: Annotated[str, typer.Option(help="In which rounds to attack, with commas.")] = "1,10",
    epsilon: Annotated[
        str, typer.Option(help="Budgets of private training to compare with, with commas; empty: none.")
    ] = "8,2",
    out: Annotated[Path | None, typer.Option(help="Write here instead of into the folder.")] = None,
    data: Annotated[
        str | None, typer.Option(help="The table of a run that was made from a file; with its columns.")
    ] = None,
    label: options.Label = None,
    center: options.Center = None,
    patient: options.Patient = None,
    time: options.Time = None,
    as_json: options.Json = False,
) -> None:
    """Attack a study's exchanges: who was learned from, and what they have; with and without protection.

    Computes ε again from every ledger in the folder (privacy.json). Writes audit-privacy.md and .csv. Of a
    folder with exports of sites alone, it computes ε again and attacks nothing.
    Example: abps audit-privacy my-study --sizes 40 --epsilon 4
    """
    from abps.data.prepare import prepare
    from abps.report.privacy import conclusions, write
    from abps.simulator.inference import audit
    from abps.simulator.output import PRIVACY

    if not study.is_dir():
        raise RequestError(f"{study}: no such folder; give the --out of `abps compare` or `abps run`")
    if not _ran_here(study) and any(study.rglob(PRIVACY)):
        _only_ledgers(study, as_json)
        return
    source = (data, label, center, patient, time)
    name, config, federation, seed = _what_ran(study, method, source)
    training = config.training
    prepared = prepare(
        federation,
        seed,
        standardise=training.standardise,
        splines=training.splines,
        floor=config.privacy.floor,
    )
    protections = _protections(config, _numbers(epsilon, "--epsilon", float))
    found = audit(
        config,
        prepared,
        seed,
        _numbers(sizes, "--sizes", int),
        _numbers(rounds, "--rounds", int),
        protections,
    )
    spent, differ = _ledgers(study)
    written = write(out or study, name, found, spent)
    if as_json:
        print(json.dumps({"method": name, "findings": [vars(f) for f in found], "ledgers": spent}))
    else:
        for line in (*conclusions(found), *spent):
            options.terminal().print(line, soft_wrap=True)
        options.terminal().print(f"written to {written[1]} and {written[0].name}", soft_wrap=True)
    if differ:
        raise RequestError(f"{differ[0]}: the ε that is written does not follow from its releases")


def _ran_here(folder: Path) -> bool:
    """Whether the folder holds a study or a run, and not only what sites exported of theirs."""
    from abps.simulator.output import RESULT
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


def _what_ran(
    folder: Path, method: str | None, source: tuple[str | None, ...]
) -> tuple[str, Method, Federation, int]:
    """The method, its configuration, the federation and the seed to audit."""
    from abps.simulator.output import RESULT
    from abps.study.records import StudyFolder

    there = StudyFolder(folder)
    if there.path.exists():
        record = there.read()
        for run in record.runs:
            config = run.config()
            if (run.label == method) if method else config.kind != "alone":
                for each in record.request.sources:
                    federation = each.load()
                    if federation.fingerprint() == run.data:
                        return run.label, config, federation, run.seed
                raise RequestError(
                    f"{folder}: the data of {run.label!r} are not what they were; run it again"
                )
        raise RequestError(f"{folder}: no method {method or 'that sends something'!r} in this study")
    if not (folder / RESULT).exists():
        raise RequestError(f"{folder} holds neither a study nor a run; give the --out of `abps compare`")
    return _one_run(folder, source)


def _one_run(folder: Path, source: tuple[str | None, ...]) -> tuple[str, Method, Federation, int]:
    from abps.methods.settings import configure, undescribed
    from abps.simulator.output import load_run

    run = load_run(folder)
    data, label, center, patient, time = source
    federation = options.federation(data or run.data.name, label, center, patient, time, None, "", None)
    if federation.fingerprint() != run.data.fingerprint:
        raise RequestError(
            f"{folder}: the run was made from other rows than {data or run.data.name!r}; "
            "name the same table and columns with --data, --label and --center"
        )
    config = undescribed(configure(run.method), run.config)
    if config.kind == "alone":
        raise RequestError(f"{folder}: {run.method!r} sends nothing, so nothing can be inferred from it")
    return run.method, config, federation, run.seed


def _protections(config: Method, budgets: list[float]) -> list[Protection]:
    """What is compared: as it ran, without rounding on the wire, and with private training."""
    from abps.methods.settings import names
    from abps.simulator.inference import Protection

    found = [Protection("as it ran", {})]
    if "codec" in names(config) and config.line.codec != "fp32":
        found.append(Protection("all digits", {"codec": "fp32"}))
    if config.privacy.budget is None and config.training.model in ("mlp", "linear", "gam"):
        found += [Protection(f"ε = {b:g}", {"clip": 1.0, "dp_epsilon": b}) for b in budgets]
    return found


def _ledgers(folder: Path) -> tuple[list[str], list[str]]:
    """A sentence for every ledger in the folder, and the files whose ε does not follow."""
    from abps.privacy.spending import recomputed
    from abps.simulator.output import PRIVACY

    said, differ = [], []
    for path in sorted(folder.rglob(PRIVACY)):
        try:
            both = recomputed(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, RequestError) as error:
            raise RequestError(f"{path}: {error}") from error
        wrong = [name for name, (written, again) in both.items() if abs(written - again) > 1e-6 * (1 + again)]
        most = max((again for _, again in both.values()), default=0.0)
        verdict = f"differs from what is written at {', '.join(wrong[:3])}" if wrong else "as it is written"
        said.append(f"{path.parent.name}: ε computed again is {most:.3f} at most, {verdict}.")
        if wrong:
            differ.append(str(path))
    return said, differ
