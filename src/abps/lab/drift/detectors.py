"""Detectors of change by name: the window rule, and River's.

River is an extra (``pip install 'abps[drift]'``); it is imported only when one of its detectors is
asked for. A detector takes one number at a time and says whether it raises an alarm.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from abps.core.errors import RequestError, nearest
from abps.lab.drift.change import Detector, WelchDetector, WelchRule


class RiverDetector:
    """A detector of River behind the interface of this package."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def update(self, value: float) -> bool:
        self._inner.update(value)
        return bool(self._inner.drift_detected)


@dataclass(frozen=True)
class Entry:
    """A detector that can be asked for: how to make it (from a seed), and what it is.

    rule: the window rule, if it is one; many streams can then be watched at once.
    """

    make: Callable[[int], Detector]
    about: str
    extra: bool = False
    rule: WelchRule | None = None


def _window(rule: WelchRule, about: str) -> Entry:
    return Entry(lambda seed: WelchDetector(rule), about, rule=rule)


def _river(name: str) -> Any:
    try:
        return getattr(importlib.import_module("river.drift"), name)
    except ImportError as error:
        raise RequestError(
            f"the detector {name} is River's, which is not installed; pip install 'abps[drift]'"
        ) from error


# Settings for streams in units of their own standard deviation (see ``abps theory``): Page-Hinkley has
# no level, so its threshold is set where a stream of 400 numbers without change raises few alarms.
DETECTORS: dict[str, Entry] = {
    "welch": _window(
        WelchRule(alpha=0.05, block=20),
        "window rule of the text: blocks of 20, every comparison at 0.05",
    ),
    "welch-spend": _window(
        WelchRule(alpha=0.05, block=20, spend=True),
        "the same, 0.05 spent over all comparisons of a window",
    ),
    "pooled-spend": _window(
        WelchRule(alpha=0.05, block=20, spend=True, pool=True),
        "the same with a common variance (Student), for rare outcomes",
    ),
    "page-hinkley": Entry(
        lambda seed: RiverDetector(_river("PageHinkley")(delta=0.1, threshold=20.0, alpha=1.0)),
        "River: cumulative deviations from the running mean, tolerance 0.1, threshold 20",
        extra=True,
    ),
    "adwin": Entry(
        lambda seed: RiverDetector(_river("ADWIN")(delta=0.002)),
        "River: adaptive windows, delta 0.002",
        extra=True,
    ),
    "kswin": Entry(
        lambda seed: RiverDetector(_river("KSWIN")(alpha=0.005, seed=seed % 2**32)),
        "River: Kolmogorov-Smirnov on the last 30 of 100 numbers, level 0.005",
        extra=True,
    ),
}


def detector(name: str, seed: int = 0) -> Detector:
    """A new detector by name; ``seed`` for those that draw (KSWIN)."""
    if name not in DETECTORS:
        raise RequestError(
            f"there is no detector {name!r}{nearest(name, DETECTORS)}; known are {', '.join(DETECTORS)}"
        )
    return DETECTORS[name].make(seed)


def available() -> list[str]:
    """The detectors that can be made here: all, or those that need no extra."""
    try:
        importlib.import_module("river.drift")
    except ImportError:
        return [name for name, entry in DETECTORS.items() if not entry.extra]
    return list(DETECTORS)
