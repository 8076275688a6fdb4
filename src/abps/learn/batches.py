"""Which rows a center sees at which step, and which units it drops: functions of its own streams.

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
from abps.learn.kernels import DropSite

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Chunk:
    """Centers of one number of batches per epoch, trained together; what stays the same every round.

    members: (m,) indices of centers, largest first.  sizes: (m,) their training rows.
    lengths: (batches, m) rows of every center's batch at each step of an epoch: full, but for the last.
    """

    members: Ints
    sizes: Ints
    batches: int
    lengths: Ints

    def width(self, step: int, batch: int) -> int:
        """Rows that batches are padded to at a step: the longest, rounded up to sixteen.

        The library takes another path, with another rounding, for very few rows: whom a center is stacked
        with must not decide which.
        """
        return min(batch, int(-(-self.lengths[step].max() // 16) * 16))


def chunks(sizes: Ints, batch: int, most: int) -> list[Chunk]:
    """Cut a federation into chunks of at most ``most`` centers of like size, so padding stays small."""
    order = np.lexsort((np.arange(len(sizes)), -sizes))
    order = order[sizes[order] > 0]
    per_epoch = -(-sizes[order] // batch)
    cut = []
    for count in np.unique(per_epoch)[::-1]:
        group = order[per_epoch == count]
        for members in np.array_split(group, -(-len(group) // most)):
            own = sizes[members]
            lengths = np.minimum(batch, own[None, :] - batch * np.arange(count)[:, None])
            cut.append(Chunk(members, own, int(count), lengths))
    return cut


def row_orders(seed: int, centers: NDArray[np.uint64], round: int, sizes: Ints, epochs: int) -> Ints:
    """(epochs, m, rows of the largest) the order in which centers visit their rows; theirs come first."""
    row = np.arange(int(sizes.max()), dtype=np.uint64)
    epoch = np.arange(epochs, dtype=np.uint64)[:, None, None] << np.uint64(32)
    keys = streams.bits(seed, "batches", round, centers[:, None], epoch + row)
    keys[:, row >= sizes[:, None].astype(np.uint64)] = np.uint64(2**64 - 1)
    return np.argsort(keys, axis=-1, kind="stable")


def units_per_row(sites: tuple[DropSite, ...]) -> int:
    """Units that are dropped or kept in one row, over all sites, rounded up to an even number."""
    return sum(site.units for site in sites) + 1 & ~1


def threshold(rate: float) -> np.uint16:
    """A dropout rate as a threshold on sixteen bits: rates are exact to 1/65536."""
    return np.uint16(min(65535, round(rate * 65536)))


def random_units(
    seed: int,
    centers: NDArray[np.uint64],
    round: int,
    step: int,
    out: NDArray[np.uint32],
    scratch: NDArray[np.uint32],
) -> NDArray[np.uint16]:
    """(m, units) sixteen random bits for every unit of a step's batch; ``out``, ``scratch``: (m, units/2)."""
    keys = streams.bits(seed, "dropout", round, centers, step)
    return streams.words(keys, out.shape[1], out, scratch).view(np.uint16)


def kept_units(
    seed: int, center: int, round: int, step: int, rows: int, batch: int, sites: tuple[DropSite, ...]
) -> list[NDArray[np.bool_]]:
    """One center's masks at a step: for every dropout site (rows, units), is the unit kept?"""
    units = units_per_row(sites)
    space = np.empty((2, 1, batch * units // 2), dtype=np.uint32)
    raw = random_units(seed, np.array([center], dtype=np.uint64), round, step, space[0], space[1])
    raw = raw.reshape(batch, units)[:rows]
    masks, at = [], 0
    for site in sites:
        masks.append(raw[:, at : at + site.units] >= threshold(site.rate))
        at += site.units
    return masks
