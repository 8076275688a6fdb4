"""Rounds of a method with all centers in one process.

The driver: it asks the method what to send, looks whether that can be afforded, delivers it through the
codec, books the bytes, ends communication when the budget is reached, and notes who rested. The other driver
is a real site (:mod:`abps.sites.node.site`); the methods are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from abps.core import ledger as bytes_of
from abps.core.arrays import Weights, distances, plausible
from abps.core.ledger import CONTROL_MESSAGE, Ledger, Traffic
from abps.core.matching import Answer, MatchingPlan, Rest
from abps.methods import peers
from abps.methods.accounting import Spending, begun, checked, releases
from abps.methods.base import Context, Decisions, Ints, Method, refusals, with_derived
from abps.methods.coordinated import CoordinatedMethod, coordinators
from abps.methods.peers import PeerMethod, Preferences, Received
from abps.methods.star import (
    Server,
    StarMethod,
    masked,
    masked_cost,
    rows_of,
    star_cost,
    to_everyone,
)
from abps.models.metrics import Segments
from abps.privacy.fixed_point import exact_sum, masked_bytes


@dataclass(frozen=True, eq=False)
class RoundResult:
    """What a round did besides changing models.

    partners: (n,) how many peers' models each center received.  rest: (n,) a :class:`Rest` each.
    answers: of the new models for their own validation and test rows, where the round has made them anyway.
    """

    traffic: Traffic
    partners: Ints
    rest: NDArray[np.int8]
    decisions: Decisions | None = None
    answers: tuple[Segments, Segments] | None = None


@dataclass(frozen=True, eq=False)
class RunState:
    """A run between two rounds.  server: what a star's server remembers.  unpaid: published metadata has not
    been paid for yet.  attackers: :class:`abps.lab.attacks.Attackers`, or none.  spending: the privacy
    account, of a private run."""

    method: Method
    context: Context
    state: Any
    ledger: Ledger
    server: Server = field(default_factory=Server)
    unpaid: bool = True
    attackers: Any = None
    spending: Spending | None = None

    @staticmethod
    def start(method: Method, context: Context, attackers: Any = None) -> RunState:
        checked(method, context.n)
        context, spending = begun(method, context)
        if attackers is not None:
            context = replace(context, published=attackers.published(method.publish(context).vectors))
        context = with_derived(method, context)
        ledger = Ledger(method.budget, Traffic(control=context.data.agreed))
        server = Server(seed=context.seed, layout=context.learner.layout)
        return RunState(
            method, context, method.init(context), ledger, server, attackers=attackers, spending=spending
        )

    def round(self, t: int) -> tuple[RunState, RoundResult]:
        """One round t = 1, 2, …"""
        if self.spending is not None and not self.spending.account.affords(*releases(self.method, t)):
            return self._rested(self.state, t, Rest.PRIVACY)  # nothing more is learned from rows, or leaves
        drivers = {"alone": self._alone, "star": self._star, "coordinated": self._coordinated}
        after, result = drivers.get(self.method.kind, self._peers)(t)
        spending = None if self.spending is None else self.spending.after(self.method, after.context, t)
        return replace(after, ledger=after.ledger.book(result.traffic), spending=spending), result

    def _coordinated(self, t: int) -> tuple[RunState, RoundResult]:
        """One exchange: all upload, the coordinator aggregates, all apply its broadcast."""
        method, context, n = cast(CoordinatedMethod, self.method), self.context, self.context.n
        if self.ledger.closed:
            return self._rested(self.state, t, Rest.BUDGET)
        upload = method.upload(context, self.state, t)
        order = coordinators(context.seed, t, context.ids)
        arrived, up = upload.values, int(upload.sizes[order[1:]].sum())
        if self.attackers is not None:
            arrived = self.attackers.uploaded(arrived, context, t)
        if method.privacy.secure:
            arrived, up = exact_sum(np.nan_to_num(arrived))[None], masked_bytes(n, arrived.shape[1])
        broadcast = method.aggregate(context, self.state, arrived, t)
        down = sum(broadcast.size(int(member)) for member in order[1:])
        traffic = bytes_of.exchange_bytes(n - 1, up, down)
        if not self.ledger.affords(traffic):
            return self._rested(self.state, t, Rest.BUDGET)
        state = method.apply_broadcast(context, self.state, broadcast, t)
        rest = method.resting(context, state)
        result = RoundResult(traffic, np.full(n, n - 1), rest, method.decisions(context, state, broadcast, t))
        return replace(self, state=state), result

    def _alone(self, t: int) -> tuple[RunState, RoundResult]:
        trained = self.method.train(self.context, self.state, t, True)
        return self._rested(trained, t, Rest.NOT)

    def _rested(self, trained: Any, t: int, why: Rest, said: int = 0) -> tuple[RunState, RoundResult]:
        """A round without an exchange; said: control bytes that were spent on the way to it."""
        n, state = self.context.n, self.method.rest(self.context, self.state, trained, t)
        ledger = self.ledger.close() if why is Rest.BUDGET else self.ledger
        partners, rest = np.zeros(n, dtype=np.int64), np.full(n, why, dtype=np.int8)
        return replace(self, state=state, ledger=ledger), RoundResult(Traffic(control=said), partners, rest)

    def _star(self, t: int) -> tuple[RunState, RoundResult]:
        method, context, n = cast(StarMethod, self.method), self.context, self.context.n
        trained = method.train(context, self.state, t, self.ledger.closed)
        if self.ledger.closed:
            return self._rested(trained, t, Rest.BUDGET)
        here = method.taking_part(context, t)
        if not here.all():
            trained = rows_of(here, trained, self.state)
        up, layout = method.upload(context, self.state, trained, t), context.learner.layout
        lengths = [message.shape[1] for message in up], method.answers(layout, t)
        if method.privacy.secure:
            return self._masked_star(trained, up, lengths, t)
        count = int(here.sum())
        traffic = star_cost(method.line, count, *lengths, method.noted)
        if not self.ledger.affords(traffic):
            return self._rested(trained, t, Rest.BUDGET)
        up = self._attacked(up, t)
        sent = tuple(
            method.line.deliver(context, message, method.number(k, t, layout)) for k, message in enumerate(up)
        )
        if self.attackers is not None:
            sent = (self.attackers.arrived(up[0], sent[0]), *sent[1:])
        if method.noted:
            sent = (*sent, method.note(context, trained).astype(np.float32))
        sizes, start, some = context.sizes(), context.learner.start, np.arange(n)
        far = distances(sent[0], start)
        trusted = here & plausible(far, np.full(n, np.median(far[here & np.isfinite(far)])))
        if not trusted.all():
            some = np.flatnonzero(trusted)
            sent, sizes = tuple(message[some] for message in sent), sizes[some]
        replies, memory = method.serve(start, self.server, sent, sizes, t)
        back = [reply.shape[-1] for reply in replies]
        traffic = star_cost(method.line, count, lengths[0], back, method.noted)
        after, result = self._served(trained, replies, memory, some, traffic, t)
        if here.all():
            return after, result
        # Who sits out has the server's model when it takes part again, and nothing else of this round.
        kept = replace(self.state, models=after.state.models)
        rest = np.where(here, Rest.NOT, Rest.QUIET).astype(np.int8)
        state = rows_of(here, after.state, kept)
        return replace(after, state=state), replace(result, rest=rest, partners=np.where(here, count - 1, 0))

    def _attacked(self, up: tuple[Weights, ...], t: int) -> tuple[Weights, ...]:
        """What attackers make of what centers send to a server; before training they have what it sent."""
        if self.attackers is None:
            return up
        before = self.state.models[:, : up[0].shape[1]]
        attackers = replace(self.attackers, received=before)
        spoiled: Weights = attackers.sent(up[0], before, self.context, t)
        return (spoiled, *up[1:])

    def _masked_star(
        self, trained: Any, up: tuple[Weights, ...], lengths: tuple[Sequence[int], Sequence[int]], t: int
    ) -> tuple[RunState, RoundResult]:
        """A round in which the server sees the sum of what is sent, and nothing else."""
        method, context = cast(StarMethod, self.method), self.context
        traffic = masked_cost(method.line, context.n, *lengths)
        if not self.ledger.affords(traffic):
            return self._rested(trained, t, Rest.BUDGET)
        up = self._attacked(up, t)
        sent, say = up, context.sizes()
        if method.adds is not None:
            sent, say = masked(up, context.sizes(), method.adds)  # type: ignore[arg-type]
        replies, memory = method.serve(context.learner.start, self.server, sent, say, t)
        return self._served(trained, replies, memory, np.arange(context.n), traffic, t)

    def _served(
        self, trained: Any, replies: tuple[Weights, ...], memory: Any, some: Ints, traffic: Traffic, t: int
    ) -> tuple[RunState, RoundResult]:
        """What comes down, and what centers make of it; some: whose messages were let in."""
        method, context, n = cast(StarMethod, self.method), self.context, self.context.n
        layout = context.learner.layout
        down = tuple(
            method.line.answer(context, to_everyone(reply, some, n), method.number(k, t, layout))
            for k, reply in enumerate(replies)
        )
        state = method.receive(context, self.state, trained, down, t)
        result = RoundResult(traffic, np.full(n, n - 1), np.zeros(n, dtype=np.int8))
        return replace(self, state=state, server=replace(self.server, last=down, memory=memory)), result

    def _peers(self, t: int) -> tuple[RunState, RoundResult]:
        method, context = cast(PeerMethod, self.method), self.context
        # Whom to ask seldom depends on this round's models: centers choose while they train.
        trained = cache(method.begin(context, self.state, t, self.ledger.closed))
        if not method.exchanges(t):
            return self._rested(trained(), t, Rest.QUIET)
        if self.ledger.closed:
            return self._rested(trained(), t, Rest.BUDGET)
        preferences = (
            Preferences() if method.kind == "graph" else method.rank_peers(context, self.state, trained, t)
        )
        meeting = self._meet(preferences, t)
        traffic = meeting.said + method.cost(context, meeting.to, meeting.by)
        if not self.ledger.affords(traffic):
            # That the plan is too dear is known once it is made: its messages were sent.
            return self._rested(trained(), t, Rest.BUDGET, meeting.said.control)
        after = trained()
        shared = method.wire.shared(context)
        sent, start = method.sent(self.state, after)[:, :shared], context.learner.start
        honest = sent
        if self.attackers is not None:
            sent = self.attackers.sent(sent, method.sent(self.state, self.state)[:, :shared], context, t)
        arrived = method.wire.deliver(context, sent, t)
        if self.attackers is not None:
            arrived = self.attackers.arrived(sent, arrived)
        far = distances(arrived, start)
        own = far if self.attackers is None else distances(honest, start)
        trusted = plausible(far[meeting.by], own[meeting.to])
        meeting = meeting.only(trusted, np.isfinite(far))
        listeners = np.bincount(meeting.by, minlength=context.n)
        notes = method.note(context, after, listeners)
        received = Received(meeting.to, meeting.by, arrived, notes, preferences)
        step = method.learn(context, self.state, after, received, t)
        degrees = np.bincount(meeting.to, minlength=context.n)
        result = RoundResult(traffic, degrees, meeting.rest, meeting.trail, step.answers)
        attackers = None if self.attackers is None else self.attackers.hear(arrived, meeting.to, meeting.by)
        return replace(self, state=step.state, unpaid=False, attackers=attackers), result

    def _meet(self, preferences: Preferences, t: int) -> _Meeting:
        """Who hears whom, and what was said to find that out."""
        method, context, n = cast(PeerMethod, self.method), self.context, self.context.n
        entries = 0 if context.published is None else context.published.shape[1]
        said = bytes_of.directory(n, entries) if self.unpaid and entries else Traffic()
        if preferences.publishing:
            said += bytes_of.directory(n, preferences.publishing)
        if method.kind == "mutual":
            plan = peers.agree(method, context, preferences, t)
            said += bytes_of.pairs(len(plan.pairs), 0, plan.proposals)
            trail = None if preferences.trail is None else preferences.trail(plan)
            first, second = plan.pairs[:, 0], plan.pairs[:, 1]
            to, by = np.concatenate([first, second]), np.concatenate([second, first])
            return _Meeting(to, by, plan.rest, said, trail)
        if method.kind == "graph":
            to, by = method.transfers(context, t)
        else:
            chosen = [list(listed[: method.capacity]) for listed in preferences.rankings]
            to = np.repeat(np.arange(n), [len(each) for each in chosen])
            by = np.array([j for each in chosen for j in each], dtype=np.int64)
            said += Traffic(control=len(by) * CONTROL_MESSAGE)  # a request each
        hears = np.bincount(to, minlength=n)
        rest = np.where(hears > 0, Rest.NOT, Rest.NO_CANDIDATES).astype(np.int8)
        trail = None
        if preferences.trail is not None:
            # Whoever is asked is heard.
            answer = np.full(len(to), Answer.ACCEPTED, dtype=np.int8)
            asked = np.zeros((n, len(Answer)), dtype=np.int64)
            asked[:, Answer.ACCEPTED] = hears
            trail = preferences.trail(
                MatchingPlan(n, np.stack([to, by], axis=1), to, by, answer, rest, asked)
            )
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
