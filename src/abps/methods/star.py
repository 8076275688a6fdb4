"""Star methods: what a center sends up and does with what comes down, and what the server does in between.

The server is told nothing but what was sent and how many training rows each sender has. What it remembers of
earlier rounds is what it sent last, as it arrived, and a memory of the method's own; both may be kept by
whoever is the server: the simulation, or the conductor of real sites.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from abps.core.ledger import Traffic, star
from abps.methods.base import Kind, Method, Wire, World
from abps.wire.codecs import codec
from abps.wire.frames import frame_size


@dataclass(frozen=True, eq=False)
class Server:
    """What a server remembers: what it sent last, as it arrived (nothing at first), and more."""

    last: tuple[Tensor, ...] = ()
    memory: Any = None


@dataclass(frozen=True)
class StarMethod(Method, ABC):
    """Every center sends one or more messages up, and receives as many."""

    #: How many messages go up, and come down, in a round.
    messages: ClassVar[int] = 1

    #: Whether the first message is a model, whose distance from the common start can be judged.
    sends_models: ClassVar[bool] = True

    #: What the server's memory is, for methods that have one.
    keeps: ClassVar[type | None] = None

    @property
    def kind(self) -> Kind:
        """To a server."""
        return "star"

    @property
    def remembers(self) -> bool:
        """Whether what the server does depends on the rounds before."""
        return self.keeps is not None

    @abstractmethod
    def upload(self, world: World, state: Any, trained: Any, t: int) -> tuple[Tensor, ...]:
        """What the centers here send: (r, columns) per message."""

    @abstractmethod
    def serve(
        self, start: Tensor, server: Server, sent: tuple[Tensor, ...], sizes: Tensor, t: int
    ) -> tuple[tuple[Tensor, ...], Any]:
        """What the server sends back, (columns,) per message, and its memory.

        start: (P,) the common start.  sent: (senders, columns) per message.  sizes: (senders,) training rows.
        """

    @abstractmethod
    def receive(self, world: World, state: Any, trained: Any, down: tuple[Tensor, ...], t: int) -> Any:
        """The state after what came down: (columns,) per message."""

    def number(self, k: int, t: int) -> int:
        """The number of the k-th message of round t: no two messages share random bits."""
        return self.messages * (t - 1) + k + 1


def star_cost(line: Wire, centers: int, up: Sequence[int], down: Sequence[int] | None = None) -> Traffic:
    """Bytes of a round in which messages of these lengths go up and come down (the same, unless given)."""
    traffic = star(centers, sum(frame_size(codec(line.codec), count) for count in up))
    if down is None:
        return traffic
    back = centers * sum(frame_size(codec(line.codec), count) for count in down)
    return replace(traffic, directed=traffic.edge + back)
