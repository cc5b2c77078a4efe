"""The two forms in which a hierarchy is kept: `_hierarchy.json` beside the model, and metadata inside it.

Both are written and read here and nowhere else. The sidecar holds everything; the embedded form holds what is
needed to know every node's call, and survives where the sidecar gets lost.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import onnx_ir as ir

from hieronnx import __version__
from hieronnx.categories import category_of
from hieronnx.errors import HieronnxError
from hieronnx.graph import NO_TENSOR, View, first_output, walk_nodes
from hieronnx.hierarchy import CONFIDENCE, ROOT, Call, CallId, Hierarchy, Initializer, Module, Node
from hieronnx.wire import read_node_keys, read_skeleton

__all__ = [
    "FORMAT_VERSION",
    "describe_file",
    "embedded_metadata",
    "embedded_model_metadata",
    "encode_sidecar",
    "json_schema",
    "load",
    "sidecar_path",
]

FORMAT_VERSION = "1.0"
_PREFIX = "hieronnx."


# -- the JSON document ------------------------------------------------------------------------------------


class Generator(msgspec.Struct, frozen=True):
    """What wrote the file."""

    name: str
    version: str


class CallRef(msgspec.Struct, frozen=True):
    """A call, by module and index."""

    module: str
    call: int


class ModuleEntry(msgspec.Struct, frozen=True, rename={"class_name": "class"}):
    """One module: names and metadata only."""

    class_name: str
    qualified_class: str
    forward_args: list[str]
    forward_defaults: dict[str, Any]
    parameters: list[str]
    direct_parameters: list[str]
    parameter_count: int
    children: list[str]
    depth: int
    tag: str | None
    """The tag of the module's first call; null where it was never called."""


class CallEntry(msgspec.Struct, frozen=True):
    """One call; `parent` is the position of the caller in the list."""

    module: str
    call: int
    parent: int | None
    via: str
    tag: str


class NodeEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node; `tags` are its own tag and those of the calls that read what it makes."""

    graph: str
    name: str
    op_type: str
    domain: str
    output: str
    module: str
    call: int
    tag: str
    tags: list[str]
    origins: list[CallRef]
    evidence: str
    confidence: str
    rule: str = ""


class TensorEntry(msgspec.Struct, frozen=True):
    """One tensor: the tag of the node that makes it (null for inputs and initializers), and of its readers."""

    graph: str
    name: str
    producer: str | None
    consumers: list[str]


class InitializerEntry(msgspec.Struct, frozen=True):
    """One initializer: the parameter that it holds, and the calls whose work was folded into it."""

    parameter: str | None
    origins: list[CallRef]


class CategoryEntry(msgspec.Struct, frozen=True):
    """How many nodes a category of operators has, and how many of them are attributed."""

    total: int
    attributed: int
    percent: float


class Summary(msgspec.Struct, frozen=True):
    """Totals over the nodes."""

    nodes: int
    modules: int
    calls: int
    coverage: float
    by_evidence: dict[str, int]
    by_confidence: dict[str, int]
    category_statistics: dict[str, CategoryEntry]


class Document(msgspec.Struct, frozen=True):
    """The `_hierarchy.json` of one ONNX file."""

    format_version: str
    generator: Generator
    model: dict[str, Any]
    modules: dict[str, ModuleEntry]
    calls: list[CallEntry]
    hierarchy: dict[str, str]
    nodes: list[NodeEntry]
    tensors: list[TensorEntry]
    initializers: dict[str, InitializerEntry]
    summary: Summary


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the sidecar; the package ships it as `hierarchy.schema.json`."""
    return msgspec.json.schema(Document)


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
    if not model.is_file():
        raise HieronnxError(f"no ONNX file at '{model}'")
    sidecar = sidecar_path(model)
    foreign = ""
    if sidecar.is_file():
        hierarchy = _read_sidecar(sidecar)
        if {(node.graph, node.output) for node in hierarchy.nodes} == read_node_keys(model):
            return hierarchy
        foreign = f" ({sidecar.name} tells of another file: its nodes are not those of this one)"
    try:
        found = _read_embedded(ir.serde.deserialize_model(read_skeleton(model)), model)
    except (ValueError, TypeError, LookupError) as error:
        raise HieronnxError(f"the metadata in '{model}' is not a hierarchy that this version reads: {error}") from error
    if found is None:
        raise HieronnxError(
            f"'{model}' has no hierarchy: no {sidecar.name} beside it{foreign} and no metadata inside; "
            "export the model with 'hieronnx export' to get one"
        )
    return found


def _read_sidecar(path: Path) -> Hierarchy:
    content = path.read_bytes()
    try:
        # The version first: a document of another one need not have this one's fields.
        _check_version(msgspec.json.decode(content, type=_Versioned).format_version, path)
        found = _decode_document(msgspec.json.decode(content, type=Document))
        _check_references(found)
    except (msgspec.MsgspecError, UnicodeDecodeError, LookupError) as error:
        raise HieronnxError(f"'{path}' is not a hierarchy that this version reads: {error}") from error
    return found


class _Versioned(msgspec.Struct, frozen=True):
    format_version: str


def _check_version(version: str, path: Path) -> None:
    if version.partition(".")[0] != FORMAT_VERSION.partition(".")[0]:
        raise HieronnxError(
            f"'{path}' has hierarchy format version {version}; this hieronnx reads {FORMAT_VERSION}: "
            "use the version that wrote it, or export the model anew"
        )


def _check_references(hierarchy: Hierarchy) -> None:
    """Make sure that the hierarchy is one: every call, module and evidence that is spoken of is known.

    Raises:
        LookupError: If one is not.
    """
    for node in hierarchy.nodes:
        if node.evidence not in CONFIDENCE:
            raise LookupError(f"node '{node.name}' has the unknown evidence '{node.evidence}'")
        for call in (node.scope, *node.origins):
            if call not in hierarchy.call_by_id:
                raise LookupError(f"node '{node.name}' speaks of call '{call}', which is not among the calls")
    for item in hierarchy.calls:
        if item.id.module not in hierarchy.modules:
            raise LookupError(f"call '{item.id}' is of no module of the table")


def _decode_document(document: Document) -> Hierarchy:
    ids = [CallId(call.module, call.call) for call in document.calls]
    seen: set[str] = set()
    calls = []
    for call, identity in zip(document.calls, ids, strict=True):
        parent = None if call.parent is None else ids[call.parent]
        calls.append(Call(identity, parent, call.via, call.tag, call.tag not in seen))
        seen.add(call.tag)
    return Hierarchy(
        modules={path: _decode_module(path, entry) for path, entry in document.modules.items()},
        calls=tuple(calls),
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


def _read_embedded(model: ir.Model, file: Path) -> Hierarchy | None:
    """Read the hierarchy from inside a model; None if there is none. A node without metadata is at the root."""
    text = model.metadata_props.get(f"{_PREFIX}calls")
    if text is None:
        return None
    _check_version(model.metadata_props.get(f"{_PREFIX}format_version", "unknown"), file)
    rows = json.loads(text)
    ids = [CallId(row[0], row[1]) for row in rows]
    calls, modules, seen = [], {}, set[str]()
    for (path, _, parent, via, tag, qualified), identity in zip(rows, ids, strict=True):
        calls.append(Call(identity, None if parent is None else ids[parent], via, tag, tag not in seen))
        seen.add(tag)
        modules[path] = _named_module(path, qualified)
    nodes = tuple(_read_embedded_node(graph, node) for graph, node in walk_nodes(model))
    found = Hierarchy(modules, tuple(calls), nodes)
    _check_references(found)
    return found


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
