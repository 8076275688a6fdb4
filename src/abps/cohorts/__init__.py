"""From clinical tables to a federation."""
