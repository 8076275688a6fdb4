"""The base of all methods: a frozen configuration, and pure functions over rows.

A method works on *rows*: r centers whose data are here, among the n members of a federation. The simulation
has r = n, a hospital r = 1; the functions are the same. A round is ``train``, what a center does by itself,
then the exchange, which the driver runs: it checks the budget, delivers what the method sends and counts its
bytes (:mod:`abps.methods.peers`, :mod:`abps.methods.star`, :mod:`abps.methods.coordinated`); or ``rest``.

State is a frozen dataclass of columns, one row per center here, which a driver writes down between rounds
(:mod:`abps.methods.state_bytes`). What follows from the data and from published metadata is no state but
``context.derived``, made by ``derived`` whenever they change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.arrays import Weights, repeated
from abps.core.errors import FROM_0, FROM_1, POSITIVE, SHARE, Limits, validate
from abps.models.training import Training
from abps.wire.codecs import codec, frame_size

if TYPE_CHECKING:
    from abps.data.prepare import Prepared, Rows
    from abps.models.learners import Learner
    from abps.models.metrics import Segments

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Words in an array, or None.
Words = NDArray[np.object_]

#: The entry of a metadata vector with the number of training rows.
ROWS = "log training rows"

#: The stream number of a star's server.
SERVER = streams.center_id("the server")

#: How the centers of a method are linked: not at all; to a server; to a coordinator among them; by mutual
#: proposals; by a graph that all can compute; or by requesting models.
Kind = Literal["alone", "star", "coordinated", "mutual", "graph", "pull"]


@dataclass(frozen=True)
class Wire:
    """The format of sent models: the codec, and how many last layers stay private."""

    codec: str = "fp32"
    private_layers: int = 0

    def __post_init__(self) -> None:
        codec(self.codec)
        validate(self)

    def shared(self, context: Context) -> int:
        return context.learner.layout.shared(self.private_layers)

    def payload(self, context: Context) -> int:
        return frame_size(codec(self.codec), self.shared(context))

    def deliver(self, context: Context, weights: Weights, t: int) -> Weights:
        """(n, count) the centers' weights as the receivers decode them; t numbers the message."""
        return self._arrived(context, weights, streams.bits(context.seed, "codec", t, context.ids))

    def answer(self, context: Context, weights: Weights, t: int) -> Weights:
        """What a server sends, as the centers decode it: (count,) the same for all, or (n, count) to each."""
        keys = streams.bits(context.seed, "codec", t, SERVER, 0 if weights.ndim == 1 else context.ids)
        return self._arrived(context, np.atleast_2d(weights), np.atleast_1d(keys)).reshape(weights.shape)

    def _arrived(self, context: Context, weights: Weights, keys: NDArray[np.uint64]) -> Weights:
        """(senders, count) as the receivers decode them; keys: (senders,) of the codec's random bits."""
        arrived = np.empty(weights.shape, dtype=np.float32)
        blocks = np.array_split(np.arange(len(weights)), -(-len(weights) // 32))

        def work(k: int) -> None:
            some = slice(int(blocks[k][0]), int(blocks[k][-1]) + 1)
            codec(self.codec).arrive(weights[some], keys[some], arrived[some])

        context.learner.each(work, len(blocks))
        return arrived


@dataclass(frozen=True)
class Stopping:
    """When a run ends: after ``rounds``, or after ``patience`` rounds without a better validation AUROC.

    grace: rounds at the start that patience does not count: a fresh network first learns that outcomes are
    rare, and its AUROC falls before it rises.
    restore_best: report the models of the best validation round instead of the last.
    metric: of the best round: mean validation AUROC, or mean validation loss, less noisy with few rows.
    """

    rounds: int = 50
    patience: int | None = None
    grace: int = 0
    min_delta: float = 0.0
    restore_best: bool = False
    metric: Literal["auroc", "loss"] = "auroc"

    limits: ClassVar[Limits] = {"rounds": FROM_1, "patience": FROM_1}

    def __post_init__(self) -> None:
        validate(self)

    def better(self, value: float, best: float) -> bool:
        """Whether a round's mean validation AUROC beats the best so far (NaN: there is none)."""
        return value > best + self.min_delta or math.isnan(best)

    def over(self, t: int, best: int) -> bool:
        """Whether to stop after round t when the best was round ``best``."""
        return self.patience is not None and t - max(best, self.grace) >= self.patience


@dataclass(frozen=True, eq=False)
class Context:
    """What a method works with: r centers whose rows are here, among n members.

    learner, data: of the r centers.  ids: (n,) the members' stream numbers.
    member_index: (r,) the indices of the r centers among the members; none: they are all of them.
    reported_rows: (n,) training rows as the members reported them; none: they are in the data.
    published: (n, k) metadata vectors.  derived: what the method computes from all this before any round.
    """

    learner: Learner
    data: Prepared
    ids: NDArray[np.uint64]
    seed: int
    horizon: int
    member_index: Ints | None = None
    reported_rows: NDArray[np.float32] | None = None
    published: Floats | None = None
    derived: Any = None

    @property
    def n(self) -> int:
        return len(self.ids)

    @property
    def r(self) -> int:
        return self.data.size

    @cached_property
    def local_index(self) -> Ints:
        """(r,) the member indices of the centers here."""
        return np.arange(self.n) if self.member_index is None else self.member_index

    @cached_property
    def self_mask(self) -> NDArray[np.bool_]:
        """(n, n) a center itself among all."""
        return np.eye(self.n, dtype=bool)

    def sizes(self) -> Weights:
        if self.reported_rows is not None:
            return self.reported_rows
        return self.data.train.sizes.astype(np.float32)

    def common_start(self) -> Weights:
        """(r, P) the same initial model for every center."""
        return repeated(self.learner.start, self.r).copy()


@dataclass(frozen=True, eq=False)
class Decisions:
    """One round's audit trail in columns; ``peer`` is -1 where a decision concerns no single peer."""

    center: NDArray[np.int64]
    peer: NDArray[np.int64]
    decision: Words
    score: NDArray[np.float64]
    mean: NDArray[np.float64]
    count: NDArray[np.float64]
    reason: Words

    def after(self, first: Decisions) -> Decisions:
        columns = (f.name for f in fields(self))
        return Decisions(*(np.concatenate([getattr(first, c), getattr(self, c)]) for c in columns))


def refusals(center: Ints, peer: Ints, finite: NDArray[np.bool_]) -> Decisions:
    """Refused weights as rows of the audit trail; finite: (k,) whether they were finite."""
    nothing = np.full(len(center), np.nan)
    words = np.where(finite, "implausibly large", "not finite").astype(object)
    refused = np.full(len(center), "refused", dtype=object)
    return Decisions(center, peer, refused, nothing, nothing, nothing, words)


@dataclass(frozen=True, eq=False)
class Models:
    models: Weights


@dataclass(frozen=True)
class Published:
    names: tuple[str, ...]
    vectors: Floats


@dataclass(frozen=True)
class Privacy:
    """What protects patients besides keeping rows at home.

    min_cell: whatever leaves a center describes at least so many patients; 0: any number. Between sites the
    codebook sets it.
    dp_epsilon: the privacy budget of a center for private training (``clip``) and published metadata; none or
    inf: no limit, and no privacy ledger. Without ``noise_multiplier`` the noise makes it last for all rounds.
    dp_delta: the probability that ε fails.
    secure: a server sees masked sums alone: of star rounds, and of counts for a common scale.
    """

    min_cell: int = 0
    dp_epsilon: float | None = None
    dp_delta: float = 1e-5
    secure: bool = False

    limits: ClassVar[Limits] = {"min_cell": FROM_0, "dp_epsilon": POSITIVE, "dp_delta": SHARE}

    def __post_init__(self) -> None:
        validate(self)

    @property
    def budget(self) -> float | None:
        return None if self.dp_epsilon is None or math.isinf(self.dp_epsilon) else self.dp_epsilon


@dataclass(frozen=True)
class Method:
    """A method's configuration. Fields are settings; ``--set name=value`` reaches each by its name.

    budget: edge bytes after which communication ends, or none.
    """

    #: Why it supports binary outcomes only, in half a sentence; empty if it supports any.
    only_binary: ClassVar[str] = ""

    #: Whether it fits models of its own kind, from no common start, and finds its own settings.
    fitted: ClassVar[bool] = False

    #: Ranges of its settings, and the values that a comparison may try besides those of the training.
    limits: ClassVar[Limits] = {}
    searched: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    training: Training = field(default_factory=Training)
    stop: Stopping = field(default_factory=Stopping)
    budget: float | None = None
    privacy: Privacy = field(default_factory=Privacy)

    def __post_init__(self) -> None:
        validate(self)

    @property
    def kind(self) -> Kind:
        return "alone"

    @property
    def line(self) -> Wire:
        """The format of sent models: that of the settings ``wire`` or ``codec``, where a method has one."""
        wire: Wire | None = getattr(self, "wire", None)
        return wire or Wire(getattr(self, "codec", "fp32"))

    @property
    def grid(self) -> Mapping[str, tuple[Any, ...]]:
        """Settings that a comparison may tune, each with the values to try: at most eight combinations."""
        if self.fitted or (self.training.optimizer == "newton" and not self.searched):
            return {}
        epochs = self.training.epochs
        usual = {"epochs": tuple(dict.fromkeys((max(1, epochs // 2), epochs)))}
        return tried(self, **(self.searched or usual))

    def init(self, context: Context) -> Any:
        return Models(context.common_start())

    def sharing(self, context: Context) -> int:
        """How many centers learn one model together, and so share the penalty of a convex one."""
        return 1 if self.kind == "alone" else context.n

    def publish(self, context: Context) -> Published:
        """The metadata that the centers here publish before the first round; none by default."""
        return Published((), np.zeros((context.r, 0)))

    def derived(self, context: Context) -> Any:
        """What follows from the data here and from published metadata; recomputed when these change."""
        return None

    def train(self, context: Context, state: Any, t: int, alone: bool) -> Any:
        """The state after what centers do by themselves in round t; alone: nothing is exchanged later."""
        return replace(state, models=context.learner.train(state.models, t))

    def begin(self, context: Context, state: Any, t: int, alone: bool) -> Callable[[], Any]:
        """``train`` in the background; the returned function waits for the result."""
        return lambda: self.train(context, state, t, alone)

    def rest(self, context: Context, state: Any, trained: Any, t: int) -> Any:
        """The state after a round in which nothing was exchanged."""
        return trained

    def logits(self, context: Context, state: Any, rows: Rows) -> Segments:
        return context.learner.logits(state.models, rows)

    def finished(self, state: Any) -> bool:
        return False

    def beliefs(self, state: Any) -> Any:
        """The beliefs of centers about each other, for methods that keep them."""
        return getattr(state, "beliefs", None)


def tried(config: Method, **own: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    """A grid: three learning rates of a network (convex models need none), and another setting's values."""
    training = config.training
    if training.optimizer == "newton":
        return own
    return {"lr": tuple(float(f"{training.lr * by:.3g}") for by in (1 / 3, 1, 3)), **own}


def with_derived(method: Method, context: Context) -> Context:
    """The context with metadata and what is derived from it; its learner knows who learns together."""
    context.learner.sharing = method.sharing(context)
    if context.published is None:
        context = replace(context, published=method.publish(context).vectors)
    return replace(context, derived=method.derived(context))
