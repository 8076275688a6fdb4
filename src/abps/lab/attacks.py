"""Members that attack: what they change before it reaches others.

An attack changes one of three things: the rows an attacker trains on, what it publishes of itself, or the
weights that it sends. Results report the honest centers.

* ``label-flip``: trains on swapped labels.  ``poison``: every third row gets the largest values and the other
  label.
* ``sign-flip``: sends its step from the common start backwards.  ``scale``: many times as far.  ``random``:
  noise as large as a step.  ``nan``: no numbers.  ``huge``: in one round, weights of 900,000.
* ``coefficient``: all attackers push one and the same number, ``strength`` times as far as others move.
* ``free-rider``: sends what it had before training.  ``copy``: sends what it last received.
* ``liar``: publishes the average of what honest centers publish, to look like everybody's friend, and sends
  backwards.  ``clique``: attackers publish one and the same vector, and send backwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.arrays import Weights, repeated
from abps.core.errors import RequestError, nearest
from abps.data.prepare import Prepared, Rows
from abps.methods.base import Context, Ints

Name = Literal[
    "label-flip", "sign-flip", "scale", "random", "nan", "huge",
    "free-rider", "copy", "liar", "clique", "poison", "coefficient",
]  # fmt: skip
NAMES: tuple[str, ...] = get_args(Name)

#: The number that ``coefficient`` pushes is one of so many at the beginning of a message.
MOST_PUSHED = 16

#: What turns a model around.
BACKWARDS = ("sign-flip", "liar", "clique")


@dataclass(frozen=True)
class Attack:
    """share: of centers that attack, drawn by the seed.  strength: how many times as far a model is sent.
    round: of the one huge message.  start: the first round in which what is sent is changed."""

    name: Name
    share: float = 0.2
    strength: float = 10.0
    round: int = 3
    start: int = 1

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise RequestError(
                f"there is no attack {self.name!r}{nearest(self.name, NAMES)}; choose {', '.join(NAMES)}"
            )
        if not 0 < self.share < 1:
            raise RequestError(f"share={self.share}: a share of the centers, choose between 0 and 1")

    def __str__(self) -> str:
        text = f"{self.name}:share={self.share:g},strength={self.strength:g},round={self.round}"
        return text if self.start == 1 else f"{text},start={self.start}"

    def on_rows(self, data: Prepared, who: NDArray[np.bool_]) -> Prepared:
        """The federation as its attackers see it: their training rows are changed, nobody's others."""
        if self.name not in ("label-flip", "poison"):
            return data
        if not data.outcome.binary:
            raise RequestError(
                f"attack {self.name!r} turns a binary outcome around; this one is {data.outcome.kind}; "
                "choose an attack on what is sent"
            )
        train = data.train
        mine = np.repeat(who, train.sizes)
        x, y = train.x.copy(), train.y.copy()
        if self.name == "poison":
            # Every third row: an extreme patient with the other outcome.
            mine &= np.arange(len(mine)) % 3 == 0
            x[mine] = np.abs(train.x).max(axis=0)
        y[mine] = 1.0 - y[mine]
        return replace(data, train=Rows(x, y, train.start))

    def on_sent(
        self,
        sent: NDArray[Any],
        before: NDArray[Any],
        received: NDArray[Any] | None,
        start: NDArray[Any],
        who: NDArray[np.bool_],
        seed: int,
        t: int,
        ids: NDArray[np.uint64],
    ) -> NDArray[Any]:
        """(n, shared) what leaves when attackers send something else.

        sent: what honest centers would. before: models at the start of the round. received: what each last
        received.
        """
        spoiled, pushed = sent.copy(), min(sent.shape[1], MOST_PUSHED)
        if t < self.start:
            return spoiled
        for i in np.flatnonzero(who).tolist():
            if self.name in BACKWARDS:
                spoiled[i] = 2 * start - sent[i]
            elif self.name == "scale":
                spoiled[i] = start + self.strength * (sent[i] - start)
            elif self.name == "coefficient":
                at = int(streams.uniforms(seed, "attack", 1, np.zeros(1, np.uint64))[0] * pushed)
                spoiled[i, at] += self.strength * np.sqrt(np.square(sent[i] - start)[:pushed].mean())
            elif self.name == "random":
                size = float(np.sqrt(np.square(sent[i] - start).mean()))
                noise = streams.generator(seed, "attack", t, int(ids[i])).standard_normal(sent.shape[1])
                spoiled[i] = start + size * np.asarray(noise, dtype=np.float32)
            elif self.name == "nan":
                spoiled[i] = float("nan")
            elif self.name == "huge" and t == self.round:
                signs = streams.generator(seed, "attack", t, int(ids[i])).integers(0, 2, sent.shape[1])
                spoiled[i] = (9e5 * (2.0 * signs - 1.0)).astype(np.float32)
            elif self.name == "free-rider":
                spoiled[i] = before[i]
            elif self.name == "copy" and received is not None and received.shape[1] == sent.shape[1]:
                spoiled[i] = received[i]
        return spoiled


@dataclass(frozen=True, eq=False)
class Attackers:
    """An attack under way.  who: (n,) attackers.  received: (n, shared) what each center last received."""

    attack: Attack
    who: NDArray[np.bool_]
    received: Weights | None = None

    def published(self, vectors: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n, k) what members publish of themselves; some attackers lie."""
        if self.attack.name not in ("liar", "clique") or not vectors.size:
            return vectors
        published, honest = vectors.copy(), vectors[~self.who]
        published[self.who] = honest.mean(axis=0) if self.attack.name == "liar" else honest[0]
        return published

    def sent(self, sent: Weights, before: Weights | None, context: Context, t: int) -> Weights:
        start = np.zeros(sent.shape[1], dtype=np.float32)
        known = min(len(start), len(context.learner.start))
        start[:known] = context.learner.start[:known]
        then = repeated(start, len(sent)) if before is None else before
        return self.attack.on_sent(sent, then, self.received, start, self.who, context.seed, t, context.ids)

    def uploaded(self, values: NDArray[np.float64], context: Context, t: int) -> NDArray[np.float64]:
        sent, nothing = np.nan_to_num(values), np.zeros_like(values)
        keys = (context.seed, t, context.ids)
        spoiled = self.attack.on_sent(sent, nothing, nothing, nothing[0], self.who, *keys)
        # NaN stands for numbers that were not sent; attackers send what is no number as infinity.
        spoiled = np.where(np.isnan(spoiled), np.inf, spoiled)
        return np.where(np.isnan(values) & ~self.who[:, None], np.nan, spoiled)

    def arrived(self, sent: Weights, arrived: Weights) -> Weights:
        """(n, shared) what receivers see: only an attacker can write what is no number."""
        none = ~np.isfinite(sent).all(axis=1)
        if not none.any():
            return arrived
        seen = arrived.copy()
        seen[none] = float("nan")
        return seen

    def hear(self, arrived: Weights, to: Ints, by: Ints) -> Attackers:
        received = arrived.copy() if self.received is None else self.received.copy()
        received[to] = arrived[by]
        return replace(self, received=received)


def parse(text: str) -> Attack:
    """``sign-flip:share=0.2,strength=5`` as an attack."""
    name, _, rest = text.partition(":")
    settings: dict[str, float] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if key not in ("share", "strength", "round", "start") or not equals:
            raise RequestError(
                f"attack {text!r}: {pair!r} is no setting; choose share, strength, round or start"
            )
        try:
            settings[key] = int(value) if key in ("round", "start") else float(value)
        except ValueError as error:
            raise RequestError(f"attack {text!r}: {value!r} is not a number") from error
    return Attack(name, **settings)  # type: ignore[arg-type]


def attackers_of(attack: str | Attack, seed: int, ids: NDArray[np.uint64]) -> Attackers:
    """An attack on these centers: by the same ones whatever the method; at least one, never all."""
    how = parse(attack) if isinstance(attack, str) else attack
    draw = streams.uniforms(seed, "attack", 0, ids)
    who = np.zeros(len(ids), dtype=bool)
    who[np.argsort(draw, kind="stable")[: min(max(1, round(how.share * len(ids))), len(ids) - 1)]] = True
    return Attackers(how, who)
