"""The simulator: a federation in one process, all centers at once."""
