"""A package that no site allows."""

from federated_mean import MEAN

__all__ = ["MEAN"]
