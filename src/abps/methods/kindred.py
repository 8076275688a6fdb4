"""abps-plus: pairs among one's own kind, where there are kinds, and otherwise pairs at random.

The paper's frame (proposals, capacity, the right to rest, one partner a round) on a model worth sharing (an
additive one of a few hundred weights), with what the centers' own patients say of each other in the place of
guesses from metadata:

* *roll call*: a few times in a study all send their models to a board, and later with them the score of their
  own patients at the common model of the call before, with what that score would be by chance
  (:mod:`abps.lab.spectrum`, :mod:`abps.methods.rollcall`). The board tests whether centers differ at all,
  finds kinds, and tells every center its kin, the mean model of all and the mean model of its kin
  (:mod:`abps.lab.kinship`). The board is one of the centers, another one in every roll call; it sees the
  others' shared weights, as a partner does, and sums over their patients;
* *validation decides*: every center tells how well mixtures of these two do on its validation rows, and the
  mixture that is best for all is where everybody goes on from. So it is measured, not assumed, how far
  keeping to one's own kind pays;
* *choice*: partners are drawn at random from one's kin, if both count each other so; where nothing differs,
  or where the mean of all did better than that of kin, from everybody: the same pairs as ``random-k1``;
* *rest*: a center without kin does not call;
* *judgement*: what a mix takes off the loss on validation rows, which no model here was trained on. A mix
  that surely harms is not adopted, and a peer that was seen to harm is not called or answered again,
  whatever it or the board say of it: the public part is a prior, own measurements decide;
* *slopes*: once it is settled where all go on from, every center tells the slope of its own loss there, and
  is told that of its kin together (of all, where all go on from the mean of all). From then on it trains on a
  loss that is tilted by the difference: what its few patients want by chance does not lead it away from the
  others, and where all agree is where the loss of all together is least. A slope cannot be looked through as
  a model can: where members may lie (``heed``), each center tries a round with it and one without, and tells
  what that does to its validation loss; slopes are followed only if that surely helps all together;
* *last steps*: training steps shorten towards the end, so that partners agree; after the last round every
  center may move on by itself, held near what its kin agreed on, as far as that lowers the mean validation
  loss of the whole federation (one number a center).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from abps.core import permutation, streams
from abps.core.choices import validate
from abps.core.errors import RequestError
from abps.core.matching import Answer, Plan
from abps.core.peer_effects import PeerEffects, believed, mean_sizes, pooled
from abps.core.usefulness import Experience
from abps.data.prepare import Rows
from abps.lab import spectrum
from abps.methods import rollcall
from abps.methods.abps import trail_of
from abps.methods.base import Decisions, Floats, Ints, Kind, Models, Wire, World
from abps.methods.pace import Pace, Stride
from abps.methods.pairing import flat
from abps.methods.patient_sums import own_slopes, score_columns, scores
from abps.methods.peers import Heard, Learned, Notice, Opinion, PeerMethod, Reply, Worth
from abps.methods.suspicion import ERROR, STRIKE, let_in
from abps.models.metrics import Segments, gains, labels_of, row_losses
from abps.models.mixtures import mixtures
from abps.models.training import PLAIN, Objective, Training
from abps.tensors import Tensor, torch
from abps.wire.numerals import Numerals, Stretch

#: What a board asks: the models; models and scores; models, when kin are known; the loss of mixtures on
#: validation rows; the slopes of the losses at what is gone on from; what following the told ones takes off
#: the loss; what last steps take off it.
Question = Literal["weights", "kin", "means", "choice", "slopes", "heed", "last"]


#: With so many kin a center follows their slope half of the way.
COARSE = 24


@dataclass(frozen=True)
class Roll:
    """When centers are asked, and what is made of it.

    first: rounds of random pairs before the first roll call, which tells the common model.
    again: rounds after which kin are looked for.  means: rounds after which their means are told anew; it is
    done before the last round in any case.
    level: the test's level; 0: centers are never asked.  parameters: free parameters per shared weight in the
    sum of variance and bias.  mixtures: shares of the kin's mean against the mean of all that are tried.
    least: a center with fewer positive or negative training rows tells nothing about them.
    public: whether published metadata may help to tell kinds.
    quiet: rounds after a roll call in which nobody calls anybody: all were just told what all have learned.
    tilt: how far a center's slope at the model that it goes on from is made that of its kin together; 0: not
    at all. It is for models whose steps go down all rows' gradient (``optimizer=descent``).
    apart: how many times farther than usual along the direction in which slopes differ most one may point
    that counts; 0: every slope counts. Members that make slopes up go one way together, and are seen by that;
    so are honest kinds that differ much.
    heed: standard errors by which following slopes must lower the mean validation loss of all, in a trial of
    one round, to be followed; 0: no trial.
    """

    first: int = 3
    again: tuple[int, ...] = (8, 20, 32)
    means: tuple[int, ...] = ()
    level: float = 0.05
    parameters: float = 1.0
    mixtures: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    least: int = 3
    public: bool = True
    quiet: int = 2
    tilt: float = 1.0
    apart: float = 0.0
    heed: float = 0.0

    def __post_init__(self) -> None:
        if self.heed < 0:
            raise RequestError(
                f"heed={self.heed}: choose 0 (slopes are followed as they are told), or about 2"
            )
        if self.apart < 0:
            raise RequestError(f"apart={self.apart}: choose 0 (all slopes count), or about 4")
        if self.quiet < 0:
            raise RequestError(f"quiet={self.quiet}: rounds without pairs after a roll call, choose from 0")
        if not 0 <= self.tilt <= 1:
            raise RequestError(f"tilt={self.tilt}: choose 0 (not at all) to 1 (all the way)")
        if self.first < 1 or any(t <= self.first for t in (*self.again, *self.means)):
            raise RequestError(
                f"first={self.first}, again={self.again}, means={self.means}: choose at least 1, and later "
                "rounds after it"
            )
        if not 0 <= self.level < 1:
            raise RequestError(f"level={self.level}: choose 0 (never) to below 1")
        if not self.mixtures or min(self.mixtures) < 0 or max(self.mixtures) > 1:
            raise RequestError(f"mixtures={self.mixtures}: choose shares from 0 to 1")

    def asked(self, t: int, horizon: int) -> tuple[Question, ...]:
        """What is asked before round t."""
        if self.level == 0 or t - 1 < self.first:
            return ()
        if t - 1 == self.first:
            return ("weights",)
        if t - 1 in self.again:
            asked: tuple[Question, ...] = ("kin", "choice", "slopes") if self.tilt else ("kin", "choice")
            return (*asked, "heed") if self.tilt and self.heed else asked
        return ("means", "choice") if t - 1 in self.means or t == horizon else ()


@dataclass(frozen=True)
class Judging:
    """What own measurements may overrule.

    harm: the loss on validation rows (nats a row) from which a peer is harmful; 0: nobody is ever refused.
    sure: how sure a center must be of it.  spread: deviation of what a peer's mix takes off the loss, before
    anything is seen.  ageing: deviation by which that moves in a round, as models move.
    along: the least cosine between the ways that two models have gone from the start; what points another way
    is not mixed (:mod:`abps.methods.suspicion`); -1: anything is.
    """

    harm: float = 0.05
    sure: float = 0.95
    spread: float = 0.1
    ageing: float = 0.001
    along: float = 0.2


@dataclass(frozen=True, eq=False)
class Standing(Models):
    """Models (r, P), who is whose kin, what was measured.

    everybody: (r,) who keeps to nobody.  start, peer: each center's kin, ``peer[start[i]:start[i+1]]``.
    same: how probably each of these is of the center's own kind.
    experience: what mixes took off the loss on validation rows.
    reference: (shared,) the common model of the last roll call.  kindred: (r, shared) the mean of one's kin.
    place: (r, 2 + dimensions) how much each center's patients say, how sure its place is, and where it stands
    among all, as the board told it.
    test: what the board told of the differences: p, dimensions, kinds, what public vectors add, then every
    column's share.  outcast: members that the last board left out of its means, who keep to each
    other.  strength: of the pull to what kin agreed on in the last steps; 0: no last steps.
    share: of the kin's mean, against the mean of all, in what was gone on from last.
    stretches: (k, 3) the last round before every choice, and what all centers measured up to it since the one
    before (:mod:`abps.core.peer_effects`).
    tilt: (r, shared) what is added to the slopes of the own losses.  stride: what is kept to be faster.
    """

    everybody: NDArray[np.bool_]
    start: Ints
    peer: Ints
    same: Floats
    experience: Experience
    reference: Tensor
    kindred: Tensor
    place: Floats
    test: Floats
    tilt: Tensor
    stride: Stride
    outcast: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    strength: float = 0.0
    share: float = 0.0
    stretches: Floats = field(default_factory=lambda: np.zeros((0, 3)))

    def placed(self, place: Ints, n: int) -> Standing:
        """With members in other places."""
        return replace(
            self,
            peer=place[self.peer],
            outcast=place[self.outcast],
            experience=self.experience.placed(place),
        )

    def kin(self, row: int) -> Ints:
        """The kin of the center in a row."""
        return self.peer[self.start[row] : self.start[row + 1]]


@dataclass(frozen=True, eq=False)
class Effects:
    """What is believed of peers that were measured: what a mix with them takes off a center's loss.

    center, peer: (k,), every pair once.  mean, sd: of the posterior, in nats a row.  count: measurements.
    """

    center: Ints
    peer: Ints
    mean: Floats
    sd: Floats
    count: Floats

    def helps(self) -> Floats:
        """(k,) the probability that a mix lowers the loss."""
        from scipy.special import ndtr  # loaded where it is used: a site's process is the smaller

        return np.asarray(ndtr(self.mean / self.sd))


@dataclass(frozen=True)
class Kindred(PeerMethod):
    """roll: the roll calls.  judging: own measurements.  pace: what makes rounds go farther.
    fade: share of the rounds, at the end, in which steps shorten to nothing.  last: strengths tried for the
    last steps.  last_rounds: how many rounds' worth of training they are.  policy: kin, or random (the
    control: no roll call for kin).
    """

    arithmetic: ClassVar[bool] = True

    training: Training = field(default_factory=lambda: Training.of("gam"))
    wire: Wire = field(default_factory=lambda: Wire("int8", private_layers=1, reference="start"))
    roll: Roll = field(default_factory=Roll)
    judging: Judging = field(default_factory=Judging)
    pace: Pace = field(default_factory=Pace)
    fade: float = 0.3
    last: tuple[float, ...] = (2.0, 0.7, 0.3, 0.1)
    last_rounds: int = 5
    policy: Literal["kin", "random"] = "kin"

    believing: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate(self)
        if not 0 <= self.fade <= 1:
            raise RequestError(f"fade={self.fade}: a share of the rounds, choose 0 to 1")
        if any(strength <= 0 for strength in self.last):
            raise RequestError(f"last={self.last}: choose strengths above 0, or none")

    @property
    def kind(self) -> Kind:
        """By mutual proposals."""
        return "mutual"

    def init(self, world: World) -> Standing:
        """The common start; everybody is as good as any other."""
        none = np.zeros(0, dtype=np.int64)
        start, shared = world.common_start(), self.wire.shared(world)
        return Standing(
            start,
            np.ones(world.r, dtype=bool),
            np.zeros(world.r + 1, dtype=np.int64),
            none,
            np.zeros(0),
            Experience.none(),
            world.learner.start[:shared].clone(),
            start[:, :shared].clone(),
            np.zeros((world.r, 2)),
            np.full(rollcall.HEAD, np.nan),
            torch.zeros(world.r, shared),
            self.pace.start(world.r, shared, start.shape[1]),
        )

    # Training ------------------------------------------------------------------------------------------

    def train(self, world: World, state: Standing, t: int, alone: bool) -> Standing:
        """The local steps on the tilted loss, shorter towards the end.

        Steps that cool down do so from every roll call on: what centers learned apart from each other until
        then is gone with the means that they were told.
        """
        # Private training draws noise by the number of the round: none may come twice.
        cooling = world.learner.training.cooling > 0 and not self.private
        number = self.since(t) if cooling else t
        trained = world.learner.train(state.models, number, self.tilted(world, state))
        step = self.step(t, world.horizon)
        if step < 1:
            trained = torch.lerp(state.models, trained, step)
        stride = self.pace.learned(state.stride, state.models, trained)
        return replace(state, models=trained, stride=stride)

    def tilted(self, world: World, state: Standing) -> Objective:
        """What is added to the own losses."""
        shift = None
        if state.tilt.any():
            shift = torch.zeros_like(state.models)
            shift[:, : self.wire.shared(world)] = state.tilt
        if not self.pace.dual:
            return PLAIN if shift is None else Objective(shift=shift)
        return Objective(strength=self.pace.dual, anchor=state.stride.pushed(state.models, -1.0), shift=shift)

    def exchanges(self, t: int) -> bool:
        """Not right after a roll call, but in the last round in any case."""
        calls = (self.roll.first, *self.roll.again) if self.roll.level else ()
        return t == self.stop.rounds or not any(call < t <= call + self.roll.quiet for call in calls)

    @property
    def private(self) -> bool:
        """Whether training is private: rows are then looked at nowhere else."""
        return self.training.clip is not None

    def since(self, t: int) -> int:
        """How many rounds there were up to t since kin were last looked for."""
        return t - max((call for call in self.roll.again if call < t and self.roll.level), default=0)

    def step(self, t: int, horizon: int) -> float:
        """The share of a round's training that is taken: 1, and in the last rounds less and less."""
        left = 1.0 - (t - 1) / horizon
        return min(1.0, left / self.fade) if self.fade else 1.0

    def moved_on(self, world: World, models: Tensor, strength: float) -> Tensor:
        """(r, P) every center's model after steps by itself, held near where they began."""
        held = Objective(strength=strength, anchor=models)
        return world.learner.train(
            models, world.horizon + 1, held, epochs=self.last_rounds * world.learner.training.epochs
        )

    # Roll calls ----------------------------------------------------------------------------------------

    def asked(self, t: int) -> tuple[Question, ...]:
        """What is asked before round t; who pairs at random is not asked who is like whom."""
        horizon = self.stop.rounds
        found = self.roll.asked(t, horizon)
        if self.policy == "random":
            found = tuple("weights" if each in ("kin", "means") else each for each in found)
        if self.private or self.training.optimizer != "descent":
            found = tuple(each for each in found if each not in ("slopes", "heed"))
        return (*found, "last") if t == horizon and self.last and not self.private else found

    def questions(self, t: int, horizon: int) -> int:
        """How many there are."""
        return len(self.asked(t))

    def scored(self, t: int) -> bool:
        """Where kin are looked for."""
        return "kin" in self.asked(t)

    def reply(self, world: World, state: Standing, t: int, question: int) -> Reply:
        """The shared weights, with scores or with one's place; or losses on validation rows."""
        what = self.asked(t)[question]
        if what == "last":
            gains = self.last_gains(world, state)
            return Reply.of(gains, (Stretch("single", gains.shape[1]),))
        if what == "choice":
            losses = np.stack([mean_losses(world, each) for each in self.tried(world, state)], axis=1)
            since = int(state.stretches[-1, 0]) if len(state.stretches) else 0
            found = mean_sizes(state.experience, world.data.validation.sizes, since)
            losses = np.concatenate([losses, found], axis=1)
            return Reply.of(losses, (Stretch("single", losses.shape[1]),))
        if what == "slopes":
            own = own_slopes(world, state.models, self.wire.shared(world))
            return rollcall.slopes(own, state.share, state.place)
        if what == "heed":
            return Reply.of(self.heeded(world, state, t)[:, None], (Stretch("single", 1),))
        shared = state.models[:, : self.wire.shared(world)].numpy().astype(np.float64)
        if what == "weights":
            return rollcall.answer(shared)
        if what == "means":
            return rollcall.answer(shared, beside=state.place, form=rollcall.place_form(state.place.shape[1]))
        noise = 0.0 if self.privacy.budget is None else self.training.noise_multiplier
        told = scores(world, state.models, state.reference, t, self.roll.least, noise)
        return rollcall.answer(shared, told.columns, told.draws, told.values, told.form)

    def board(self, answers: Floats, sizes: Floats, t: int, question: int) -> Notice:
        """The mean model of all and of everybody's kin, and who they are; or what to go on from."""
        what = self.asked(t)[question]
        if what == "last":
            which = (0.0, *self.last).index(self.strongest(answers))
            return Notice(Numerals.of(np.array([float(which)]), (Stretch("single", 1),)))
        if what == "heed":
            helps = float(rollcall.helps(answers[:, 0], sizes, self.roll.heed))
            return Notice(Numerals.of(np.array([helps]), (Stretch("single", 1),)))
        if what == "choice":
            best = float(rollcall.best(answers[:, :-2], sizes))
            found = np.array([best, *pooled(answers[:, -2:])])
            return Notice(Numerals.of(found, (Stretch("single", len(found)),)))
        told = rollcall.read(answers, sizes)
        if what == "weights":
            # After few rounds honest models are still far from each other.
            return rollcall.common_model(told, t - 1 > self.roll.first)
        if what == "slopes":
            return rollcall.slopes_of_kin(told, self.roll.parameters, self.roll.apart)
        if what == "means":
            return rollcall.means_of_kin(told, self.roll.parameters)
        return rollcall.kin_of(told, self.roll.level, self.roll.parameters, self.roll.public)

    def informed(self, world: World, state: Standing, notice: Notice, t: int, question: int) -> Standing:
        """The state with what the board told."""
        what, common = self.asked(t)[question], notice.common.values
        if what in ("last", "choice"):
            most = len(self.last) if what == "last" else len(self.roll.mixtures)
            if len(common) != (1 if what == "last" else 3) or common[0] not in range(1 + most):
                raise ValueError("no such choice")
            if what == "last":
                return replace(state, strength=(0.0, *self.last)[int(common[0])])
            if not np.isfinite(common[1:]).all() or common[2] < 0:
                raise ValueError("no such sizes")
            over = np.array([[t - 1.0, *common[1:]]])
            state = replace(state, stretches=np.concatenate([state.stretches, over]))
            return self.gone_on(world, state, int(common[0]))
        if what == "slopes":
            return replace(state, tilt=self.leaning(world, state, notice))
        if what == "heed":
            if len(common) != 1 or common[0] not in (0.0, 1.0):
                raise ValueError("neither yes nor no")
            return state if common[0] else replace(state, tilt=torch.zeros_like(state.tilt))
        shared, columns = self.wire.shared(world), len(score_columns(world.data.columns))
        columns *= len(world.data.outcome.mix)
        common, outcast = rollcall.cast_out(notice.common, world.n)
        if len(common) != shared + (rollcall.HEAD + columns if what == "kin" else 0):
            raise ValueError("no common model")
        reference = torch.from_numpy(common[:shared].astype(np.float32))
        mine = [notice.own.get(int(place)) for place in world.here]
        told = [rollcall.heard(each, common[:shared], what == "kin") for each in mine]
        means = np.stack([each.mean for each in told]).astype(np.float32)
        state = replace(state, reference=reference, kindred=torch.from_numpy(means), outcast=outcast)
        if what == "weights":
            # The first time nobody has anything else to go on from.
            return self.gone_on(world, state, 1) if t - 1 == self.roll.first else state
        if what == "means":
            return state
        return replace(
            state,
            everybody=np.array([each.everybody for each in told]),
            start=np.concatenate([[0], np.cumsum([len(each.peer) for each in told])]),
            peer=np.concatenate([each.peer for each in told]),
            same=np.concatenate([each.same for each in told]),
            place=np.stack([each.place for each in told]),
            test=common[shared:],
        )

    def leaning(self, world: World, state: Standing, notice: Notice) -> Tensor:
        """(r, shared) what makes the own slopes those that the board told.

        Whatever a board says: what is told is at most as long as a few times the own slope. Kin are believed
        by how many they are: among few centers two kinds look like one.
        """
        if len(state.outcast):
            # Slopes cannot be looked through as models can: where somebody was cast out, none is followed.
            return torch.zeros_like(state.tilt)
        own = own_slopes(world, state.models, self.wire.shared(world))
        tilt = np.zeros_like(own)
        for row, place in enumerate(world.here):
            told = notice.own.get(int(place), notice.common).values
            if len(told) not in (0, own.shape[1]):
                raise ValueError("no slopes")
            if len(told):
                longest = rollcall.STEEPEST * float(np.linalg.norm(own[row]))
                kin = len(state.kin(row))
                believed = 1.0 if state.everybody[row] else kin / (kin + COARSE)
                tilt[row] = believed * (rollcall.shortened(told, longest) - own[row])
        return torch.from_numpy((self.roll.tilt * tilt).astype(np.float32))

    def heeded(self, world: World, state: Standing, t: int) -> Floats:
        """(r,) what a round's training on the tilted loss takes off each center's mean loss on validation
        rows, against one on its own loss; NaN where it has none."""
        if not state.tilt.any():
            return np.zeros(world.r)
        alone = replace(state, tilt=torch.zeros_like(state.tilt))
        plain, tilted = (self.train(world, each, t, False).models for each in (alone, state))
        return mean_losses(world, plain) - mean_losses(world, tilted)

    def tried(self, world: World, state: Standing) -> Iterator[Tensor]:
        """(r, P) models that may be gone on from: the own ones, then mixtures of the two means.

        Each with the level of risk that the center's own training rows ask for beside it, if that is private:
        else models would be judged by how near they are to what the old level was learned with.
        """
        shared = self.wire.shared(world)
        for share in (None, *self.roll.mixtures):
            model = state.models.clone()
            if share is not None:
                model[:, :shared] = torch.lerp(state.reference.expand_as(state.kindred), state.kindred, share)
            yield levelled(world, model) if shared < model.shape[1] and not self.private else model

    def gone_on(self, world: World, state: Standing, choice: int) -> Standing:
        """The state when all go on from the models of that number; who did better with everybody than with
        kin meets everybody again."""
        chosen = list(self.tried(world, state))[choice]
        logits = [world.learner.logits(each, world.data.validation) for each in (state.models, chosen)]
        _, _, harmed = self.measured(world, *logits)
        # Whatever a board says: who would surely be harmed stays where it is.
        stays = torch.from_numpy(np.flatnonzero(harmed))
        chosen[stays] = state.models[stays]
        share = 1.0 if choice == 0 else self.roll.mixtures[choice - 1]
        state = replace(
            state,
            models=chosen,
            share=share,
            tilt=torch.zeros_like(state.tilt),
            stride=state.stride.restarted(),
        )
        if share >= 0.5:
            return state
        none = np.zeros(world.r + 1, dtype=np.int64)
        return replace(
            state,
            everybody=np.ones(world.r, dtype=bool),
            start=none,
            peer=state.peer[:0],
            same=state.same[:0],
        )

    def last_gains(self, world: World, state: Standing) -> Floats:
        """(r, strengths) what last steps take off each center's mean loss on validation rows."""
        before = mean_losses(world, state.models)
        moved = [mean_losses(world, self.moved_on(world, state.models, strength)) for strength in self.last]
        return np.stack([before - after for after in moved], axis=1)

    def strongest(self, gains: Floats) -> float:
        """The strength with the largest mean gain, if that is surely above zero: by two standard errors."""
        gains = gains[~np.isnan(gains).any(axis=1)]
        if len(gains) < 3:
            return 0.0
        mean = gains.mean(axis=0)
        error = gains.std(axis=0, ddof=1) / np.sqrt(len(gains))
        value = np.where(mean > 2.0 * error, mean, 0.0)
        best = int(np.argmax(value))
        return self.last[best] if value[best] > 0 else 0.0

    # Choosing ------------------------------------------------------------------------------------------

    def opine(self, world: World, state: Standing, trained: Callable[[], Any], t: int) -> Opinion:
        """Kin in a random order, without those that were seen to harm or that cannot be trusted."""
        known = self.effects(state.experience, t)
        refused = self.harmful(known)
        no = {(int(i), int(j)) for i, j in zip(known.center[refused], known.peer[refused])}
        turn = np.empty(world.n, dtype=np.int64)
        turn[self.turns(world.seed, t, world.ids)] = np.arange(world.n)
        orders = Orders(world, state, t, turn, no)
        out = orders.out
        rankings = [Ranking(orders, row) for row in range(world.r)]

        def answer(row: int, peer: int) -> Answer:
            if (row, peer) in no or out[peer] != out[world.here[row]]:
                return Answer.DECLINED
            welcome = state.everybody[row] or bool((state.kin(row) == peer).any())
            return Answer.ACCEPTED if welcome else Answer.FILTERED

        def trail(plan: Plan) -> Decisions:
            return self.explained(plan, state, known)

        return Opinion(rankings, answer, np.ones(world.r, dtype=bool), trail=trail)

    def effects(self, seen: Experience, t: int) -> Effects:
        """What is believed of the peers that were measured, up to round t.

        A peer's effect is expected to be nothing, give or take ``spread``, and drifts as models move.
        """
        size = 1 + int(seen.peer.max(initial=0))
        pair, where = np.unique(seen.center * size + seen.peer, return_inverse=True)
        weight = 1.0 / (seen.se**2 + self.judging.ageing**2 * (t - seen.round) + 1e-12)
        total = np.bincount(where, weights=weight, minlength=len(pair)) + 1.0 / self.judging.spread**2
        mean = np.bincount(where, weights=weight * seen.value, minlength=len(pair)) / total
        count = np.bincount(where, minlength=len(pair)).astype(np.float64)
        return Effects(pair // size, pair % size, mean, 1.0 / np.sqrt(total), count)

    def harmful(self, known: Effects) -> NDArray[np.bool_]:
        """(k,) who surely takes more than ``harm`` from a center's loss in the wrong direction."""
        if not self.judging.harm:
            return np.zeros(len(known.mean), dtype=bool)
        sure = self.judging.sure
        far = NormalDist().inv_cdf(sure) if 0 < sure < 1 else math.copysign(math.inf, sure - 0.5)
        return np.asarray((-self.judging.harm - known.mean) / known.sd > far)

    def explained(self, plan: Plan, state: Standing, known: Effects) -> Decisions:
        """The audit trail, each decision with the kinship and the effect that it was made on."""
        n = len(plan.rest)
        kin = np.repeat(np.arange(len(state.everybody)), np.diff(state.start)) * n + state.peer

        def numbers(center: Ints, peer: Ints) -> tuple[Floats, Floats, Floats]:
            pair = center * n + peer
            at = _found(known.center * n + known.peer, pair)
            mean, count = np.append(known.mean, np.nan)[at], np.append(known.count, 0.0)[at]
            # How probably a peer is of one's own kind: 1 where there are no kinds.
            same = np.append(state.same, 0.0)[_found(kin, pair)]
            return np.where(state.everybody[center], 1.0, same), mean, count

        return trail_of(plan, numbers)

    # Learning ------------------------------------------------------------------------------------------

    def sent(self, state: Standing, trained: Standing) -> Tensor:
        """(r, P) the trained models, with the dual if there is one."""
        return trained.stride.pushed(trained.models)

    def learn(self, world: World, state: Standing, trained: Standing, heard: Heard, t: int) -> Learned:
        """Mix, judge the mix on validation rows, adopt it unless it surely harms."""
        models, own = trained.models, self.sent(state, trained)
        settled = t > self.roll.first  # before that, honest models are still far from each other
        heard, doubtful, strange = let_in(own, heard, world.learner.start, self.judging.along, settled)
        partners = heard.partners(world.r)
        peer, counts = flat(partners)
        sizes = world.sizes().numpy()
        rows = sizes[world.here]
        parts = mixtures(np.arange(world.r), peer, counts, sizes, own_weights=rows)
        validation = world.data.validation
        before = world.learner.logits(models, validation)
        mixed, after = world.learner.settle(own, heard.arrived, parts, validation)
        gain, se, harmed = self.measured(world, before, after)
        met = np.flatnonzero(counts > 0)
        surely = met[harmed[met]]
        mixed[torch.from_numpy(surely)] = models[torch.from_numpy(surely)]
        # With one partner a mix is its partner's doing.
        center, who = np.repeat(np.arange(world.r), counts), peer
        experience = state.experience.observe(center, who, t, gain[center], se[center])
        if settled and len(strange):
            struck = np.ones(len(strange))
            experience = experience.observe(doubtful, strange, t, STRIKE * struck, ERROR * struck)
        to, by = heard.refused
        if len(by):  # what was no model at all, whenever it came
            struck = np.ones(len(by))
            experience = experience.observe(to, by, t, STRIKE * struck, ERROR * struck)
        stride, mixed = self.pace.went_on(trained.stride, state.models, mixed)
        stride, mixed = self.pace.kept(stride, mixed, t, world.horizon)
        if t == world.horizon and state.strength:
            mixed = self.moved_on(world, mixed, state.strength)
        told = np.isfinite(gain[center]) & np.isfinite(se[center])
        value = np.clip(0.5 + gain[center], 0.0, 1.0)
        worth = Worth(center[told], who[told], value[told], se[center][told])
        return Learned(replace(state, models=mixed, experience=experience, stride=stride), worth)

    def mixed(
        self, world: World, trained: Standing, heard: Heard, rows: Rows
    ) -> tuple[Ints, Ints, Segments, Segments]:
        """The mixes of a round, whether they are adopted or not."""
        models, own = trained.models, trained.stride.pushed(trained.models)
        heard, _, _ = let_in(own, heard, world.learner.start, self.judging.along)
        peer, counts = flat(heard.partners(world.r))
        sizes = world.sizes().numpy()
        parts = mixtures(np.arange(world.r), peer, counts, sizes, own_weights=sizes[world.here])
        _, after = world.learner.settle(own, heard.arrived, parts, rows)
        return np.repeat(np.arange(world.r), counts), peer, world.learner.logits(models, rows), after

    def peer_effects(self, world: World, state: Standing) -> PeerEffects:
        """What each mix took off a center's loss, as it believes in the end."""
        return believed(state.experience, world.data.validation.sizes, state.stretches)

    def measured(
        self, world: World, before: Segments, after: Segments
    ) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """(r,) what a change of models takes off the validation loss, its error, and who is surely harmed.

        before, after: the models' logits on validation rows.
        """
        rows = world.data.validation
        gain, se = gains(world.data.validation, before, after)
        # A handful of events on one side says little, and its error still less.
        few = np.minimum(rows.positives(), rows.sizes - rows.positives()) < self.roll.least
        gain = np.where(few, np.nan, gain)
        if not self.judging.harm:
            return gain, se, np.zeros(world.r, dtype=bool)
        return gain, se, np.asarray(gain + 2.0 * se < -self.judging.harm)

    def beliefs(self, state: Standing) -> Any:
        """What centers believe of the peers that they have measured."""
        last = int(state.experience.round.max(initial=0))
        return self.effects(state.experience, last)

    def heterogeneity(self, world: World, state: Standing) -> dict[str, Any] | None:
        """The last test: p, in how many dimensions centers differ, how many kinds there are, and the columns
        that carry at least a tenth of the difference, most first."""
        if np.isnan(state.test[0]):
            return None
        p, dimensions, kinds = state.test[:3]
        share = state.test[rollcall.HEAD :]
        names = [world.data.columns[k] for k in score_columns(world.data.columns)]
        share = share.reshape(-1, len(names)).sum(axis=0)
        most = [int(k) for k in np.argsort(-share, kind="stable") if share[k] >= 0.1]
        return {
            "p": float(p),
            "dimensions": int(dimensions),
            "kinds": int(kinds),
            "columns": tuple(names[k].removesuffix(" ~1") for k in most),
            "shares": tuple(float(share[k]) for k in most),
        }


class Orders:
    """Everybody's peers in a random order, worked out for many centers at once, as far as they are asked.

    Only peers whose turn to ask comes later: whoever had its turn has a partner, or found none. Who is cast
    out keeps to others that are.
    """

    #: Centers whose orders are worked out together, and places looked at first of those that take anybody.
    TOGETHER, AHEAD = 2048, 32

    def __init__(self, world: World, state: Standing, t: int, turn: Ints, refused: set[tuple[int, int]]):
        """turn: (n,) when each member asks.  refused: (row, place) who is not asked."""
        self.world, self.state, self.turn, self.refused = world, state, turn, refused
        self.out = np.zeros(world.n, dtype=bool)  # who is cast out
        self.out[state.outcast] = True
        self.keys = streams.bits(world.seed, "tie-break", t, world.ids[world.here])
        self.mine = turn[world.here]
        self.by_turn = np.argsort(self.mine, kind="stable")
        self.position = np.empty(world.r, dtype=np.int64)
        self.position[self.by_turn] = np.arange(world.r)
        self.first, self.lists = 0, list[list[int]]()

    def of(self, row: int) -> Iterator[int]:
        """Whom the center in a row would ask, first to last."""
        at = int(self.position[row])
        if not self.first <= at < self.first + len(self.lists):
            self.first, self.lists = at, self._begun(self.by_turn[at : at + self.TOGETHER])
        yield from self._wanted(row, self.lists[at - self.first])
        if self.state.everybody[row]:
            for place in range(self.AHEAD, self.world.n, 256):
                some = np.arange(place, min(place + 256, self.world.n))
                peers = permutation.peer_at(some, self.keys[row], self.world.n)
                yield from self._wanted(row, peers[self.turn[peers] > self.mine[row]].tolist())

    def _wanted(self, row: int, peers: list[int]) -> Iterator[int]:
        out = self.out[self.world.here[row]]
        return (j for j in peers if self.out[j] == out and (row, j) not in self.refused)

    def _begun(self, rows: Ints) -> list[list[int]]:
        """The orders of some centers: of those with kin all of it, of the others the beginning."""
        n, state = self.world.n, self.state
        free = state.everybody[rows]
        some = np.arange(min(self.AHEAD, n))
        anybody = permutation.peer_at(some, self.keys[rows[free], None], n)
        count = np.where(free, 0, np.diff(state.start)[rows])
        owner = np.repeat(np.arange(len(rows)), count)
        inside = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
        kin = state.peer[state.start[rows[owner]] + inside]
        later = self.turn[kin] > self.mine[rows[owner]]
        owner, kin = owner[later], kin[later]
        place = permutation.place_of(kin, self.keys[rows[owner]], n)
        order = np.argsort(owner * n + place, kind="stable")
        # Those of the centers that take anybody are in order already.
        late = self.turn[anybody] > self.mine[rows[free], None]
        owner = np.concatenate([owner[order], np.repeat(np.flatnonzero(free), late.sum(axis=1))])
        peer = np.concatenate([kin[order], anybody[late]])
        listed = peer[np.argsort(owner, kind="stable")].tolist()
        ends = np.cumsum(np.bincount(owner, minlength=len(rows))).tolist()
        return [listed[a:b] for a, b in zip([0, *ends], ends)]


@dataclass(frozen=True, eq=False)
class Ranking:
    """A center's peers as it would ask them."""

    orders: Orders
    row: int

    def __len__(self) -> int:
        state = self.orders.state
        return self.orders.world.n - 1 if state.everybody[self.row] else len(state.kin(self.row))

    def __iter__(self) -> Iterator[int]:
        return self.orders.of(self.row)


def _found(listed: Ints, asked: Ints) -> Ints:
    """Where each of what is asked stands in a list; -1 where it does not."""
    if not len(listed):
        return np.full(len(asked), -1)
    order, back = np.argsort(listed, kind="stable"), np.argsort(asked, kind="stable")
    place = np.empty(len(asked), dtype=np.int64)
    place[back] = np.searchsorted(listed[order], asked[back])  # in order: far places are slow to reach
    at = order[np.minimum(place, len(listed) - 1)]
    return np.where(listed[at] == asked, at, -1)


def levelled(world: World, models: Tensor) -> Tensor:
    """(r, P) models whose last weight, what is added to every logit, is fitted to the training rows."""
    rows = world.data.train
    logits = world.learner.logits(models, rows).values.astype(np.float64)
    shift = np.zeros(world.r, dtype=np.float32)
    for i in range(world.r):
        mine = slice(int(rows.start[i]), int(rows.start[i + 1]))
        if mine.stop > mine.start:
            shift[i] = spectrum.own_intercept(logits[mine], rows.y[mine].astype(np.float64))
    fitted = models.clone()
    fitted[:, -1] += torch.from_numpy(shift)
    return fitted


def mean_losses(world: World, models: Tensor) -> Floats:
    """(r,) every center's mean log-loss on its validation rows; NaN where it has none."""
    rows = world.data.validation
    loss = row_losses(world.learner.logits(models, rows), labels_of(rows)).values
    owner = np.repeat(np.arange(world.r), rows.sizes)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.bincount(owner, weights=loss, minlength=world.r) / rows.sizes)
