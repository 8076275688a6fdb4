"""``abps methods``, ``theory``, ``drift``, ``bench`` and ``benchmark``: what the laboratory measures."""

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

    from abps.data.prepare import Prepared
    from abps.lab.drift_analysis import Drift

COLOURS = {"holds": "green", "unproven": "yellow", "fails": "red"}


def methods(
    check: Annotated[
        str | None,
        typer.Option(help="Check a method (name or package.module:CONFIG) by the tests that ours pass."),
    ] = None,
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
        listed = [
            {"name": name, "family": e.family, "summary": e.summary, "source": e.source}
            | {"config": describe(e.config)}
            for name, e in CATALOG.items()
        ]
        print(json.dumps(listed))
        return
    table = Table(title="methods (every setting: abps methods --json; change one with --set key=value)")
    for column in ("method", "family", "what it is", "from", "defaults"):
        table.add_column(column, overflow="fold", no_wrap=column == "method")
    for name, e in CATALOG.items():
        table.add_row(name, e.family, e.summary, e.source, _defaults(describe(e.config)))
    for name, place in METHODS.others().items():
        table.add_row(name, "installed", place, "", _defaults(describe(find(name))))
    options.terminal().print(table)


def _defaults(config: dict[str, Any]) -> str:
    """The settings that characterise a method, in one line."""
    wire, stop = config.get("wire"), config["stop"]
    parts = [f"{stop['rounds']} rounds" + (f", patience {stop['patience']}" if stop["patience"] else "")]
    if wire is not None:
        parts.append(
            wire["codec"] + (f", {wire['private_layers']} private" if wire["private_layers"] else "")
        )
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
    table = Table(title="Guarantees, checked", show_lines=True)
    for column in ("statement", "verdict", "found"):
        table.add_column(column)
    for claim in checked.claims:
        table.add_row(claim.name, Text(claim.verdict, COLOURS[claim.verdict]), claim.found)
    options.terminal().print(table)
    options.terminal().print(f"written to {page}", soft_wrap=True)


def bench(
    data: Annotated[
        str, typer.Option(help="Built-in federation, or uniform:CENTERSxROWSxFEATURES (230x256x64).")
    ] = "icu-synthetic",
    model: options.Model = None,
    turns: Annotated[int, typer.Option(min=1, help="Number of measurements of each, in turns.")] = 5,
    scale: Annotated[
        bool, typer.Option("--scale", help="Also measure selection among and abps-plus on many centers.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Measure local training against a plain PyTorch loop and the machine's matrix-multiply speed."""
    from abps.data.prepare import prepare
    from abps.data.table import load
    from abps.lab import speed
    from abps.models.training import Training

    training = Training.of(model or "mlp")
    prepared = (
        _uniform(data)
        if data.startswith("uniform")
        else prepare(load(data), 11, standardise=training.standardise, splines=training.splines)
    )
    with options.terminal(stderr=True).status("measuring in turns") as status:
        found = asdict(
            speed.measure(
                prepared, turns, progress=lambda k, of: status.update(f"turn {k} of {of}"), training=training
            )
        )
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
        raise RequestError(
            f"--data {spec}: write uniform:CENTERSxROWSxFEATURES, for instance uniform:230x256x64"
        )
    return speed.uniform(*(int(number) for number in found.groups() if number))


def benchmark(
    cluster: options.ClusterOptions,
    out: options.Out = Path("abps-benchmark"),
    methods: Annotated[
        str, typer.Option(help="Methods with commas between; also package.module:CONFIG, and method@model.")
    ] = (
        "fedavg,glmm,random-k1,abps-pq-k1,abps-plus,abps-k1-rests,abps-k1-never-rests,fedprox,feddyn,scaffold,"
        "fedrep,ditto,fedmap,ifca,clustered,pfedgraph,odal,boosting,fedavg@mlp"
    ),
    federations: Annotated[
        str, typer.Option(help="Names with commas between, real, synthetic, or all (what is there).")
    ] = "all",
    data_folder: Annotated[
        Path | None, typer.Option(help="The folder that holds the real tables; nothing is downloaded.")
    ] = None,
    describe: Annotated[
        list[Path] | None, typer.Option(help="A TOML file that describes a federation of your own.")
    ] = None,
    seeds: Annotated[
        str, typer.Option(help="Repeats: new folds of a table, new worlds of a generator.")
    ] = "11,22,33,44,55",
    model: Annotated[str, typer.Option(help="What every method shares: gam, linear or mlp.")] = "gam",
    codec: Annotated[str, typer.Option(help="How all methods that send weights write them.")] = "bf16",
    rows: Annotated[
        int | None,
        typer.Option(
            help="Cut federations to whole hospitals with so many rows (0: none); default: as described."
        ),
    ] = None,
    folds: Annotated[int, typer.Option(help="Folds; every patient is scored out of fold.")] = 5,
    rounds: Annotated[int, typer.Option(help="Rounds of methods whose server averages models.")] = 20,
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
    era: Annotated[
        str | None,
        typer.Option(help="Column with eras. Default: era, anchor_year_group, or windows of --time."),
    ] = None,
    between: Annotated[str, typer.Option(help="Two comma-separated eras. Default: first and last.")] = "",
    columns: Annotated[
        str, typer.Option(help="Comma-separated columns to compare. Default: the means of the vitals.")
    ] = "",
    window: Annotated[int, typer.Option(help="Width of the windows of --time, in years.")] = 2,
    deviations: Annotated[
        float, typer.Option(help="Outlier rule: standard deviations from the era's mean.")
    ] = 3.0,
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
