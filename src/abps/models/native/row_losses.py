"""Losses of every kind of outcome and their slopes, and the share of pairs in the right order, compiled.

Shapes: z (rows, outputs) answers, y (rows,) outcomes as :mod:`abps.data.outcome` codes them. A rule is the
plain tuple (code, grid).
"""

from __future__ import annotations

import numpy as np

from abps.jit import compiled

LOGISTIC, HAZARD, SOFTMAX, SQUARED = range(4)


@compiled
def _softplus(v):
    return max(v, 0.0) + np.log1p(np.exp(-abs(v)))


@compiled
def reached(y, grid):
    """How many intervals a row of signed time lived through, and whether it failed in the next.

    An event at an interval's end belongs to it; who was watched until its end lived through it. An event
    after the last interval is none here.
    """
    time, event = abs(y), not np.signbit(y)
    k = 0
    while k < len(grid) and (grid[k] < time or (not event and grid[k] <= time)):
        k += 1
    return k, event and k < len(grid)


@compiled
def judge(code, grid, z, y, slope, loss):
    """Every row's loss (rows,), and its slope in the answers (rows, outputs)."""
    for r in range(len(y)):
        if code == HAZARD:
            lived, failed = reached(y[r], grid)
            total = 0.0
            for k in range(z.shape[1]):
                slope[r, k] = 0.0
                if k < lived or (failed and k == lived):
                    slope[r, k] = 1.0 / (1.0 + np.exp(-z[r, k]))
                    total += _softplus(z[r, k])
            if failed:
                slope[r, lived] -= 1.0
                total -= z[r, lived]
            loss[r] = total
        elif code == SOFTMAX:
            top, total = z[r].max(), 0.0
            for k in range(z.shape[1]):
                slope[r, k] = np.exp(z[r, k] - top)
                total += slope[r, k]
            for k in range(z.shape[1]):
                slope[r, k] /= total
            mine = int(y[r])
            slope[r, mine] -= 1.0
            loss[r] = np.log(total) + top - z[r, mine]
        elif code == SQUARED:
            gap = z[r, 0] - y[r]
            slope[r, 0] = gap
            loss[r] = 0.5 * gap * gap
        else:
            slope[r, 0] = 1.0 / (1.0 + np.exp(-z[r, 0])) - y[r]
            loss[r] = _softplus(z[r, 0]) - z[r, 0] * y[r]


@compiled
def concordances(time, event, risk, start):
    """(groups,) of the pairs of which one surely came first: the share in which it had the larger risk, equal
    risks as half. At one time those who were only watched so long came later. NaN without such a pair."""
    found = np.full(len(start) - 1, np.nan)
    for g in range(len(found)):
        low, high = start[g], start[g + 1]
        t, e, s = time[low:high], event[low:high], risk[low:high]
        levels = np.unique(s)
        rank = np.searchsorted(levels, s)
        tree = np.zeros(len(levels) + 1, dtype=np.int64)  # counts of risks among those who came later
        order = np.argsort(-t, kind="mergesort")
        pairs, twice, there, at = 0, 0, 0, 0
        while at < len(order):
            end = at
            while end < len(order) and t[order[end]] == t[order[at]]:
                end += 1
            for wanted in (False, True):
                if wanted:
                    for k in order[at:end]:
                        if e[k]:
                            twice += _below(tree, rank[k]) + _below(tree, rank[k] + 1)
                            pairs += there
                for k in order[at:end]:
                    if e[k] == wanted:
                        _add(tree, rank[k])
                        there += 1
            at = end
        if pairs:
            found[g] = twice / (2.0 * pairs)
    return found


@compiled
def _add(tree, place):
    k = place + 1
    while k < len(tree):
        tree[k] += 1
        k += k & -k


@compiled
def _below(tree, place):
    """How many stand below a place."""
    total, k = 0, place
    while k > 0:
        total += tree[k]
        k -= k & -k
    return total
