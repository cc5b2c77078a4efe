"""The hierarchy inside a model: metadata on each node, and the call tree on the model itself; written and read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec
import onnx_ir as ir

from hieronnx.errors import InputError
from hieronnx.files.claims import Claim, Finding, node_place
from hieronnx.files.document import FORMAT_VERSION, CallEntry, check_version, decode_policy, encode_calls, encode_policy
from hieronnx.graph.walks import first_output, walk_nodes
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import ROOT, BoundTensor, Call, CallId, Module, Node

PREFIX = "hieronnx."
"""The beginning of every key of ours in the metadata of nodes and models."""
VERSION_KEY = f"{PREFIX}format_version"
CALLS_KEY = f"{PREFIX}calls"
"""The key of the call tree in a model's metadata."""
PASSED_KEY = f"{PREFIX}passed"
"""The key of what the calls received and returned in a model's metadata; files before version 1.1 have none."""
POLICY_KEY = f"{PREFIX}torch_nn"
"""The key of the tag policy in a model's metadata; files before version 1.2 have none."""
STRATEGY_KEY = f"{PREFIX}strategy"
"""The key of how the nodes were attributed in a model's metadata; files before version 1.3 have none."""
MODEL_KEYS = frozenset({VERSION_KEY, CALLS_KEY, PASSED_KEY, POLICY_KEY, STRATEGY_KEY})
NODE_KEYS = frozenset(f"{PREFIX}{name}" for name in ("tag", "module", "call", "evidence", "origins"))
_REWRITE = "write it from the sidecar with 'hieronnx validate --fix', or export the model again"
CARRY = "put it back from the file as exported with 'hieronnx carry', or export the model again"
_DROPPED = ": a tool rewrote the model and dropped that"
_Row: TypeAlias = tuple[str, int, int | None, str, str, str]
_Numbered: TypeAlias = list[tuple[str, int | None]] | None
_Passed: TypeAlias = tuple[BoundTensor, ...] | None


class _PassedTable(msgspec.Struct, frozen=True):
    """What the calls received and returned: the tensors once each, with their graphs, and the number of each use."""

    tensors: list[tuple[str, str]]
    calls: list[tuple[_Numbered, _Numbered]]


def embed_in_nodes(hierarchy: Hierarchy) -> dict[tuple[str, str], dict[str, str]]:
    """Return what is embedded in every node, by its graph and output.

    Tag, module, call and evidence; origins where there are others; and, where a node has none, torch's own form of a
    `namespace`, by which Model Explorer nests nodes.
    """
    namespaces: dict[CallId, str] = {}
    for call in hierarchy.calls:
        step = f"{call.via}: {hierarchy.modules[call.id.module].qualified_class}"
        namespaces[call.id] = step if call.parent is None else f"{namespaces[call.parent]}/{step}"
    metadata = {}
    for node in hierarchy.nodes:
        entries = metadata[node.key] = {
            # The first, as in a file that has one already: so the same hierarchy makes the same bytes.
            "namespace": f"{namespaces[node.scope]}/{node.name or node.output}: {node.op_type}",
            f"{PREFIX}tag": hierarchy.tag_of(node.scope),
            f"{PREFIX}module": node.scope.module,
            f"{PREFIX}call": str(node.scope.number),
            f"{PREFIX}evidence": node.evidence,
        }
        if node.origins != (node.scope,):
            entries[f"{PREFIX}origins"] = json.dumps([[o.module, o.number] for o in node.origins])
    return metadata


def embedded_model_metadata(hierarchy: Hierarchy) -> dict[str, str]:
    """Return what is embedded in the model: the call tree and what calls pass on, as compact JSON; the tag policy."""
    calls = [
        [call.module, call.call, call.parent, call.via, call.tag, hierarchy.modules[call.module].qualified_class]
        for call in encode_calls(hierarchy.calls)
    ]
    policy = encode_policy(hierarchy.policy)
    return {
        VERSION_KEY: FORMAT_VERSION,
        POLICY_KEY: policy if isinstance(policy, str) else ",".join(policy),
        **({} if hierarchy.strategy is None else {STRATEGY_KEY: hierarchy.strategy}),
        CALLS_KEY: json.dumps(calls, separators=(",", ":")),
        **_embed_passed(hierarchy.calls),
    }


def _embed_passed(calls: Sequence[Call]) -> dict[str, str]:
    if all(call.received is None and call.returned is None for call in calls):
        return {}
    numbers: dict[tuple[str, str], int] = {}

    def number(item: BoundTensor) -> int | None:
        return None if item.tensor is None else numbers.setdefault((item.graph, item.tensor), len(numbers))

    def encode(items: Sequence[BoundTensor] | None) -> _Numbered:
        return None if items is None else [(item.name, number(item)) for item in items]

    rows = [(encode(call.received), encode(call.returned)) for call in calls]
    return {PASSED_KEY: msgspec.json.encode({"tensors": list(numbers), "calls": rows}).decode()}


# -- reading ------------------------------------------------------------------------------------------------


def read_metadata(model: ir.Model) -> tuple[Claim | None, list[Finding]]:
    """Read the metadata inside a model as far as it can be read, and say what keeps it from being a hierarchy.

    A single node without metadata is at the root.
    """
    props = model.metadata_props
    if dropped := explain_dropped(model):
        return None, [Finding("metadata", "error", "metadata", dropped, CARRY)]
    if CALLS_KEY not in props:
        return None, []
    if wrong := check_version(props.get(VERSION_KEY, "unknown"), "metadata", "metadata"):
        return None, [wrong]
    try:
        rows = msgspec.json.decode(props[CALLS_KEY], type=list[_Row])
        passed = _decode_passed(props.get(PASSED_KEY), len(rows))
        policy = decode_policy(props.get(POLICY_KEY))
    except (ValueError, LookupError, RecursionError) as error:
        return None, [_error(f"metadata: {CALLS_KEY}", f"it is not a call tree: {error}")]
    except InputError as error:
        return None, [_error(f"metadata: {POLICY_KEY}", str(error))]
    nodes, tags, findings = _read_nodes(model)
    calls = tuple(CallEntry(*row[:5], *tensors) for row, tensors in zip(rows, passed, strict=True))
    modules = {row[0]: make_module(row[0], row[5]) for row in rows}
    return Claim("metadata", modules, calls, nodes, tags, policy=policy, strategy=props.get(STRATEGY_KEY)), findings


def _error(place: str, message: str) -> Finding:
    return Finding("metadata", "error", place, message, _REWRITE)


def explain_dropped(model: ir.Model) -> str | None:
    """Say which half of the metadata a tool dropped, if one; None where both are there, or none.

    Optimizers keep the model's own metadata alone; what cuts graphs, that of the nodes.
    """
    scoped = (f"{PREFIX}module" in node.metadata_props for _, node in walk_nodes(model))
    if CALLS_KEY in model.metadata_props:
        unscoped = not next(scoped, True) and not any(scoped)  # nearly always the first one says it
        return "its metadata has calls, but no node names its own" + _DROPPED if unscoped else None
    return "its nodes name their calls, but the tree of calls is missing" + _DROPPED if any(scoped) else None


def _decode_passed(text: str | None, calls: int) -> list[tuple[_Passed, _Passed]]:
    """Decode what each of so many calls received and returned; None where that is not there.

    Raises:
        ValueError: If the text is not that.
        LookupError: If it is of other calls, or refers to a tensor that it does not name.
    """
    if text is None:
        return [(None, None)] * calls
    table = msgspec.json.decode(text, type=_PassedTable)
    if len(table.calls) != calls:
        raise LookupError(f"{PASSED_KEY} is of {len(table.calls)} calls, and there are {calls}")
    tensors: dict[int | None, tuple[str | None, str]] = {None: (None, "")}
    tensors |= {number: (tensor, graph) for number, (graph, tensor) in enumerate(table.tensors)}
    if any(number not in tensors for row in table.calls for items in row for _, number in items or ()):
        raise LookupError(f"{PASSED_KEY} refers to a tensor that it does not name")

    def bind(items: _Numbered) -> _Passed:
        return None if items is None else tuple(BoundTensor(name, *tensors[number]) for name, number in items)

    return [(bind(received), bind(returned)) for received, returned in table.calls]


def make_module(path: str, qualified: str) -> Module:
    """Make the module of which only path and class are known."""
    depth = path.count(".") + 1 if path else 0
    return Module(path, qualified.rpartition(".")[2], qualified, (), {}, (), (), None, (), depth)


def _read_nodes(model: ir.Model) -> tuple[tuple[Node, ...], tuple[str | None, ...], list[Finding]]:
    """Read what the nodes have embedded: each node, the tag that is written on it, and what is wrong."""
    nodes, tags, findings = [], [], []
    for graph, node in walk_nodes(model):
        try:
            nodes.append(_read_node(graph, node))
            tags.append(node.metadata_props.get(f"{PREFIX}tag"))
        except (ValueError, RecursionError) as error:
            message = f"what is written on it is not what hieronnx writes: {error}"
            findings.append(_error(_place(graph, node), message))
            continue
        if f"{PREFIX}module" not in node.metadata_props:
            message = "it carries no scope; tools that read the metadata take it for the root's"
            findings.append(Finding("metadata", "warning", _place(graph, node), message, _REWRITE))
    return tuple(nodes), tuple(tags), findings


def _place(graph: str, node: ir.Node) -> str:
    return f"metadata: {node_place(graph, first_output(node), node.name or '')}"


def _read_node(graph: str, node: ir.Node) -> Node:
    """Read what a node has embedded; one that has nothing is at the root.

    Raises:
        ValueError: If what is there is not what hieronnx writes.
    """
    props: Mapping[str, str] = node.metadata_props
    scope = ROOT
    if f"{PREFIX}module" in props:
        scope = CallId(props[f"{PREFIX}module"], int(props.get(f"{PREFIX}call", "")))
    written = props.get(f"{PREFIX}origins")
    rows = None if written is None else msgspec.json.decode(written, type=list[tuple[str, int]] | None)
    origins = (scope,) if rows is None else tuple(CallId(*row) for row in rows)
    evidence = props.get(f"{PREFIX}evidence", "root")
    return Node(graph, node.name or "", node.op_type, node.domain, first_output(node), scope, origins, evidence)
