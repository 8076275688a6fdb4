"""Runs on disk: each in a folder of its own, whole or not there.

A run's folder holds ``result.json``, ``decisions.parquet`` and, written last, the receipt ``run.json``
with the run's identity and the digests of the other two. Only a folder whose receipt names the wanted
run and whose files match their digests counts as done; anything else is named and computed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from abps import files
from abps.core.errors import RequestError
from abps.simulator.output import DECISIONS, RESULT, save
from abps.simulator.result import SCHEMA, Run
from abps.study.plan import Plan, PlannedRun, key_of

STUDY_SCHEMA = "abps.study/1"
RECEIPT_SCHEMA = "abps.receipt/1"
RECEIPT = "run.json"
FAILED = "failed.json"


@dataclass(frozen=True)
class Found:
    """What a run's folder holds: ``result`` if it is whole, else ``problem`` if there is one to name."""

    result: dict[str, Any] | None = None
    problem: str = ""


class Damaged(Exception):
    """A file is not what its receipt says."""


# ---------------------------------------------------------------- one run


def write_run(folder: Path, run: Run, content: Mapping[str, Any]) -> None:
    """Store a run; ``content`` is its identity. The receipt comes last: it makes the rest count."""
    files.folder(folder)
    (folder / RECEIPT).unlink(missing_ok=True)
    save(run, folder)
    receipt = {
        "schema": RECEIPT_SCHEMA,
        "key": key_of(content),
        "identity": dict(content),
        "files": {name: digest(folder / name) for name in (RESULT, DECISIONS)},
    }
    files.write_json(folder / RECEIPT, receipt)
    (folder / FAILED).unlink(missing_ok=True)


def look(folder: Path, key: str) -> Found:
    """What a folder holds of the run with this key."""
    if not (folder / RECEIPT).exists():
        if (folder / RESULT).exists():
            return Found(
                problem=f"{folder / RESULT} has no receipt ({RECEIPT}): it was not finished, or is not ours"
            )
        return Found()
    try:
        return Found(read_run(folder, key))
    except Damaged as error:
        return Found(problem=str(error))


def read_run(folder: Path, key: str) -> dict[str, Any]:
    """The result of a finished run, checked against its receipt."""
    receipt = read_receipt(folder)
    if receipt["key"] != key:
        raise Damaged(f"{folder / RECEIPT} belongs to another run")
    for name, wanted in receipt["files"].items():
        path = folder / name
        if not path.is_file():
            raise Damaged(f"{path} is missing")
        if digest(path) != wanted:
            raise Damaged(f"{path} was changed or cut off after it was written")
    result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    if result.get("schema") != SCHEMA:
        raise Damaged(f"{folder / RESULT} has the schema {result.get('schema')!r}, not {SCHEMA}")
    return dict(result)


def read_receipt(folder: Path) -> dict[str, Any]:
    """A run's receipt, checked in itself: its key is the digest of the identity it states."""
    path = folder / RECEIPT
    try:
        receipt = json.loads(path.read_text(encoding="utf-8"))
        whole = (
            receipt["schema"] == RECEIPT_SCHEMA
            and receipt["key"] == key_of(receipt["identity"])
            and set(receipt["files"]) == {RESULT, DECISIONS}
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{path} cannot be read as a receipt") from error
    if not whole:
        raise Damaged(f"{path} is not a receipt of a run, or was changed")
    return dict(receipt)


def digest(path: Path) -> str:
    """A digest of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


# ---------------------------------------------------------------- a study


class Study:
    """A study's folder."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)

    @property
    def cache(self) -> Path:
        """Where federations wait for the processes that run them; removed when all runs are done."""
        return self.root / "cache"

    @property
    def path(self) -> Path:
        """The file with the plan."""
        return self.root / "study.json"

    def folder(self, run: PlannedRun) -> Path:
        """The folder of a run."""
        return self.root / "runs" / run.folder

    def look(self, run: PlannedRun) -> Found:
        """What is there of a run."""
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
        """Keep why a run failed, beside where its result would be."""
        note = {"key": run.key, "method": run.label, "seed": run.seed, "error": error}
        note |= {"request": request, "details": details}
        files.write_json(self.folder(run) / FAILED, note)

    def forget_failure(self, run: PlannedRun) -> None:
        """A run is tried anew: what went wrong before says nothing any more."""
        (self.folder(run) / FAILED).unlink(missing_ok=True)

    def open(self, plan: Plan) -> list[str]:
        """Write the plan into the folder, if it may live there; returns what should be said about it."""
        said: list[str] = []
        if self.root.exists() and not self.root.is_dir():
            raise RequestError(f"--out {self.root} is a file; give a folder")
        files.folder(self.root)
        if self.path.exists():
            try:
                old = self.read()
            except RequestError:
                said.append(f"{self.path} was damaged and is written anew")
            else:
                _same_study(self.root, old["request"], plan.request.to_json())
        else:
            others = sorted(p.name for p in self.root.iterdir() if not p.name.startswith("."))
            if others:
                raise RequestError(
                    f"--out {self.root} holds other files ({others[0]}) and no study; "
                    "choose a new or empty folder"
                )
        document = {
            "schema": STUDY_SCHEMA,
            "request": plan.request.to_json(),
            "data": [
                {
                    "fingerprint": fingerprint,
                    "name": federation.name,
                    "centers": federation.size,
                    "rows": federation.rows,
                    "positive_share": float(federation.label.mean()),
                    "groups": None if federation.groups is None else len(set(federation.groups)),
                    "left_out": [
                        {"center": o.center, "rows": o.rows, "reason": o.reason} for o in federation.left_out
                    ],
                    "check": None if federation.notes is None else federation.notes.to_json(),
                }
                for fingerprint, federation in plan.federations.items()
            ],
            "left_out": list(plan.left_out),
            "runs": [run.to_json() for run in plan.runs],
        }
        files.write_json(self.path, document | {"digest": key_of(document)})
        self._sweep()
        return said

    def read(self) -> dict[str, Any]:
        """The study's plan as it was written."""
        if not self.path.exists():
            raise RequestError(
                f"{self.root} holds no study ({self.path.name} is missing); `abps compare` makes one"
            )
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
            noted = document.pop("digest")
            whole = document["schema"] == STUDY_SCHEMA and noted == key_of(document)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            whole = False
        if not whole:
            raise RequestError(
                f"{self.path} is damaged or not a study; run the same `abps compare` again "
                "(finished runs are kept)"
            )
        return dict(document)

    def runs(self) -> list[PlannedRun]:
        """The planned runs as they were written."""
        return [PlannedRun.from_json(value) for value in self.read()["runs"]]

    def strangers(self, planned: list[PlannedRun]) -> list[str]:
        """Names in the folder of runs that belong to no planned run: never used."""
        place = self.root / "runs"
        known = {run.folder for run in planned}
        if not place.is_dir():
            return []
        return sorted(p.name for p in place.iterdir() if p.name not in known and not p.name.startswith("."))

    def _sweep(self) -> None:
        """Remove what a killed process left half-written."""
        for part in [
            *self.root.glob(".*.part"),
            *self.root.glob("*/.*.part"),
            *self.root.glob("*/*/.*.part"),
        ]:
            part.unlink(missing_ok=True)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep a second study process out of the folder; a killed one leaves no lock behind."""
        import fcntl

        files.folder(self.root)
        with (self.root / ".lock").open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise RequestError(
                    f"another process is working on the study in {self.root}; "
                    "wait for it, or choose another --out"
                ) from error
            handle.write(str(os.getpid()))
            handle.flush()
            yield


def _same_study(root: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """A study may grow by methods and seeds; other data, rounds or settings make another study."""
    for part in ("sources", "rounds", "settings", "vary"):
        if json.loads(json.dumps(new[part])) != old.get(part):
            option = {"sources": "--data", "rounds": "--rounds", "settings": "--set", "vary": "--vary"}[part]
            raise RequestError(
                f"--out {root} holds a study with another {option} ({_short(old.get(part))}); "
                "choose another --out or repeat its arguments"
            )


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(str(source.get("data")) for source in value)
    if value is None:
        return "the methods' own"
    return json.dumps(value) if value else "none"
