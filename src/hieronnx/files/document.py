"""The `_hierarchy.json` beside a model: its format, read and written.

It has all that follows from a hierarchy, too, so that readers need not work it out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import onnx
import onnx_ir as ir

from hieronnx._version import __version__
from hieronnx.errors import InputError
from hieronnx.files.claims import Claim, Finding
from hieronnx.files.wire import read_skeleton
from hieronnx.graph.view import View
from hieronnx.graph.wiring import read_proto_wiring
from hieronnx.hierarchy.categories import category_of
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CONFIDENCE, LEVELS, BoundTensor, Call, CallId, Initializer, Module, Node
from hieronnx.hierarchy.tags import TagPolicy

FORMAT_VERSION = "1.4"
_RESTORE = (
    "export the model again; or move this one away: then 'hieronnx validate --fix' writes one from the metadata "
    "inside, if any, without parameters"
)


class Generator(msgspec.Struct, frozen=True):
    """What wrote the file."""

    name: str
    version: str


class ValueEntry(msgspec.Struct, frozen=True):
    """The type of an input or output: the sizes of its shape are numbers, names, or null where unknown."""

    dtype: str | None
    shape: list[int | str | None] | None


class ModelEntry(msgspec.Struct, frozen=True, rename={"class_name": "class"}):
    """About the ONNX file: what it was made of, by what, and what goes in and out."""

    class_name: str
    file: str
    exporter: str
    producer: str
    opset: dict[str, int]
    inputs: dict[str, ValueEntry]
    outputs: dict[str, ValueEntry]
    dynamic_axes: dict[str, dict[str, str | None]]
    torch_nn: str | list[str] | None = None
    """Which modules of torch.nn have tags: `default`, `all`, `none` or class names; null before version 1.2."""
    strategy: str | None = None
    """How the nodes were attributed: `captured`, `htp`, `usage_based`, `carried`, …; null before version 1.3."""
    wiring: str | None = None
    """A digest of what each node reads and makes, to tell a sidecar of another file; null before version 1.4."""


class CallRef(msgspec.Struct, frozen=True):
    """A call, by module and index."""

    module: str
    call: int


class ModuleEntry(msgspec.Struct, frozen=True, rename={"class_name": "class"}):
    """One module: names and metadata only."""

    class_name: str
    qualified_class: str
    forward_args: tuple[str, ...]
    forward_defaults: dict[str, Any]
    parameters: tuple[str, ...]
    direct_parameters: tuple[str, ...]
    parameter_count: int | None
    """Null where it is not known."""
    children: tuple[str, ...]
    depth: int
    tag: str | None
    """The tag of the module's first call; null where it was never called."""
    child_classes: dict[str, str] = {}
    """The qualified class of each child; empty before version 1.3."""
    expected_tag: str | None = None
    """The tag that structure and policy let expect; null where it cannot be called, and before version 1.3."""


_MODULE_FIELDS = [name for name in ModuleEntry.__struct_fields__ if name != "tag"]
"""The fields of an entry that a module has, too."""


class CallEntry(msgspec.Struct, frozen=True):
    """One call; `parent` is the position of the caller in the list."""

    module: str
    call: int
    parent: int | None
    via: str
    tag: str
    inputs: tuple[BoundTensor, ...] | None = None
    """The tensors that the call received; null where they were not recorded."""
    outputs: tuple[BoundTensor, ...] | None = None
    """The tensors that it returned; null where they were not recorded."""


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
    consumers: list[str] | None = None
    """The tags of those who read what it makes; null before version 1.3."""


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
    model: ModelEntry
    modules: dict[str, ModuleEntry]
    calls: list[CallEntry]
    hierarchy: dict[str, str]
    nodes: list[NodeEntry]
    tensors: list[TensorEntry]
    initializers: dict[str, InitializerEntry]
    summary: Summary


# -- reading ------------------------------------------------------------------------------------------------


def read_document(content: bytes, name: str) -> tuple[Claim | None, list[Finding]]:
    """Read a sidecar as far as it can be read, and say what keeps it from being one.

    Args:
        content: The file's content.
        name: The file's name, for the findings.
    """
    try:  # the version first: a document of another one need not have this one's fields
        version = msgspec.json.decode(content, type=_Versioned).format_version
    except (ValueError, RecursionError) as error:
        return None, [Finding("sidecar-schema", "error", name, f"it is not a hierarchy: {error}", _RESTORE)]
    if wrong := check_version(version, "sidecar", name):
        return None, [wrong]
    try:
        document = msgspec.json.decode(content, type=Document)
        policy = decode_policy(document.model.torch_nn)
    except InputError as error:
        return None, [Finding("sidecar-schema", "error", "sidecar: $.model.torch_nn", str(error), _RESTORE)]
    except (ValueError, RecursionError) as error:
        what, _, where = str(error).rpartition(" - at ")  # as msgspec writes: Expected … - at `$.nodes[3].call`
        place, message = (f"sidecar: {where.strip('`')}", what) if what else (name, str(error))
        return None, [Finding("sidecar-schema", "error", place, message, _RESTORE)]
    return _make_claim(document, policy), []


class _Versioned(msgspec.Struct, frozen=True):
    format_version: str


def check_version(version: str, source: str, place: str) -> Finding | None:
    """Check that a form of a hierarchy is of a format that this version reads."""
    if version.partition(".")[0] == FORMAT_VERSION.partition(".")[0]:
        return None
    message = f"it has hierarchy format version {version}; this hieronnx reads {FORMAT_VERSION}"
    remedy = "use the version of hieronnx that wrote it, or export the model again"
    return Finding(f"{source}-version", "error", place, message, remedy)


def _make_claim(document: Document, policy: TagPolicy | None) -> Claim:
    model = msgspec.to_builtins(document.model)
    del model["torch_nn"]
    strategy = model.pop("strategy")
    return Claim(
        source="sidecar",
        modules={
            path: Module(path, **{name: getattr(entry, name) for name in _MODULE_FIELDS})
            for path, entry in document.modules.items()
        },
        calls=tuple(document.calls),
        nodes=tuple(map(_decode_node, document.nodes)),
        tags=tuple(entry.tag for entry in document.nodes),
        initializers=tuple(
            Initializer(name, entry.parameter, _decode_calls(entry.origins))
            for name, entry in document.initializers.items()
        ),
        model=model,
        policy=policy,
        strategy=strategy,
        document=document,
    )


def _decode_node(entry: NodeEntry) -> Node:
    identity = (entry.graph, entry.name, entry.op_type, entry.domain, entry.output)
    scope, origins = CallId(entry.module, entry.call), _decode_calls(entry.origins)
    consumers = None if entry.consumers is None else tuple(entry.consumers)
    return Node(*identity, scope, origins, entry.evidence, entry.rule, consumers)


def _decode_calls(refs: Iterable[CallRef]) -> tuple[CallId, ...]:
    return tuple(CallId(ref.module, ref.call) for ref in refs)


# -- writing -----------------------------------------------------------------------------------------------


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
    about = {"torch_nn": encode_policy(hierarchy.policy), "strategy": hierarchy.strategy}
    return Document(
        format_version=FORMAT_VERSION,
        generator=Generator("hieronnx", __version__),
        model=msgspec.convert({**hierarchy.model, **about}, ModelEntry),
        modules={
            path: ModuleEntry(**{name: getattr(module, name) for name in _MODULE_FIELDS}, tag=first_tags.get(path))
            for path, module in hierarchy.modules.items()
        },
        calls=encode_calls(hierarchy.calls),
        hierarchy=dict(hierarchy.tags),
        nodes=_encode_nodes(hierarchy, view, readers),
        tensors=[
            TensorEntry(*view.tensor_key(tensor), None if producer is None else tags[producer], readers[tensor])
            for tensor, producer in enumerate(view.producers)
            if view.names[tensor]
        ],
        initializers={i.name: InitializerEntry(i.parameter, _encode_refs(i.origins)) for i in hierarchy.initializers},
        summary=summarize(hierarchy),
    )


def describe_file(
    path: Path, class_name: str, exporter: str, skeleton: onnx.ModelProto | None = None
) -> dict[str, Any]:
    """Describe a model file for its sidecar: class, file, opset, inputs and outputs with shapes, dynamic axes.

    The skeleton is what `read_skeleton` reads of the file, if it is at hand.
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
        "wiring": read_proto_wiring(model).digest,
    }


def _describe_value(value: ir.Value) -> dict[str, Any]:
    shape = None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
    return {"dtype": None if value.dtype is None else value.dtype.name, "shape": shape}


def summarize(hierarchy: Hierarchy) -> Summary:
    """Count the nodes by evidence, confidence and category."""
    by_evidence = dict.fromkeys(CONFIDENCE, 0)
    by_confidence = dict.fromkeys(LEVELS, 0)
    by_category: dict[str, list[bool]] = defaultdict(list)
    for node in hierarchy.nodes:
        by_evidence[node.evidence] += 1
        by_confidence[node.confidence] += 1
        by_category[category_of(node.op_type, node.domain)].append(node.is_attributed(hierarchy.min_confidence))
    statistics = {
        name: CategoryEntry(len(items), sum(items), round(100 * sum(items) / len(items), 2))
        for name, items in sorted(by_category.items())
    }
    sizes = (len(hierarchy.nodes), len(hierarchy.modules), len(hierarchy.calls))
    return Summary(*sizes, round(100 * hierarchy.coverage(), 2), by_evidence, by_confidence, statistics)


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
        consumers = list(dict.fromkeys(reader for tensor in in_view[node.key].makes for reader in readers[tensor]))
        all_tags = list(dict.fromkeys([tag, *consumers]))
        identity = (node.graph, node.name, node.op_type, node.domain, node.output)
        origins, known = _encode_refs(node.origins), (node.evidence, node.confidence, node.rule)
        entries.append(NodeEntry(*identity, *node.scope, tag, all_tags, origins, *known, consumers))
    return entries


# -- the tag policy -----------------------------------------------------------------------------------------


def encode_policy(policy: TagPolicy) -> str | list[str]:
    """Encode which modules of torch.nn have tags: `default`, `all`, `none`, or class names."""
    if policy.torch_nn is None:
        return "all"
    return "default" if policy == TagPolicy() else sorted(policy.torch_nn) or "none"


def decode_policy(names: str | list[str] | None) -> TagPolicy | None:
    """Decode it; None where it is not there, as in files before version 1.2.

    Raises:
        InputError: If it is neither a known word nor class names.
    """
    try:
        return None if names is None else TagPolicy.parse(names if isinstance(names, str) else ",".join(names))
    except InputError as error:
        raise InputError(f"{names!r} is neither 'default', 'all' or 'none' nor names of classes") from error
