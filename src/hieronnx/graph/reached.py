"""The part of a graph that tensors reach, for types to be inferred again there and nowhere else.

    s = Shape (x)                s = Shape (x)
    h = Div (s, two)             h = Div (s, two)
    a = Slice (x, zero, h)       a = Slice (x, zero, h)
    b = Relu (a)                 b = Relu (a)
    r = Relu (x)

What h reaches are the Slice and the Relu behind it. What computes the sizes that they read comes with them, and x is
an input of that part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain, count

import onnx

from hieronnx.graph.operators import SIZE_JOINING_OPS, SIZE_OPS, SIZE_PICKING_OPS
from hieronnx.graph.view import SMALL_TENSOR_BYTES
from hieronnx.graph.walks import first_name, proto_bodies, walk_bodies

_NAMED = "unk__"
"""What the names begin with that inference gives to sizes it does not know."""
_COMPUTING_SIZES = SIZE_JOINING_OPS | SIZE_PICKING_OPS | {"Constant", "ConstantOfShape", "Range", "Transpose"}


def cut_reached(model: onnx.ModelProto, inferred: onnx.GraphProto, names: Collection[str]) -> onnx.ModelProto:
    """Return the part of a model that these tensors reach, with what computes sizes for it.

    Args:
        model: The model.
        inferred: What was inferred of its main graph: the part's inputs have these types.
        names: Names of tensors of the main graph, which nodes make.
    """
    kept = _choose_nodes(model.graph, names)
    part = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    part.graph.name = model.graph.name
    part.graph.node.extend(kept)
    made = {name for node in kept for name in node.output}
    read = dict.fromkeys(name for node in kept for name in _list_reads(node) if name not in made)
    part.graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in read)
    held = {tensor.name for tensor in part.graph.initializer} - {value.name for value in model.graph.input}
    infos = {info.name: info for info in (*inferred.input, *inferred.value_info, *inferred.output)}
    part.graph.input.extend(infos[name] for name in read if name in infos and name not in held)
    declared = chain(model.graph.value_info, model.graph.output)
    part.graph.value_info.extend(info for info in declared if info.name in made)
    return part


class InferredTypes:
    """What is inferred of a graph, part by part."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self._infos = {info.name: info for info in (*graph.value_info, *graph.output)}
        taken = {dim.dim_param for dim in _list_sizes(graph)}
        self._names = (name for name in map(f"{_NAMED}{{}}".format, count()) if name not in taken)
        self._owners = {first_name(node.output): node for node in graph.node if _has_bodies(node)}

    def add(self, part: onnx.GraphProto, found: onnx.GraphProto) -> None:
        """Put what was found of a part by inference into the place of what was known, in bodies too."""
        self._rename(part, found)
        told = {info.name for info in found.value_info}
        for name in (name for node in part.node for name in node.output if name not in told):
            if name in self._infos:  # with what is known now, it cannot be
                self._infos[name].ClearField("type")
        for info in found.value_info:
            if info.name not in self._infos:
                self._infos[info.name] = self._graph.value_info.add()
            self._infos[info.name].CopyFrom(info)
        for node in filter(_has_bodies, found.node):
            self._owners[first_name(node.output)].CopyFrom(node)

    def _rename(self, part: onnx.GraphProto, found: onnx.GraphProto) -> None:
        """Give new names to the sizes that inference named: it does not know those of the rest of the graph."""
        given = {dim.dim_param for dim in _list_sizes(part)}
        renamed: dict[str, str] = {}
        for dim in _list_sizes(found):
            if dim.dim_param.startswith(_NAMED) and dim.dim_param not in given:
                if dim.dim_param not in renamed:
                    renamed[dim.dim_param] = next(self._names)
                dim.dim_param = renamed[dim.dim_param]


def _list_sizes(graph: onnx.GraphProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    """Yield the sizes of all tensors of a graph that have a name."""
    for _, body in walk_bodies(graph):
        for info in (*body.input, *body.value_info, *body.output):
            yield from (dim for dim in info.type.tensor_type.shape.dim if dim.dim_param)


def _has_bodies(node: onnx.NodeProto) -> bool:
    return any(True for _ in proto_bodies(node))


def _choose_nodes(graph: onnx.GraphProto, names: Collection[str]) -> list[onnx.NodeProto]:
    """Return the nodes that make or read these tensors, or what is made of them, and the sizes that they read."""
    reached, kept = set(names), set[int]()
    for index, node in enumerate(graph.node):
        if not reached.isdisjoint(chain(node.output, _list_reads(node))):
            kept.add(index)
            reached.update(filter(None, node.output))
    read = {name for index in kept for name in _list_reads(graph.node[index])}
    for index in range(len(graph.node) - 1, -1, -1):
        node = graph.node[index]
        if index not in kept and not read.isdisjoint(filter(None, node.output)) and _computes_sizes(node):
            kept.add(index)
            read.update(() if node.op_type in SIZE_OPS else node.input)
    return [graph.node[index] for index in sorted(kept)]


def _computes_sizes(node: onnx.NodeProto) -> bool:
    if node.domain or node.op_type not in _COMPUTING_SIZES | SIZE_OPS:
        return False
    return node.op_type != "Constant" or int(node.ByteSize()) <= 2 * SMALL_TENSOR_BYTES


def _list_reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, those that its bodies read among them."""
    yield from filter(None, node.input)
    for _, body in proto_bodies(node):
        for _, graph in walk_bodies(body):
            for inner in graph.node:
                yield from filter(None, inner.input)
            yield from (value.name for value in graph.output)
