"""Local training of all centers: models, fast learners, the plain loop that checks them, metrics."""
