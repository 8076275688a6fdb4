"""Local rounds and predictions of linear models, compiled: one center after the other, in a core's cache.

Shapes: a model is (P,), its P - 1 coefficients and the intercept at the end; with several answers per row
the coefficients of each term, then the intercepts of the answers. ``mix`` is (terms, outputs).
"""

from __future__ import annotations

import numpy as np

from abps.jit import compiled
from abps.models.native.network import _mix
from abps.models.native.row_losses import judge


@compiled
def descend(members, before, after, x, y, start, epochs, steps, decay, columns, terms):
    """The round of some centers: ``epochs`` steps down the gradient of the mean loss over all their rows.

    before: (n, P), or (1, P) for all.  after: (n, P), of which the members' rows are written.
    steps: (n,) how far each center goes.  decay: the penalty, on coefficients alone.
    columns: the first parameter that moves, and the one after the last.
    terms: what is added to the gradient, as ``network.Terms`` says.
    """
    strength, anchor, shift = terms
    first, last = columns
    size = before.shape[1]
    d = size - 1
    w, slope = np.empty(size, dtype=np.float32), np.empty(size, dtype=np.float32)
    one = np.float32(1.0)
    for c in range(len(members)):
        i = members[c]
        mine, labels = x[start[i] : start[i + 1]], y[start[i] : start[i + 1]]
        rows = len(labels)
        w[:] = before[min(i, len(before) - 1)]
        residual = np.empty(rows, dtype=np.float32)
        share, step = np.float32(1.0 / rows), np.float32(steps[i])
        for _ in range(epochs):
            np.dot(mine, w[:d], residual)
            level, total = w[d], np.float32(0.0)
            for r in range(rows):
                residual[r] = (one / (one + np.exp(-(residual[r] + level))) - labels[r]) * share
                total += residual[r]
            np.dot(residual, mine, slope[:d])
            slope[d] = total
            if len(anchor):
                towards = anchor[min(i, len(anchor) - 1)]
                for p in range(size):
                    slope[p] += strength[i] * (w[p] - towards[p])
            if len(shift):
                extra = shift[min(i, len(shift) - 1)]
                for p in range(size):
                    slope[p] += extra[p]
            for p in range(first, min(last, d)):
                w[p] -= step * (slope[p] + decay * w[p])
            if first <= d < last:
                w[d] -= step * slope[d]
        after[i] = w


@compiled
def descend_outputs(members, before, after, x, y, start, epochs, steps, decay, columns, terms, rule, mix):
    """The same for any outcome: the slope of a row's loss in its answers takes the place of the residual."""
    strength, anchor, shift = terms
    first, last = columns
    code, grid, quantile = rule
    size, d = before.shape[1], x.shape[1]
    count, outputs = mix.shape
    edge = count * d
    slope = np.empty(size, dtype=np.float32)
    for c in range(len(members)):
        i = members[c]
        mine, labels = x[start[i] : start[i + 1]], y[start[i] : start[i + 1]]
        rows = len(labels)
        w = before[min(i, len(before) - 1)].copy()
        answer, residual = np.empty((rows, outputs), np.float32), np.empty((rows, outputs), np.float32)
        loss = np.empty(rows, dtype=np.float32)
        share, step = np.float32(1.0 / rows), np.float32(steps[i])
        for _ in range(epochs):
            _answer(w, mine, mix, answer)
            judge(code, grid, quantile, answer, labels, residual, loss)
            for m in range(count):
                column = np.zeros(rows, dtype=np.float32)
                for k in range(outputs):
                    if mix[m, k] != 0.0:
                        for r in range(rows):
                            column[r] += mix[m, k] * share * residual[r, k]
                np.dot(column, mine, slope[m * d : (m + 1) * d])
            for k in range(outputs):
                slope[edge + k] = share * residual[:, k].sum()
            if len(anchor):
                towards = anchor[min(i, len(anchor) - 1)]
                for p in range(size):
                    slope[p] += strength[i] * (w[p] - towards[p])
            if len(shift):
                extra = shift[min(i, len(shift) - 1)]
                for p in range(size):
                    slope[p] += extra[p]
            for p in range(first, last):
                penalty = decay * w[p] if p < edge else np.float32(0.0)
                w[p] -= step * (slope[p] + penalty)
        after[i] = w


@compiled
def _answer(w, x, mix, out):
    """(rows, outputs) what a model answers."""
    d, (count, outputs) = x.shape[1], mix.shape
    for k in range(outputs):
        out[:, k] = w[count * d + k]
    for m in range(count):
        term = np.dot(x, w[m * d : (m + 1) * d])
        for k in range(outputs):
            if mix[m, k] != 0.0:
                for r in range(len(out)):
                    out[r, k] += mix[m, k] * term[r]


@compiled
def answers(models, which, owner, x, start, place, mix, out):
    """Logits of the models ``which`` of (k, P), or of one (1, P), on the rows of center owner[k], from
    out[place[k]] on."""
    for k in which:
        mine = x[start[owner[k]] : start[owner[k] + 1]]
        _answer(models[min(k, len(models) - 1)], mine, mix, out[place[k] : place[k] + len(mine)])


@compiled
def mixed_answers(own, others, parts, which, x, start, place, mix, out):
    """Logits of the mixtures ``which`` on their owners' rows."""
    owner, keep, other, share, part = parts
    model = np.empty(own.shape[1], dtype=np.float32)
    for k in which:
        mine, i = slice(part[k], part[k + 1]), owner[k]
        _mix(own[i], others, keep[k], other[mine], share[mine], model)
        rows = x[start[i] : start[i + 1]]
        _answer(model, rows, mix, out[place[k] : place[k] + len(rows)])
