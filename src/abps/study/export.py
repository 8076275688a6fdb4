"""Runs in the tools that people keep records with: MLflow (``abps[mlflow]``) and TensorBoard event files
(``abps[tensorboard]``)."""

import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from abps.core.errors import RequestError
from abps.engine.result import Run


def to_mlflow(runs: Iterable[tuple[str, Run]], experiment: str, uri: str | None = None) -> list[str]:
    """Write every run, with its label, as a run of an MLflow experiment; returns their ids.

    uri: of the tracking server; default: MLflow's own setting. The extra has MLflow's client alone; to write
    into a file of your own without a server, install the package mlflow.
    """
    try:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.exceptions import MlflowException
    except ImportError as error:
        raise RequestError("records for MLflow need its package; install abps[mlflow]") from error
    try:
        client = MlflowClient(uri)
        found = client.get_experiment_by_name(experiment)
    except (MlflowException, ImportError) as error:
        raise RequestError(
            f"MLflow cannot write to {uri or 'its own setting'} ({str(error).partition('. ')[0]}); give uri= "
            "of a tracking server, or install the package mlflow and give uri='sqlite:///mlflow.db'"
        ) from error
    number = client.create_experiment(experiment) if found is None else found.experiment_id
    ids = []
    for label, run in runs:
        made = client.create_run(number, run_name=f"{label}, seed {run.seed}")
        own = made.info.run_id
        metrics = [Metric(_name(key), value, 0, step) for key, value, step in _scalars(run)]
        params = [Param(key, str(value)[:500]) for key, value in _settings(label, run)]
        tags = [RunTag(f"version.{name}", value) for name, value in run.versions.items()]
        for k in range(0, len(metrics), 900):  # a server takes a thousand at a time
            client.log_batch(own, metrics=metrics[k : k + 900])
        for k in range(0, len(params), 90):
            client.log_batch(own, params=params[k : k + 90])
        client.log_batch(own, tags=tags)
        client.log_dict(own, run.to_json(), "result.json")
        client.set_terminated(own)
        ids.append(own)
    return ids


def to_tensorboard(runs: Iterable[tuple[str, Run]], folder: Path | str) -> list[Path]:
    """Write every run's history as event files, a folder for each run; returns the folders."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise RequestError("event files need TensorBoard's package; install abps[tensorboard]") from error
    places = []
    for label, run in runs:
        place = Path(folder) / f"{_name(run.data.name)}" / f"{_name(label)}-s{run.seed}"
        writer = EventFileWriter(str(place))
        for key, value, step in _scalars(run):
            summary = Summary(value=[Summary.Value(tag=key, simple_value=value)])
            writer.add_event(Event(step=step, summary=summary))
        writer.close()
        places.append(place)
    return places


def _scalars(run: Run) -> Iterator[tuple[str, float, int]]:
    """Numbers of a run as (name, value, round): round by round, then the result, in all and by center."""
    history = run.history
    by_round = {
        "validation": history.validation_auroc,
        "test": history.auroc,
        "rest": history.rest,
        "bytes": [d + c for d, c in zip(history.directed_bytes, history.control_bytes)],
    }
    for name, values in by_round.items():
        for t, value in enumerate(values, 1):
            if math.isfinite(value):
                yield f"round/{name}", float(value), t
    final = {run.measure: run.main, **run.measures}
    if run.score is None:
        final |= {"AUPRC": run.auprc, "Brier": run.brier}
    for name, score in final.items():
        each = {f"center/{center}/{name}": value for center, value in score.per_center.items()}
        for key, value in ({f"mean/{name}": score.mean} | each).items():
            if math.isfinite(value):
                yield key, float(value), run.rounds
    yield "bytes/all", float(run.bytes.all), run.rounds
    yield "seconds", run.seconds, run.rounds


def _settings(label: str, run: Run) -> Iterator[tuple[str, Any]]:
    yield from {"method": label, "seed": run.seed, "data": run.data.name, "centers": run.data.centers}.items()
    yield "fingerprint", run.data.fingerprint
    waiting = [("config", run.config)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{name}.{key}", inner) for key, inner in value.items()]
        else:
            yield name, value


def _name(text: str) -> str:
    return re.sub(r"[^\w\-. /]+", "-", text).strip("-")
