"""What a site learns in a round: it trains on its own rows, and makes of what arrived what the method says.

These are the functions that the simulation runs for all centers, here for the one that has its rows in this
place. A finished round is one transaction of the store.

A site that has finished a round need not wait for the others to train for the next one: what its training
starts from is known to it. So it trains ahead, and takes what came of it when the next round begins, if that
starts from the same state among the same members; else it trains anew. Nothing leaves a site by that.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from abps.core import protocol
from abps.core.errors import RequestError
from abps.core.matching import Rest
from abps.methods.base import Alarm, Context
from abps.methods.masked_rounds import summands
from abps.methods.peers import Preferences, Received, StepResult
from abps.methods.star import StarMethod
from abps.methods.state_bytes import freeze
from abps.models.metrics import labels_of, log_loss
from abps.models.outcome_scores import main_score
from abps.sites.node.context import SiteContext
from abps.sites.node.masked_sums import MaskedSums
from abps.sites.node.star_client import StarClient
from abps.sites.store.rows import AlarmRow, Evidence, RoundRecord


@dataclass
class _Ahead:
    """Training for a round that has not begun, and what it started from."""

    round: int
    state: Any
    context: Context
    done: threading.Event = field(default_factory=threading.Event)
    trained: Any = None


class Learning:
    """A site's training, mixing and judging, round by round."""

    def __init__(self, site_context: SiteContext, server: StarClient, sums: MaskedSums) -> None:
        self.site_context, self._server, self._sums = site_context, server, sums
        self._busy = threading.RLock()  # one computation at a time: they share their room
        self._ahead: _Ahead | None = None
        self.used_ahead = 0  # rounds whose training was there when they began

    def look_ahead(self, round: int) -> None:
        """Train for the next round in a thread, where nothing that it starts from can still come in."""
        site_context = self.site_context
        if (
            round > site_context.agreement.rounds
            or site_context.purse is not None
            or site_context.method.announces
        ):
            return
        ahead = self._ahead = _Ahead(round, site_context.state, site_context.context)

        def work() -> None:
            try:
                with self._busy:
                    before = self._heard_of(ahead.state, ())
                    ahead.trained = site_context.method.train(ahead.context, before, round, False)
            finally:
                ahead.done.set()

        threading.Thread(target=work, name="abps-ahead", daemon=True).start()

    def _trained_ahead(self, round: int, context: Context, alone: bool) -> Any:
        """What training ahead came to, if it started from what the round starts from; else None."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.round != round or alone or self.site_context.round.news:
            return None
        if ahead.state is not self.site_context.state or ahead.context is not context:
            return None
        ahead.done.wait()
        self.used_ahead += ahead.trained is not None
        return ahead.trained

    def train(self, round: int, alone: bool) -> None:
        """The local epochs of a round, and then an opinion of the members.

        alone: nothing will be exchanged any more.
        """
        site_context, now = self.site_context, self.site_context.round
        if site_context.need(round, True, "begun") and now.trained is not None:
            raise RequestError(
                f"{site_context.name} has trained in round {round}; the conductor is out of step"
            )
        method, context, before = site_context.method, site_context.context, self._before()
        if now.resting:  # nothing more is learned from rows, so nothing new can leave
            now.trained = before
            return
        trained = self._trained_ahead(round, context, alone)
        if trained is None:
            with self._busy:
                trained = method.train(context, before, round, alone)
        frames: list[bytes] = []
        preferences: Preferences | None = None
        if method.kind == "star":
            star = cast(StarMethod, method)
            messages = self._server.messages(before, trained, round)
            if star.privacy.secure and star.adds is not None and messages:
                rows = site_context.data.train.sizes.astype(np.float64)
                self._sums.summand = summands(messages, rows, star.adds)[0]
            elif not star.privacy.secure:
                frames = self._server.frames(messages, trained, round)
        elif site_context.by_peers and not alone and site_context.peer_method.exchanges(round):
            frames = [site_context.pack(site_context.peer_method.sent(before, trained), round)]
            if method.kind != "graph":
                preferences = site_context.peer_method.rank_peers(context, before, lambda: trained, round)
        with site_context.lock:
            now.trained, now.frames, now.preferences = trained, frames, preferences
            if method.kind == "graph":
                to, by = site_context.links(round)
                me = int(context.local_index[0])
                now.asked = [site_context.members[k] for k in by[to == me]]
                now.listeners = {site_context.members[k] for k in to[by == me]}

    def finish(self, round: int, rest: str) -> float:
        """Mix, give credit, update the beliefs, and write the round down. Returns the validation score.

        rest: why nothing was exchanged (the budget), if so.
        """
        site_context, now = self.site_context, self.site_context.round
        trained = site_context.need(round, now.trained, "a trained model")
        rest = Rest.PRIVACY.words if now.resting else rest
        with site_context.lock:
            now.talks, _ = protocol.seal(now.talks)
            partners = () if rest else self.received()
        with self._busy:
            learned = self._learn(round, self._before(), trained, partners, bool(rest))
        value = self.score(learned.state, site_context.data.validation)
        worth, told = learned.utility, self._evidence(learned.state)
        seen = [] if worth is None else list(zip(worth.peer.tolist(), worth.value, worth.error))
        done = RoundRecord(
            round,
            learned.state.models[0],
            told,
            {site_context.members[k]: float(v) for k, v, _ in seen if np.isfinite(v)},
            partners,
            rest or ("" if partners else self._rest_cause().words),
            value,
            site_context.members,
            freeze(learned.state, ("models",)),
            tuple(AlarmRow(round, site_context.name, a.statistic, finite(a.p)) for a in learned.alarms),
            now.news,
            {site_context.members[k]: float(e) for k, _, e in seen if np.isfinite(e)},
        )
        if site_context.store.finish(done):
            site_context.state = learned.state
        return value

    def received(self) -> tuple[str, ...]:
        """Who this site had to do with: its partners, or those whose weights arrived."""
        now = self.site_context.round
        received = now.talks.partners if self.site_context.mutual else now.arrived
        return tuple(peer for peer in self.site_context.roster if peer in received)

    def score(self, state: Any, rows: Any) -> float:
        """The outcome's main score; no worse than -1, which says enough of an R²."""
        with self._busy:
            logits = self.site_context.method.logits(self.site_context.context, state, rows)
        value = main_score(logits, labels_of(rows))[0]
        return float(np.maximum(value, -1.0))

    def loss(self) -> float:
        """The mean loss on this site's validation rows."""
        site_context, rows = self.site_context, self.site_context.data.validation
        with self._busy:
            logits = site_context.method.logits(site_context.context, site_context.state, rows)
        return float(np.float32(log_loss(logits, labels_of(rows))[0]))

    def _before(self) -> Any:
        """The state that the round begins with: what the last one left, and the alarms since."""
        return self._heard_of(self.site_context.state, self.site_context.round.news)

    def _heard_of(self, state: Any, news: tuple[AlarmRow, ...]) -> Any:
        """A state after some alarms."""
        site_context = self.site_context
        if not site_context.by_peers:
            return state
        received = tuple(
            Alarm(site_context.members.index(a.site), a.statistic, np.nan if a.p is None else a.p, a.round)
            for a in news
            if a.site in site_context.members
        )
        return site_context.peer_method.hear(state, received)

    def _learn(
        self, round: int, before: Any, trained: Any, partners: tuple[str, ...], alone: bool
    ) -> StepResult:
        """The method's part of the end of a round."""
        site_context, now = self.site_context, self.site_context.round
        method, context = site_context.method, site_context.context
        if method.kind == "star" and self._server.down and not alone:
            star = cast(StarMethod, method)
            return StepResult(star.receive(context, before, trained, self._server.down, round))
        if alone or not site_context.by_peers:
            return StepResult(method.rest(context, before, trained, round))
        order = partners if site_context.mutual else now.asked
        senders = [peer for peer in order if peer in now.arrived]
        by = np.array([site_context.members.index(peer) for peer in senders], dtype=np.int64)
        # Pages that are not written to cost nothing.
        arrived = np.zeros((context.n, site_context.shared), dtype=np.float32)
        notes = np.zeros(context.n)
        for k, peer in zip(by.tolist(), senders):
            arrived[k] = now.arrived[peer]
            notes[k] = now.notes.get(peer, 0.0)
        listeners = now.talks.partners if site_context.mutual else now.listeners
        notes[context.local_index] = site_context.peer_method.note(
            context, trained, np.array([len(listeners)])
        )
        none = np.array([site_context.members.index(p) for p in order if p in now.refused], dtype=np.int64)
        received = Received(
            np.zeros(len(by), dtype=np.int64),
            by,
            arrived,
            notes,
            now.preferences,
            (np.zeros_like(none), none),
        )
        return site_context.peer_method.learn(context, before, trained, received, round)

    def _evidence(self, state: Any) -> dict[str, Evidence]:
        """What this site holds for and against its peers, for its owner to look at."""
        site_context = self.site_context
        if not site_context.by_peers:
            return {}
        place, gain, loss, count = site_context.peer_method.evidence(site_context.context, state)
        return {
            site_context.members[k]: Evidence(float(g), float(against), float(c))
            for k, g, against, c in zip(place.tolist(), gain, loss, count)
        }

    def _rest_cause(self) -> Rest:
        """Why nobody was heard in a round of exchange."""
        site_context, now = self.site_context, self.site_context.round
        if not site_context.by_peers:
            return Rest.NOT
        if not site_context.mutual:
            return Rest.UNREACHABLE if now.asked else Rest.NO_CANDIDATES
        if protocol.DECLINED in now.answers:
            return Rest.DECLINED
        if {protocol.FULL, protocol.BUSY} & set(now.answers):
            return Rest.ALL_FULL
        if protocol.UNREACHABLE in now.answers:
            return Rest.UNREACHABLE
        preferences = now.preferences
        if preferences is not None and preferences.wanted is not None and preferences.wanted[0]:
            return (
                Rest.NO_CANDIDATES if len(preferences.rankings[0]) else Rest.DECLINED
            )  # it wanted none of them
        return Rest.NO_CANDIDATES


def finite(value: float) -> float | None:
    """A number, or nothing where it is none."""
    return float(value) if np.isfinite(value) else None
