"""Results as runs write them, made up: for tests of statistics and reports that need no training."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import polars as pl

from abps.engine.result import Run
from abps.evaluate.measured import measured
from abps.study.plan import Request, Source, key_of, make_plan
from abps.study.records import DECISIONS, RECEIPT, RECEIPT_SCHEMA, RESULT, SCORES, StudyFolder, digest

CENTERS = [f"unit {i:02d}" for i in range(30)]
#: method -> (AUROC, bytes, rest, κ)
METHODS = {
    "local": (0.62, 0.0, 0.0, None),
    "fedavg": (0.75, 1.0, 0.0, None),
    "fedavg-pq": (0.751, 0.5, 0.0, None),
    "centralized": (0.82, 0.0, 0.0, None),
    "random-k1": (0.741, 0.25, 0.0, 1),
    "random-k3": (0.75, 1.5, 0.0, 3),
    "abps": (0.75, 1.5, 0.0, 3),
    "abps-pq-k1": (0.741, 0.25, 0.0, 1),
    "abps-pq-k1-div": (0.69, 0.15, 0.41, 1),
    "abps-x": (0.73, 0.09, 0.05, 1),
}
UNIT = 1000.0  # bytes of FedAvg's 50 rounds


#: Rows of every center, every fifth with the event; folds.
ROWS, EVENTS, FOLDS = 60, 12, 5


def made_scores(method: str, seed: int, level: float) -> pl.DataFrame:
    """Scores of all rows: patients keep their peculiarity, methods and repeats add a little of their own."""
    count = len(CENTERS) * ROWS
    y = (np.arange(count) % ROWS < EVENTS).astype(np.uint8)
    patient = np.random.default_rng(1).normal(size=count)
    own = np.random.default_rng([seed, sum(map(ord, method))]).normal(size=count)
    signal = math.sqrt(2.0) * NormalDist().inv_cdf(level)
    fold = (np.arange(count) + np.arange(count) // FOLDS * seed) % FOLDS
    return pl.DataFrame(
        {
            "row": np.arange(count, dtype=np.uint32),
            "patient": np.arange(count),
            "center": (np.arange(count) // ROWS).astype(np.int32),
            "fold": fold.astype(np.uint8),
            "y": y,
            "logit": (signal * y + patient + 0.05 * own - 1.5).astype(np.float32),
        }
    )


def made_run(
    method: str, seed: int, level: float, vs_fedavg: float, rest: float = 0.0, rounds: int = 6, kappa=None
):
    """One result: scores around a level, a curve that climbs to it, bytes that grow evenly."""
    scores = made_scores(method, seed, level)
    values = measured({"m": [scores]}, len(CENTERS)).level("m")
    per_center = {c: float(v) for c, v in zip(CENTERS, values)}
    mean = float(np.mean(values))
    curve = [mean - 0.1 * (1 - (t + 1) / rounds) for t in range(rounds)]
    edge = [round(UNIT * vs_fedavg * (t + 1) / rounds) for t in range(rounds)]
    config = {"stop": {"rounds": rounds}} | ({} if kappa is None else {"selection": {"kappa": kappa}})
    causes = {"no_candidates": rest / 4, "all_full": rest * 3 / 4, "declined": 0.0, "budget": 0.0}
    run = Run.from_json(
        {
            "schema": "abps.run/1",
            "method": method,
            "seed": seed,
            "rounds": rounds,
            "data": {
                "name": "made",
                "centers": len(CENTERS),
                "rows": len(CENTERS) * ROWS,
                "features": 5,
                "fingerprint": "f",
            },
            "scored": {
                "per_center_rows": dict.fromkeys(CENTERS, ROWS),
                "per_center_events": dict.fromkeys(CENTERS, EVENTS),
                "folds": FOLDS,
            },
            "config": config,
            "auroc": {
                "mean": mean,
                "scored_centers": len(CENTERS),
                "at_best_validation": mean,
                "per_center": per_center,
            },
            "auprc": {"mean": 0.3},
            "brier": {"mean": 0.1},
            "bytes": {
                "edge": edge[-1],
                "directed": 2 * edge[-1],
                "control": 7 if vs_fedavg else 0,
                "vs_fedavg": edge[-1] / UNIT,
                "all_vs_fedavg": (edge[-1] + (7 if vs_fedavg else 0)) / UNIT,
            },
            "cost_usd": 0.01,
            "partners_mean": 1.0 - rest,
            "rest": {"share": rest, **causes},
            "history": {
                "auroc": curve,
                "validation_auroc": curve,
                "edge_bytes": edge,
                "rest": [rest] * rounds,
            },
            "clinical": made_clinical(seed),
            "seconds": 1.5,
            "versions": {"abps": "0", "python": "3"},
        }
    )
    return replace(run, artifacts=replace(run.artifacts, scores=scores))


def made_clinical(seed: int) -> dict:
    """What clinicians ask for, as large as a run with many events writes it."""
    rng = np.random.default_rng([seed, 3])

    def interval() -> dict:
        low, value, high = np.sort(rng.random(3)).round(4).tolist()
        return {"value": value, "low": low, "high": high}

    def curve(points: int) -> list:
        return (
            np.column_stack([np.linspace(0.02, 0.6, points), np.sort(rng.random(points))]).round(4).tolist()
        )

    def level() -> dict:
        return {"expected": 12.3, "in_the_large": interval(), "slope": interval()}

    thresholds = (np.arange(1, 51) / 100).tolist()
    return {
        "rows": 900,
        "events": 100,
        "auroc": interval(),
        "per_center": {
            name: {
                "before": level(),
                "after": level(),
                "recalibration": "intercept",
                "shift": 0.1,
                "factor": 1.0,
                "curve": curve(12),
            }
            for name in CENTERS
        },
        "thresholds": thresholds,
        "net_benefit": [0.1 * (0.5 - t) for t in thresholds],
        "everyone": [0.1 - t for t in thresholds],
        "subgroups": {
            "sex": [
                {"name": name, "rows": 450, "events": 50, "auroc": interval(), "ratio": 1.1, "hidden": ""}
                for name in ("F", "M")
            ]
        },
    }


def made_trail(seed: int, rest: float = 0.0, kappa=None, rounds: int = 6) -> pl.DataFrame:
    """Decisions of a method with pairs: in every round some rest and the others pair up at random."""
    columns = ("round", "center", "peer", "decision", "score", "posterior_mean", "count", "reason")
    rows = []
    rng = np.random.default_rng([seed, 7])
    for t in range(1, rounds + 1) if kappa else ():
        order = rng.permutation(len(CENTERS))
        resting = round(rest * len(CENTERS))
        for k in order[:resting]:
            rows.append((t, CENTERS[k], None, "rested", None, None, None, "all full"))
        for a, b in zip(order[resting::2], order[resting + 1 :: 2]):
            rows.append((t, CENTERS[b], CENTERS[a], "proposed", 0.7, 0.6, 1.0, "promising"))
            rows.append((t, CENTERS[a], CENTERS[b], "accepted", 0.6, 0.6, 1.0, "useful before"))
    types = [pl.Int32, pl.String, pl.String, pl.String, pl.Float64, pl.Float64, pl.Float64, pl.String]
    return pl.DataFrame(rows, schema=dict(zip(columns, types)), orient="row")


def stored_study(root, methods=METHODS, seeds=(1, 2, 3, 4, 5), rounds=6):
    """A study's folder with made-up results."""
    plan = make_plan(Request((Source("icu-synthetic:centers=8,stays=800"),), tuple(methods), seeds, 6))
    study = StudyFolder(root)
    study.open(plan)
    for run in plan.runs:
        level, cost, rest, kappa = methods[run.method]
        folder = study.folder(run)
        folder.mkdir(parents=True)
        made = made_run(run.method, run.seed, level, cost, rest, rounds, kappa)
        (folder / RESULT).write_text(json.dumps(made.to_json()))
        made.row_scores.write_parquet(folder / SCORES)
        made_trail(run.seed, rest, kappa, rounds).write_parquet(folder / DECISIONS)
        content = run.identity(run.config())
        receipt = {"schema": RECEIPT_SCHEMA, "key": key_of(content), "identity": content}
        receipt["files"] = {name: digest(folder / name) for name in (RESULT, DECISIONS, SCORES)}
        (folder / RECEIPT).write_text(json.dumps(receipt))
    return study, plan
