"""Decisions that a hospital makes, in NumPy alone: beliefs, goals, matching, credit, ledger."""
