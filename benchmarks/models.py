"""The model that is shared: the paper's network, a linear and an additive model, beside pooled regression.

    python benchmarks/models.py icu-synthetic p12fed.parquet eicufed.parquet --seeds 11,22,33,44,55

Prints, for every federation, the mean over centers of test AUROC (mean and range over seeds), bytes as a
multiple of FedAvg's, and seconds; the table of docs/models.md. Pooled spline regression is scikit-learn's on
all training rows of the same splits (five quantile knots, straight tails), its penalty chosen by the mean
validation loss of the centers; a built-in federation is compared without it unless ``--pooled`` is given.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer, StandardScaler

from abps import simulate
from abps.cli import options
from abps.data.federation import Federation
from abps.data.prepare import Rows, prepare
from abps.data.synthetic.builtin import is_builtin
from abps.models.metrics import Segments, auroc, labels_of, log_loss, mean_over_centers

#: What is compared: (what it is called, method, model, other settings).
ROWS = (
    ("star, mlp (FedAvg)", "fedavg", "mlp", {}),
    ("star, mlp, common scale", "fedavg", "mlp", {"standardise": "common"}),
    ("star, linear", "fedavg", "linear", {}),
    ("star, gam", "fedavg", "gam", {}),
    ("star, gam, penalty chosen", "fedavg", "gam", {"penalties": (0.1, 0.03, 0.01, 0.003, 0.001)}),
    (
        "star, gam, penalty chosen, refit",
        "fedavg",
        "gam",
        {"penalties": (0.1, 0.03, 0.01, 0.003, 0.001), "refit": True},
    ),
    ("star, gam+mlp", "fedavg", "gam+mlp", {}),
    ("random pairs bf16, gam", "random-k1", "gam", {}),
    ("alone, gam", "local", "gam", {}),
)
PENALTIES = (0.1, 0.03, 0.01, 0.003)


def pooled(federation: Federation, seed: int) -> float:
    """Mean test AUROC of spline regression on everybody's training rows."""
    data = prepare(federation, seed, standardise="common")
    assert data.book is not None
    numbers = [k for k, column in enumerate(data.book.columns) if column.kind == "number"]
    others = [k for k in range(data.width) if k not in set(numbers)]
    splines = SplineTransformer(5, degree=1, knots="quantile", extrapolation="linear", include_bias=False)
    splines.fit(data.train.x[:, numbers])

    def inputs(rows: Rows) -> np.ndarray:
        return np.column_stack([splines.transform(rows.x[:, numbers]), rows.x[:, others]])

    x, best = inputs(data.train), (np.inf, np.nan)
    for penalty in PENALTIES:
        fit = LogisticRegression(C=1 / (penalty * len(x)), max_iter=200)
        model = make_pipeline(StandardScaler(), fit).fit(x, data.train.y)
        told = {}
        for name in ("validation", "test"):
            rows: Rows = getattr(data, name)
            answers = Segments(model.decision_function(inputs(rows)).astype(np.float32), rows.start)
            told[name] = answers, labels_of(rows)
        loss = float(np.nanmean(log_loss(*told["validation"])))
        best = min(best, (loss, mean_over_centers(auroc(*told["test"]))[0]))
    return best[1]


def main() -> None:
    """Run and print."""
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("data", nargs="+")
    ask.add_argument("--seeds", default="11,22,33,44,55")
    ask.add_argument("--rows", default="", help="only rows whose name contains this")
    ask.add_argument("--pooled", action="store_true", help="pooled regression on built-in federations too")
    given = ask.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    for name in given.data:
        federation = options.federation(name, None, None, None, None, None, "", None)
        print(
            f"\n{federation.name}: {federation.size} centers, {federation.rows:,} rows, seeds {given.seeds}\n"
        )
        print(
            "| | AUROC | over seeds | bytes | control included | seconds |\n|---|---|---|---|---|---|",
            flush=True,
        )
        if given.rows in "pooled spline regression" and (given.pooled or not is_builtin(name)):
            values = [pooled(federation, seed) for seed in seeds]
            print(f"| pooled spline regression | {_spread(values)} | – | – | – |", flush=True)
        for label, method, model, settings in ROWS:
            if given.rows not in label:
                continue
            began = time.process_time()
            runs = [simulate(federation, method, seed, settings=settings, model=model) for seed in seeds]
            spent = (time.process_time() - began) / len(seeds)
            sent = [
                f"{np.mean([getattr(r.bytes, f) for r in runs]):.2g}×" for f in ("vs_fedavg", "all_vs_fedavg")
            ]
            print(
                f"| {label} | {_spread([r.auroc.mean for r in runs])} | {' | '.join(sent)} | {spent:.1f} |",
                flush=True,
            )


def _spread(values: list[float]) -> str:
    return f"{np.mean(values):.3f} | {min(values):.3f} to {max(values):.3f}"


if __name__ == "__main__":
    main()
