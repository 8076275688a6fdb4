"""What a site may answer the conductor: every answer passes one of these checks before it is used.

A check returns the answer in its proper form or raises ValueError. A site whose answer fails is left out, and
the job goes on: no site can end it, nor spend the others' budget, by what it says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from abps.wire import versions

T = TypeVar("T")

#: More training rows than any hospital has; more control bytes than a round can take.
MOST_ROWS = 10**8
MOST_CONTROL = 10**9

#: A mean loss beyond this, either way, is no loss of a model that was trained.
MOST_LOSS = 1e4

#: What the conductor says of a site whose answer fails its check; it does not repeat the answer.
NONSENSE = "its answer makes no sense"


def sorted_out(answers: Mapping[str, Any], check: Callable[[Any], T]) -> tuple[dict[str, T], dict[str, str]]:
    """The answers that pass, and a sentence for every site whose answer does not."""
    good: dict[str, T] = {}
    bad: dict[str, str] = {}
    for name, value in answers.items():
        try:
            good[name] = check(value)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            bad[name] = NONSENSE
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


def loss(value: Any) -> float:
    """A mean loss, or none (NaN); that of a density may be negative."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > MOST_LOSS:
        raise ValueError("no loss")
    return float(value)


def progress(value: Any) -> tuple[str, Any]:
    """How some work stands: a word, and its result."""
    state, result = value
    if not isinstance(state, str):
        raise ValueError("no word")
    return state, result


def hello(value: Any, rounds: int, edges: int) -> dict[str, Any]:
    """A site's first words; edges: the most bytes that its ends of edges can have taken in a round."""
    if not isinstance(value, dict) or not isinstance(value["agreement"], str):
        raise ValueError("no facts")
    seen = value["validation"]
    if not isinstance(seen, dict) or len(seen) > rounds:
        raise ValueError("no rounds")
    return {
        "round": whole(value["round"], 0, rounds),
        "agreement": value["agreement"],
        "rows": whole(value["rows"], 1, MOST_ROWS),
        "edges": whole(value["edges"], 0, edges * rounds),
        "wire": version(value.get("wire", versions.OLDEST)),
        "validation": {str(whole(int(t), 1, rounds)): score(v) for t, v in seen.items()},
    }


def version(value: Any) -> versions.Version:
    """A version of the wire format."""
    major, minor = value
    return whole(major, 0, 1000), whole(minor, 0, 1000)


def report(value: Any, members: int, edges: int) -> dict[str, int]:
    """A site's sums of a round; edges: as above."""
    if not isinstance(value, dict):
        raise ValueError("no sums")
    return {
        "edges": whole(value["edges"], 0, edges),
        "directed": whole(value["directed"], 0, 20 * edges),  # a message may have to be repeated
        "control": whole(value["control"], 0, MOST_CONTROL),
        "partners": whole(value["partners"], 0, members),
        "in_doubt": whole(value["in_doubt"], 0, members),
    }


def concluded(value: Any, members: int, edges: int) -> tuple[float, dict[str, int]]:
    """A site's validation score and its sums, at the end of a round."""
    auroc, sums = value
    return score(auroc), report(sums, members, edges)


def exchanged(
    value: Any, members: int, edges: int, partners: int
) -> tuple[int, tuple[float, dict[str, int]]]:
    """How many peers a site is in touch with, and what it tells at the end of a round."""
    touching, *rest = value
    return whole(touching, 0, partners), concluded(rest, members, edges)


def frames(value: Any, messages: int) -> list[bytes]:
    """The frames of a star's round."""
    if not isinstance(value, list | tuple) or len(value) != messages:
        raise ValueError("not as many frames")
    if not all(isinstance(frame, bytes) for frame in value):
        raise ValueError("no frames")
    return list(value)
