"""The constants of a model among its weights: exporters write a table either way.

    k = Constant (value)   y = Add (x, k)        y = Add (x, "hieronnx held 1")   with that initializer

A graph that gives a constant back does so through an Identity, so that outputs keep their names.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from hieronnx.graph.view import INPUTS_ARE_NO_DEFAULTS
from hieronnx.graph.walks import proto_bodies, walk_bodies

_PREFIX = "hieronnx held "


def hold_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with initializers of its main graph in place of Constants, those in bodies included.

    Where there are none, it is the model itself: weights may be large.
    """
    nodes = (node for _, graph in walk_bodies(model.graph) for node in graph.node)
    if all(read_constant(node) is None for node in nodes):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    held: list[onnx.TensorProto] = []
    _hold(made.graph, {}, held)
    made.graph.initializer.extend(held)
    if made.ir_version < INPUTS_ARE_NO_DEFAULTS:
        made.ir_version = INPUTS_ARE_NO_DEFAULTS
        _keep_inputs(made.graph)
    return made


def read_constant(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """Return the tensor that a Constant gives, as `value` or as floats; None of another node, or of any other value."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    for attribute in node.attribute:
        if attribute.name == "value":
            return attribute.t
        if attribute.name == "value_floats":
            return numpy_helper.from_array(np.array(attribute.floats, np.float32))
        if attribute.name == "value_float":
            return numpy_helper.from_array(np.array(attribute.f, np.float32))
    return None


def _keep_inputs(graph: onnx.GraphProto) -> None:
    """Leave out the inputs that old files have for their initializers: newer ones may be fed something else there."""
    held = {tensor.name for tensor in graph.initializer}
    kept = onnx.GraphProto(input=[value for value in graph.input if value.name not in held])
    del graph.input[:]
    graph.input.extend(kept.input)


def _hold(graph: onnx.GraphProto, outside: Mapping[str, str], held: list[onnx.TensorProto]) -> None:
    own = {value.name for value in (*graph.input, *graph.initializer)} | {o for n in graph.node for o in n.output}
    renamed = {name: new for name, new in outside.items() if name not in own}
    given = {value.name for value in graph.output}
    nodes = []
    for node in graph.node:
        if (tensor := read_constant(node)) is None:
            nodes.append(node)
            continue
        held.append(onnx.TensorProto())
        held[-1].CopyFrom(tensor)
        held[-1].name = renamed[node.output[0]] = f"{_PREFIX}{len(held)}"
        if node.output[0] in given:
            nodes.append(helper.make_node("Identity", [node.output[0]], [node.output[0]]))
    for node in nodes:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        for _, body in proto_bodies(node):
            _hold(body, renamed, held)
    kept = onnx.GraphProto(node=nodes)
    del graph.node[:]
    graph.node.extend(kept.node)
