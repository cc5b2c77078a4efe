"""Small models with a hierarchy inside, written as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BytesIO

import onnx
import onnx_ir as ir
from onnx import parser

from hieronnx.files.metadata import embed_in_nodes, embedded_model_metadata
from hieronnx.files.splice import write_annotated
from hieronnx.graph.building import view_model
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import ROOT, BoundTensor, Call, CallId, Module, Node


def annotated(
    text: str | onnx.ModelProto,
    scopes: list[str | tuple[str, ...]],
    passed: Mapping[str, tuple[Sequence[str], Sequence[str]]] | None = None,
    *,
    evidence: str = "captured",
) -> onnx.ModelProto:
    """Return a model with a hierarchy inside.

    Args:
        text: The model.
        scopes: A module path for each node, or several where it stands for several.
        passed: What the calls received and returned, by module: `argument=tensor`, or `argument=` without one.
        evidence: How the nodes are known.
    """
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}') if isinstance(text, str) else text
    view = view_model(ir.serde.deserialize_model(model))
    calls = [tuple(CallId(path, 0) for path in ((found,) if isinstance(found, str) else found)) for found in scopes]
    nodes = []
    for index, origins in zip(view.file_order, calls, strict=True):
        graph, output = view.node_key(index)
        nodes.append(
            Node(graph, view.nodes[index].name, view.nodes[index].op, "", output, origins[0], origins, evidence)
        )
    hierarchy = make_hierarchy({origin.module for origins in calls for origin in origins}, nodes)
    for module, ends in (passed or {}).items():
        received, returned = (tuple(map(read_passed, end)) for end in ends)
        found = (
            replace(call, received=received, returned=returned) if call.id.module == module else call
            for call in hierarchy.calls
        )
        hierarchy = replace(hierarchy, calls=tuple(found))
    return embed(model, hierarchy)


def read_passed(text: str) -> BoundTensor:
    """Read `argument=tensor`, or `argument=graph:tensor`; nothing after the sign where there is no tensor."""
    name, _, tensor = text.partition("=")
    graph, _, tensor = tensor.rpartition(":")
    return BoundTensor(name, tensor or None, graph)


def make_hierarchy(paths: set[str], nodes: list[Node]) -> Hierarchy:
    """Return a hierarchy with one call of each module."""
    every = sorted({"", *paths, *(path.rpartition(".")[0] for path in paths)})
    modules = {
        path: Module(path, "Net", "nets.Net", (), {}, (), (), 0, (), path.count(".") + bool(path)) for path in every
    }
    calls = [Call(ROOT, None, "", "/Net", True)]
    for path in every[1:]:
        parent = CallId(path.rpartition(".")[0], 0)
        calls.append(Call(CallId(path, 0), parent, path, f"/Net/{path.replace('.', '/')}", True))
    return Hierarchy(modules, tuple(calls), tuple(nodes))


def embed(model: onnx.ModelProto, hierarchy: Hierarchy) -> onnx.ModelProto:
    """Return the model with the hierarchy inside."""
    stream = BytesIO()
    write_annotated(stream, model.SerializeToString(), embed_in_nodes(hierarchy), embedded_model_metadata(hierarchy))
    return onnx.ModelProto.FromString(stream.getvalue())


def names(nodes: tuple[Node, ...]) -> list[str]:
    """Return what nodes are known by: their first outputs."""
    return [node.output for node in nodes]
