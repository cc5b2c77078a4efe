"""The hierarchy inside the model: metadata on each node, and the call tree on the model itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import msgspec
import onnx_ir as ir

from hieronnx.errors import HieronnxError
from hieronnx.files.document import FORMAT_VERSION, check_references, check_version, make_calls
from hieronnx.graph.walks import first_output, walk_nodes
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import ROOT, BoundTensor, Call, CallId, Module, Node

_PREFIX = "hieronnx."
CALLS_KEY = f"{_PREFIX}calls"
"""The key of the call tree in a model's metadata."""
PASSED_KEY = f"{_PREFIX}passed"
"""The key of what the calls received and returned in a model's metadata; files before version 1.1 have none."""
MODEL_KEYS = frozenset({CALLS_KEY, PASSED_KEY, f"{_PREFIX}format_version"})
NODE_KEYS = frozenset(f"{_PREFIX}{name}" for name in ("tag", "module", "call", "evidence", "origins"))
_Row: TypeAlias = tuple[str, int, int | None, str, str, str]
_Places: TypeAlias = list[tuple[str, int | None]] | None
_Passed: TypeAlias = tuple[BoundTensor, ...] | None


class _PassedTable(msgspec.Struct, frozen=True):
    """What the calls received and returned: the tensors once each, with their graphs, and where each call has them."""

    tensors: list[tuple[str, str]]
    calls: list[tuple[_Places, _Places]]


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
    """Return what is embedded in the model itself: the call tree and what calls pass on, as compact JSON."""
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
    return {
        f"{_PREFIX}format_version": FORMAT_VERSION,
        CALLS_KEY: json.dumps(calls, separators=(",", ":")),
        **_embed_passed(hierarchy.calls),
    }


def _embed_passed(calls: Sequence[Call]) -> dict[str, str]:
    if all(call.received is None and call.returned is None for call in calls):
        return {}
    places: dict[tuple[str, str], int] = {}

    def place(passed: Sequence[BoundTensor] | None) -> _Places:
        return (
            None
            if passed is None
            else [
                (item.name, None if item.tensor is None else places.setdefault((item.graph, item.tensor), len(places)))
                for item in passed
            ]
        )

    placed = [(place(call.received), place(call.returned)) for call in calls]
    return {PASSED_KEY: msgspec.json.encode(_PassedTable(list(places), placed)).decode()}


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


def decode_passed(text: str | None, calls: int) -> list[tuple[_Passed, _Passed]]:
    """Decode what each of so many calls received and returned; None where that is not there.

    Raises:
        ValueError: If the text is not that.
        LookupError: If it is of other calls, or speaks of a tensor that it does not name.
    """
    if text is None:
        return [(None, None)] * calls
    table = msgspec.json.decode(text, type=_PassedTable)
    if len(table.calls) != calls:
        raise LookupError(f"{PASSED_KEY} is of {len(table.calls)} calls, and there are {calls}")
    return [(_decode_places(table, received), _decode_places(table, returned)) for received, returned in table.calls]


def _decode_places(table: _PassedTable, places: _Places) -> _Passed:
    if places is None:
        return None
    if any(place is not None and not 0 <= place < len(table.tensors) for _, place in places):
        raise LookupError(f"{PASSED_KEY} speaks of a tensor that it does not name")
    found = ((name, None if place is None else table.tensors[place]) for name, place in places)
    return tuple(
        BoundTensor(name, None) if held is None else BoundTensor(name, held[1], held[0]) for name, held in found
    )


def _decode(rows: list[_Row], model: ir.Model) -> Hierarchy:
    tree = make_calls((path, number, parent, via, tag) for path, number, parent, via, tag, _ in rows)
    passed = decode_passed(model.metadata_props.get(PASSED_KEY), len(tree))
    calls = tuple(replace(call, received=r, returned=g) for call, (r, g) in zip(tree, passed, strict=True))
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
