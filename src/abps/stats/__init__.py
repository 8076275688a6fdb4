"""Tests, divergences and detectors of change, and the paper's guarantees as functions."""
