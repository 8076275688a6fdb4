"""A package that no site allows."""

from rotation import ROTATION

__all__ = ["ROTATION"]
