"""What the graph of model.onnx is given, as its metadata name it."""

import numpy as np
import polars as pl

from abps.fitted.portable import graph_inputs


def graph_values(model, features):
    """What the graph is given for columns as the codebook asks for them."""
    numbers, levels = graph_inputs(model)
    rows = features.height
    one = [features[name].cast(pl.Float64).to_numpy() for name in numbers]
    other = [
        (features[name].is_null() if level == "" else (features[name] == level).fill_null(False)).to_numpy()
        for name, level in levels
    ]
    return {
        "numbers": np.column_stack(one) if one else np.zeros((rows, 0)),
        "levels": np.column_stack(other).astype(np.float64) if other else np.zeros((rows, 0)),
    }
