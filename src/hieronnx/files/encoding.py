"""Writing a hierarchy as the sidecar's JSON, with all that follows from it, so that readers need not work it out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
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
    tags = [hierarchy.tag_of(hierarchy.node_by_key[view.node_key(index)].scope) for index in range(len(view.nodes))]
    # For each tensor the tags of the nodes that read it, once each, in order.
    readers = [list(dict.fromkeys(tags[reader] for reader in readers)) for readers in view.consumers]
    return Document(
        format_version=FORMAT_VERSION,
        generator=Generator("hieronnx", __version__),
        model=msgspec.convert({**hierarchy.model, "torch_nn": encode_policy(hierarchy.policy)}, ModelEntry),
        modules={path: _encode_module(m, first_tags.get(path)) for path, m in hierarchy.modules.items()},
        calls=_encode_calls(hierarchy.calls),
        hierarchy=dict(hierarchy.tags),
        nodes=_encode_nodes(hierarchy, view, readers),
        tensors=_encode_tensors(view, tags, readers),
        initializers={i.name: InitializerEntry(i.parameter, _encode_refs(i.origins)) for i in hierarchy.initializers},
        summary=summarize(hierarchy),
    )


def describe_file(path: Path, class_name: str, exporter: str) -> dict[str, Any]:
    """Describe a model file for its sidecar: class, file, opset, inputs and outputs with shapes, dynamic axes."""
    model = read_skeleton(path)
    values: dict[str, ir.Value] = {}  # one for a name: an input may be an output as well
    for info in (*model.graph.input, *model.graph.output):
        values[info.name] = ir.serde.deserialize_value_info_proto(info, values.get(info.name))
    inputs = [values[info.name] for info in model.graph.input]
    outputs = [values[info.name] for info in model.graph.output]
    return {
        "class": class_name,
        "file": path.name,
        "exporter": exporter,
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "opset": {opset.domain: opset.version for opset in model.opset_import},
        "inputs": {value.name: _describe_value(value) for value in inputs},
        "outputs": {value.name: _describe_value(value) for value in outputs},
        "dynamic_axes": {value.name: axes for value in (*inputs, *outputs) if (axes := _dynamic_axes(value))},
    }


def _describe_value(value: ir.Value) -> dict[str, Any]:
    shape = None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
    return {"dtype": None if value.dtype is None else value.dtype.name, "shape": shape}


def _dynamic_axes(value: ir.Value) -> dict[str, str | None]:
    shape = value.shape or ()
    return {str(axis): dim.value for axis, dim in enumerate(shape) if not isinstance(dim, int)}


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


def _encode_calls(calls: Sequence[Call]) -> list[CallEntry]:
    positions: dict[CallId | None, int] = {call.id: position for position, call in enumerate(calls)}
    return [
        CallEntry(*call.id, positions.get(call.parent), call.via, call.tag, call.received, call.returned)
        for call in calls
    ]


def _encode_refs(calls: Iterable[CallId]) -> list[CallRef]:
    return [CallRef(call.module, call.number) for call in calls]


def _encode_nodes(hierarchy: Hierarchy, view: View, readers: Sequence[Sequence[str]]) -> list[NodeEntry]:
    numbers = {view.node_key(index): index for index in range(len(view.nodes))}
    entries = []
    for node in hierarchy.nodes:
        tag = hierarchy.tag_of(node.scope)
        made = view.nodes[numbers[node.key]].makes
        all_tags = dict.fromkeys([tag, *(reader for tensor in made for reader in readers[tensor])])
        entries.append(
            NodeEntry(
                graph=node.graph,
                name=node.name,
                op_type=node.op_type,
                domain=node.domain,
                output=node.output,
                module=node.scope.module,
                call=node.scope.number,
                tag=tag,
                tags=list(all_tags),
                origins=_encode_refs(node.origins),
                evidence=node.evidence,
                confidence=node.confidence,
                rule=node.rule,
            )
        )
    return entries


def _encode_tensors(view: View, tags: Sequence[str], readers: Sequence[list[str]]) -> list[TensorEntry]:
    return [
        TensorEntry(
            graph=view.tensor_key(tensor)[0],
            name=name,
            producer=None if (producer := view.producers[tensor]) is None else tags[producer],
            consumers=readers[tensor],
        )
        for tensor, name in enumerate(view.names)
        if name
    ]
