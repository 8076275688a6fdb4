"""Random pairs: ABPS without its choice. Partners are drawn at random, everything else is the same.

This is the control for any method that chooses partners: same capacity, same bytes. ``candidates=group``
draws partners only inside the declared group, which is what an oracle of the groups could do at best.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from abps.core.arrays import Weighting, shares
from abps.core.beliefs import Beliefs
from abps.core.errors import FROM_1
from abps.core.goals import Candidates, group_numbers
from abps.core.selection import Selection
from abps.methods.base import Context, Models
from abps.methods.peers import PartnerExchange, PeerMethod, Preferences, Received, StepResult
from abps.methods.proposals import rank_by_beliefs


@dataclass(frozen=True)
class RandomPairs(PeerMethod):
    """kappa: partners of a center in a round.  candidates: all peers, or those of the same declared group.

    weighting: size or uniform, of the average with partners.
    """

    kappa: int = 3
    candidates: Literal["all", "group"] = "all"
    weighting: Weighting = "size"

    limits: ClassVar = {"kappa": FROM_1}

    kind = "mutual"

    @property
    def capacity(self) -> int:
        return self.kappa

    def derived(self, context: Context) -> Candidates:
        return Candidates(group=group_numbers(context.data.groups) if self.candidates == "group" else None)

    def begin(self, context: Context, state: Models, t: int, alone: bool) -> Callable[[], Models]:
        wait = context.learner.begin(state.models, t)
        return lambda: Models(wait())

    def rank_peers(self, context: Context, state: Models, trained: Callable[[], Any], t: int) -> Preferences:
        """Every center ranks the others in an order of its own, drawn anew in every round."""
        config = Selection(kappa=self.kappa, policy="random")
        return rank_by_beliefs(context, config, Beliefs(context.n), True, t)

    def learn(
        self, context: Context, state: Models, trained: Models, received: Received, t: int
    ) -> StepResult:
        weights, partners = shares(context.sizes(), self.weighting), received.partners(context.r)
        mixed = PartnerExchange(context, trained.models, received.arrived, weights, partners).mix()
        return StepResult(Models(mixed.models), answers=(mixed.validation, mixed.test))
