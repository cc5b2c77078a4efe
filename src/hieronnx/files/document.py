"""The `_hierarchy.json` beside a model: its format, and reading it. `hieronnx.files.encoding` writes it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import astuple

from hieronnx.errors import InputError
from hieronnx.files.claims import Claim, Finding
from hieronnx.hierarchy.records import BoundTensor, CallId, Initializer, Module, Node
from hieronnx.hierarchy.tags import TagPolicy

FORMAT_VERSION = "1.2"
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
    except (ValueError, RecursionError) as error:
        what, _, where = str(error).rpartition(" - at ")  # as msgspec writes: Expected … - at `$.nodes[3].call`
        place, message = (f"sidecar: {where.strip('`')}", what) if what else (name, str(error))
        return None, [Finding("sidecar-schema", "error", place, message, _RESTORE)]
    except InputError as error:
        return None, [Finding("sidecar-schema", "error", "sidecar: $.model.torch_nn", str(error), _RESTORE)]
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
    return Claim(
        source="sidecar",
        # The fields of an entry are those of a module without its path, and the tag.
        modules={path: Module(path, *astuple(entry)[:-1]) for path, entry in document.modules.items()},
        calls=tuple(document.calls),
        nodes=tuple(map(_decode_node, document.nodes)),
        tags=tuple(entry.tag for entry in document.nodes),
        initializers=tuple(
            Initializer(name, entry.parameter, _decode_calls(entry.origins))
            for name, entry in document.initializers.items()
        ),
        model=model,
        policy=policy,
        document=document,
    )


def _decode_node(entry: NodeEntry) -> Node:
    scope, origins = CallId(entry.module, entry.call), _decode_calls(entry.origins)
    operator = (entry.op_type, entry.domain)
    return Node(entry.graph, entry.name, *operator, entry.output, scope, origins, entry.evidence, entry.rule)


def _decode_calls(refs: Iterable[CallRef]) -> tuple[CallId, ...]:
    return tuple(CallId(ref.module, ref.call) for ref in refs)


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
