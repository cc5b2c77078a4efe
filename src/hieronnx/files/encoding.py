"""Writing a hierarchy as the sidecar's JSON, with all that follows from it, so that readers need not work it out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import onnx
import onnx_ir as ir

from hieronnx._version import __version__
from hieronnx.files.document import (
    FORMAT_VERSION,
    CallEntry,
    CallRef,
    CategoryEntry,
    Document,
    Generator,
    InitializerEntry,
    ModelEntry,
    ModuleEntry,
    NodeEntry,
    Summary,
    TensorEntry,
    encode_policy,
)
from hieronnx.files.wire import read_skeleton
from hieronnx.graph.view import View
from hieronnx.hierarchy.categories import category_of
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CONFIDENCE, Call, CallId, Module


def encode_sidecar(hierarchy: Hierarchy, view: View) -> bytes:
    """Encode a hierarchy and the tensors of its graph as the sidecar's JSON."""
    return msgspec.json.format(msgspec.json.encode(make_document(hierarchy, view)), indent=1) + b"\n"


def make_document(hierarchy: Hierarchy, view: View) -> Document:
    """Make the sidecar's document of a hierarchy and the tensors of its graph."""
    first_tags: dict[str, str] = {}
    for call in hierarchy.calls:
        first_tags.setdefault(call.id.module, call.tag)
    tags = [hierarchy.tag_of(hierarchy.node_by_key[key].scope) for key in view.node_keys]
    # For each tensor the tags of the nodes that read it, once each, in order.
    readers = [list(dict.fromkeys(tags[reader] for reader in readers)) for readers in view.consumers]
    return Document(
        format_version=FORMAT_VERSION,
        generator=Generator("hieronnx", __version__),
        model=msgspec.convert({**hierarchy.model, "torch_nn": encode_policy(hierarchy.policy)}, ModelEntry),
        modules={path: _encode_module(m, first_tags.get(path)) for path, m in hierarchy.modules.items()},
        calls=encode_calls(hierarchy.calls),
        hierarchy=dict(hierarchy.tags),
        nodes=_encode_nodes(hierarchy, view, readers),
        tensors=_encode_tensors(view, tags, readers),
        initializers={i.name: InitializerEntry(i.parameter, _encode_refs(i.origins)) for i in hierarchy.initializers},
        summary=summarize(hierarchy),
    )


def describe_file(
    path: Path, class_name: str, exporter: str, skeleton: onnx.ModelProto | None = None
) -> dict[str, Any]:
    """Describe a model file for its sidecar: class, file, opset, inputs and outputs with shapes, dynamic axes.

    Args:
        path: The file.
        class_name: The class of the root module.
        exporter: What made the file.
        skeleton: What `read_skeleton` reads of the file, if it is at hand.
    """
    model = read_skeleton(path) if skeleton is None else skeleton
    values: dict[str, ir.Value] = {}  # one for a name: an input may be an output as well
    for info in (*model.graph.input, *model.graph.output):
        values[info.name] = ir.serde.deserialize_value_info_proto(info, values.get(info.name))
    inputs, outputs = (
        {info.name: _describe_value(values[info.name]) for info in infos}
        for infos in (model.graph.input, model.graph.output)
    )
    axes = {
        name: {str(axis): size for axis, size in enumerate(value["shape"] or ()) if not isinstance(size, int)}
        for name, value in {**inputs, **outputs}.items()
    }
    return {
        "class": class_name,
        "file": path.name,
        "exporter": exporter,
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "opset": {opset.domain: opset.version for opset in model.opset_import},
        "inputs": inputs,
        "outputs": outputs,
        "dynamic_axes": {name: dynamic for name, dynamic in axes.items() if dynamic},
    }


def _describe_value(value: ir.Value) -> dict[str, Any]:
    shape = None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
    return {"dtype": None if value.dtype is None else value.dtype.name, "shape": shape}


def summarize(hierarchy: Hierarchy) -> Summary:
    """Count the nodes by evidence, confidence and category."""
    by_evidence = dict.fromkeys(CONFIDENCE, 0)
    by_confidence = dict.fromkeys(("high", "medium", "low"), 0)
    totals: dict[str, int] = defaultdict(int)
    attributed: dict[str, int] = defaultdict(int)
    for node in hierarchy.nodes:
        by_evidence[node.evidence] += 1
        by_confidence[node.confidence] += 1
        category = category_of(node.op_type, node.domain)
        totals[category] += 1
        attributed[category] += node.evidence != "root"
    statistics = {
        name: CategoryEntry(total, attributed[name], round(100 * attributed[name] / total, 2))
        for name, total in sorted(totals.items())
    }
    return Summary(
        nodes=len(hierarchy.nodes),
        modules=len(hierarchy.modules),
        calls=len(hierarchy.calls),
        coverage=round(100 * hierarchy.coverage(), 2),
        by_evidence=by_evidence,
        by_confidence=by_confidence,
        category_statistics=statistics,
    )


def _encode_module(module: Module, tag: str | None) -> ModuleEntry:
    fields = {name: getattr(module, name) for name in ModuleEntry.__struct_fields__ if name != "tag"}
    return ModuleEntry(tag=tag, **fields)


def encode_calls(calls: Sequence[Call]) -> list[CallEntry]:
    """Make the entries of calls, each with its caller's position."""
    positions: dict[CallId | None, int] = {call.id: position for position, call in enumerate(calls)}
    return [
        CallEntry(*call.id, positions.get(call.parent), call.via, call.tag, call.received, call.returned)
        for call in calls
    ]


def _encode_refs(calls: Iterable[CallId]) -> list[CallRef]:
    return [CallRef(call.module, call.number) for call in calls]


def _encode_nodes(hierarchy: Hierarchy, view: View, readers: Sequence[Sequence[str]]) -> list[NodeEntry]:
    in_view = dict(zip(view.node_keys, view.nodes, strict=True))
    entries = []
    for node in hierarchy.nodes:
        tag = hierarchy.tag_of(node.scope)
        all_tags = dict.fromkeys([tag, *(reader for tensor in in_view[node.key].makes for reader in readers[tensor])])
        identity = (node.graph, node.name, node.op_type, node.domain, node.output)
        origins, known = _encode_refs(node.origins), (node.evidence, node.confidence, node.rule)
        entries.append(NodeEntry(*identity, *node.scope, tag, list(all_tags), origins, *known))
    return entries


def _encode_tensors(view: View, tags: Sequence[str], readers: Sequence[list[str]]) -> list[TensorEntry]:
    producers = [None if producer is None else tags[producer] for producer in view.producers]
    numbers = (tensor for tensor, name in enumerate(view.names) if name)
    return [TensorEntry(*view.tensor_key(tensor), producers[tensor], readers[tensor]) for tensor in numbers]
