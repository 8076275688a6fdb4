"""Which rows a center sees at which step, and which units it drops: functions of its own streams.

A center's round is ``epochs`` passes over its training rows in fresh random order, in batches of
``batch`` rows, the last one of a pass shorter (never left out: a center with fewer rows than a batch
still learns).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.learn.kernels import DropSite


@dataclass(frozen=True)
class Chunk:
    """Centers of one number of batches per epoch, trained together.

    members: (m,) indices of centers, largest first.  sizes: (m,) their training rows.
    """

    members: NDArray[np.int64]
    sizes: NDArray[np.int64]
    batches: int

    def lengths(self, step: int, batch: int) -> NDArray[np.int64]:
        """(m,) rows of every center's batch at a step of an epoch: full, but for the last."""
        return np.minimum(batch, self.sizes - step * batch)


def chunks(sizes: NDArray[np.int64], batch: int, most: int) -> list[Chunk]:
    """Cut a federation into chunks of at most ``most`` centers of like size, so padding stays small."""
    order = np.lexsort((np.arange(len(sizes)), -sizes))
    order = order[sizes[order] > 0]
    per_epoch = -(-sizes[order] // batch)
    cut = []
    for count in np.unique(per_epoch)[::-1]:
        group = order[per_epoch == count]
        pieces = -(-len(group) // most)
        for members in np.array_split(group, pieces):
            cut.append(Chunk(members, sizes[members], int(count)))
    return cut


def row_order(seed: int, center: int, round: int, rows: int, epochs: int) -> NDArray[np.int64]:
    """(epochs, rows) the order in which a center visits its training rows."""
    rng = streams.generator(seed, "batches", round, center)
    return np.stack([rng.permutation(rows) for _ in range(epochs)])


def kept_units(
    seed: int, center: int, round: int, lengths: list[int], sites: tuple[DropSite, ...]
) -> list[list[NDArray[np.bool_]]]:
    """For every step of a round, for every dropout site, (rows, units): is the unit kept?

    Sixteen random bits per unit, so rates are exact to 1/65536.
    """
    units = sum(site.units for site in sites)
    total = sum(lengths) * units
    words = -(-total // 4)
    raw = streams.generator(seed, "dropout", round, center).bit_generator.random_raw(words).view(np.uint16)
    steps, at = [], 0
    for length in lengths:
        masks = []
        for site in sites:
            part = raw[at : at + length * site.units].reshape(length, site.units)
            masks.append(part >= round_rate(site.rate))
            at += length * site.units
        steps.append(masks)
    return steps


def round_rate(rate: float) -> np.uint16:
    """A dropout rate as a threshold on sixteen bits."""
    return np.uint16(min(65535, round(rate * 65536)))
