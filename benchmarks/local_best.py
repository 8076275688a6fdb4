"""``local-best`` beside one line of scikit-learn, a cross-validated logistic regression, at real hospitals.

    python benchmarks/local_best.py --data FOLDER --out benchmarks/results/local_best.csv

Every hospital fits both to its training and validation rows, and both are scored on its test rows. Large
federations are cut to whole hospitals. A line of the CSV is one federation: mean AUROC over hospitals and
splits, the mean difference and its standard error over hospitals, and the same of log-loss.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold

from abps.data.prepare import Prepared, prepare
from abps.lab.suite import make_federation, smaller, suite
from abps.models.tabular import fit_table

FEDERATIONS = (
    "heart", "rand-hie", "dialysis-rio", "tcga", "zambia", "impact", "eicu-demo", "physionet2012",
    "covid-mexico", "nass", "gusto",
)  # fmt: skip

#: Penalties from weak to very strong, as inverse strengths.
STRENGTHS = np.logspace(-5, 1, 13)

COLUMNS = (
    "federation", "hospitals", "fits", "local_best", "logistic_cv", "difference", "se",
    "loss_local_best", "loss_logistic_cv", "loss_difference", "loss_se",
)  # fmt: skip


def cross_validated(x: NDArray[np.float64], y: NDArray[np.float64], seed: int) -> LogisticRegressionCV:
    """A logistic regression whose penalty has the best log-loss in up to five folds."""
    count = min(5, int(y.sum()), int((1 - y).sum()))
    folds = StratifiedKFold(count, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LogisticRegressionCV(Cs=STRENGTHS, cv=folds, scoring="neg_log_loss", max_iter=2000).fit(x, y)


def scores(prepared: Prepared, seed: int) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Of every hospital: AUROC and log-loss of both, where test rows have both outcomes."""
    for i in range(prepared.size):
        own, test = prepared.own.only(i), prepared.test.only(i)
        x, y, new = own.x.astype(float), own.y.astype(float), test.x.astype(float)
        if min(y.sum(), (1 - y).sum()) < 2 or len(np.unique(test.y)) < 2:
            continue
        ours = 1 / (1 + np.exp(-fit_table(x, y, own.patient, seed).predict(new)[:, 0]))
        theirs = cross_validated(x, y, seed).predict_proba(new)[:, 1]
        areas = (roc_auc_score(test.y, p) for p in (ours, theirs))
        losses = (log_loss(test.y, p) for p in (ours, theirs))
        yield prepared.centers[i], (*areas, *losses)


def line(name: str, found: dict[str, list[tuple[float, ...]]]) -> list[object]:
    """Means over hospitals of their means over splits, and standard errors of the differences."""
    each = np.array([np.mean(values, axis=0) for values in found.values()])
    area, loss = each[:, 0] - each[:, 1], each[:, 2] - each[:, 3]
    error = [float(d.std(ddof=1) / np.sqrt(len(d))) for d in (area, loss)]
    mean = each.mean(axis=0)
    fits = sum(map(len, found.values()))
    numbers = [mean[0], mean[1], area.mean(), error[0], mean[2], mean[3], loss.mean(), error[1]]
    return [name, len(each), fits, *(f"{number:.4f}" for number in numbers)]


def main() -> None:
    """Measure, and write a line as soon as its federation is done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real federations")
    parser.add_argument("--only", default=",".join(FEDERATIONS), help="federations by name, with commas")
    parser.add_argument("--seeds", default="11,22,33", help="splits")
    parser.add_argument("--rows", type=int, default=6000, help="rows of a federation at most")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with args.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for name in args.only.split(","):
            federation = smaller(make_federation(suite()[name], args.data, 0), args.rows)
            found: dict[str, list[tuple[float, ...]]] = {}
            for seed in map(int, args.seeds.split(",")):
                for center, values in scores(prepare(federation, seed), seed):
                    found.setdefault(center, []).append(values)
            row = line(name, found)
            writer.writerow(row)
            file.flush()
            print(*row, flush=True)


if __name__ == "__main__":
    main()
