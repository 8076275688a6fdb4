"""What a job starts at the sites and at the relay: a site that answers, and the scheduler. Only bytes and
small lists travel. Peers reach one method of a site, ``receive``; the scheduler another one, ``conduct``; the
engine authenticates who calls. Nothing may raise into the engine: a site that crashes ends everybody's
job."""

import contextlib
import json
import logging
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from nvflare.collab import CollabCallError, collab
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC

from abps import files
from abps.core.errors import RequestError
from abps.sites.consent.kit import Membership
from abps.sites.consent.proposal import SignedProposal
from abps.sites.coordinator.scheduler import Scheduler, StudyFinished, measure
from abps.sites.coordinator.steps import MembersMissing
from abps.sites.flare import opening
from abps.sites.flare.process import Intake
from abps.sites.node.measuring import MEASURE, with_scales
from abps.sites.node.transport import UnreachableError
from abps.sites.protocol import commands
from abps.sites.protocol.commands import LONG, Answers, Command, DeclineCode, Failure, SiteState, StepState
from abps.sites.store.audit import JournalEvent
from abps.wire.admission import Reason

log = logging.getLogger("abps")

SERVER = "server"  # the engine's name for the scheduler's side

#: Seconds that a site waits before it answers that it is still busy: short work needs no second question.
LINGER = 2.0

RESULT = "abps-job.json"

SOURCE = f"{Path(files.__file__).parents[1]}/"  # where our package lies


def only_sealed(message: Message) -> Message | None:
    """Drop what comes in a peer's name and is not encrypted and signed by it: the relay may have made it up.
    The engine calls this before it decrypts. None lets a message pass; only the scheduler may send in
    clear."""
    origin = str(message.get_header(MessageHeaderKey.ORIGIN, ""))
    sealed = message.get_header(MessageHeaderKey.SECURE) and message.get_header(MessageHeaderKey.ENCRYPTED)
    if sealed or origin.split(".")[0] == SERVER:
        return None
    log.warning("dropped an unsealed message in the name of %s", origin)
    return Message()


def trust_members(credentials: Any, known: Membership) -> None:
    """Neither read from nor write to an owner of a certificate that the authority has revoked."""
    keep = credentials._cache_cert

    def keep_if_trusted(fqcn: str, cert: bytes) -> None:
        if cert and known.now.has(x509.load_pem_x509_certificate(cert).serial_number):
            log.warning("the certificate of %s was revoked", fqcn)
            raise RuntimeError(f"the certificate of {fqcn} was revoked")
        keep(fqcn, cert)

    credentials._cache_cert = keep_if_trusted


class FlareSite:
    """A site of a job. Its table, its store and its limits are named in its own file, not in the job."""

    def __init__(self, proposal: str, call_seconds: float = 10.0) -> None:
        self.proposal, self.call_seconds = proposal, call_seconds

    @collab.init
    def setup(self) -> None:
        """Keep the lines to the others; everything that can fail comes later."""
        kit, job = Path(collab.workspace.get_root_dir()), str(collab.fl_ctx.get_job_id())
        known, peers = Membership(kit), {proxy.name: proxy for proxy in collab.other_clients}
        cell = collab.fl_ctx.get_engine().get_cell().core_cell
        secure = bool(cell.supports_secure_messages())
        cell.add_incoming_filter(STREAM_CHANNEL, STREAM_DATA_TOPIC, Intake().admit)
        if secure:
            cell.add_incoming_filter(STREAM_CHANNEL, STREAM_DATA_TOPIC, only_sealed)
            trust_members(cell.credential_manager, known)
        local = Path(collab.workspace.get_site_config_dir())
        given = opening.SiteJob(collab.site_name, local, job, self.proposal)
        self.begin(given, known, peers, secure)

    def begin(self, job: opening.SiteJob, known: Membership, peers: dict[str, Any], secure: bool) -> None:
        """A site whose part is not open yet.  peers: the engine's lines.  secure: whether they encrypt."""
        self._job, self._known, self._peers, self._secure = job, known, peers, secure
        self._site: Any = None
        self._opened_as: tuple[Any, Any] = (None, None)  # what the open part is for
        self._joined = False  # whether this site is in the job
        self._recorded: set[tuple[str, str, str]] = set()  # failures that the journal has
        self._work: threading.Thread | None = None
        self._state: list[Any] = [str(StepState.DONE), None]

    @collab.final
    def end(self) -> None:
        if getattr(self, "_site", None) is not None:
            self._site.store.close()

    @collab.publish
    def receive(self, what: str, data: bytes) -> bytes:
        """A peer's payload; the answer is empty if there is nothing to say."""
        try:
            peer = collab.caller
            if self._site is None or peer == SERVER:
                return b""
            if peer in self._known.now.expelled:
                self._site.store.refused(peer, str(Reason.REVOKED), "no member any more")
                return b""
            if not isinstance(data, bytes) or not isinstance(what, str):
                return b""
            return bytes(self._site.receive(peer, what, data))
        except Exception:
            log.error("internal error in a peer's message:\n%s", traceback.format_exc())
            return b""

    @collab.publish
    def conduct(self, what: str, arguments: list) -> list:
        """The scheduler's command: [True, answer] or [False, decline code]."""
        try:
            if collab.caller != SERVER:
                return [False, str(DeclineCode.STEP)]
            command = Command(what)
            own: dict[Command, Callable[..., Any]] = {
                Command.PING: self._ping,
                Command.REVOKED: lambda text: self._known.hear(str(text)),
                Command.START: self._start,
                Command.POLL: self._poll,
            }
            if command in own:
                return [True, own[command](*arguments)]
            if command in LONG or self._site is None or command not in self._site.commands:
                return [False, str(DeclineCode.STEP)]
            answer = self._site.commands[command](*arguments)
            self._joined |= command is Command.JOIN
            return [True, answer]
        except ValueError:  # no such command
            return [False, str(DeclineCode.STEP)]
        except Exception as error:
            return [False, self._failed(what, error)]

    def _failed(self, what: str, error: Exception) -> str:
        """The decline code of an error; the sentence goes into this site's log. The journal records, once for
        each, the code and, for a failure bundle, where in our code the error arose."""
        code = DeclineCode.STEP if isinstance(error, RequestError) else DeclineCode.FAULT
        code = error.code if isinstance(error, commands.DeclineError) else code
        if code is DeclineCode.FAULT:
            log.error("internal error in %s:\n%s", what, traceback.format_exc())
        else:
            log.warning("%s was refused: %s", what, error)
        key = (what, str(code), type(error).__name__)
        if code is not DeclineCode.STEP and key not in self._recorded:
            ours = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(SOURCE)]
            places = [f"{f.filename.removeprefix(SOURCE)}:{f.lineno}" for f in ours[-3:]]
            said = {"code": str(code), "command": what, "error": key[2], "where": places}
            with contextlib.suppress(RequestError):
                self._job.own_file()[1].write(JournalEvent.SENT, to=SERVER, **said)
            self._recorded.add(key)
        return str(code)

    def _ping(self) -> str:
        if self._busy():
            return str(SiteState.BUSY)
        return str(SiteState.READY if self._joined else SiteState.NEW)

    def _busy(self) -> bool:
        return self._work is not None and self._work.is_alive()

    def _poll(self) -> list[Any]:
        """How the work stands: [done, its result], [busy, None] or [decline code, None]."""
        if self._work is not None:
            self._work.join(LINGER)
        return self._state

    def _start(self, what: str, *arguments: Any) -> list[Any]:
        command = Command(what)
        if command not in LONG or self._busy():
            raise RequestError(f"{what!r} cannot be started now")
        work: Callable[..., Any] | None = self._open
        if command is not Command.OPEN:
            work = None if self._site is None else self._site.commands.get(command)
        if work is None:
            raise RequestError(f"{what!r} cannot be started before the site is open")
        self._state = [str(StepState.BUSY), None]

        def run() -> None:
            try:
                self._state = [str(StepState.DONE), work(*arguments)]
            except Exception as error:
                self._state = [self._failed(what, error), None]

        self._work = threading.Thread(target=run, name=f"abps-{what}", daemon=True)
        self._work.start()
        return self._poll()

    def _open(self, which: Any = None, scales: Any = None) -> None:
        """Open this site's part.  which: whether the common scales are counted first; scales: what was."""
        if self._site is not None and (which, scales) != self._opened_as:
            self._site.store.close()
            self._site, self._joined = None, False
        self._opened_as = (which, scales)
        if self._site is not None:
            return
        own, journal = self._job.own_file()
        self._site = opening.open_study(self._job, own, journal, self._carry, which == [MEASURE], scales)

    def _carry(self, peer: str, what: str, data: bytes) -> bytes:
        """Bytes to a peer and its answer back, encrypted end to end where there are certificates."""
        proxy = self._peers.get(peer)
        if proxy is None or peer in self._known.now.expelled:
            raise UnreachableError(peer)
        try:
            answer = proxy(timeout=self.call_seconds, secure=self._secure).receive(str(what), data)
        except CollabCallError as error:
            raise UnreachableError(peer) from error
        if not isinstance(answer, bytes):
            raise UnreachableError(peer)
        return answer


class FlareScheduler:
    """The scheduler of a job, at the relay. It leaves what it knows of the job in ``abps-job.json``."""

    def __init__(self, proposal: str, rounds: int, timeouts: dict[str, float] | None = None) -> None:
        self.proposal, self.rounds, self.timeouts = proposal, rounds, timeouts

    @collab.main
    def run(self) -> None:
        result = Path(collab.workspace.get_result_root(str(collab.fl_ctx.get_job_id()))) / RESULT
        try:
            files.write_json(result, self._run())
        except RequestError as error:
            finished, waits = isinstance(error, StudyFinished), isinstance(error, MembersMissing)
            found = {"schema": "abps.job/1", "error": str(error), "finished": finished, "waits": waits}
            files.write_json(result, found)
            raise

    def _run(self) -> dict[str, Any]:
        timeouts = commands.Timeouts(**(self.timeouts or {}))
        proposal = SignedProposal.from_json(json.loads(self.proposal)).proposal
        line = _Line({proxy.name: proxy for proxy in collab.clients})
        members = sorted(proposal.members or line.sites)
        agreement, scales = proposal.agreement, None
        root = Path(collab.workspace.get_root_dir())
        known = Membership(root)
        if agreement.uncounted:
            there = [name for name in members if name not in known.now.expelled]
            scales = measure(line, agreement, there, timeouts, log.info)
            agreement = with_scales(agreement, scales)
        scheduler = Scheduler(
            line, agreement, self.rounds, timeouts, log.info,
            lambda: (known.text, frozenset(known.now.expelled)), scales, root / "abps-server",
        )  # fmt: skip
        return scheduler.run(members).to_json()


class _Line:
    def __init__(self, sites: dict[str, Any]) -> None:
        self.sites = sites

    def ask(self, sites: Sequence[str], command: Command, *arguments: Any, seconds: float) -> Answers:
        """Ask some sites the same at once: answers, and why there is none, by site."""
        answers: dict[str, Any] = {}
        words = ("not connected", "no answer")
        failures = {name: Failure(DeclineCode.UNREACHABLE, words[name in self.sites]) for name in sites}
        there = [name for name in sites if name in self.sites]
        if not there:
            return answers, failures
        plain = [str(each) if isinstance(each, Command) else each for each in arguments]
        for name, result in collab.get_clients(there)(timeout=seconds).conduct(str(command), plain):
            well_formed = isinstance(result, list | tuple) and len(result) == 2
            done, value = result if well_formed else (False, None)
            if done is True:
                answers[name] = value
                del failures[name]
            else:
                failures[name] = Failure.sent(value)
        return answers, failures

    def pause(self, seconds: float) -> None:
        """Let time pass, unless the job was called off."""
        if collab.is_aborted:
            raise RequestError("the job was called off")
        time.sleep(seconds)

    def now(self) -> float:
        return time.monotonic()
