"""ABPS: Adaptive Bayesian Partner Selection, read literally where the paper is clear.

A round: every center trains; centers propose to peers ranked by their beliefs, accept, reject or rest;
partners swap the shared part of their models and average; each center credits its partners by the Shapley
value of its validation AUROC and updates its beliefs. Resting centers train all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from abps.core import credit, goals
from abps.core.arrays import Weighting, Weights, lerp, shares
from abps.core.beliefs import Beliefs
from abps.core.errors import FROM_0_BELOW_1, FROM_1, RequestError, validate
from abps.core.goals import Candidates, Goal, candidates, group_numbers
from abps.core.selection import Selection
from abps.methods.base import Context, Floats, Ints, Models, Published
from abps.methods.peers import (
    PartnerExchange,
    PeerMethod,
    Preferences,
    Received,
    Score,
    StepResult,
    shapley_credit,
)
from abps.methods.proposals import rank_by_beliefs
from abps.models.metrics import auroc, log_loss

if TYPE_CHECKING:
    from abps.data.prepare import Prepared


@dataclass(frozen=True)
class Filter:
    """Which peers a center considers at all.

    goal: none, homogeneity, diversity or alignment; ``goals`` gives one per center instead, and
    ``goal_function`` is a user's own (centers (a, k), peers (b, k)) -> (a, b).
    keep: share of pairs that stays in; tau_scope: over all pairs, or of each center's peers.
    metadata: base (outcome rate, size, year) or full (with the descriptors' prevalences).
    meta_scale: raw (the paper) or zscore.  mutual_filter: the receiver's goal must admit the proposer too.
    """

    goal: str = "none"
    goals: tuple[str, ...] = ()
    goal_function: Goal | None = None
    keep: float = 0.25
    tau_scope: Literal["global_pairs", "per_center"] = "global_pairs"
    metadata: Literal["base", "full"] = "base"
    meta_scale: Literal["raw", "zscore"] = "raw"
    mutual_filter: bool = True

    def __post_init__(self) -> None:
        validate(self)
        for name in (self.goal, *self.goals):
            if name != "none":
                goals.GOALS.find(name)

    @property
    def compares(self) -> bool:
        return self.goal != "none" or bool(self.goals) or self.goal_function is not None

    def screen(self, context: Context) -> Candidates:
        if not self.compares or context.published is None:
            return Candidates()
        vectors = goals.scaled(context.published, self.meta_scale)
        return candidates(vectors, self._goals(context.n), self.keep, self.tau_scope)

    def entries(self, data: Prepared) -> int:
        """How many entries of its metadata vector a center publishes."""
        return data.base_metadata if self.metadata == "base" else data.metadata.shape[1]

    def _goals(self, n: int) -> list[Goal]:
        if self.goal_function is not None:
            return [self.goal_function] * n
        if self.goals:
            if len(self.goals) != n:
                raise RequestError(f"goals: {len(self.goals)} given for {n} centers; give one per center")
            return [goals.anybody if g == "none" else goals.GOALS.find(g) for g in self.goals]
        return [goals.GOALS.find(self.goal)] * n


#: The utility of a model, measured on a center's own validation rows.
Utility = Literal["auroc", "log_loss"]
UTILITIES: dict[str, Score] = {
    "auroc": auroc,
    # Log-loss differences are of the size of AUROC differences here, and defined with one class only.
    "log_loss": lambda logits, labels: -log_loss(logits, labels),
}


@dataclass(frozen=True)
class Credit:
    """How partners are credited.

    utility: auroc or log_loss, on validation rows.  phi_min, phi_max: the range of the affine clip.
    undefined_utility: skip (no observation) or half (counts as 0.5).
    tmc_permutations, tmc_tol: sampled Shapley values above five partners.
    """

    utility: Utility = "auroc"
    phi_min: float = -0.1
    phi_max: float = 0.1
    undefined_utility: Literal["skip", "half"] = "skip"
    tmc_permutations: int = 8
    tmc_tol: float = 1e-3

    def __post_init__(self) -> None:
        validate(self)
        if not self.phi_min < self.phi_max:
            raise RequestError(f"phi_min={self.phi_min} must be below phi_max={self.phi_max}")

    def value(self, phi: Floats) -> Floats:
        """Shapley values as observations in [0, 1]; NaN where there was nothing to observe."""
        value = credit.clip_affine(phi, self.phi_min, self.phi_max)
        return np.where(np.isnan(value), 0.5, value) if self.undefined_utility == "half" else value


@dataclass(frozen=True, eq=False)
class State(Models):
    beliefs: Beliefs


@dataclass(frozen=True)
class ABPS(PeerMethod):
    """selection: ranking and acceptance.  filter: goals.  credit: utility.  wire: codec, private layers.

    weighting: size or uniform, of the average with partners.
    smoothing: share of its previous shared layers that a center keeps after mixing (the paper's EMA).
    adopt: always, or if_helpful: keep the mix only where it does not lower the own validation utility.
    """

    selection: Selection = field(default_factory=Selection)
    filter: Filter = field(default_factory=Filter)
    credit: Credit = field(default_factory=Credit)
    weighting: Weighting = "size"
    smoothing: float = 0.0
    adopt: Literal["always", "if_helpful"] = "always"

    limits: ClassVar = {"smoothing": FROM_0_BELOW_1}

    kind = "mutual"

    @property
    def capacity(self) -> int:
        return self.selection.kappa

    def init(self, context: Context) -> State:
        return State(context.common_start(), Beliefs(context.n, self.selection.prior))

    def publish(self, context: Context) -> Published:
        """The metadata vector, unless no decision depends on it."""
        if self.selection.policy == "random" and not self.filter.compares:
            return super().publish(context)
        entries = self.filter.entries(context.data)
        return Published(context.data.metadata_names[:entries], context.data.metadata[:, :entries])

    def derived(self, context: Context) -> Candidates:
        return self.filter.screen(context)

    def begin(self, context: Context, state: State, t: int, alone: bool) -> Callable[[], Models]:
        wait = context.learner.begin(state.models, t)
        return lambda: Models(wait())

    def rest(self, context: Context, state: State, trained: Models, t: int) -> State:
        return replace(state, models=trained.models)

    def rank_peers(self, context: Context, state: State, trained: Callable[[], Any], t: int) -> Preferences:
        return rank_by_beliefs(context, self.selection, state.beliefs, self.filter.mutual_filter, t)

    def learn(
        self, context: Context, state: State, trained: Models, received: Received, t: int
    ) -> StepResult:
        partners = received.partners(context.r)
        weights = shares(context.sizes(), self.weighting)
        exchange = PartnerExchange(context, trained.models, received.arrived, weights, partners)
        mixed = exchange.mix()
        center, peer, phi = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
        if self.selection.policy != "random" or self.adopt == "if_helpful":
            budget = (self.credit.tmc_permutations, self.credit.tmc_tol)
            center, peer, phi = shapley_credit(exchange, mixed, UTILITIES[self.credit.utility], t, *budget)
        beliefs = state.beliefs.observe(center, peer, self.credit.value(phi))
        models = mixed.models
        if self.adopt == "if_helpful":
            # Shapley values add up to U(all partners) - U(nobody): the gain by the whole mix.
            gain = np.bincount(center, weights=phi, minlength=len(models))
            models = np.where((gain < 0)[:, None], trained.models, models)
        if self.smoothing:
            models = self._smooth(models, state.models, partners, received.arrived.shape[1])
        plain = self.adopt == "always" and not self.smoothing
        return StepResult(State(models, beliefs), (mixed.validation, mixed.test) if plain else None)

    def _smooth(self, models: Weights, before: Weights, partners: Sequence[Ints], shared: int) -> Weights:
        """(r, P) with a share of the shared layers before the round, at centers that had partners."""
        met = np.array([len(mine) > 0 for mine in partners])[:, None]
        smooth = lerp(models[:, :shared], before[:, :shared], self.smoothing)
        return np.concatenate([np.where(met, smooth, models[:, :shared]), models[:, shared:]], axis=1)


@dataclass(frozen=True)
class RandomPairs(PeerMethod):
    """The control: ABPS without its choice, at the same capacity and bytes; ``candidates=group`` draws
    partners inside the declared group alone, which is what an oracle of the groups could do at best.

    kappa: partners of a center in a round.  weighting: size or uniform, of the average with partners.
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
