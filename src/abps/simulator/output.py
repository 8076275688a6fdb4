"""A run on disk: ``result.json`` and ``decisions.parquet``, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from abps.core.errors import RequestError
from abps.files import check_writable, folder, write_json, write_with
from abps.simulator.result import SCHEMA, Run

RESULT = "result.json"
DECISIONS = "decisions.parquet"

#: What must agree for a folder to be the place of the same run.
IDENTITY = ("method", "seed", "config", "device")


def save(run: Run, out: Path) -> None:
    """Write a run into its folder; ``result.json`` last, so that its presence means completeness."""
    folder(out)
    write_with(out / DECISIONS, run.decisions.write_parquet)
    write_json(out / RESULT, run.to_json())


def read_result(path: Path) -> dict[str, Any]:
    """The content of a ``result.json``, checked to be one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RequestError(f"{path} is damaged ({error}); delete it and run again") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise RequestError(f"{path} is not a result of this version ({SCHEMA}); choose another folder")
    return content


def check_free(out: Path, identity: dict[str, Any], fingerprint: str) -> None:
    """Refuse a folder that holds another run, so that nobody's result is lost; the same run may be redone."""
    path = out / RESULT
    if out.exists() and not out.is_dir():
        raise RequestError(f"{out} is a file; give a folder to --out")
    check_writable(out)
    if not path.exists():
        return
    there = {"device": "cpu"} | read_result(path)  # results once did not say: there was no other
    differing = [key for key in IDENTITY if there.get(key) != json.loads(json.dumps(identity[key]))]
    if there.get("data", {}).get("fingerprint") != fingerprint:
        differing.append("data")
    if differing:
        raise RequestError(
            f"{out} already holds a run of {there.get('method')!r} (seed {there.get('seed')}) "
            f"that differs in {', '.join(differing)}; choose another --out or delete it"
        )
