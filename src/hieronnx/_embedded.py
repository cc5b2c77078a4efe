"""The hierarchy inside the model: metadata on each node, and the call tree on the model itself."""

from __future__ import annotations

import json
from collections.abc import Mapping

import onnx_ir as ir

from hieronnx._document import FORMAT_VERSION, check_references, check_version, make_calls
from hieronnx.errors import HieronnxError
from hieronnx.graph import first_output, walk_nodes
from hieronnx.hierarchy import ROOT, CallId, Hierarchy, Module, Node

__all__ = ["embedded_metadata", "embedded_model_metadata", "read_embedded"]

_PREFIX = "hieronnx."


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
    return {f"{_PREFIX}format_version": FORMAT_VERSION, f"{_PREFIX}calls": json.dumps(calls, separators=(",", ":"))}


def read_embedded(model: ir.Model, file: str) -> Hierarchy | None:
    """Read the hierarchy from inside a model; None if there is none. A node without metadata is at the root.

    Raises:
        HieronnxError: If what is there is not a hierarchy that this version reads.
    """
    text = model.metadata_props.get(f"{_PREFIX}calls")
    if text is None:
        return None
    check_version(model.metadata_props.get(f"{_PREFIX}format_version", "unknown"), file)
    try:
        found = _decode(json.loads(text), model)
        check_references(found)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise HieronnxError(f"the metadata in '{file}' is not a hierarchy that this version reads: {error}") from error
    return found


def _decode(rows: list[tuple[str, int, int | None, str, str, str]], model: ir.Model) -> Hierarchy:
    calls = make_calls((path, number, parent, via, tag) for path, number, parent, via, tag, _ in rows)
    modules = {row[0]: _named_module(row[0], row[5]) for row in rows}
    nodes = tuple(_read_embedded_node(graph, node) for graph, node in walk_nodes(model))
    return Hierarchy(modules, calls, nodes)


def _named_module(path: str, qualified: str) -> Module:
    depth = path.count(".") + 1 if path else 0
    return Module(path, qualified.rpartition(".")[2], qualified, (), {}, (), (), 0, (), depth)


def _read_embedded_node(graph: str, node: ir.Node) -> Node:
    props: Mapping[str, str] = node.metadata_props
    known = f"{_PREFIX}module" in props
    scope = CallId(props[f"{_PREFIX}module"], int(props[f"{_PREFIX}call"])) if known else ROOT
    origins = json.loads(props.get(f"{_PREFIX}origins", "null"))
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
