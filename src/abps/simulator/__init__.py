"""A federation in one process, all centers at once."""
