"""Which uploads of abps-plus a coordinator lets in, and how far a single one may move the sums.

Three checks, each with a reason in the audit trail: numbers must be finite; sums must be possible (no
negative squares, as many rows as reported); and the score must lie no farther from the others' than rows
explain. A score that is far but not impossible is shortened, so that one member has a bounded influence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abps.methods.base import Decisions, Floats
from abps.methods.plus_state import LocalRows, Phase, PlusState
from abps.models.structure import Whitening
from abps.wire.fields import Fields

#: Distances from the middle of all scores, in medians: beyond the first a score is shortened, beyond the
#: second it is left out.
SHORTEN, EXCLUDE = 1.8, 3.0

#: Rows may differ by this factor from what a member reported, in medians of all.
ROWS_FACTOR = 1.6

#: The most standard errors that one member's score of a pair of columns may count for.
LONGEST_PAIR = 5.0

#: Members that a coordinator needs to compare before it judges distances.
FEWEST = 6


@dataclass(frozen=True, eq=False)
class Screened:
    """accepted: (n,) whose uploads count.  reason: (n,) why not.  scores: (n, q) what counts of them."""

    accepted: NDArray[np.bool_]
    reason: NDArray[np.object_]
    scores: Floats

    def decisions(self, present: NDArray[np.bool_]) -> Decisions | None:
        """The members that were left out, as rows of the audit trail."""
        who = np.flatnonzero(present & ~self.accepted)
        if not len(who):
            return None
        nothing = np.full(len(who), np.nan)
        word = np.full(len(who), "excluded", dtype=object)
        return Decisions(who, np.full(len(who), -1), word, nothing, nothing, nothing, self.reason[who])


def screen(
    phase: Phase, fields: Fields, uploads: Floats, reported: Floats, state: PlusState, local: LocalRows
) -> Screened:
    """What counts of uploads (n, entries); reported: (n,) rows as members reported them."""
    own = uploads[:, : fields.length]
    reason = np.full(len(own), "", dtype=object)
    finite = np.asarray(np.isfinite(own).all(axis=1))
    reason[~finite] = "not finite"
    parts = fields.unpack(np.where(finite[:, None], own, 0.0))
    possible = _possible(phase, parts, reported, finite, state, local)
    reason[finite & ~possible] = "impossible sums"
    accepted = finite & possible
    scores = parts["score"].copy()
    if accepted.sum() >= FEWEST:
        far, weight, middle = _distances(phase, parts, reported, accepted, state)
        reason[accepted & (far > EXCLUDE)] = "score too far from all others"
        accepted &= far <= EXCLUDE
        scores = middle + weight[:, None] * (scores - middle)
    return Screened(accepted, reason, scores)


def bounded_pairs(score: Floats, information: Floats, screened: Screened) -> tuple[Floats, Floats]:
    """Sums (terms, candidates) of the scores and information (n, terms, candidates) of pairs of columns; no
    member's score counts for more than :data:`LONGEST_PAIR` of its own standard errors."""
    if len(score) > 1:
        most = LONGEST_PAIR * np.sqrt(information)
        score = np.clip(score, -most, most)
    fine = screened.accepted
    return score[fine].sum(axis=0), information[fine].sum(axis=0)


def _possible(
    phase: Phase,
    parts: dict[str, Floats],
    reported: Floats,
    finite: NDArray[np.bool_],
    state: PlusState,
    local: LocalRows,
) -> NDArray[np.bool_]:
    """(n,) whether sums can be what they say they are."""
    fine = np.ones(len(finite), dtype=bool)
    slack = 1e-3
    if phase is Phase.START:
        fine &= (parts["diagonal"] >= 0).all(axis=1) & (parts["members"][:, 0] == 1)
        fine &= (parts["middle"][:, local.constants] >= 0).all(axis=1) & (parts["raw"][:, 0] >= 0)
        top = state.fit.intercept_variance * (1 + slack)
        fine &= ((parts["doubt"] >= 0) & (parts["doubt"] <= top)).all(axis=1)
        ratio = parts["rows"][:, 0] / np.maximum(reported, 1.0)
        usual = np.median(ratio[finite]) if finite.any() else 1.0
        near = (ratio <= ROWS_FACTOR * usual) & (ratio >= usual / ROWS_FACTOR)
        fine &= near | (np.abs(parts["rows"][:, 0] - reported * usual) <= 10)
    elif phase in (Phase.COMMON_FIT, Phase.PAIRS, Phase.CLUSTER_FIT):
        if phase is Phase.PAIRS:
            fine &= (parts["pair_information"] >= 0).all(axis=1)
        fine &= (parts["losses"] >= 0).all(axis=1) & (parts["raw"][:, 0] >= 0)
    else:
        count = np.bincount(local.group[local.group >= 0], minlength=local.groups)
        fine &= (parts["squares"] >= 0).all(axis=1) & (parts["shift_squares"] >= 0).all(axis=1)
        fine &= ((parts["dof"] >= -slack) & (parts["dof"] <= count * (1 + 0.01) + slack)).all(axis=1)
        fine &= ((parts["shift_dof"] >= -slack) & (parts["shift_dof"] <= 1 + slack)).all(axis=1)
    return fine


def _distances(
    phase: Phase,
    parts: dict[str, Floats],
    reported: Floats,
    accepted: NDArray[np.bool_],
    state: PlusState,
) -> tuple[Floats, Floats, Floats]:
    """(n,) how far scores lie from the middle in medians of all, (n,) by what they are shortened, and (n, q)
    the middle for a member's rows."""
    scores = parts["score"]
    share = np.maximum(reported, 1.0) / reported[accepted].sum()
    if phase is Phase.START:
        total = np.maximum(parts["diagonal"][accepted].sum(axis=0), 1e-9)
        white = scores / np.sqrt(total)
    else:
        curvature = state.fit.curvature / np.outer(state.scale, state.scale)
        white = scores @ Whitening.of(curvature).out
    per_row = white / share[:, None]
    middle = _weighted_median(per_row[accepted], share[accepted])
    raw = _weighted_median(scores[accepted] / share[accepted, None], share[accepted])
    gap = (white - share[:, None] * middle) / np.sqrt(share)[:, None]
    far = np.sqrt((gap**2).mean(axis=1))
    usual = max(float(np.median(far[accepted])), 1e-9)
    far = far / usual
    weight = np.minimum(1.0, SHORTEN / np.maximum(far, 1e-9))
    return far, weight, share[:, None] * raw


def _weighted_median(values: Floats, weights: Floats) -> Floats:
    """(q,) the median of every column of values (n, q), by weights (n,)."""
    order = np.argsort(values, axis=0)
    running = np.cumsum(weights[order], axis=0)
    at = (running >= 0.5 * weights.sum()).argmax(axis=0)
    return np.take_along_axis(np.take_along_axis(values, order, 0), at[None], 0)[0]
