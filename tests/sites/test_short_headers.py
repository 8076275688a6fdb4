"""Headers of frames are said once in a line: what arrives is what was sent, also to who does not know it."""

import os
import zlib
from types import SimpleNamespace

import pytest


def frame(headers: bytes, payload: bytes, mark: int = 0) -> bytes:
    from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

    whole = bytearray(PREFIX_LEN)
    Prefix(PREFIX_LEN + len(headers) + len(payload), len(headers), 1, mark, 0, 3, 4, 5).to_buffer(whole, 0)
    return bytes(whole) + headers + payload


class Line:
    """Two ends of a line of the engine, of which each may know short headers."""

    def __init__(self, monkeypatch) -> None:
        from nvflare.fuel.f3.endpoint import Endpoint
        from nvflare.fuel.f3.sfm import conn_manager, sfm_conn

        from abps.sites.flare import short_headers

        for kind, names in (
            (sfm_conn.SfmConnection, ("send_dict", "send_frame", "headers_to_bytes")),
            (conn_manager.ConnManager, ("process_frame", "update_endpoint")),
        ):
            for name in names:  # put back when the test is over
                monkeypatch.setattr(kind, name, kind.__dict__[name])
        self.came, self.met = [], []
        monkeypatch.setattr(conn_manager.ConnManager, "process_frame", lambda _, c, f: self.came.append(f))
        monkeypatch.setattr(conn_manager.ConnManager, "update_endpoint", lambda _, c, d: self.met.append(d))
        short_headers.install()
        self.manager = object.__new__(conn_manager.ConnManager)
        self.wire: list[bytes] = []
        self.broken = self.closed = False
        carrier = SimpleNamespace(name="line", send_frame=self._carry, close=self._close)
        self.here = sfm_conn.SfmConnection(carrier, Endpoint("here"))
        self.there = sfm_conn.SfmConnection(carrier, Endpoint("there"))

    def _carry(self, whole) -> None:
        if self.broken:
            raise OSError("gone")
        self.wire.append(bytes(whole))

    def _close(self) -> None:
        self.closed = True

    def say(self, headers: dict, payload: bytes) -> bytes:
        """A frame as it is on the wire."""
        self.here.send_data(1, 2, headers, payload)
        return self.wire[-1]

    def hear(self, whole: bytes) -> tuple[dict, bytes]:
        """Headers and payload, as the engine reads them."""
        import msgpack
        from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

        self.manager.process_frame(self.there, whole)
        prefix, end = Prefix.from_bytes(self.came[-1]), 0
        assert prefix.length == len(self.came[-1]) and prefix.reserved == 0 and prefix.stream_id == 2
        end = PREFIX_LEN + prefix.header_len
        return msgpack.unpackb(bytes(self.came[-1][PREFIX_LEN:end])), bytes(self.came[-1][end:])


HEADERS = {"token": os.urandom(200).hex(), "to": "server.job", "number": 0}


def test_an_end_says_that_it_knows_and_then_says_things_once(monkeypatch):
    line = Line(monkeypatch)
    before = line.say(HEADERS, b"abc")  # nothing is known of the other end yet
    assert before[7] == 0 and line.hear(before) == (HEADERS, b"abc")
    line.here.send_handshake(4)
    assert b"abps_headers" in line.wire[-1]
    line.manager.update_endpoint(line.here, {"endpoint_name": "there", "abps_headers": 1})
    assert line.met == [{"endpoint_name": "there"}]
    sizes = []
    for k in range(50):
        headers, payload = {**HEADERS, "number": k}, os.urandom(k)
        whole = line.say(headers, payload)
        assert line.hear(whole) == (headers, payload)
        sizes.append(len(whole) - k)
    assert sizes[0] > 200 and max(sizes[1:]) < 60


def test_to_others_everything_is_said_as_before(monkeypatch):
    line = Line(monkeypatch)
    line.manager.update_endpoint(line.here, {"endpoint_name": "there"})
    for _ in range(3):
        whole = line.say(HEADERS, b"x")
        assert whole[7] == 0 and line.hear(whole) == (HEADERS, b"x")


def test_what_could_not_be_sent_is_not_taken_as_heard(monkeypatch):
    line = Line(monkeypatch)
    line.manager.update_endpoint(line.here, {"abps_headers": 1})
    assert line.hear(line.say(HEADERS, b"1"))[1] == b"1"
    line.broken = True
    with pytest.raises(OSError, match="gone"):
        line.say({**HEADERS, "lost": "x" * 50}, b"2")
    line.broken = False
    assert line.hear(line.say(HEADERS, b"3")) == (HEADERS, b"3")


@pytest.mark.parametrize(
    "whole",
    [
        lambda: frame(b"\xff\xff\xff", b"", 2),  # no stream
        lambda: frame(b"", b"", 1),  # goes on, and has not begun
        lambda: frame(_deflated(bytes(1 << 20)), b"", 2),  # a kilobyte that would be a megabyte
    ],
)
def test_what_cannot_be_read_closes_the_line(monkeypatch, whole):
    line = Line(monkeypatch)
    line.manager.process_frame(line.there, whole())
    assert line.closed and line.came == []


def _deflated(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-14)
    return stream.compress(data) + stream.flush(zlib.Z_SYNC_FLUSH)
