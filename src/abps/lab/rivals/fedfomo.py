"""FedFomo (Zhang et al. 2021): models of others that lower the own validation loss, weighed by how much.

A center hears the ``peers`` models of the largest preference, each place being drawn at random with a
chance that falls from ``explore`` to 0 over the rounds. Of each, and of its own trained model, it works out

    w_j = (L(x⁻) - L(x_j)) / |x_j - x⁻|

on its validation rows, x⁻ being its model before training; the positive ones, made to sum to one, are the
weights of its new model. Without a positive one it keeps its own trained model (the authors go back to x⁻
and lose the round). w / |sum of w| is added to its preferences.

A server holds all models and hands them on: 1 up and ``peers`` down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from abps.core import streams
from abps.core.errors import FROM_1
from abps.core.ledger import Traffic
from abps.lab.rivals.choosing import combine, losses, own_losses, trail_with
from abps.methods.base import Context, Floats, Ints, Models
from abps.methods.peers import PeerMethod, Preferences, Received, StepResult


@dataclass(frozen=True, eq=False)
class State(Models):
    """models: (r, P).  preference: (r, n)."""

    preference: Floats


@dataclass(frozen=True)
class FedFomo(PeerMethod):
    """peers: models of others that a center hears.  explore: the chance of a random one, at first."""

    peers: int = 5
    explore: float = 0.3

    limits: ClassVar = {"peers": FROM_1, "explore": (0.0, 1.0)}
    searched: ClassVar = {"explore": (0.1, 0.3)}

    kind = "pull"

    @property
    def capacity(self) -> int:
        """The number of models heard."""
        return self.peers

    def init(self, context: Context) -> State:
        """The common start; nobody is preferred."""
        return State(context.common_start(), np.zeros((context.r, context.n)))

    def rank_peers(self, context: Context, state: State, trained: Callable[[], Any], t: int) -> Preferences:
        """The preferred ones, now and then a random one in their place."""
        mine = context.ids[:, None]
        luck = streams.uniforms(context.seed, "tie-break", t, mine, context.ids[None, :])
        order = np.lexsort((luck, np.where(context.self_mask, np.inf, -state.preference)), axis=-1)[:, :-1]
        many = min(self.peers, context.n - 1)
        chance = self.explore * max(0.0, 1.0 - t / context.horizon)
        dare = streams.uniforms(context.seed, "explore", t, mine, np.arange(many)[None, :]) < chance
        # A random place of what is left: the same numbers for all who have the same peers left.
        which = streams.uniforms(context.seed, "explore-peer", t, mine, context.ids[None, :])
        rankings = []
        for i in range(context.r):
            left = order[i].tolist()
            chosen = []
            for slot in range(many):
                pick = min(left, key=lambda j: which[i, j]) if dare[i, slot] else left[0]
                left.remove(pick)
                chosen.append(pick)
            rankings.append(chosen)
        return Preferences(rankings, trail=trail_with(state.preference))

    def cost(self, context: Context, to: Ints, by: Ints) -> Traffic:
        """Over a server: one model up from everybody, and down those asked for."""
        payload = self.wire.payload(context)
        directed = (context.n + len(to)) * payload
        return Traffic((directed + 1) // 2, directed)

    def learn(self, context: Context, state: State, trained: State, received: Received, t: int) -> StepResult:
        """Weigh what arrived, and the own model, by what each takes off the loss."""
        to, by, before = received.receiver, received.sender, own_losses(context, state.models, "validation")
        shared = received.arrived.shape[1]
        base = state.models[:, :shared]
        theirs = gains(
            before[to] - losses(context, trained.models, received.arrived, to, by, "validation"),
            np.linalg.norm((received.arrived[by] - base[to]).astype(np.float64), axis=1),
        )
        own = gains(
            before - own_losses(context, trained.models, "validation"),
            np.linalg.norm((trained.models[:, :shared] - base).astype(np.float64), axis=1),
        )
        weight = positive_shares(own, theirs, to)
        models = combine(trained.models, received.arrived, to, by, weight)
        total = np.abs(own + np.bincount(to, weights=theirs, minlength=context.r))
        preference = state.preference.copy()
        preference[to, by] += theirs / np.where(total[to] > 0, total[to], 1.0)
        return StepResult(State(models, preference))


def gains(drop: Floats, distance: Floats) -> Floats:
    """(k,) how much each model takes off the loss for how far away it is; 0 for a model that is no other."""
    return np.where(distance > 0, drop / np.where(distance > 0, distance, 1.0), 0.0)


def positive_shares(own: Floats, theirs: Floats, to: Ints) -> Floats:
    """(transfers,) the share of each model heard among those that help, the own one (r,) included; where none
    helps they are 0, and all is the own one's."""
    help_ = np.maximum(theirs, 0.0)
    total = np.maximum(own, 0.0) + np.bincount(to, weights=help_, minlength=len(own))
    return np.where(total[to] > 0, help_ / np.where(total[to] > 0, total[to], 1.0), 0.0)
