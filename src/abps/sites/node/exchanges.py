"""Roll calls: questions that all members answer before a round, to a board among them, and what it tells.

A site answers, may be the board, and goes on with what the board tells. Boards follow from the seed.
"""

from __future__ import annotations

import contextlib

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.core.streams import center_ids
from abps.methods.base import with_derived
from abps.methods.coordinated import Broadcast, coordinators
from abps.sites.node.context import SiteContext
from abps.sites.node.gate import Gate
from abps.sites.node.transport import AuditedTransport, Unreachable
from abps.wire import admission
from abps.wire.admission import Reason, Refusal
from abps.wire.messages import pack_broadcast, pack_upload
from abps.wire.number_lists import Form, NumberList, NumberListError

#: How many members are tried as the board of a roll call.
BOARDS = 2


class Exchanges:
    """A site's part in the roll calls of a round."""

    def __init__(self, site_context: SiteContext, post: AuditedTransport, gate: Gate) -> None:
        self.site_context, self.post, self.gate = site_context, post, gate
        self.begin()

    def begin(self) -> None:
        """A round begins."""
        # By question: this site's answer, and how it is written (None: as weights are).
        self._said: dict[int, tuple[bytes, Form | None]] = {}
        self._board: dict[int, dict[str, bytes]] = {}  # by question: the others' answers to this site
        self._informed = 0  # questions of this round after which the board's notice has come

    def reply(self, round: int, question: int, attempt: int) -> bool:
        """Answer a question to the board; False if this site cannot: it missed what was told after the last
        question, or the board is not there. attempt: boards that were tried before."""
        site_context = self.site_context
        site_context.need(round, self._asks(round, question) or None, "such a question")
        if site_context.round.resting or question > self._informed or attempt not in range(BOARDS):
            return False
        board = self._boards()[attempt : attempt + 1]
        if question not in self._said:
            self._said[question] = self._answer(round, question)
        if not board:
            return False
        if board[0] == site_context.name:
            return True
        why = f"our answer to question {question + 1} of the roll call, for the board of round {round}"
        data = pack_upload(self._said[question][0], round, question, site_context.id)
        try:
            self.post.carry(board[0], "answer", data, why, self.post.patience.repeats)
        except Unreachable:
            return False
        return True

    def preside(self, round: int, question: int) -> int:
        """Be the board: work out what follows from all answers, and tell it. Returns how many answered."""
        site_context = self.site_context
        site_context.need(round, self._asks(round, question) or None, "such a question")
        if site_context.name not in self._boards()[:BOARDS] or question not in self._said:
            raise RequestError(
                f"{site_context.name} is not the board of question {question} in round {round}"
            )
        read: dict[str, NDArray[np.float64]] = {}
        mine, form = self._said[question]
        with site_context.lock:
            said = {**self._board.get(question, {}), site_context.name: mine}
        for peer in (site_context.name, *sorted(site_context.others)):
            try:
                if peer in said:
                    read[peer] = self._read(peer, said[peer], round, form)
            except Refusal as refused:
                self.gate.note(refused)
        if len(read) < 2:
            return len(read)
        answers = np.full((len(site_context.roster), len(read[site_context.name])), np.nan)
        for peer, values in read.items():
            answers[site_context.roster.index(peer)] = values
        sizes = np.array([site_context.rows_of(member) for member in site_context.roster])
        sizes[site_context.roster.index(site_context.name)] = float(site_context.data.train.sizes[0])
        notice = site_context.peer_method.board(answers, sizes, round, question)
        for place, peer in enumerate(site_context.roster):
            own = notice.own.get(place)
            told = notice.common.data + (b"" if own is None else own.data)
            if peer == site_context.name:
                self._take_notice(peer, told, question)
            elif peer not in site_context.round.silent:
                data = pack_broadcast(told, round, question, site_context.id)
                why = f"what follows from all answers to question {question + 1} of the roll call"
                with contextlib.suppress(Unreachable):
                    self.post.carry(peer, "notice", data, why, self.post.patience.repeats)
        return len(read)

    def receive_answer(self, peer: str, data: bytes) -> bytes:
        """A member's answer, to this site as the board."""
        site_context = self.site_context
        said, question = admission.admit_upload(data, site_context.origin(peer))
        if (
            not self._asks(site_context.round.number, question)
            or site_context.name not in self._boards()[:BOARDS]
        ):
            raise Refusal(peer, Reason.PROTOCOL, "this site is not the board of a roll call")
        with site_context.lock:
            self._board.setdefault(question, {})[peer] = said
        self.post.log(peer, "answer", len(data), f"its answer to question {question + 1}", sent=False)
        return b""

    def receive_notice(self, peer: str, data: bytes) -> bytes:
        """What the board tells."""
        site_context = self.site_context
        told, question = admission.admit_broadcast(data, site_context.origin(peer))
        if not self._asks(site_context.round.number, question) or peer not in self._boards()[:BOARDS]:
            raise Refusal(peer, Reason.PROTOCOL, "it is not the board of a roll call")
        with site_context.lock:
            if question > self._informed or site_context.round.trained is not None:
                raise Refusal(peer, Reason.ROUND, "a notice that nobody waits for")
            self._take_notice(peer, told, question)
        self.post.log(peer, "notice", len(data), f"what follows from question {question + 1}", sent=False)
        return b""

    def _asks(self, round: int, question: int) -> bool:
        """Whether there is such a question before a round."""
        site_context = self.site_context
        if not site_context.by_peers:
            return False
        return False

    def _boards(self) -> list[str]:
        """The members that are there, in the order in which they are asked to be the board."""
        site_context = self.site_context
        order = coordinators(
            site_context.agreement.seed, site_context.round.number, center_ids(site_context.roster)
        )
        return [
            site_context.roster[k] for k in order if site_context.roster[k] not in site_context.round.silent
        ]

    def _answer(self, round: int, question: int) -> tuple[bytes, Form | None]:
        """What this site answers to a roll call, and how it is written."""
        site_context = self.site_context
        context = site_context.context
        if site_context.members != site_context.roster:  # who is not asked does not count
            context = with_derived(site_context.method, site_context.world_of(site_context.roster))
        answer = site_context.peer_method.reply(context, site_context.state, round, question)
        if answer.told:
            return answer.told[0].data, answer.told[0].form
        return site_context.pack(site_context.state.models, site_context.agreement.rounds + round), None

    def _read(self, peer: str, said: bytes, round: int, form: Form | None) -> NDArray[np.float64]:
        """(entries,) an answer to a roll call; what is no number counts as not told."""
        site_context = self.site_context
        if form is None:
            origin = site_context.origin(peer, (peer,), site_context.agreement.rounds + round)
            weights = admission.admit_weights(said, origin, site_context.codec, site_context.shared)
            arrived = weights + site_context.base
            self.gate.check_distance(peer, arrived, site_context.state.models[0, : site_context.shared])
            return arrived.astype(np.float64)
        try:
            told, rest = NumberList.read(said)
        except NumberListError as error:
            raise Refusal(peer, Reason.MALFORMED, str(error)) from error
        if rest or told.form != form:
            raise Refusal(peer, Reason.SHAPE, "its answer has another form than ours")
        return told.values

    def _take_notice(self, board: str, told: bytes, question: int) -> None:
        """Go on with what the board told."""
        site_context = self.site_context
        try:
            common, rest = NumberList.read(told)
            own, rest = NumberList.read(rest) if rest else (None, b"")
            me = int(site_context.context.local_index[0])
            notice = Broadcast(self._placed(common), {} if own is None else {me: self._placed(own)})
            if rest or not all(np.isfinite(each.values).all() for each in (common, own) if each is not None):
                raise ValueError("it says no numbers, or too many")
            site_context.state = site_context.peer_method.informed(
                site_context.context, site_context.state, notice, site_context.round.number, question
            )
        except ValueError as error:
            raise Refusal(board, Reason.MALFORMED, f"its notice: {error}") from error
        self._informed = max(self._informed, question + 1)

    def _placed(self, told: NumberList) -> NumberList:
        """What is told of members by their places in this job, by their places at this site."""
        place = np.array([self.site_context.members.index(name) for name in self.site_context.roster])
        values, at = told.values.copy(), 0
        for stretch in told.form:
            if stretch.kind == "place":
                part = slice(at, at + stretch.total)
                if (values[part] >= len(place)).any():
                    raise ValueError("a place that no member has")
                values[part] = place[values[part].astype(np.int64)]
            at += stretch.total
        return NumberList(values, told.form, told.data)
