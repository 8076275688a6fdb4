"""Federated statistics: effects with intervals, heterogeneity, Table 1, evaluation of models."""
