"""Which units a center drops: a function of its own streams.

Masks are hashed from (seed, center, round, step, site), for many centers at once, so a center drops the
same units alone as among others, whatever its batches are padded to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from abps.core import streams
from abps.models.workspace import Workspace

#: 2**32 over the golden ratio, odd, as a signed number.
GOLDEN = 0x9E3779B1 - 2**32


@dataclass(frozen=True)
class DropSite:
    """A place where units are dropped: how many per row, and how often."""

    shape: tuple[int, ...]
    rate: float

    @property
    def units(self) -> int:
        """Units per row."""
        return int(torch.Size(self.shape).numel())

    @property
    def limit(self) -> float:
        """A unit is dropped where its random float is at most this."""
        return drop_limit(self.rate)


def random_units(
    seed: int,
    centers: NDArray[np.uint64],
    round: int,
    step: int,
    site: int,
    rows: int,
    units: int,
    space: Workspace,
) -> Tensor:
    """(m, rows, units) random bit patterns read as floats; a unit is dropped where its own is at most
    the site's limit. One pass of a kernel then compares and drops.

    Rows come in blocks of sixteen, so that a row's draws do not depend on how many rows there are.

    The place of a unit in them, itself well mixed, is shifted by one half of a stream's 64-bit key, folded
    and multiplied by the other half: as random as dropout masks need (tested). The other eight rows of a
    block get this word times the golden ratio, the multiplier of which upper halves say least about each
    other. These are integers modulo 2**32, so every device finds the same bits.
    """
    blocks = -(-rows // 16)
    drawn = space.take(f"drawn {site}", len(centers), blocks * 16, units)
    halves = drawn.view(len(centers), blocks, 2, 8 * units).view(torch.int32)
    mixed, folded = space.take("scratch", 2, len(centers), blocks, 8 * units, dtype=torch.int32)
    keys = streams.bits(seed, "dropout", round, centers, step << 8 | site)
    low = _words(keys, space).view(-1, 1, 1)
    high = _words(keys >> np.uint64(32) | np.uint64(1), space).view(-1, 1, 1)
    place = torch.from_numpy(streams.places(blocks * 8 * units).view(np.int32)).to(space.device)
    torch.add(place.view(blocks, 8 * units), low, out=mixed)
    # Signed numbers bring their sign along when they are shifted: it is masked away.
    torch.bitwise_right_shift(mixed, 15, out=folded).bitwise_and_(0x1FFFF)
    mixed.bitwise_xor_(folded)
    torch.mul(mixed, high, out=halves[:, :, 0])
    torch.mul(mixed, high * GOLDEN, out=halves[:, :, 1])
    return drawn[:, :rows]


def _words(keys: NDArray[np.uint64], space: Workspace) -> Tensor:
    """(m,) the lower halves of keys, as signed numbers: not every device multiplies others."""
    return torch.from_numpy(keys.astype(np.uint32).view(np.int32)).to(space.device)


def drop_limit(rate: float) -> float:
    """The float x such that a share ``rate`` of all 32-bit patterns, read as floats, is at most x.

    Patterns that are not a number (1 in 256) compare false and so are kept; negative floats order
    downwards.
    """
    wanted, negative = round(rate * 2**32), 0x7F800001  # negative numbers: minus zero to minus infinity
    bits = 0x80000000 | negative - wanted if wanted < negative else min(wanted - negative, 0x7F800000)
    return float(np.uint32(bits).view(np.float32))


def kept_units(
    seed: int, center: int, round: int, step: int, rows: int, sites: tuple[DropSite, ...]
) -> list[NDArray[np.bool_]]:
    """One center's masks at a step: for every dropout site (rows, units), is the unit kept?"""
    one, space = np.array([center], dtype=np.uint64), Workspace()
    return [
        (~(random_units(seed, one, round, step, k, rows, site.units, space)[0] <= site.limit)).numpy()
        for k, site in enumerate(sites)
    ]
