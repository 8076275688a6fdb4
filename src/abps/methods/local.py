"""Local-only: every center trains alone. The lower bound of any collaboration worth having."""

from __future__ import annotations

from dataclasses import dataclass

from abps.methods.base import Method


@dataclass(frozen=True)
class Local(Method):
    """No exchange at all: a method as it is by default."""
