"""Runs on disk: each in a folder of its own, whole or not there.

A run's folder holds ``result.json``, ``decisions.parquet``, ``scores.parquet``, the ledger of a private run
and, written last, the receipt ``run.json`` with the run's identity and the digests of the others. A folder
that does not match its receipt is named and computed again.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_type_hints

import msgspec
import polars as pl

from abps import files
from abps.core.errors import RequestError
from abps.data.federation import About, Federation, is_builtin
from abps.data.roles import Roles
from abps.engine.result import DECISIONS, PRIVACY, RESULT, SCORES, Run, load_run, save
from abps.study.plan import Choice, Plan, PlannedRun, Request, key_of

STUDY_SCHEMA = "abps.study/1"
RECEIPT_SCHEMA = "abps.receipt/1"
RECEIPT = "run.json"
FAILED = "failed.json"

#: The sets of repeats with which a report of the study was made, in order.
LOOKS = "looks.json"

#: The folder, inside a study's own, of the runs that it was tuned on.
TUNING = "tuning"


@dataclass(frozen=True)
class Found:
    """What a run's folder holds: ``result`` if it is whole, else ``problem`` if there is one to name."""

    result: Run | None = None
    problem: str = ""


class Damaged(RequestError):
    """A file is not what it was when it was written."""


def write_run(folder: Path, run: Run, content: Mapping[str, Any]) -> None:
    """Store a run; ``content`` is its identity. The receipt comes last: it makes the rest count."""
    files.folder(folder)
    (folder / RECEIPT).unlink(missing_ok=True)
    save(run, folder)
    there = {SCORES: run.artifacts.scores, PRIVACY: run.privacy}
    written = (RESULT, DECISIONS, *(name for name, what in there.items() if what is not None))
    receipt = {
        "schema": RECEIPT_SCHEMA,
        "key": key_of(content),
        "identity": dict(content),
        "files": {name: digest(folder / name) for name in written},
    }
    files.write_json(folder / RECEIPT, receipt)
    (folder / FAILED).unlink(missing_ok=True)


def look(folder: Path, key: str) -> Found:
    """What a folder holds of the run with this key, checked against its receipt."""
    path = folder / RECEIPT
    if not path.exists():
        unknown = f"{folder / RESULT} has no receipt ({RECEIPT}): it was not finished, or is not ours"
        return Found(problem=unknown if (folder / RESULT).exists() else "")
    try:
        receipt = json.loads(path.read_text(encoding="utf-8"))
        whole = (
            receipt["schema"] == RECEIPT_SCHEMA
            and receipt["key"] == key_of(receipt["identity"])
            and set(receipt["files"]) - {PRIVACY, SCORES} == {RESULT, DECISIONS}
        )
    except (OSError, ValueError, KeyError, TypeError):
        return Found(problem=f"{path} cannot be read as a receipt")
    if not whole:
        return Found(problem=f"{path} is not a receipt of a run, or was changed")
    if receipt["key"] != key:
        return Found(problem=f"{path} belongs to another run")
    for file, wanted in ((folder / name, noted) for name, noted in receipt["files"].items()):
        if not file.is_file():
            return Found(problem=f"{file} is missing")
        if digest(file) != wanted:
            return Found(problem=f"{file} was changed or cut off after it was written")
    try:
        return Found(load_run(folder))
    except RequestError as error:
        return Found(problem=str(error))


def digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def write_federation(place: Path, federation: Federation) -> None:
    """Store a federation under its fingerprint, readable by its owner only: these are patients' data."""
    folder = files.folder(place / federation.fingerprint())
    folder.chmod(0o700)
    rows = {name: getattr(federation, name) for name in ("label", "center", "patient", "time")}
    tables = {
        "features": federation.features,
        "rows": pl.DataFrame({name: values for name, values in rows.items() if values is not None}),
        "aside": federation.aside,
    }
    for name, table in tables.items():
        if table is not None:
            files.write_with(folder / f"{name}.parquet", table.write_parquet)
    about = {name: getattr(federation, name) for name in _ABOUT}
    files.write_json(folder / "federation.json", msgspec.to_builtins(about) | {"aside": _aside(federation)})


def _aside(federation: Federation) -> list[str]:
    return [] if federation.aside is None else federation.aside.columns


#: The fields of a federation that are no tables, with their types.
_ABOUT: Final = {
    name: get_type_hints(Federation)[name]
    for name in ("name", "centers", "groups", "descriptors", "left_out", "in_order", "outcome")
}


def read_federation(place: Path, fingerprint: str) -> Federation:
    """A stored federation; what was read must have the fingerprint it is stored under."""
    folder = place / fingerprint
    try:
        about = json.loads((folder / "federation.json").read_text(encoding="utf-8"))
        rows = pl.read_parquet(folder / "rows.parquet")
        fields: dict[str, Any] = {name: rows[name].to_numpy() for name in rows.columns}
        fields |= {name: msgspec.convert(about[name], kind) for name, kind in _ABOUT.items()}
        federation = Federation(
            **fields,
            features=pl.read_parquet(folder / "features.parquet"),
            aside=pl.read_parquet(folder / "aside.parquet") if about["aside"] else None,
        )
    except Exception as error:  # any library may stumble over a damaged file, each in its own way
        raise Damaged(f"the data in {folder} cannot be read ({type(error).__name__})") from error
    if federation.fingerprint() != fingerprint:
        raise Damaged(f"the data in {folder} were changed after they were written")
    return federation


@dataclass(frozen=True)
class StudyRecord:
    """What a study's folder says: what was asked for, on which data, and the runs that follow."""

    request: Request
    data: tuple[About, ...]
    left_out: tuple[str, ...]
    runs: tuple[PlannedRun, ...]
    choices: tuple[Choice, ...] = ()


def record_of(plan: Plan) -> StudyRecord:
    data = tuple(federation.about() for federation in plan.federations.values())
    return StudyRecord(plan.request, data, plan.left_out, plan.runs, plan.choices)


class StudyFolder:
    def __init__(self, root: Path) -> None:
        self.root = Path(root)

    @property
    def cache(self) -> Path:
        """Where federations wait for the processes that run them; removed when all runs are done."""
        return self.root / "cache"

    @property
    def path(self) -> Path:
        return self.root / "study.json"

    def keep(self, federation: Federation) -> str:
        """Store a federation for other processes; returns what was wrong with the one that was there."""
        problem, fingerprint = "", federation.fingerprint()
        if (self.cache / fingerprint / "federation.json").exists():  # it is written last
            try:
                if _aside(read_federation(self.cache, fingerprint)) == _aside(federation):
                    return ""
            except Damaged as error:
                problem = f"{error}; written anew"
        write_federation(self.cache, federation)
        return problem

    def folder(self, run: PlannedRun) -> Path:
        return self.root / "runs" / run.folder

    def look(self, run: PlannedRun) -> Found:
        return look(self.folder(run), run.key)

    def failure(self, run: PlannedRun) -> str:
        """Why a run failed when it was last tried; empty if it did not."""
        try:
            note = json.loads((self.folder(run) / FAILED).read_text(encoding="utf-8"))
            return str(note["error"]) if note["key"] == run.key else ""
        except FileNotFoundError:
            return ""
        except (OSError, ValueError, KeyError, TypeError):
            return "it failed, and the note about it cannot be read"

    def note_failure(self, run: PlannedRun, error: str, details: str = "", request: bool = False) -> None:
        note = {"key": run.key, "method": run.label, "seed": run.seed, "error": error}
        note |= {"request": request, "details": details}
        files.write_json(self.folder(run) / FAILED, note)

    def open(self, plan: Plan) -> list[str]:
        """Write the plan into the folder, if it may live there; returns what should be said about it."""
        said = self.admit(plan.request)
        document = {"schema": STUDY_SCHEMA} | msgspec.to_builtins(record_of(plan))
        files.write_json(self.path, document | {"digest": key_of(document)})
        files.write_text(self.root / "study.toml", study_toml(plan))
        for depth in ("", "*/", "*/*/"):  # what a killed process left half-written
            for part in self.root.glob(f"{depth}.*.part"):
                part.unlink(missing_ok=True)
        return said

    def admit(self, request: Request) -> list[str]:
        """Make the folder, and see whether a study may live there; returns what should be said about it."""
        said: list[str] = []
        if self.root.exists() and not self.root.is_dir():
            raise RequestError(f"{self.root} is a file; give a folder")
        files.folder(self.root)
        if self.path.exists():
            try:
                old = self.read()
            except Damaged:
                said.append(f"{self.path} was damaged and is written anew")
            else:
                _same_study(self.root, old.request, request)
        else:
            others = sorted(p.name for p in self.root.iterdir() if p.name[0] != "." and p.name != TUNING)
            if others:
                raise RequestError(
                    f"{self.root} holds other files ({others[0]}) and no study; choose a new or empty folder"
                )
        return said

    def read(self) -> StudyRecord:
        if not self.path.exists():
            raise RequestError(f"{self.root} holds no study (no {self.path.name}); a comparison makes one")
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
            noted, schema = document.pop("digest"), str(document["schema"])
            if noted == key_of(document):
                if schema == STUDY_SCHEMA:
                    return msgspec.convert(document, StudyRecord)
                if schema.startswith("abps.study/"):
                    raise RequestError(
                        f"{self.path} was written by another version ({schema}; this one reads "
                        f"{STUDY_SCHEMA}): report it with that version, or compare into a new folder"
                    )
        except (PermissionError, RequestError):  # what may not be read is not damaged, and stays as it is
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        raise Damaged(f"{self.path} is damaged or not a study; compare again (finished runs are kept)")

    def count_look(self, seeds: Sequence[int]) -> int:
        """How many times the study was looked at with another set of repeats, this time included: verdicts of
        a study that grows after a look are held to a stricter level."""
        path, now = self.root / LOOKS, sorted(seeds)
        try:
            looks = [list(map(int, each)) for each in json.loads(path.read_text(encoding="utf-8"))]
        except (OSError, ValueError, TypeError):
            looks = []
        if now not in looks:
            looks.append(now)
            files.write_json(path, looks)
        return looks.index(now) + 1

    def finished(self, record: StudyRecord) -> tuple[list[tuple[PlannedRun, Run]], list[str]]:
        """The runs that are there, and one line for every run that is not."""
        there, absent = [], list(record.left_out)
        for run in record.runs:
            found = self.look(run)
            if found.result is not None:
                there.append((run, found.result))
            else:
                why = found.problem or self.failure(run) or "not computed yet"
                absent.append(f"{run.label}, seed {run.seed}: {why}")
        return there, absent

    def strangers(self, planned: list[PlannedRun]) -> list[str]:
        """Names in the folder of runs that belong to no planned run: never used."""
        place = self.root / "runs"
        known = {run.folder for run in planned}
        if not place.is_dir():
            return []
        return sorted(p.name for p in place.iterdir() if p.name not in known and not p.name.startswith("."))

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep a second study process out of the folder; a killed one leaves no lock behind."""
        import fcntl

        files.folder(self.root)
        try:
            lock = (self.root / ".lock").open("w")
        except OSError as error:
            raise RequestError(
                f"cannot write in {self.root}: {error.strerror}; choose another place"
            ) from error
        with lock as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise RequestError(
                    f"another process is working on the study in {self.root}; "
                    "wait for it, or choose another folder"
                ) from error
            handle.write(str(os.getpid()))
            handle.flush()
            yield


def _same_study(root: Path, old: Request, new: Request) -> None:
    """A study may grow by methods and seeds; other data, rounds or settings make another study."""
    new = msgspec.json.decode(msgspec.json.encode(new), type=Request)  # as it would be read again
    named = {"sources": "data", "tune": "seeds to tune on"}
    for part in ("sources", "rounds", "settings", "tune", "folds"):
        there = getattr(old, part)
        if getattr(new, part) != there:
            if part == "sources":
                there = ", ".join(source.data for source in old.sources)
            raise RequestError(
                f"{root} holds a study with other {named.get(part, part)} ({there or 'none given'}); "
                "choose another folder or repeat its arguments"
            )


def options_of(plan: Plan) -> dict[str, Any]:
    request = plan.request
    first = request.sources[0]
    usual = vars(Roles("", ""))
    roles = {} if first.roles is None else vars(first.roles)
    asked: dict[str, Any] = {
        "data": [source.data for source in request.sources],
        **{role: value for role, value in roles.items() if value != usual[role]},
        "min_stays": first.min_stays,
        "methods": list(request.methods),
        "seeds": list(request.seeds),
        "rounds": request.rounds,
        "folds": next((run.folds for run in plan.runs), None) or 1,
        "references": bool(request.references),
        "attack": request.attack,
        "tune": bool(request.tune),
        "tune_seeds": list(request.tune),
        "subgroups": list(request.subgroups),
        "set": dict(request.settings),
    }
    return {name: value for name, value in asked.items() if value not in (None, "", [], (), {})}


def study_toml(plan: Plan) -> str:
    head = "# What this study asked for. Again: abps compare --config study.toml --out NEW-FOLDER\n"
    if any(source.roles is None and not is_builtin(source.data) for source in plan.request.sources):
        head += "# The data were given in Python; put the file and its columns in the place of `data`.\n"
    return head + files.as_toml(options_of(plan))
