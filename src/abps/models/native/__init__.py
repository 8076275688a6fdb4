"""Local training in machine code."""
