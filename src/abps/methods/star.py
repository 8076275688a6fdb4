"""Star methods: what centers upload, what the server sends back, and what centers do with it.

The server knows only the uploads and every sender's number of training rows. Between rounds it keeps what it
sent last, as it arrived, and a memory of the method's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.arrays import Weights, repeated
from abps.core.errors import UP_TO_1, RequestError
from abps.core.ledger import CONTROL_MESSAGE, Traffic
from abps.methods.base import Context, Floats, Ints, Method, Wire
from abps.privacy import fixed_point
from abps.privacy.fixed_point import masked_bytes
from abps.wire.codecs import codec, frame_size

if TYPE_CHECKING:
    from abps.models.layout import Layout

#: How uploads are added up: weighted by training rows, or uniformly.
Adding = Literal["size", "uniform"]


@dataclass(frozen=True, eq=False)
class Server:
    """What a server remembers: what it sent last, as it arrived, and more; the study's seed and layout."""

    last: tuple[Weights, ...] = ()
    memory: Any = None
    seed: int = 0
    layout: Layout | None = None


@dataclass(frozen=True)
class StarMethod(Method, ABC):
    """Every center sends one or more messages up, and receives as many, unless ``answers`` says otherwise.

    participation: share of the centers that take part in a round, drawn anew for each; in simulations.
    """

    participation: float = 1.0

    limits: ClassVar = {"participation": UP_TO_1}

    #: How many messages go up in a round.
    messages: ClassVar[int] = 1

    #: Whether a number of its own travels with what a center sends.
    noted: ClassVar[bool] = False

    #: What the server's memory is, for methods that have one.
    keeps: ClassVar[type | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.participation < 1 and self.privacy.secure:
            raise RequestError(
                f"participation={self.participation}: masked sums need every center; leave participation out"
            )

    kind = "star"

    def taking_part(self, context: Context, t: int) -> NDArray[np.bool_]:
        chosen = np.ones(context.n, dtype=bool)
        if self.participation < 1:
            count = max(1, round(self.participation * context.n))
            draw = streams.uniforms(context.seed, "participation", t, context.ids)
            chosen[np.argsort(draw, kind="stable")[count:]] = False
        return chosen

    @property
    def adds(self) -> Adding | None:
        """How the server adds up what was sent, if it needs nothing but the sum; none: it needs more."""
        return None

    def uploads(self, layout: Layout) -> tuple[int, ...]:
        """How long each message is that goes up: shared weights."""
        return (layout.shared(self.line.private_layers),) * self.messages

    def answers(self, layout: Layout, t: int | None = None) -> tuple[int, ...]:
        """The length of each message that comes down in round t (none: the most in any round)."""
        return (layout.shared(self.line.private_layers),) * self.messages

    def note(self, context: Context, trained: Any) -> Floats:
        """(r,) the number that goes with what a center sends."""
        return np.zeros(context.r)

    def upload(self, context: Context, state: Any, trained: Any, t: int) -> tuple[Weights, ...]:
        """What the centers here send: (r, columns) per message; the shared layers."""
        return (trained.models[:, : self.line.shared(context)],)

    @abstractmethod
    def serve(
        self, start: Weights, server: Server, sent: tuple[Weights, ...], sizes: Weights, t: int
    ) -> tuple[tuple[Weights, ...], Any]:
        """What the server sends back, and its memory: per message (columns,), the same for all, or
        (senders, columns), to each sender its own.

        start: (P,) the common start.  sent: (senders, columns) per message, and last, if the method is
        ``noted``, (senders,) the numbers beside.  sizes: (senders,) training rows.
        """

    @abstractmethod
    def receive(self, context: Context, state: Any, trained: Any, down: tuple[Weights, ...], t: int) -> Any:
        """The state after what came down: per message (columns,), or (r, columns) where each got its own."""

    def number(self, k: int, t: int, layout: Layout) -> int:
        """The number of the k-th message of round t: no two messages share random bits."""
        return max(self.messages, len(self.answers(layout))) * (t - 1) + k + 1


def star_cost(line: Wire, centers: int, up: Sequence[int], down: Sequence[int], noted: bool) -> Traffic:
    """Bytes of a round in which messages of these lengths go up and come down, and notes with the first; an
    edge counts what goes up or, where more comes down, the mean of both ways."""
    sent = centers * sum(frame_size(codec(line.codec), count) for count in up)
    back = centers * sum(frame_size(codec(line.codec), count) for count in down)
    return Traffic(max(sent, (sent + back + 1) // 2), sent + back, centers * CONTROL_MESSAGE * noted)


def to_everyone(reply: Weights, trusted: Ints, n: int) -> Weights:
    """(columns,) the same for all as it is, or own replies (senders, columns) for all n: who is not among
    ``trusted`` (senders,) gets their mean."""
    if reply.ndim == 1 or len(reply) == n:
        return reply
    everyone = repeated(reply.mean(0), n).copy()
    everyone[trusted] = reply
    return everyone


def rows_of(chosen: NDArray[np.bool_], new: Any, old: Any) -> Any:
    """A state with the rows of one where ``chosen`` (n,) says so, and those of another elsewhere."""
    if isinstance(new, np.ndarray) and new.shape[:1] == chosen.shape and isinstance(old, np.ndarray):
        return np.where(chosen.reshape(-1, *[1] * (new.ndim - 1)), new, old)
    if is_dataclass(new) and type(new) is type(old):
        parts = {f.name: rows_of(chosen, getattr(new, f.name), getattr(old, f.name)) for f in fields(new)}
        return replace(new, **parts)  # type: ignore[type-var]
    return new


def masked_cost(line: Wire, centers: int, up: Sequence[int], down: Sequence[int]) -> Traffic:
    """Bytes of a round: messages of these lengths go up in one masked sum, and come down in clear."""
    plain = star_cost(line, centers, (), down, False)
    sent = masked_bytes(centers, sum(up))
    return Traffic(max(sent, (sent + plain.directed + 1) // 2), sent + plain.directed)


def summands(sent: Sequence[Weights], sizes: Floats, adding: Adding) -> Floats:
    """(centers, entries + 1) what each center adds: its messages (centers, columns) times its weight, and its
    weight."""
    weight = np.asarray(sizes, dtype=np.float64) if adding == "size" else np.ones(len(sizes))
    parts = [message.astype(np.float64) * weight[:, None] for message in sent]
    return np.concatenate([*parts, weight[:, None]], axis=1)


def from_sum(total: Floats, lengths: Sequence[int]) -> tuple[tuple[Weights, ...], Weights]:
    """The average and total weight as one sender's message, for a server that has seen the sum alone."""
    weight = float(total[-1])
    parts = np.split(total[:-1], np.cumsum(lengths)[:-1])
    means = (part[None] / max(weight, 1e-12) for part in parts)
    return tuple(mean.astype(np.float32) for mean in means), np.array([weight], dtype=np.float32)


def masked(sent: Sequence[Weights], sizes: Floats, adding: Adding) -> tuple[tuple[Weights, ...], Weights]:
    """What a server sees of messages (centers, columns) under masks: bit for bit the sum that a real secure
    aggregation gives, each summand rounded to a millionth."""
    total = fixed_point.exact_sum(summands(sent, sizes, adding))
    return from_sum(total, [message.shape[1] for message in sent])
