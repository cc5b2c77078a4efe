"""The two forms in which a hierarchy is kept: `_hierarchy.json` beside the model, and metadata inside it.

Both are written and read here and nowhere else. The sidecar holds everything; the embedded form holds what is
needed to know every node's call, and survives where the sidecar gets lost.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import onnx_ir as ir

from hieronnx import __version__
from hieronnx._document import (
    FORMAT_VERSION,
    CallEntry,
    CallRef,
    CategoryEntry,
    Document,
    Generator,
    InitializerEntry,
    ModuleEntry,
    NodeEntry,
    Summary,
    TensorEntry,
    check_references,
    check_version,
    json_schema,
    make_calls,
)
from hieronnx._embedded import embedded_metadata, embedded_model_metadata, read_embedded
from hieronnx.categories import category_of
from hieronnx.errors import HieronnxError
from hieronnx.graph import NO_TENSOR, ModelLike, View, first_output, load_model, walk_nodes
from hieronnx.hierarchy import CONFIDENCE, CallId, Hierarchy, Initializer, Module, Node
from hieronnx.wire import read_node_keys, read_skeleton

__all__ = [
    "FORMAT_VERSION",
    "OpenedModel",
    "describe_file",
    "embedded_metadata",
    "embedded_model_metadata",
    "encode_sidecar",
    "json_schema",
    "load",
    "open_model",
    "read_sidecar",
    "require_hierarchy",
    "sidecar_path",
    "summarize",
]


def sidecar_path(model: Path) -> Path:
    """Return where the sidecar of a model file belongs: `model.onnx` has `model_hierarchy.json`."""
    return model.with_name(f"{model.stem}_hierarchy.json")


# -- writing ----------------------------------------------------------------------------------------------


def encode_sidecar(hierarchy: Hierarchy, view: View) -> bytes:
    """Encode a hierarchy and the tensors of its graph as the sidecar's JSON."""
    positions = {call.id: position for position, call in enumerate(hierarchy.calls)}
    first_tags: dict[str, str] = {}
    for call in hierarchy.calls:
        first_tags.setdefault(call.id.module, call.tag)
    tags = [hierarchy.tag_of(node.scope) for node in hierarchy.nodes]
    view_tags = _tags_in_view_order(view, hierarchy)
    readers = _reader_tags(view, view_tags)
    document = Document(
        format_version=FORMAT_VERSION,
        generator=Generator("hieronnx", __version__),
        model=dict(hierarchy.model),
        modules={path: _encode_module(m, first_tags.get(path)) for path, m in hierarchy.modules.items()},
        calls=[
            CallEntry(c.id.module, c.id.number, None if c.parent is None else positions[c.parent], c.via, c.tag)
            for c in hierarchy.calls
        ],
        hierarchy=dict(hierarchy.tags),
        nodes=_encode_nodes(hierarchy.nodes, tags, view, readers),
        tensors=_encode_tensors(view, view_tags, readers),
        initializers={i.name: InitializerEntry(i.parameter, _encode_refs(i.origins)) for i in hierarchy.initializers},
        summary=summarize(hierarchy),
    )
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


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
    return ModuleEntry(
        class_name=module.class_name,
        qualified_class=module.qualified_class,
        forward_args=list(module.forward_args),
        forward_defaults=dict(module.forward_defaults),
        parameters=list(module.parameters),
        direct_parameters=list(module.direct_parameters),
        parameter_count=module.parameter_count,
        children=list(module.children),
        depth=module.depth,
        tag=tag,
    )


def _encode_refs(calls: Iterable[CallId]) -> list[CallRef]:
    return [CallRef(call.module, call.number) for call in calls]


def _tags_in_view_order(view: View, hierarchy: Hierarchy) -> list[str]:
    by_output = {(node.graph, node.output): hierarchy.tag_of(node.scope) for node in hierarchy.nodes}
    return [by_output[view.node_key(index)] for index in range(len(view.nodes))]


def _reader_tags(view: View, tags: Sequence[str]) -> list[list[str]]:
    """Return for each tensor the tags of the nodes that read it, once each, in order."""
    return [list(dict.fromkeys(tags[reader] for reader in readers)) for readers in view.consumers()]


def _encode_nodes(
    nodes: Sequence[Node], tags: Sequence[str], view: View, readers: Sequence[Sequence[str]]
) -> list[NodeEntry]:
    outputs = {view.node_key(index): view.nodes[index].outputs for index in range(len(view.nodes))}
    entries = []
    for node, tag in zip(nodes, tags, strict=True):
        made = [t for t in outputs[node.graph, node.output] if t != NO_TENSOR]
        all_tags = dict.fromkeys([tag, *(reader for t in made for reader in readers[t])])
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


def _encode_tensors(view: View, tags: Sequence[str], readers: Sequence[Sequence[str]]) -> list[TensorEntry]:
    return [
        TensorEntry(
            graph=view.graphs[view.tensor_graphs[tensor]].key,
            name=name,
            producer=None if (producer := view.producers[tensor]) is None else tags[producer],
            consumers=list(readers[tensor]),
        )
        for tensor, name in enumerate(view.names)
        if name
    ]


# -- reading ----------------------------------------------------------------------------------------------


def load(path: str | Path) -> Hierarchy:
    """Read the hierarchy of an ONNX file: from its sidecar if that is of this file, else from the metadata inside.

    Raises:
        HieronnxError: If there is no such file, or it has no hierarchy.

    Example:
        >>> hieronnx.load("model.onnx").tags["/BertModel/BertPooler"]
        'pooler'
    """
    model = Path(path)
    found = _find_sidecar(model, read_node_keys(_existing(model)))
    return found or require_hierarchy(read_embedded(_read_structure(model), str(model)), model)


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model that a tool works on: its structure, and its hierarchy if it has one."""

    name: str
    """The file's path as it was given; `model` for a model in memory."""
    path: Path | None
    model: ir.Model
    """Of a file: without the contents of all but its smallest initializers."""
    hierarchy: Hierarchy | None


def open_model(model: ModelLike) -> OpenedModel:
    """Open a model and its hierarchy, if it has one; of a file no weights are read.

    Raises:
        HieronnxError: If the file is missing or is not an ONNX model, or its hierarchy cannot be read.
    """
    if not isinstance(model, str | os.PathLike):
        loaded = load_model(model)
        return OpenedModel("model", None, loaded, read_embedded(loaded, "the model"))
    path = Path(model)
    loaded = _read_structure(_existing(path))
    hierarchy = _find_sidecar(path, {(graph, first_output(node)) for graph, node in walk_nodes(loaded)})
    return OpenedModel(str(path), path, loaded, hierarchy or read_embedded(loaded, str(path)))


def require_hierarchy(hierarchy: Hierarchy | None, model: Path | None) -> Hierarchy:
    """Return the hierarchy, if there is one.

    Raises:
        HieronnxError: If there is none.
    """
    if hierarchy is not None:
        return hierarchy
    if model is None:
        raise HieronnxError("the model has no hierarchy inside; export it with 'hieronnx export' to get one")
    sidecar = sidecar_path(model)
    foreign = " (that file tells of another model: its nodes are not those of this one)" * sidecar.is_file()
    raise HieronnxError(
        f"'{model}' has no hierarchy: no {sidecar.name} beside it{foreign} and no metadata inside; "
        "export the model with 'hieronnx export' to get one"
    )


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise HieronnxError(f"no ONNX file at '{path}'")
    return path


def _read_structure(path: Path) -> ir.Model:
    try:
        return ir.serde.deserialize_model(read_skeleton(path))
    except (ir.serde.SerdeError, ValueError, TypeError, LookupError) as error:
        raise HieronnxError(f"'{path}' cannot be read as an ONNX model: {error}") from error


def _find_sidecar(model: Path, keys: set[tuple[str, str]]) -> Hierarchy | None:
    """Read the sidecar beside a model with these nodes; None if there is none, or it is of another file."""
    sidecar = sidecar_path(model)
    if not sidecar.is_file():
        return None
    hierarchy = read_sidecar(sidecar)
    return hierarchy if {(node.graph, node.output) for node in hierarchy.nodes} == keys else None


def read_sidecar(path: Path) -> Hierarchy:
    """Read a `_hierarchy.json`, whatever file it is of.

    Raises:
        HieronnxError: If it is not a hierarchy that this version reads.
    """
    try:
        content = path.read_bytes()
        # The version first: a document of another one need not have this one's fields.
        check_version(msgspec.json.decode(content, type=_Versioned).format_version, str(path))
        found = _decode_document(msgspec.json.decode(content, type=Document))
        check_references(found)
    except OSError as error:
        raise HieronnxError(f"cannot read '{path}': {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, LookupError, RecursionError) as error:
        raise HieronnxError(f"'{path}' is not a hierarchy that this version reads: {error}") from error
    return found


class _Versioned(msgspec.Struct, frozen=True):
    format_version: str


def _decode_document(document: Document) -> Hierarchy:
    return Hierarchy(
        modules={path: _decode_module(path, entry) for path, entry in document.modules.items()},
        calls=make_calls((c.module, c.call, c.parent, c.via, c.tag) for c in document.calls),
        nodes=tuple(_decode_node(entry) for entry in document.nodes),
        initializers=tuple(
            Initializer(name, entry.parameter, _decode_refs(entry.origins))
            for name, entry in document.initializers.items()
        ),
        model=document.model,
    )


def _decode_refs(refs: Iterable[CallRef]) -> tuple[CallId, ...]:
    return tuple(CallId(ref.module, ref.call) for ref in refs)


def _decode_module(path: str, entry: ModuleEntry) -> Module:
    return Module(
        path=path,
        class_name=entry.class_name,
        qualified_class=entry.qualified_class,
        forward_args=tuple(entry.forward_args),
        forward_defaults=entry.forward_defaults,
        parameters=tuple(entry.parameters),
        direct_parameters=tuple(entry.direct_parameters),
        parameter_count=entry.parameter_count,
        children=tuple(entry.children),
        depth=entry.depth,
    )


def _decode_node(entry: NodeEntry) -> Node:
    return Node(
        graph=entry.graph,
        name=entry.name,
        op_type=entry.op_type,
        domain=entry.domain,
        output=entry.output,
        scope=CallId(entry.module, entry.call),
        origins=_decode_refs(entry.origins),
        evidence=entry.evidence,
        rule=entry.rule,
    )
