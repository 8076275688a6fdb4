"""Belief against truth: what a mix really does to a center's loss, on rows that nobody learned from.

In a simulation the test rows are here. In some rounds, evenly spread, every mix is tried on them before
anything is decided; what the center believes of it, from validation rows, stands beside that. Where
the federation is made, further patients of every center are, and each has the chance that is known of them
instead of an outcome: so few rows, and what happened by chance, blur the truth less. Its own error is told
and allowed for.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core.peer_effects import PeerEffects, chance
from abps.data.prepare import Prepared, Rows, prepare
from abps.data.synthetic.builtin import further_patients
from abps.data.table import federate
from abps.models.metrics import Segments, gains

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Mixes at most that are tried in a run.
MIXES = 2000

#: Further patients of a center at most, and of all centers, on whom mixes are tried.
FURTHER, ROWS = 400, 60_000

#: The normal quantile of a 95 % interval.
WIDE = 1.959964

#: Of a peer: mean, low and high end of the 95 % interval, P(helps), meetings.
Told = tuple[float, float, float, float, int]

#: Peers at most that a result names for each center: those met most often.
MOST_PEERS = 8


@dataclass(frozen=True, eq=False)
class Effect:
    """True effects: (k,) whose, with whom, in which round, what the mix takes off the loss, and its error."""

    center: Ints
    peer: Ints
    round: Ints
    value: Floats
    error: Floats


@dataclass(frozen=True)
class BeliefCheck:
    """How beliefs stand against the truth, and what is believed.

    against: on what rows the truth was measured.  pairs: mixes that were tried.
    cover: the share of 95 % intervals with the truth in them, the truth's own error allowed for.
    told, helped, counts: in fifths of P(helps): its mean, the share of mixes that truly helped, how many.
    per_center: by center and peer, of the last meeting: mean, low, high (95 %), P(helps), meetings.
    """

    against: str = ""
    pairs: int = 0
    cover: float = float("nan")
    told: tuple[float, ...] = ()
    helped: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    per_center: dict[str, dict[str, Told]] = field(default_factory=dict)


def truth_rows(data: Prepared) -> tuple[Rows, str]:
    """Rows of every center that nobody learns from, and what they are: its test rows; where the federation is
    made, further patients, with their true chances instead of what happened to them."""
    each = min(FURTHER, ROWS // data.size)
    further = further_patients(data.name, each) if data.splines and each > data.test.sizes.mean() else None
    if further is None:
        return data.test, "own test rows"
    frame, roles, chances = further
    here = frame.filter(pl.col("center").is_in(data.centers))
    more = replace(federate(here, roles, data.name, 1), in_order=True)
    # Encoded as all rows are; that they are called training rows is of no consequence.
    split = np.zeros(more.rows, dtype=np.int8)
    encoded = prepare(more, data.seed, data.book, split, "common", splines=True).train
    name = frame["center"].to_numpy()
    known = chances[np.isin(name, more.centers)][np.argsort(more.center, kind="stable")]
    # Who has too few events among them has none of these rows.
    sizes = dict(zip(more.centers, encoded.sizes.tolist()))
    start = np.cumsum([0, *(sizes.get(center, 0) for center in data.centers)])
    rows = Rows(encoded.x, known.astype(np.float32), start)
    return rows, "further patients of the center, by their true chances"


def looked_at(t: int, n: int, horizon: int) -> bool:
    """Whether the mixes of round t are tried."""
    return t % max(1, n * horizon // MIXES) == 0


def true_effects(center: Ints, peer: Ints, t: int, before: Segments, after: Segments, rows: Rows) -> Effect:
    """What mixes took off the loss; before, after: logits on the rows, a model per center."""
    mean, error = gains(rows, before, after)
    return Effect(center, peer, np.full(len(center), t), mean[center], error[center])


def checked(belief: PeerEffects, truth: list[Effect], centers: tuple[str, ...], against: str) -> BeliefCheck:
    """Beliefs beside the truth."""
    n = len(centers)
    key = (belief.round * n + belief.center) * n + belief.peer
    order = np.argsort(key, kind="stable")
    mean, sd, value, error = (np.zeros(0) for _ in range(4))
    if truth and len(key):
        whole = Effect(
            *(
                np.concatenate([getattr(each, name) for each in truth])
                for name in ("center", "peer", "round", "value", "error")
            )
        )
        asked = (whole.round * n + whole.center) * n + whole.peer
        at = order[np.minimum(np.searchsorted(key[order], asked), len(key) - 1)]
        some = (key[at] == asked) & np.isfinite(whole.value) & np.isfinite(whole.error)
        mean, sd, value, error = (
            belief.mean[at[some]],
            belief.sd[at[some]],
            whole.value[some],
            whole.error[some],
        )
    inside = np.abs(value - mean) <= WIDE * np.sqrt(sd**2 + error**2)
    helps = chance(mean, sd)
    fifth = np.minimum((5 * helps).astype(np.int64), 4)
    return BeliefCheck(
        against,
        len(value),
        float(inside.mean()) if len(value) else float("nan"),
        tuple(_mean(helps[fifth == k]) for k in range(5)),
        tuple(_mean(value[fifth == k] > 0) for k in range(5)),
        tuple(int((fifth == k).sum()) for k in range(5)),
        _named(belief, centers),
    )


def _mean(values: NDArray[np.bool_] | Floats) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def _named(belief: PeerEffects, centers: tuple[str, ...]) -> dict[str, dict[str, Told]]:
    """What each center believes of the peers that it met most often, as of their last meeting."""
    n, helps = len(centers), belief.helps()
    often = np.bincount(belief.center * n + belief.peer, minlength=1)
    last = belief.last()
    met = often[belief.center[last] * n + belief.peer[last]]
    found: dict[str, dict[str, Told]] = {}
    for k, count in sorted(zip(last.tolist(), met.tolist()), key=lambda entry: (-entry[1], entry[0])):
        mine = found.setdefault(centers[belief.center[k]], {})
        if len(mine) < MOST_PEERS:
            mean, sd = float(belief.mean[k]), float(belief.sd[k])
            low, high = round(mean - WIDE * sd, 6), round(mean + WIDE * sd, 6)
            told = (round(mean, 6), low, high, round(float(helps[k]), 3), count)
            mine[centers[belief.peer[k]]] = told
    return dict(sorted(found.items()))
