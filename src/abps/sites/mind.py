"""What a site thinks of its peers, and what it learns from an exchange: the method's part of a site.

The simulation's functions on the site's own row. Between rounds nothing is remembered here: beliefs,
observations, alarms and the watch for drift come from the site's store and go back to it, with the round
that changed them, in one transaction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from abps.core import protocol, selection
from abps.core.beliefs import Beliefs
from abps.core.matching import Answer
from abps.core.streams import center_ids
from abps.core.usefulness import Experience, Returns, Usefulness, believe
from abps.learn.metrics import Segments
from abps.methods.abps import ABPS
from abps.methods.base import World
from abps.methods.forgetting import Alarm, Observed, Watch, keys_of
from abps.methods.plus import ABPSPlus, Likeness, adopt, association_variance, associations, gains, own_level
from abps.sites.store import AlarmRow, Evidence, Store
from abps.stats import change as drift
from abps.wire.admission import ASSOCIATION

Floats = NDArray[np.float64]

#: What members published, by their names.
Vectors = Mapping[str, Floats]

_ANSWERS = {
    Answer.ACCEPTED: "",
    Answer.FILTERED: protocol.FILTERED,
    Answer.DECLINED: protocol.DECLINED,
}


@dataclass(frozen=True)
class View:
    """What a site thinks of its peers in one round, before anybody has asked anybody.

    ranking: whom to ask, best first.  answers: to whoever asks while there is room: "" is yes, else why not.
    wanted: whether there was anybody to want at all (a site may have candidates and want none).
    """

    ranking: tuple[str, ...]
    answers: Mapping[str, str]
    wanted: bool


@dataclass(frozen=True, eq=False)
class Lesson:
    """What a round leaves at a site: its model (1, P), and all that it remembers of the exchange.

    observations, beliefs, watch, alarms, reckoned, errors: as in :class:`abps.sites.store.Finished`.
    """

    mixed: Tensor
    observations: Mapping[str, float]
    beliefs: Mapping[str, Evidence]
    watch: str = ""
    alarms: tuple[AlarmRow, ...] = ()
    reckoned: tuple[AlarmRow, ...] = ()
    errors: Mapping[str, float] = field(default_factory=dict)


class Mind(Protocol):
    """A method at one site."""

    @property
    def kappa(self) -> int:
        """How many partners the site may have."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the entries that the site publishes."""

    @property
    def vector(self) -> Floats:
        """The entries."""

    def begin(self, round: int) -> None:
        """A round begins: what is heard from now on counts in the next one."""

    def opinion(self, round: int, roster: Sequence[str], vectors: Vectors, trained: Tensor) -> View:
        """Whom to ask, and how to answer; trained: (1, P) the site's model after its local epochs."""

    def learn(
        self,
        round: int,
        roster: Sequence[str],
        vectors: Vectors,
        models: tuple[Tensor, Tensor],
        arrived: Mapping[str, Tensor],
    ) -> Lesson:
        """Mix, give credit, and update what is believed.

        models: (1, P) before and after the local epochs.  arrived: (shared,) from each partner.
        """

    def alone(self, round: int, roster: Sequence[str], trained: Tensor) -> Lesson:
        """A round in which nothing may be exchanged any more."""


def mind(name: str, config: Any, world: World, store: Store) -> Mind | None:
    """The mind of a method that has one."""
    if isinstance(config, ABPS):
        return BetaMind(name, config, world, store)
    return UsefulnessMind(name, config, world, store) if isinstance(config, ABPSPlus) else None


def announces(config: Any) -> bool:
    """Whether sites tell each other of alarms, and listen to them."""
    return isinstance(config, ABPS) and config.memory.announce and config.memory.watches_utility


class BetaMind:
    """ABPS: Beta beliefs, discounted, forgotten after alarms, or of the latest rounds only."""

    def __init__(self, name: str, config: ABPS, world: World, store: Store) -> None:
        self._name, self._config, self._world, self._store = name, config, world, store
        self._news: tuple[AlarmRow, ...] = ()

    @property
    def kappa(self) -> int:
        """How many partners the site may have."""
        return self._config.selection.kappa

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the entries that the site publishes."""
        return self._world.data.metadata_names[: self._config.filter.entries(self._world.data)]

    @property
    def vector(self) -> Floats:
        """The entries."""
        return self._world.data.metadata[0, : len(self.names)]

    def begin(self, round: int) -> None:
        """Take note of the alarms that no round has reckoned with; later ones count in the next round."""
        self._news = tuple(alarm for alarm in self._store.alarms() if alarm.reckoned is None)

    def opinion(self, round: int, roster: Sequence[str], vectors: Vectors, trained: Tensor) -> View:
        """Rank the members that published a vector."""
        config, world = self._config, self._world
        n, me = len(roster), roster.index(self._name)
        known = [k for k, name in enumerate(roster) if name in vectors]
        chosen = config.filter
        if chosen.goals and len(chosen.goals) == n:
            chosen = replace(chosen, goals=tuple(chosen.goals[k] for k in known))
        published = np.stack([vectors[roster[k]] for k in known])
        admitted, alike = chosen.among(chosen.read(published))
        mine = known.index(me)
        candidate, similarity = np.zeros(n, dtype=bool), np.zeros(n)
        candidate[known], similarity[known] = admitted[mine], alike[mine]
        consent = candidate if chosen.mutual_filter else np.ones(n, dtype=bool)
        belief = self._beliefs(roster, self._standing(round)).posterior(me, np.arange(n))
        score = selection.peer_scores(config.selection, belief, round)
        (ranking,) = selection.rank(
            config.selection,
            score[None],
            belief.count[None],
            candidate[None],
            similarity[None],
            world.ids,
            world.seed,
            round,
            world.horizon,
        )
        answers = {
            roster[k]: _ANSWERS[selection.verdict(config.selection, bool(consent[k]), float(score[k]))]
            for k in known
        }
        return View(tuple(roster[k] for k in ranking), answers, bool(candidate.any()))

    def learn(
        self,
        round: int,
        roster: Sequence[str],
        vectors: Vectors,
        models: tuple[Tensor, Tensor],
        arrived: Mapping[str, Tensor],
    ) -> Lesson:
        """Mix with the partners and judge them: the simulation's code on a federation of these few."""
        config, me = self._config, roster.index(self._name)
        standing = self._standing(round)
        beliefs = self._beliefs(roster, standing)
        mixed, peer, phi = self._together(round, roster, vectors, models, arrived)
        observed = config.observe(beliefs, np.full(len(peer), me), peer, phi)
        own = replace(observed, center=np.zeros(len(peer), dtype=np.int64))  # of the one center that is here
        watch, alarms = config.memory.surprises(self._watch(), own, keys_of(self._world, round))
        if config.memory.forget == "window":
            standing = self._window(round + 1)
            beliefs = self._beliefs(roster, standing)
        after = beliefs.observe(me, peer, observed.value)
        value = {roster[j]: float(v) for j, v in zip(peer, observed.value) if np.isfinite(v)}
        raised = tuple(AlarmRow(round, self._name, a.statistic, _finite(a.p)) for a in alarms)
        told = watch_to_text(watch) if config.memory.watches_utility else ""
        return Lesson(mixed, value, _evidence(after, roster, standing), told, raised, self._news)

    def alone(self, round: int, roster: Sequence[str], trained: Tensor) -> Lesson:
        """Beliefs fade all the same."""
        return Lesson(trained.clone(), {}, self._standing(round), reckoned=self._news)

    def _together(
        self,
        round: int,
        roster: Sequence[str],
        vectors: Vectors,
        models: tuple[Tensor, Tensor],
        arrived: Mapping[str, Tensor],
    ) -> tuple[Tensor, NDArray[np.int64], Floats]:
        """The mixed model (1, P), the partners by their places in the roster, and their Shapley values."""
        config, world = self._config, self._world
        before, trained = models
        if not arrived:
            return trained.clone(), np.zeros(0, dtype=np.int64), np.zeros(0)
        partners = [name for name in roster if name in arrived]
        few = _few(world, partners, vectors, trained, arrived)
        meeting = config.together(
            world,
            before.expand(len(few.trained), -1),
            few.trained,
            few.arrived,
            few.sizes if config.weighting == "size" else torch.ones(len(few.trained)),
            few.partners,
            round,
        )
        places = np.array([roster.index(partners[int(p) - 1]) for p in meeting.peer], dtype=np.int64)
        return meeting.models, places, meeting.phi

    def _standing(self, round: int) -> dict[str, Evidence]:
        """The evidence as a round finds it: what is stored, faded by the rounds since and by alarms.

        A site's own alarm lets all of its beliefs fade; a peer's, which it was told, those about that peer.
        """
        config = self._config
        if config.memory.forget == "window":
            return self._window(round)
        faded = config.discount ** (round - self._store.round)
        evidence = {peer: e.times(faded) for peer, e in self._store.beliefs().items()}
        if any(alarm.site == self._name for alarm in self._news):
            evidence = {peer: e.times(config.memory.kept) for peer, e in evidence.items()}
        for alarm in self._news:
            if alarm.site in evidence:
                evidence[alarm.site] = evidence[alarm.site].times(config.memory.kept)
        return evidence

    def _window(self, round: int) -> dict[str, Evidence]:
        """The evidence of the last rounds before a round, and of no others."""
        evidence: dict[str, Evidence] = {}
        for (t, peer), value in sorted(self._store.observations().items()):
            if round - self._config.memory.recall <= t < round:
                old = evidence.get(peer, Evidence(0.0, 0.0, 0.0))
                evidence[peer] = Evidence(old.gain + value, old.loss + (1.0 - value), old.count + 1.0)
        return evidence

    def _beliefs(self, roster: Sequence[str], evidence: Mapping[str, Evidence]) -> Beliefs:
        """Evidence in the form of the simulation, which has a row for every member."""
        n, me = len(roster), roster.index(self._name)
        known = [(me * n + k, evidence[peer]) for k, peer in enumerate(roster) if peer in evidence]
        return Beliefs(
            n,
            self._config.selection.prior,
            np.array([key for key, _ in known], dtype=np.int64),
            np.array([e.gain for _, e in known], dtype=np.float64),
            np.array([e.loss for _, e in known], dtype=np.float64),
            np.array([e.count for _, e in known], dtype=np.float64),
        )

    def _watch(self) -> Watch:
        """What the last round left; after an alarm of its own, a site begins anew."""
        watch = watch_from_text(self._store.watch())
        own = tuple(Alarm(0, a.statistic, np.nan) for a in self._news if a.site == self._name)
        return self._config.memory.clear(watch, own)


class UsefulnessMind:
    """abps-plus: a regression on public likenesses and on all that the site measured itself.

    Its beliefs follow from its measurements, so these are what it remembers; beliefs are stored, as Beta
    distributions, for the site's owner to look at.
    """

    def __init__(self, name: str, config: ABPSPlus, world: World, store: Store) -> None:
        self._name, self._config, self._world, self._store = name, config, world, store
        data = world.data
        self._entries = len(data.metadata_names)
        self.names = data.metadata_names
        self.vector = data.metadata[0]
        if config.public.association:
            told, _ = associations(world, config.public)
            self.names += tuple(f"{ASSOCIATION}{column}" for column in data.columns)
            self.vector = np.concatenate([self.vector, told[0]])

    @property
    def kappa(self) -> int:
        """How many partners the site may have."""
        return self._config.kappa

    def begin(self, round: int) -> None:
        """Nothing is heard between rounds that a belief depends on."""

    def opinion(self, round: int, roster: Sequence[str], vectors: Vectors, trained: Tensor) -> View:
        """Draw the members' utilities and rank those worth their price."""
        config, known = self._config, [name for name in roster if name in vectors]
        me = known.index(self._name)
        everybody = replace(self._world, ids=center_ids(tuple(known)))
        experience = self._experience(known)
        likeness = self._likeness(known, vectors)
        belief = believe(likeness.features, likeness.slopes, experience, round, config.expect)
        even = self._break_even(belief, me, trained)
        score = config.scores(everybody, belief, even, round)
        willing = config.willing(belief, even, score)
        news = config.news(experience, likeness, round)
        ranking = config.rankings(willing, score, even, news)[me]
        answers = {name: "" if willing[me, k] else protocol.DECLINED for k, name in enumerate(known)}
        return View(tuple(known[k] for k in ranking), answers, wanted=True)

    def learn(
        self,
        round: int,
        roster: Sequence[str],
        vectors: Vectors,
        models: tuple[Tensor, Tensor],
        arrived: Mapping[str, Tensor],
    ) -> Lesson:
        """Measure what arrived, believe anew, and adopt as far as it probably helps."""
        config, trained = self._config, models[1]
        known = [name for name in roster if name in vectors]
        me, partners = known.index(self._name), [name for name in known if name in arrived]
        experience = self._experience(known)
        observed, errors = {}, {}
        few = _few(self._world, partners, vectors, trained, arrived) if partners else None
        if few is not None:
            _, peer, value, se = config.measure(
                self._world, few.sizes, few.trained, few.arrived, few.partners, round
            )
            places = np.array([known.index(partners[int(p) - 1]) for p in peer], dtype=np.int64)
            experience = experience.observe(np.full(len(peer), me), places, round, value, se)
            for k, v, error in zip(places, value, se):
                if np.isfinite(v) and np.isfinite(error):
                    observed[known[k]], errors[known[k]] = float(v), float(error)
        likeness = self._likeness(known, vectors)
        belief = believe(likeness.features, likeness.slopes, experience, round, config.expect)
        if few is not None:
            helps = np.ones((len(few.partners), len(few.partners)))
            if config.gated:
                even = self._break_even(belief, me, trained)
                helps[0, 1:] = belief.helps(even)[me, [known.index(name) for name in partners]]
            mixed, after_mix = adopt(self._world, few.sizes, few.trained, few.arrived, few.partners, helps)
            brought = gains(self._world, self._shown(trained), after_mix)
        alpha, beta = (each[me] for each in belief.beta())
        beliefs = dict(self._store.beliefs()) | {
            name: Evidence(float(alpha[k]), float(beta[k]), float(belief.count[me, k]))
            for k, name in enumerate(known)
            if belief.count[me, k] > 0
        }
        if few is None:
            return Lesson(trained.clone(), observed, beliefs)
        returns = self._returns().observe(np.array([True]), *brought)
        return Lesson(mixed, observed, beliefs, watch=returns_to_text(returns), errors=errors)

    def alone(self, round: int, roster: Sequence[str], trained: Tensor) -> Lesson:
        """Nothing is learned."""
        return Lesson(trained.clone(), {}, self._store.beliefs())

    def _experience(self, known: list[str]) -> Experience:
        """The site's own measurements of these members."""
        place = {name: k for k, name in enumerate(known)}
        seen = [(t, place[peer], v, se) for t, peer, v, se in self._store.measured() if peer in place]
        seen.sort(key=lambda each: each[:2])
        return Experience(
            np.full(len(seen), place[self._name], dtype=np.int64),
            np.array([peer for _, peer, _, _ in seen], dtype=np.int64),
            np.array([t for t, _, _, _ in seen], dtype=np.int64),
            np.array([v for _, _, v, _ in seen], dtype=np.float64),
            np.array([se for _, _, _, se in seen], dtype=np.float64),
        )

    def _likeness(self, known: list[str], vectors: Vectors) -> Likeness:
        """What the members' publications say of all pairs."""
        published = np.stack([vectors[name] for name in known])
        metadata, told = published[:, : self._entries], published[:, self._entries :]
        sizes = np.array([rows_told(vector) for vector in published])
        variance = association_variance(np.rint(metadata[:, 0] * sizes), sizes, self._config.public)
        return self._config.likeness(metadata, told, variance)

    def _break_even(self, belief: Usefulness, me: int, trained: Tensor) -> Floats:
        """(n,) from which utility a peer helps, in the site's own place; of the others it knows nothing."""
        n = len(belief.mean)
        level, doubt = np.full(n, np.nan), np.zeros(n)
        level[me] = own_level(self._world, self._shown(trained))[0]
        doubt[me] = self._config.doubt(self._returns())[0]
        return self._config.break_even(belief, level, doubt)

    def _shown(self, model: Tensor) -> Segments:
        """A model's logits on the site's validation rows."""
        return self._world.learner.logits(model, self._world.data.validation)

    def _returns(self) -> Returns:
        """What mixing has brought the site in all rounds before."""
        return returns_from_text(self._store.watch())


@dataclass(frozen=True, eq=False)
class _Few:
    """A site and its partners as a small federation in which only the first has rows.

    trained: (1 + k, P) the site's model in every place.  arrived: (1 + k, shared), the first unused.
    sizes: (1 + k,) training rows.  partners: of the first all others, of the others nobody.
    """

    trained: Tensor
    arrived: Tensor
    sizes: Tensor
    partners: list[NDArray[np.int64]]


def _few(
    world: World, partners: list[str], vectors: Vectors, trained: Tensor, arrived: Mapping[str, Tensor]
) -> _Few:
    k, none = len(partners), np.zeros(0, dtype=np.int64)
    sizes = [float(world.data.train.sizes[0]), *(rows_told(vectors[p]) for p in partners)]
    return _Few(
        trained.expand(k + 1, -1),
        torch.stack([torch.zeros_like(arrived[partners[0]]), *(arrived[p] for p in partners)]),
        torch.tensor(sizes),
        [np.arange(1, k + 1), *[none] * k],
    )


def rows_told(vector: Floats) -> float:
    """The number of training rows that a peer's vector tells (its second entry is the logarithm)."""
    return float(np.rint(np.exp(vector[1])))


def watch_to_text(watch: Watch) -> str:
    """A site's watch as it is stored: windows over its surprises, or the surprises themselves, by round."""
    past = [each.surprise[np.isfinite(each.surprise)].tolist() for each in watch.past]
    windows = watch.windows and {
        "window": [float(each[0]) for each in watch.windows.window],
        "pending": [float(each[0]) for each in watch.windows.pending],
        "comparisons": int(watch.windows.comparisons[0]),
        "rounds": int(watch.windows.rounds[0]),
    }
    return json.dumps({"surprises": [part for part in past if part], "windows": windows})


def watch_from_text(text: str) -> Watch:
    """The watch that was stored; a new one where nothing was."""
    if not text:
        return Watch()
    told = json.loads(text)
    past = []
    for surprises in told["surprises"]:
        nobody, nothing = np.zeros(len(surprises), dtype=np.int64), np.full(len(surprises), np.nan)
        past.append(Observed(nobody, nobody, nothing, np.array(surprises)))
    windows = told["windows"] and drift.WelchState(
        drift.Summary(*(np.array([each]) for each in told["windows"]["window"])),
        drift.Summary(*(np.array([each]) for each in told["windows"]["pending"])),
        np.array([told["windows"]["comparisons"]], dtype=np.int64),
        np.array([told["windows"]["rounds"]], dtype=np.int64),
    )
    return Watch(tuple(past), windows)


def returns_to_text(returns: Returns) -> str:
    """What mixing brought a site, as it is stored."""
    return json.dumps({f.name: float(getattr(returns, f.name)[0]) for f in fields(Returns)})


def returns_from_text(text: str) -> Returns:
    """What was stored; nothing where nothing was."""
    if not text:
        return Returns.none(1)
    told = json.loads(text)
    return Returns(*(np.array([told[f.name]]) for f in fields(Returns)))


def _evidence(
    beliefs: Beliefs, roster: Sequence[str], standing: Mapping[str, Evidence]
) -> dict[str, Evidence]:
    """Beliefs as they are stored, with those about peers that are not in this job."""
    kept = {peer: e for peer, e in standing.items() if peer not in roster}
    for key, gain, loss, count in zip(beliefs.key, beliefs.gain, beliefs.loss, beliefs.count):
        kept[roster[int(key) % len(roster)]] = Evidence(float(gain), float(loss), float(count))
    return kept


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
