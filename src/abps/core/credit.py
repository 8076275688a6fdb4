"""Credit: the contribution of each partner's model, by Shapley value, mapped to [0, 1]. A coalition of k
partners is a bit mask: bit p set means that partner p is in it."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

EXACT_UP_TO = 5  # up to this many partners credit is exact; above, it is sampled


def shapley(utility: Floats) -> Floats:
    """Exact Shapley values (..., k) from the utilities (..., 2**k) of all coalitions, by mask.

    >>> shapley(np.array([0.0, 1.0, 2.0, 4.0])).tolist()
    [1.5, 2.5]
    """
    k = int(utility.shape[-1]).bit_length() - 1
    masks = np.arange(1 << k)
    size = np.array([int(m).bit_count() for m in masks])
    weight = np.array([math.factorial(s) * math.factorial(k - s - 1) for s in range(k)]) / math.factorial(k)
    values = np.empty((*utility.shape[:-1], k))
    for p in range(k):
        without = masks[masks & (1 << p) == 0]
        gain = utility[..., without | (1 << p)] - utility[..., without]
        values[..., p] = gain @ weight[size[without]]
    return values


def sampled_shapley(permutations: Ints, utility: Callable[[list[int]], Floats], tolerance: float) -> Floats:
    """(k,) truncated Monte-Carlo Shapley values over the permutations (B, k) of k partners.  utility: the
    utilities of a list of coalitions. A permutation is cut off, its remaining partners getting nothing, once
    its coalition is within ``tolerance`` of the whole."""
    count, k = permutations.shape
    whole = (1 << k) - 1
    known: dict[int, float] = {}

    def ask(masks: list[int]) -> None:
        new = [m for m in dict.fromkeys(masks) if m not in known]
        if new:
            known.update(zip(new, utility(new).tolist()))

    ask([0, whole])
    prefix = [0] * count
    value = np.zeros(k)
    for step in range(k):
        going = [b for b in range(count) if abs(known[whole] - known[prefix[b]]) > tolerance]
        grown = {b: prefix[b] | 1 << int(permutations[b, step]) for b in going}
        ask(list(grown.values()))
        for b, mask in grown.items():
            value[permutations[b, step]] += known[mask] - known[prefix[b]]
            prefix[b] = mask
    return np.asarray(value / count)


def clip_affine(value: ArrayLike, low: float = -0.1, high: float = 0.1) -> Floats:
    """Eq. (5): map [low, high] to [0, 1] and clip; NaN (undefined utility) stays NaN.

    >>> clip_affine([-0.2, 0.0, 0.2]).tolist()
    [0.0, 0.5, 1.0]
    """
    return np.clip((np.asarray(value, dtype=np.float64) - low) / (high - low), 0.0, 1.0)
