"""A site's part in a study with a server: what it uploads, once in a round, and what it gets back."""

from __future__ import annotations

from typing import Any, cast

from abps.core.arrays import Weights
from abps.core.errors import RequestError
from abps.methods.star import StarMethod
from abps.sites.node.context import SiteContext
from abps.sites.node.gate import Gate
from abps.sites.node.transport import RELAY, AuditedTransport
from abps.sites.store.rows import EntryKind
from abps.wire import admission
from abps.wire.admission import Refusal


class StarClient:
    """The line between a site and the server of its study; other studies have none."""

    def __init__(self, context: SiteContext, transport: AuditedTransport, gate: Gate) -> None:
        self.context, self.transport, self.gate = context, transport, gate
        self.begin()

    def begin(self) -> None:
        """A round begins."""
        self.down: tuple[Weights, ...] = ()

    @property
    def method(self) -> StarMethod:
        """The method, of a study with a server."""
        if self.context.method.kind != "star":
            raise RequestError(f"{self.context.agreement.method!r} has no server to exchange weights with")
        return cast(StarMethod, self.context.method)

    def messages(self, before: Any, trained: Any, round: int) -> tuple[Weights, ...]:
        """(1, numbers) each: what this site sends to the server after its training; nothing, if all is
        sent."""
        context = self.context
        messages = tuple(self.method.upload(context.method_context, before, trained, round))
        sent = tuple(message.shape[1] for message in messages)
        agreed = self.method.uploads(context.learner.layout)
        if messages and sent != agreed:
            raise RequestError(
                f"{context.agreement.method!r} sends {list(sent)} numbers; between sites a message "
                f"has the {context.shared} shared weights, or what the method's uploads() says"
            )
        return messages

    def frames(self, messages: tuple[Weights, ...], round: int) -> list[bytes]:
        """The same in the codec of the study."""
        layout = self.context.learner.layout
        return [
            self.context.pack(message, self.method.number(k, round, layout))
            for k, message in enumerate(messages)
        ]

    def upload(self, round: int) -> list[bytes]:
        """What this site sends to the server, once in a round."""
        context, now, method = self.context, self.context.round, self.method
        if now.resting:
            return []
        with context.lock:
            frames = context.need(round, now.frames or None, "weights that the server has not got")
            now.frames = []
        for frame in frames[: method.messages]:
            why = f"for the server of the study, in round {round}"
            self.transport.log(RELAY, EntryKind.WEIGHTS, len(frame), why)
        return frames

    def last_answer(self, round: int) -> int:
        """The round of the server's last answer that this site has, of a method that asks."""
        context = self.context
        if not self.method.asks:
            raise RequestError(f"{context.agreement.method!r} asks sites for no sums at what it sent")
        last = self.method.taken_in(context.need(round, context.round.trained, "begun"))
        return self.transport.report(last, "which answer of the server we have", round)

    def download(self, round: int, frames: list[bytes]) -> None:
        """What the server sends back."""
        context, method = self.context, self.method
        context.need(round, context.round.trained, "a trained model")
        layout, start = context.learner.layout, context.learner.start
        counts = method.answers(layout, round)
        down = []
        try:
            for k, (count, data) in enumerate(zip(counts, frames)):
                origin = context.origin(RELAY, (RELAY,), method.number(k, round, layout))
                weights = admission.admit_weights(data, origin, context.codec, count)
                down.append(weights + method.line.base(start, count))
                why = f"the server's answer in round {round}"
                self.transport.log(RELAY, EntryKind.WEIGHTS, len(data), why, sent=False)
        except Refusal as refused:
            self.gate.note(refused)
            return
        if len(down) == len(counts) == len(frames):
            self.down = tuple(down)
