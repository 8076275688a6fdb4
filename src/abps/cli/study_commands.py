"""``abps demo``, ``run``, ``compare``, ``report`` and ``app``: methods on a federation, and what came out.

``abps compare --config study.toml`` takes every option of the command from a file; ``study.schema.json``
describes the file for editors and is made from the same list: ``python -m abps.cli.study_commands``.
"""

import importlib.util
import json
import tomllib
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer
from rich.progress import TextColumn

from abps.cli import options
from abps.cli.options import read_seeds, split
from abps.core.errors import RequestError, nearest

DEMO_METHODS: Final = ("local-best", "glm-exact", "fedavg", "random-k1", "abps-plus", "group-oracle-k1")

DEMO_SEEDS: Final = "11"  # repeats: every patient is scored once in each

DIFFER: Final = "icu-synthetic:heterogeneity=4,centers=40"  # hospitals that differ
ALIKE: Final = "icu-synthetic:heterogeneity=0,centers=40"
JSON_TYPES: Final = {"int": "integer", "float": "number", "bool": "boolean"}  # all other options are text


def demo(
    out: Annotated[Path, "The folder to write to."] = Path("abps-demo"),
    data: Annotated[list[str] | None, "Another built-in federation; may be repeated."] = None,
    seeds: options.Seeds = DEMO_SEEDS,
    rounds: Annotated[int, "Rounds at most."] = 50,
    jobs: options.Jobs = None,
    as_json: options.Json = False,
) -> None:
    """Would collaboration help, and with whom? Hospitals that differ and hospitals that are alike.

    Forty synthetic intensive care centers each: the best that a hospital can do alone, a federated
    regression, FedAvg, random pairs, abps-plus, and pairs by the true groups, all on the same additive model.
    Every patient is scored out of five folds. Writes abps-demo/report.html, in about a minute.
    """
    given = tuple(data or (DIFFER, ALIKE))
    console = options.terminal(stderr=True)
    if console.is_terminal:
        console.print(f"comparing {', '.join(DEMO_METHODS)}, seeds {seeds} → {out}/report.html")
    from abps.study.workers import LocalExecutor

    with LocalExecutor(jobs) as local:
        if not out.exists():
            local.get_ready(len(DEMO_METHODS))
        # Imported while the workers get ready.
        from abps.cli.outcomes import finish
        from abps.study.plan import Request, Source

        sources, repeats, settings = tuple(map(Source, given)), read_seeds(seeds), {"model": "gam"}
        request = Request(sources, DEMO_METHODS, repeats, rounds, settings, words=DEMO_METHODS)
        finish(request, out, local, as_json)
    if not as_json:
        flags = "--label died --center hospital --methods fedavg,abps-plus --out my-study"
        options.terminal().print(f"your own table: abps compare --data stays.csv {flags}", soft_wrap=True)


def run(
    method: options.Method,
    out: options.Out,
    columns: options.DataOptions,
    data: options.Data = "icu-synthetic",
    seed: options.Seed = 11,
    rounds: options.Rounds = None,
    model: options.Model = None,
    set_: options.Settings = None,
    engine: Annotated[str, "simulate (fast), or debug (one center at a time)."] = "simulate",
    device: Annotated[str, "Device: cpu, cuda, cuda:1, mps, or auto (a GPU if there is one)."] = "cpu",
    attack: options.Attack = None,
    subgroups: options.Subgroups = "",
    as_json: options.Json = False,
) -> None:
    """Run one method with one seed; write result.json and decisions.parquet.

    Example: abps run --method abps-plus --data stays.csv --label died --center hospital --out my-run
    """
    from abps.checks import quick_check
    from abps.cli.check_command import announce
    from abps.cli.outcomes import run_summary, run_table
    from abps.engine.result import check_free, save
    from abps.engine.simulate import simulate
    from abps.lab.attacks import parse
    from abps.methods.accounting import with_noise
    from abps.methods.catalog import CATALOG
    from abps.methods.settings import configure, describe
    from abps.models.modules import find_device

    if method not in CATALOG:
        quick_check(configure(method), method)
    config = with_noise(configure(method, options.settings(set_, model), rounds))
    place = find_device(device)
    console = options.terminal(stderr=True)
    with console.status("reading the federation") if console.is_terminal else nullcontext():
        federation = columns.federation(data)
        identity = {"method": method, "seed": seed, "config": describe(config), "device": place}
        identity["attack"] = str(parse(attack)) if attack else ""
        check_free(out, identity, federation.fingerprint())
    announce(federation.notes, columns.strict, f"{out}/result.json")
    measure = TextColumn(f"validation {federation.outcome.measure} {{task.fields[value]:.3f}}")
    with options.progress_bar(measure) as bar:
        result = simulate(
            federation,
            config,
            seed,
            engine=engine,
            device=device,
            name=method,
            attack=attack,
            subgroups=options.split(subgroups),
            progress=lambda t, most, value: bar(method, t / most, value=value),
        )
    save(result, out)
    if as_json:
        print(json.dumps(run_summary(result)))
        return
    options.terminal().print(run_table(result))
    options.terminal().print(f"written to {out}/result.json and {out}/decisions.parquet", soft_wrap=True)


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Take the options of a file for those that the command line does not give."""
    if path is None:
        return None
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RequestError(f"{path} is not TOML: {error}") from error
    known, given = _by_flag(context.command), {}
    for name, value in content.items():
        option = known.get(name.replace("-", "_"))
        if option is None:
            raise RequestError(f"{path}: there is no option {name!r}{nearest(name, known)}")
        given[option.name] = _as_words(path, name, value, option.multiple)
    context.default_map = {**(context.default_map or {}), **given}
    return path


def _by_flag(command: Any) -> dict[str, Any]:
    """The options of ``abps compare`` by the name of their flag, without the file itself."""
    own = [p for p in command.params if p.name in get_type_hints(options.flatten(compare))]
    return {p.opts[0].lstrip("-").replace("-", "_"): p for p in own if p.name != "config"}


def _as_words(path: Path, name: str, value: Any, several: bool) -> Any:
    """A value of TOML as the command line would have it."""

    def word(inner: Any) -> str:
        if isinstance(inner, dict):
            raise RequestError(f"{path}: {name} is no table of its own; write {name} = VALUE")
        return ",".join(word(each) for each in inner) if isinstance(inner, list) else str(inner)

    if several and isinstance(value, dict):
        return [f"{key}={word(inner)}" for key, inner in value.items()]
    if several:
        return [word(each) for each in value] if isinstance(value, list) else [word(value)]
    return value if isinstance(value, bool) else word(value)


def schema() -> dict[str, Any]:
    """The JSON schema of a study's file, from the options of ``abps compare``."""
    from abps.cli.main import loaded

    properties, types = {}, get_type_hints(options.flatten(compare))
    for name, option in _by_flag(loaded("compare")).items():
        kinds = [word for kind, word in JSON_TYPES.items() if kind in str(types[option.name])]
        one: dict[str, Any] = {"type": next(iter(kinds), "string")}
        if option.multiple or "omma-separated" in option.help:
            some = [{"type": "array", "items": {"type": ["string", "integer"]}}, one]
            one = {"anyOf": [{"type": "object"}, *some] if "setting" in option.help else some}
        properties[name] = {"description": option.help, **one}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "abps study",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


Folds = Annotated[
    int | None,
    "Score every patient out of so many folds, once for each seed; 1: the test rows of one "
    "split. Default: 5, and 1 for the paper's table and attacks.",
]
_FROM = "Read options from a TOML file, such as a study's study.toml. Options on the command line come first."
ConfigFile = Annotated[Path | None, typer.Option(is_eager=True, callback=read_config, help=_FROM)]


def compare(
    methods: options.Methods,
    out: options.Out,
    columns: options.DataOptions,
    cluster: options.ClusterOptions,
    data: Annotated[
        list[str] | None, "A file or built-in federation, as in `abps run`; may be repeated."
    ] = None,
    seeds: options.Seeds = "11,22,33",
    rounds: options.Rounds = None,
    model: options.Model = None,
    set_: options.Settings = None,
    folds: Folds = None,
    subgroups: options.Subgroups = "",
    attack: options.Attack = None,
    tune: Annotated[bool, "First choose every method's grid, on validation rows of other seeds."] = False,
    tune_seeds: Annotated[str, "Comma-separated seeds to tune on; default: two not compared on."] = "",
    references: Annotated[bool, "Also run local-best, pooled-best and glm-exact."] = True,
    jobs: options.Jobs = None,
    config: ConfigFile = None,
    as_json: options.Json = False,
) -> None:
    """Compare methods in folds and repeats; stop and start again, nothing finished is computed twice.

    Every run lies in a folder of its own under OUT/runs. Interrupted (or killed), the same command goes on
    where it stopped. More methods or repeats (seeds) may be added later to the same folder. OUT/study.toml
    says what was asked for.

    Example: abps compare --methods local-best,fedavg,random-k1,abps-plus --seeds 11,22,33 --out my-study
    """
    from abps.cli.check_command import announce
    from abps.cli.outcomes import finish
    from abps.study.plan import Plan, Source, request_of
    from abps.study.workers import LocalExecutor

    compute = cluster.executor_of() or LocalExecutor(jobs)
    if jobs is not None and jobs < 1:
        raise RequestError(f"--jobs {jobs}: choose at least 1")
    sources = tuple(Source(each, columns.roles(), columns.min_stays) for each in data or ["icu-synthetic"])
    request = request_of(
        sources, split(methods), read_seeds(seeds), rounds=rounds, settings=options.settings(set_, model),
        references=references, folds=folds, attack=attack,
        tune=read_seeds(tune_seeds) if tune_seeds else tune, subgroups=split(subgroups),
    )  # fmt: skip

    def show_notes(plan: Plan) -> None:
        for federation in plan.federations.values():
            announce(federation.notes, columns.strict, f"{out}/study.json")

    finish(request, out, compute, as_json, show_notes)


def report(
    study: Annotated[Path, typer.Argument(help="The folder of a study (the --out of `abps compare`).")],
    out: Annotated[Path | None, "Write here instead of into the study's folder."] = None,
    margin: Annotated[float | None, "Methods that differ by less are called equal. Default: 0.01."] = None,
    as_json: options.Json = False,
) -> None:
    """Write the report of a study: tables (Markdown, CSV, LaTeX), figures (SVG, PDF) and report.html.

    Works on an unfinished study too, and says what is not in it. Example: abps report my-study
    """
    from abps.cli.outcomes import show, summary
    from abps.evaluate.verdicts import MARGIN
    from abps.study.compare import load_study

    margin = MARGIN if margin is None else margin
    if not 0 < margin < 1:
        raise RequestError(f"--margin {margin:g}: give an AUROC difference between 0 and 1, such as 0.01")
    written = load_study(study).report(out, margin)
    if as_json:
        print(json.dumps(summary(written)))
    else:
        show(written)


def need_pages() -> None:
    """Say what to install where the pages' server is not."""
    for name in ("starlette", "uvicorn", "python_multipart", "psutil"):
        if importlib.util.find_spec(name) is None:
            raise RequestError(f"the pages need {name}; run: pip install 'abps[app]'")


def app(
    out: Annotated[Path, "Folder that keeps the studies with their tables."] = Path("abps-app"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")] = 0,
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open the browser.")] = True,
) -> None:
    """Check a table, compare, read the report and take the model home, in the browser.

    Serves on this machine alone (127.0.0.1), to the one browser that opens the printed address. Nothing
    leaves the machine. Every page shows the command that does the same. Studies stay in the folder OUT;
    closing the browser or the server does not stop a running study.

    Example: abps app
    """
    need_pages()
    from abps.app.analyst import routes
    from abps.app.pages import serve

    out.mkdir(parents=True, exist_ok=True)
    out.chmod(0o700)  # tables of patients: for their owner alone
    serve("abps", routes(), port, show, home=out.resolve())


if __name__ == "__main__":
    place = Path(__file__).with_name("study.schema.json")
    place.write_text(json.dumps(schema(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
