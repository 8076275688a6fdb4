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
from abps.methods.base import Alarm, World
from abps.methods.memory import freeze
from abps.methods.peers import Heard, Learned, Opinion
from abps.methods.star import StarMethod, summands
from abps.models.metrics import labels_of, log_loss
from abps.models.outcome_scores import main_score
from abps.sites.masked_sums import MaskedSums
from abps.sites.outlook import Outlook
from abps.sites.store_rows import AlarmRow, Evidence, Finished
from abps.sites.with_server import WithServer
from abps.tensors import torch


@dataclass
class _Ahead:
    """Training for a round that has not begun, and what it started from."""

    round: int
    state: Any
    world: World
    done: threading.Event = field(default_factory=threading.Event)
    trained: Any = None


class Learning:
    """A site's training, mixing and judging, round by round."""

    def __init__(self, outlook: Outlook, server: WithServer, sums: MaskedSums) -> None:
        self.outlook, self._server, self._sums = outlook, server, sums
        self._busy = threading.RLock()  # one computation at a time: they share their room
        self._ahead: _Ahead | None = None
        self.used_ahead = 0  # rounds whose training was there when they began

    def look_ahead(self, round: int) -> None:
        """Train for the next round in a thread, where nothing that it starts from can still come in."""
        outlook = self.outlook
        asks = outlook.by_peers and outlook.peer_method.questions(round, outlook.agreement.rounds)
        if round > outlook.agreement.rounds or outlook.purse is not None or outlook.method.announces or asks:
            return
        ahead = self._ahead = _Ahead(round, outlook.state, outlook.world)

        def work() -> None:
            try:
                with self._busy:
                    before = self._heard_of(ahead.state, ())
                    ahead.trained = outlook.method.train(ahead.world, before, round, False)
            finally:
                ahead.done.set()

        threading.Thread(target=work, name="abps-ahead", daemon=True).start()

    def _trained_ahead(self, round: int, world: World, alone: bool) -> Any:
        """What training ahead came to, if it started from what the round starts from; else None."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.round != round or alone or self.outlook.round.news:
            return None
        if ahead.state is not self.outlook.state or ahead.world is not world:
            return None
        ahead.done.wait()
        self.used_ahead += ahead.trained is not None
        return ahead.trained

    def train(self, round: int, alone: bool) -> None:
        """The local epochs of a round, and then an opinion of the members.

        alone: nothing will be exchanged any more.
        """
        outlook, now = self.outlook, self.outlook.round
        if outlook.need(round, True, "begun") and now.trained is not None:
            raise RequestError(f"{outlook.name} has trained in round {round}; the conductor is out of step")
        method, world, before = outlook.method, outlook.world, self._before()
        if now.resting:  # nothing more is learned from rows, so nothing new can leave
            now.trained = before
            return
        trained = self._trained_ahead(round, world, alone)
        if trained is None:
            with self._busy:
                trained = method.train(world, before, round, alone)
        frames: list[bytes] = []
        opinion: Opinion | None = None
        if method.kind == "star":
            star = cast(StarMethod, method)
            messages = self._server.messages(before, trained, round)
            if star.privacy.secure and star.adds is not None and messages:
                rows = outlook.data.train.sizes.astype(np.float64)
                self._sums.summand = summands(messages, rows, star.adds)[0]
            elif not star.privacy.secure:
                frames = self._server.frames(messages, trained, round)
        elif outlook.by_peers and not alone and outlook.peer_method.exchanges(round):
            frames = [outlook.pack(outlook.peer_method.sent(before, trained), round)]
            if method.kind != "graph":
                opinion = outlook.peer_method.opine(world, before, lambda: trained, round)
        with outlook.lock:
            now.trained, now.frames, now.opinion = trained, frames, opinion
            if method.kind == "graph":
                to, by = outlook.links(round)
                me = int(world.here[0])
                now.asked = [outlook.members[k] for k in by[to == me]]
                now.listeners = {outlook.members[k] for k in to[by == me]}

    def finish(self, round: int, rest: str) -> float:
        """Mix, give credit, update the beliefs, and write the round down. Returns the validation score.

        rest: why nothing was exchanged (the budget), if so.
        """
        outlook, now = self.outlook, self.outlook.round
        trained = outlook.need(round, now.trained, "a trained model")
        rest = Rest.PRIVACY.words if now.resting else rest
        with outlook.lock:
            now.talks, _ = protocol.seal(now.talks)
            partners = () if rest else self.heard()
        with self._busy:
            learned = self._learn(round, self._before(), trained, partners, bool(rest))
        value = self.score(learned.state, outlook.data.validation)
        worth, told = learned.worth, self._evidence(learned.state)
        seen = [] if worth is None else list(zip(worth.peer.tolist(), worth.value, worth.error))
        done = Finished(
            round,
            learned.state.models[0].numpy(),
            told,
            {outlook.members[k]: float(v) for k, v, _ in seen if np.isfinite(v)},
            partners,
            rest or ("" if partners else self._rest_cause().words),
            value,
            outlook.members,
            freeze(learned.state, ("models",)),
            tuple(AlarmRow(round, outlook.name, a.statistic, finite(a.p)) for a in learned.alarms),
            now.news,
            {outlook.members[k]: float(e) for k, _, e in seen if np.isfinite(e)},
        )
        if outlook.store.finish(done):
            outlook.state = learned.state
        return value

    def heard(self) -> tuple[str, ...]:
        """Who this site had to do with: its partners, or those whose weights arrived."""
        now = self.outlook.round
        heard = now.talks.partners if self.outlook.mutual else now.arrived
        return tuple(peer for peer in self.outlook.roster if peer in heard)

    def score(self, state: Any, rows: Any) -> float:
        """The outcome's main score; no worse than -1, which says enough of an R²."""
        with self._busy:
            logits = self.outlook.method.logits(self.outlook.world, state, rows)
        value = main_score(logits, labels_of(rows))[0]
        return float(np.maximum(value, -1.0))

    def loss(self) -> float:
        """The mean loss on this site's validation rows."""
        outlook, rows = self.outlook, self.outlook.data.validation
        with self._busy:
            logits = outlook.method.logits(outlook.world, outlook.state, rows)
        return float(np.float32(log_loss(logits, labels_of(rows))[0]))

    def _before(self) -> Any:
        """The state that the round begins with: what the last one left, and the alarms since."""
        return self._heard_of(self.outlook.state, self.outlook.round.news)

    def _heard_of(self, state: Any, news: tuple[AlarmRow, ...]) -> Any:
        """A state after some alarms."""
        outlook = self.outlook
        if not outlook.by_peers:
            return state
        heard = tuple(
            Alarm(outlook.members.index(a.site), a.statistic, np.nan if a.p is None else a.p, a.round)
            for a in news
            if a.site in outlook.members
        )
        return outlook.peer_method.hear(state, heard)

    def _learn(
        self, round: int, before: Any, trained: Any, partners: tuple[str, ...], alone: bool
    ) -> Learned:
        """The method's part of the end of a round."""
        outlook, now = self.outlook, self.outlook.round
        method, world = outlook.method, outlook.world
        if method.kind == "star" and self._server.down and not alone:
            star = cast(StarMethod, method)
            return Learned(star.receive(world, before, trained, self._server.down, round))
        if alone or not outlook.by_peers:
            return Learned(method.rest(world, before, trained, round))
        order = partners if outlook.mutual else now.asked
        senders = [peer for peer in order if peer in now.arrived]
        by = np.array([outlook.members.index(peer) for peer in senders], dtype=np.int64)
        # Pages that are not written to cost nothing.
        arrived = torch.from_numpy(np.zeros((world.n, outlook.shared), dtype=np.float32))
        notes = np.zeros(world.n)
        for k, peer in zip(by.tolist(), senders):
            arrived[k] = now.arrived[peer]
            notes[k] = now.notes.get(peer, 0.0)
        listeners = now.talks.partners if outlook.mutual else now.listeners
        notes[world.here] = outlook.peer_method.note(world, trained, np.array([len(listeners)]))
        none = np.array([outlook.members.index(p) for p in order if p in now.refused], dtype=np.int64)
        heard = Heard(
            np.zeros(len(by), dtype=np.int64), by, arrived, notes, now.opinion, (np.zeros_like(none), none)
        )
        return outlook.peer_method.learn(world, before, trained, heard, round)

    def _evidence(self, state: Any) -> dict[str, Evidence]:
        """What this site holds for and against its peers, for its owner to look at."""
        outlook = self.outlook
        if not outlook.by_peers:
            return {}
        place, gain, loss, count = outlook.peer_method.evidence(outlook.world, state)
        return {
            outlook.members[k]: Evidence(float(g), float(against), float(c))
            for k, g, against, c in zip(place.tolist(), gain, loss, count)
        }

    def _rest_cause(self) -> Rest:
        """Why nobody was heard in a round of exchange."""
        outlook, now = self.outlook, self.outlook.round
        if not outlook.by_peers:
            return Rest.NOT
        if not outlook.mutual:
            return Rest.UNREACHABLE if now.asked else Rest.NO_CANDIDATES
        if protocol.DECLINED in now.answers:
            return Rest.DECLINED
        if {protocol.FULL, protocol.BUSY} & set(now.answers):
            return Rest.ALL_FULL
        if protocol.UNREACHABLE in now.answers:
            return Rest.UNREACHABLE
        opinion = now.opinion
        if opinion is not None and opinion.wanted is not None and opinion.wanted[0]:
            return Rest.NO_CANDIDATES if len(opinion.rankings[0]) else Rest.DECLINED  # it wanted none of them
        return Rest.NO_CANDIDATES


def finite(value: float) -> float | None:
    """A number, or nothing where it is none."""
    return float(value) if np.isfinite(value) else None
