"""TCGA-BRCA by FLamby's split: C-index per center, ours beside the published ones, with what is noise.

    python benchmarks/flamby_tcga.py TCGA_BRCA_DIR --published FLAMBY_RESULTS_DIR

TCGA_BRCA_DIR holds ``brca.csv`` and ``train_test_split.csv`` as FLamby has them; FLAMBY_RESULTS_DIR FLamby's
own result files, ``tcga_seed42.csv`` to ``tcga_seed46.csv``. Prints the tables of docs/survival.md.

FLamby's settings: 39 columns as they are, Cox's partial likelihood within batches of 8, a linear model from
the start that torch gives it for seeds 42 to 46. Pooled and Local: Adam, 0.1, 30 epochs. FedAvg: SGD, 0.1, 5
rounds of 100 batches at every center.
"""

from __future__ import annotations

import argparse
import csv
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
from flamby_heart import EqualUpdates, linear_from

from abps import Federation, simulate
from abps.data.outcome import Outcome
from abps.data.prepare import Prepared, Rows, prepare
from abps.data.roles import Roles
from abps.data.table import federate
from abps.methods.local import Centralized, Local
from abps.methods.settings import configure
from abps.models.metrics import Segments
from abps.models.outcomes import concordance
from abps.models.training import Training

SEEDS = (42, 43, 44, 45, 46)
ROUNDS, DRAWS = 5, 400
COX = Outcome("survival", "cox")
OURS = ("local-best", "pooled-best", "fedavg", "abps-plus")


def read(folder: Path) -> tuple[pl.DataFrame, np.ndarray, np.ndarray]:
    """The table, and every row's center and whether it is for test; sorted by center and key."""
    table = pl.read_csv(folder / "brca.csv")
    split = pl.read_csv(folder / "train_test_split.csv").select("pid", "fold2")
    table = table.join(split, on="pid", how="inner").sort(pl.col("fold2").str.split("_").list.last(), "pid")
    place = table["fold2"].str.split("_")
    center = place.list.last().cast(pl.Int64).to_numpy()
    test = (place.list.first() == "test").to_numpy()
    return table.drop("fold2"), center, test


def as_published(folder: Path) -> Prepared:
    """FLamby's rows, as they are."""
    table, center, test = read(folder)
    names = [name for name in table.columns if name not in ("pid", "E", "T")]
    x = table.select(names).to_numpy().astype(np.float32)
    time, event = table["T"].to_numpy(), table["E"].to_numpy() > 0
    y = np.where(event, time, -time).astype(np.float32)
    count = int(center.max()) + 1

    def rows(chosen: np.ndarray) -> Rows:
        start = np.concatenate([[0], np.cumsum(np.bincount(center[chosen], minlength=count))])
        return Rows(x[chosen], y[chosen], start, outcome=COX)

    none = np.zeros(len(y), dtype=bool)
    told = np.stack([np.zeros(count), np.log(rows(~test).sizes)], axis=1)
    return Prepared(
        name="TCGA-BRCA, by FLamby", centers=tuple(str(k) for k in range(count)), columns=tuple(names),
        train=rows(~test), validation=rows(none), test=rows(test), metadata=told,
        metadata_names=("event rate", "log training rows"), base_metadata=2, groups=None, seed=42,
        outcome=COX,
    )  # fmt: skip


def with_validation(folder: Path, share: float = 0.2) -> tuple[Federation, np.ndarray]:
    """The same rows as a federation, and a split that sets a share of training rows aside for validation."""
    table, center, test = read(folder)
    frame = table.drop("pid").with_columns(center=pl.Series(center.astype(str)), E=pl.col("E").cast(pl.Int64))
    federation = replace(
        federate(frame, Roles("E", "center", outcome="survival:cox", duration="T"), "TCGA-BRCA", 10),
        in_order=True,
    )
    split = np.where(test, 2, 0).astype(np.int8)
    rng = np.random.default_rng(43)
    for k in range(int(center.max()) + 1):
        for event in (0, 1):
            own = np.flatnonzero((center == k) & ~test & (frame["E"].to_numpy() == event))
            split[rng.permutation(own)[: round(share * len(own))]] = 1
    return federation, split


def measured(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Segments], Rows]:
    """(seeds, centers) C-indices of every row that we run, the risks of the last seed, and the test rows."""
    data = as_published(folder)
    federation, split = with_validation(folder)
    assert federation.size == 6, federation.left_out
    found: dict[str, list[np.ndarray]] = {}
    risks: dict[str, Segments] = {}

    def note(name: str, logits: Segments, rows: Rows) -> None:
        values = concordance(COX, logits.values, rows.y, rows.start)
        found.setdefault(name, []).append(values)
        risks[name] = logits

    for seed in SEEDS:
        factory = linear_from(seed)
        adam = Training(epochs=30, batch=8, lr=0.1, weight_decay=0.0, model=factory)
        sgd = replace(adam, epochs=1, optimizer="sgd")
        for name, method, rounds in (
            ("Pooled", Centralized(training=adam), 1),
            ("Local", Local(training=adam), 1),
            ("FedAvg", EqualUpdates(training=sgd), ROUNDS),
        ):
            # A linear model and batches of eight: the plain loop is the faster one here.
            run = simulate(data, method, seed, rounds=rounds, engine="debug")
            note(name, run.artifacts.answers, data.test)
        for name in OURS:
            config = configure(name, {"model": "linear"} if name == "fedavg" else {})
            how = config.training
            held = prepare(federation, seed, split=split, standardise=how.standardise, splines=how.splines)
            np.testing.assert_array_equal(held.test.y, data.test.y)
            run = simulate(held, config, seed)
            note(f"{name}, our settings", run.artifacts.answers, held.test)
        print(f"seed {seed} done", file=sys.stderr, flush=True)
    return {name: np.array(values) for name, values in found.items()}, risks, data.test


def published(folder: Path) -> dict[str, np.ndarray]:
    """(seeds, centers) FLamby's own."""
    names = {"Pooled Training": "Pooled", "FedAvg100": "FedAvg"} | {f"Local {k}": "Local" for k in range(6)}
    found = {name: np.full((5, 6), np.nan) for name in ("Pooled", "Local", "FedAvg")}
    for s, seed in enumerate(SEEDS):
        with (folder / f"tcga_seed{seed}.csv").open() as stream:
            for row in csv.DictReader(stream):
                for i in range(6):
                    own = not row["Method"].startswith("Local") or row["Method"] == f"Local {i}"
                    if row["Test"] == f"client_test_{i}" and row["Method"] in names and own:
                        found[names[row["Method"]]][s, i] = float(row["Metric"])
    return found


def spread(logits: Segments, rows: Rows, other: Segments | None = None) -> np.ndarray:
    """(centers,) the standard error of a C-index (or of the difference of two) over other test patients."""
    rng, found = np.random.default_rng(1), []
    for i in range(len(rows.sizes)):
        y = rows.y[rows.start[i] : rows.start[i + 1]]
        values = []
        for _ in range(DRAWS):
            drawn = rng.integers(0, len(y), len(y))
            pair = [
                concordance(COX, each[i][drawn], y[drawn], np.array([0, len(y)]))[0]
                for each in (logits, other) if each is not None
            ]  # fmt: skip
            values.append(pair[0] if other is None else pair[0] - pair[1])
        found.append(float(np.nanstd(values)))
    return np.array(found)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--published", type=Path)
    options = parser.parse_args()
    theirs = {} if options.published is None else published(options.published)
    ours, risks, test = measured(options.data)
    events = [int((~np.signbit(test.only(i).y)).sum()) for i in range(6)]
    print("| | " + " | ".join(f"center {k}" for k in range(6)) + " | mean |\n|---|" + "---|" * 7)
    print("| test patients | " + " | ".join(str(n) for n in test.sizes) + " | |")
    print("| … with the event | " + " | ".join(map(str, events)) + " | |")
    for name, values in ours.items():
        rows = [(name, values)]
        if name in theirs:
            rows = [(f"{name}, published", theirs[name]), (f"{name}, ours", values)]
        for label, v in rows:
            print(f"| {label} | " + " | ".join(f"{m:.3f}" for m in (*v.mean(axis=0), v.mean())) + " |")
    print("\nstandard deviation over seeds")
    for source, table in (("published", theirs), ("ours", ours)):
        for name, v in table.items():
            print(f"| {name}, {source} | " + " | ".join(f"{m:.3f}" for m in v.std(axis=0, ddof=1)) + " |")
    print("\nstandard error over other test patients (ours, last seed)")
    for name in risks:
        print(f"| {name} | " + " | ".join(f"{m:.3f}" for m in spread(risks[name], test)) + " |")
    gap = spread(risks["FedAvg"], test, risks["Local"])
    print("| FedAvg − Local | " + " | ".join(f"{m:.3f}" for m in gap) + " |")


if __name__ == "__main__":
    main()
