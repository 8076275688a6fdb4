"""A federation: the stays of many centers in one table, with the role of every column settled.

Nothing here is encoded, imputed or split: that depends on the seed and on each center's own
training rows, and happens in :mod:`abps.cohorts.prepare`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray


@dataclass(frozen=True)
class LeftOut:
    """A center that takes no part, and why."""

    center: str
    rows: int
    reason: str


@dataclass(frozen=True, eq=False)
class Federation:
    """Stays of n centers. Rows keep the order of their source; centers are sorted by name.

    features: one column per feature, numeric, boolean or text; null where missing.
    label: (rows,) 0 or 1.  center: (rows,) index into ``centers``.
    patient: (rows,) patient codes, or None.  time: (rows,) years, or None.
    groups: one declared group per center (for the oracle control), or None.
    descriptors: binary features whose prevalence a center publishes in its metadata vector.
    """

    name: str
    features: pl.DataFrame
    label: NDArray[np.int8]
    center: NDArray[np.int32]
    centers: tuple[str, ...]
    patient: NDArray[np.int64] | None = None
    time: NDArray[np.float64] | None = None
    groups: tuple[str, ...] | None = None
    descriptors: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    @property
    def size(self) -> int:
        """The number of centers that take part."""
        return len(self.centers)

    @property
    def rows(self) -> int:
        """The number of stays in them."""
        return len(self.label)

    def fingerprint(self) -> str:
        """A digest of all content: two federations with one fingerprint give the same results."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(repr((self.features.columns, [str(t) for t in self.features.dtypes])).encode())
        digest.update(self.features.hash_rows(seed=0).to_numpy().tobytes())
        for column in (self.label, self.center, self.patient, self.time):
            digest.update(b"-" if column is None else np.ascontiguousarray(column).tobytes())
        digest.update(repr((self.centers, self.groups, self.descriptors)).encode())
        return digest.hexdigest()
