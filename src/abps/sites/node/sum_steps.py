"""The steps of a site's masked sums, each written into its log: what leaves before it does, and what came.

A sum may be of a round, or a count before the first one; what may be added, and when, is decided by whoever
has these steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from abps.sites.protocol.masking import Masking

T = TypeVar("T")


class Write(Protocol):
    """Writes a row of the log: its kind, how many bytes, why, in which round, and whether it leaves."""

    def __call__(self, kind: str, size: int, why: str, number: int, sent: bool = True) -> None:
        """Write it down, on the disk if it leaves."""


class SumSteps:
    """masking: the site's part in the sums of a job.  called: what a sum is (round, count)."""

    def __init__(self, masking: Masking, write: Write, called: str) -> None:
        self._masking, self._write, self._called = masking, write, called

    def introduce(self) -> list[bytes]:
        """This site's key for the sums of this job, and why it is to be believed."""
        told = self._masking.introduction()
        self._write("told", sum(map(len, told)), "our key for masked sums, for all members", 0)
        return told

    def meet(self, introductions: Mapping[str, Sequence[bytes]]) -> list[str]:
        """Everybody's keys, as the conductor passes them on. Returns whose is not its own: there is no sum
        with it."""
        return self._masking.meet(introductions)

    def keys(self, number: int, names: Sequence[str]) -> list[bytes]:
        """Step 1: keys of the masks of a sum."""
        told = self._masking.keys(number, names)
        return self._leaves(told, sum(map(len, told)), "keys of the masks", number)

    def shares(self, number: int, keys: Mapping[str, Sequence[bytes]]) -> dict[str, bytes]:
        """Step 2: shares of this site's secrets, each readable by one other site."""
        self._came(sum(len(part) for each in keys.values() for part in each), "keys", number)
        told = self._masking.shares(number, keys)
        return self._leaves(told, sum(map(len, told.values())), "shares of our masks, sealed", number)

    def masked(
        self, number: int, sealed: Mapping[str, bytes], summand: NDArray[np.float64], kind: str, what: str
    ) -> bytes:
        """Step 3: what this site adds, under its masks."""
        self._came(sum(map(len, sealed.values())), "shares of masks", number)
        told = self._masking.masked(number, sealed, summand)
        self._write(kind, len(told), f"{what}, under masks", number)
        return told

    def present(self, number: int, names: Sequence[str]) -> bytes:
        """Step 4: sign whose summands have come."""
        told = self._masking.present(number, names)
        return self._leaves(told, len(told), "our signature under the list of who is there", number)

    def opened(self, number: int, names: Sequence[str], signatures: Mapping[str, bytes]) -> list[Any]:
        """Step 5: the shares that take the masks off the sum."""
        self._came(sum(map(len, signatures.values())), "signatures", number)
        told = self._masking.opened(number, names, signatures)
        size = sum(len(share) for part in told for share in part.values())
        return self._leaves(told, size, "shares that take the masks off the sum", number)

    def _leaves(self, told: T, size: int, why: str, number: int) -> T:
        self._write("mask", size, f"{why}, in {self._called} {number}", number)
        return told

    def _came(self, size: int, what: str, number: int) -> None:
        self._write("mask", size, f"{what} of all, in {self._called} {number}", number, sent=False)
