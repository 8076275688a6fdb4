"""A model as ONNX, for programs that are not ours.

The graph does everything but look up words: inputs are ``numbers`` (rows, k), numbers and yes/no columns as
they stand in the table with NaN for a gap, and ``levels`` (rows, m), 1 where a category has a certain level.
``inputs`` in the file's metadata names them in order. The output is ``probability`` (rows,), recalibrated, or
(rows, classes); ``alive`` (rows, times), the chance to live past each time; or ``value`` (rows,), a number.
"""

import json
from typing import Any

import numpy as np

from abps.core.errors import RequestError
from abps.data.scales import FARTHEST
from abps.data.splines import SmoothTerms
from abps.evaluate.calibration import EDGE
from abps.fitted.model import FittedModel

#: The version of the operators; every one in use is older.
OPSET = 17


def graph_inputs(model: FittedModel) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The columns of ``numbers``, and of ``levels`` as (column, level; "" for a gap), in order."""
    book = model.book.columns
    text = {c.source for c in book if c.kind == "level"}
    numbers = tuple(dict.fromkeys(c.source for c in book if c.source not in text))
    levels = tuple((c.source, c.level) for c in book if c.source in text)
    return numbers, levels


class _Graph:
    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._count = 0

    def constant(self, value: Any, kind: Any = np.float64) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.asarray(value, dtype=kind), name))
        return name

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        self._count += 1
        name = f"n{self._count}"
        self.nodes.append(self.onnx.helper.make_node(operator, list(inputs), [name], **attributes))
        return name


def to_onnx(model: FittedModel) -> bytes:
    try:
        import onnx
    except ImportError as error:
        raise RequestError("ONNX needs the package onnx; install abps[onnx]") from error
    graph = _Graph(onnx)
    x = _encoded(graph, model)
    total = None
    for branch in model.network.branches:
        now = x
        for layer in branch:
            now = graph.node("MatMul", now, graph.constant(layer.weight.T))
            now = graph.node("Add", now, graph.constant(layer.bias))
            if layer.relu:
                now = graph.node("Relu", now)
        total = now if total is None else graph.node("Add", total, now)
    assert total is not None
    name, last, columns = _output(graph, model, total)
    graph.nodes.append(onnx.helper.make_node("Identity", [last], [name]))
    numbers, levels = graph_inputs(model)
    double = onnx.TensorProto.DOUBLE
    made = onnx.helper.make_graph(
        graph.nodes,
        "abps",
        [
            onnx.helper.make_tensor_value_info("numbers", double, ["rows", len(numbers)]),
            onnx.helper.make_tensor_value_info("levels", double, ["rows", len(levels)]),
        ],
        [onnx.helper.make_tensor_value_info(name, double, ["rows", columns] if columns else ["rows"])],
        graph.constants,
    )
    whole = onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=8)
    inputs = {"numbers": list(numbers), "levels": [list(pair) for pair in levels]}
    onnx.helper.set_model_props(whole, {"center": model.center, "inputs": json.dumps(inputs)})
    onnx.checker.check_model(whole)
    return bytes(whole.SerializeToString())


def _output(graph: _Graph, model: FittedModel, answers: str) -> tuple[str, str, int]:
    """From answers (rows, outputs) to predictions: the output's name, its node, and its columns (0: none)."""
    outcome = model.outcome
    if outcome.kind == "classes":
        return "probability", graph.node("Softmax", answers, axis=1), len(outcome.names)
    if outcome.kind == "survival":  # the logarithm of the chance to live past a time is a sum over intervals
        count = len(outcome.grid)
        survived = graph.node("Sigmoid", graph.node("Neg", graph.node("Min", answers, graph.constant(500.0))))
        summed = graph.constant(np.triu(np.ones((count, count))))
        return "alive", graph.node("Exp", graph.node("MatMul", graph.node("Log", survived), summed)), count
    one = graph.node("Squeeze", answers, graph.constant([1], np.int64))
    if outcome.kind == "continuous":
        scaled = graph.node("Mul", one, graph.constant(outcome.scale))
        return "value", graph.node("Add", scaled, graph.constant(outcome.level)), 0
    again = model.recalibration
    if again.kind != "none":
        edge = float(np.log((1 - EDGE) / EDGE))
        one = graph.node("Min", graph.node("Max", one, graph.constant(-edge)), graph.constant(edge))
        one = graph.node("Mul", one, graph.constant(again.slope))
        one = graph.node("Add", one, graph.constant(again.intercept))
    return "probability", graph.node("Sigmoid", one), 0


def _encoded(graph: _Graph, model: FittedModel) -> str:
    """(rows, inputs of the network): standardised, gaps filled, smooth terms made."""
    numbers, levels = graph_inputs(model)
    scales = model.book.statistics or {}
    axis = graph.constant([1], np.int64)
    zero, parts = graph.constant(0.0), []
    for k, column in enumerate(model.book.columns):
        if column.source not in numbers:
            parts.append(_column(graph, "levels", levels.index((column.source, column.level)), axis))
            continue
        raw = _column(graph, "numbers", numbers.index(column.source), axis)
        gap = graph.node("IsNaN", raw)
        if column.kind == "missing":
            parts.append(graph.node("Cast", gap, to=graph.onnx.TensorProto.DOUBLE))
        elif column.kind == "flag":
            parts.append(graph.node("Where", gap, zero, raw))
        elif not (scale := scales[column.source]).spread > 0:
            parts.append(graph.node("Where", gap, zero, graph.node("Mul", raw, zero)))
        else:
            known = graph.node("Where", gap, graph.constant(scale.fill), raw)
            z = graph.node("Sub", known, graph.constant(scale.center))
            z = graph.node("Div", z, graph.constant(scale.spread))
            z = graph.node("Min", graph.node("Max", z, graph.constant(-FARTHEST)), graph.constant(FARTHEST))
            terms = None if model.design is None else model.design.terms[k]
            parts.append(z if terms is None else _smooth(graph, z, terms))
    return graph.node("Concat", *parts, axis=1)


def _smooth(graph: _Graph, z: str, terms: SmoothTerms) -> str:
    """The smooth terms of standardised values z, tails last."""
    low, high = (graph.constant(edge) for edge in terms.edges)
    inside = graph.node("Min", graph.node("Max", z, low), high)
    beyond = graph.node("Relu", graph.node("Sub", inside, graph.constant(terms.knots[None, :])))
    bent = graph.node("Concat", inside, beyond, axis=1)
    bent = graph.node("Sub", bent, graph.constant(terms.middle[None, :]))
    outside = graph.node("Concat", graph.node("Sub", low, z), graph.node("Sub", z, high), axis=1)
    tails = graph.node("Log", graph.node("Add", graph.node("Relu", outside), graph.constant(1.0)))
    return graph.node("Concat", graph.node("MatMul", bent, graph.constant(terms.matrix)), tails, axis=1)


def _column(graph: _Graph, table: str, place: int, axis: str) -> str:
    start, stop = graph.constant([place], np.int64), graph.constant([place + 1], np.int64)
    return graph.node("Slice", table, start, stop, axis)
