"""Student's t distribution on arrays: tail probabilities and critical values, in NumPy alone."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_lgamma = np.frompyfunc(math.lgamma, 1, 1)
_erfc = np.frompyfunc(math.erfc, 1, 1)
#: From here on the expansion about the normal law is more accurate than the fraction, and faster.
_MANY = 200.0


def two_sided_p(statistic: ArrayLike, freedom: ArrayLike) -> Floats:
    """P(|T| >= |statistic|) for T with ``freedom`` degrees of freedom; the arrays broadcast.

    The tail is the regularised incomplete beta function I_x(freedom / 2, 1 / 2) at
    x = freedom / (freedom + statistic^2). For many degrees of freedom the statistic is turned into
    a normal one by Hill's expansion (Communications of the ACM 13, 1970, algorithm 395).
    """
    t, v = np.broadcast_arrays(np.asarray(statistic, np.float64), np.asarray(freedom, np.float64))
    p = np.where(np.isnan(t), np.nan, 0.0)
    few, many = np.isfinite(t) & (v < _MANY), np.isfinite(t) & (v >= _MANY)
    square, k = t[few] ** 2, v[few]
    p[few] = _beta(k / 2.0, np.full(square.shape, 0.5), k / (k + square), square / (k + square))
    p[many] = np.asarray(_erfc(_normal(t[many], v[many]) / math.sqrt(2.0)), np.float64)
    return p


def critical_value(alpha: float, freedom: ArrayLike) -> Floats:
    """t_crit: the statistic that |T| exceeds with probability ``alpha``, by bisection on log t."""
    v = np.asarray(freedom, np.float64)
    low, high = np.full(v.shape, -10.0), np.full(v.shape, 2.0)
    while True:  # heavy tails (few degrees of freedom, small alpha) need a larger bracket
        short = two_sided_p(np.exp(high), v) > alpha
        if not short.any():
            break
        high = np.where(short, 2.0 * high, high)
    for _ in range(70):
        middle = 0.5 * (low + high)
        above = two_sided_p(np.exp(middle), v) > alpha
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.asarray(np.exp(0.5 * (low + high)))


def _normal(t: Floats, v: Floats) -> Floats:
    """The normal deviate with the same two-sided tail as |t| with v degrees of freedom."""
    a = v - 0.5
    b = 48.0 * a**2
    y = a * np.log1p(t**2 / v)
    tail = (((-0.4 * y - 3.3) * y - 24.0) * y - 85.5) / (0.8 * y**2 + 100.0 + b)
    return np.asarray(((tail + y + 3.0) / b + 1.0) * np.sqrt(y))


def _beta(a: Floats, b: Floats, x: Floats, y: Floats) -> Floats:
    """Regularised incomplete beta I_x(a, b) with y = 1 - x given exactly; flat arrays."""
    swap = x > (a + 1.0) / (a + b + 2.0)  # the continued fraction converges fast on this side only
    a, b, x, y = np.where(swap, b, a), np.where(swap, a, b), np.where(swap, y, x), np.where(swap, x, y)
    log_b = np.asarray(_lgamma(a) + _lgamma(b) - _lgamma(a + b), np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        front = np.exp(a * np.log(x) + b * np.log(y) - log_b) / a
        value = np.where(x > 0.0, front * _fraction(a, b, x), 0.0)
    return np.clip(np.where(swap, 1.0 - value, value), 0.0, 1.0)


def _fraction(a: Floats, b: Floats, x: Floats) -> Floats:
    """The continued fraction of the incomplete beta function, by the modified Lentz recursion."""
    tiny = 1e-300
    c = np.ones(x.shape)
    d = 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / np.where(np.abs(d) < tiny, tiny, d)
    result = d.copy()
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        change = np.ones(x.shape)
        for term in (even, odd):
            d = 1.0 + term * d
            d = 1.0 / np.where(np.abs(d) < tiny, tiny, d)
            c = 1.0 + term / c
            c = np.where(np.abs(c) < tiny, tiny, c)
            change = d * c
            result = result * change
        if (np.abs(change - 1.0) < 1e-15).all():
            break
    return result
