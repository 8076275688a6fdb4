"""Which rows a center sees at which step: a function of its own streams.

A center's round is ``epochs`` passes over its training rows in fresh random order, in batches of
``batch`` rows, the last one of a pass shorter (never left out: a center with fewer rows than a batch
still learns). All draws are hashed from (seed, center, round, place), for many centers at once, so a
center draws the same alone as among others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abps.core import streams

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Chunk:
    """Centers of one number of batches per epoch, trained together; what stays the same every round.

    members: (m,) indices of centers, largest first.  sizes: (m,) their training rows.
    steps: the places of an epoch's table of rows that each of its batches takes.
    weights: for every batch (m, rows it is padded to): 1/rows of the center's batch, 0 for padding.
    """

    members: Ints
    sizes: Ints
    steps: tuple[slice, ...]
    weights: tuple[NDArray[np.float32], ...]

    @property
    def batches(self) -> int:
        """Steps of an epoch."""
        return len(self.steps)

    @property
    def columns(self) -> int:
        """Places of an epoch's table: the rows of the largest center, and padding."""
        return self.steps[-1].stop

    def table(self, orders: Ints, start: Ints) -> Ints:
        """(epochs, m, columns) the rows to visit, from orders (epochs, m, rows) and first rows (m,).

        Padding shows a center's first row; its weight is zero.
        """
        table = np.zeros((len(orders), len(self.members), self.columns), dtype=np.int64)
        table[:, :, : orders.shape[2]] = orders
        table[:, np.arange(self.columns) >= self.sizes[:, None]] = 0
        table += start[:, None]
        return table


def chunks(sizes: Ints, batch: int, most: int) -> list[Chunk]:
    """Cut a federation into chunks of at most ``most`` centers of like size, so padding stays small."""
    order = np.lexsort((np.arange(len(sizes)), -sizes))
    order = order[sizes[order] > 0]
    per_epoch = -(-sizes[order] // batch)
    cut = []
    for count in np.unique(per_epoch)[::-1]:
        group = order[per_epoch == count]
        for members in np.array_split(group, -(-len(group) // most)):
            cut.append(_chunk(members, sizes[members], batch, int(count)))
    return cut


def shares(sizes: Ints, cores: int) -> list[Ints]:
    """Centers in pieces of like work, largest first; the last quarter in smaller ones, so that cores end at
    about the same time."""
    order = np.lexsort((np.arange(len(sizes)), -sizes))
    order = order[sizes[order] > 0]
    done = np.concatenate([[0], np.cumsum(sizes[order])])
    large, small = np.arange(1, 6 * cores) / (8 * cores), np.arange(24 * cores, 32 * cores) / (32 * cores)
    cut = np.unique(np.searchsorted(done, done[-1] * np.concatenate([large, small])))
    return [piece for piece in np.split(order, cut) if len(piece)]


def _chunk(members: Ints, sizes: Ints, batch: int, count: int) -> Chunk:
    """Batches are full, but for the last, which is padded to the longest one rounded up to sixteen.

    For very few rows the library takes another path, with another rounding: whom a center is stacked with
    must not decide which.
    """
    steps, weights = [], []
    for at in range(0, count * batch, batch):
        lengths = np.minimum(batch, sizes - at)[:, None]
        width = min(batch, int(-(-lengths.max() // 16) * 16))
        steps.append(slice(at, at + width))
        weights.append(((np.arange(width) < lengths) / lengths).astype(np.float32))
    return Chunk(members, sizes, tuple(steps), tuple(weights))


def row_orders(seed: int, centers: NDArray[np.uint64], round: int, sizes: Ints, epochs: int) -> Ints:
    """(epochs, m, rows of the largest) the order in which centers visit their rows; theirs come first."""
    row = np.arange(int(sizes.max()), dtype=np.uint64)
    epoch = np.arange(epochs, dtype=np.uint64)[:, None, None] << np.uint64(32)
    keys = streams.bits(seed, "batches", round, centers[:, None], epoch + row)
    keys[:, row >= sizes[:, None].astype(np.uint64)] = np.uint64(2**64 - 1)
    return np.argsort(keys, axis=-1, kind="stable")
