"""How much a participant takes in: what is too long is refused before it is received.

The engine takes frames of two gigabytes and messages of four, and keeps what has come until a message is
whole. So a peer could fill a site's memory with what admission control would refuse afterwards. Here frames
and messages have a limit, which the engine checks by what a message says of its length and by what has come
of it; and each sender has a measure of bytes that fills with time, taken from piece by piece.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey

log = logging.getLogger("abps")

#: The most bytes of a frame, and of a message, at a participant.
MOST = 64 << 20

#: Seconds in which an empty measure fills.
FILLS = 20.0

#: How many senders are remembered; more than any federation has.
SENDERS = 10_000

#: What the engine reads its limit of a message from.
VARIABLE = "NVFLARE_STREAMING_MAX_BLOB_SIZE"


def limit_frames(most: int = MOST) -> None:
    """Let the engine in this process take no longer frames; before it opens any line."""
    from nvflare.fuel.f3.drivers import aio_conn, aio_grpc_driver, grpc_driver, net_utils, socket_conn

    modules: tuple[Any, ...] = (net_utils, socket_conn, aio_conn, grpc_driver, aio_grpc_driver)
    for module in modules:
        module.MAX_FRAME_SIZE = most
    for driver in (grpc_driver, aio_grpc_driver):
        for k, (name, _) in enumerate(driver.GRPC_DEFAULT_OPTIONS):
            if name.endswith("_message_length"):
                driver.GRPC_DEFAULT_OPTIONS[k] = (name, most)


class Intake:
    """Drops pieces of messages that are too long, or that come faster than a sender may send.

    The engine calls ``admit`` before it keeps a piece. None lets the piece pass.
    """

    def __init__(self, most: int = MOST, now: Callable[[], float] = time.monotonic) -> None:
        self.most, self._now = most, now
        self._lock = threading.Lock()
        self._left: dict[str, tuple[float, float]] = {}  # by sender: bytes it may still send, and when
        self._told: set[str] = set()

    def admit(self, message: Message) -> Message | None:
        """Let a piece of a message pass, or not."""
        sender = str(message.get_header(MessageHeaderKey.ORIGIN, "")).split(".")[0]
        size = message.get_header(StreamHeaderKey.SIZE, 0)
        if type(size) is not int or not 0 <= size <= self.most:
            return self._dropped(sender, f"a message of {str(size)[:20]} bytes, at most {self.most}")
        if not self._takes(sender, _length(message.payload)):
            return self._dropped(sender, f"more than {self.most} bytes in {FILLS:g} s")
        return None

    def _takes(self, sender: str, length: int) -> bool:
        now = self._now()
        with self._lock:
            if sender not in self._left and len(self._left) >= SENDERS:
                return False
            left, at = self._left.get(sender, (float(self.most), now))
            left = min(float(self.most), left + max(0.0, now - at) * self.most / FILLS)
            taken = length <= left
            self._left[sender] = (left - length if taken else left, now)
        return taken

    def _dropped(self, sender: str, why: str) -> Message:
        with self._lock:
            first = sender not in self._told and len(self._told) < SENDERS
            if first:
                self._told.add(sender)
        if first:  # once for each sender: what is refused must not fill the log
            log.warning("dropped what came in the name of %s: %s", sender[:100], why)
        return Message()


def _length(payload: Any) -> int:
    if payload is None:
        return 0
    if isinstance(payload, list):
        return sum(_length(part) for part in payload)
    try:
        return memoryview(payload).nbytes
    except TypeError:  # a buffer of the engine's own
        return len(payload) if hasattr(payload, "__len__") else 0
