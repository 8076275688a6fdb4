"""Who is of whose kind, and how far keeping to one's own kind pays.

Centers stand somewhere in a few dimensions (:mod:`abps.lab.spectrum`), each known up to an error that is
known too. What lies behind is either some kinds of centers or a continuum: a mixture of round normal
distributions with a common spread, whose number BIC chooses (one with a wide spread is a continuum, several
with none are kinds; a single odd center is a kind of its own). Public vectors of the centers (outcome rate,
size, prevalences) join in only as far as they predict the kinds that the scores show, each center's own
vector left out of what it is judged by; what they predict is evidence that there are kinds.

A center then weighs variance against bias: with h peers it has the information of all of them, and each
brings the squared distance between the two as bias, when its turn comes. The h with the smallest sum are its
kin; for centers that hardly differ that is everybody.

Arrays: n centers, r dimensions, K kinds, q entries of public vectors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Kinds at most, and for how many more than the best the search goes on.
MOST_KINDS, PATIENCE = 12, 3

#: Peers at most that a center counts as its kin, unless it is everybody, that count in their mean, and that
#: count in it among very many.
MOST_KIN, MOST_SHARES, FEWER_SHARES = 32, 255, 64

#: Centers at most that kinds are fitted to all of, and to how many of more; the others are told theirs.
MOST_FITTED, FITTED = 2000, 1000

#: Pairs from which on distances are worked out one dimension after the other.
MANY = 1 << 20

#: Centers at most among which neighbours are found exactly, and how many of more are asked together.
MOST_SEARCHED, CELL = 8192, 256

#: Pseudo-centers that draw a kind's mean public vector to that of all.
SHRINK = 2.0


@dataclass(frozen=True, eq=False)
class Mixture:
    """centre: (K, r).  spread: variance inside a kind, in each dimension.  share: (K,).
    member: (n, K) probabilities.  fit: log-likelihood."""

    centre: Floats
    spread: float
    share: Floats
    member: Floats
    fit: float


@dataclass(frozen=True, eq=False)
class Whereabouts:
    """What is believed of where centers stand: mean (n, r) and variance (n,), summed over the dimensions.

    member: (n, K) probabilities of the kinds.  public: what the public vectors add to the prediction of
    kinds, in nats a center; they are used if that is above zero.
    """

    mean: Floats
    variance: Floats
    member: Floats
    public: float

    def distance(self, center: Ints, peer: Ints) -> Floats:
        """The expected squared distance between two centers."""
        if peer.size > MANY:
            # One dimension after the other: all of them at once would be the largest table here.
            gap = sum(((m[center] - m[peer]) ** 2 for m in self.mean.T), start=np.zeros(peer.shape))
        else:
            gap = ((self.mean[center] - self.mean[peer]) ** 2).sum(axis=-1)
        return np.asarray(gap + self.variance[center] + self.variance[peer])

    def same_kind(self, center: Ints, peer: Ints) -> Floats:
        """The probability that two centers are of one kind."""
        return np.asarray((self.member[center] * self.member[peer]).sum(axis=-1))


@dataclass(frozen=True, eq=False)
class Kin:
    """Each center's kin, nearest first (among very many by their places): ``peer[start[i]:start[i+1]]``;
    everybody: (n,) it keeps to nobody.

    gain: (n,) what keeping to its kin takes off its expected squared error, against mixing with everybody.
    """

    start: Ints
    peer: Ints
    everybody: NDArray[np.bool_]
    gain: Floats

    def of(self, i: int) -> Ints:
        """The kin of center i (empty also if it is everybody)."""
        return self.peer[self.start[i] : self.start[i + 1]]


def mixtures(position: Floats, information: Floats) -> list[tuple[float, Mixture]]:
    """Mixtures of one kind, two, three and so on, each with its BIC. Information is weight.

    Growing ends some kinds after the best.
    """
    known = information > 0
    x, s = position[known], information[known]
    n, r = x.shape
    found: list[tuple[float, Mixture]] = []
    now: Mixture | None = None
    for kinds in range(1, min(MOST_KINDS, max(1, n // 2)) + 1):
        now = _grown(x, s, now)
        # Of one without information only the shares are known.
        member = np.tile(now.share, (len(position), 1))
        member[known] = now.member
        bic = float(-2.0 * now.fit + (kinds * r + kinds) * np.log(n))
        found.append((bic, replace(now, member=member)))
        if kinds > 1 + PATIENCE + int(np.argmin([value for value, _ in found])):
            break
    return found


def fit(position: Floats, information: Floats) -> Mixture:
    """The mixture with the best BIC."""
    return min(mixtures(position, information), key=lambda pair: pair[0])[1]


def _grown(x: Floats, s: Floats, before: Mixture | None) -> Mixture:
    """A mixture with one kind more: the best of three that begin at the centers explained worst."""
    r = x.shape[1]
    spread = max(float(((x**2).sum(axis=1) * s - r).sum() / (r * s.sum())), 1e-4)
    if before is None:
        first = np.average(x, axis=0, weights=s)[None]
        return _climb(x, s, first, spread, np.ones(1))
    gap = ((x[:, None] - before.centre[None]) ** 2).sum(axis=2).min(axis=1)
    odd = np.argsort(-gap * s / (1.0 + before.spread * s), kind="stable")[:3]
    kinds = len(before.centre) + 1
    tried = [
        _climb(x, s, np.vstack([before.centre, x[j]]), spread / 4, np.full(kinds, 1 / kinds)) for j in odd
    ]
    return max(tried, key=lambda mixture: mixture.fit)


def _climb(x: Floats, s: Floats, centre: Floats, spread: float, share: Floats) -> Mixture:
    """Expectation and maximisation until the likelihood stands."""
    n, r = x.shape
    last = -np.inf
    for step in range(200):
        variance = spread + 1.0 / s
        member, total = _expected(x, s, centre, spread, share)
        if step > 5 and total - last < 1e-6 * abs(total):
            break
        last = total
        share = np.maximum(member.mean(axis=0), 1e-6)
        share = share / share.sum()
        weight = member / variance[:, None]
        centre = (weight.T @ x) / np.maximum(weight.sum(axis=0), 1e-12)[:, None]
        gap = ((x[:, None] - centre[None]) ** 2).sum(axis=2)
        keep = spread / (spread + 1.0 / s)
        inside = (member * (keep**2)[:, None] * gap).sum() / (n * r) + (keep / s).mean()
        spread = max(float(inside), 1e-8)
    return Mixture(centre, spread, share, member, last)


def _expected(x: Floats, s: Floats, centre: Floats, spread: float, share: Floats) -> tuple[Floats, float]:
    """(n, K) probabilities of the kinds, and the log-likelihood."""
    variance = spread + 1.0 / s
    gap = ((x[:, None] - centre[None]) ** 2).sum(axis=2)
    log = np.log(share) - 0.5 * gap / variance[:, None]
    log = log - 0.5 * x.shape[1] * np.log(2 * np.pi * variance)[:, None]
    top = log.max(axis=1, keepdims=True)
    each = top[:, 0] + np.log(np.exp(log - top).sum(axis=1))
    return np.exp(log - each[:, None]), float(each.sum())


def whereabouts(position: Floats, information: Floats, public: Floats | None = None) -> Whereabouts:
    """Where centers stand, given all of them.

    public: (n, q) what they publish of themselves, or nothing. Among very many, kinds are fitted to some.
    """
    n, r = position.shape
    variance = 1.0 / np.maximum(information, 1e-12)
    vectors = np.zeros((n, 0)) if public is None else standardised(public)
    some = np.arange(n)
    if n > MOST_FITTED:
        some = np.flatnonzero(information > 0)
        some = some[np.linspace(0, len(some) - 1, min(len(some), FITTED)).astype(np.int64)]
    found, says = _by_both(position[some], information[some], vectors[some])
    member, centre = found.member, found.centre
    if len(some) < n:
        gap = ((position[:, None] - centre[None]) ** 2).sum(axis=2)
        log = -0.5 * gap / (found.spread + variance)[:, None]
        if says > 0:
            log += kinds_of_others(member, vectors[some], vectors)
        member = np.exp(_shares(found.share, log))
        member[some] = found.member
    keep = found.spread / (found.spread + variance)
    means = centre[None] + keep[:, None, None] * (position[:, None] - centre[None])  # (n, K, r)
    mean = (member[:, :, None] * means).sum(axis=1)
    around = (member * ((means - mean[:, None]) ** 2).sum(axis=2)).sum(axis=1)
    return Whereabouts(mean, around + r * keep * variance, member, says)


def _by_both(position: Floats, information: Floats, vectors: Floats) -> tuple[Mixture, float]:
    """The kinds by scores and, as far as they predict them, by public vectors; and what these add."""
    variance = 1.0 / np.maximum(information, 1e-12)
    tried = [
        (bic - 2.0 * len(position) * max(says, 0.0), says, found)
        for bic, found in mixtures(position, information)
        for says in [predicts(found, vectors)]
    ]
    _, says, found = min(tried, key=lambda entry: entry[0])
    member, centre, share = found.member, found.centre, found.share
    if says > 0:
        for _ in range(30):
            wide = (found.spread + variance)[:, None]
            gap = ((position[:, None] - centre[None]) ** 2).sum(axis=2)
            log = np.log(share) - 0.5 * gap / wide + kinds_by_public(member, vectors)
            member = np.exp(log - log.max(axis=1, keepdims=True))
            member /= member.sum(axis=1, keepdims=True)
            share = np.maximum(member.mean(axis=0), 1e-6)
            share = share / share.sum()
            weight = member / wide
            centre = (weight.T @ position) / np.maximum(weight.sum(axis=0), 1e-12)[:, None]
    return replace(found, member=member, centre=centre, share=share), says


def standardised(public: Floats) -> Floats:
    """(n, q) public vectors with mean 0 and deviation 1; entries that are the same for all are left out."""
    spread = public.std(axis=0)
    some = spread > 1e-12
    return np.asarray((public[:, some] - public.mean(axis=0)[some]) / spread[some])


def predicts(found: Mixture, vectors: Floats) -> float:
    """What public vectors add to the prediction of the kinds, in nats a center; 0 if they cannot be asked.

    No center's own vector is among those that it is predicted from, so vectors that have nothing to do with
    the kinds predict worse than the kinds' shares alone.
    """
    n, kinds = found.member.shape
    if kinds < 2 or not vectors.shape[1] or n < 4 * kinds:
        return 0.0
    told = _shares(found.share, kinds_by_public(found.member, vectors))
    return float((found.member * (told - np.log(found.share))).sum() / n)


def kinds_by_public(member: Floats, vectors: Floats) -> Floats:
    """(n, K) log-likelihood of each center's public vector in each kind, up to a constant.

    The means of the kinds are taken without the center itself, and drawn a little to the mean of all.
    """
    weight = member.sum(axis=0)[None] - member + SHRINK  # (n, K)
    sums = (member.T @ vectors)[None] - member[:, :, None] * vectors[:, None] + SHRINK * vectors.mean(axis=0)
    gap = vectors[:, None] - sums / weight[:, :, None]  # (n, K, q)
    return _likely(gap, weight, _inside(member, gap))


def kinds_of_others(member: Floats, vectors: Floats, others: Floats) -> Floats:
    """(m, K) the same of centers whose vectors (m, q) are not among those that kinds are known by."""
    weight = member.sum(axis=0) + SHRINK
    mean = (member.T @ vectors + SHRINK * vectors.mean(axis=0)) / weight[:, None]
    inside = _inside(member, vectors[:, None] - mean)
    blocks = np.array_split(others, max(1, len(others) // MOST_FITTED))
    return np.concatenate([_likely(some[:, None] - mean, weight, inside) for some in blocks])


def _inside(member: Floats, gap: Floats) -> Floats:
    """(q, q) the covariance of public vectors inside kinds; gap: (n, K, q) from the kinds' means."""
    inside = np.einsum("ik,ika,ikb->ab", member, gap, gap, optimize=True) / len(gap)
    return np.asarray(0.8 * inside + 0.2 * np.diag(np.diag(inside)) + 1e-6 * np.eye(len(inside)))


def _likely(gap: Floats, weight: Floats, inside: Floats) -> Floats:
    """(n, K) log-likelihood of vectors that lie gap (n, K, q) from the means of so many centers."""
    z = gap @ np.linalg.inv(np.linalg.cholesky(inside)).T
    wider = 1.0 + 1.0 / weight
    return np.asarray(-0.5 * (z**2).sum(axis=2) / wider - 0.5 * len(inside) * np.log(wider))


def _shares(share: Floats, log: Floats) -> Floats:
    """(n, K) the logarithm of the kinds' probabilities, given shares and log-likelihoods."""
    value = np.log(share) + log
    top = value.max(axis=1, keepdims=True)
    return np.asarray(value - top - np.log(np.exp(value - top).sum(axis=1, keepdims=True)))


def kin(where: Whereabouts, information: Floats, parameters: float, most: int = MOST_KIN) -> Kin:
    """Each center's kin: the nearest h peers for which variance and squared bias add up to least.

    parameters: how many free parameters the shared model effectively has; with information S their joint
    variance is parameters / S, in the same units as a squared distance.
    most: peers looked at beside everybody. Neighbours are found in r + 1 dimensions, not in a table of pairs.
    """
    n, _ = where.mean.shape
    near = _nearest(where, min(most, n - 1), even=True)  # (n, h)
    s = np.maximum(information, 1e-9)
    order = np.concatenate([np.arange(n)[:, None], near], axis=1)
    weight = s[order]
    total = np.cumsum(weight, axis=1)
    apart = where.distance(order[:, :1], order)
    apart[:, 0] = 0.0
    risk = parameters / total + np.cumsum(weight * apart, axis=1) / total
    # The same sum over everybody, from means and squares.
    all_total = s.sum()
    middle = s @ where.mean / all_total
    around = (s @ ((where.mean - middle) ** 2).sum(axis=1) + s @ where.variance) / all_total
    from_middle = ((where.mean - middle) ** 2).sum(axis=1)
    with_all = parameters / all_total + from_middle + around + where.variance * (1 - 2 * s / all_total)
    best = risk.argmin(axis=1)
    least = risk[np.arange(n), best]
    everybody = (with_all <= least) | (best == n - 1)
    count = np.where(everybody, 0, best)
    chosen = np.arange(near.shape[1]) < count[:, None]
    center, peer = np.repeat(np.arange(n), count), near[chosen]
    # Whoever counts one as its kin is kin: nobody asks in vain, and only the lonely rest.
    pair = np.sort(np.concatenate([center * n + peer, peer * n + center]))
    pair = pair[np.append(True, pair[1:] > pair[:-1])[: len(pair)]]
    center, peer = pair // n, pair % n
    keep = ~everybody[center]
    center, peer = center[keep], peer[keep]
    if n <= MOST_SEARCHED:
        peer = peer[np.lexsort((where.distance(center, peer), center))]
    start = np.concatenate([[0], np.cumsum(np.bincount(center, minlength=n))])
    return Kin(start, peer, everybody, np.where(everybody, 0.0, with_all - least))


def shares(
    where: Whereabouts, information: Floats, parameters: float, most: int = MOST_SHARES
) -> tuple[Ints, Floats]:
    """(n, h) peers, oneself among them, and how much each counts in a center's mean of its kin.

    The shares a minimise variance and bias, Σ a² · parameters / information + Σ a · distance, among those
    that add up to one: a peer counts by its information times how much nearer it is than a limit.
    """
    n, _ = where.mean.shape
    most = min(most, n - 1) if n <= MOST_SEARCHED else min(most, FEWER_SHARES)
    order = np.concatenate([np.arange(n)[:, None], _nearest(where, most)], axis=1)
    blocks = np.array_split(order, -(-order.size // MANY))
    parts = [_shared(where, information, parameters, some) for some in blocks]
    peers, share = (np.concatenate([part[k] for part in parts]) for k in range(2))
    return peers, share


def _shared(where: Whereabouts, information: Floats, parameters: float, order: Ints) -> tuple[Ints, Floats]:
    """The peers of some centers, each first among its own, by distance, and their shares."""
    apart = where.distance(order[:, :1], order)
    apart[:, 0] = 0.0
    sort = np.argsort(apart, axis=1, kind="stable")
    order, apart = np.take_along_axis(order, sort, axis=1), np.take_along_axis(apart, sort, axis=1)
    weight = np.maximum(information, 1e-9)[order]
    limit = (2.0 * parameters + np.cumsum(weight * apart, axis=1)) / np.cumsum(weight, axis=1)
    # Peers count as long as they are within the limit that they make; the limits fall until then.
    inside = np.maximum((limit > apart).cumprod(axis=1).sum(axis=1), 1)
    share = weight * np.maximum(limit[np.arange(len(order)), inside - 1][:, None] - apart, 0.0)
    return order, np.asarray(share / share.sum(axis=1, keepdims=True))


def _nearest(where: Whereabouts, most: int, even: bool = False) -> Ints:
    """(n, most) every center's peers in the order of their expected squared distance.

    even: nobody may be near to too many, so among very many those are near that are known as well.
    """
    from scipy.spatial import cKDTree  # loaded where kin are looked for: a site's process is the smaller

    n = len(where.mean)
    if n > MOST_SEARCHED:
        return _nearly_nearest(where, most, even)
    points = np.column_stack([where.mean, np.sqrt(where.variance)])
    asked = np.column_stack([where.mean, np.zeros(n)])
    _, found = cKDTree(points).query(asked, k=min(most + 1, n))
    found = np.asarray(found).reshape(n, -1)
    own = found == np.arange(n)[:, None]
    # Each is taken out of its own list; where ties pushed it out of it, the last one goes.
    own[~own.any(axis=1), -1] = True
    return found[~own].reshape(n, -1)[:, :most].astype(np.int64)


def _nearly_nearest(where: Whereabouts, most: int, even: bool) -> Ints:
    """The same among very many, where it is enough to be nearly right.

    Centers that stand together are asked together, in cells: who is near their middle or their two ends, in
    four times the number that is asked for, or in the cell itself, is put in order for each of them.
    """
    from scipy.spatial import cKDTree

    points = np.column_stack([where.mean, np.sqrt(where.variance)])
    from_here = points if even else np.column_stack([where.mean, np.zeros(len(points))])
    tree, found = cKDTree(points), np.empty((len(points), most), dtype=np.int64)
    taken = np.zeros(len(points), dtype=bool)
    for cell in cells(points, CELL):
        here = from_here[cell]
        along = here[:, np.argmax(np.ptp(here, axis=0))]
        asked = np.stack([here.mean(axis=0), here[along.argmin()], here[along.argmax()]])
        taken[:] = False
        taken[tree.query(asked, k=min(4 * most, len(points)))[1]] = taken[cell] = True
        near = np.flatnonzero(taken)
        # Squared distances but for what is the same for all peers of a center.
        apart = (points[near] ** 2).sum(axis=1) - 2.0 * here @ points[near].T
        apart[np.arange(len(cell)), np.searchsorted(near, cell)] = np.inf
        some = np.argpartition(apart, most - 1, axis=1)[:, :most]
        order = np.argsort(np.take_along_axis(apart, some, axis=1), axis=1, kind="stable")
        found[cell] = near[np.take_along_axis(some, order, axis=1)]
    return found


def cells(points: Floats, most: int) -> list[Ints]:
    """Points (n, d) in cells of at most so many: halved where they are farthest apart, again and again."""
    small, large = list[Ints](), [np.arange(len(points))]
    while large:
        cell = large.pop()
        if len(cell) <= most:
            small.append(cell)
            continue
        here = points[cell]
        along = here[:, np.argmax(np.ptp(here, axis=0))]
        half = np.argpartition(along, len(cell) // 2)
        large += [cell[half[: len(cell) // 2]], cell[half[len(cell) // 2 :]]]
    return small
