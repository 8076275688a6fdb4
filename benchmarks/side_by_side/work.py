"""The work that every tool does, and how it is judged. NumPy only: it is read in every environment.

Federated averaging of all centers in every round: from the global model, two local epochs of Adam (no state
from earlier rounds), then the mean of the centers' models. One JSON line tells the seconds of every round;
the final weights are written to a file and judged here, by the same code for all.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

SIZES = (64, 128, 64, 1)
LEARNING_RATE = 1e-3
DROPOUT = 0.2


@dataclass(frozen=True)
class Task:
    """x: (centers, rows, features).  y: (centers, rows) 0/1.  start: weight (in, out), bias (out,), …

    batch, epochs, dropout: of local training.  rounds: how many, the first of them to warm up.
    threads: cores that a tool may use.
    """

    x: Floats
    y: Floats
    start: list[Floats]
    batch: int
    epochs: int
    dropout: float
    rounds: int
    threads: int
    out: Path
    variant: str


def make(folder: Path, centers: int, rows: int, seed: int = 0) -> None:
    """Write the federation: a linear risk that is the same everywhere, and a common start."""
    rng = np.random.default_rng(seed)
    slope = rng.standard_normal(SIZES[0]) / np.sqrt(SIZES[0])
    x = rng.standard_normal((centers, rows, SIZES[0])).astype(np.float32)
    y = (rng.random((centers, rows)) < 1 / (1 + np.exp(2.0 - 2.0 * (x @ slope)))).astype(np.float32)
    weights = {}
    for k, (a, b) in enumerate(itertools.pairwise(SIZES)):
        bound = 1 / np.sqrt(a)
        weights[f"w{2 * k}"] = rng.uniform(-bound, bound, (a, b)).astype(np.float32)
        weights[f"w{2 * k + 1}"] = rng.uniform(-bound, bound, b).astype(np.float32)
    np.savez(folder / "federation.npz", x=x, y=y, **weights)


def loss(folder: Path, weights: list[Floats]) -> float:
    """Mean log-loss of a model on all rows, without dropout, in double precision."""
    with np.load(folder / "federation.npz") as data:
        z = data["x"].reshape(-1, SIZES[0]).astype(np.float64)
        y = data["y"].ravel()
    for k in range(0, len(weights), 2):
        z = z @ weights[k].astype(np.float64) + weights[k + 1]
        if k + 2 < len(weights):
            z = np.maximum(z, 0)
    z = z[:, 0]
    return float(np.mean(np.logaddexp(0, z) - y * z))


def task(arguments: Sequence[str] | None = None) -> Task:
    """The task from the command line of a tool's script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--dropout", type=float, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--variant", default="")
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args(arguments)
    with np.load(a.folder / "federation.npz") as data:
        start = [data[f"w{k}"] for k in range(2 * (len(SIZES) - 1))]
        x, y = data["x"], data["y"]
    return Task(x, y, start, a.batch, a.epochs, a.dropout, a.rounds, a.threads, a.out, a.variant)


def timed(rounds: int, one: Callable[[int], None]) -> list[float]:
    """Seconds of each of some rounds."""
    seconds = []
    for t in range(rounds):
        began = time.perf_counter()
        one(t)
        seconds.append(time.perf_counter() - began)
    return seconds


def finish(job: Task, seconds: list[float], weights: list[Any], *packages: str) -> None:
    """Hand in: the final weights to the file, the times and versions as one line."""
    arrays = {f"w{k}": np.asarray(w, dtype=np.float32) for k, w in enumerate(weights)}
    shapes = [tuple(w.shape) for w in job.start]
    assert [a.shape for a in arrays.values()] == shapes, [a.shape for a in arrays.values()]
    np.savez(job.out, **arrays)
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    print(json.dumps({"seconds": seconds, "versions": versions}), flush=True)


def handed_in(path: Path) -> list[Floats]:
    """The weights that a tool handed in."""
    with np.load(path) as data:
        return [data[f"w{k}"] for k in range(len(data.files))]


def both_orders(weights: list[Floats]) -> Iterator[Floats]:
    """Weights as PyTorch's linear layers keep them, (out, in), and back."""
    for w in weights:
        yield np.ascontiguousarray(w.T) if w.ndim == 2 else w
