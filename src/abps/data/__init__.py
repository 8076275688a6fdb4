"""From a table to a federation to numbers."""
