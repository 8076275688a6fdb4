"""Which columns may enter sums over a center's rows: those without a small cell."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from abps.data.prepare import Prepared
from abps.methods.base import Ints
from abps.privacy.small_counts import without_small


def categories(data: Prepared) -> Ints:
    """(columns,) of which category every encoded column is a level; -1 of others."""
    known = () if data.book is None else data.book.columns
    source = {column.name: column.source for column in known if column.kind == "level"}
    numbers = {name: k for k, name in enumerate(dict.fromkeys(source.values()))}
    return np.array([numbers.get(source.get(name, ""), -1) for name in data.columns], dtype=np.int64)


def releasable_columns(data: Prepared) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(centers,) which have too few events, or rows without one, to publish sums of them, and (centers,
    columns) which columns the others may include: those without a small cell."""
    rows, groups = data.train, categories(data)
    few = np.minimum(rows.positives(), rows.sizes - rows.positives()) < data.min_rows
    shown = np.zeros((data.size, rows.x.shape[1]), dtype=bool)
    for i in range(data.size):
        mine = slice(int(rows.start[i]), int(rows.start[i + 1]))
        events = data.outcome.events(rows.y[mine]).astype(np.float64)
        shown[i] = without_small(rows.x[mine].astype(np.float64), events, int(data.min_rows[i]), groups).any(
            axis=0
        )
    return np.asarray(few), shown
