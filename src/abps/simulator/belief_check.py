"""Belief against truth: what a mix really does to a center's loss, on rows that nobody learned from.

In a simulation the test rows are here. In some rounds, evenly spread, every mix is tried on them before
anything is decided; what the center believes of it right after, from its validation rows alone, stands
beside that. Where centers of one group follow one risk by construction, the rows of all of them count for
each, so that the truth is known better than any center can know it; its own error is told and allowed for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from abps.core.peer_effects import PeerEffects, chance
from abps.data.prepare import Prepared, Rows
from abps.learn.metrics import Segments, gains

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Mixes at most that are tried in a run, and test rows of each.
MIXES, ROWS = 2000, 400

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


def truth_rows(data: Prepared, alike: bool) -> Rows:
    """Each center's test rows; alike: those of all centers of its group, at most so many."""
    if not alike or not data.groups:
        return data.test
    groups, test = np.array(data.groups), data.test
    index = []
    for i in range(data.size):
        members = np.flatnonzero(groups == groups[i])
        rows = np.concatenate([np.arange(test.start[m], test.start[m + 1]) for m in members])
        # Evenly spread over the group, own rows or not.
        index.append(rows[np.linspace(0, len(rows) - 1, min(len(rows), ROWS)).astype(np.int64)])
    whole = np.concatenate(index)
    start = np.concatenate([[0], np.cumsum([len(rows) for rows in index])])
    return Rows(test.x[whole], test.y[whole], start, outcome=test.outcome)


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
