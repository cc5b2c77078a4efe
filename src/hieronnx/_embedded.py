"""The hierarchy inside the model: metadata on each node, and the call tree on the model itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

import msgspec
import onnx_ir as ir

from hieronnx._document import FORMAT_VERSION, check_references, check_version, make_calls
from hieronnx.errors import HieronnxError
from hieronnx.graph import first_output, walk_nodes
from hieronnx.hierarchy import ROOT, CallId, Hierarchy, Module, Node

__all__ = [
    "CALLS_KEY",
    "MODEL_KEYS",
    "NODE_KEYS",
    "decode_rows",
    "embed_in_nodes",
    "embedded_metadata",
    "embedded_model_metadata",
    "name_module",
    "read_embedded",
    "read_embedded_node",
    "were_scopes_dropped",
]

_PREFIX = "hieronnx."
CALLS_KEY = f"{_PREFIX}calls"
"""The key of the call tree in a model's metadata."""
MODEL_KEYS = frozenset({CALLS_KEY, f"{_PREFIX}format_version"})
NODE_KEYS = frozenset(f"{_PREFIX}{name}" for name in ("tag", "module", "call", "evidence", "origins"))
_Row: TypeAlias = tuple[str, int, int | None, str, str, str]


def embedded_metadata(hierarchy: Hierarchy, node: Node) -> dict[str, str]:
    """Return what is embedded in a node: tag, module, call and evidence; origins where there are others."""
    metadata = {
        f"{_PREFIX}tag": hierarchy.tag_of(node.scope),
        f"{_PREFIX}module": node.scope.module,
        f"{_PREFIX}call": str(node.scope.number),
        f"{_PREFIX}evidence": node.evidence,
    }
    if node.origins != (node.scope,):
        metadata[f"{_PREFIX}origins"] = json.dumps([[o.module, o.number] for o in node.origins])
    return metadata


def embed_in_nodes(hierarchy: Hierarchy) -> dict[tuple[str, str], dict[str, str]]:
    """Return what is embedded in every node, by its graph and output, torch's own form of a namespace included."""
    namespaces = _namespaces(hierarchy)
    return {
        (node.graph, node.output): {
            **embedded_metadata(hierarchy, node),
            "namespace": f"{namespaces[node.scope]}/{node.name or node.output}: {node.op_type}",
        }
        for node in hierarchy.nodes
    }


def _namespaces(hierarchy: Hierarchy) -> dict[CallId, str]:
    """Write each call as torch writes scopes into `namespace`, which Model Explorer nests by."""
    found: dict[CallId, str] = {}
    for call in hierarchy.calls:
        step = f"{call.via}: {hierarchy.modules[call.id.module].qualified_class}"
        found[call.id] = step if call.parent is None else f"{found[call.parent]}/{step}"
    return found


def embedded_model_metadata(hierarchy: Hierarchy) -> dict[str, str]:
    """Return what is embedded in the model itself: the call tree, as compact JSON."""
    positions = {call.id: position for position, call in enumerate(hierarchy.calls)}
    calls = [
        [
            call.id.module,
            call.id.number,
            None if call.parent is None else positions[call.parent],
            call.via,
            call.tag,
            hierarchy.modules[call.id.module].qualified_class,
        ]
        for call in hierarchy.calls
    ]
    return {f"{_PREFIX}format_version": FORMAT_VERSION, CALLS_KEY: json.dumps(calls, separators=(",", ":"))}


def read_embedded(model: ir.Model, file: str) -> Hierarchy | None:
    """Read the hierarchy from inside a model; None if there is none, or no node names its call any more.

    A single node without metadata is at the root.

    Raises:
        HieronnxError: If what is there is not a hierarchy that this version reads.
    """
    text = model.metadata_props.get(CALLS_KEY)
    if text is None or were_scopes_dropped(model):
        return None
    check_version(model.metadata_props.get(f"{_PREFIX}format_version", "unknown"), file)
    try:
        found = _decode(decode_rows(text), model)
        check_references(found)
    except (ValueError, LookupError, RecursionError) as error:
        raise HieronnxError(f"the metadata in '{file}' is not a hierarchy that this version reads: {error}") from error
    return found


def were_scopes_dropped(model: ir.Model) -> bool:
    """Say whether there are nodes and none of them names its call: optimizers keep the model's own metadata alone."""
    marks = [f"{_PREFIX}module" in node.metadata_props for _, node in walk_nodes(model)]
    return bool(marks) and not any(marks)


def decode_rows(text: str) -> list[_Row]:
    """Decode the call tree: module, number, the caller's position, via, tag and the module's class.

    Raises:
        ValueError: If the text is not that.
    """
    return msgspec.json.decode(text, type=list[_Row])


def _decode(rows: list[_Row], model: ir.Model) -> Hierarchy:
    calls = make_calls((path, number, parent, via, tag) for path, number, parent, via, tag, _ in rows)
    modules = {row[0]: name_module(row[0], row[5]) for row in rows}
    nodes = tuple(read_embedded_node(graph, node) for graph, node in walk_nodes(model))
    return Hierarchy(modules, calls, nodes)


def name_module(path: str, qualified: str) -> Module:
    """Make the module of which only path and class are known."""
    depth = path.count(".") + 1 if path else 0
    return Module(path, qualified.rpartition(".")[2], qualified, (), {}, (), (), None, (), depth)


def read_embedded_node(graph: str, node: ir.Node) -> Node:
    """Read what a node has embedded; one that has nothing is at the root.

    Raises:
        ValueError: If what is there is not what hieronnx writes.
    """
    props: Mapping[str, str] = node.metadata_props
    known = f"{_PREFIX}module" in props
    scope = CallId(props[f"{_PREFIX}module"], int(props.get(f"{_PREFIX}call", ""))) if known else ROOT
    origins = msgspec.json.decode(props.get(f"{_PREFIX}origins", "null"), type=list[tuple[str, int]] | None)
    return Node(
        graph=graph,
        name=node.name or "",
        op_type=node.op_type,
        domain=node.domain,
        output=first_output(node),
        scope=scope,
        origins=tuple(CallId(*origin) for origin in origins) if origins is not None else (scope,),
        evidence=props.get(f"{_PREFIX}evidence", "root"),
    )
