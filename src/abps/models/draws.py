"""The random draws of local training: functions of a center's own streams.

All are hashed from (seed, center, round, place), for many centers at once, so a center draws the same alone
as among others.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfinv

from abps.core import streams

Ints = NDArray[np.int64]
Keys = NDArray[np.uint64]

#: 2**32 over the golden ratio, odd.
GOLDEN = np.uint32(0x9E3779B1)


def shares(sizes: Ints, cores: int) -> list[Ints]:
    """Centers in pieces of like work, largest first; the last quarter in smaller ones, so that cores end at
    about the same time."""
    order = np.lexsort((np.arange(len(sizes)), -sizes))
    order = order[sizes[order] > 0]
    done = np.concatenate([[0], np.cumsum(sizes[order])])
    large, small = np.arange(1, 6 * cores) / (8 * cores), np.arange(24 * cores, 32 * cores) / (32 * cores)
    cut = np.unique(np.searchsorted(done, done[-1] * np.concatenate([large, small])))
    return [piece for piece in np.split(order, cut) if len(piece)]


def row_orders(seed: int, centers: Keys, round: int, sizes: Ints, epochs: int) -> Ints:
    """(epochs, m, rows of the largest) the order in which centers visit their rows; theirs come first."""
    row = np.arange(int(sizes.max()), dtype=np.uint64)
    epoch = np.arange(epochs, dtype=np.uint64)[:, None, None] << np.uint64(32)
    keys = streams.bits(seed, "batches", round, centers[:, None], epoch + row)
    keys[:, row >= sizes[:, None].astype(np.uint64)] = np.uint64(2**64 - 1)
    return np.argsort(keys, axis=-1, kind="stable")


@dataclass(frozen=True)
class DropSite:
    shape: tuple[int, ...]
    rate: float

    @property
    def units(self) -> int:
        return math.prod(self.shape)

    @property
    def limit(self) -> float:
        """A unit is dropped where its random float is at most this."""
        return drop_limit(self.rate)


def random_units(
    seed: int, center: int, round: int, step: int, site: int, rows: int, units: int
) -> NDArray[np.float32]:
    """(rows, units) random bit patterns read as floats; a unit is dropped where its own is at most the site's
    limit.

    Rows come in blocks of sixteen, so that a row's draws do not depend on how many there are. The well-mixed
    place of a unit is shifted by one half of a 64-bit key, folded and multiplied by the other half: as random
    as dropout masks need (tested). The other eight rows of a block get this word times the golden ratio.
    """
    blocks = -(-rows // 16)
    key = int(streams.bits(seed, "dropout", round, np.uint64(center), step << 8 | site))
    low, high = np.uint32(key & 0xFFFFFFFF), np.array([[key >> 32 | 1]], dtype=np.uint32)
    mixed = streams.places(blocks * 8 * units) + low
    mixed = (mixed ^ (mixed >> np.uint32(15))).reshape(blocks, 1, 8 * units)
    drawn = np.concatenate([mixed * high, mixed * (high * GOLDEN)], axis=1)
    return drawn.view(np.float32).reshape(-1, units)[:rows]


def drop_limit(rate: float) -> float:
    """The float x such that a share ``rate`` of all 32-bit patterns, read as floats, is at most x; patterns
    that are no number (1 in 256) compare false and are kept; negative floats order downwards."""
    wanted, negative = round(rate * 2**32), 0x7F800001  # negative numbers: minus zero to minus infinity
    bits = 0x80000000 | negative - wanted if wanted < negative else min(wanted - negative, 0x7F800000)
    return float(np.uint32(bits).view(np.float32))


def kept_units(
    seed: int, center: int, round: int, step: int, rows: int, sites: tuple[DropSite, ...]
) -> list[NDArray[np.bool_]]:
    """One center's masks at a step: for every dropout site (rows, units), is the unit kept?"""
    where = seed, center, round, step
    return [~(random_units(*where, k, rows, site.units) <= site.limit) for k, site in enumerate(sites)]


def weight_keys(seed: int, centers: Keys, round: int, steps: NDArray[np.uint64]) -> Keys:
    """(m, steps) the key of the noise with which every center draws its Gaussian weights at every step."""
    return streams.bits(seed, "sample-weights", round, centers[:, None], steps)


def private_keys(seed: int, centers: Keys, round: int, steps: int) -> Keys:
    """(m, steps) the key of every center's private noise at every step."""
    return streams.bits(seed, "private-noise", round, centers[:, None], np.arange(steps, dtype=np.uint64))


def private_rows(
    seed: int, centers: Keys, round: int, steps: int, rows: int, chance: float
) -> NDArray[np.bool_]:
    """(m, steps, rows) which rows of centers (m,) take part in which private step, each by its own coin."""
    if chance >= 1:
        return np.ones((len(centers), steps, rows), dtype=np.bool_)
    index = np.arange(steps, dtype=np.uint64)[:, None] << np.uint64(32) | np.arange(rows, dtype=np.uint64)
    found = streams.uniforms(seed, "private-sample", round, centers[:, None, None], index) < chance
    return np.asarray(found)


def normals(keys: Keys, count: int) -> NDArray[np.float32]:
    """(m, count) standard normal numbers of random keys (m,): a word's upper 24 bits choose one of as many
    parts of equal probability, of which the middle is taken."""
    part = (streams.words(keys, count) >> np.uint32(8)).astype(np.float64)
    return (erfinv((part - 2.0**23 + 0.5) / 2.0**23) * math.sqrt(2.0)).astype(np.float32)
