"""Headers of the engine's frames, written so that what a line has heard before is not said again.

A frame of the engine carries about a kilobyte of names, tokens and routes, which hardly differ from frame to
frame: most of what is on the wire. Two ends of a line that both know this module compress headers (never what
is carried) as one stream per line and direction; the first words of a line say whether an end knows it, and
to others everything is sent as the engine does. Known of NVIDIA FLARE 2.9, to which the package is bound.
"""

from __future__ import annotations

import logging
import threading
import zlib
from typing import Any

from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix
from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection

log = logging.getLogger("abps")

#: What an end says of itself in the first words of a line.
KEY = "abps_headers"
VERSION = 1

#: Marks in a byte of a frame that the engine leaves at zero: the stream goes on, or begins (again) here.
GOES_ON, BEGINS = 1, 2

#: The longest headers that the engine can say.
MOST = 0xFFFF

#: The place of the mark in a frame.
_MARK = 7

#: The size of the window and of the tables: some dozen headers, and less than 100 kB for a line.
_WINDOW, _TABLES = 14, 6


class Packer:
    """What one end of a line has said so far."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._stream: Any = None

    def packed(self, headers: bytes) -> tuple[int, bytes]:
        """The mark, and headers that the other end reads if it has read all before."""
        mark = GOES_ON if self._stream is not None else BEGINS
        if self._stream is None:
            self._stream = zlib.compressobj(wbits=-_WINDOW, memLevel=_TABLES)
        return mark, self._stream.compress(headers) + self._stream.flush(zlib.Z_SYNC_FLUSH)

    def begin_again(self) -> None:
        """The other end may not have got the last headers."""
        self._stream = None


class Unpacker:
    """What one end of a line has heard so far."""

    def __init__(self) -> None:
        self._stream: Any = None

    def headers(self, mark: int, packed: bytes) -> bytes:
        """Headers as the engine reads them; ``ValueError`` if they are none."""
        if mark == BEGINS:
            self._stream = zlib.decompressobj(wbits=-_WINDOW)
        if self._stream is None:
            raise ValueError("a line's headers go on that have not begun")
        try:
            found: bytes = self._stream.decompress(packed, MOST)
        except zlib.error as error:
            raise ValueError(f"headers that cannot be read: {error}") from error
        if self._stream.unconsumed_tail:
            raise ValueError(f"headers of more than {MOST} bytes")
        return found


def unpacked(frame: Any, unpacker: Unpacker) -> Any:
    """A frame as the engine reads it."""
    if len(frame) < PREFIX_LEN or frame[_MARK] not in (GOES_ON, BEGINS):
        return frame
    prefix = Prefix.from_bytes(frame)
    end = PREFIX_LEN + prefix.header_len
    headers = unpacker.headers(frame[_MARK], bytes(frame[PREFIX_LEN:end]))
    prefix.length += len(headers) - prefix.header_len
    prefix.header_len, prefix.reserved = len(headers), 0
    whole = bytearray(PREFIX_LEN)
    prefix.to_buffer(whole, 0)
    return whole + headers + bytes(frame[end:])


def install() -> None:
    """Let the engine in this process speak so; before it opens any line."""
    say, send, write = SfmConnection.send_dict, SfmConnection.send_frame, SfmConnection.headers_to_bytes
    take, meet = ConnManager.process_frame, ConnManager.update_endpoint

    def send_dict(self: Any, frame_type: int, stream_id: int, data: Any) -> None:
        if frame_type in (Types.HELLO, Types.READY):
            data = {**data, KEY: VERSION}
        say(self, frame_type, stream_id, data)

    def headers_to_bytes(headers: Any) -> Any:
        return headers if isinstance(headers, bytes) else write(headers)

    def send_frame(self: Any, prefix: Any, headers: Any, payload: Any) -> None:
        packer: Packer | None = self.__dict__.get(KEY)
        if packer is None or not headers:
            send(self, prefix, headers, payload)
            return
        with packer.lock:  # what is packed first has to leave first
            prefix.reserved, short = packer.packed(write(headers))
            try:
                send(self, prefix, short, payload)
            except BaseException:
                packer.begin_again()
                raise

    def update_endpoint(self: Any, sfm_conn: Any, data: Any) -> None:
        knows = data.pop(KEY, None) == VERSION
        meet(self, sfm_conn, data)
        if knows:
            sfm_conn.__dict__.setdefault(KEY, Packer())

    def process_frame(self: Any, sfm_conn: Any, frame: Any) -> None:
        received = sfm_conn.__dict__.setdefault(KEY + " heard", Unpacker())
        try:
            frame = unpacked(frame, received)
        except ValueError as error:
            log.warning("closed a line: %s", error)
            sfm_conn.conn.close()
            return
        take(self, sfm_conn, frame)

    SfmConnection.send_dict, SfmConnection.send_frame = send_dict, send_frame
    SfmConnection.headers_to_bytes = staticmethod(headers_to_bytes)
    ConnManager.process_frame, ConnManager.update_endpoint = process_frame, update_endpoint
