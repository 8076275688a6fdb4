"""Messages with named fields: which numbers a message has, in which order, and how each is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abps.wire.number_lists import Field, Form

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Fields:
    """The fields of a message by name, in the order in which they are sent."""

    by_name: Mapping[str, Field]

    @property
    def form(self) -> Form:
        """How they are written: neighbours of one kind in one piece, where each has no scale of its own."""
        found: list[Field] = []
        for field in self.by_name.values():
            if found and field.kind == found[-1].kind != "small":
                found[-1] = Field(field.kind, found[-1].total + field.total)
            else:
                found.append(field)
        return tuple(found)

    @property
    def length(self) -> int:
        """How many numbers there are."""
        return sum(field.total for field in self.by_name.values())

    def pack(self, values: Mapping[str, Floats | float]) -> Floats:
        """(length,) all fields in a row."""
        parts = [np.ravel(np.asarray(values[name], dtype=np.float64)) for name in self.by_name]
        for (name, field), part in zip(self.by_name.items(), parts, strict=True):
            if len(part) != field.total:
                raise ValueError(f"{name}: {len(part)} numbers, {field.total} expected")
        return np.concatenate(parts)

    def unpack(self, numbers: Floats) -> dict[str, Floats]:
        """The fields of one message (length,), or of several (n, length); further numbers are ignored."""
        found, at = {}, 0
        for name, field in self.by_name.items():
            found[name] = numbers[..., at : at + field.total]
            at += field.total
        if numbers.shape[-1] < at:
            raise ValueError(f"{numbers.shape[-1]} numbers, {at} expected")
        return found
