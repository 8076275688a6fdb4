"""A site's part in a study with a server: what it uploads, once in a round, and what it takes back."""

from __future__ import annotations

from typing import Any, cast

from abps.core.arrays import Weights
from abps.core.errors import RequestError
from abps.methods.star import StarMethod
from abps.sites.node.context import SiteContext
from abps.sites.node.gate import Gate
from abps.sites.node.transport import RELAY, AuditedTransport
from abps.wire import admission
from abps.wire.admission import Refusal
from abps.wire.messages import pack_note


class StarClient:
    """The line between a site and the server of its study; other studies have none."""

    def __init__(self, site_context: SiteContext, post: AuditedTransport, gate: Gate) -> None:
        self.site_context, self.post, self.gate = site_context, post, gate
        self.begin()

    def begin(self) -> None:
        """A round begins."""
        self.down: tuple[Weights, ...] = ()

    @property
    def method(self) -> StarMethod:
        """The method, of a study with a server."""
        return cast(StarMethod, self.site_context.method)

    def messages(self, before: Any, trained: Any, round: int) -> tuple[Weights, ...]:
        """(1, numbers) each: what this site has to say to the server after its training; nothing, if all is
        said."""
        messages = tuple(self.method.upload(self.site_context.context, before, trained, round))
        sent = tuple(message.shape[1] for message in messages)
        agreed = self.method.uploads(self.site_context.context.learner.layout)
        if messages and sent != agreed:
            raise RequestError(
                f"{self.site_context.agreement.method!r} sends {list(sent)} numbers; between sites a message "
                f"has the {self.site_context.shared} shared weights, or what the method's uploads() says"
            )
        return messages

    def frames(self, messages: tuple[Weights, ...], trained: Any, round: int) -> list[bytes]:
        """The same in the codec of the study, and the number that goes with it, if there is one."""
        context = self.site_context.context
        layout = context.learner.layout
        frames = [
            self.site_context.pack(message, self.method.number(k, round, layout))
            for k, message in enumerate(messages)
        ]
        if self.method.noted:
            frames.append(pack_note(float(self.method.note(context, trained)[0]), round))
        return frames

    def upload(self, round: int) -> list[bytes]:
        """What this site sends to the server, once in a round."""
        site_context, now = self.site_context, self.site_context.round
        if site_context.method.kind != "star":
            raise RequestError(
                f"{site_context.agreement.method!r} has no server: {site_context.name} sends it no weights"
            )
        if now.resting:
            return []
        with site_context.lock:
            frames = site_context.need(round, now.frames or None, "weights that the server has not got")
            now.frames = []
        for k, frame in enumerate(frames):
            what = "weights" if k < self.method.messages else "note"
            self.post.log(RELAY, what, len(frame), f"for the server of the study, in round {round}")
        return frames

    def taken_in(self, round: int) -> int:
        """The round of the server's last answer that this site has, of a method that asks."""
        site_context = self.site_context
        if site_context.method.kind != "star" or not self.method.asks:
            raise RequestError(f"{site_context.agreement.method!r} asks sites for no sums at what it sent")
        told = self.method.taken_in(site_context.need(round, site_context.round.trained, "begun"))
        return self.post.tell(told, "which answer of the server we have", round)

    def download(self, round: int, frames: list[bytes]) -> None:
        """What the server sends back."""
        site_context = self.site_context
        if site_context.method.kind != "star":
            raise RequestError(
                f"{site_context.agreement.method!r} has no server: {site_context.name} takes no "
                "weights from it"
            )
        site_context.need(round, site_context.round.trained, "a trained model")
        layout, start = site_context.context.learner.layout, site_context.context.learner.start
        counts = self.method.answers(layout, round)
        down = []
        try:
            for k, (count, data) in enumerate(zip(counts, frames)):
                origin = site_context.origin(RELAY, (RELAY,), self.method.number(k, round, layout))
                weights = admission.admit_weights(data, origin, site_context.codec, count)
                down.append(weights + self.method.line.base(start, count))
                why = f"the server's answer in round {round}"
                self.post.log(RELAY, "weights", len(data), why, sent=False)
        except Refusal as refused:
            self.gate.note(refused)
            return
        if len(down) == len(counts) == len(frames):
            self.down = tuple(down)
