"""The laboratory: rivals, drift, the paper's experiments, speed. Nothing a hospital runs imports it."""
