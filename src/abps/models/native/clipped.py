"""Private rounds, compiled: every row's gradient cut to a length, noise on their sum.

For the paper's network and for linear models, which are networks without a hidden layer. A row's gradient of
a layer is the product of what comes in and what comes back, so its length is the product of theirs: no row's
gradient is ever written out, only the lengths are.
"""

from __future__ import annotations

import numpy as np

from abps.jit import compiled
from abps.models.native.elementary import normals
from abps.models.native.network import _activate, _adam, _add, _backwards

#: Rows whose gradients are worked out at a time.
AT_ONCE = 128


@compiled
def _add_clipped(w, g, x, y, widths, clip, hidden, backward, unused):
    """Add to ``g`` (P,) the gradients of rows (b, d), each cut to the length ``clip``."""
    rows, depth = len(x), len(widths) - 2
    one = np.float32(1.0)
    # Forwards: layer after layer, all kept.
    before, at, filled = x, 0, 0
    for k in range(depth):
        inside, units = widths[k], widths[k + 1]
        flat = hidden[filled : filled + rows * units]
        out = flat.reshape((rows, units))
        np.dot(before, w[at : at + units * inside].reshape((units, inside)).T, out)
        _activate(flat, w[at + units * inside : at + units * (inside + 1)], rows, units)
        before = out
        at += units * (inside + 1)
        filled += rows * units
    top = widths[depth]
    last = w[at : at + top]
    error = np.empty(rows, dtype=np.float32)
    np.dot(before, last, error)
    length = np.empty(rows, dtype=np.float32)
    for r in range(rows):
        error[r] = one / (one + np.float32(np.exp(-(error[r] + w[at + top])))) - y[r]
        length[r] = error[r] * error[r] * (np.dot(before[r], before[r]) + one)
    # Backwards: what comes back to every layer, and the lengths.
    if depth:
        filled -= rows * top
        for r in range(rows):
            row = backward[filled + r * top : filled + (r + 1) * top]
            for u in range(top):
                row[u] = error[r] * last[u]
    here, place = at, filled
    for k in range(depth - 1, -1, -1):
        inside, units = widths[k], widths[k + 1]
        here -= units * (inside + 1)
        flat = backward[place : place + rows * units]
        _backwards(flat, hidden[place : place + rows * units], unused[:units], rows, units, one)
        upstream = flat.reshape((rows, units))
        below = x
        if k > 0:
            place -= rows * inside
            below = hidden[place : place + rows * inside].reshape((rows, inside))
            matrix = w[here : here + units * inside].reshape((units, inside))
            np.dot(upstream, matrix, backward[place : place + rows * inside].reshape((rows, inside)))
        for r in range(rows):
            size = np.dot(upstream[r], upstream[r])
            length[r] += size * (np.dot(below[r], below[r]) + one)
    for r in range(rows):
        length[r] = min(one, clip / max(np.sqrt(length[r]), np.float32(1e-30)))
    # Once more over the layers: the sum of what is left of every row.
    for r in range(rows):
        error[r] *= length[r]
        g[at + top] += error[r]
    g[at : at + top] += np.dot(error, before)
    here, place = 0, 0
    below = x
    for k in range(depth):
        inside, units = widths[k], widths[k + 1]
        flat = backward[place : place + rows * units]
        slope = g[here + units * inside : here + units * (inside + 1)]
        for r in range(rows):
            row = flat[r * units : (r + 1) * units]
            for u in range(units):
                row[u] *= length[r]
                slope[u] += row[u]
        part = np.dot(flat.reshape((rows, units)).T, below)
        g[here : here + units * inside] += part.ravel()
        below = hidden[place : place + rows * units].reshape((rows, units))
        here += units * (inside + 1)
        place += rows * units


@compiled
def train(members, before, after, x, y, start, widths, used, share, clip, spread, rule, terms, noise):
    """Private steps of the centers ``members`` (m,), from rows of ``before`` to those of ``after`` (n, P).

    before: (n, P), or (1, P) where all start from one model.  used: (m, steps, rows) whether a row is drawn.
    share: (n,) what a sum of gradients is multiplied by.  clip: the longest a row's gradient may be.
    spread: the noise's standard deviation.
    rule: whether it is Adam, (n,) how far each center goes, (P,) the penalty, the first parameter that moves
    and the one after the last.  terms: as ``network.Terms`` says.  noise: (m, steps) keys, (P,) places.
    """
    adam, lr, decay, low, high = rule
    strength, anchor, shift = terms
    keys, places = noise
    size, d = before.shape[1], x.shape[1]
    steps = used.shape[1]
    w, g = np.empty(size, dtype=np.float32), np.empty(size, dtype=np.float32)
    drawn = np.empty(size, dtype=np.float32)
    mean, square = np.empty(high - low, dtype=np.float32), np.empty(high - low, dtype=np.float32)
    layers = int(widths[1:].sum())
    hidden = np.empty(AT_ONCE * layers, dtype=np.float32)
    backward = np.empty(AT_ONCE * layers, dtype=np.float32)
    unused = np.empty(max(layers, 1), dtype=np.float32)
    seen, labels = np.empty((AT_ONCE, d), dtype=np.float32), np.empty(AT_ONCE, dtype=np.float32)
    for c in range(len(members)):
        i = members[c]
        own = start[i + 1] - start[i]
        w[:] = before[min(i, len(before) - 1)]
        mean[:] = np.float32(0.0)
        square[:] = np.float32(0.0)
        for step in range(steps):
            g[:] = np.float32(0.0)
            count = 0
            for r in range(own):
                if used[c, step, r]:
                    seen[count] = x[start[i] + r]
                    labels[count] = y[start[i] + r]
                    count += 1
                if count == AT_ONCE or (count and r == own - 1):
                    _add_clipped(w, g, seen[:count], labels[:count], widths, clip, hidden, backward, unused)
                    count = 0
            if spread > np.float32(0.0):
                normals(keys[c, step], places, drawn)
                for p in range(size):
                    g[p] += spread * drawn[p]
            for p in range(size):
                g[p] *= share[i]
            _add(g, w, strength, anchor, shift, i)
            for p in range(size):
                g[p] += decay[p] * w[p]
            if adam:
                _adam(w[low:high], g[low:high], mean, square, lr[i], np.float32(0.0), step + 1)
            else:
                for p in range(low, high):
                    w[p] -= lr[i] * g[p]
        after[i] = w
