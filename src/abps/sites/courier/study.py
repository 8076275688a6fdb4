"""A site's part in a study without any connection: what it must write now, and whose files it waits for.

All members take the same steps together: hello (rows and keys), three counts for common scales if the study
lacks them, then the exchanges, one trip each: every member writes its masked summand for all, and adds up.
The code that computes, checks, logs and stores is that of a network's site (:mod:`abps.sites.node`). Where a
site stands follows from its store and its files. A file is taken whole or not at all, and written once; what
was interrupted is done again with the same outcome.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from abps import files
from abps.core.errors import RequestError
from abps.core.matching import Rest
from abps.data.scales import PASSES
from abps.sites.consent import keys, sitefile
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.approval import Consent, decision_on
from abps.sites.consent.kit import Membership, Role, read_kit
from abps.sites.consent.proposal import Proposal, SignedProposal, sign
from abps.sites.courier import sealed
from abps.sites.courier.sealed import CourierFile, CourierMasks, CourierStep, Letter
from abps.sites.flare.opening import SiteJob, open_study
from abps.sites.node import measuring
from abps.sites.node.site import Site
from abps.sites.protocol.commands import DeclineCode, DeclineError
from abps.sites.protocol.masking import MaskedSums
from abps.sites.store import rows as chain
from abps.sites.store.audit import JournalEvent
from abps.sites.store.rows import EntryKind
from abps.sites.store.store import Store
from abps.wire import messages
from abps.wire.admission import capped_rows

T = TypeVar("T")

#: Where a site keeps files of studies, beside the stores; in each study's folder, what names it, and what
#: says that it is over.
FOLDER, STUDY, OVER = "courier", "study.json", "over"

SCHEMA = "abps.courier-study/1"

#: The name of a job by courier, and of who gets what goes to everybody, in logs.
JOB, ALL = "courier", "all members"


class Courier:
    """A study at one site.  track: the steps of the study in their order."""

    def __init__(self, kit: Path, folder: Path) -> None:
        self.kit, self.folder, self.me = Path(kit), Path(folder), read_kit(kit).name
        self.own = sitefile.find(self.me, self.kit / "local")
        signer, authority = keys.read_signer(kit), keys.read_root(kit)
        if signer is None or authority is None:
            raise RequestError(f"{kit} has no key; files are signed and sealed with the keys of startup kits")
        self.signer, self.authority = signer, authority
        data = sealed.read_json(self.folder / STUDY)
        self.signed = SignedProposal.from_json(data["signed"])
        self._certificates: Mapping[str, str] = data["certificates"]
        self.agreement = agreement = self.signed.proposal.agreement
        self.members = sorted(self.signed.proposal.members)
        self.others = [name for name in self.members if name != self.me]
        self.digest = self.signed.proposal.digest()
        counts = [CourierStep.COUNT] * (PASSES if agreement.uncounted else 0)
        self.track = [CourierStep.HELLO, *counts, *[CourierStep.SUM] * agreement.rounds]
        self.first = 1 + len(counts)  # of the exchanges, in the track
        self._post: dict[str, list[tuple[str, bytes]]] = {}  # for the next file, by reader

    # Where this site stands

    @property
    def over(self) -> bool:
        return (self.folder / OVER).is_file()

    def place(self) -> int:
        """The step that this site is at, in the track."""
        if not self._all(0):
            return 0
        if self.first > 1 and self._scales() is None:
            return next((p for p in range(1, PASSES) if not self._all(p)), PASSES)
        return self.first + (self._look(self.agreement.study, lambda store: store.round) or 0)

    def wanted(self) -> list[tuple[CourierStep, int, str]]:
        """The files that this site needs before it can go on, whether they are here or not."""
        p = self.place()
        if self.over or p == len(self.track):
            return []
        return [(self.track[p], p, name) for name in self.others]

    def missing(self) -> list[str]:
        return [each[2] for each in self.wanted() if not self._path(*each).is_file()]

    def due(self) -> list[Path]:
        """The files of this site that others may still need: of this step and of the one before."""
        p = self.place()
        steps = [q for q in (p - 1, p) if 0 <= q < len(self.track)]
        return [self._path(self.track[q], q, self.me) for q in steps if self._written(q)]

    def history(self, p: int) -> str:
        """A digest of the files from which a step follows, which all sites must have alike."""
        if not p:
            return ""
        paths = [self._path(self.track[p - 1], p - 1, name) for name in self.members]
        if not all(path.is_file() for path in paths):
            what = "bring the folder back from a backup (a study that began over a network goes on there)"
            raise RequestError(f"{self.folder}: files of step {p - 1} are gone; {what}")
        return chain.digest(b"".join(chain.digest(path.read_bytes()) for path in paths)).hex()

    def _scales(self) -> dict[str, Any] | None:
        return self._look(measuring.store_name(self.agreement.study), measuring.kept_in)

    def _look(self, study: str, what: Callable[[Store], T]) -> T | None:
        path = self.own.store_of(study)
        if not path.is_file():
            return None
        with contextlib.closing(Store.look(path)) as store:
            return what(store)

    # Files

    def _path(self, step: CourierStep, p: int, sender: str) -> Path:
        study, name = (sitefile.safe_name(each) for each in (self.agreement.study, sender))
        return self.folder / ("out" if sender == self.me else "in") / f"{study}-{p:03}-{step}-{name}.abps"

    def _written(self, p: int) -> bool:
        return self._path(self.track[p], p, self.me).is_file()

    def _all(self, p: int) -> bool:
        return all(self._path(self.track[p], p, name).is_file() for name in self.members)

    def _read(self, step: CourierStep, p: int, sender: str) -> CourierFile:
        path = self._path(step, p, sender)
        return sealed.parse(path, sealed.read_json(path))

    def _letters(self, p: int) -> dict[str, Letter]:
        found = {name: self._read(self.track[p], p, name) for name in self.members}
        return {name: each.open(self.me, self.signer) for name, each in found.items()}

    def take(self, found: CourierFile, text: str) -> bool:
        """Check a file that somebody brought, and keep it; whether it is new."""
        if found.sender not in self.members:
            raise RequestError(f"{found.sender!r} is not among the members that were approved")
        found.check(self.authority, Membership(self.kit).now)
        kept = self._path(found.step, found.number, found.sender)
        if kept.is_file() and kept.read_text(encoding="utf-8") != text:
            why = f"{found.sender} wrote two different files of step {found.number}"
            raise RequestError(f"{why}; the first stays, call them")
        if kept.is_file() or self.me not in found.letters:
            return False
        if found.sender == self.me:
            raise RequestError("it is signed with this site's key, and this site has not written it")
        if (found.step, found.number, found.sender) not in self.wanted():
            p, names = self.place(), ", ".join(self.missing()) or "nobody"
            what = "is over" if found.number < p else "is not due; bring it again later"
            step = f"step {found.number} ({found.step} of {found.sender})"
            raise RequestError(f"{step} {what}: this site is at step {p} and waits for {names}")
        if found.before != self.history(found.number):
            why = f"{found.sender} went on from other files than this site: somebody wrote two of one step"
            raise RequestError(f"{why}; compare `abps site courier status` by telephone")
        found.open(self.me, self.signer)
        files.write_text(kept, text)
        return True

    def _write(self, p: int, letter: Letter) -> None:
        """Write a file of this site, once: the letter to all, each with what waits for its reader."""
        post, self._post = self._post, {}
        path = self._path(self.track[p], p, self.me)
        if path.is_file():
            return
        to = {
            name: (self._certificate(name), replace(letter, messages=tuple(post.get(name, ()))))
            for name in self.members
        }
        envelope = CourierFile(self.digest, self.track[p], p, self.me, self.history(p), {})
        files.write_text(path, sealed.make(envelope, to, self.signer).text())

    def _certificate(self, name: str) -> bytes:
        if name == self.me:
            return self.signer.certificate
        known = self._path(CourierStep.HELLO, 0, name).is_file()
        text = self._read(CourierStep.HELLO, 0, name).certificate if known else self._certificates[name]
        return text.encode()

    def _send(self, peer: str, kind: EntryKind, data: bytes) -> bytes:
        self._post.setdefault(peer, []).append((str(kind), data))
        return b""

    # Going on

    def go_on(self) -> None:
        """Take every step that the files allow, and write what this site must send."""
        if self.over:
            return
        if self.first > 1 and self._scales() is None:
            with self._opened(True) as part:
                part.relay = ALL
                self._hello(part.rows, part.log)
                if self.place():
                    self._count(part)
            if self._scales() is None:
                return
        with self._opened(False) as site:
            site.transport.relay = ALL
            self._hello(int(site.context.data.train.sizes[0]), site.exchanges.log_sum)
            if not self.place():
                return
            rows = capped_rows({name: each.rows for name, each in self._letters(0).items()})
            if not self._finished(site):
                site.join(self.members, site.store.round + 1, rows, list(messages.VERSION))
            while not self._finished(site):
                if not self._exchange(site, self.place()):
                    return
            files.write_text(self.folder / OVER, "")

    def _finished(self, site: Site) -> bool:
        round, context = site.store.round, site.context
        return round == self.agreement.rounds or bool(round and context.method.finished(context.state))

    def _hello(self, rows: int, log: Any) -> None:
        if not self._written(0):
            log(EntryKind.REPORT, 40, "our training rows, and a key for masks", 0)
            self._write(0, Letter(rows, self._key(0)[1]))

    def _count(self, part: measuring.ScaleCounting) -> None:
        """The counts for common scales, from the first one again: their totals are in the files."""
        for p in range(1, self.first):
            self._add(part.sums, p, p)
            if not self._all(p):
                return
            part.sum_total(p, self._total(p))

    def _exchange(self, site: Site, p: int) -> bool:
        """An exchange as far as it can go; whether it is finished."""
        exchanges, t = site.exchanges, p - self.first + 1
        site.begin(t, self.members)
        if not exchanges.contribute(t):
            raise RequestError(f"this site has nothing to upload in exchange {t}, and the others wait for it")
        assert exchanges.sums is not None
        self._add(exchanges.sums, p, t)
        if self.missing():
            return False
        for name, letter in self._letters(p).items():
            for kind, data in letter.messages if name != self.me else ():
                site.receive(name, kind, data)
        exchanges.take_total(t, self._total(p))
        site.finish(t, Rest.NOT)
        site.heads.give(t, exchanges.coordinator())
        return True

    # Masks

    def _key(self, p: int) -> tuple[X25519PrivateKey, bytes]:
        """This site's key that it announces in a step, for the next sum; made once, deleted when used."""
        path = self.folder / "keys" / f"{p}.key"
        if not path.is_file():
            files.write_secret(path, X25519PrivateKey.generate().private_bytes_raw().hex())
        key = X25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text(encoding="ascii")))
        return key, key.public_key().public_bytes_raw()

    def _add(self, sums: MaskedSums, p: int, number: int) -> None:
        """Write this site's summand under masks, once, and delete the key that the step before announced for
        it."""
        history = self.history(p)
        if self._written(p):
            sums.masker = CourierMasks(self.me, X25519PrivateKey.generate(), {}, history)
            sums.begin(number, self.members)
            return
        public = {name: each.key for name, each in self._letters(p - 1).items() if name != self.me}
        sums.masker = CourierMasks(self.me, self._key(p - 1)[0], public, history)
        vector = sums.masked(number, self.members)
        self._write(p, Letter(0, self._key(p)[1], vector))
        (self.folder / "keys" / f"{p - 1}.key").unlink(missing_ok=True)

    def _total(self, p: int) -> bytes:
        """All members' masked summands, added up: the masks cancel."""
        found = {name: each.vector for name, each in self._letters(p).items()}
        for name, vector in found.items():
            if len(vector) != len(found[self.me]):
                raise RequestError(f"the summand of {name} in step {p} has another length than ours; call it")
        rings = np.stack([np.frombuffer(each, "<u8") for each in found.values()]).astype(np.uint64)
        return rings.sum(axis=0, dtype=np.uint64).astype("<u8").tobytes()

    @contextlib.contextmanager
    def _opened(self, counting: bool) -> Iterator[Any]:
        """The site's part in the study (or in the counts), with the consent of its people."""
        job = SiteJob(self.me, self.kit / "local", JOB, self.signed.text())
        part = open_study(job, *job.own_file(), self._send, counting, self._scales())
        try:
            yield part
        finally:
            part.store.close()


def check_method(agreement: Agreement) -> None:
    """Refuse what needs somebody who sees all sites at once, or a coordinator."""
    privacy = agreement.config().privacy
    if privacy.budget is not None:
        raise RequestError("a study with a privacy budget needs a network: leave dp_epsilon out")
    if not privacy.secure:
        raise RequestError("a study by courier runs under masked sums: leave secure=no out")


def accept_study(kit: Path, own: sitefile.SiteFile, data: Mapping[str, Any]) -> str:
    """Keep the proposal of a study that came as a file; a sentence about what is to be done next."""
    signed = SignedProposal.from_json(data.get("signed"))
    proposal, authority, certificates = signed.proposal, keys.read_root(kit), data.get("certificates")
    if authority is None or not isinstance(certificates, dict):
        raise RequestError("the file proposes no study by courier; ask the operator for it again")
    if own.site not in proposal.members:
        raise RequestError(f"{own.site} is not among the members of the study {proposal.study!r}")
    check_method(proposal.agreement.admitted(own.allow))
    for name in proposal.members:
        try:
            owner, _ = keys.certificate_owner(str(certificates.get(name)).encode(), authority)
        except ValueError as error:
            raise RequestError(f"the file has no valid certificate of {name} ({error})") from error
        if owner != name:
            raise RequestError(f"the certificate that came as {name}'s is of {owner}")
    try:
        seen = Membership(kit).now
        Consent(Path(own.store), own.journal(kit), own.policy, signed, authority, seen).given()
        said = "approved; write the first file with `abps site courier out`"
    except DeclineError as error:
        if error.code is not DeclineCode.APPROVAL:
            raise
        said = "waits for approval: read it with `abps site proposals`, decide with `abps site approve`"
    digest = proposal.digest()
    where = Path(own.store) / FOLDER / f"{sitefile.safe_name(proposal.study)}-{digest[:16]}" / STUDY
    if not where.is_file():
        files.write_json(where, _study_json(signed, certificates))
    return f"the study {proposal.study!r}, proposal {digest[:16]}: {said}"


def propose_study(operator: Path, kits: Path, agreement: Agreement, members: Sequence[str], out: Path) -> str:
    """Write a study as a file for all members (the signed proposal, and their certificates; no members: all
    sites of the network). Returns the proposal's digest."""
    from abps.sites.flare.kits import Authority  # the operator's alone

    check_method(agreement)
    authority = Authority(kits)
    named = tuple(members or authority.sites())
    if len(named) < 3:
        raise RequestError("a study by courier needs three members: name them with --members")
    signed = sign(Proposal(agreement, named), keys.read_signer(operator))
    files.write_json(out, _study_json(signed, {name: authority.certificate(name) for name in named}))
    return signed.proposal.digest()


def _study_json(signed: SignedProposal, certificates: Mapping[str, str]) -> dict[str, Any]:
    return {"schema": SCHEMA, "signed": signed.to_json(), "certificates": dict(certificates)}


def _site(kit: Path) -> tuple[sitefile.SiteFile, list[Courier]]:
    given = read_kit(kit)
    if given.role is not Role.SITE:
        raise RequestError(f"{kit} is not the startup kit of a site")
    own = sitefile.find(given.name, given.local)
    folders = sorted((Path(own.store) / FOLDER).glob(f"*/{STUDY}"))
    return own, [Courier(kit, path.parent) for path in folders]


def find(kit: Path, study: str | None = None) -> Courier:
    """The study by courier at a site (of this name); of several proposals, the approved one."""
    own, known = _site(kit)
    known = [each for each in known if study in (None, each.agreement.study)]
    if len(known) > 1:
        lines = own.journal(kit).lines()
        held = [decision_on(lines, each.agreement.study, each.digest) for each in known]
        known = [c for c, line in zip(known, held) if line and line.what == JournalEvent.APPROVED]
    if len(known) != 1:
        what = "take the operator's file with `abps site courier in`, approve it, or name one with --study"
        raise RequestError(f"{own.site} has {len(known)} approved studies by courier; {what}")
    return known[0]


def bring(kit: Path, path: Path) -> tuple[str, Courier | None]:
    """Take one file in: a sentence, and the study if it goes on. A wrong file raises and changes nothing."""
    (own, here), data = _site(kit), sealed.read_json(path)
    try:
        if data.get("schema") == SCHEMA:
            return accept_study(kit, own, data), None
        found = sealed.parse(path, data)
        known = [each for each in here if each.digest == found.proposal]
        if not known:
            raise RequestError("it is of a study, or a version of it, that was not proposed here by courier")
        new = known[0].take(found, path.read_text(encoding="utf-8"))
    except RequestError as error:
        raise RequestError(f"{path.name} was not taken: {str(error).removeprefix(f'{path} ')}") from error
    return f"{path.name}: {'taken' if new else 'nothing new in it for this site'}", known[0]


def bring_all(kit: Path, paths: Sequence[Path]) -> tuple[list[str], Courier | None, list[str]]:
    """Take files in, and go on as far as they allow: what to say, the last study that goes on, and why files
    were not taken."""
    said: list[str] = []
    last, waiting = None, list(paths)
    while True:  # a file that is not due may be after another one
        wrong: dict[Path, str] = {}
        touched: dict[str, Courier] = {}
        for path in waiting:
            try:
                sentence, courier = bring(kit, path)
                said.append(sentence)
                if courier is not None:
                    touched[courier.digest] = last = courier
            except RequestError as error:
                wrong[path] = str(error)
        for courier in touched.values():
            courier.go_on()
        if not touched or not wrong:
            return said, last, list(wrong.values())
        waiting = list(wrong)
