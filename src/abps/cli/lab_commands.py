"""``abps methods``, ``theory``, ``drift``, ``bench``, ``benchmark``, ``audit-privacy``: the laboratory."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from abps.cli import options
from abps.core.errors import RequestError, nearest

if TYPE_CHECKING:
    import polars as pl

    from abps.data.federation import Federation
    from abps.data.prepare import Prepared
    from abps.lab.drift_analysis import Drift
    from abps.privacy.attack_findings import PrivacyAudit
    from abps.study.plan import PlannedRun
    from abps.study.records import StudyRecord

COLOURS = {"holds": "green", "unproven": "yellow", "fails": "red"}


def methods(
    check: Annotated[str | None, "Check a method (also package.module:CONFIG) as ours are."] = None,
    as_json: options.Json = False,
) -> None:
    """List every method with its paper and its defaults (--json for machines)."""
    from abps.methods.catalog import CATALOG, METHODS, find
    from abps.methods.settings import describe

    if check is not None:
        from abps.checks import check_method

        passed = check_method(find(check), name=check)
        print(json.dumps({"method": check, "passed": passed}) if as_json else f"{check}: {', '.join(passed)}")
        return
    if as_json:
        every = [{"name": name, **vars(e), "config": describe(e.config)} for name, e in CATALOG.items()]
        print(json.dumps(every))
        return
    rows = [(n, e.family, e.summary, e.source, _defaults(describe(e.config))) for n, e in CATALOG.items()]
    for name, place in METHODS.others().items():
        rows.append((name, "installed", place, "", _defaults(describe(find(name)))))
    head = ("method", "family", "what it is", "from", "defaults")
    title = "methods (every setting: abps methods --json; change one with --set key=value)"
    options.terminal().print(options.rows_table(head, rows, title, left=head))


def _defaults(config: dict[str, Any]) -> str:
    wire, stop = config.get("wire"), config["stop"]
    parts = [f"{stop['rounds']} rounds" + (f", patience {stop['patience']}" if stop["patience"] else "")]
    if wire is not None:
        private = f", {wire['private_layers']} private" if wire["private_layers"] else ""
        parts.append(wire["codec"] + private)
    for name, value in config.items():
        if name == "selection":
            parts.append(f"κ={value['kappa']}")
        elif isinstance(value, int | float) and not isinstance(value, bool) and value not in (0, 1):
            parts.append(f"{name}={value:g}")
    return ", ".join(parts)


def theory(
    out: options.Out = Path("abps-theory"),
    seed: options.Seed = 11,
    as_json: options.Json = False,
) -> None:
    """Check the theorems and the lemma by simulation with known utilities; write a page with figures.

    Concentration of beliefs, regret of choosing partners, when resting is best: what holds as printed, what
    holds with a correction, and what does not.

    Writes report.html (one file), theory.json, figures (SVG, PDF) and tables (CSV).

    Example: abps theory --out theory
    """
    from abps.lab.theory import check

    with options.progress_bar(TimeElapsedColumn()) as progress:
        checked = check(seed, progress)
    from abps.lab.theory_page import summary, write  # draws, once there is something to draw

    page = write(out, checked)
    if as_json:
        print(json.dumps({**summary(checked), "report": str(page)}, ensure_ascii=False))
        return
    table = Table("statement", "verdict", "found", title="Guarantees, checked", show_lines=True)
    for claim in checked.claims:
        table.add_row(claim.name, Text(claim.verdict, COLOURS[claim.verdict]), claim.found)
    options.terminal().print(table)
    options.terminal().print(f"written to {page}", soft_wrap=True)


def bench(
    data: Annotated[str, "Built-in federation, or uniform:CENTERSxROWSxFEATURES."] = "icu-synthetic",
    model: options.Model = None,
    turns: Annotated[int, typer.Option(min=1, help="Number of measurements of each, in turns.")] = 5,
    scale: Annotated[bool, "Also measure selection among and abps-plus on many centers."] = False,
    as_json: options.Json = False,
) -> None:
    """Measure local training against a plain PyTorch loop and the machine's matrix-multiply speed."""
    from abps.data.prepare import prepare
    from abps.data.table import load
    from abps.lab import speed
    from abps.models.training import Training

    training = Training.of(model or "mlp")
    if data.startswith("uniform"):
        prepared = _uniform(data)
    else:
        prepared = prepare(load(data), 11, standardise=training.standardise, splines=training.splines)
    with options.terminal(stderr=True).status("measuring in turns") as status:

        def progress(k: int, of: int) -> None:
            status.update(f"turn {k} of {of}")

        found = asdict(speed.measure(prepared, turns, progress=progress, training=training))
        costs: dict[str, dict[str, float]] = {}
        for name, work, sizes in (
            ("select_s_per_round select_peak_mb", speed.selection_cost, speed.SIZES),
            ("abps_plus_s abps_plus_peak_mb", speed.fit_cost, speed.FIT_SIZES),
        ):
            for n in sizes if scale else ():
                status.update(f"{name.split('_')[0]}: {n:,} centers")
                for measure, value in zip(name.split(), speed.in_its_own_process(work, n)):
                    costs.setdefault(measure, {})[str(n)] = value
    if as_json:
        print(json.dumps(found | costs))
        return
    rows = [(name.replace("_", " "), f"{value:,.4g}") for name, value in found.items()]
    for name, each in costs.items():
        rows += [(f"{name.replace('_', ' ')}, {n} centers", f"{value:,.4g}") for n, value in each.items()]
    options.terminal().print(options.rows_table(("measured", "found"), rows, prepared.name))


def _uniform(spec: str) -> Prepared:
    """``uniform`` or ``uniform:230x256x64``."""
    from abps.lab import speed

    found = re.fullmatch(r"uniform(?::([1-9]\d*)x([1-9]\d*)x([1-9]\d*))?", spec)
    if found is None:
        raise RequestError(f"--data {spec}: write uniform:CENTERSxROWSxFEATURES, as in uniform:230x256x64")
    return speed.uniform(*(int(number) for number in found.groups() if number))


def benchmark(
    cluster: options.ClusterOptions,
    out: options.Out = Path("abps-benchmark"),
    methods: Annotated[str, "Methods with commas between; also package.module:CONFIG, and method@model."] = (
        "fedavg,glmm,random-k1,abps-pq-k1,abps-plus,abps-k1-rests,abps-k1-never-rests,fedprox,feddyn,scaffold,"
        "fedrep,ditto,fedmap,ifca,clustered,pfedgraph,odal,boosting,fedavg@mlp"
    ),
    federations: Annotated[str, "Comma-separated names, real, synthetic, or all."] = "all",
    data_folder: Annotated[Path | None, "Folder with the real tables; nothing is downloaded."] = None,
    describe: Annotated[list[Path] | None, "A TOML file that describes a federation of your own."] = None,
    seeds: Annotated[str, "Repeats: new folds of a table, new worlds of a generator."] = "11,22,33,44,55",
    model: Annotated[str, "What every method shares: gam, linear or mlp."] = "gam",
    codec: Annotated[str, "How all methods that send weights write them."] = "bf16",
    rows: Annotated[int | None, "Rows to cut to, in whole hospitals (0: all; default: as described)."] = None,
    folds: Annotated[int, "Folds; every patient is scored out of fold."] = 5,
    rounds: Annotated[int, "Rounds of methods whose server averages models."] = 20,
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1,
    list_: Annotated[bool, typer.Option("--list", help="List the federations and what is missing.")] = False,
) -> None:
    """Compare methods over many federations: scores with intervals, ranks, bytes, harm, time.

    The defaults make the page docs/benchmark.md, in about an hour on two cores; what is finished in OUT is
    not computed again.

    Example: abps benchmark --methods fedavg,abps-plus --federations real --data-folder tables --out bench
    """
    from abps.lab import benchmark as lab
    from abps.lab import benchmark_page
    from abps.lab.suite import missing, suite

    known, console = suite(describe or []), options.terminal()
    if list_:
        for name, each in known.items():
            reason = missing(each, data_folder)
            console.print(f"{name}: {each.title}; {each.licence}{f'; missing: {reason}' if reason else ''}")
        return
    chosen = {}
    for word in options.split(federations):
        some = [e for e in known.values() if word in ("all", "real" if e.real else "synthetic", e.name)]
        if not some:
            raise RequestError(f"--federations {word}: no such federation{nearest(word, known)}")
        for each in some:
            reason = missing(each, data_folder)
            if not reason:
                chosen[each.name] = each
            elif each.name == word:
                raise RequestError(f"{word}: {reason}")
            else:
                console.print(f"left out: {each.name}: {reason}")
    if not chosen:
        raise RequestError("no federation is left; see `abps benchmark --list`")
    setup = lab.Setup(model, codec, folds, rows, rounds, jobs, cluster.executor_of())
    asked, repeats = options.split(methods), list(options.read_seeds(seeds))
    say = options.terminal(stderr=True).print
    found = lab.run_benchmark(list(chosen.values()), asked, repeats, data_folder, out, setup, say)
    benchmark_page.write(found, out)
    for name, part in benchmark_page.sections(lab.to_frame(found.rows)).items():
        console.print(benchmark_page.conclusion(name, lab.ranking(part)))
    console.print(f"written: {out / 'benchmark.html'}, {out / 'benchmark.csv'}")


def drift(
    data: options.Data = "icu-synthetic",
    out: options.Out = Path("abps-drift"),
    label: options.Label = None,
    center: options.Center = None,
    group: options.Group = None,
    time: options.Time = None,
    era: Annotated[str | None, "Column with eras. Default: era, anchor_year_group, or --time."] = None,
    between: Annotated[str, "Two comma-separated eras. Default: first and last."] = "",
    columns: Annotated[str, "Comma-separated columns to compare. Default: the means of the vitals."] = "",
    window: Annotated[int, "Width of the windows of --time, in years."] = 2,
    deviations: Annotated[float, "Outlier rule: standard deviations from the era's mean."] = 3.0,
    as_json: options.Json = False,
) -> None:
    """Test a table for drift: vitals between eras, outcome between centers, windows against eras.

    Writes drift.json, drift.html (one file) and the figures. A table from `abps cohort` or `abps partition`
    knows its columns; for another one name them.

    Example: abps drift --data cohort.parquet --between "2008 - 2010,2020 - 2022" --out drift
    """
    from abps import files
    from abps.data.federation import is_builtin
    from abps.lab import drift_analysis as analysis
    from abps.lab import drift_page as report

    table, roles = _read(data)
    pair = options.split(between)
    if pair and len(pair) != 2:
        raise RequestError(f"--between {between!r} must name two eras with one comma between")
    label = label or roles.get("label")
    if label is None:
        raise RequestError(f"--data {data}: name the column to predict with --label COL")
    eras, compared = (pair[0], pair[1]) if pair else None, options.split(columns)
    question = analysis.Question(
        label, center or roles.get("center"), group or roles.get("group"), time or roles.get("time"),
        era, eras, compared, window, deviations,
    )  # fmt: skip
    found = analysis.analyse(table, question)
    content, drawings = found.to_json(), report.draw_all(found)
    html = report.report(found, drawings, f"Drift in {data if is_builtin(data) else Path(data).stem}")
    files.folder(out)
    for drawing in drawings.values():
        drawing.save(out, "drift-")
    files.write_json(out / "drift.json", content)
    files.write_text(out / "drift.html", html)
    if as_json:
        print(json.dumps(content, ensure_ascii=False))
        return
    _say(found)
    typer.echo(f"written to {out}/drift.html")


def _read(data: str) -> tuple[pl.DataFrame, dict[str, str]]:
    """The table, and the roles that it knows itself."""
    from abps.data.federation import builtin_table, is_builtin
    from abps.data.roles import recorded_roles
    from abps.data.table import read_frame

    if is_builtin(data):
        table, own = builtin_table(data)
        return table, {k: v for k, v in vars(own).items() if v and k != "drop"}
    return read_frame(Path(data)), {k: v for k, v in recorded_roles(Path(data)).items() if k != "drop"}


def _say(found: Drift) -> None:
    from abps.report.document import p_value

    rows = []
    for shift in found.shifts:
        test, p = shift.test, (p_value(shift.p_holm), p_value(shift.spread_p_holm))
        pairs = (f"{a:{form}} | {b:{form}}" for (a, b), form in ((test.count, ","), (test.mean, ".4g")))
        rows.append((shift.column, *pairs, p[0], f"{test.sd[0]:.3g} | {test.sd[1]:.3g}", p[1]))
    head = ("column", "stays", "mean", "p (Holm)", "SD", "p (Holm)")
    console = options.terminal()
    console.print(options.rows_table(head, rows, f"{found.between[0]} compared with {found.between[1]}"))
    for column, reason in found.skipped:
        console.print(f"not compared: {column} ({reason})")


SIZES = (13, 40, 200)  # training rows of the centers that are attacked, by default


def audit_privacy(
    study: Annotated[Path, typer.Argument(help="Folder of a study (`abps compare`), or of sites' exports.")],
    method: Annotated[str, "Comma-separated methods of the study. Default: the first that sends."] = "",
    sizes: Annotated[str, "Comma-separated training rows of attacked centers. Default: 13, 40, 200."] = "",
    rounds: Annotated[str, "Comma-separated rounds to attack. Default: first, and 10th or last."] = "",
    epsilon: Annotated[str, "Comma-separated ε of private training to compare with; empty: none."] = "8,2",
    out: Annotated[Path | None, "Folder to write to. Default: the study's own."] = None,
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
    from abps.data.prepare import prepare
    from abps.lab.privacy_attacks import audit, fitting, protections
    from abps.methods.accounting import counting_of, with_noise
    from abps.privacy.attack_findings import PrivacyAudit

    if run.data not in known:
        raise RequestError(f"the data of {run.label!r} are not what they were; run the study again")
    config = with_noise(run.config())
    # Of abps-plus: the rounds in which it fits the common model.
    last = getattr(config, "steps", config.stop.rounds - 1) + 1
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
        raise RequestError(f"{folder}: no method of this study sends models or sums: nothing to attack")
    wanted = list(dict.fromkeys(options.split(method))) or [next(iter(first))]
    for name in wanted:
        if name not in first:
            known = ", ".join(first)
            raise RequestError(f"--method {name}: none such here sends models or sums; choose from {known}")
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
