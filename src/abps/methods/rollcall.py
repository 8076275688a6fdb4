"""What is told at a roll call, and what a board makes of it.

All centers send a board their shared weights, and with them, where kin are looked for, scores
(:mod:`abps.lab.spectrum`), or, once they have been, the place that the board told them. The board is one of
the centers: it remembers nothing and sees no rows. It tells the mean model of all, and each center how the
mean model of its kin differs from that. Weights take a byte each, and two for the scale of 64.

An answer: how many shared weights, columns and null draws there are; the weights; then what comes beside.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from abps.lab import kinship, spectrum
from abps.methods.peers import Notice, Reply
from abps.methods.suspicion import LONGEST, cosines
from abps.wire.numerals import Form, Numerals, Stretch

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: What a board tells before the columns' loadings: p, dimensions, kinds, what public vectors add.
HEAD = 4

#: What an answer begins with: how many shared weights, columns and null draws there are.
FRONT = 3

#: Weights that share one scale.
BLOCK = 64

#: How many times farther than usual from the median model one may be that counts in a mean.
FARTHEST = 4.0

#: The least cosine between a model that counts in a mean and the median model.
ALONG = 0.2

#: How many times as much as the median a center's rows may count: one that claims many moves a mean.
LARGEST = 10.0

#: How often a direction is looked at in which slopes differ.
LOOKS = 10

#: How many times as long as is usual a slope may be that counts in a mean, or that a center believes.
STEEPEST = 2.0


@dataclass(frozen=True, eq=False)
class Answers:
    """What n members answered.

    there: (n,) who did.  weights: (n, W), zero where there are none.  trusted: (n,) whose count in means.
    sizes: (n,) training rows, none of which counts for too much.  columns, draws: of scores.
    beside: (n, entries) what came with the weights.
    broken: places of those who answered, and not with numbers.
    """

    there: NDArray[np.bool_]
    weights: Floats
    trusted: NDArray[np.bool_]
    sizes: Floats
    columns: int
    draws: int
    beside: Floats
    broken: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Hearing:
    """What one member is told: whether its kin are everybody, the mean of its kin (W,), its place, and its
    kin with how probably each is of its own kind."""

    everybody: bool
    mean: Floats
    place: Floats
    peer: Ints
    same: Floats


def weights_form(count: int) -> Form:
    """How weights are written."""
    whole, rest = divmod(count, BLOCK)
    blocks = (Stretch("small", BLOCK, whole),) if whole else ()
    return (*blocks, Stretch("small", rest)) if rest else blocks


def place_form(entries: int) -> Form:
    """How a place is written."""
    return (Stretch("half", entries),)


def answer(
    weights: Floats, columns: int = 0, draws: int = 0, beside: Floats | None = None, form: Form = ()
) -> Reply:
    """The answer of r centers: shared weights (r, W) and what comes beside (r, entries), in a form."""
    r, count = weights.shape
    front = np.tile([float(count), float(columns), float(draws)], (r, 1))
    parts = [front, weights] if beside is None else [front, weights, beside]
    form = (Stretch("place", FRONT), *weights_form(count), *form)
    return Reply.of(np.concatenate(parts, axis=1), form, (FRONT, FRONT + count))


def slopes(own: Floats, share: float, place: Floats) -> Reply:
    """The answer of r centers when slopes (r, W) are asked for: with the share of their kin's mean in what
    they go on from, and their places, if these matter."""
    kin = share > 0 and place.shape[1] > 2
    beside = np.concatenate([np.full((len(own), 1), share), place if kin else place[:, :0]], axis=1)
    form = place_form(place.shape[1]) if kin else ()
    return answer(own, beside=beside, form=(Stretch("share", 1), *form))


def read(answers: Floats, sizes: Floats) -> Answers:
    """What members (n, entries) answered, NaN where one did not; sizes: (n,) their training rows."""
    there = np.asarray(np.isfinite(answers).all(axis=1))
    # Who is away says nothing at all; who says something that is no number is not away.
    broken = np.flatnonzero(~there & ~np.isnan(answers).all(axis=1))
    known = np.where(there[:, None], answers, 0.0)
    # As most say: one that says otherwise has no place in a matrix.
    front = np.median(known[there, :FRONT], axis=0).astype(int) if there.any() else np.zeros(FRONT, dtype=int)
    count, columns, draws = front.tolist()
    weights, beside = known[:, FRONT : FRONT + count], known[:, FRONT + count :]
    trusted = there & ordinary(weights, there)
    capped = np.minimum(sizes, LARGEST * np.median(sizes[there])) if there.any() else sizes
    return Answers(there, weights, trusted, capped, columns, draws, beside, broken)


def ordinary(weights: Floats, there: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(n,) whose model is not much farther from the median of all than is usual, points the same way, and has
    gone a fair part of it.

    From where additive models start, nothing, that is the way they have gone.
    """
    if not there.any():
        return there
    middle = np.median(weights[there], axis=0)
    far = np.sqrt(((weights - middle) ** 2).sum(axis=1))
    near = far <= FARTHEST * np.median(far[there]) + 1e-12
    along = cosines(weights, np.broadcast_to(middle, weights.shape))
    length = np.sqrt((weights**2).sum(axis=1))
    near &= LONGEST * length >= np.median(length[there])
    # Where most have no way in common, nobody goes another one.
    return np.asarray(near & ((along >= ALONG) | (np.median(along[there]) < 2 * ALONG)))


def outcasts(told: Answers) -> Ints:
    """The places of members whose models cannot be trusted; nobody, if that were most of them."""
    found = np.union1d(np.flatnonzero(told.there & ~told.trusted), told.broken)
    return found if 2 * len(found) < told.there.sum() + len(told.broken) else found[:0]


def outcast_form(count: int) -> Form:
    """How they are written: not at all if there are none."""
    return (Stretch("place", count),) if count else ()


def cast_out(told: Numerals, members: int) -> tuple[Floats, Ints]:
    """What is told to all without the members that are cast out, and these; ``ValueError`` if these are
    most of them."""
    if not told.form or told.form[-1].kind != "place":
        return told.values, np.zeros(0, dtype=np.int64)
    count = told.form[-1].total
    if 2 * count >= members:
        raise ValueError("it casts out most members")
    return told.values[:-count], told.values[-count:].astype(np.int64)


def mean_of(told: Answers) -> Floats:
    """(W,) the mean model of all that can be trusted, by their rows."""
    share = np.where(told.trusted, told.sizes, 0.0)
    return np.asarray(share @ told.weights / max(share.sum(), 1e-12))


def common_model(told: Answers, settled: bool = True) -> Notice:
    """The mean of all, to all, and who cannot be trusted, once models have settled."""
    mean, out = mean_of(told), outcasts(told)[: None if settled else 0]
    form = (*weights_form(len(mean)), *outcast_form(len(out)))
    return Notice(Numerals.of(np.concatenate([mean, out]), form))


def kin_of(told: Answers, level: float, parameters: float, public: bool) -> Notice:
    """Who is whose kin, from scores: what a center's answer has beside its weights."""
    n, k, count = len(told.there), told.columns, told.draws
    scores, vectors = told.beside[:, : 1 + k * (1 + count)], told.beside[:, 1 + k * (1 + count) :]
    seen = spectrum.spectrum(
        spectrum.Scores(scores[:, 1 : 1 + k], scores[:, 1 + k :].reshape(n, count, k), scores[:, 0]), level
    )
    weights = told.weights.shape[1]
    place = np.zeros((n, 2 + seen.dimensions))
    place[:, 0] = seen.information
    kinds, says = 1, 0.0
    kin: kinship.Kin | None = None
    same = np.zeros(0)
    if seen.dimensions:
        # One that has told nothing of its patients still tells what it publishes.
        where = kinship.whereabouts(seen.position, seen.information, vectors if public else None)
        kin = kinship.kin(where, seen.information, parameters * weights)
        kinds, says = where.member.shape[1], where.public
        place[:, 1], place[:, 2:] = where.variance, where.mean
        same = where.same_kind(np.repeat(np.arange(n), np.diff(kin.start)), kin.peer)
    head = np.array([seen.p, seen.dimensions, kinds, says])
    return _told(told, place, parameters, Kinsfolk(kin, same, np.concatenate([head, seen.loading])))


def means_of_kin(told: Answers, parameters: float) -> Notice:
    """The means of kin anew, from the places that members were told."""
    return _told(told, told.beside, parameters)


def slopes_of_kin(told: Answers, parameters: float, apart: float = 0.0) -> Notice:
    """The slope of the loss of all together, to all; or to each center that of the mixture of all and its kin
    that it goes on from. apart: whose slope counts (:func:`together`); 0: everybody's."""
    there = told.there
    norms = np.linalg.norm(told.weights, axis=1)
    steepest = STEEPEST * float(np.median(norms[there])) if there.any() else 0.0
    known = np.stack([shortened(row, steepest) for row in told.weights])
    trusted = together(known, there, apart) if apart else there
    size = np.where(trusted, told.sizes, 0.0)
    mean = size @ known / max(size.sum(), 1e-12)
    share, place = float(np.median(told.beside[there, 0])) if there.any() else 0.0, told.beside[:, 1:]
    form = weights_form(len(mean))
    if not share or place.shape[1] <= 2:
        return Notice(Numerals.of(mean, form))
    peer, counts = _counted(told, place, parameters, trusted)
    own = {
        i: Numerals.of((1.0 - share) * mean + share * (counts[i] @ known[peer[i]]), form)
        for i in np.flatnonzero(there).tolist()
    }
    return Notice(Numerals.of(np.zeros(0), ()), own)


def together(slopes: Floats, there: NDArray[np.bool_], apart: float) -> NDArray[np.bool_]:
    """(n,) whose slope (n, W) points no more than ``apart`` times farther than usual along the direction in
    which slopes differ most.

    Slopes of honest centers differ in all directions, by their patients. Who wants to move the mean has to go
    one way together with others, and is seen along it; those are left out, and the rest is looked at again.
    """
    good = there.copy()
    slopes = slopes / np.maximum(np.linalg.norm(slopes, axis=1, keepdims=True), 1e-12)
    for _ in range(LOOKS):
        if good.sum() < 8:
            break
        middle = np.median(slopes[good], axis=0)
        way = np.linalg.svd(slopes[good] - middle, full_matrices=False)[2][0]
        along = (slopes - middle) @ way
        usual = float(np.median(along[good]))
        spread = 1.4826 * float(np.median(np.abs(along[good] - usual)))
        near = good & (np.abs(along - usual) <= apart * spread + 1e-12)
        if 2 * near.sum() <= there.sum() or (near == good).all():
            break
        good = near
    return good


def shortened(slope: Floats, most: float) -> Floats:
    """A slope, no longer than that."""
    norm = float(np.linalg.norm(slope))
    return slope if norm <= most else slope * (most / norm)


def _counted(
    told: Answers, place: Floats, parameters: float, trusted: NDArray[np.bool_]
) -> tuple[Ints, Floats]:
    """(n, k) who counts in the mean of everybody's kin, and how much. place: (n, 2 + dimensions)."""
    n = len(place)
    where = kinship.Whereabouts(place[:, 2:], place[:, 1], np.zeros((n, 0)), 0.0)
    peer, share = kinship.shares(
        where, np.where(told.there, place[:, 0], 0.0), parameters * told.weights.shape[1]
    )
    # What cannot be trusted counts for its own center alone.
    share *= trusted[peer] | (peer == np.arange(n)[:, None])
    return peer, share / np.maximum(share.sum(axis=1, keepdims=True), 1e-12)


@dataclass(frozen=True, eq=False)
class Kinsfolk:
    """What was found of kin: who they are (nothing: everybody), how probably each is of one kind, and what
    the test says."""

    kin: kinship.Kin | None
    same: Floats
    test: Floats

    def told(self, i: int) -> tuple[Floats, Form]:
        """What member i is told, and how it is written."""
        if self.kin is None:
            return np.ones(1), (Stretch("share", 1),)
        some = slice(int(self.kin.start[i]), int(self.kin.start[i + 1]))
        peers, same = self.kin.peer[some], self.same[some]
        form = (Stretch("share", 1), Stretch("place", len(peers)), Stretch("share", len(peers)))
        return np.concatenate([[float(self.kin.everybody[i])], peers, same]), form


def _told(told: Answers, place: Floats, parameters: float, found: Kinsfolk | None = None) -> Notice:
    """Means, and, if they were looked for, kin. place: (n, 2 + dimensions)."""
    weights = told.weights.shape[1]
    head, form = np.zeros(0), weights_form(weights)
    if found is not None:
        head, form = found.test, (*form, Stretch("single", HEAD), Stretch("share", len(found.test) - HEAD))
    out = outcasts(told)
    common = Numerals.of(np.concatenate([mean_of(told), head, out]), (*form, *outcast_form(len(out))))
    mean = common.values[:weights]
    own: dict[int, Numerals] = {}
    share = peer = None
    if place.shape[1] > 2:
        peer, share = _counted(told, place, parameters, told.trusted)
    for i in np.flatnonzero(told.there).tolist():
        parts: list[Floats] = []
        form = ()
        if found is not None:
            values, form = found.told(i)
            parts, form = [values, place[i]], (*form, *place_form(place.shape[1]))
        if share is not None and peer is not None:
            parts.append(share[i] @ told.weights[peer[i]] - mean)
            form = (*form, *weights_form(weights))
        if parts:
            own[i] = Numerals.of(np.concatenate(parts), form)
    return Notice(common, own)


def heard(told: Numerals | None, mean: Floats, kin: bool) -> Hearing:
    """What a member was told of its own; mean: (W,) the model of all, which it is told in differences from.

    kin: whether kin were looked for. ``ValueError`` if that cannot be.
    """
    everybody, peer, same, place = True, np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(2)
    if told is None:
        return Hearing(everybody, mean, place, peer, same)
    values, form = told.values, list(told.form)
    if kin:
        found = [stretch.total for stretch in form[:1] if stretch.kind == "share"]
        if form[1:2] and form[1].kind == "place":
            found += [form[1].total, form[1].total]
        at = [0, *np.cumsum(found).tolist()]
        more = form[len(found) : len(found) + 1]
        if len(found) not in (1, 3) or not more or more[0].kind != "half" or more[0].total < 2:
            raise ValueError("no kin")
        everybody = bool(values[0])
        if len(found) == 3:
            peer, same = values[at[1] : at[2]].astype(np.int64), values[at[2] : at[3]]
        end = at[-1] + more[0].total
        place, values = values[at[-1] : end], values[end:]
    if len(values) not in (0, len(mean)):
        raise ValueError("no mean of kin")
    return Hearing(everybody, mean + values if len(values) else mean, place, peer, same)


def helps(gains: Floats, sizes: Floats, errors: float) -> bool:
    """Whether something surely takes off the mean loss of all: by so many standard errors.

    gains: (n,) what it takes off every member's loss, NaN where a member cannot tell.  sizes: (n,) rows, by
    which members count. What one says is held to a few times what is usual.
    """
    there = np.isfinite(gains)
    if there.sum() < 3:
        return False
    usual = 5.0 * np.median(np.abs(gains[there])) + 1e-9
    gain, weight = np.clip(gains[there], -usual, usual), _weights(sizes[there])
    mean = float(weight @ gain)
    return mean > errors * float(np.sqrt(weight**2 @ (gain - mean) ** 2))


def _weights(sizes: Floats) -> Floats:
    """(n,) how members count, by their rows, none of them for too much."""
    weight = np.minimum(sizes, LARGEST * np.median(sizes))
    return np.asarray(weight / weight.sum())


def best(losses: Floats, sizes: Floats) -> int:
    """Which of the models that were tried to go on from, by their losses on validation rows.

    losses: (n, tried) of every member, NaN where it has no rows: of its own model, then of mixtures from the
    mean of all to that of kin. Of the mixtures the one nearest to the mean of all that is within a standard
    error of the best; the own models only if they are better than that one by more than a standard error:
    a mean is the safer model, and a difference within the error is luck.
    sizes: (n,) rows, by which members count. What one says is held to a few times what is usual.
    """
    there = np.isfinite(losses).all(axis=1)
    if not there.any():
        return 1
    less = losses[there] - losses[there, -1:]
    usual = 5.0 * np.median(np.abs(less), axis=0) + 1e-9
    less = np.clip(less, -usual, usual)
    weight = _weights(sizes[there])

    def behind(others: Floats, one: Floats) -> tuple[Floats, Floats]:
        """By how much some are worse than one in the mean, and its standard error."""
        gap = others - one[:, None]
        mean = weight @ gap
        return mean, np.sqrt(weight**2 @ (gap - mean) ** 2)

    mean, error = behind(less[:, 1:], less[:, 1 + int(np.argmin(weight @ less[:, 1:]))])
    chosen = 1 + int(np.flatnonzero(mean <= error)[0])
    own, error = behind(less[:, :1], less[:, chosen])
    return 0 if own[0] < -error[0] else chosen
