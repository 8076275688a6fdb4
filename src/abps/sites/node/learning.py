"""What a site learns in a round: it trains on its own rows, and updates its state by what arrived.

These are the functions that the simulation runs for all centers, here for the one whose rows are here. A
finished round is one transaction of the store.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from abps.core import protocol
from abps.core.errors import RequestError
from abps.core.matching import Rest
from abps.methods.coordinated import CoordinatedMethod
from abps.methods.peers import Preferences, Received, StepResult
from abps.methods.star import StarMethod, summands
from abps.methods.state_bytes import freeze
from abps.models.metrics import labels_of
from abps.models.outcome_scores import main_score
from abps.sites.node.context import SiteContext
from abps.sites.node.exchanges import Exchanges
from abps.sites.node.masked_sums import MaskedSums
from abps.sites.node.star_client import StarClient
from abps.sites.store.rows import Evidence, RoundRecord


class Learning:
    """A site's training, updates and scores, round by round."""

    def __init__(
        self, context: SiteContext, star: StarClient, sums: MaskedSums, exchanges: Exchanges
    ) -> None:
        self.context, self._star, self._sums, self._exchanges = context, star, sums, exchanges
        self._busy = threading.RLock()  # one computation at a time: they share buffers

    def train(self, round: int) -> None:
        """The local epochs of a round, and then the ranking of the members."""
        context, now = self.context, self.context.round
        if context.need(round, True, "begun") and now.trained is not None:
            raise RequestError(f"{context.name} has trained in round {round}; the scheduler is out of step")
        method, before = context.method, context.state
        if now.resting:  # nothing more is learned from rows, so nothing new can leave
            now.trained = before
            return
        with self._busy:
            trained = method.train(context.method_context, before, round, method.kind == "alone")
        frames: list[bytes] = []
        preferences: Preferences | None = None
        if method.kind == "star":
            star = cast(StarMethod, method)
            messages = self._star.messages(before, trained, round)
            if star.privacy.secure and star.adds is not None and messages:
                rows = context.data.train.sizes.astype(np.float64)
                self._sums.summand = summands(messages, rows, star.adds)[0]
            elif not star.privacy.secure:
                frames = self._star.frames(messages, round)
        elif context.pairs and context.peer_method.exchanges(round):
            frames = [context.pack(context.peer_method.sent(before, trained), round)]
            preferences = context.peer_method.rank_peers(
                context.method_context, before, lambda: trained, round
            )
        with context.lock:
            now.trained, now.frames, now.preferences = trained, frames, preferences

    def finish(self, round: int, rest: Rest) -> float:
        """Update the state, and write the round down. Returns the validation score.

        rest: why nothing was exchanged, if the scheduler knows.
        """
        context, now = self.context, self.context.round
        coordinated = context.method.kind == "coordinated"
        trained = context.state if coordinated else context.need(round, now.trained, "a trained model")
        context.need(round, True, "begun")
        rest = Rest.PRIVACY if now.resting else rest
        with context.lock:
            now.talks, _ = protocol.seal(now.talks)
            partners = () if rest is not Rest.NOT else self.received()
        with self._busy:
            result = self._step(round, trained, partners, rest)
        value = self.score(result.state, context.data.validation)
        utility = result.utility
        seen = [] if utility is None else list(zip(utility.peer.tolist(), utility.value, utility.error))
        if rest is Rest.NOT:
            rest = self._rest_cause(result.state, partners)
        done = RoundRecord(
            round,
            result.state.models[0],
            self._evidence(result.state),
            {context.members[k]: float(v) for k, v, _ in seen if np.isfinite(v)},
            partners,
            rest.words,
            value,
            context.members,
            freeze(result.state, ("models",)),
            {context.members[k]: float(e) for k, _, e in seen if np.isfinite(e)},
            dict(self._exchanges.applied),
        )
        if context.store.finish(done):
            context.state = result.state
        return value

    def received(self) -> tuple[str, ...]:
        """The peers of this round: partners, or the members of the exchange."""
        context, now = self.context, self.context.round
        if context.method.kind == "coordinated":
            there = context.others - now.silent if self._exchanges.close() is not None else frozenset()
        else:
            there = now.talks.partners if context.pairs else frozenset()
        return tuple(peer for peer in context.roster if peer in there)

    def score(self, state: Any, rows: Any) -> float:
        """The outcome's main score; at least -1, which is enough to know of an R²."""
        with self._busy:
            logits = self.context.method.logits(self.context.method_context, state, rows)
        value = main_score(logits, labels_of(rows))[0]
        return float(np.maximum(value, -1.0))

    def test_score(self) -> float:
        """The current model on this site's own test rows; it stays at the site."""
        return self.score(self.context.state, self.context.data.test)

    def _step(self, round: int, trained: Any, partners: Sequence[str], rest: Rest) -> StepResult:
        """The method's part of the end of a round."""
        context, now = self.context, self.context.round
        method, world, before = context.method, context.method_context, context.state
        if method.kind == "coordinated":
            after = self._exchanges.close()
            return StepResult(method.rest(world, before, before, round) if after is None else after)
        if method.kind == "star" and self._star.down and rest is Rest.NOT:
            star = cast(StarMethod, method)
            return StepResult(star.receive(world, before, trained, self._star.down, round))
        if rest is not Rest.NOT or not context.pairs:
            return StepResult(method.rest(world, before, trained, round))
        senders = [peer for peer in partners if peer in now.arrived]
        by = np.array([context.members.index(peer) for peer in senders], dtype=np.int64)
        # Pages that are not written to cost nothing.
        arrived = np.zeros((world.n, context.shared), dtype=np.float32)
        for k, peer in zip(by.tolist(), senders):
            arrived[k] = now.arrived[peer]
        none = np.array([context.members.index(p) for p in partners if p in now.refused], dtype=np.int64)
        received = Received(
            np.zeros(len(by), dtype=np.int64),
            by,
            arrived,
            np.zeros(world.n),
            now.preferences,
            (np.zeros_like(none), none),
        )
        return context.peer_method.learn(world, before, trained, received, round)

    def _evidence(self, state: Any) -> dict[str, Evidence]:
        """The evidence for and against each peer, for the site's owner."""
        context = self.context
        if not context.pairs:
            return {}
        place, gain, loss, count = context.peer_method.evidence(context.method_context, state)
        return {
            context.members[k]: Evidence(float(g), float(against), float(c))
            for k, g, against, c in zip(place.tolist(), gain, loss, count)
        }

    def _rest_cause(self, state: Any, partners: Sequence[str]) -> Rest:
        """Why this site keeps its own model, if it does."""
        context, now = self.context, self.context.round
        if context.method.kind == "coordinated":
            method = cast(CoordinatedMethod, context.method)
            if not partners:
                return Rest.UNREACHABLE
            return Rest(int(method.resting(context.method_context, state)[0]))
        if partners or not context.pairs:
            return Rest.NOT
        if protocol.DECLINED in now.answers:
            return Rest.DECLINED
        if {protocol.FULL, protocol.BUSY} & set(now.answers):
            return Rest.ALL_FULL
        if protocol.UNREACHABLE in now.answers:
            return Rest.UNREACHABLE
        preferences = now.preferences
        if preferences is not None and preferences.wanted is not None and preferences.wanted[0]:
            # It had candidates; without a ranking it wanted none of them.
            return Rest.NO_CANDIDATES if len(preferences.rankings[0]) else Rest.DECLINED
        return Rest.NO_CANDIDATES
