"""What a job starts at the sites and at the relay: a site that talks, and the conductor.

Only bytes and small lists travel: no object of ours is serialised. Peers reach one method of a site,
``receive``; the conductor another one, ``conduct``; who calls is told by the engine's authentication.
Nothing in a site's process may raise into the engine: a site that crashes ends everybody's job.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography import x509
from nvflare.collab import CollabCallError, collab
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC

from abps import files
from abps.core.errors import RequestError
from abps.sites.consent.membership import Known
from abps.sites.flare import returning
from abps.sites.flare.intake import Intake
from abps.sites.node.direct import Broken, Caller, Listener
from abps.sites.node.status_file import StatusFile, note_clock
from abps.sites.protocol import decline_codes
from abps.sites.protocol.decline_codes import DeclineCode
from abps.sites.protocol.steps import BUSY, NEW, OPEN, Timeouts
from abps.wire.admission import Reason

if TYPE_CHECKING:
    from abps.sites.consent.agreement import Agreement
    from abps.sites.consent.journal import Journal
    from abps.sites.consent.sitefile import SiteFile

log = logging.getLogger("abps")

#: The engine's name for the conductor's side.
SERVER = "server"

#: What the conductor may ask a site to do at once, and to start.
_SUMS = frozenset(
    {"sum_introduce", "sum_meet", "sum_keys", "sum_shares", "sum_masked", "sum_present", "sum_open"}
)
ASKED = _SUMS | {
    "measure",
    "sum_total",
    "hello",
    "join",
    "loss",
    "begin",
    "keep_best",
    "upload",
    "download",
    "taken_in",
    "report",
}
_TALKS = frozenset({"catch_up", "introduce", "announce", "turn", "settle", "swap"})
STARTED = _TALKS | {"open", "letter", "reply", "preside", "train", "conclude", "exchange"}

#: Seconds before a site that could not take part looks again whether it can.
PAUSE = 5.0

#: How long a site holds back the word that it is still busy, in seconds: short work needs no second question.
LINGER = 2.0

RESULT = "abps-job.json"


def only_sealed(message: Message) -> Message | None:
    """Drop what comes in a peer's name and is not encrypted and signed by it: the relay may have made it up.

    The engine calls this before it decrypts. None lets a message pass; only the conductor may speak openly.
    """
    origin = str(message.get_header(MessageHeaderKey.ORIGIN, ""))
    sealed = message.get_header(MessageHeaderKey.SECURE) and message.get_header(MessageHeaderKey.ENCRYPTED)
    if sealed or origin.split(".")[0] == SERVER:
        return None
    log.warning("dropped an unsealed message in the name of %s", origin)
    return Message()


def trust_members(credentials: Any, known: Known) -> None:
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

    def __init__(self, proposal: str, call_seconds: float = 10.0, turn_seconds: float = 60.0) -> None:
        self.proposal = proposal
        self.call_seconds = call_seconds
        self.turn_seconds = turn_seconds

    _board: StatusFile | None = None
    _known: Known | None = None
    _job = ""
    _round = 0
    _joined = False  # whether this site has been let into the job
    _looked = 0.0  # when it was last looked whether it can take part
    _told = ""  # the last code that left
    _which: list[Any] | None = None  # the study that is open, while a penalty is chosen
    _listener: Listener | None = None  # where peers talk to this site directly
    _caller: Caller | None = None  # its own direct lines
    _secure = False
    _scales: dict[str, Any] | None = None  # what was counted for it

    @collab.init
    def setup(self) -> None:
        """Remember the lines to the others; everything that can fail comes later."""
        if hasattr(self, "_site"):  # it had set itself up, and was asked to after all
            return
        self._name: str = collab.site_name
        self._local = Path(collab.workspace.get_site_config_dir())
        self._job = str(collab.fl_ctx.get_job_id())
        self._peers = {proxy.name: proxy for proxy in collab.other_clients}
        cell = collab.fl_ctx.get_engine().get_cell().core_cell
        self._secure = bool(cell.supports_secure_messages())
        cell.add_incoming_filter(STREAM_CHANNEL, STREAM_DATA_TOPIC, Intake().admit)
        if self._secure:
            cell.add_incoming_filter(STREAM_CHANNEL, STREAM_DATA_TOPIC, only_sealed)
        self._known = Known(Path(collab.workspace.get_root_dir()))
        if self._secure:
            trust_members(cell.credential_manager, self._known)
        self._site: Any = None
        self._work: threading.Thread | None = None
        self._state: list[Any] = ["done", None]
        self._stage = DeclineCode.FILE  # what is being opened
        returning.is_set_up.set()
        self._board = StatusFile(self._local, _study(self.proposal))

    @collab.final
    def end(self) -> None:
        """Leave the store closed."""
        self._say("done")
        self._hang_up()
        if getattr(self, "_site", None) is not None:
            self._site.store.close()

    @collab.publish
    def receive(self, what: str, data: bytes) -> bytes:
        """A peer's payload; the answer says nothing if there is nothing to say."""
        try:
            peer = collab.caller
            if self._expelled(peer):
                if self._site is not None:
                    self._site.store.refused(peer, str(Reason.REVOKED), "no member any more")
                return b""
            if (
                self._site is None
                or peer == SERVER
                or not isinstance(data, bytes)
                or not isinstance(what, str)
            ):
                return b""
            return self._take(peer, what, data)
        except Exception:
            log.error("a peer's message met a fault of ours:\n%s", traceback.format_exc())
            return b""

    def _take(self, peer: str, what: str, data: bytes) -> bytes:
        """What the site says to a peer's payload, whichever way it came."""
        return bytes(self._site.receive(peer, what, data))

    def _taken_directly(self, peer: str, what: str, data: bytes) -> bytes:
        try:
            return b"" if self._site is None or peer not in self._peers else self._take(peer, what, data)
        except Exception:
            log.error("a peer's message met a fault of ours:\n%s", traceback.format_exc())
            return b""

    def _member(self, name: str, serial: int) -> bool:
        """Whether a direct line with the owner of a certificate may be."""
        known = self._known
        if known is None or name not in self._peers:
            return False
        return not known.now.has(serial) and name not in known.now.expelled

    def _talk_directly(self, own: SiteFile) -> str:
        """Listen for peers, and be ready to call them, as far as the site's own file says. Returns where."""
        self._hang_up()
        if own.direct is None or not self._secure:
            return ""
        kit = self._local.parent
        try:
            if own.direct.call:
                self._caller = Caller(kit, self._job, self._member)
            if own.direct.listen is not None:
                self._listener = Listener(
                    kit, own.direct.listen, self._job, self._taken_directly, self._member
                )
                return own.direct.told
        except RequestError as error:
            log.warning("%s", error)
        return ""

    def _hang_up(self) -> None:
        for line in (self._listener, self._caller):
            if line is not None:
                line.close()
        self._listener = self._caller = None

    @collab.publish
    def conduct(self, what: str, arguments: list) -> list:
        """The conductor's word: [True, answer] or [False, why not]."""
        try:
            if collab.caller != SERVER:
                return [False, str(DeclineCode.STEP)]
            if what == "ping":
                return [True, self._standing()]
            if what == "wake":
                if self._standing() == NEW and time.monotonic() - self._looked > PAUSE:
                    self._start("open", None, *arguments)
                return [True, True]
            if what == "chosen":
                return [True, self._chosen()]
            if what == "revoked":
                return [True, self._known is not None and self._known.hear(str(arguments[0]))]
            if what == "start":
                self._start(*arguments)
            if what == "poll" and arguments and self._site is not None:
                self._site.lost([str(name) for name in arguments[0]])
            if what in ("start", "poll"):
                return [True, self._linger()]
            if what not in ASKED or self._site is None:
                return [False, str(DeclineCode.STEP)]
            said = getattr(self._site, what)(*arguments)
            self._joined |= what == "join"
            return [True, said]
        except RequestError as error:
            log.warning("%s was refused: %s", what, error)
            return [False, str(decline_codes.code(error, DeclineCode.STEP))]
        except Exception:
            log.error("%s met a fault of ours:\n%s", what, traceback.format_exc())
            return [False, str(DeclineCode.FAULT)]

    def _start(self, what: str, *arguments: Any) -> None:
        """Begin something that may take long, in a thread of its own."""
        if what not in STARTED or (self._work is not None and self._work.is_alive()):
            raise RequestError(f"{what!r} cannot be started now")
        own: dict[str, Callable[..., Any]] = {"open": self._open, "letter": self._letter}
        if what not in own and self._site is None:
            raise RequestError(f"{what!r} cannot be started before the site is open")
        work = own.get(what) or getattr(self._site, what)
        self._state = ["busy", None]
        if arguments and isinstance(arguments[0], int):
            self._round = arguments[0]
        self._say(what)

        def run() -> None:
            try:
                self._state = ["done", work(*arguments)]
            except RequestError as error:
                log.warning("%s was refused: %s", what, error)
                code = decline_codes.code(error, self._stage if what in own else DeclineCode.STEP)
                self._state = [str(code), None]
            except Exception:
                log.error("%s met a fault of ours:\n%s", what, traceback.format_exc())
                self._state = [str(DeclineCode.FAULT), None]
            self._say("idle")

        self._work = threading.Thread(target=run, name=f"abps-{what}", daemon=True)
        self._work.start()

    def _standing(self) -> bool | str:
        """Whether this site is ready for a round, or what else it is."""
        if self._work is not None and self._work.is_alive():
            return BUSY
        return True if self._joined else NEW if self._site is None else OPEN

    def _expelled(self, peer: str) -> bool:
        """Whether the authority has expelled a peer, by the newest list that this site has seen."""
        return self._known is not None and peer in self._known.now.expelled

    def _say(self, step: str) -> None:
        if self._board is not None:
            self._board.say(self._round, step)

    def _linger(self) -> list[Any]:
        """How the work stands: [done, its result], [busy, None] or [why it failed, None]."""
        if self._work is not None:
            self._work.join(LINGER)
        return self._state

    def _chosen(self) -> int:
        """The place of the penalty that was chosen in an earlier job; -1: none is known here."""
        from abps.sites.consent import sitefile
        from abps.sites.consent.proposal import Signed
        from abps.sites.coordinator import trials
        from abps.sites.protocol import measuring
        from abps.sites.store.store import Store

        agreement = Signed.from_json(json.loads(self.proposal)).proposal.agreement
        with contextlib.suppress(RequestError):
            if agreement is not None:
                own = sitefile.find(self._name, self._local)
                agreement = measuring.resolved(agreement, *2 * (_kept_scales(own, agreement),))
                store = Store.look(own.store_of(agreement.study))
                digest = store.facts()["agreement"]
                store.close()
                found = trials.known(agreement, digest)
                return -1 if found is None else found
        return -1

    def _open(
        self,
        clock: float | None = None,
        which: list[Any] | None = None,
        scales: dict[str, Any] | None = None,
    ) -> None:
        """Read the site's own file, ask for its consent, and open its table and its store.

        clock: the relay's, in seconds since 1970.  which: the study that is meant, while a penalty is chosen,
        or its part in counting what the study lacks.  scales: what was counted.
        """
        if isinstance(clock, float):
            note_clock(self._local, clock)
        if self._site is not None and (which, scales) != (self._which, self._scales):
            self._site.store.close()
            self._site, self._joined = None, False
        self._which, self._scales = which, scales
        if self._site is not None:
            return
        from abps.sites.consent import sitefile

        self._stage, self._looked = DeclineCode.FILE, time.monotonic()
        own = sitefile.find(self._name, self._local)
        journal = own.journal(self._local.parent)
        with self._writing_down(journal):
            self._site = self._opened(own, journal)

    def _letter(self) -> dict[str, Any]:
        """The site's codebook for the operator, if somebody here has shared it."""
        from abps.sites.consent import sharing, sitefile
        from abps.sites.consent.proposal import Signed

        self._stage = DeclineCode.FILE
        own = sitefile.find(self._name, self._local)
        with self._writing_down(own.journal(self._local.parent)):
            self._stage = DeclineCode.PROPOSAL
            signed = Signed.from_json(json.loads(self.proposal))
            self._stage = DeclineCode.FILE
            return sharing.letter(own, self._local, signed)

    @contextlib.contextmanager
    def _writing_down(self, journal: Journal) -> Iterator[None]:
        """If it fails, what leaves is a code; it is written down before, once."""
        try:
            yield
        except Exception as error:
            code = decline_codes.code(
                error, self._stage if isinstance(error, RequestError) else DeclineCode.FAULT
            )
            if str(code) != self._told:
                journal.write("told", to=SERVER, code=str(code))
                self._told = str(code)
            raise

    def _opened(self, own: SiteFile, journal: Journal) -> Any:
        """The site's part in the study, or in counting what it lacks."""
        from abps import tensors
        from abps.sites.consent import keys
        from abps.sites.consent.approval import Consent
        from abps.sites.consent.proposal import Signed
        from abps.sites.coordinator import trials
        from abps.sites.node.privacy_ledger import inherit
        from abps.sites.node.site import Site
        from abps.sites.node.transport import Patience
        from abps.sites.protocol import measuring
        from abps.sites.store.store import Store

        self._stage = DeclineCode.AGREEMENT
        signed = Signed.from_json(json.loads(self.proposal))
        agreement = signed.proposal.agreement
        if agreement is None:
            raise RequestError("the job asks for no study")
        self._stage = DeclineCode.ALLOWED
        agreement = agreement.admitted(own.allow)
        self._stage = DeclineCode.AGREEMENT
        counting = self._which == [measuring.MEASURE]
        if not counting:
            agreement = measuring.resolved(agreement, self._scales, _kept_scales(own, agreement))
            agreement = trials.resolved(agreement, self._which)
        method = agreement.config()
        if not (method.by_arithmetic(agreement.book.outcome) and tensors.use_numpy()):
            tensors.torch.set_num_threads(own.threads)
        consent = Consent(Path(own.store), journal, own.policy, signed, keys.read_root(self._local.parent))
        approval = consent.given()
        self._stage = DeclineCode.TABLE
        table = own.read_table(agreement.book)
        self._stage = DeclineCode.FEW
        own.policy.check_rows(table.rows, table.outcome.informative(table.label))
        # What protects patients must not follow from a seed that all know.
        secret = secrets.randbits(62) if agreement.book.floor or method.privacy.budget is not None else 0
        study = measuring.store_name(agreement.study) if counting else agreement.study
        path, digest = own.store_of(study), agreement.digest()
        if not counting:
            self._stage = DeclineCode.TABLE
            data = agreement.prepare(table)
        self._stage = DeclineCode.STORE
        store = _open_store(lambda: Store.open(path, self._name, digest, agreement.notes()))
        try:
            if counting:
                return measuring.Measuring(
                    self._name, agreement, table, store, consent, journal.signer, self._job, secret
                )
            inherit(store, _spent_before(own, agreement))
            site = Site(
                self._name,
                agreement,
                data,
                store,
                self._carry,
                own.limits,
                Patience(turn_seconds=self.turn_seconds),
                another_table=own.another_table,
                consent=consent,
                secret=secret,
                signer=journal.signer,
                job=self._job,
                ahead=True,
                address=self._talk_directly(own),
            )
            site.decided(f"{approval.what} by {approval.facts['by']} on {approval.at}")
        except BaseException:
            store.close()
            raise
        return site

    def _carry(self, peer: str, what: str, data: bytes) -> bytes:
        """Bytes to a peer and its answer back, encrypted end to end where there are certificates."""
        from abps.sites.node.transport import Unreachable

        proxy = self._peers.get(peer)
        if proxy is None or self._expelled(peer):
            raise Unreachable(peer)
        try:
            reply = self._carried_directly(peer, what, data)
        except Broken as error:
            raise Unreachable(peer) from error
        if reply is not None:
            return reply
        try:
            answer = proxy(timeout=self.call_seconds, secure=self._secure).receive(what, data)
        except CollabCallError as error:
            raise Unreachable(peer) from error
        if not isinstance(answer, bytes):
            raise Unreachable(peer)
        return answer

    def _carried_directly(self, peer: str, what: str, data: bytes) -> bytes | None:
        """The answer over a direct line; None if there is none."""
        if self._caller is None:
            return None
        address = self._site.site_context.addresses.get(peer, "")
        if not address:
            return None
        return self._caller.carry(peer, address, what, data, self.call_seconds)


def _study(text: str) -> str:
    """The study's name in a job's proposal; none in what is no proposal."""
    try:
        return str(json.loads(text)["proposal"]["study"])
    except (ValueError, KeyError, TypeError):
        return ""


def _kept_scales(own: SiteFile, agreement: Agreement) -> dict[str, Any] | None:
    """What this site has counted with the others for a study."""
    from abps.sites.protocol import measuring

    return _looked_up(own, agreement, measuring.kept_in)


def _spent_before(own: SiteFile, agreement: Agreement) -> Any:
    """What this site's account of privacy has spent on that."""
    from abps.sites.node.privacy_ledger import account_of

    return _looked_up(own, agreement, account_of)


def _looked_up(own: SiteFile, agreement: Agreement, read: Callable[[Any], Any]) -> Any:
    """Something in the store of what was counted for a study; None if nothing was."""
    from abps.sites.protocol import measuring
    from abps.sites.store.store import Store

    path = own.store_of(measuring.store_name(agreement.study))
    if not path.is_file():
        return None
    store = Store.look(path)
    try:
        return read(store)
    finally:
        store.close()


def _open_store(attempt: Callable[[], Any], seconds: float = 15.0) -> Any:
    """Open the store; a process of the last job may need a moment to go."""
    until = time.monotonic() + seconds
    while True:
        try:
            return attempt()
        except RequestError as error:
            if "in use by another process" not in str(error) or time.monotonic() > until:
                raise
        time.sleep(0.5)


class FlareConductor:
    """The clock of a job, at the relay. It leaves what it knows of the job in ``abps-job.json``."""

    def __init__(
        self,
        proposal: str,
        rounds: int,
        sign_seconds: float = 5.0,
        talk_seconds: float = 120.0,
        work_seconds: float = 1800.0,
        poll_seconds: float = 0.2,
        grace_seconds: float = 300.0,
        patience_seconds: float = 0.0,
    ) -> None:
        self.proposal = proposal
        self.rounds = rounds
        self.grace_seconds = grace_seconds
        self.patience_seconds = patience_seconds
        self.sign_seconds = sign_seconds
        self.talk_seconds = talk_seconds
        self.work_seconds = work_seconds
        self.poll_seconds = poll_seconds

    @collab.main
    def run(self) -> None:
        """Run the job and write down what happened."""
        from abps.sites.consent.proposal import Signed

        job = str(collab.fl_ctx.get_job_id())
        folder = Path(collab.workspace.get_result_root(job))
        seconds = Timeouts(
            self.sign_seconds, self.work_seconds, self.talk_seconds, self.poll_seconds, self.grace_seconds,
            patience=self.patience_seconds,
        )  # fmt: skip
        try:
            proposal = Signed.from_json(json.loads(self.proposal)).proposal
            line = _Line({proxy.name: proxy for proxy in collab.clients})
            if proposal.agreement is None:
                from abps.sites.consent.gathering import gather

                told = gather(line, proposal.members or sorted(line.sites), seconds, log.info)
                files.write_json(folder / RESULT, told)
                return
            from abps.sites.coordinator import trials
            from abps.sites.coordinator.job_report import JobReport
            from abps.sites.coordinator.scheduler import Scheduler
            from abps.sites.protocol import measuring

            memory = Path(collab.workspace.get_root_dir()) / "abps-server"
            board = StatusFile(Path(collab.workspace.get_site_config_dir()), proposal.study)
            known = Known(Path(collab.workspace.get_root_dir()))
            members = sorted(proposal.members or line.sites)

            def run(agreement: Agreement, rounds: int, which: trials.Which | None) -> JobReport:
                conductor = Scheduler(
                    line, agreement, rounds, seconds, log.info, memory, board.say,
                    lambda: (known.text, frozenset(known.now.expelled)), job, which, scales,
                )  # fmt: skip
                return conductor.run(members)

            agreement, which, scales = proposal.agreement, None, None
            if agreement.uncounted:
                there = [name for name in members if name not in known.now.expelled]
                scales = measuring.measure(line, agreement, there, seconds, job, log.info, board.say)
                agreement = measuring.with_scales(agreement, scales)
            if agreement.penalties():
                place = trials.choose(line, agreement, members, seconds, run, log.info)
                agreement, which = agreement.settled(place), (trials.CHOSEN, place)
            report = run(agreement, self.rounds, which)
            board.say(report.rounds[-1].round if report.rounds else 0, "done")
        except RequestError as error:
            files.write_json(folder / RESULT, {"schema": "abps.job/1", "error": str(error)})
            raise
        files.write_json(folder / RESULT, report.to_json())


class _Line:
    """The conductor's line: calls to many sites at once."""

    parallel = True

    def __init__(self, sites: dict[str, Any]) -> None:
        self.sites = sites

    def ask(
        self, sites: Sequence[str], what: str, *arguments: Any, seconds: float
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Ask some sites the same at once: answers, and why there is none, by site."""
        answers: dict[str, Any] = {}
        failures: dict[str, str] = {}
        if not sites:
            return answers, failures
        there = [name for name in sites if name in self.sites]
        if not there:
            return answers, dict.fromkeys(sites, "not connected")
        group = collab.get_clients(there)
        results = group(timeout=seconds).conduct(what, list(arguments))
        for name, result in results:
            if not isinstance(result, list | tuple) or len(result) != 2:
                failures[name] = decline_codes.words("")
            elif result[0] is True:
                answers[name] = result[1]
            else:
                failures[name] = decline_codes.words(result[1])
        for name in sites:
            if name not in answers and name not in failures:
                failures[name] = "no answer" if name in self.sites else "not connected"
        return answers, failures

    def pause(self, seconds: float) -> None:
        """Let time pass, unless the job was called off."""
        if collab.is_aborted:
            raise RequestError("the job was called off")
        time.sleep(seconds)

    def now(self) -> float:
        """Seconds on a clock that only goes forward."""
        return time.monotonic()
