"""The paper's network, one center's whole round in one compiled function.

What a center needs for a round (its weights, their moments, a batch and its hidden layers) fits into a core's
cache if one center is trained to its end before the next begins; without the interpreter's lock, a thread per
core is all it takes. Products are SciPy's BLAS; everything between two products is one pass over memory.

The functions take plain tuples and arrays, because compiled code on disk must not depend on the names of
classes: :class:`Rule`, :class:`Terms`, :class:`Drop` and :class:`Room` say what such a tuple holds. P
parameters lie in the order of the module, weight (out, in) and bias (out,) of every layer; ``widths`` are the
layers' units, from the features to the one logit.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from abps.machine import compiled

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Words = NDArray[np.uint32]

#: Rows that a model answers at a time, so that its hidden layers stay in the cache.
ANSWERED_AT_ONCE = 128


class Rule(NamedTuple):
    """How weights move. adam: else plain gradient descent.  first, last: the parameters that move."""

    adam: bool
    lr: np.float32
    decay: np.float32
    first: int
    last: int


class Terms(NamedTuple):
    """What is added to the gradient: strength (n,) times the distance to the anchor, and a shift.

    anchor, shift: (n, P), (1, P) for one that all share, or (0, P) for none.
    """

    strength: Floats
    anchor: Floats
    shift: Floats


class Drop(NamedTuple):
    """Dropout of every hidden layer. limit: a unit is dropped where its random float is at most this.

    keys: (m, steps, layers) one random key each, of which the halves are used.  places: a well-mixed number
    for every place of a stream.
    """

    rate: np.float32
    limit: np.float32
    keys: NDArray[np.uint64]
    places: Words


class Room(NamedTuple):
    """A thread's memory, used again for every center: weights and what Adam keeps of them (P,), a batch, its
    hidden layers forwards and backwards, and its random words."""

    model: Floats
    gradient: Floats
    mean: Floats
    square: Floats
    x: Floats
    y: Floats
    hidden: Floats
    back: Floats
    drawn: Words


def room(widths: Ints, batch: int) -> Room:
    parameters, hidden = int(((widths[:-1] + 1) * widths[1:]).sum()), int(widths[1:].sum())
    rows = -(-batch // 16) * 16  # room for whole blocks of random words, and for rows added to whole fours
    sizes = [parameters] * 4 + [rows * int(widths[0]), batch, rows * hidden, rows * hidden]
    drawn = np.empty(rows * int(widths[1:].max()), dtype=np.uint32)
    return Room._make([*(np.empty(size, dtype=np.float32) for size in sizes), drawn])


@compiled
def _draw(key, places, drawn, rows, units):
    """Random words for every unit of some rows: the same as ``draws.random_units``."""
    low = np.uint32(key & np.uint64(0xFFFFFFFF))
    high = np.uint32(np.uint32(key >> np.uint64(32)) | np.uint32(1))
    other = np.uint32(high * np.uint32(0x9E3779B1))
    half = 8 * units
    for block in range((rows + 15) // 16):
        place = places[block * half : (block + 1) * half]
        first = drawn[2 * block * half : (2 * block + 1) * half]
        second = drawn[(2 * block + 1) * half : (2 * block + 2) * half]
        for p in range(half):
            mixed = np.uint32(place[p] + low)
            mixed = np.uint32(mixed ^ np.uint32(mixed >> np.uint32(15)))
            first[p] = np.uint32(mixed * high)
            second[p] = np.uint32(mixed * other)


@compiled
def _activate(hidden, bias, rows, units):
    zero = np.float32(0.0)
    for r in range(rows):
        row = hidden[r * units : (r + 1) * units]
        for u in range(units):
            row[u] = max(row[u] + bias[u], zero)


@compiled
def _activate_and_drop(hidden, bias, rows, units, drawn, limit, scale):
    zero = np.float32(0.0)
    for r in range(rows):
        row = hidden[r * units : (r + 1) * units]
        chance = drawn[r * units : (r + 1) * units]
        for u in range(units):
            value = max(row[u] + bias[u], zero) * scale
            row[u] = zero if chance[u] <= limit else value


@compiled
def _backwards(back, hidden, slope, rows, units, scale):
    """Gradient before a hidden layer's activation, in place, and its sum over rows, the bias's gradient; it
    passes where a unit's output is positive."""
    zero = np.float32(0.0)
    slope[:] = zero
    for r in range(rows):
        row, out = back[r * units : (r + 1) * units], hidden[r * units : (r + 1) * units]
        for u in range(units):
            value = row[u] * scale if out[u] > zero else zero
            row[u] = value
            slope[u] += value


@compiled
def _errors(z, bias, y, real):
    """Turn logits without their bias into the gradient with respect to each, and return its sum."""
    total = np.float32(0.0)
    share = np.float32(1.0 / real)
    for r in range(real):
        z[r] = (np.float32(1.0) / (np.float32(1.0) + np.float32(np.exp(-(z[r] + bias)))) - y[r]) * share
        total += z[r]
    z[real:] = np.float32(0.0)
    return total


@compiled
def _spread_back(error, last, back, rows, units):
    """Gradient with respect to the last hidden layer's units, from that of the logits."""
    for r in range(rows):
        row = back[r * units : (r + 1) * units]
        for u in range(units):
            row[u] = error[r] * last[u]


@compiled
def _gradient(w, g, seats, widths, layers, dropped):
    """Gradient of the mean loss over a batch, written to ``g``.

    seats: x (rows, d), y, and how many rows count; the others, zeros, only fill up what the products like.
    layers: room for hidden and backward.  dropped: random words, rate, limit, keys (layers,) and places.
    """
    x, y, real = seats
    hidden, backward = layers
    drawn, rate, limit, keys, places = dropped
    rows = len(x)
    depth = len(widths) - 2
    dropping = rate > np.float32(0.0)
    scale = np.float32(np.float32(1.0) / (np.float32(1.0) - rate))
    chance = drawn.view(np.float32)
    before, at, filled = x, 0, 0
    for k in range(depth):
        inside, units = widths[k], widths[k + 1]
        matrix = w[at : at + units * inside].reshape((units, inside))
        bias = w[at + units * inside : at + units * (inside + 1)]
        flat = hidden[filled : filled + rows * units]
        out = flat.reshape((rows, units))
        np.dot(before, matrix.T, out)
        if dropping:
            _draw(keys[k], places, drawn, rows, units)
            _activate_and_drop(flat, bias, rows, units, chance, limit, scale)
        else:
            _activate(flat, bias, rows, units)
        before = out
        at += units * (inside + 1)
        filled += rows * units
    # The logit, and the gradient with respect to it.
    units = widths[depth]
    last = w[at : at + units]
    error = backward[filled : filled + rows]
    np.dot(before, last, error)
    g[at + units] = _errors(error, w[at + units], y, real)
    np.dot(error, before, g[at : at + units])
    filled -= rows * units
    back = backward[filled : filled + rows * units]
    _spread_back(error, last, back, rows, units)
    for k in range(depth - 1, -1, -1):
        inside, units = widths[k], widths[k + 1]
        at -= units * (inside + 1)
        flat = backward[filled : filled + rows * units]
        bias = g[at + units * inside : at + units * (inside + 1)]
        _backwards(flat, hidden[filled : filled + rows * units], bias, rows, units, scale)
        slope = g[at : at + units * inside].reshape((units, inside))
        upstream = flat.reshape((rows, units))
        if k == 0:
            np.dot(upstream.T, x, slope)
        else:
            filled -= rows * inside
            below = hidden[filled : filled + rows * inside].reshape((rows, inside))
            np.dot(upstream.T, below, slope)
            matrix = w[at : at + units * inside].reshape((units, inside))
            down = backward[filled : filled + rows * inside].reshape((rows, inside))
            np.dot(upstream, matrix, down)


@compiled
def _add(g, w, strength, anchor, shift, i):
    """Add a method's own terms to the gradient of center i."""
    if len(anchor):
        row = anchor[min(i, len(anchor) - 1)]
        pull = strength[i]
        for p in range(len(g)):
            g[p] += pull * (w[p] - row[p])
    if len(shift):
        row = shift[min(i, len(shift) - 1)]
        for p in range(len(g)):
            g[p] += row[p]


@compiled
def _adam(w, g, mean, square, lr, decay, step):
    """One step of Adam with coupled weight decay, in place."""
    fresh, fresher = np.float32(1 - 0.9), np.float32(1 - 0.999)
    keep, tiny = np.float32(0.999), np.float32(1e-8)
    rate = np.float32(lr / (1 - 0.9**step))
    correction = np.float32(1 / np.sqrt(1 - 0.999**step))
    for p in range(len(w)):
        slope = g[p] + decay * w[p]
        m = mean[p] + (slope - mean[p]) * fresh
        v = keep * square[p] + fresher * slope * slope
        mean[p] = m
        square[p] = v
        w[p] -= rate * m / (np.sqrt(v) * correction + tiny)


@compiled
def _sgd(w, g, lr, decay):
    for p in range(len(w)):
        w[p] -= lr * (g[p] + decay * w[p])


@compiled
def _seated(x, y, first, order, d, seats, labels):
    """(rows, d) a batch: the rows first + order of x, then zeros up to a whole four of rows."""
    rows = len(order)
    for r in range(rows):
        k = first + order[r]
        row, seat = x[k], seats[r * d : (r + 1) * d]
        for f in range(d):
            seat[f] = row[f]
        labels[r] = y[k]
    full = (rows + 3) // 4 * 4
    seats[rows * d : full * d] = np.float32(0.0)
    return seats[: full * d].reshape((full, d))


@compiled
def train(members, before, after, held, pace, widths, rule, terms, drop, room):
    """Local epochs of the centers ``members`` (m,), from rows of ``before`` to those of ``after`` (n, P).

    before: (n, P), or (1, P) where all start from one model.
    held: x (rows, d) and y (rows,) of all centers, and start: center i's are start[i]:start[i+1].
    pace: orders (epochs, m, rows) in which they visit their own, epochs, and rows of a batch.
    """
    x, y, start = held
    orders, epochs, batch = pace
    adam, lr, decay, low, high = rule
    strength, anchor, shift = terms
    rate, limit, keys, places = drop
    w, g, means, squares, seats, labels, hidden, backward, drawn = room
    moving, slope, mean, square = w[low:high], g[low:high], means[low:high], squares[low:high]
    for c in range(len(members)):
        i = members[c]
        own = start[i + 1] - start[i]
        w[:] = before[min(i, len(before) - 1)]
        mean[:] = np.float32(0.0)
        square[:] = np.float32(0.0)
        step = 0
        for epoch in range(epochs):
            for at in range(0, own, batch):
                rows = min(batch, own - at)
                seen = _seated(x, y, start[i], orders[epoch, c, at : at + rows], widths[0], seats, labels)
                dropped = (drawn, rate, limit, keys[c, step], places)
                _gradient(w, g, (seen, labels, rows), widths, (hidden, backward), dropped)
                _add(g, w, strength, anchor, shift, i)
                step += 1
                if adam:
                    _adam(moving, slope, mean, square, lr, decay, step)
                else:
                    _sgd(moving, slope, lr, decay)
        after[i] = w


@compiled
def _finish(w, widths, rows, hidden, out):
    """Logits of one model from its first layer's products (of ``rows``), at the front of ``hidden``; out: of
    the first of them."""
    units = widths[1]
    at, filled = units * widths[0], rows * units
    _activate(hidden[:filled], w[at : at + units], rows, units)
    before = hidden[:filled].reshape((rows, units))
    at += units
    for k in range(1, len(widths) - 2):
        inside, units = widths[k], widths[k + 1]
        flat = hidden[filled : filled + rows * units]
        layer = flat.reshape((rows, units))
        np.dot(before, w[at : at + units * inside].reshape((units, inside)).T, layer)
        _activate(flat, w[at + units * inside : at + units * (inside + 1)], rows, units)
        before = layer
        at += units * (inside + 1)
        filled += rows * units
    np.dot(before[: len(out)], w[at : at + units], out)
    for r in range(len(out)):
        out[r] += w[at + units]


@compiled
def _fours(x, seats):
    """Rows (b, d) with rows of zeros added to a multiple of four, which the products like best."""
    rows, d = x.shape
    if rows % 4 == 0:
        return x
    filled = seats[: (rows + 3) // 4 * 4 * d].reshape(((rows + 3) // 4 * 4, d))
    filled[:rows] = x
    filled[rows:] = np.float32(0.0)
    return filled


@compiled
def answer(w, x, widths, seats, hidden, out):
    """Logits of one model (P,) on rows (b, d), without dropout; seats, hidden: room for rows and layers."""
    inside, units = widths[0], widths[1]
    matrix = w[: units * inside].reshape((units, inside)).T
    for at in range(0, len(x), ANSWERED_AT_ONCE):
        here = out[at : at + ANSWERED_AT_ONCE]
        seen = _fours(x[at : at + ANSWERED_AT_ONCE], seats)
        rows = len(seen)
        np.dot(seen, matrix, hidden[: rows * units].reshape((rows, units)))
        _finish(w, widths, rows, hidden, here)


@compiled
def answers(models, which, owner, x, start, place, widths, seats, hidden, out):
    """Logits of the models ``which`` of (k, P) on the rows of center owner[k], from out[place[k]] on; one
    model (1, P) serves all."""
    for k in which:
        mine = x[start[owner[k]] : start[owner[k] + 1]]
        model = models[min(k, len(models) - 1)]
        answer(model, mine, widths, seats, hidden, out[place[k] : place[k] + len(mine)])


@compiled
def _mix(own, others, keep, other, share, out):
    """One model (P,): its own times ``keep`` and what others sent; what is not shared stays its own."""
    shared = others.shape[1]
    # Slices: a loop over their whole length is compiled to vector instructions.
    average, mine = out[:shared], own[:shared]
    for p in range(shared):
        average[p] = keep * mine[p]
    for q in range(len(other)):
        row, say = others[other[q]], share[q]
        for p in range(shared):
            average[p] += say * row[p]
    out[shared:] = own[shared:]


@compiled
def mixed_models(own, others, parts, which, out):
    """The models ``which`` themselves, to rows of ``out`` (k, P): see ``mixtures.Mixtures`` for the parts."""
    owner, keep, other, share, part = parts
    for k in which:
        mine = slice(part[k], part[k + 1])
        _mix(own[owner[k]], others, keep[k], other[mine], share[mine], out[k])
