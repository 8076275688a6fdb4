"""Small federations for tests."""

from __future__ import annotations

import numpy as np
import polars as pl

from abps.data.federation import Federation
from abps.data.outcome import encode_label, parse_outcome
from abps.data.prepare import Prepared, Rows
from abps.data.roles import Roles
from abps.data.table import federate


def tiny(
    sizes=(300, 200, 130, 128, 50, 3), width: int = 12, seed: int = 0, signal: float = 1.5, groups=None
) -> Prepared:
    """A prepared federation with a linear risk; ragged on purpose."""
    rng = np.random.default_rng(seed)
    slope = rng.standard_normal(width) * signal / np.sqrt(width)

    def rows(counts) -> Rows:
        start = np.concatenate([[0], np.cumsum(counts)])
        x = rng.standard_normal((start[-1], width)).astype(np.float32)
        y = (rng.random(start[-1]) < 1 / (1 + np.exp(1.0 - x @ slope))).astype(np.float32)
        return Rows(x, y, start)

    counts = np.array(sizes)
    held_out = np.maximum(4, counts // 4)
    n = len(counts)
    train = rows(counts)
    metadata = np.c_[train.positives() / counts, np.log(counts), np.full(n, 1.04), rng.random((n, 4))]
    return Prepared(
        name="tiny",
        centers=tuple(f"c{i}" for i in range(n)),
        columns=tuple(f"x{k}" for k in range(width)),
        train=train,
        validation=rows(held_out),
        test=rows(held_out),
        metadata=metadata,
        metadata_names=("positive rate", "log training rows", "mean year / 2030", "a", "b", "c", "d"),
        base_metadata=3,
        groups=groups,
        seed=seed,
    )


def outcome_of(spec: str, centers: int = 5, rows: int = 500, seed: int = 0) -> Federation:
    """A federation whose outcome is of another kind."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3))
    eta = x[:, 0] - 0.7 * x[:, 1]
    time, watched = np.ceil(9 * rng.exponential(np.exp(-eta))), np.ceil(rng.exponential(15, rows))
    names = np.array(["a", "b", "c"])
    frame = pl.DataFrame(
        {"center": [f"h{k}" for k in rng.integers(0, centers, rows)]} | {f"x{j}": x[:, j] for j in range(3)}
    )
    kind = parse_outcome(spec).kind
    if kind == "survival":
        frame = frame.with_columns(y=pl.Series(time <= watched), t=pl.Series(np.minimum(time, watched)))
    elif kind == "classes":
        utilities = np.stack([eta, -eta, 0 * eta], axis=1) + rng.gumbel(size=(rows, 3))
        frame = frame.with_columns(y=pl.Series(names[utilities.argmax(axis=1)]))
    else:
        frame = frame.with_columns(y=pl.Series(4 + 3 * eta + rng.normal(size=rows)))
    roles = Roles("y", "center", outcome=spec, duration="t" if kind == "survival" else None)
    assert encode_label(frame, roles).outcome.kind == kind
    return federate(frame, roles, spec, 10)
