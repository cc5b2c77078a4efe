"""The JSON document of a hierarchy, and what makes one of it that can be believed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from hieronnx.errors import HieronnxError
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CONFIDENCE, ROOT, Call, CallId

FORMAT_VERSION = "1.1"
# Python itself gives up at about this depth of modules; reports that follow the tree need not go deeper.
DEEPEST_CALL = 300


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
    parameter_count: int | None
    """Null where it is not known."""
    children: list[str]
    depth: int
    tag: str | None
    """The tag of the module's first call; null where it was never called."""


class PassedEntry(msgspec.Struct, frozen=True):
    """A tensor that a call received or returned: the argument, and the file's tensor; null where it has none."""

    name: str
    graph: str
    tensor: str | None


class CallEntry(msgspec.Struct, frozen=True):
    """One call; `parent` is the position of the caller in the list."""

    module: str
    call: int
    parent: int | None
    via: str
    tag: str
    inputs: list[PassedEntry] | None = None
    """The tensors that the call received; null where they were not recorded."""
    outputs: list[PassedEntry] | None = None
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


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the sidecar; the package ships it as `hierarchy.schema.json`."""
    return msgspec.json.schema(Document)


def check_version(version: str, file: str) -> None:
    """Make sure that a hierarchy is of a format that this version reads.

    Raises:
        HieronnxError: If it is not.
    """
    if version.partition(".")[0] != FORMAT_VERSION.partition(".")[0]:
        raise HieronnxError(
            f"'{file}' has hierarchy format version {version}; this hieronnx reads {FORMAT_VERSION}: "
            "use the version that wrote it, or export the model anew"
        )


def make_calls(rows: Iterable[tuple[str, int, int | None, str, str]]) -> tuple[Call, ...]:
    """Make the calls of rows as they are kept: module, number, the caller's position in the list, via, tag.

    Raises:
        LookupError: If they are not a tree: every call but the first has its caller before it, and none is there twice.
    """
    calls: list[Call] = []
    depths: list[int] = []
    known: set[CallId] = set()
    seen: set[str] = set()
    for position, (module, number, parent, via, tag) in enumerate(rows):
        call = CallId(module, number)
        if call in known or number < 0:
            raise LookupError(f"call '{call}' is there twice" if number >= 0 else f"'{module}' has a call {number}")
        if (parent is None) != (position == 0) or (parent is not None and not 0 <= parent < position):
            raise LookupError(f"call '{call}' has no caller among the calls before it")
        depths.append(0 if parent is None else depths[parent] + 1)
        if depths[-1] > DEEPEST_CALL:
            raise LookupError(f"call '{call}' has more than {DEEPEST_CALL} calls above it")
        calls.append(Call(call, None if parent is None else calls[parent].id, via, tag, tag not in seen))
        known.add(call)
        seen.add(tag)
    if not calls or calls[0].id != ROOT:
        raise LookupError("the first call is not that of the root module")
    return tuple(calls)


def check_references(hierarchy: Hierarchy) -> None:
    """Make sure that the hierarchy is one: every call, module and evidence that is spoken of is known.

    Raises:
        LookupError: If one is not.
    """
    for node in hierarchy.nodes:
        if node.evidence not in CONFIDENCE:
            raise LookupError(f"node '{node.name}' has the unknown evidence '{node.evidence}'")
        _check_calls(hierarchy, f"node '{node.name}'", (node.scope, *node.origins))
    for held in hierarchy.initializers:
        _check_calls(hierarchy, f"initializer '{held.name}'", held.origins)
    for item in hierarchy.calls:
        if item.id.module not in hierarchy.modules:
            raise LookupError(f"call '{item.id}' is of no module of the table")


def _check_calls(hierarchy: Hierarchy, what: str, calls: Iterable[CallId]) -> None:
    for call in calls:
        if call not in hierarchy.call_by_id:
            raise LookupError(f"{what} speaks of call '{call}', which is not among the calls")
