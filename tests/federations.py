"""Small federations for tests."""

from __future__ import annotations

import numpy as np

from abps.data.prepare import Prepared, Rows


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
