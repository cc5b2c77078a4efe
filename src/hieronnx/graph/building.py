"""Building the view of an onnx-ir model, in one walk, with keys that are equal only for equal contents."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import cast

import onnx_ir as ir

from hieronnx.graph.operators import name_operator
from hieronnx.graph.view import NO_TENSOR, SMALL_TENSOR_BYTES, TensorType, View, ViewGraph, ViewNode
from hieronnx.graph.walks import body_key, first_output, function_key, node_bodies

_SCALARS = frozenset({ir.AttributeType.FLOAT, ir.AttributeType.INT, ir.AttributeType.STRING})
_LISTS = frozenset({ir.AttributeType.FLOATS, ir.AttributeType.INTS, ir.AttributeType.STRINGS})


def view_model(
    model: ir.Model,
    visit: Callable[[int, ir.Node], None] | None = None,
    content: Callable[[ir.TensorProtocol | None, str | None], Hashable] | None = None,
) -> View:
    """Build the view of a model in one walk.

    Args:
        model: The model.
        visit: Called with each node's number and the node itself.
        content: Keys an initializer and its name; by default so that only equal contents have equal keys.
    """
    builder = _ViewBuilder(visit, content or _content_key)
    builder.add_graph(model.graph, "", "", None)
    for function in model.functions.values():
        builder.add_graph(function.graph, function_key(*function.identifier()), "", None)
    return builder.view


class _ViewBuilder:
    """Numbers values as it meets them; a value is one tensor wherever it is captured."""

    def __init__(
        self,
        visit: Callable[[int, ir.Node], None] | None,
        content: Callable[[ir.TensorProtocol | None, str | None], Hashable],
    ) -> None:
        self.view = View()
        self._visit, self._content = visit, content
        self._numbers: dict[ir.Value, int] = {}
        self._names: list[dict[str, int]] = []
        """For each graph that is being walked, the outermost first, the numbers of its tensors by name."""

    def add_graph(self, graph: ir.Graph, key: str, label: str, owner: int | None) -> int:
        view = self.view
        number = len(view.graphs)
        view.graphs.append(ViewGraph(key, label, owner, (), ()))
        self._names.append({})
        inputs = tuple(self._number(value, number) for value in graph.inputs)
        for value in graph.initializers.values():
            view.constants[self._number(value, number)] = self._content(value.const_value, value.name)
        for node in graph:
            self._add_node(node, number, key)
        outputs = tuple(self._number_output(value, number) for value in graph.outputs)
        view.graphs[number] = ViewGraph(key, label, owner, inputs, outputs)
        self._names.pop()
        return number

    def _number_output(self, value: ir.Value, graph: int) -> int:
        """Number an output; one that a graph around this one computes is known by its name alone."""
        if value not in self._numbers and value.name:
            for names in reversed(self._names):
                if value.name in names:
                    return names[value.name]
        return self._number(value, graph)

    def _add_node(self, node: ir.Node, graph: int, key: str) -> None:
        view = self.view
        inputs = tuple(NO_TENSOR if v is None else self._number(v, graph) for v in node.inputs)
        outputs = tuple(self._number(v, graph) if v.name else NO_TENSOR for v in node.outputs)
        first_inside, first_new = len(view.nodes), len(view.names)
        bodies = tuple(
            self.add_graph(body, body_key(key, first_output(node), label), label, None)
            for label, body in node_bodies(node)
        )
        read = [t for inside in view.nodes[first_inside:] for t in inside.inputs]
        read += (t for body in bodies for t in view.graphs[body].outputs)
        captures = tuple(dict.fromkeys(t for t in read if 0 <= t < first_new))
        op = name_operator(node.domain, node.op_type)
        op += f":{node.overload}" if node.overload else ""
        index = view.add_node(
            ViewNode(op, node.name or "", graph, inputs, outputs, _attribute_key(node), bodies, captures)
        )
        for body in bodies:
            view.graphs[body] = replace(view.graphs[body], owner=index)
        if self._visit is not None:
            self._visit(index, node)

    def _number(self, value: ir.Value, graph: int) -> int:
        number = self._numbers.get(value)
        if number is None:
            shape = value.shape
            axes = None if shape is None else tuple(dim if isinstance(dim, int) else dim.value for dim in shape)
            sizes = tuple(size if isinstance(size, int) else None for size in axes or ())
            type_ = None if value.dtype is None or axes is None else TensorType(value.dtype.name, sizes)
            number = self.view.add_tensor(value.name or "", graph, type_, axes)
            self._numbers[value] = number
            if value.name:
                self._names[-1][value.name] = number
        return number


def _attribute_key(node: ir.Node) -> tuple[tuple[str, Hashable], ...]:
    return tuple(
        (name, attribute_value_key(attribute))
        for name, attribute in sorted(node.attributes.items())
        if attribute.is_ref() or attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    )


def attribute_value_key(attribute: ir.Attr) -> Hashable:
    """Key an attribute so that only equal values of one type have equal keys."""
    kind = attribute.type
    if attribute.is_ref():
        return "reference", kind.name, attribute.ref_attr_name
    if kind == ir.AttributeType.TENSOR:
        return _tensor_key(attribute.as_tensor())
    if kind in _SCALARS:
        return kind.name, _exact(attribute.value)
    if kind in _LISTS:
        return kind.name, tuple(map(_exact, attribute.value))
    # As it is written, without what people write for people.
    proto = ir.serde.serialize_attribute(attribute)
    proto.doc_string = ""
    sparse = [item for field in (proto.sparse_tensor, *proto.sparse_tensors) for item in (field.values, field.indices)]
    for tensor in (*proto.tensors, *sparse):
        tensor.name = tensor.doc_string = ""
    return kind.name, bytes(proto.SerializeToString(deterministic=True))


def _exact(value: Hashable) -> Hashable:
    # As text, NaN equals itself, and -0.0 is not 0.0.
    return repr(value) if isinstance(value, float) else value


def _tensor_key(tensor: ir.TensorProtocol) -> Hashable:
    """Key a tensor in an attribute by its content; one that is in another file by where it is."""
    if isinstance(tensor, ir.ExternalTensor):
        return "external", tensor.location, tensor.offset, tensor.length
    shape = tuple(tensor.shape.numpy())
    if tensor.dtype == ir.DataType.STRING:
        return tensor.dtype, shape, tuple(cast("ir.StringTensor", tensor).string_data())
    content = tensor.tobytes()
    if len(content) > SMALL_TENSOR_BYTES:
        content = hashlib.blake2b(content, digest_size=16).digest()
    return tensor.dtype, shape, content


def _content_key(tensor: ir.TensorProtocol | None, name: str | None) -> Hashable:
    """Key a tensor by its content where that is small and at hand; else by where it is, or by its name."""
    if isinstance(tensor, ir.ExternalTensor):
        return _tensor_key(tensor)
    if tensor is None or tensor.nbytes > SMALL_TENSOR_BYTES or tensor.dtype == ir.DataType.STRING:
        return "named", name
    return _tensor_key(tensor)
