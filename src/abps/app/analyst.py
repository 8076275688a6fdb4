"""The analyst's path: table → columns → check → comparison → report → model → probabilities. Each step is one
command of ``abps``, run in the study's folder."""

import json
import re
import shutil
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from anyio import to_thread
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

from abps import files
from abps.app import studies
from abps.app.jobs import Job, JobState, command_words, last_sentence, run_now
from abps.app.pages import WORDS, checked_form, finished_page, go, page, saved_file
from abps.app.studies import DEPTHS, LISTS, OUTCOMES, ROLES, TEXTS, AppStudy
from abps.core.errors import RequestError

T = TypeVar("T")

#: What a hospital may take of its model, by the file in its folder.
TAKE_HOME = ("card.html", "card.md", "model.onnx", "model.json", "codebook.json", "weights.safetensors")


def _found(there: T | None) -> T:
    if there is None:
        raise HTTPException(404, WORDS["error"]["absent"])
    return there


def _study(request: Request) -> AppStudy:
    return _found(studies.find_study(request.app.state.home, request.path_params["study"]))


def _uploaded(form: FormData) -> tuple[str, BinaryIO]:
    file = form.get("file")
    if not isinstance(file, UploadFile) or not file.filename:
        raise RequestError(WORDS["error"]["no_file"])
    return file.filename, file.file


async def _copy(file: BinaryIO, target: Path) -> None:
    with target.open("wb") as stream:
        await to_thread.run_sync(shutil.copyfileobj, file, stream)


async def home(request: Request) -> Response:
    return page(request, "home.html", studies=studies.all_studies(request.app.state.home))


async def create(request: Request) -> Response:
    form = await checked_form(request)
    name, file = _uploaded(form)
    study = studies.new_study(request.app.state.home, name)
    try:
        await _copy(file, study.folder / study.choices.file)
        module = "abps.app.table_preview"
        found = await to_thread.run_sync(run_now, [study.choices.file], study.folder, module)
        if found.returncode:
            raise RequestError(last_sentence(found.stderr).replace(study.choices.file, study.choices.title))
        preview = json.loads(found.stdout)
    except BaseException:
        studies.remove(study)
        raise
    files.write_json(study.folder / "preview.json", preview)
    study.choose(studies.replace(study.choices, columns=preview["roles"]))
    return go(f"/studies/{study.name}/columns")


async def columns(request: Request, sentence: str = "") -> Response:
    """Which column is what.  sentence: what is wrong with those that were chosen."""
    study = _study(request)
    return page(
        request, "columns.html", 422 if sentence else 200, study=study, choices=study.choices,
        preview=study.read("preview.json"), roles=ROLES, outcomes=OUTCOMES, sentence=sentence,
        command=command_words(study.check_command()),
    )  # fmt: skip


async def choose_columns(request: Request) -> Response:
    """Columns were named: check the table with them."""
    study, form = _study(request), await checked_form(request)
    known = study.read("preview.json")["columns"]
    chosen: dict[str, Any] = {name: str(form.get(name, "")) for name in TEXTS}
    if chosen["outcome"] not in OUTCOMES:
        raise RequestError(f"outcome {chosen['outcome']}: choose one of {', '.join(OUTCOMES[1:])}")
    chosen |= {name: tuple(str(c) for c in form.getlist(name) if c in known) for name in LISTS}
    chosen["columns"] = {role: str(form[role]) for role in ROLES if form.get(role) in known}
    study.choose(studies.replace(study.choices, **chosen))
    return await _checked(request, study)


async def fix(request: Request) -> Response:
    """A correction that the check offered."""
    study, form = _study(request), await checked_form(request)
    column = str(form.get("column", ""))
    if column not in study.read("preview.json")["columns"]:
        raise RequestError(f"{column}: no such column")
    study.choose(study.choices.fixed(str(form.get("option", "")), column))
    return await _checked(request, study)


async def _checked(request: Request, study: AppStudy) -> Response:
    """Run the check; what is wrong is said on the page of columns."""
    found = await to_thread.run_sync(lambda: run_now([*study.check_command(), "--json"], study.folder))
    if found.returncode:
        sentence = last_sentence(found.stderr).replace(study.choices.file, study.choices.title)
        return await columns(request, sentence)
    files.write_text(study.folder / "check.json", found.stdout)
    return go(f"/studies/{study.name}/check")


async def check(request: Request) -> Response:
    """What the check found, with buttons that correct it."""
    study = _study(request)
    found = study.read("check.json")
    if found is None:
        return go(f"/studies/{study.name}/columns")
    return page(
        request, "check.html", study=study, choices=study.choices, check=found, fixes=studies.fixes(found),
        command=command_words(study.check_command()), minutes={d: study.minutes(d) for d in DEPTHS},
        commands={d: command_words(study.compare_command(d)) for d in DEPTHS},
        files={d: study.study_file(d) for d in DEPTHS},
    )  # fmt: skip


def _only_one(request: Request, job: Job) -> None:
    """Two jobs at once would take longer than one after the other."""
    for study in studies.all_studies(request.app.state.home):
        for other in (study.compare, study.fit):
            if other != job and other.state is JobState.RUNNING:
                raise RequestError(WORDS["error"]["busy"].format(title=study.choices.title))


async def start(request: Request) -> Response:
    study, form = _study(request), await checked_form(request)
    if study.read("check.json") is None:
        return go(f"/studies/{study.name}/columns")
    _only_one(request, study.compare)
    depth = str(form.get("depth", "quick"))
    if depth not in DEPTHS:
        raise RequestError(f"depth {depth}: choose quick or thorough")
    study.compare.start(study.compare_command(depth))
    return go(f"/studies/{study.name}/run")


async def stop(request: Request) -> Response:
    """Cancel what runs; finished parts stay."""
    study = _study(request)
    await checked_form(request)
    for job in (study.compare, study.fit):
        await to_thread.run_sync(job.stop)
    return go(f"/studies/{study.name}/run")


def progress_of(job: Job) -> dict[str, Any]:
    """Where a job stands: state, how many of its runs are done with the time left, and why it failed."""
    state, said = job.state, job.log
    line, done, total = (re.findall(r"^((\d+) of (\d+) runs.*)$", said, re.MULTILINE) or [("", 0, 0)])[-1]
    if state is JobState.FAILED:
        line = last_sentence(said)
    return {"state": state, "line": line, "done": int(done), "total": int(total)}


async def run(request: Request) -> Response:
    """How far the comparison is, and its report."""
    study = _study(request)
    job = study.compare
    if job.state is JobState.ABSENT:
        return go(f"/studies/{study.name}/check")
    seeds, fit = job.arguments[job.arguments.index("--seeds") + 1], study.fit
    return page(
        request, "run.html", study=study, choices=study.choices, progress=progress_of(job), fit=fit.state,
        command=command_words(job.arguments), depth=next(d for d, each in DEPTHS.items() if each == seeds),
        log=job.log[-3000:], report=(study.folder / "study" / "report.html").is_file(),
        fit_progress=progress_of(fit), fit_command=command_words(study.fit_command("abps-plus")),
        models=list(study.models()), script=study.script(),
    )  # fmt: skip


async def report(request: Request) -> Response:
    return finished_page(_study(request).folder / "study" / "report.html")


async def study_file(request: Request) -> Response:
    """The study as a file that ``abps compare --config`` reads."""
    return saved_file(_study(request).folder / "study" / "study.toml", "study.toml")


async def fit_models(request: Request) -> Response:
    study, form = _study(request), await checked_form(request)
    method = str(form.get("method", "abps-plus"))
    if method not in ("abps-plus", "local-best"):
        raise RequestError(f"method {method}: choose abps-plus or local-best")
    _only_one(request, study.fit)
    if study.fit.state is not JobState.RUNNING and (study.folder / "models").is_dir():
        (study.folder / "models").rename(study.folder / f"models-{len(list(study.folder.glob('models*')))}")
    study.fit.start(study.fit_command(method))
    return go(f"/studies/{study.name}/run#model")


async def model(request: Request) -> Response:
    """One hospital's model: what to take, and probabilities for further patients."""
    study = _study(request)
    hospital = request.query_params.get("hospital", "")
    folder = _found(study.models().get(hospital))
    return page(
        request, "model.html", study=study, choices=study.choices, hospital=hospital,
        take=[name for name in TAKE_HOME if (folder / name).is_file()],
        command=f"abps predict --model models/{folder.name} --data new.csv --out probabilities.csv",
    )  # fmt: skip


async def take(request: Request) -> Response:
    """A file of a hospital's model; a card opens, others are saved."""
    folder = _found(_study(request).models().get(request.query_params.get("hospital", "")))
    name = _found(request.path_params["file"] if request.path_params["file"] in TAKE_HOME else None)
    card = name == "card.html"
    return finished_page(folder / name) if card else saved_file(folder / name, f"{folder.name}-{name}")


async def predict(request: Request) -> Response:
    """Probabilities for the rows of a second file, as CSV."""
    study, form = _study(request), await checked_form(request)
    folder = _found(study.models().get(str(form.get("hospital", ""))))
    given, file = _uploaded(form)
    new, out = study.folder / f"new{studies.table_suffix(given)}", study.folder / "probabilities.csv"
    await _copy(file, new)
    words = ["predict", "--model", f"models/{folder.name}", "--data", new.name, "--out", out.name]
    words += ["--anyway"] if form.get("anyway") else []
    try:
        found = await to_thread.run_sync(lambda: run_now(words, study.folder))
    finally:
        new.unlink()
    if found.returncode:
        raise RequestError(last_sentence(found.stderr).replace(new.name, given))
    return FileResponse(out, filename="probabilities.csv", media_type="text/csv")


async def delete(request: Request) -> Response:
    study = _study(request)
    await checked_form(request)
    await to_thread.run_sync(lambda: studies.remove(study))
    return go("/")


def routes() -> list[BaseRoute]:
    base = "/studies/{study}"
    return [
        Route("/", home),
        Route("/studies", create, methods=["POST"]),
        Route(f"{base}/columns", columns),
        Route(f"{base}/columns", choose_columns, methods=["POST"]),
        Route(f"{base}/fix", fix, methods=["POST"]),
        Route(f"{base}/check", check),
        Route(f"{base}/run", run),
        Route(f"{base}/run", start, methods=["POST"]),
        Route(f"{base}/stop", stop, methods=["POST"]),
        Route(f"{base}/report", report),
        Route(f"{base}/study.toml", study_file),
        Route(f"{base}/fit", fit_models, methods=["POST"]),
        Route(f"{base}/model", model),
        Route(f"{base}/model/{{file}}", take),
        Route(f"{base}/predict", predict, methods=["POST"]),
        Route(f"{base}/delete", delete, methods=["POST"]),
    ]
