"""Reading both forms of a hierarchy without giving up at the first thing that is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import onnx_ir as ir

from hieronnx.errors import HieronnxError
from hieronnx.files.document import FORMAT_VERSION, CallEntry, Document, check_version
from hieronnx.files.metadata import (
    CALLS_KEY,
    MODEL_KEYS,
    NODE_KEYS,
    PASSED_KEY,
    decode_rows,
    name_module,
    read_embedded_node,
    were_scopes_dropped,
)
from hieronnx.files.metadata import decode_passed as decode_embedded_passed
from hieronnx.files.opening import decode_initializers, decode_modules, decode_node, decode_passed
from hieronnx.graph.walks import first_output, walk_nodes
from hieronnx.hierarchy.records import CallId
from hieronnx.tools.validate.claims import CallClaim, Claim, NodeClaim
from hieronnx.tools.validate.findings import Finding, node_place

_FIX_SIDECAR = (
    "export the model anew; or move this one away: then 'hieronnx validate --fix' writes one from the metadata inside, "
    "if any, without parameters"
)
_FIX_EMBEDDED = "write it from the sidecar with 'hieronnx validate --fix', or export the model anew"
_NEWER = "use a newer hieronnx if a newer one wrote the file; otherwise take the key out: nothing reads it"
_DROPPED = "put it back from the file as exported with 'hieronnx carry', or export the model anew"
_PREFIX = "hieronnx."


# -- the sidecar ------------------------------------------------------------------------------------------


def read_sidecar_claim(path: Path) -> tuple[Claim | None, list[Finding]]:
    """Read a sidecar as far as it can be read, and say what keeps it from being one."""
    try:
        content = path.read_bytes()
        raw = msgspec.json.decode(content)
    except OSError as error:
        return None, [_sidecar_error("sidecar-schema", path.name, f"it cannot be read: {error.strerror or error}")]
    except (ValueError, RecursionError) as error:
        return None, [_sidecar_error("sidecar-schema", path.name, f"it is not JSON: {error}")]
    if wrong := _check_version(raw, path):
        return None, [wrong]
    try:
        document = msgspec.json.decode(content, type=Document)  # as all other readers do it
    except (ValueError, RecursionError) as error:
        return None, [_sidecar_error("sidecar-schema", *_split_place(str(error), path))]
    return _sidecar_claim(document), list(_unknown_keys(raw))


def _sidecar_error(check: str, place: str, message: str) -> Finding:
    return Finding(check, "error", place, message, _FIX_SIDECAR)


def _check_version(raw: Any, path: Path) -> Finding | None:
    version = raw.get("format_version") if isinstance(raw, dict) else None
    if not isinstance(version, str):
        return _sidecar_error("sidecar-schema", path.name, "it is not a hierarchy: it has no 'format_version'")
    try:
        check_version(version, path.name)
    except HieronnxError:
        message = f"it has format version '{version}'; this hieronnx reads {FORMAT_VERSION}"
        remedy = "use the version of hieronnx that wrote it, or export the model anew"
        return Finding("sidecar-version", "error", path.name, message, remedy)
    return None


def _split_place(message: str, path: Path) -> tuple[str, str]:
    """Split what msgspec says into the place and the message: `Expected … - at `$.nodes[3].call``."""
    what, _, where = message.rpartition(" - at ")
    return (f"sidecar: {where.strip('`')}", what) if what else (path.name, message)


def _sidecar_claim(document: Document) -> Claim:
    return Claim(
        source="sidecar",
        modules=decode_modules(document),
        calls=tuple(map(_call_claim, document.calls)),
        nodes=tuple(NodeClaim(decode_node(entry), entry.tag) for entry in document.nodes),
        initializers=decode_initializers(document),
        model=msgspec.to_builtins(document.model),
        document=document,
    )


def _call_claim(entry: CallEntry) -> CallClaim:
    passed = decode_passed(entry.inputs), decode_passed(entry.outputs)
    return CallClaim(CallId(entry.module, entry.call), entry.parent, entry.via, entry.tag, *passed)


def _unknown_keys(raw: Any) -> Iterator[Finding]:
    """Find keys that this version does not know, one finding for each kind of place."""
    seen: dict[str, int] = {}
    for place in _walk_keys(raw, Document, "$"):
        seen[place] = seen.get(place, 0) + 1
    for place, times in seen.items():
        yield _unknown_key("sidecar", place, times)


def _unknown_key(source: str, place: str, times: int) -> Finding:
    message = "this version does not know the key" + (f" ({times:,} times)" if times > 1 else "")
    return Finding(f"{source}-keys", "warning", f"{source}: {place}", message, _NEWER)


def _walk_keys(value: Any, type_: Any, place: str) -> Iterator[str]:
    """Yield the place of each key that a value of this type does not have; lists and maps are walked as one place."""
    if isinstance(value, dict) and _is_struct(type_):
        types = _field_types(type_)
        yield from (f"{place}.{key}" for key in value.keys() - types.keys())
        for key, inner in types.items():
            if inner is not None and key in value:
                yield from _walk_keys(value[key], inner, f"{place}.{key}")
    elif isinstance(value, dict | list):
        held = next((option for option in get_args(type_) if get_args(option)), type_)  # a list or null
        inner = get_args(held)[-1]
        for item in value.values() if isinstance(value, dict) else value:
            yield from _walk_keys(item, inner, f"{place}[]")


@cache
def _field_types(struct: type[msgspec.Struct]) -> Mapping[str, Any]:
    """Return the fields of a struct by their names in JSON, with their types; None where there is no struct inside."""
    hints = get_type_hints(struct)
    names = zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True)
    return {encoded: hints[name] if _has_struct(hints[name]) else None for name, encoded in names}


def _has_struct(type_: Any) -> bool:
    return _is_struct(type_) or any(_has_struct(inner) for inner in get_args(type_))


def _is_struct(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, msgspec.Struct)


# -- the metadata inside ----------------------------------------------------------------------------------


def read_embedded_claim(model: ir.Model) -> tuple[Claim | None, list[Finding]]:
    """Read the metadata inside a model as far as it can be read, and say what keeps it from being a hierarchy."""
    text = model.metadata_props.get(CALLS_KEY)
    if text is None:
        marked = any(f"{_PREFIX}module" in node.metadata_props for _, node in walk_nodes(model))
        return None, [_embedded_error("metadata", "nodes carry scopes, but the call tree is missing")] * marked
    version = model.metadata_props.get(f"{_PREFIX}format_version", "unknown")
    try:
        check_version(version, "metadata")
        rows = decode_rows(text)
        passed = decode_embedded_passed(model.metadata_props.get(PASSED_KEY), len(rows))
    except HieronnxError:
        message = f"it has format version '{version}'; this hieronnx reads {FORMAT_VERSION}"
        remedy = "use the version of hieronnx that wrote it, or export the model anew"
        return None, [Finding("metadata-version", "error", "metadata", message, remedy)]
    except (ValueError, LookupError, RecursionError) as error:
        return None, [_embedded_error("metadata: hieronnx.calls", f"it is not a call tree: {error}")]
    if were_scopes_dropped(model):
        message = (
            "no node carries a scope: a tool rewrote the file and dropped them; the calls alone say nothing of nodes"
        )
        return None, [Finding("metadata", "error", "metadata", message, _DROPPED)]
    nodes, found = _read_nodes(model)
    calls = tuple(
        CallClaim(CallId(path, number), parent, via, tag, *exchanged)
        for (path, number, parent, via, tag, _), exchanged in zip(rows, passed, strict=True)
    )
    modules = {row[0]: name_module(row[0], row[5]) for row in rows}
    return Claim("metadata", modules, calls, nodes), [*found, *_unknown_metadata(model)]


def _unknown_metadata(model: ir.Model) -> Iterator[Finding]:
    """Find hieronnx's own keys that this version does not know, one finding for each."""
    seen = Counter(key for key in model.metadata_props.keys() - MODEL_KEYS if key.startswith(_PREFIX))
    for _, node in walk_nodes(model):
        seen.update(key for key in node.metadata_props.keys() - NODE_KEYS if key.startswith(_PREFIX))
    for key, times in seen.items():
        yield _unknown_key("metadata", key, times)


def _embedded_error(place: str, message: str) -> Finding:
    return Finding("metadata", "error", place, message, _FIX_EMBEDDED)


def _read_nodes(model: ir.Model) -> tuple[tuple[NodeClaim, ...], list[Finding]]:
    nodes, found = [], []
    for graph, node in walk_nodes(model):
        try:
            claim = read_embedded_node(graph, node)
        except (ValueError, RecursionError) as error:
            place = f"metadata: {_place(graph, node)}"
            found.append(_embedded_error(place, f"what is written on it is not what hieronnx writes: {error}"))
            continue
        if f"{_PREFIX}module" not in node.metadata_props:
            message = "it carries no scope; tools that read the metadata take it for the root's"
            found.append(Finding("metadata", "warning", f"metadata: {_place(graph, node)}", message, _FIX_EMBEDDED))
        nodes.append(NodeClaim(claim, node.metadata_props.get(f"{_PREFIX}tag")))
    return tuple(nodes), found


def _place(graph: str, node: ir.Node) -> str:
    return node_place(graph, first_output(node), node.name or "")
