"""Coordinated methods: in every exchange one member aggregates what all members upload.

The coordinator of an exchange is a member, drawn from the seed, another one each time. It keeps nothing: it
sums or filters the uploads and broadcasts the result, by which every member updates its own copy of the
common model in the same way. So a coordinator that fails is replaced by the next in the draw.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.methods.base import Context, Decisions, Floats, Ints, Method
from abps.wire.number_lists import Form, NumberList, length


@dataclass(frozen=True, eq=False)
class Upload:
    """What r centers send to the coordinator: values (r, entries) as it decodes them, NaN beyond the end of a
    center's message, and each message."""

    values: Floats
    messages: tuple[NumberList, ...]

    @staticmethod
    def encode(values: Sequence[Floats], forms: Sequence[Form]) -> Upload:
        """One list of numbers per center, each in its wire format; the sender also goes on with what the
        coordinator decodes."""
        messages = tuple(NumberList.of(row, form) for row, form in zip(values, forms, strict=True))
        entries = max((length(form) for form in forms), default=0)
        decoded = np.full((len(messages), entries), np.nan)
        for row, message in zip(decoded, messages, strict=True):
            row[: len(message.values)] = message.values
        return Upload(decoded, messages)

    @property
    def sizes(self) -> Ints:
        return np.array([message.size for message in self.messages], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Broadcast:
    """What the coordinator sends: one message to all, and optionally one to a member by its index; decisions:
    about single members, for the audit trail."""

    common: NumberList
    own: Mapping[int, NumberList] = field(default_factory=dict)
    decisions: Decisions | None = None

    def only(self, member: int) -> Floats:
        return self.own[member].values if member in self.own else np.zeros(0)

    def size(self, member: int) -> int:
        return self.common.size + (self.own[member].size if member in self.own else 0)


def coordinators(seed: int, t: int, ids: NDArray[np.uint64]) -> Ints:
    """(n,) the members in the order in which they are asked to coordinate exchange t; the first present one
    does. Every member can compute it."""
    return np.argsort(streams.bits(seed, "coordinator", t, ids), kind="stable")


@dataclass(frozen=True)
class CoordinatedMethod(Method, ABC):
    """Round t is one exchange: every member uploads, the coordinator aggregates, every member updates."""

    def if_absent(self) -> tuple[bool, str]:
        """Whether no masked sum may be without an approved member, and what happens when one is absent."""
        return False, "a sum waits for those of the first; after two rounds the job ends and names the absent"

    @property
    def grid(self) -> Mapping[str, tuple[Any, ...]]:
        """Nothing to tune: the evidence chooses penalties."""
        return {}

    kind = "coordinated"

    def sums_only(self, t: int) -> bool:
        """Whether the coordinator of exchange t needs nothing but the sum of all uploads: such an exchange
        can run under masked sums."""
        return False

    @abstractmethod
    def upload(self, context: Context, state: Any, t: int) -> Upload:
        """What the centers here send in exchange t."""

    def accepted_forms(self, context: Context, t: int) -> tuple[Form, ...]:
        """Forms of uploads that a coordinator accepts in exchange t, besides that of its own upload."""
        return ()

    @abstractmethod
    def aggregate(self, context: Context, state: Any, uploads: Floats, t: int) -> Broadcast:
        """What the coordinator makes of all uploads (n, entries), NaN where a member sent none; of its own
        context and state it may use what all members have alike."""

    @abstractmethod
    def apply_broadcast(self, context: Context, state: Any, broadcast: Broadcast, t: int) -> Any:
        """The state after the broadcast; ``ValueError`` if it cannot be valid."""

    def resting(self, context: Context, state: Any) -> NDArray[np.int8]:
        """(r,) a :class:`abps.core.matching.Rest` for every center here: whether it keeps its own model."""
        return np.zeros(context.r, dtype=np.int8)

    def decisions(self, context: Context, state: Any, broadcast: Broadcast, t: int) -> Decisions | None:
        """What was decided in exchange t, for the audit trail."""
        return broadcast.decisions
