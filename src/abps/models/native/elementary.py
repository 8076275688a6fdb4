"""Elementary functions in single precision, without branches or calls, so that loops over them are compiled
to vector instructions. All are right to a few units in the last place (tested against double precision).
"""

from __future__ import annotations

import numpy as np

from abps.jit import compiled

_ONE = np.float32(1.0)
_HALF = np.float32(0.5)
_LOG2E = np.float32(1.4426950408889634)
# log 2 in two parts: the first has few digits, so that its products with small whole numbers are exact.
_LN2, _LN2_REST = np.float32(0.693359375), np.float32(-2.12194440e-4)
# The bits of sqrt(1/2) as a float: what is split at it is left between sqrt(1/2) and sqrt(2).
_ROOT_HALF = np.int32(0x3F3504F3)
# Above this, softplus(x) is x to the last digit.
_LARGE = np.float32(20.0)


@compiled
def exp(x):
    """e^x for x from -87 to 88; below and above as there."""
    x = min(max(x, np.float32(-87.0)), np.float32(88.0))
    n = np.floor(x * _LOG2E + _HALF)
    r = (x - n * _LN2) - n * _LN2_REST
    # The first terms of the series: |r| is at most log(2) / 2.
    p = np.float32(1 / 5040)
    p = p * r + np.float32(1 / 720)
    p = p * r + np.float32(1 / 120)
    p = p * r + np.float32(1 / 24)
    p = p * r + np.float32(1 / 6)
    p = p * r + _HALF
    p = p * r + _ONE
    p = p * r + _ONE
    return p * _two_to(np.int32(n))


@compiled
def _two_to(n):
    return np.int32((n + np.int32(127)) << np.int32(23)).view(np.float32)


@compiled
def _halvings(x):
    """The whole n for which x / 2^n lies between sqrt(1/2) and sqrt(2)."""
    return np.int32((np.float32(x).view(np.int32) - _ROOT_HALF) >> np.int32(23))


@compiled
def _log(f, n):
    """log((1 + f) 2^n) for 1 + f between sqrt(1/2) and sqrt(2), by the series of the inverse hyperbolic
    tangent."""
    s = f / (f + np.float32(2.0))
    q = s * s
    p = np.float32(1 / 9)
    p = p * q + np.float32(1 / 7)
    p = p * q + np.float32(1 / 5)
    p = p * q + np.float32(1 / 3)
    whole = np.float32(n)
    return whole * _LN2 + (np.float32(2.0) * (s + s * q * p) + whole * _LN2_REST)


@compiled
def log(x):
    """log x for x from 1.2e-38 to 1e38."""
    n = _halvings(x)
    return _log(x * _two_to(-n) - _ONE, n)


@compiled
def log1p(t):
    """log(1 + t) for t from 0, also of the smallest."""
    n = _halvings(_ONE + t)
    scale = _two_to(-n)
    return _log(t * scale + (scale - _ONE), n)


@compiled
def softplus(x):
    """log(1 + e^x), and its slope 1 / (1 + e^-x)."""
    t = exp(min(x, _LARGE))
    small = log1p(t)  # before it is known whether it is needed: no branch
    return x if x > _LARGE else small, t / (_ONE + t)


@compiled
def normal(word):
    """A standard normal number from a random word: the quantile at the middle of one of 2^24 equal parts.

    The inverse error function is approximated as in M. Giles, Approximating the erfinv function, GPU
    Computing Gems, 2012: one polynomial for the middle, one for the tails.
    """
    x = (np.float32(np.int32(word >> np.uint32(8)) - np.int32(1 << 23)) + _HALF) * np.float32(2.0**-23)
    w = -log((_ONE - x) * (_ONE + x))
    a = w - np.float32(2.5)
    middle = np.float32(2.81022636e-08)
    middle = middle * a + np.float32(3.43273939e-07)
    middle = middle * a + np.float32(-3.5233877e-06)
    middle = middle * a + np.float32(-4.39150654e-06)
    middle = middle * a + np.float32(0.00021858087)
    middle = middle * a + np.float32(-0.00125372503)
    middle = middle * a + np.float32(-0.00417768164)
    middle = middle * a + np.float32(0.246640727)
    middle = middle * a + np.float32(1.50140941)
    b = np.sqrt(max(w, np.float32(5.0))) - np.float32(3.0)
    tail = np.float32(-0.000200214257)
    tail = tail * b + np.float32(0.000100950558)
    tail = tail * b + np.float32(0.00134934322)
    tail = tail * b + np.float32(-0.00367342844)
    tail = tail * b + np.float32(0.00573950773)
    tail = tail * b + np.float32(-0.0076224613)
    tail = tail * b + np.float32(0.00943887047)
    tail = tail * b + np.float32(1.00167406)
    tail = tail * b + np.float32(2.83297682)
    return np.float32(1.4142135623730951) * x * (middle if w < np.float32(5.0) else tail)


@compiled
def normals(key, places, out):
    """Standard normal numbers of a random key; the words are those of ``streams.words``."""
    low, high = np.uint32(key & np.uint64(0xFFFFFFFF)), np.uint32(key >> np.uint64(32))
    for p in range(len(out)):
        word = np.uint32(places[p] + low)
        word = np.uint32(np.uint32(word ^ np.uint32(word >> np.uint32(16))) * np.uint32(0x7FEB352D))
        word = np.uint32(np.uint32(word ^ np.uint32(word >> np.uint32(15))) + high)
        word = np.uint32(word * np.uint32(0x846CA68B))
        out[p] = normal(np.uint32(word ^ np.uint32(word >> np.uint32(16))))
