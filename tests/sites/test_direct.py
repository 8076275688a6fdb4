"""Direct lines between sites: members of one network by their certificates, and nobody else."""

from __future__ import annotations

import json
import socket
import ssl
import time

import pytest

from abps.core.errors import RequestError
from abps.sites.consent import sitefile
from abps.sites.node.direct import Broken, Caller, Direct, Listener, host_and_port

ALL = frozenset({"north", "south", "east"})


def everybody(name: str, serial: int) -> bool:
    return name in ALL


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    """Kits of two networks: the second has its own authority and uses the same names."""
    made = pytest.importorskip("abps.sites.flare.kits")
    from abps.sites.flare.on_one_machine import own_home

    folder = tmp_path_factory.mktemp("direct")
    with own_home(folder / "home"):
        return [made.provision(folder / k, sorted(ALL), "localhost", 8002).sites for k in ("ours", "theirs")]


@pytest.fixture
def south(kits):
    """A site that listens, and what it was told."""
    told: list[tuple[str, str, bytes]] = []

    def take(peer: str, what: str, data: bytes) -> bytes:
        told.append((peer, what, data))
        if what == "slow":
            time.sleep(2.0)
        return data[::-1]

    listener = Listener(kits[0]["south"], f"127.0.0.1:{free()}", "job-1", take, everybody)
    yield f"127.0.0.1:{listener.port}", told
    listener.close()


def free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_members_talk_and_the_certificate_says_who_speaks(kits, south):
    address, told = south
    big = bytes(range(256)) * 4000
    for name in ("north", "east"):
        caller = Caller(kits[0][name], "job-1", everybody)
        for what, data in (("message", b"abc"), ("weights", big), ("alarm", b"")):
            assert caller.carry("south", address, what, data, 5.0) == data[::-1]
            assert told[-1] == (name, what, data)
        caller.close()
    other = Caller(kits[0]["north"], "job-2", everybody)
    assert other.carry("south", address, "message", b"abc", 5.0) == b"" and len(told) == 6


@pytest.mark.parametrize(
    "case", ["another network", "another member", "not trusted", "nobody there", "nonsense"]
)
def test_without_the_right_member_at_the_other_end_there_is_no_line(kits, south, case):
    address, told = south
    kit = kits[case == "another network"]["north"]
    admits = (lambda name, serial: False) if case == "not trusted" else everybody
    clock = [0.0]
    caller = Caller(kit, "job-1", admits, lambda: clock[0])
    peer = "east" if case == "another member" else "south"
    where = {"nobody there": f"127.0.0.1:{free()}", "nonsense": "no address at all"}.get(case, address)
    try:
        assert caller.carry(peer, where, "message", b"abc", 5.0) is None
    except Broken:  # TLS 1.3 tells a client of its refusal with the first answer
        assert case == "another network"
    assert told == []
    assert caller.carry("south", address, "message", b"abc", 5.0) is None or case == "another member"
    clock[0] = 61.0  # tried again after a while
    if case in ("another member", "nobody there", "nonsense"):
        assert caller.carry("south", address, "message", b"abc", 5.0) == b"cba"


def test_who_is_revoked_is_not_heard_any_more_on_an_open_line(kits):
    gone: set[str] = set()
    received: list[str] = []

    def take(peer: str, what: str, data: bytes) -> bytes:
        received.append(peer)
        return b"yes"

    listener = Listener(kits[0]["south"], f"127.0.0.1:{free()}", "j", take, lambda name, _: name not in gone)
    caller = Caller(kits[0]["north"], "j", everybody)
    address = f"127.0.0.1:{listener.port}"
    assert caller.carry("south", address, "message", b"1", 5.0) == b"yes"
    gone.add("north")
    with pytest.raises(Broken):
        caller.carry("south", address, "message", b"2", 5.0)
    assert received == ["north"] and caller.carry("south", address, "message", b"3", 5.0) is None
    listener.close()


def test_no_certificate_too_long_too_slow_too_many(kits, south):
    address, told = south
    where = host_and_port(address)
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    plain.check_hostname, plain.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(where, 5.0) as line,
        pytest.raises((ssl.SSLError, ConnectionError, EOFError)),
    ):
        stranger = plain.wrap_socket(line)
        stranger.sendall(b"\x05\x01\x01\x00\x00\x00job-1xy")
        if not stranger.recv(1):
            raise EOFError
    caller = Caller(kits[0]["north"], "job-1", everybody)
    line = caller._connected("south", address)
    line.sendall(b"\x05\x01\xff\xff\xff\xff")  # four gigabytes are announced: the line is ended
    assert line.recv(1) == b""
    with pytest.raises(Broken):
        Caller(kits[0]["north"], "job-1", everybody).carry("south", address, "slow", b"", 0.5)
    assert [what for _, what, _ in told] == ["slow"]
    lines = [Caller(kits[0]["east"], "job-1", everybody) for _ in range(3)]
    assert lines[0].carry("south", address, "message", b"a", 5.0) == b"a"
    assert lines[1].carry("south", address, "message", b"b", 5.0) == b"b"
    with pytest.raises(Broken):
        lines[2].carry("south", address, "message", b"c", 5.0)


def test_what_a_sites_file_may_say(tmp_path):
    own = sitefile.SiteFile(
        "north", "t.csv", "died", "s", direct=Direct("0.0.0.0:8443", "north.example:8443")
    )
    assert sitefile.read(own.write(tmp_path)) == own and own.direct.told == "north.example:8443"
    assert Direct(call=True).told == ""
    for wrong in ({"listen": "8443"}, {"listen": "a:b"}, {"address": "a:1"}, {"call": "yes"}, {"port": 1}, 7):
        text = json.loads((tmp_path / sitefile.FILE).read_text())
        path = tmp_path / "wrong.json"
        path.write_text(json.dumps(text | {"direct": wrong}))
        with pytest.raises(RequestError, match="not a site's file"):
            sitefile.read(path)


def test_a_port_that_is_taken_is_said(kits):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(RequestError, match="the relay is used instead"):
            Listener(kits[0]["south"], where, "j", lambda *_: b"", everybody)
