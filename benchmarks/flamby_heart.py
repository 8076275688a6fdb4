"""UCI Heart Disease by FLamby's split and settings: our FedAvg and Local beside the published ones.

    python benchmarks/flamby_heart.py HEART_DISEASE_DIR --published FLAMBY_RESULTS_DIR

HEART_DISEASE_DIR holds the four ``processed.*.data`` of UCI; FLAMBY_RESULTS_DIR FLamby's own result files,
``heart_seed42.csv`` to ``heart_seed46.csv``. Prints accuracies for docs/external-checks.md.

FLamby's settings: ten columns without gaps, chest pain and electrocardiogram as levels, each center
standardised by its own training rows, 34 % of rows for test (stratified, one fixed draw); logistic
regression from the start that torch gives it for seeds 42 to 46. Local: Adam, 0.001, batches of 4, 50 epochs.
FedAvg: SGD, 0.001, 15 rounds of 100 batches of 4 at every center, whatever its size.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader

from abps import simulate
from abps.core import streams
from abps.data.prepare import Prepared, Rows
from abps.methods.base import Context
from abps.methods.catalog import find
from abps.methods.fedavg import FedAvg
from abps.methods.references import Local
from abps.methods.settings import with_settings
from abps.models import draws
from abps.models.learners import learner_for
from abps.models.metrics import Segments
from abps.models.tabular import fit_table
from abps.models.training import Training

CENTERS = ("cleveland", "hungarian", "switzerland", "va")
SEEDS = (42, 43, 44, 45, 46)
UPDATES, BATCH = 100, 4


def read(folder: Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Of every center: (rows, 10) columns and (rows,) labels, rows with a gap left out."""
    tables, labels = [], []
    for center in CENTERS:
        lines = (folder / f"processed.{center}.data").read_text().splitlines()
        kept = [line.split(",")[:10] + line.split(",")[13:] for line in lines if line.strip()]
        whole = [row for row in kept if not any(cell.strip() in ("?", "", "NaN", "nan") for cell in row)]
        values = np.array([[float(cell) for cell in row] for row in whole])
        tables.append(values[:, :10])
        labels.append((values[:, 10] > 0).astype(np.float32))
    return tables, labels


def prepared(folder: Path, validation: float = 0.0) -> Prepared:
    """FLamby's rows; a share of the training rows may be set aside for validation."""
    tables, labels = read(folder)
    plain = [0, 1, 3, 4, 5, 7, 8, 9]
    levels = {2: np.unique(np.concatenate([t[:, 2] for t in tables]))[1:],
              6: np.unique(np.concatenate([t[:, 6] for t in tables]))[1:]}  # fmt: skip
    names = [str(k) for k in plain] + [f"{k}={v:g}" for k, values in levels.items() for v in values]
    parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {"train": [], "validation": [], "test": []}
    for table, y in zip(tables, labels):
        dummies = [table[:, k] == v for k, values in levels.items() for v in values]
        x = np.column_stack([table[:, plain], *dummies]).astype(np.float32)
        stratify = y if min(y.sum(), len(y) - y.sum()) > 2 else None
        train, test = train_test_split(
            np.arange(len(y)), train_size=0.66, test_size=1 - 0.66, random_state=43, stratify=stratify
        )
        train, test = np.sort(train), np.sort(test)
        mean, spread = x[train].mean(axis=0), x[train].std(axis=0, ddof=1)
        z = ((x - mean) / (spread + 1e-9)).astype(np.float32)
        aside = train[:0]
        if validation:
            events = y[train] if min(y[train].sum(), len(train) - y[train].sum()) > 2 else None
            train, aside = train_test_split(train, test_size=validation, random_state=43, stratify=events)
            train, aside = np.sort(train), np.sort(aside)
        for name, rows in (("train", train), ("validation", aside), ("test", test)):
            parts[name].append((z[rows], y[rows]))

    def rows(name: str) -> Rows:
        sizes = [len(y) for _, y in parts[name]]
        x, y = (np.concatenate([part[k] for part in parts[name]]) for k in (0, 1))
        return Rows(x, y, np.concatenate([[0], np.cumsum(sizes)]))

    train = rows("train")
    metadata = np.stack([train.positives() / train.sizes, np.log(train.sizes)], axis=1)
    return Prepared(
        name="heart, by FLamby", centers=CENTERS, columns=tuple(names), train=train,
        validation=rows("validation"), test=rows("test"), metadata=metadata,
        metadata_names=("positive rate", "log training rows"), base_metadata=2, groups=None, seed=43,
    )  # fmt: skip


@dataclass(frozen=True)
class EqualUpdates(FedAvg):
    """FedAvg in which every center makes the same number of steps a round, whatever its size."""

    def train(self, context: Context, state, t: int, alone: bool):
        """One pass over so many rows as the steps need, drawn in reshuffled passes that go on over rounds."""
        need, x, y = UPDATES * self.training.batch, [], []
        for i, name in enumerate(context.data.centers):
            own = context.data.train.only(i)
            passes = -(-need * t // len(own.y))
            draws = [
                streams.generator(context.seed, "batches", p, streams.center_id(name)).permutation(len(own.y))
                for p in range(passes)
            ]
            chosen = np.concatenate(draws)[need * (t - 1) : need * t]
            x.append(own.x[chosen])
            y.append(own.y[chosen])
        start = np.arange(len(x) + 1) * need
        rows = replace(
            context.data.train, x=np.concatenate(x), y=np.concatenate(y), start=start, patient=None
        )
        learner = context.learner.on(replace(context.data, train=rows))
        return replace(state, models=learner.train(state.models, t))


@contextlib.contextmanager
def flambys_order(seed: int):
    """The plain loop visits rows as FLamby does: torch's loader shuffles, seeded anew at every center."""

    def orders(_seed, centers, round, sizes, epochs):
        torch.manual_seed(seed)
        loader = DataLoader(torch.arange(int(sizes[0])), batch_size=BATCH, shuffle=True)
        return np.stack([torch.cat(list(loader)).numpy() for _ in range(epochs)])[:, None]

    before = draws.row_orders
    draws.row_orders = orders
    try:
        yield
    finally:
        draws.row_orders = before


def alone(data: Prepared, seed: int) -> list[float]:
    """Accuracies of Local in FLamby's settings, rows in FLamby's order."""
    training = Training(epochs=50, batch=BATCH, lr=1e-3, weight_decay=0.0, model=linear_from(seed))
    with flambys_order(seed):
        run = simulate(data, Local(training=training), seed, rounds=1, engine="debug")
    return of_models(data, training, seed, run.models)


def linear_from(seed: int):
    """A factory of the regression that starts where torch starts it after this seed."""

    def factory(width: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Linear(width, 1)

    return factory


def accuracies(logits: Segments, rows: Rows) -> list[float]:
    """Of every center."""
    return [float(((logits[i] > 0) == (rows.only(i).y > 0)).mean()) for i in range(len(rows.sizes))]


def of_models(data: Prepared, training: Training, seed: int, models) -> list[float]:
    """Accuracies of a run's final models."""
    learner = learner_for(data, training, seed)
    return accuracies(learner.logits(models, data.test), data.test)


def measured(folder: Path) -> dict[str, np.ndarray]:
    """(seeds, centers) accuracies of every row that we run."""
    data, held = prepared(folder), prepared(folder, validation=0.2)
    assert data.train.sizes.tolist() == [199, 172, 30, 85] and data.test.sizes.tolist() == [104, 89, 16, 45]
    found: dict[str, list[list[float]]] = {}
    for seed in SEEDS:
        factory = linear_from(seed)
        found.setdefault("Local", []).append(alone(data, seed))
        steps = Training(
            epochs=1, batch=BATCH, lr=1e-3, weight_decay=0.0, model=factory, optimizer="sgd"
        )  # fmt: skip
        run = simulate(data, EqualUpdates(training=steps), seed, rounds=15)
        found.setdefault("FedAvg", []).append(of_models(data, steps, seed, run.models))
        for name in ("abps-plus", "fedper", "ditto"):
            config = with_settings(find(name), {})
            run = simulate(held, config, seed)
            found.setdefault(f"{name}, our settings", []).append(
                of_models(held, config.training, seed, run.models)
            )
        own, answers = data.train, []
        for i in range(4):
            rows = own.only(i)
            x, y = rows.x.astype(float), rows.y.astype(float)
            answers.append(fit_table(x, y, None, seed).predict(data.test.only(i).x.astype(float))[:, 0])
        found.setdefault("local-best", []).append(
            accuracies(Segments(np.concatenate(answers), data.test.start), data.test)
        )
    return {name: np.array(values) for name, values in found.items()}


def published(folder: Path) -> dict[str, np.ndarray]:
    """(seeds, centers) FLamby's own FedAvg and Local."""
    found = {"FedAvg": np.full((5, 4), np.nan), "Local": np.full((5, 4), np.nan)}
    for s, seed in enumerate(SEEDS):
        with (folder / f"heart_seed{seed}.csv").open() as stream:
            for row in csv.DictReader(stream):
                for i in range(4):
                    if row["Test"] == f"client_test_{i}" and row["Method"] in ("FedAvg100", f"Local {i}"):
                        found[row["Method"].split(" ")[0].removesuffix("100")][s, i] = float(row["Metric"])
    return found


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--published", type=Path)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    theirs = {} if options.published is None else published(options.published)
    print(f"| | {' | '.join(CENTERS)} | mean |\n|---|---|---|---|---|---|")
    lines = []
    for name, values in measured(options.data).items():
        rows = [(name, values)]
        if name in theirs:
            rows.insert(0, (f"{name}, published", theirs[name]))
            rows[1] = (f"{name}, ours", values)
        for label, v in rows:
            lines.append([label, *(f"{m:.4f}" for m in (*v.mean(axis=0), v.mean()))])
            print(f"| {label} | " + " | ".join(f"{float(m):.3f}" for m in lines[-1][1:]) + " |")
    if options.csv is not None:
        with options.csv.open("w", newline="") as stream:
            csv.writer(stream).writerows([["accuracy", *CENTERS, "mean"], *lines])
    for name, v in theirs.items():
        print(name, "published by seed:", v.round(3).tolist())


if __name__ == "__main__":
    main()
