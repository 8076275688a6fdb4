"""Which uploads of abps-plus a coordinator lets in, and how far a single one may move the sums.

Three checks, each with a reason in the audit trail: numbers must be finite; sums must be possible (no
negative squares, as many rows as reported); and the score must lie no farther from the others' than rows
explain. Members of different clusters send scores at different models, and a small cluster's may lie far from
all others: there the score must lie no farther than its own cluster's do. A score that is far but not
impossible is shortened, and so are squared deviations and half scores, so that one member has a bounded
influence; what several push together is cut. Who is left out in the first two exchanges stays out: later,
when models are fitted, false rows no longer show in scores.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abps.methods.base import Decisions, Floats, Ints
from abps.methods.plus_state import LocalRows, PlusState
from abps.models.structure import Whitening
from abps.wire.number_lists import Fields

#: Distances from the middle of all scores, in medians: beyond the first a score is shortened, beyond the
#: second it is left out; who was so in the first exchange returns in the second only within the third.
SHORTEN, EXCLUDE, RETURN = 1.8, 3.0, 1.5

#: Numbers of a score are cut at so many standard deviations of all members if what lies beyond adds up to so
#: many standard errors of the sum, in so few columns, of which this share of members know something.
#: Hospitals that truly differ do so in several columns; to cut these would hide them from the search for
#: clusters.
FARTHEST_NUMBER, FARTHEST_SUM, MOST_AIMED, COMMON_COLUMN = 2.0, 3.0, 1, 0.5
SIGNS = np.array([-1.0, 1.0])[:, None, None]

#: The same along any direction, of the few in which scores lie farthest apart.
FARTHEST_PUSH, MOST_DIRECTIONS = 4.0, 10

#: In the second exchange a member is left out for good whose rows say the opposite of what most say: along
#: the common model at least this share of the usual, and so many standard deviations from it.
REVERSED, FARTHEST_AGAINST = 0.25, 3.0

#: Who is left out in so many first exchanges stays out.
FIRST_EXCHANGES = 2

#: Squared deviations per degree of freedom, in medians of all, beyond which they are shortened.
LONGEST_SQUARES = 4.0

#: Rows may differ by this factor from what a member reported, in medians of all.
ROWS_FACTOR = 1.6

#: The longest half score, in lengths that are expected; information per row may differ by a factor from the
#: median of all.
LONGEST_HALF, INFORMATION_FACTOR = 1.5, 2.5

#: The most standard errors that one member's score of a pair of columns may count for.
LONGEST_PAIR = 5.0

#: The farthest position along a shared deviation, in standard deviations.
FARTHEST_PLACE = 3.0

#: Members that a coordinator needs to compare before it judges distances.
FEWEST = 6


#: Curvature of the penalised loss that there is in every direction, in units of scores.
LEAST_CURVATURE = 1e-6

#: Why such a member is left out.
AGAINST = "its rows say the opposite of the others'"

#: Who sends nearly what another member does, but for its size, made it up: other rows have other noise. Of so
#: many numbers at least, which are no smaller than this share of their noise, this share of the squares may
#: differ, and this share of the noise. Rounding changes less, and chance brings nobody so near.
FEWEST_NUMBERS, LEAST_SAID, OWN_SHARE, OWN_NOISE = 12, 0.5, 0.003, 0.1
COPIED = "it sends what another member sends"

#: Members that are compared with all others at once.
BLOCK = 500

#: Sums that cannot be negative.
NOT_NEGATIVE = (
    "diagonal",
    "doubt",
    "losses",
    "raw",
    "squares",
    "dof",
    "shift_squares",
    "shift_dof",
    "place_squares",
    "place_dof",
)

#: What rounding may add to a sum.
SLACK = 1e-3


@dataclass(frozen=True, eq=False)
class Screened:
    """accepted: (n,) whose uploads count.  excluded: (n,) whose do not although they sent one.  reason: (n,)
    why not.  values: (n, entries) what counts of them, zero where a member is left out."""

    accepted: NDArray[np.bool_]
    excluded: NDArray[np.bool_]
    reason: NDArray[np.object_]
    values: Floats

    def decisions(self) -> Decisions | None:
        """The members that were left out, as rows of the audit trail."""
        who = np.flatnonzero(self.excluded)
        if not len(who):
            return None
        nothing = np.full(len(who), np.nan)
        word = np.full(len(who), "excluded", dtype=object)
        return Decisions(who, np.full(len(who), -1), word, nothing, nothing, nothing, self.reason[who])


def screen(
    fields: Fields,
    uploads: Floats,
    reported: Floats,
    state: PlusState,
    local: LocalRows,
    robust: bool,
    cluster: Ints | None = None,
) -> Screened:
    """What counts of uploads (n, entries) that begin with ``fields``; reported: (n,) rows as members reported
    them; robust: whether more is checked than that numbers are finite; cluster: (n,) the cluster at whose
    model members say that their scores are, where it is not the same for all."""
    own = uploads[:, : fields.length]
    present, accepted = ~np.isnan(own).all(axis=1), np.asarray(np.isfinite(own).all(axis=1))
    values = np.where(accepted[:, None], own, 0.0)
    reason = np.where(accepted, "", "not finite").astype(object)

    def leave_out(who: NDArray[np.bool_], why: str) -> None:
        nonlocal accepted
        reason[accepted & who] = why
        accepted = accepted & ~who

    if robust:
        parts = fields.unpack(values)
        if state.exchanges >= FIRST_EXCHANGES:
            leave_out(state.excluded, "left out before")
        leave_out(~_possible(parts, reported, accepted, state, local), "impossible sums")
        if accepted.sum() >= FEWEST:
            far, scores, again = _bounded(parts, reported, accepted, state, cluster)
            leave_out(again, COPIED)
            usual = 1.0 if cluster is None else _usual_distance(far, cluster, accepted)
            most = np.where(state.excluded, RETURN, EXCLUDE) if state.exchanges == 1 else EXCLUDE
            leave_out(far > most * usual, "score too far from all others")
            if state.exchanges == 1:
                leave_out(_against(parts, reported, accepted, state), AGAINST)
            values[:, : local.q] = scores
            if "squares" in parts:
                parts["squares"][:] *= _shortened(parts, accepted)[:, None]
            if "pull" in parts:
                _bound_positions(parts, accepted)
    return Screened(accepted, present & ~accepted, reason, np.where(accepted[:, None], values, 0.0))


def copied(values: Floats) -> NDArray[np.bool_]:
    """(n,) whose values (n, k), in units of their noise, nearly equal another member's but for size."""
    length, found = (values**2).sum(axis=1), np.zeros(len(values), dtype=bool)
    if values.shape[1] < FEWEST_NUMBERS:
        return found
    who = np.flatnonzero(length > LEAST_SAID * values.shape[1])
    for some in np.split(who, np.arange(BLOCK, len(who), BLOCK)):
        alike = (values[some] @ values[who].T) ** 2 / np.outer(length[some], length[who])
        alike[some[:, None] == who] = 0.0
        own = 1.0 - alike.max(axis=1, initial=0.0)
        found[some] = (own < OWN_SHARE) & (own * length[some] < OWN_NOISE * values.shape[1])
    return found


def _shortened(parts: dict[str, Floats], accepted: NDArray[np.bool_]) -> Floats:
    """(n,) by what squared deviations are multiplied; each group of columns in medians of all members."""
    ratio = parts["squares"] / np.maximum(parts["dof"], 1e-6)
    ratio = (ratio / np.maximum(np.median(ratio[accepted], axis=0), 1e-12)).mean(axis=1)
    return LONGEST_SQUARES / np.maximum(ratio / max(np.median(ratio[accepted]), 1e-9), LONGEST_SQUARES)


def _bound_positions(parts: dict[str, Floats], accepted: NDArray[np.bool_]) -> None:
    """No position counts as farther than :data:`FARTHEST_PLACE`, and no pull on shared deviations is longer
    than so many medians of all."""
    np.minimum(parts["place_squares"], FARTHEST_PLACE**2, out=parts["place_squares"])
    length = np.sqrt((parts["pull"] ** 2).sum(axis=1))
    most = FARTHEST_PLACE * np.median(length[accepted])
    parts["pull"][:] *= (most / np.maximum(length, max(most, 1e-12)))[:, None]


def bounded_pairs(parts: Floats) -> tuple[Floats, Floats]:
    """Sums (terms, candidates) of the scores and information (n, 2, terms, candidates) of pairs of columns;
    no member's score counts for more than :data:`LONGEST_PAIR` of its own standard errors."""
    fine = np.asarray(np.isfinite(parts).all(axis=(1, 2, 3)))
    fine[fine] = (parts[fine, 1] >= 0).all(axis=(1, 2))
    score, information = parts[fine].swapaxes(0, 1)
    if len(parts) > 1:  # not the sum of all under masks
        most = LONGEST_PAIR * np.sqrt(information)
        score = np.clip(score, -most, most)
    return score.sum(axis=0), information.sum(axis=0)


def bounded_information(information: Floats, reported: Floats) -> Floats:
    """(n,) information of no more and no less per reported row than a few times the usual."""
    ratio = information / np.maximum(reported, 1.0)
    usual = float(np.median(ratio))
    return np.clip(ratio, usual / INFORMATION_FACTOR, usual * INFORMATION_FACTOR) * np.maximum(reported, 1.0)


def bounded_halves(halves: Floats, information: Floats, whitening: Whitening) -> Floats:
    """(n, 2, columns) half scores none of which is much longer than its information and the usual deviation
    explain; zero where the two say opposite things, as halves of the same rows do not (their product has a
    mean that is not negative), and where they are copied."""
    white = halves @ whitening.out / np.sqrt(information / 2)[:, None, None]
    squares, free = (white**2).sum(axis=2).max(axis=1), white.shape[2]
    opposite = (white[:, 0] * white[:, 1]).sum(axis=1) < -FARTHEST_AGAINST * np.sqrt(free)
    deviation = max(float(np.median((squares - free) / information)), 0.0)
    most = LONGEST_HALF * np.sqrt(free + deviation * information)
    false = opposite | copied(white.reshape(len(white), -1))
    factor = np.where(false, 0.0, np.minimum(1.0, most / np.sqrt(np.maximum(squares, 1e-9))))
    return halves * factor[:, None, None]


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
        fine &= near | (np.abs(rows - reported * usual) <= 10)
    if "members" in parts:
        fine &= (parts["members"][:, 0] == 1) & (parts["middle"][:, local.constants] >= 0).all(axis=1)
    return fine


def _bounded(
    parts: dict[str, Floats],
    reported: Floats,
    accepted: NDArray[np.bool_],
    state: PlusState,
    cluster: Ints | None,
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """(n,) how far scores lie from the middle, in medians of all, (n, q) scores of bounded influence, and
    (n,) who copied its score.

    The middle is that of a member's cluster if enough others are in it, else that of all.
    """
    scores, share = parts["score"], np.maximum(reported, 1.0) / reported[accepted].sum()
    if "diagonal" in parts:
        size = np.sqrt(np.maximum(parts["diagonal"][accepted].sum(axis=0), 1e-9))
        out, back = np.diag(1.0 / size), np.diag(size)
    else:
        size = np.ones(scores.shape[1])
        # How far a score moves the model is what counts, also where all rows together say little.
        system = state.fit.curvature + np.diag(state.fit.penalty)
        value, vector = np.linalg.eigh(system / np.outer(state.scale, state.scale))
        root = np.sqrt(np.maximum(value, LEAST_CURVATURE))
        out, back = vector / root, (vector * root).T
    white = scores @ out
    together = list[tuple[NDArray[np.bool_], NDArray[np.bool_]]]()
    for name in (0,) if cluster is None else np.unique(cluster).tolist():
        mine = np.ones(len(share), dtype=bool) if cluster is None else cluster == name
        together.append((mine, accepted & mine if (accepted & mine).sum() >= FEWEST else accepted))

    def from_middle(values: Floats) -> Floats:
        middle = np.zeros_like(values)
        for mine, others in together:
            each = values[others] / share[others, None]
            middle[mine] = share[mine, None] * _weighted_median(each, share[others])
        return values - middle

    far = np.sqrt((from_middle(white) ** 2).mean(axis=1) / share)
    far = far / _explained(far, share, accepted)
    gap = from_middle(scores)
    middle = scores - gap
    gap *= np.minimum(1.0, SHORTEN / np.maximum(far, 1e-9))[:, None]
    for mine, others in together:
        _cut_aimed(gap, scores, share, size, mine, others)
    if cluster is None and "diagonal" not in parts:
        gap -= _pushed_together(gap @ out, share, accepted) @ back
    return far, middle + gap, copied(white / np.sqrt(share)[:, None])


def _explained(far: Floats, share: Floats, accepted: NDArray[np.bool_]) -> Floats:
    """(n,) the distances that rows and the usual deviation between members explain, from distances (n,) in
    standard errors: members that know little lie as far as chance takes them, and by how much a deviation
    stands out grows with what a member knows. Chance takes nobody farther than half of all lie: those that
    know little may be the ones that lie."""
    square, part = far[accepted] ** 2, share[accepted]
    chance = float(min(np.median(square[part <= np.median(part)]), np.median(square)))
    deviation = float(_weighted_median(((square - chance) / part)[:, None], part)[0])
    return np.sqrt(np.maximum(chance + max(deviation, 0.0) * share, 1e-18))


def _cut_aimed(
    gap: Floats,
    scores: Floats,
    share: Floats,
    size: Floats,
    mine: NDArray[np.bool_],
    others: NDArray[np.bool_],
) -> None:
    """Cuts in place what pushes single columns of some members' gaps (n, q) from the middle of the others."""
    unit = np.sqrt(share)[:, None] * size  # the standard error of a member's score, where all know alike
    spread = 1.4826 * np.median(np.abs(gap / unit)[others], axis=0)
    # Of a column that few members have rows of, those few may say whatever they find.
    common = (scores[others] != 0).mean(axis=0) > COMMON_COLUMN
    beyond = gap - np.clip(gap, *(FARTHEST_NUMBER * np.maximum(spread, 1.0) * unit * SIGNS))
    pushed = np.abs(beyond[mine & others].sum(axis=0)) > FARTHEST_SUM * size * np.sqrt(share[mine].sum())
    if 0 < (common & pushed).sum() <= MOST_AIMED >= pushed.sum():
        at = np.ix_(mine, common & pushed)
        gap[at] = np.clip(gap, *(FARTHEST_NUMBER * spread * unit * SIGNS))[at]


def _pushed_together(white: Floats, share: Floats, accepted: NDArray[np.bool_]) -> Floats:
    """(n, m) what gaps have too much of along directions in which some members push together.

    white: (n, m) gaps from the middle in coordinates in which they have the identity times a member's share
    as covariance. Where some push together, gaps lie far apart.
    """
    size = np.sqrt(share)[:, None]
    unit = white / size
    ways = np.linalg.svd(unit[accepted], full_matrices=False)[2][:MOST_DIRECTIONS]
    along = unit @ ways.T
    along -= _weighted_median(along[accepted], share[accepted])
    spread = FARTHEST_NUMBER * 1.4826 * np.median(np.abs(along[accepted]), axis=0)
    sure = np.maximum(spread, FARTHEST_NUMBER)
    push = (size * (along - np.clip(along, -sure, sure)))[accepted].sum(axis=0)
    far = np.abs(push) > FARTHEST_PUSH * np.sqrt(share.sum())
    return np.asarray((size * (along - np.clip(along, -spread, spread)) * far) @ ways)


def _against(
    parts: dict[str, Floats], reported: Floats, accepted: NDArray[np.bool_], state: PlusState
) -> NDArray[np.bool_]:
    """(n,) whose rows say the opposite of what most say: labels may be swapped.

    What a member's rows say along the common model is its score there and its share of the model itself.
    """
    share, model = np.maximum(reported, 1.0) / reported[accepted].sum(), state.fit.point * state.scale
    model = np.where(state.variance > 0, 0.0, model)
    unit = state.fit.curvature / np.outer(state.scale, state.scale)
    said = (parts["score"] + share[:, None] * (unit @ model)) @ model
    usual = share * _weighted_median((said / share)[accepted, None], share[accepted])
    gap = (said - usual) / np.sqrt(share)
    spread = 1.4826 * np.median(np.abs(gap[accepted]))
    return np.asarray((said < -REVERSED * usual) & (gap < -FARTHEST_AGAINST * spread) & (usual > 0))


def _usual_distance(far: Floats, cluster: Ints, accepted: NDArray[np.bool_]) -> Floats:
    """(n,) how far the scores of each member's cluster lie, at least as far as those of all: the lower
    median, because of two members one may lie."""
    usual = np.ones(len(far))
    for name in np.unique(cluster[accepted]).tolist():
        mine = cluster == name
        usual[mine] = max(1.0, float(np.quantile(far[mine & accepted], 0.5, method="lower")))
    return usual


def _weighted_median(values: Floats, weights: Floats) -> Floats:
    """(q,) the median of every column of values (n, q), by weights (n,)."""
    order = np.argsort(values, axis=0)
    running = np.cumsum(weights[order], axis=0)
    at = (running >= 0.5 * weights.sum()).argmax(axis=0)
    return np.take_along_axis(np.take_along_axis(values, order, 0), at[None], 0)[0]
