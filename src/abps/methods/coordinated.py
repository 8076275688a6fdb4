"""Coordinated methods: in every exchange one member aggregates what all members upload.

The coordinator of an exchange is a member, drawn from the seed, another one each time. It keeps nothing
between exchanges: it sums or filters the uploads, broadcasts the result, and every member then updates its
own copy of the common model in the same deterministic way. So a coordinator that fails is replaced by the
next in the draw, and nobody holds more than the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.methods.base import Context, Floats, Ints, Kind, Method
from abps.wire.number_lists import Form, NumberList


@dataclass(frozen=True, eq=False)
class Upload:
    """What r centers send to the coordinator: values (r, entries) as it decodes them, and each message."""

    values: Floats
    messages: tuple[NumberList, ...]

    @staticmethod
    def encode(values: Floats, form: Form) -> Upload:
        """(r, entries) numbers in the given wire format; the sender also goes on with the decoded values."""
        messages = tuple(NumberList.of(row, form) for row in values)
        return Upload(np.stack([each.values for each in messages]), messages)

    @property
    def size(self) -> int:
        """Bytes of one center's message."""
        return self.messages[0].size


@dataclass(frozen=True, eq=False)
class Broadcast:
    """What the coordinator sends: one message to all, and optionally one to a member by its index."""

    common: NumberList
    own: Mapping[int, NumberList] = field(default_factory=dict)

    def only(self, member: int) -> Floats:
        """What this member alone receives."""
        return self.own[member].values if member in self.own else np.zeros(0)

    def size(self, member: int) -> int:
        """Bytes that this member receives."""
        return self.common.size + (self.own[member].size if member in self.own else 0)


def coordinators(seed: int, t: int, ids: NDArray[np.uint64]) -> Ints:
    """(n,) the members in the order in which they are asked to coordinate exchange t; the first present one
    does. Every member can compute it."""
    return np.argsort(streams.bits(seed, "board", t, ids), kind="stable")


@dataclass(frozen=True)
class CoordinatedMethod(Method, ABC):
    """Round t is one exchange: every member uploads, the coordinator aggregates, every member updates."""

    @property
    def kind(self) -> Kind:
        """To a coordinator among the members."""
        return "coordinated"

    def sums_only(self, t: int) -> bool:
        """Whether the coordinator of exchange t needs nothing but the sum of all uploads: such an exchange
        can run under masked sums."""
        return False

    @abstractmethod
    def upload(self, context: Context, state: Any, t: int) -> Upload:
        """What the centers here send in exchange t."""

    @abstractmethod
    def aggregate(self, uploads: Floats, sizes: Floats, t: int) -> Broadcast:
        """What the coordinator makes of all uploads (n, entries), NaN where a member sent none; sizes: (n,)
        training rows as reported."""

    @abstractmethod
    def apply_broadcast(self, context: Context, state: Any, broadcast: Broadcast, t: int) -> Any:
        """The state after the broadcast; ``ValueError`` if it cannot be valid."""
