"""Drift: whether tables change over time or differ between centers, and detectors of change."""
