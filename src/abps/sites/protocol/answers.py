"""Checks of what sites answer the scheduler: every answer passes one of them before it is used.

A check returns the answer in its proper form or raises ValueError. A site whose answer fails is left out, and
the job goes on: no site can end it by what it says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from abps.sites.protocol.decline_codes import DeclineCode, Failure
from abps.wire import versions

T = TypeVar("T")

#: More training rows than any hospital has; more bytes than a round can take.
MOST_ROWS = 10**8
MOST_BYTES = 10**10


def check_all(
    replies: Mapping[str, Any], check: Callable[[Any], T]
) -> tuple[dict[str, T], dict[str, Failure]]:
    """The answers that pass the check, and a failure for every site whose answer does not."""
    good: dict[str, T] = {}
    bad: dict[str, Failure] = {}
    for name, value in replies.items():
        try:
            good[name] = check(value)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            bad[name] = Failure(DeclineCode.INVALID_ANSWER)
    return good, bad


def whole(value: Any, low: int, high: int) -> int:
    """A whole number within its range."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError("no such number")
    return value


def score(value: Any) -> float:
    """A score between -1 and 1 (an R² may be negative), or none (NaN)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("no number")
    if not math.isnan(value) and not -1 <= value <= 1:
        raise ValueError("no such score")
    return float(value)


def progress(value: Any) -> tuple[str, Any]:
    """How a long command stands (a word), and its result."""
    state, result = value
    if not isinstance(state, str):
        raise ValueError("no word")
    return state, result


def hello(value: Any, rounds: int) -> dict[str, Any]:
    """A site's first answer."""
    if not isinstance(value, dict) or not isinstance(value["agreement"], str):
        raise ValueError("no facts")
    seen = value["validation"]
    if not isinstance(seen, dict) or len(seen) > rounds:
        raise ValueError("no rounds")
    return {
        "round": whole(value["round"], 0, rounds),
        "agreement": value["agreement"],
        "rows": whole(value["rows"], 1, MOST_ROWS),
        "wire": version(value["wire"]),
        "finished": value["finished"] is True,
        "validation": {str(whole(int(t), 1, rounds)): score(v) for t, v in seen.items()},
    }


def version(value: Any) -> versions.Version:
    """A version of the wire format."""
    major, minor = value
    return whole(major, 0, 1000), whole(minor, 0, 1000)


def concluded(value: Any, members: int) -> tuple[float, dict[str, int], bool]:
    """A site's validation score, its sums, and whether its method is done, at the end of a round."""
    auroc, sums, done = value
    if not isinstance(sums, dict):
        raise ValueError("no sums")
    most = {"bytes": MOST_BYTES, "partners": members}
    return score(auroc), {name: whole(sums[name], 0, high) for name, high in most.items()}, done is True
