"""Which uploads of abps-plus a coordinator lets in, and how far a single one may move the sums.

Three checks, each with a reason in the audit trail: numbers must be finite; sums must be possible (no
negative squares, as many rows as reported); and the score must lie no farther from the others' than rows
explain. A score that is far but not impossible is shortened, so that one member has a bounded influence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abps.methods.base import Decisions, Floats
from abps.methods.plus_state import LocalRows, PlusState
from abps.models.structure import Whitening
from abps.wire.number_lists import Fields

#: Distances from the middle of all scores, in medians: beyond the first a score is shortened, beyond the
#: second it is left out.
SHORTEN, EXCLUDE = 1.8, 3.0

#: Numbers of a score are cut at so many standard deviations of all members if what is cut adds up to so many
#: standard errors of the sum in one column alone, of which most members know something: their standard
#: deviation exceeds this share of the one expected. Hospitals that truly differ do so in several columns; to
#: cut these would hide them from the search for clusters.
FARTHEST_NUMBER, FARTHEST_SUM, COMMON_COLUMN = 2.0, 3.0, 0.5

#: Rows may differ by this factor from what a member reported, in medians of all.
ROWS_FACTOR = 1.6

#: The most standard errors that one member's score of a pair of columns may count for.
LONGEST_PAIR = 5.0

#: Members that a coordinator needs to compare before it judges distances.
FEWEST = 6


#: Sums that cannot be negative.
NOT_NEGATIVE = (
    "diagonal", "doubt", "losses", "raw", "squares", "dof", "shift_squares", "shift_dof", "gain_squares",
)  # fmt: skip

#: What rounding may add to a sum.
SLACK = 1e-3


@dataclass(frozen=True, eq=False)
class Screened:
    """accepted: (n,) whose uploads count.  reason: (n,) why not.  values: (n, entries) what counts of them,
    zero where a member is left out."""

    accepted: NDArray[np.bool_]
    reason: NDArray[np.object_]
    values: Floats

    def decisions(self, present: NDArray[np.bool_]) -> Decisions | None:
        """The members that were left out, as rows of the audit trail."""
        who = np.flatnonzero(present & ~self.accepted)
        if not len(who):
            return None
        nothing = np.full(len(who), np.nan)
        word = np.full(len(who), "excluded", dtype=object)
        return Decisions(who, np.full(len(who), -1), word, nothing, nothing, nothing, self.reason[who])


def screen(
    fields: Fields, uploads: Floats, reported: Floats, state: PlusState, local: LocalRows, robust: bool
) -> Screened:
    """What counts of uploads (n, entries) that begin with ``fields``; reported: (n,) rows as members reported
    them; robust: whether more is checked than that numbers are finite."""
    own = uploads[:, : fields.length]
    accepted = np.asarray(np.isfinite(own).all(axis=1))
    values = np.where(accepted[:, None], own, 0.0)
    reason = np.where(accepted, "", "not finite").astype(object)
    if robust:
        parts = fields.unpack(values)
        possible = _possible(parts, reported, accepted, state, local)
        reason[accepted & ~possible] = "impossible sums"
        accepted &= possible
        if accepted.sum() >= FEWEST:
            far, scores = _bounded(parts, reported, accepted, state)
            reason[accepted & (far > EXCLUDE)] = "score too far from all others"
            accepted &= far <= EXCLUDE
            values[:, : local.q] = scores
    return Screened(accepted, reason, np.where(accepted[:, None], values, 0.0))


def bounded_pairs(score: Floats, information: Floats, accepted: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Sums (terms, candidates) of the scores and information (n, terms, candidates) of pairs of columns; no
    member's score counts for more than :data:`LONGEST_PAIR` of its own standard errors."""
    single, score, information = len(score) > 1, score[accepted], information[accepted]
    if single:  # not the sum of all under masks
        most = LONGEST_PAIR * np.sqrt(information)
        score = np.clip(score, -most, most)
    return score.sum(axis=0), information.sum(axis=0)


def _possible(
    parts: dict[str, Floats],
    reported: Floats,
    finite: NDArray[np.bool_],
    state: PlusState,
    local: LocalRows,
) -> NDArray[np.bool_]:
    """(n,) whether sums can be what they say they are."""
    fine = np.ones(len(finite), dtype=bool)
    columns = np.bincount(local.group[local.group >= 0], minlength=local.groups)
    most: dict[str, Any] = {"doubt": state.fit.intercept_variance, "shift_dof": 1.0, "dof": columns}
    for name, part in parts.items():
        if name in NOT_NEGATIVE:
            fine &= (part >= -SLACK).all(axis=1)
        if name in most:
            fine &= (part <= 1.01 * most[name] + SLACK).all(axis=1)
    if "rows" in parts:
        rows = parts["rows"][:, 0]
        ratio = rows / np.maximum(reported, 1.0)
        usual = np.median(ratio[finite]) if finite.any() else 1.0
        near = (ratio <= ROWS_FACTOR * usual) & (ratio >= usual / ROWS_FACTOR)
        fine &= (parts["members"][:, 0] == 1) & (near | (np.abs(rows - reported * usual) <= 10))
        fine &= (parts["middle"][:, local.constants] >= 0).all(axis=1)
    return fine


def _bounded(
    parts: dict[str, Floats], reported: Floats, accepted: NDArray[np.bool_], state: PlusState
) -> tuple[Floats, Floats]:
    """(n,) how far scores lie from the middle, in medians of all, and (n, q) scores of bounded influence."""
    scores, share = parts["score"], np.maximum(reported, 1.0) / reported[accepted].sum()
    if "diagonal" in parts:
        size = np.sqrt(np.maximum(parts["diagonal"][accepted].sum(axis=0), 1e-9))
        white = scores / size
    else:
        size = np.ones(scores.shape[1])
        white = scores @ Whitening.of(state.fit.curvature / np.outer(state.scale, state.scale)).out
    middle, raw = (
        share[:, None] * _weighted_median(each[accepted] / share[accepted, None], share[accepted])
        for each in (white, scores)
    )
    far = np.sqrt(((white - middle) ** 2).mean(axis=1) / share)
    far = far / max(float(np.median(far[accepted])), 1e-9)
    unit = np.sqrt(share)[:, None] * size  # the standard error of a member's score, where all know alike
    gap = (scores - raw) / unit * np.minimum(1.0, SHORTEN / np.maximum(far, 1e-9))[:, None]
    spread = 1.4826 * np.median(np.abs(gap[accepted]), axis=0)
    # Of a column that few members have rows of, those few may say whatever they find; and members of
    # different clusters send scores at different models.
    common = (spread > COMMON_COLUMN) & (not state.clusters.fits)
    cut = np.clip(gap, *(FARTHEST_NUMBER * np.maximum(spread, 1.0) * np.array([[-1.0], [1.0]])))
    pushed = np.abs((unit * (gap - cut))[accepted].sum(axis=0)) > FARTHEST_SUM * size
    aimed = common & pushed & (pushed.sum() == 1)
    return far, raw + unit * np.where(aimed, cut, gap)


def _weighted_median(values: Floats, weights: Floats) -> Floats:
    """(q,) the median of every column of values (n, q), by weights (n,)."""
    order = np.argsort(values, axis=0)
    running = np.cumsum(weights[order], axis=0)
    at = (running >= 0.5 * weights.sum()).argmax(axis=0)
    return np.take_along_axis(np.take_along_axis(values, order, 0), at[None], 0)[0]
