"""The analyst's path: table → columns → check → comparison → report → model → probabilities.

Each step is one command of ``abps``, run in the study's folder.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from anyio import to_thread
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from abps import files
from abps.app import studies
from abps.app.jobs import Job, JobState, command_words, last_sentence, run_now
from abps.app.pages import WORDS, checked_form, finished_page, go, page
from abps.app.studies import DEPTHS, LISTS, ROLES, AppStudy
from abps.core.errors import RequestError

#: Bytes of an upload that are in memory at a time.
CHUNK = 1 << 20

#: What a hospital may take of its model, by the file in its folder.
TAKE_HOME = ("card.html", "card.md", "model.onnx", "model.json", "codebook.json", "weights.safetensors")


def _home(request: Request) -> Path:
    home: Path = request.app.state.home
    return home


def _study(request: Request) -> AppStudy:
    study = studies.find_study(_home(request), request.path_params["study"])
    if study is None:
        raise HTTPException(404, WORDS["error"]["absent"])
    return study


async def _upload(form: FormData, target: Path) -> None:
    """Store an uploaded file, piece by piece."""
    file = form.get("file")
    assert isinstance(file, UploadFile)
    with target.open("wb") as stream:
        while piece := await file.read(CHUNK):
            stream.write(piece)


def _uploaded_name(form: FormData) -> str:
    file = form.get("file")
    if not isinstance(file, UploadFile) or not file.filename:
        raise RequestError(WORDS["error"]["no_file"])
    return file.filename


async def home(request: Request) -> Response:
    """A new study, and the past ones."""
    return page(request, "home.html", studies=studies.all_studies(_home(request)))


async def create(request: Request) -> Response:
    """A table was chosen or dropped."""
    form = await checked_form(request)
    study = studies.new_study(_home(request), _uploaded_name(form))
    try:
        await _upload(form, study.folder / study.choices.file)
        words = [sys.executable, "-m", "abps.app.table_preview", study.choices.file]
        found = await to_thread.run_sync(
            lambda: subprocess.run(words, cwd=study.folder, capture_output=True, text=True, encoding="utf-8")
        )
        if found.returncode:
            raise RequestError(last_sentence(found.stderr).replace(study.choices.file, study.choices.title))
        preview = json.loads(found.stdout)
    except BaseException:
        studies.remove(study)
        raise
    files.write_json(study.folder / "preview.json", preview)
    study.choose(studies.replace(study.choices, columns=preview["roles"]))
    return go(f"/studies/{study.name}/columns")


async def columns(request: Request) -> Response:
    """Which column is what."""
    return _columns(request, _study(request))


def _columns(request: Request, study: AppStudy, sentence: str = "") -> Response:
    """sentence: what is wrong with the columns that were chosen."""
    return page(
        request, "columns.html", 422 if sentence else 200, study=study, choices=study.choices,
        preview=study.read("preview.json"), roles=ROLES, outcomes=studies.OUTCOMES, sentence=sentence,
        command=command_words(study.check_command()),
    )  # fmt: skip


async def choose_columns(request: Request) -> Response:
    """Columns were named: check the table with them."""
    study, form = _study(request), await checked_form(request)
    known = study.read("preview.json")["columns"]
    chosen = {role: str(form.get(role, "")) for role in ROLES}
    drop, keep = (tuple(str(c) for c in form.getlist(name) if c in known) for name in LISTS)
    named = {role: column for role, column in chosen.items() if column in known}
    positive, outcome = (str(form.get(name, "")) for name in studies.TEXTS)
    if outcome not in studies.OUTCOMES:
        raise RequestError(f"outcome {outcome}: choose binary, survival, classes or continuous")
    study.choose(
        studies.replace(
            study.choices, columns=named, positive=positive, outcome=outcome, drop=drop, keep=keep
        )
    )
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
        return _columns(request, study, sentence)
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
    for study in studies.all_studies(_home(request)):
        for other in (study.compare, study.fit):
            if other != job and other.state is JobState.RUNNING:
                raise RequestError(WORDS["error"]["busy"].format(title=study.choices.title))


async def start(request: Request) -> Response:
    """Begin the comparison, or go on with it."""
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
    models, fit = study.models(), study.fit
    return page(
        request, "run.html", study=study, choices=study.choices, progress=progress_of(job),
        command=command_words(job.arguments), depth=_depth(job.arguments), log=job.log[-3000:], fit=fit.state,
        report=(study.folder / "study" / "report.html").is_file(), fit_progress=progress_of(fit),
        fit_command=command_words(study.fit_command("abps-plus")), models=list(models), script=study.script(),
    )  # fmt: skip


def _depth(arguments: list[str]) -> str:
    return next(d for d, seeds in DEPTHS.items() if arguments[arguments.index("--seeds") + 1] == seeds)


async def progress(request: Request) -> Response:
    """Where both jobs of a study stand, for the page to follow."""
    study = _study(request)
    return JSONResponse({"compare": progress_of(study.compare), "fit": progress_of(study.fit)})


async def report(request: Request) -> Response:
    """The report, as the command wrote it."""
    return finished_page(_study(request).folder / "study" / "report.html")


async def study_file(request: Request) -> Response:
    """The study as a file that ``abps compare --config`` reads."""
    path = _study(request).folder / "study" / "study.toml"
    if not path.is_file():
        raise HTTPException(404, WORDS["error"]["absent"])
    return FileResponse(path, filename="study.toml")


async def fit_models(request: Request) -> Response:
    """Train the models to take home."""
    study, form = _study(request), await checked_form(request)
    method = str(form.get("method", "abps-plus"))
    if method not in ("abps-plus", "local-best"):
        raise RequestError(f"method {method}: choose abps-plus or local-best")
    _only_one(request, study.fit)
    if study.fit.state is not JobState.RUNNING and (study.folder / "models").is_dir():
        (study.folder / "models").rename(study.folder / f"models-{len(list(study.folder.glob('models*')))}")
    study.fit.start(study.fit_command(method))
    return go(f"/studies/{study.name}/run#model")


def _model(request: Request, study: AppStudy, hospital: str) -> Path:
    folder = study.models().get(hospital)
    if folder is None:
        raise HTTPException(404, WORDS["error"]["absent"])
    return folder


async def model(request: Request) -> Response:
    """One hospital's model: what to take, and probabilities for further patients."""
    study = _study(request)
    hospital = request.query_params.get("hospital", "")
    folder = _model(request, study, hospital)
    return page(
        request, "model.html", study=study, choices=study.choices, hospital=hospital,
        take=[name for name in TAKE_HOME if (folder / name).is_file()],
        command=f"abps predict --model models/{folder.name} --data new.csv --out probabilities.csv",
    )  # fmt: skip


async def take(request: Request) -> Response:
    """A file of a hospital's model; a card opens, others are saved."""
    study = _study(request)
    folder, name = (
        _model(request, study, request.query_params.get("hospital", "")),
        request.path_params["file"],
    )
    if name not in TAKE_HOME or not (folder / name).is_file():
        raise HTTPException(404, WORDS["error"]["absent"])
    if name == "card.html":
        return finished_page(folder / name)
    return FileResponse(folder / name, filename=f"{folder.name}-{name}")


async def predict(request: Request) -> Response:
    """Probabilities for the rows of a second file, as CSV."""
    study, form = _study(request), await checked_form(request)
    folder = _model(request, study, str(form.get("hospital", "")))
    given = _uploaded_name(form)
    suffix = Path(given).suffix.lower()
    if suffix not in studies.SUFFIXES:
        raise RequestError(f"{given}: choose a table, a file that ends in {', '.join(studies.SUFFIXES)}")
    new, out = study.folder / f"new{suffix}", study.folder / "probabilities.csv"
    await _upload(form, new)
    words = ["predict", "--model", f"models/{folder.name}", "--data", new.name, "--out", out.name]
    if form.get("anyway"):
        words.append("--anyway")
    try:
        found = await to_thread.run_sync(lambda: run_now(words, study.folder))
    finally:
        new.unlink()
    if found.returncode:
        raise RequestError(last_sentence(found.stderr).replace(new.name, given))
    return FileResponse(out, filename="probabilities.csv", media_type="text/csv")


async def delete(request: Request) -> Response:
    """Forget a study and its table."""
    study = _study(request)
    await checked_form(request)
    await to_thread.run_sync(lambda: studies.remove(study))
    return go("/")


def routes() -> list[BaseRoute]:
    """Every page of the path."""
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
        Route(f"{base}/progress", progress),
        Route(f"{base}/report", report),
        Route(f"{base}/study.toml", study_file),
        Route(f"{base}/fit", fit_models, methods=["POST"]),
        Route(f"{base}/model", model),
        Route(f"{base}/model/{{file}}", take),
        Route(f"{base}/predict", predict, methods=["POST"]),
        Route(f"{base}/delete", delete, methods=["POST"]),
    ]
