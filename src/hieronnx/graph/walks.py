"""Walking the graphs of a model: the main graph, the bodies of nodes, and functions, each with its key.

The key of a graph names it within its model: `""` for the main graph, `output.attribute` of its node for a body (with
the keys above it before a `/`), `domain::name` for a function.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

import onnx_ir as ir

if TYPE_CHECKING:
    import onnx

_GraphT = TypeVar("_GraphT", "onnx.GraphProto", "onnx.FunctionProto")


def body_key(parent: str, output: str, label: str) -> str:
    """Return the key of a body: the keys above it, its node's output, and its attribute."""
    return f"{parent}/{output}.{label}" if parent else f"{output}.{label}"


def function_key(domain: str, name: str, overload: str) -> str:
    """Return the key of a function's graph."""
    return f"{domain}::{name}" + (f":{overload}" if overload else "")


def first_name(names: Iterable[str | None]) -> str:
    """Return the first name that is one: a node's first output identifies it within its graph."""
    return next(filter(None, names), "")


# -- onnx-ir ------------------------------------------------------------------------------------------------


def first_output(node: ir.Node) -> str:
    """Return the name of the node's first output that has one."""
    return first_name(value.name for value in node.outputs)


def walk_nodes(model: ir.Model) -> Iterator[tuple[str, ir.Node]]:
    """Yield each node with the key of its graph: main graph, bodies after their node, then functions."""
    yield from _walk_graph(model.graph, "")
    for function in model.functions.values():
        yield from _walk_graph(function.graph, function_key(*function.identifier()))


def _walk_graph(graph: ir.Graph, key: str) -> Iterator[tuple[str, ir.Node]]:
    for node in graph:
        yield key, node
        for label, body in node_bodies(node):
            yield from _walk_graph(body, body_key(key, first_output(node), label))


def find_readers(model: ir.Model) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Return for each node those that read what it makes, all by their graphs' keys and their first outputs."""
    nodes = [((graph, first_output(node)), node) for graph, node in walk_nodes(model)]
    keys = {node: key for key, node in nodes}
    return {key: [keys[use.node] for value in node.outputs for use in value.uses()] for key, node in nodes}


def node_bodies(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """Yield the bodies of a node with their labels: the attribute's name, and its index in a list."""
    for name, attribute in node.attributes.items():
        if attribute.is_ref():  # given where the function is called
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield name, attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            for index, body in enumerate(attribute.as_graphs()):
                yield f"{name}.{index}", body


# -- protos -------------------------------------------------------------------------------------------------


def proto_bodies(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """Yield the bodies of a node with their labels."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for index, body in enumerate(attribute.graphs):
            yield f"{attribute.name}.{index}", body


def walk_bodies(graph: _GraphT, key: str = "") -> Iterator[tuple[str, _GraphT | onnx.GraphProto]]:
    """Yield a graph and the bodies in it, in the order of the file, each with its key."""
    yield key, graph
    for node in graph.node:
        for label, body in proto_bodies(node):
            yield from walk_bodies(body, body_key(key, first_name(node.output), label))


def walk_protos(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.GraphProto | onnx.FunctionProto]]:
    """Yield every graph of a model with its key: the main graph, functions, and the bodies after what they are in."""
    yield from walk_bodies(model.graph)
    for function in model.functions:
        yield from walk_bodies(function, function_key(function.domain, function.name, function.overload))


def walk_attribute_tensors(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors in the attributes of a graph's own nodes."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
