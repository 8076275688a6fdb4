"""Generated federations, and what their knobs share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from abps.core.errors import RequestError


def check_ranges(name: str, knobs: Any, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Refuse a knob outside its range; unset knobs pass, NaN does not."""
    for knob, (low, high) in ranges.items():
        value = getattr(knobs, knob)
        if value is not None and not low <= value <= high:
            raise RequestError(f"{name}: {knob}={value} is out of range; choose {low} to {high}")
