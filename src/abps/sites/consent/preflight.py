"""Before anything runs: can this participant reach the relay, prove who it is, read its table? Every check
gives one sentence: what fails would end a job or keep the site out of it; a warning will, later. Nothing is
sent but the greeting of TLS."""

import base64
import contextlib
import datetime
import errno
import http.client
import json
import os
import shutil
import socket
import ssl
import stat
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

import psutil
from cryptography import x509
from cryptography.x509.oid import NameOID

from abps.core.errors import RequestError
from abps.data.codebook import Codebook
from abps.release import VERSION
from abps.sites.consent import sitefile
from abps.sites.consent.kit import Kit, Membership, Role, read_certificate

WARN_DAYS = 60  # days before the end of a certificate from which on every check warns

#: Bytes of free disk and memory below which a check fails, and below which it warns.
DISK = (100 * 2**20, 2**30)
MEMORY = (400 * 2**20, 800 * 2**20)

ENGINE = ((2, 9), (2, 10))  # the engine's versions that are known to work: from the first, below the second
TIMEOUT = 5.0  # seconds that the relay gets to answer

#: Where gRPC looks for a proxy, in its order; it knows these names in small letters only.
PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")

RENEW_KEY = "run `abps site request`, and let the operator certify it"
RENEW_NETWORK = "the whole network needs a new authority: provision into a new folder"


class State(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    name: str
    state: State
    sentence: str


def checks(kit: Kit, book: Codebook | None = None) -> Iterator[Check]:
    """Every check that fits the participant, one after the other; one that fails hides no other."""
    now = datetime.datetime.now(datetime.UTC)
    yield versions()
    yield from _certificates(kit, now)
    yield from _relay(kit)
    yield disk(kit)
    yield _room("memory", psutil.virtual_memory().available, MEMORY, "of memory are free")
    if kit.role is Role.SITE:
        yield from _table(kit, book)


def versions() -> Check:
    try:
        engine = metadata.version("nvflare")
    except metadata.PackageNotFoundError:
        return Check("versions", State.FAIL, "NVIDIA FLARE is not installed; run: pip install 'abps[flare]'")
    low, high = ENGINE
    if not low <= tuple(int(part) for part in engine.split(".")[:2]) < high:
        said = f"NVIDIA FLARE is {engine}, and {low[0]}.{low[1]} is needed; install that"
        return Check("versions", State.FAIL, said)
    python = ".".join(str(part) for part in sys.version_info[:3])
    return Check("versions", State.OK, f"abps {VERSION}, NVIDIA FLARE {engine}, Python {python}")


def _days_left(certificate: x509.Certificate, now: datetime.datetime) -> float:
    return (certificate.not_valid_after_utc - now) / datetime.timedelta(days=1)


def of_certificate(what: str, certificate: x509.Certificate, now: datetime.datetime, remedy: str) -> Check:
    """Whether a certificate holds today, and for how long."""
    left, day = _days_left(certificate, now), f"{certificate.not_valid_after_utc:%Y-%m-%d}"
    if left < 0:
        return Check(what, State.FAIL, f"ended on {day}, {-left:.0f} days ago; {remedy}")
    if certificate.not_valid_before_utc > now:
        begins = f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
        return Check(what, State.FAIL, f"begins only on {begins}; set this machine's clock, if it is behind")
    if left < WARN_DAYS:
        return Check(what, State.WARN, f"ends on {day}, in {left:.0f} days; {remedy}")
    return Check(what, State.OK, f"good for {left:.0f} days, until {day}")


def _certificates(kit: Kit, now: datetime.datetime) -> Iterator[Check]:
    try:
        own, root = read_certificate(kit.certificate), read_certificate(kit.root)
    except RequestError as error:
        yield Check("certificate", State.FAIL, str(error))
        return
    yield of_certificate("certificate", own, now, RENEW_KEY)
    yield of_certificate("authority", root, now, RENEW_NETWORK)
    try:
        own.verify_directly_issued_by(root)
    except Exception:
        yield Check("signature", State.FAIL, "not signed by the kit's authority; ask again")
    revoked = Membership(kit.folder).now
    if revoked.has(own.serial_number) or kit.name in revoked.expelled:
        yield Check("membership", State.FAIL, "the authority has revoked this certificate; ask the operator")
    names = [n.value for n in own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if names != [kit.member]:
        yield Check("name", State.FAIL, f"the certificate is of {names}, the kit of {kit.member}; ask again")
    if not kit.key.is_file():
        yield Check("key", State.FAIL, f"{kit.key} is missing; {RENEW_KEY}")
    elif os.name == "posix" and stat.S_IMODE(kit.key.stat().st_mode) & 0o077:
        yield Check("key", State.WARN, f"{kit.key} can be read by others; run: chmod 600 {kit.key}")


def _relay(kit: Kit) -> Iterator[Check]:
    """Name, port and greeting of the relay, each only if the one before is there."""
    name, through = "name of the relay", None
    try:
        through = proxy_of(kit)
        if through is not None:
            yield Check("proxy", State.OK, f"the way to the relay is {through.hostname}:{through.port}")
    except RequestError as error:
        yield Check("proxy", State.FAIL, str(error))
        return
    try:
        found = [] if through else socket.getaddrinfo(kit.host, kit.port, type=socket.SOCK_STREAM)
    except OSError as error:
        yield Check(name, State.FAIL, f"{kit.host} cannot be resolved ({_why(error)}); ask your network")
        return
    addresses = sorted({str(entry[4][0]) for entry in found})
    said = "the proxy resolves it" if through else f"{kit.host} is {', '.join(addresses)}"
    yield Check(name, State.OK, said)
    if kit.role is Role.RELAY:
        yield relay_port(kit)
        return
    try:
        line = connect(kit, TIMEOUT)
    except OSError as error:
        ask = "is the relay started, and does the firewall let TCP out?"
        yield Check("port", State.FAIL, f"{kit.host}:{kit.port} does not answer ({_why(error)}); {ask}")
        return
    with line:
        yield Check("port", State.OK, f"{kit.host}:{kit.port} is open")
        yield handshake(kit, line)


def proxy_of(kit: Kit) -> SplitResult | None:
    """The proxy in a site's own file or else in the environment; none where the relay is reached directly."""
    text = ""
    if kit.role is Role.SITE:
        with contextlib.suppress(RequestError):
            text = sitefile.read(kit.local / sitefile.FILE).proxy
    if not text and not urllib.request.proxy_bypass(kit.host):
        text = next((os.environ[name] for name in PROXY_VARIABLES if os.environ.get(name)), "")
    found = urlsplit(text)
    try:
        good = not text or (found.scheme == "http" and bool(found.hostname) and bool(found.port))
    except ValueError:
        good = False
    if not good:
        raise RequestError(f"{text!r} is no proxy: give http://HOST:PORT (TLS to the relay goes through it)")
    return found if text else None


def connect(kit: Kit, seconds: float) -> socket.socket:
    """A line to the relay's port, directly or through the proxy (by CONNECT, as the engine's gRPC goes; TLS
    stays end to end); ``OSError`` if there is none."""
    proxy = proxy_of(kit)
    if proxy is None:
        return socket.create_connection((kit.host, kit.port), timeout=seconds)
    words = f"{unquote(proxy.username or '')}:{unquote(proxy.password or '')}".encode()
    who = {"Proxy-Authorization": f"Basic {base64.b64encode(words).decode()}"} if proxy.username else {}
    line = http.client.HTTPConnection(str(proxy.hostname), proxy.port, timeout=seconds)
    line.set_tunnel(kit.host, kit.port, who)
    line.connect()
    found: socket.socket = line.sock
    return found


def relay_port(kit: Kit) -> Check:
    """Whether the relay's port is free for it, or the relay runs already."""
    try:
        need_free_port(kit)
        return Check("port", State.OK, f"nothing listens on {kit.port} yet: free for the relay")
    except RequestError as error:
        with contextlib.suppress(OSError, ValueError, RequestError):
            theirs = ssl.get_server_certificate(("127.0.0.1", kit.port), timeout=TIMEOUT)
            if x509.load_pem_x509_certificate(theirs.encode()) == read_certificate(kit.certificate):
                return Check("port", State.OK, f"the relay runs and listens on {kit.port}")
        return Check("port", State.FAIL, str(error))


def need_free_port(kit: Kit) -> None:
    """Refuse to start a relay whose port is taken: the engine would stay up without listening."""
    try:
        socket.create_server(("", kit.port)).close()
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        why = "another program listens there; stop it" if taken else _why(error)
        said = f"the relay cannot listen on port {kit.port}: {why}"
        raise RequestError(f"{said}, or provision a relay with another --port") from error


def _why(error: OSError) -> str:
    return error.strerror or str(error)


def handshake(kit: Kit, line: socket.socket) -> Check:
    """Greet the relay with the kit's certificate, as the engine would."""
    try:
        context = ssl.create_default_context(cafile=str(kit.root))
        context.load_cert_chain(str(kit.certificate), str(kit.key))
        context.set_alpn_protocols(["h2"])
        line.settimeout(TIMEOUT)
        with context.wrap_socket(line, server_hostname=kit.host) as secured:
            theirs = secured.getpeercert(binary_form=True)
            # With TLS 1.3 a refusal of our certificate comes only with the first bytes of the other side.
            first = secured.recv(1)
            version = secured.version()
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message
        return Check("TLS", State.FAIL, f"the relay's certificate is not accepted ({why}); is this its kit?")
    except (ssl.SSLError, OSError, ValueError) as error:
        why = getattr(error, "reason", None) or str(error)
        return Check("TLS", State.FAIL, f"the relay refuses this certificate ({why}); {RENEW_KEY}")
    if not first or theirs is None:
        return Check("TLS", State.FAIL, f"the relay hung up after the greeting; {RENEW_KEY}")
    left = _days_left(x509.load_der_x509_certificate(theirs), datetime.datetime.now(datetime.UTC))
    state = State.WARN if left < WARN_DAYS else State.OK
    return Check("TLS", state, f"{version}, both ends known; the relay's certificate has {left:.0f} days")


def disk(kit: Kit) -> Check:
    """Room where stores and logs grow."""
    place = kit.folder
    if kit.role is Role.SITE:
        with contextlib.suppress(RequestError):
            place = Path(sitefile.read(kit.local / sitefile.FILE).store)
    while not place.exists():
        place = place.parent
    return _room("disk", shutil.disk_usage(place).free, DISK, f"free at {place}")


def _room(what: str, free: int, levels: tuple[int, int], words: str) -> Check:
    said = f"{free / 2**30:.1f} GiB {words}" if free >= 2**30 else f"{free / 2**20:.0f} MiB {words}"
    if free < levels[0]:
        return Check(what, State.FAIL, f"only {said}; make room")
    return Check(what, State.WARN if free < levels[1] else State.OK, said)


def _table(kit: Kit, book: Codebook | None) -> Iterator[Check]:
    """The site's table, by itself and against the common columns."""
    try:
        own = sitefile.find(kit.name, kit.local)
        rows = own.read_table()
    except RequestError as error:
        yield Check("table", State.FAIL, str(error))
        return
    events, said = rows.outcome.informative(rows.label), f"{rows.rows:,} rows, {rows.described}"
    if rows.rows < own.policy.rows or events < own.policy.events:
        need = f"{own.policy.rows} rows and {own.policy.events} of each outcome"
        yield Check("table", State.WARN, f"{said}: with fewer than {need}, the policy takes part in no study")
    else:
        yield Check("table", State.OK, said)
    proposed = kit.local / sitefile.CODEBOOK
    try:
        if book is None and proposed.is_file():
            book = Codebook.from_json(json.loads(proposed.read_text(encoding="utf-8")))
        if book is None:
            yield Check("columns", State.WARN, "there is no codebook to compare with; run `abps site init`")
            return
        own.read_table(book)
    except (RequestError, ValueError) as error:
        yield Check("columns", State.FAIL, str(error))
        return
    yield Check("columns", State.OK, f"all {len(book.sources)} columns of the codebook are there")
