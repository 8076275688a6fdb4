"""PENS (Onoszko et al. 2021): first look at many random peers, then keep to those that were often the best.

Phase 1: a center hears ``sampled`` random peers, ranks their models by the loss on its own rows, averages its
own with the ``best`` of them, and counts whom it chose. Phase 2: its neighbours are those it chose more often
than chance would have it, T₁ best / (n - 1) times; it hears ``later`` random ones of them and averages all.
A center without any neighbour goes on with everybody (the authors' code would fail).

Their code evaluates the own model on the other's patients; the text, and this, the other's model on own ones.
With many centers and few rounds "more often than chance" means "once": half of the neighbours are luck.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import FROM_1, RequestError
from abps.lab.rivals.choosing import by_size, combine, drawn, losses, trail_with
from abps.methods.base import Context, Floats, Ints, Models, tried
from abps.methods.peers import PeerMethod, Preferences, Received, StepResult

#: The share of all rounds that the first phase takes, unless its rounds are set.
FIRST_PHASE = 0.3


@dataclass(frozen=True, eq=False)
class State(Models):
    """models: (r, P).  chosen: (r, n) how often each center chose each member in the first phase."""

    chosen: Floats


@dataclass(frozen=True)
class PENS(PeerMethod):
    """sampled, best: peers that a center hears in phase 1, and how many of them it averages with.

    first: rounds of phase 1; none: three in ten.  later: peers that a center hears in phase 2.
    """

    sampled: int = 10
    best: int = 2
    first: int | None = None
    later: int = 10

    limits: ClassVar = {"sampled": FROM_1, "best": FROM_1, "later": FROM_1, "first": FROM_1}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.best > self.sampled:
            raise RequestError(f"best={self.best}: no more than the {self.sampled} that are sampled")

    @property
    def grid(self) -> Mapping[str, tuple[Any, ...]]:
        """The learning rate and best."""
        return tried(self, best=(1, 2) if self.sampled > 1 else (1,))

    kind = "pull"

    @property
    def capacity(self) -> int:
        """The most that a center hears in a round."""
        return max(self.sampled, self.later)

    def looking(self, context: Context, t: int) -> bool:
        """Whether round t is one of phase 1."""
        first = max(1, round(FIRST_PHASE * context.horizon)) if self.first is None else self.first
        return t <= first

    def init(self, context: Context) -> State:
        """The common start; nobody was chosen."""
        return State(context.common_start(), np.zeros((context.r, context.n)))

    def rank_peers(self, context: Context, state: State, trained: Callable[[], Any], t: int) -> Preferences:
        """Random peers; later, random ones of the neighbours."""
        nobody_preferred = np.zeros((context.r, context.n))
        if self.looking(context, t):
            rankings, many = drawn(context, nobody_preferred, t), self.sampled
        else:
            rankings, many = drawn(context, nobody_preferred, t, neighbours(state.chosen)), self.later
        return Preferences([peers[:many] for peers in rankings], trail=trail_with(state.chosen))

    def learn(self, context: Context, state: State, trained: State, received: Received, t: int) -> StepResult:
        """Average with the best, and count them; later with all."""
        to, by, chosen = received.receiver, received.sender, state.chosen
        if self.looking(context, t):
            loss = losses(context, trained.models, received.arrived, to, by, "train")
            kept = best_of(to, loss, context.ids[by], self.best)
            to, by, chosen = to[kept], by[kept], chosen.copy()
            chosen[to, by] += 1
        mixed = combine(trained.models, received.arrived, to, by, by_size(context, to, by))
        return StepResult(State(mixed, chosen))


def best_of(to: Ints, loss: Floats, tie: NDArray[np.uint64], many: int) -> NDArray[np.bool_]:
    """(transfers,) whether a model is among the ``many`` best that its receiver heard."""
    order = np.lexsort((tie, loss, to))
    sorted_to = to[order]
    place = np.arange(len(to)) - np.searchsorted(sorted_to, sorted_to, side="left")
    kept = np.zeros(len(to), dtype=bool)
    kept[order] = place < many
    return kept


def neighbours(chosen: Floats) -> NDArray[np.bool_]:
    """(r, n) the members that each center chose more often than it would by chance; all, if there is none.

    By chance every other member is chosen as often: the choices that were made over the n - 1 others.
    """
    others = max(1, chosen.shape[1] - 1)
    often = chosen > chosen.sum(axis=1, keepdims=True) / others
    return np.where(often.any(axis=1, keepdims=True), often, True)
