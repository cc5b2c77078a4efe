"""Faults to plant in a right file: one thing altered in one node, or in a weight that it alone reads."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE}


@dataclass(frozen=True)
class Fault:
    """A way to alter a model: what it is, the node (by its position in the main graph), and what to do."""

    kind: str
    node: int
    plant: Callable[[onnx.ModelProto], None]


def find_faults(model: onnx.ModelProto) -> Iterator[Fault]:
    """Yield all the faults that can be planted in a model with its weights inside."""
    graph = model.graph
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    readers: dict[str, list[int]] = defaultdict(list)
    for index, node in enumerate(graph.node):
        for name in node.input:
            readers[name].append(index)
    constants = {n.output[0]: n for n in graph.node if n.op_type == "Constant" and n.attribute[0].name == "value"}
    inferred = onnx.shape_inference.infer_shapes(model).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*inferred.value_info, *inferred.output)}
    for index, node in enumerate(graph.node):
        for name in node.input:
            tensor = initializers.get(name)
            if tensor is not None and readers[name] == [index] and tensor.data_type in FLOATS:
                yield from _alter_weight(index, tensor)
            scalar = constants[name].attribute[0].t if name in constants else tensor
            if scalar is not None and readers[name] == [index] and scalar.data_type in FLOATS:
                yield from _alter_scalar(index, node, name, scalar)
        yield from _alter_node(index, node, initializers, constants)
        is_single = types.get(node.output[0]) == TensorProto.FLOAT  # what is coarse already is not made wrong by it
        if node.op_type in ("MatMul", "Gemm", "Conv", "LayerNormalization") and is_single:
            yield Fault("half", index, partial(_round_to_half, index=index))


def _alter_weight(index: int, tensor: onnx.TensorProto) -> Iterator[Fault]:
    size = int(np.prod(tensor.dims))
    if size >= 4:
        kind = "bias" if len(tensor.dims) == 1 else "weight"
        yield Fault(kind, index, lambda model: _set(model, tensor.name, _shift))
    if len(tensor.dims) == 2 and tensor.dims[0] == tensor.dims[1] > 1:
        yield Fault("transposed", index, lambda model: _set(model, tensor.name, np.transpose))


def _shift(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Alter a quarter of a weight."""
    altered = array.astype(np.float64).ravel()
    chosen = slice(None, None, 4)
    altered[chosen] = altered[chosen] * 1.1 + 0.05 * (np.abs(altered).max() or 1.0)
    return altered.reshape(array.shape)


def _alter_scalar(index: int, node: onnx.NodeProto, name: str, scalar: onnx.TensorProto) -> Iterator[Fault]:
    if int(np.prod(scalar.dims)) != 1:
        return
    value = float(numpy_helper.to_array(scalar).ravel()[0])
    if node.op_type in ("Mul", "Div") and value not in (0.0, 1.0):
        yield Fault("scale", index, lambda model: _set_constant(model, name, lambda a: a * 1.25))
    if value <= -1e4:
        yield Fault("mask", index, lambda model: _set_constant(model, name, lambda a: np.full_like(a, -1.0)))
    if node.op_type == "Add" and 0 < value < 1e-2:
        yield Fault("epsilon", index, lambda model: _set_constant(model, name, lambda a: np.full_like(a, 0.05)))


def _alter_node(index: int, node: onnx.NodeProto, initializers: Any, constants: Any) -> Iterator[Fault]:
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type == "Softmax":
        yield Fault("softmax axis", index, lambda model: _set_attribute(model, index, "axis", -2))
    if "epsilon" in attributes:
        yield Fault("epsilon", index, lambda model: _set_attribute(model, index, "epsilon", 0.05))
    if node.op_type == "Gelu":
        approximate = attributes["approximate"].s.decode() if "approximate" in attributes else "none"
        other = "none" if approximate == "tanh" else "tanh"
        yield Fault("gelu", index, lambda model: _set_attribute(model, index, "approximate", other))
    if node.op_type == "Erf":
        yield Fault("gelu", index, lambda model: _approximate_erf(model, index))
    if node.op_type == "Add" and not any(name in initializers or name in constants for name in node.input):
        yield Fault("residual", index, lambda model: _repeat_operand(model, index))


def _set(model: onnx.ModelProto, name: str, alter: Callable[..., Any]) -> None:
    (tensor,) = [t for t in model.graph.initializer if t.name == name]
    array = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(alter(array)).astype(array.dtype), name))


def _set_constant(model: onnx.ModelProto, name: str, alter: Callable[..., Any]) -> None:
    if any(tensor.name == name for tensor in model.graph.initializer):
        _set(model, name, alter)
        return
    (node,) = [n for n in model.graph.node if n.output[0] == name]
    array = numpy_helper.to_array(node.attribute[0].t)
    node.attribute[0].t.CopyFrom(numpy_helper.from_array(np.asarray(alter(array), array.dtype)))


def _set_attribute(model: onnx.ModelProto, index: int, name: str, value: Any) -> None:
    node = model.graph.node[index]
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def _repeat_operand(model: onnx.ModelProto, index: int) -> None:
    node = model.graph.node[index]
    node.input[1] = node.input[0]


def _approximate_erf(model: onnx.ModelProto, index: int) -> None:
    """Put what makes the tanh form of Gelu into the place of Erf."""
    node = model.graph.node[index]
    x, y = node.input[0], node.output[0]
    made = [
        helper.make_node("Constant", [], ["fault/three"], value=numpy_helper.from_array(np.float32(3.0))),
        helper.make_node("Constant", [], ["fault/cubic"], value=numpy_helper.from_array(np.float32(0.089430))),
        helper.make_node("Constant", [], ["fault/factor"], value=numpy_helper.from_array(np.float32(1.128379))),
        helper.make_node("Pow", [x, "fault/three"], ["fault/x3"]),
        helper.make_node("Mul", ["fault/x3", "fault/cubic"], ["fault/x3c"]),
        helper.make_node("Add", [x, "fault/x3c"], ["fault/sum"]),
        helper.make_node("Mul", ["fault/sum", "fault/factor"], ["fault/in"]),
        helper.make_node("Tanh", ["fault/in"], [y]),
    ]
    _replace(model, index, made)


def _round_to_half(model: onnx.ModelProto, index: int) -> None:
    node = model.graph.node[index]
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.output[0] = "fault/full"
    casts = [
        helper.make_node("Cast", ["fault/full"], ["fault/half"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["fault/half"], [node.output[0]], to=TensorProto.FLOAT),
    ]
    _replace(model, index, [made, *casts])


def _replace(model: onnx.ModelProto, index: int, made: list[onnx.NodeProto]) -> None:
    nodes = list(model.graph.node)
    for new in made:
        new.metadata_props.extend(p for p in nodes[index].metadata_props if p not in new.metadata_props)
    kept = onnx.GraphProto(node=[*nodes[:index], *made, *nodes[index + 1 :]])
    del model.graph.node[:]
    model.graph.node.extend(kept.node)


def draw_faults(model: onnx.ModelProto, count: int, seed: str) -> list[Fault]:
    """Draw faults, of different kinds as far as there are."""
    drawing = random.Random(seed)
    by_kind: dict[str, list[Fault]] = defaultdict(list)
    for fault in find_faults(model):
        by_kind[fault.kind].append(fault)
    kinds = sorted(by_kind)
    drawing.shuffle(kinds)
    return [drawing.choice(by_kind[kind]) for kind in kinds[:count]]
