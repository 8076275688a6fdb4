"""Sites that talk directly: one TLS line between two sites, where both want it, instead of the relay.

A site listens if its own file says so, and tells the members its address in a sealed message. A peer that
wants to talk directly connects to it. Both show the certificate of their startup kit: each end goes on only
with a member of this network, by the same authority, whose certificate is not revoked, and the caller only
with the very member that it wants. So the line gives what the relay's sealed messages give: nobody else
reads along, and who speaks is known. What is said, what is refused and what is written into the log are the
same; the relay is used whenever the line is not there.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from abps.core.errors import RequestError
from abps.sites.consent import keys

log = logging.getLogger("abps")

#: The most bytes of a message, and the most of what goes before it.
MOST = 64 << 20
_MOST_WORD = 255

#: Seconds for the two ends to know each other, and before a line that nobody uses is closed.
_HANDSHAKE = 5.0
_IDLE = 600.0

#: Lines that a site holds at once: more than a federation has members.
_LINES = 256

#: And of one peer.
_EACH = 2

#: Seconds before a peer whose line failed is tried directly again.
AGAIN = 60.0

_LENGTHS = struct.Struct("<BBI")
_LENGTH = struct.Struct("<I")


class Broken(Exception):
    """A line was there, and no answer came over it."""


#: Whether the owner of a certificate (its name, its serial number) is let in.
Admits = Callable[[str, int], bool]


@dataclass(frozen=True)
class Direct:
    """A site's wish to talk directly.  listen: HOST:PORT to listen at.  address: how others reach that, if it
    is another.  call: whether to call others that listen.
    """

    listen: str | None = None
    address: str | None = None
    call: bool = True

    @staticmethod
    def from_json(data: Any) -> Direct:
        """From a file's entry; a ValueError says what is wrong."""
        direct = Direct(**data)
        for text in (direct.listen, direct.address):
            if text is not None:
                host_and_port(text)
        if direct.address is not None and direct.listen is None:
            raise ValueError("an address without listen")
        if not isinstance(direct.call, bool):
            raise ValueError(f"call {direct.call!r}")
        return direct

    @property
    def told(self) -> str:
        """The address that members are told; none if this site does not listen."""
        return self.address or self.listen or ""


def host_and_port(text: Any) -> tuple[str, int]:
    """The two parts of an address, or ValueError."""
    if not isinstance(text, str) or len(text) > _MOST_WORD or not text.isascii() or not text.isprintable():
        raise ValueError("no address")
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _context(kit: Path, server: bool) -> ssl.SSLContext:
    """TLS with the kit's certificate at both ends. Whose the other one is, is looked at afterwards."""
    startup = Path(kit) / "startup"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # names of members are no host names; see _owner
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
        context.load_verify_locations(startup / "rootCA.pem")
    except (OSError, ssl.SSLError) as error:
        raise RequestError(
            f"{startup}: no certificate to talk directly with ({error}); take the kit as it was made"
        ) from error
    return context


def _owner(line: ssl.SSLSocket, authority: bytes, admits: Admits) -> str:
    """The member at the other end of a line, or ssl.SSLError."""
    from cryptography import x509

    paper = line.getpeercert(binary_form=True)
    if paper is None:
        raise ssl.SSLError("no certificate")
    try:
        name, _ = keys.certificate_owner(ssl.DER_cert_to_PEM_cert(paper).encode(), authority)
    except ValueError as error:
        raise ssl.SSLError(str(error)) from error
    if not name or not admits(name, x509.load_der_x509_certificate(paper).serial_number):
        raise ssl.SSLError(f"{name} is no member any more")
    return name


def _read(line: ssl.SSLSocket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        got = line.recv(min(1 << 16, count - len(parts)))
        if not got:
            raise EOFError
        parts += got
    return bytes(parts)


class Listener:
    """The end of a site at which peers call. ``take(peer, what, data)`` answers them."""

    def __init__(
        self, kit: Path, listen: str, job: str, take: Callable[[str, str, bytes], bytes], admits: Admits
    ) -> None:
        """job: its name; who speaks of another one is not answered."""
        self._job, self._take, self._admits = job, take, admits
        self._context, authority = _context(kit, server=True), keys.read_root(kit)
        if authority is None:
            raise RequestError(f"{kit}: no authority's certificate; take the kit as it was made")
        self._authority = authority
        host, port = host_and_port(listen)
        try:
            self._socket = socket.create_server((host, port), backlog=32)
        except OSError as error:
            raise RequestError(
                f"cannot listen at {listen} to talk directly ({error.strerror}); the relay is used instead"
            ) from error
        self.port = int(self._socket.getsockname()[1])
        self._lines = threading.BoundedSemaphore(_LINES)
        self._guard = threading.Lock()
        self._held: dict[str, int] = {}  # by peer: lines that are open
        threading.Thread(target=self._accept, name="abps-direct", daemon=True).start()

    def close(self) -> None:
        """Listen no more; lines that are open end with the process, or when they are idle."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._socket.accept()
            except OSError:
                return
            if not self._lines.acquire(blocking=False):
                plain.close()
                continue
            threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        try:
            plain.settimeout(_HANDSHAKE)
            with self._context.wrap_socket(plain, server_side=True) as line:
                peer = _owner(line, self._authority, self._admits)
                line.settimeout(_IDLE)
                with self._one_of(peer):
                    while True:
                        job, what, data = self._question(line)
                        _owner(line, self._authority, self._admits)  # it may have been revoked meanwhile
                        reply = self._take(peer, what, data) if job == self._job else b""
                        line.sendall(_LENGTH.pack(len(reply)) + reply)
        except (OSError, EOFError, ValueError) as error:
            if isinstance(error, ssl.SSLError):
                log.warning("a direct line was refused: %s", error)
        finally:
            plain.close()
            self._lines.release()

    @contextlib.contextmanager
    def _one_of(self, peer: str) -> Iterator[None]:
        """One of the few lines that a peer may have; what it can make this site hold is bounded."""
        with self._guard:
            if self._held.get(peer, 0) >= _EACH:
                raise ValueError("too many lines")
            self._held[peer] = self._held.get(peer, 0) + 1
        try:
            yield
        finally:
            with self._guard:
                self._held[peer] -= 1

    @staticmethod
    def _question(line: ssl.SSLSocket) -> tuple[str, str, bytes]:
        job, what, size = _LENGTHS.unpack(_read(line, _LENGTHS.size))
        if size > MOST:
            raise ValueError("too long")
        words = _read(line, job + what)
        return words[:job].decode(), words[job:].decode(), _read(line, size)


class Caller:
    """The lines of a site to peers that listen."""

    def __init__(
        self, kit: Path, job: str, admits: Admits, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._job, self._admits, self._now = job, admits, now
        self._context, authority = _context(kit, server=False), keys.read_root(kit)
        if authority is None:
            raise RequestError(f"{kit}: no authority's certificate; take the kit as it was made")
        self._authority = authority
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._lines: dict[str, ssl.SSLSocket] = {}
        self._not_before: dict[str, float] = {}

    def carry(self, peer: str, address: str, what: str, data: bytes, seconds: float) -> bytes | None:
        """Bytes to a peer and its answer back. None: there is no line, use the relay. Broken: there was one,
        and no answer came; the peer may have heard it."""
        with self._guard:
            lock = self._locks.setdefault(peer, threading.Lock())
        with lock:
            if self._now() < self._not_before.get(peer, 0.0):
                return None
            line = self._lines.get(peer) or self._connected(peer, address)
            if line is None:
                return None
            words = self._job.encode() + what.encode()
            try:
                line.settimeout(seconds)
                head = _LENGTHS.pack(len(self._job.encode()), len(what.encode()), len(data))
                line.sendall(head + words + data)
                (size,) = _LENGTH.unpack(_read(line, _LENGTH.size))
                if size > MOST:
                    raise EOFError
                return _read(line, size)
            except (OSError, EOFError) as error:
                self._drop(peer)
                raise Broken(peer) from error

    def close(self) -> None:
        """Close all lines."""
        for peer in list(self._lines):
            self._drop(peer)

    def _connected(self, peer: str, address: str) -> ssl.SSLSocket | None:
        try:
            plain = socket.create_connection(host_and_port(address), timeout=_HANDSHAKE)
            try:
                line = self._context.wrap_socket(plain)
                found = _owner(line, self._authority, self._admits)
            except BaseException:
                plain.close()
                raise
            if found != peer:
                line.close()
                raise ssl.SSLError(f"at {address} is {found}")
        except (OSError, ValueError) as error:
            log.warning("no direct line to %s (%s); the relay is used", peer, error)
            self._not_before[peer] = self._now() + AGAIN
            return None
        log.info("a direct line to %s", peer)
        self._lines[peer] = line
        return line

    def _drop(self, peer: str) -> None:
        self._not_before[peer] = self._now() + AGAIN
        line = self._lines.pop(peer, None)
        if line is not None:
            with contextlib.suppress(OSError):
                line.close()
