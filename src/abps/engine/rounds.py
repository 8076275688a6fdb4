"""Rounds of a method with all centers in one process.

The driver: it asks the method what to send, looks whether that can be afforded, delivers it through the
codec, books the bytes, ends communication when the budget is reached, and tells who rested. The other driver
is a real site (:mod:`abps.sites.site`) with its conductor; the methods are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from abps.core import ledger as bytes_of
from abps.core.ledger import CONTROL_MESSAGE, Ledger, Traffic
from abps.core.matching import Answer, Plan, Rest
from abps.core.plausibility import distances, plausible
from abps.data.prepare import Rows
from abps.engine.attacks import Siege
from abps.engine.belief_check import Effect, looked_at, true_effects
from abps.engine.private_run import Spending, begun
from abps.lab.rivals.graphs import both_ways
from abps.methods import peers
from abps.methods.accounting import checked, releases
from abps.methods.base import Decisions, Ints, Method, World, grounded, refusals
from abps.methods.peers import Heard, Opinion, PeerMethod
from abps.methods.star import (
    Server,
    StarMethod,
    masked,
    masked_cost,
    star_cost,
    to_everyone,
    with_notes,
)
from abps.models.metrics import Segments


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a round did besides changing models.

    partners: (n,) how many peers' models each center received.  rest: (n,) a :class:`Rest` each.
    answers: every center's predictions for its own validation and test rows by its new model, where the round
    has made them anyway.
    effect: what its mixes truly did, where that was looked at.
    """

    traffic: Traffic
    partners: Ints
    rest: NDArray[np.int8]
    decisions: Decisions | None = None
    answers: tuple[Segments, Segments] | None = None
    effect: Effect | None = None


@dataclass(frozen=True, eq=False)
class Course:
    """A run between two rounds.

    server: what a star's server remembers.  unpaid: what centers publish has not been paid for yet.
    siege: members that attack, if any do.  witness: rows that mixes are tried on, to check beliefs by.
    spending: the privacy account, of a private run.
    """

    method: Method
    world: World
    state: Any
    ledger: Ledger
    server: Server = field(default_factory=Server)
    unpaid: bool = True
    siege: Siege | None = None
    spending: Spending | None = None
    witness: Rows | None = None

    @staticmethod
    def start(method: Method, world: World, siege: Siege | None = None) -> Course:
        """Before the first round."""
        checked(method, world.n)
        world, spending = begun(method, world)
        if siege is not None:
            world = replace(world, bulletin=siege.published(method.publish(world).vectors))
        world = grounded(method, world)
        ledger = Ledger(method.budget, Traffic(control=world.data.agreed))
        server = Server(seed=world.seed, layout=world.learner.layout)
        return Course(method, world, method.init(world), ledger, server, siege=siege, spending=spending)

    def on(self, world: World, t: int) -> Course:
        """New data take the place of the old before round t."""
        new = grounded(self.method, world)
        return replace(self, world=new, state=self.method.moved(self.world, new, self.state, t), unpaid=True)

    def round(self, t: int) -> tuple[Course, Outcome]:
        """One round t = 1, 2, …"""
        if self.spending is not None:
            if not self.spending.account.affords(*releases(self.method, t)):
                # Nothing more is learned from rows, so nothing new can leave.
                return self._rested(self.state, t, Rest.PRIVACY)
            after, outcome = self._open_round(t)
            spending = self.spending.after(self.method, after.world, t)
            return replace(after, spending=spending), outcome
        return self._open_round(t)

    def _open_round(self, t: int) -> tuple[Course, Outcome]:
        """A round that may be learned in."""
        if self.method.kind in ("alone", "star"):
            after, outcome = self._alone(t) if self.method.kind == "alone" else self._star(t)
        else:
            told, said = self._roll_calls(cast(PeerMethod, self.method), t)
            after, outcome = told._peers(t)
            outcome = replace(outcome, traffic=outcome.traffic + said)
        return replace(after, ledger=after.ledger.book(outcome.traffic)), outcome

    def _roll_calls(self, method: PeerMethod, t: int) -> tuple[Course, Traffic]:
        """Before a round: what the board asks all centers, and what they learn from it."""
        state, said = self.state, Traffic()
        for k in range(0 if self.ledger.closed else method.questions(t, self.world.horizon)):
            reply = method.reply(self.world, state, t, k)
            if self.siege is not None:
                models = reply.values[:, slice(*reply.weights)]
                honest = torch.from_numpy(models.astype(np.float32))
                # A roll call is before training: who is lazy has nothing else to send.
                models[:] = self.siege.sent(honest, honest, self.world, t).numpy()
            sizes = self.world.sizes().numpy().astype(np.float64)
            notice = method.board(reply.values, sizes, t, k)
            state = method.informed(self.world, state, notice, t, k)
            others = peers.boards(self.world.seed, t, self.world.ids)[1:]
            told = sum(notice.size(int(place)) for place in others)
            said += bytes_of.roll_call(self.world.n, reply.size, told)
        return replace(self, state=state), said

    def _alone(self, t: int) -> tuple[Course, Outcome]:
        trained = self.method.train(self.world, self.state, t, True)
        return self._rested(trained, t, Rest.NOT)

    def _rested(self, trained: Any, t: int, why: Rest, said: int = 0) -> tuple[Course, Outcome]:
        """A round without an exchange; said: control bytes that were spent on the way to it."""
        n, state = self.world.n, self.method.rest(self.world, self.state, trained, t)
        ledger = self.ledger.close() if why is Rest.BUDGET else self.ledger
        outcome = Outcome(Traffic(control=said), np.zeros(n, dtype=np.int64), np.full(n, why, dtype=np.int8))
        return replace(self, state=state, ledger=ledger), outcome

    def _star(self, t: int) -> tuple[Course, Outcome]:
        method, world, n = cast(StarMethod, self.method), self.world, self.world.n
        trained = method.train(world, self.state, t, self.ledger.closed)
        if self.ledger.closed:
            return self._rested(trained, t, Rest.BUDGET)
        up, layout = method.upload(world, self.state, trained, t), world.learner.layout
        lengths = [message.shape[1] for message in up], method.answers(layout)
        if method.privacy.secure:
            return self._masked_star(trained, up, lengths, t)
        traffic = star_cost(method.line, n, *lengths, method.noted)
        if not self.ledger.affords(traffic):
            return self._rested(trained, t, Rest.BUDGET)
        up = self._besieged(up, t)
        sent = tuple(
            method.line.deliver(world, message, method.number(k, t, layout)) for k, message in enumerate(up)
        )
        if self.siege is not None and up:
            sent = (self.siege.arrived(up[0], sent[0]), *sent[1:])
        if method.noted:
            sent = with_notes(sent, method.note(world, trained))
        sizes, start, some = world.sizes(), world.learner.start, torch.arange(n)
        if method.sends_models:
            far = distances(sent[0].numpy(), start.numpy())
            trusted = plausible(far, np.full(n, np.median(far[np.isfinite(far)])))
            if not trusted.all():
                some = torch.from_numpy(np.flatnonzero(trusted))
                sent, sizes = tuple(message[some] for message in sent), sizes[some]
        replies, memory = method.serve(start, self.server, sent, sizes, t)
        traffic = star_cost(method.line, n, lengths[0], [reply.shape[-1] for reply in replies], method.noted)
        return self._served(trained, replies, memory, some, traffic, t)

    def _besieged(self, up: tuple[Tensor, ...], t: int) -> tuple[Tensor, ...]:
        """What attackers make of what centers send to a server; before training they have what it sent."""
        if self.siege is None or not up:
            return up
        before = None
        if cast(StarMethod, self.method).sends_models:
            before = self.state.models[:, : up[0].shape[1]]
        siege = self.siege if before is None else replace(self.siege, heard=before)
        return (siege.sent(up[0], before, self.world, t), *up[1:])

    def _masked_star(
        self, trained: Any, up: tuple[Tensor, ...], lengths: tuple[Sequence[int], Sequence[int]], t: int
    ) -> tuple[Course, Outcome]:
        """A round in which the server sees the sum of what is sent, and nothing else."""
        method, world = cast(StarMethod, self.method), self.world
        traffic = masked_cost(method.line, world.n, *lengths) if up else Traffic()
        if not self.ledger.affords(traffic):
            return self._rested(trained, t, Rest.BUDGET)
        up = self._besieged(up, t)
        sent, say = up, world.sizes()
        if up and method.adds is not None:
            sent, say = masked(up, world.sizes().numpy(), method.adds)
        replies, memory = method.serve(world.learner.start, self.server, sent, say, t)
        return self._served(trained, replies, memory, torch.arange(world.n), traffic, t)

    def _served(
        self, trained: Any, replies: tuple[Tensor, ...], memory: Any, some: Tensor, traffic: Traffic, t: int
    ) -> tuple[Course, Outcome]:
        """What comes down, and what centers make of it; some: whose messages were let in."""
        method, world, n = cast(StarMethod, self.method), self.world, self.world.n
        layout = world.learner.layout
        down = tuple(
            method.line.answer(
                world, to_everyone(reply, some, n) if reply.dim() == 2 else reply, method.number(k, t, layout)
            )
            for k, reply in enumerate(replies)
        )
        state = method.receive(world, self.state, trained, down, t)
        outcome = Outcome(traffic, np.full(n, n - 1), np.zeros(n, dtype=np.int8))
        return replace(self, state=state, server=replace(self.server, last=down, memory=memory)), outcome

    def _peers(self, t: int) -> tuple[Course, Outcome]:
        method, world = cast(PeerMethod, self.method), self.world
        # Whom to ask seldom depends on this round's models: centers choose while they train.
        trained = cache(method.begin(world, self.state, t, self.ledger.closed))
        if not method.exchanges(t):
            return self._rested(trained(), t, Rest.QUIET)
        if self.ledger.closed:
            return self._rested(trained(), t, Rest.BUDGET)
        opinion = Opinion() if method.kind == "graph" else method.opine(world, self.state, trained, t)
        meeting = self._meet(opinion, t)
        traffic = meeting.said + method.cost(world, meeting.to, meeting.by)
        if not self.ledger.affords(traffic):
            # That the plan is too dear is known once it is made: its messages were sent.
            return self._rested(trained(), t, Rest.BUDGET, meeting.said.control)
        after = trained()
        shared = method.wire.shared(world)
        sent, start = method.sent(self.state, after)[:, :shared], world.learner.start.numpy()
        honest = sent
        if self.siege is not None:
            sent = self.siege.sent(sent, method.sent(self.state, self.state)[:, :shared], world, t)
        arrived = method.wire.deliver(world, sent, t)
        if self.siege is not None:
            arrived = self.siege.arrived(sent, arrived)
        far = distances(arrived.numpy(), start)
        own = far if self.siege is None else distances(honest.numpy(), start)
        trusted = plausible(far[meeting.by], own[meeting.to])
        refused = (meeting.to[~trusted], meeting.by[~trusted])
        meeting = meeting.only(trusted, np.isfinite(far))
        listeners = np.bincount(meeting.by, minlength=world.n)
        notes = method.note(world, after, listeners)
        heard = Heard(meeting.to, meeting.by, arrived, notes, opinion, refused)
        learned = method.learn(world, self.state, after, heard, t)
        effect = None
        if self.witness is not None and looked_at(t, world.n, world.horizon):
            mixed = method.mixed(world, after, heard, self.witness)
            if mixed is not None:
                center, peer, *answers = mixed
                effect = true_effects(center, peer, t, answers[0], answers[1], self.witness)
        degrees = np.bincount(meeting.to, minlength=world.n)
        outcome = Outcome(traffic, degrees, meeting.rest, meeting.trail, learned.answers, effect)
        siege = None if self.siege is None else self.siege.hear(arrived, meeting.to, meeting.by)
        return replace(self, state=learned.state, unpaid=False, siege=siege), outcome

    def _meet(self, opinion: Opinion, t: int) -> _Meeting:
        """Who hears whom, and what was said to find that out."""
        method, world, n = cast(PeerMethod, self.method), self.world, self.world.n
        entries = 0 if world.bulletin is None else world.bulletin.shape[1]
        said = bytes_of.directory(n, entries) if self.unpaid and entries else Traffic()
        if opinion.publishing:
            said += bytes_of.directory(n, opinion.publishing)
        said += Traffic(control=opinion.announcing * (n - 1) * CONTROL_MESSAGE)
        if method.kind == "mutual":
            plan = peers.agree(method, world, opinion, t)
            said += bytes_of.pairs(len(plan.pairs), 0, plan.proposals)
            trail = None if opinion.trail is None else opinion.trail(plan)
            return _Meeting(*both_ways(plan.pairs), plan.rest, said, trail)
        if method.kind == "graph":
            to, by = method.transfers(world, t)
        else:
            chosen = [list(listed[: method.capacity]) for listed in opinion.rankings]
            to = np.repeat(np.arange(n), [len(each) for each in chosen])
            by = np.array([j for each in chosen for j in each], dtype=np.int64)
            said += Traffic(control=len(by) * CONTROL_MESSAGE)  # a request each
        hears = np.bincount(to, minlength=n)
        rest = np.where(hears > 0, Rest.NOT, Rest.NO_CANDIDATES).astype(np.int8)
        trail = None
        if opinion.trail is not None:
            # Whoever is asked is heard.
            answer = np.full(len(to), Answer.ACCEPTED, dtype=np.int8)
            asked = np.zeros((n, len(Answer)), dtype=np.int64)
            asked[:, Answer.ACCEPTED] = hears
            trail = opinion.trail(Plan(n, np.stack([to, by], axis=1), to, by, answer, rest, asked))
        return _Meeting(to, by, rest, said, trail)


@dataclass(frozen=True, eq=False)
class _Meeting:
    """Links from places ``by`` to places ``to``, why centers rest, and the control bytes spent so far."""

    to: Ints
    by: Ints
    rest: NDArray[np.int8]
    said: Traffic
    trail: Decisions | None = None

    def only(self, trusted: NDArray[np.bool_], finite: NDArray[np.bool_]) -> _Meeting:
        """Without the links whose weights were not let in; finite: (n,) whether a center sent numbers."""
        if trusted.all():
            return self
        to, by = self.to[~trusted], self.by[~trusted]
        refused = refusals(to, by, finite[by])
        trail = refused if self.trail is None else refused.after(self.trail)
        return replace(self, to=self.to[trusted], by=self.by[trusted], trail=trail)
