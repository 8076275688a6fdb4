"""A run on disk: ``result.json``, ``decisions.parquet``, ``scores.parquet``, ``privacy.json`` of a private
one, and where asked for ``rounds.parquet`` and ``models.safetensors``; whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from abps.core.errors import RequestError
from abps.engine.result import Run, RunArtifacts
from abps.files import check_writable, folder, write_json, write_with

RESULT = "result.json"
DECISIONS = "decisions.parquet"
SCORES = "scores.parquet"
ROUNDS = "rounds.parquet"
MODELS = "models.safetensors"
PRIVACY = "privacy.json"


def save(run: Run, out: Path, models: bool = False) -> None:
    """Write a run into its folder; ``result.json`` last, so that its presence means completeness.

    models: also the final models, and every center's score in every round.
    """
    folder(out)
    weights = run.models if models else None
    if weights is not None:
        named = {"models": np.ascontiguousarray(weights)}
        write_with(out / MODELS, lambda part: save_file(named, part))
    if models and run.artifacts.centers is not None:
        write_with(out / ROUNDS, run.center_history().write_parquet)
    write_with(out / DECISIONS, run.decisions.write_parquet)
    scores = run.row_scores
    if scores is not None:
        write_with(out / SCORES, lambda part: scores.write_parquet(part, compression="zstd"))
    if run.privacy is not None:
        write_json(out / PRIVACY, run.privacy.to_json())
    write_json(out / RESULT, run.to_json())


def load_run(out: Path | str) -> Run:
    """The run in a folder, as it was saved."""
    path = Path(out) / RESULT
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        decisions, scores, rounds, models = (Path(out) / name for name in (DECISIONS, SCORES, ROUNDS, MODELS))
        return Run.from_json(content, RunArtifacts(decisions, scores, rounds, models))
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error
    except RequestError as error:
        raise RequestError(f"{path}: {error}; choose another folder") from error
    except ValueError as error:
        raise RequestError(f"{path} is damaged ({error}); delete it and run again") from error


def check_free(out: Path, identity: dict[str, Any], fingerprint: str) -> None:
    """Refuse a folder that holds another run, so that nobody's result is lost; the same run may be redone.

    identity: what must agree, by the names of :class:`Run`.
    """
    if out.exists() and not out.is_dir():
        raise RequestError(f"{out} is a file; give a folder")
    check_writable(out)
    if not (out / RESULT).exists():
        return
    there = load_run(out)
    differing = [key for key in identity if getattr(there, key) != json.loads(json.dumps(identity[key]))]
    if there.data.fingerprint != fingerprint:
        differing.append("data")
    if differing:
        raise RequestError(
            f"{out} already holds a run of {there.method!r} (seed {there.seed}) "
            f"that differs in {', '.join(differing)}; choose another folder or delete it"
        )
