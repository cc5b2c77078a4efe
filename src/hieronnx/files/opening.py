"""The two forms in which a hierarchy is kept: `_hierarchy.json` beside the model, and metadata inside it.

Both are written and read here and nowhere else. The sidecar holds everything; the embedded form holds what is
needed to know every node's call, and survives where the sidecar gets lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import onnx_ir as ir

from hieronnx.errors import HieronnxError, InputError
from hieronnx.files.document import (
    CallRef,
    Document,
    ModuleEntry,
    NodeEntry,
    PassedEntry,
    check_references,
    check_version,
    make_calls,
)
from hieronnx.files.metadata import CALLS_KEY, read_embedded
from hieronnx.files.wire import read_node_keys, read_skeleton
from hieronnx.graph.view import ModelLike
from hieronnx.graph.walks import first_output, walk_nodes
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import BoundTensor, Call, CallId, Initializer, Module, Node

_NO_NUMBER = "invalid literal for int() with base 10: "
_DROPPED = (
    "its metadata has calls, but no node names its own: a tool rewrote the model and dropped that; "
    "'hieronnx carry' puts it back from the file as exported"
)
_REMEDY = "'hieronnx export' makes a file that has one; 'hieronnx annotate' gives this one that of its PyTorch model"


def sidecar_path(model: Path) -> Path:
    """Return where the sidecar of a model file belongs: `model.onnx` has `model_hierarchy.json`."""
    return model.with_name(f"{model.stem}_hierarchy.json")


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
    if found is not None:
        return found
    structure = read_structure(model)
    return require_hierarchy(read_embedded(structure, str(model)), model, structure)


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
        loaded = load_ir_model(model)
        return OpenedModel("model", None, loaded, read_embedded(loaded, "the model"))
    path = Path(model)
    loaded = read_structure(path)
    hierarchy = _find_sidecar(path, {(graph, first_output(node)) for graph, node in walk_nodes(loaded)})
    return OpenedModel(str(path), path, loaded, hierarchy or read_embedded(loaded, str(path)))


def require_hierarchy(hierarchy: Hierarchy | None, path: Path | None, model: ir.Model | None = None) -> Hierarchy:
    """Return the hierarchy of a model, if it has one.

    Raises:
        HieronnxError: If it has none.
    """
    if hierarchy is not None:
        return hierarchy
    dropped = model is not None and CALLS_KEY in model.metadata_props
    if path is None:
        reason = f": {_DROPPED}" if dropped else f" inside; {_REMEDY}"
        raise HieronnxError(f"the model has no hierarchy{reason}")
    sidecar = sidecar_path(path)
    foreign = " (that file tells of another model: its nodes are not those of this one)" * sidecar.is_file()
    inside = _DROPPED if dropped else f"no metadata inside; {_REMEDY}"
    raise HieronnxError(f"'{path}' has no hierarchy: no {sidecar.name} beside it{foreign} and {inside}")


def load_ir_model(model: ModelLike) -> ir.Model:
    """Return the model as onnx-ir, with weights in external files left where they are.

    Raises:
        HieronnxError: If the file is missing or is not an ONNX model.
    """
    if isinstance(model, ir.Model):
        return model
    if not isinstance(model, str | os.PathLike):
        if not hasattr(model, "graph"):
            raise InputError(f"the model is a {type(model).__name__}; give a path, a ModelProto or an ir.Model")
        with reading_graph("the model"):
            return ir.serde.deserialize_model(model)
    path = _existing(Path(model))
    try:
        with reading_graph(f"'{path}'"):
            loaded = ir.load(path)
    except HieronnxError:
        raise
    except Exception as error:
        raise HieronnxError(f"'{path}' cannot be read as an ONNX model: {error}") from error
    if not loaded.graph.opset_imports:
        raise HieronnxError(f"'{path}' cannot be read as an ONNX model: it names no opset")
    return loaded


@contextmanager
def reading_graph(name: str) -> Iterator[None]:
    """Turn what onnx-ir says of a graph that it cannot read into one of our errors, with the innermost cause."""
    try:
        yield
    except (ir.serde.SerdeError, NotImplementedError, ValueError, TypeError, LookupError, AssertionError) as error:
        raise HieronnxError(f"hieronnx cannot read {name}: {_innermost_reason(error)}") from error


def _innermost_reason(error: BaseException) -> str:
    while (inner := error.__cause__ or error.__context__) is not None:  # onnx-ir may fail while it tells of a failure
        error = inner
    reason = " ".join(str(error).split())
    if reason.startswith(_NO_NUMBER):
        return f"it has {reason.removeprefix(_NO_NUMBER)} where a number should be"
    # onnx-ir only asserts that contents and type of a tensor fit.
    return reason or "a tensor holds what its type does not"


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise HieronnxError(f"no ONNX file at '{path}'")
    return path


def read_structure(path: Path) -> ir.Model:
    """Read a model without the contents of all but its smallest initializers.

    Raises:
        HieronnxError: If the file is missing or is not an ONNX model.
    """
    skeleton = read_skeleton(_existing(path))
    with reading_graph(f"'{path}'"):
        return ir.serde.deserialize_model(skeleton)


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
    """Make the hierarchy of a document.

    Raises:
        LookupError: If its calls are not a tree.
    """
    return Hierarchy(
        modules=decode_modules(document),
        calls=decode_calls(document),
        nodes=tuple(decode_node(entry) for entry in document.nodes),
        initializers=decode_initializers(document),
        model=msgspec.to_builtins(document.model),
    )


def decode_calls(document: Document) -> tuple[Call, ...]:
    """Decode the calls of a document.

    Raises:
        LookupError: If they are not a tree.
    """
    calls = make_calls((c.module, c.call, c.parent, c.via, c.tag) for c in document.calls)
    return tuple(
        replace(call, received=decode_passed(entry.inputs), returned=decode_passed(entry.outputs))
        for call, entry in zip(calls, document.calls, strict=True)
    )


def decode_passed(entries: Sequence[PassedEntry] | None) -> tuple[BoundTensor, ...] | None:
    """Decode what a call of a document received or returned."""
    return None if entries is None else tuple(BoundTensor(entry.name, entry.tensor, entry.graph) for entry in entries)


def decode_modules(document: Document) -> dict[str, Module]:
    """Decode the module table of a document."""
    return {path: _decode_module(path, entry) for path, entry in document.modules.items()}


def decode_initializers(document: Document) -> tuple[Initializer, ...]:
    """Decode the initializers of a document."""
    return tuple(
        Initializer(name, entry.parameter, _decode_refs(entry.origins)) for name, entry in document.initializers.items()
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


def decode_node(entry: NodeEntry) -> Node:
    """Decode a node of a document."""
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
