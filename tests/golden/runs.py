"""Golden runs: what the package computes, frozen, so that code can move without results moving with it.

``OPENBLAS_CORETYPE=Haswell python tests/golden/runs.py`` computes all of them and writes ``golden.json``
anew, and says which entries changed. Do that only when a result is meant to change, and say in the commit
which one and why.

Everything goes through the public interface, but for the sites (``_job``). Where the package renames a
column, a decision, a reason or a field, say so in the tables below: the stored values stay as they are.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import torch

import abps

STORED: Final = Path(__file__).with_name("golden.json")

# How the package calls it today (right) for what golden.json calls it (left).
COLUMNS: Final = {
    "round": "round", "center": "center", "peer": "peer", "decision": "decision", "reason": "reason",
}  # fmt: skip
DECISIONS: Final = {
    "proposed": "proposed", "accepted": "accepted", "full": "full", "declined": "declined",
    "filtered": "filtered", "rested": "rested",
}  # fmt: skip
REASONS: Final = {"all full": "all full", "no candidates": "no candidates", "budget": "budget"}
RESTS: Final = {
    "share": "share", "no_candidates": "no_candidates", "all_full": "all_full", "declined": "declined",
    "budget": "budget", "quiet": "quiet", "privacy": "privacy",
}  # fmt: skip

SEED: Final = 11
ROUNDS: Final = 5
BINARY: Final = "icu-synthetic:centers=13,stays=3000,groups=3,heterogeneity=2"

#: The paper's rows, their upper bound and controls, and two references.
METHODS: Final = (
    "local", "fedavg", "fedprox", "feddyn", "moon", "decefl", "defta", "wpfed", "bnn",
    "abps", "abps-p", "abps-q", "abps-pq-k1", "fedavg-pq",
    "abps-pq-k1-hom", "abps-pq-k1-div", "abps-pq-k1-align", "abps-x", "fedavg-x",
    "centralized", "random-k1", "random-k3", "group-oracle-k1", "glm-exact", "local-best",
)  # fmt: skip
#: Rounds enough to stop early.
LONG: Final = ("abps-x",)
LONG_ROUNDS: Final = 90
OUTCOMES: Final = ("survival", "classes", "continuous")
OTHERS: Final = ("fedavg", "abps-pq-k1")
JOBS: Final = {"abps-plus": {}, "glm-exact": {"secure": "yes"}}


@cache
def _binary() -> abps.Federation:
    return abps.load(BINARY)


@cache
def _outcome(kind: str) -> abps.Federation:
    """Six centers with three columns and an outcome of this kind, read from a file as anybody's would be."""
    rng = np.random.default_rng(7)
    rows = 900
    x = rng.normal(size=(rows, 3))
    eta = x[:, 0] - 0.7 * x[:, 1]
    columns: dict[str, Any] = {"center": [f"h{k}" for k in rng.integers(0, 6, rows)]}
    columns |= {f"x{j}": x[:, j] for j in range(3)}
    if kind == "survival":
        time, watched = np.ceil(9 * rng.exponential(np.exp(-eta))), np.ceil(rng.exponential(15, rows))
        columns |= {"y": time <= watched, "t": np.minimum(time, watched)}
    elif kind == "classes":
        utility = np.stack([eta, -eta, 0 * eta], axis=1) + rng.gumbel(size=(rows, 3))
        columns["y"] = np.array(["a", "b", "c"])[utility.argmax(axis=1)]
    else:
        columns["y"] = 4 + 3 * eta + rng.normal(size=rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{kind}.parquet"
        pl.DataFrame(columns).write_parquet(path)
        duration = "t" if kind == "survival" else None
        return abps.read_table(path, label="y", center="center", outcome=kind, duration=duration)


def _word(table: Mapping[str, str], word: str | None) -> str | None:
    """A word of the package as golden.json calls it; one that is in no table stays what it is."""
    return {today: stored for stored, today in table.items()}.get(word, word) if word is not None else None


def _trail(decisions: pl.DataFrame) -> list[list[Any]]:
    """The decisions in their order: round, center, peer, decision, reason."""
    return [
        [t, center, peer, _word(DECISIONS, decision), _word(REASONS, reason)]
        for t, center, peer, decision, reason in decisions.select(list(COLUMNS.values())).iter_rows()
    ]


def _pairs(trail: list[list[Any]]) -> dict[str, list[str]]:
    """Who worked with whom, by round."""
    rounds: dict[str, list[str]] = {}
    for t, center, peer, decision, _ in trail:
        if decision == "accepted":
            rounds.setdefault(str(t), []).append(" + ".join(sorted((center, peer))))
    return {t: sorted(pairs) for t, pairs in rounds.items()}


def _weights(models: np.ndarray) -> dict[str, Any]:
    """A few numbers that every weight has a part in, the first five, and a digest of all their bits."""
    wide = models.astype(np.float64)
    return {
        "shape": list(models.shape),
        "sum": float(wide.sum()),
        "squares": float((wide**2).sum()),
        "first": wide.ravel()[:5].tolist(),
        "sha256": hashlib.sha256(np.ascontiguousarray(models).tobytes()).hexdigest(),
    }


def _known(values: Mapping[str, float]) -> dict[str, float | None]:
    """Scores by center; none where a center has no score."""
    return {center: None if math.isnan(value) else float(value) for center, value in values.items()}


def _simulation(federation: Callable[[], abps.Federation], method: str, rounds: int) -> dict[str, Any]:
    run = abps.simulate(federation(), method, seed=SEED, rounds=rounds)
    trail = _trail(run.decisions)
    score = "auroc" if run.outcome == "binary" else "score"
    found: dict[str, Any] = {
        "rounds": run.rounds,
        "bytes": {name: getattr(run.bytes, name) for name in ("edge", "directed", "control")},
        "edge bytes by round": list(run.history.edge_bytes),
        "partners": _pairs(trail),
        "decisions": len(trail),
        "trail": hashlib.sha256(json.dumps(trail).encode()).hexdigest(),
        "partners mean": run.partners_mean,
        "rest": {stored: getattr(run.rest, today) for stored, today in RESTS.items()},
        score: _known(run.main.per_center),
    }
    if run.models is None:  # several kinds of models: their predictions stand for them
        return found | {"brier": _known(run.brier.per_center)}
    return found | {"weights": _weights(run.models)}


def _job(method: str) -> dict[str, Any]:
    """A job between six sites in this process: the one place here that knows the package from inside."""
    from abps.sites.coordinator.scheduler import Scheduler
    from abps.sites.protocol.commands import Timeouts
    from sites.loopback import LoopbackNetwork
    from sites.network import close, hospitals, open_site

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given = hospitals(folder / "tables", 6, stays=900)
        agreement = given.agreement(method, SEED, ROUNDS, **JOBS[method])
        network = LoopbackNetwork()
        for site in given.names:
            open_site(given, site, agreement, folder, network)
        try:
            report = Scheduler(network, agreement, ROUNDS, Timeouts(poll=0.0)).run(given.names)
            sites = [network.sites[site] for site in given.names]
            models = np.stack([site.models[0] for site in sites])
        finally:
            close(network)
    return {
        "rounds": len(report.rounds),
        "bytes by round": [r.bytes for r in report.rounds],
        "validation": {str(r.round): r.validation for r in report.rounds},
        "weights": _weights(models),
    }


def golden_runs() -> dict[str, Callable[[], dict[str, Any]]]:
    """All golden runs by name."""
    runs: dict[str, Callable[[], dict[str, Any]]] = {}
    for method in METHODS:
        runs[f"binary {method}"] = partial(_simulation, _binary, method, ROUNDS)
    for method in LONG:
        runs[f"binary {method} long"] = partial(_simulation, _binary, method, LONG_ROUNDS)
    for kind in OUTCOMES:
        for method in OTHERS:
            runs[f"{kind} {method}"] = partial(_simulation, partial(_outcome, kind), method, ROUNDS)
    for method in JOBS:
        runs[f"sites {method}"] = partial(_job, method)
    return runs


def stored() -> dict[str, dict[str, Any]]:
    """What was frozen."""
    return json.loads(STORED.read_text()) if STORED.exists() else {}


def main() -> None:
    """Compute everything and freeze it; say what is new, other or gone."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    torch.set_num_threads(1)
    before = stored()
    now = {name: json.loads(json.dumps(run())) for name, run in golden_runs().items()}
    for name in sorted({*before, *now}):
        parts = sorted(
            key
            for key in {*before.get(name, {}), *now.get(name, {})}
            if before.get(name, {}).get(key) != now.get(name, {}).get(key)
        )
        if parts:
            print(f"{name}: {', '.join(parts)}")
    STORED.write_text(json.dumps(now, indent=1) + "\n")
    print(f"{len(now)} golden runs in {STORED}")


if __name__ == "__main__":
    main()
