"""A model of layers with its hierarchy in both forms, made without torch: of any size, and easy to spoil."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from hieronnx.files.document import describe_file, encode_sidecar
from hieronnx.files.metadata import embed_in_nodes, embedded_model_metadata
from hieronnx.files.opening import sidecar_path
from hieronnx.files.splice import write_annotated
from hieronnx.graph.building import view_model
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import ROOT, BoundTensor, Call, CallId, Initializer, Module, Node


def make_model(layers: int = 3, width: int = 3) -> onnx.ModelProto:
    """Return a chain of layers, each of which adds its weight again and again."""
    nodes, weights, tensor = [], [], "x"
    for layer in range(layers):
        weights.append(helper.make_tensor(f"layers.{layer}.weight", TensorProto.FLOAT, [1], [1.0]))
        for step in range(width):
            made = f"t{layer}_{step}"
            nodes.append(helper.make_node("Add", [tensor, weights[-1].name], [made], name=f"add{layer}_{step}"))
            tensor = made
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", tensor)]
    graph = helper.make_graph(nodes, "main", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def make_hierarchy(layers: int = 3, width: int = 3) -> Hierarchy:
    """Return the hierarchy of that chain: a call for each layer."""
    paths = [f"layers.{layer}" for layer in range(layers)]
    names = tuple(f"{path}.weight" for path in paths)
    modules = {"": Module("", "Net", "nets.Net", ("x",), {}, names, (), layers, ("layers",), 0)}
    modules |= {
        path: Module(path, "Layer", "nets.Layer", ("x",), {}, ("weight",), ("weight",), 1, (), 2) for path in paths
    }
    calls = [Call(ROOT, None, "", "/Net", True)]
    calls += [Call(CallId(path, 0), ROOT, path, f"/Net/Layer.{n}", True) for n, path in enumerate(paths)]
    nodes = [
        Node("", f"add{n}_{step}", "Add", "", f"t{n}_{step}", CallId(path, 0), (CallId(path, 0),), "captured")
        for n, path in enumerate(paths)
        for step in range(width)
    ]
    initializers = tuple(Initializer(name, name, ()) for name in names)
    return Hierarchy(modules, tuple(calls), tuple(nodes), initializers, strategy="captured")


def record_boundaries(hierarchy: Hierarchy) -> Hierarchy:
    """Tell for each call of that chain what it received and returned."""
    given, made = {ROOT: "x"}, {}
    tensor = "x"
    for node in hierarchy.nodes:
        given.setdefault(node.scope, tensor)
        tensor = made[node.scope] = made[ROOT] = node.output
    calls = (
        replace(call, received=(BoundTensor("x", given[call.id]),), returned=(BoundTensor("", made[call.id]),))
        for call in hierarchy.calls
    )
    return replace(hierarchy, calls=tuple(calls))


def write(
    path: Path, model: onnx.ModelProto, hierarchy: Hierarchy, *, embed: bool = True, sidecar: bool = True
) -> Path:
    """Write a model with its hierarchy in the forms asked for."""
    metadata = embed_in_nodes(hierarchy) if embed else {}
    stream = BytesIO()
    write_annotated(stream, model.SerializeToString(), metadata, embedded_model_metadata(hierarchy) if embed else {})
    path.write_bytes(stream.getvalue())
    if sidecar:
        described = replace(hierarchy, model=describe_file(path, "Net", "dynamo"))
        sidecar_path(path).write_bytes(encode_sidecar(described, view_model(ir.load(path))))
    return path


def write_layered(path: Path, *, layers: int = 3, width: int = 3, embed: bool = True, sidecar: bool = True) -> Path:
    """Write the chain of layers."""
    return write(path, make_model(layers, width), make_hierarchy(layers, width), embed=embed, sidecar=sidecar)


def spoil(model: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a model's sidecar."""
    beside = sidecar_path(model)
    document = json.loads(beside.read_bytes())
    change(document)
    beside.write_text(json.dumps(document))


def at(*keys: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    """Return a change of the value at a place in the sidecar."""

    def change(document: Any) -> None:
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = to

    return change


def drop(*keys: str | int) -> Callable[[dict[str, Any]], None]:
    """Return a change that leaves out what is at a place in the sidecar."""

    def change(document: Any) -> None:
        for key in keys[:-1]:
            document = document[key]
        del document[keys[-1]]

    return change


def spoil_metadata(path: Path, change: Callable[[onnx.ModelProto], object]) -> None:
    """Change what is inside a model."""
    model = onnx.load(path)
    change(model)
    onnx.save(model, path)


def set_entry(owner: Any, key: str, value: str | None) -> None:
    """Set an entry of the metadata of a model or node, or take it out."""
    kept = [entry for entry in owner.metadata_props if entry.key != key]
    del owner.metadata_props[:]
    owner.metadata_props.extend(kept)
    if value is not None:
        owner.metadata_props.add(key=key, value=value)


def rescope(hierarchy: Hierarchy, scopes: dict[str, CallId], **changes: Any) -> Hierarchy:
    """Put nodes, by output, into other calls."""
    nodes = tuple(
        replace(node, **{"scope": scopes[node.output], "origins": (scopes[node.output],), **changes})
        if node.output in scopes
        else node
        for node in hierarchy.nodes
    )
    return replace(hierarchy, nodes=nodes)
