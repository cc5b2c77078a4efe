"""Writing metadata into an ONNX file without parsing it: only the protobuf framing is read.

An ONNX file is mostly weights. To put a few strings on its nodes, the bytes of everything else are passed on
as they are, so nothing else can change, and no weight is decoded or held twice.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple, TypeAlias

import onnx
from google.protobuf.message import DecodeError

from hieronnx.errors import HieronnxError
from hieronnx.graph.view import SMALL_TENSOR_BYTES
from hieronnx.graph.walks import body_key

Metadata: TypeAlias = Mapping[tuple[str, str], Mapping[str, str]]
_Chunk: TypeAlias = "bytes | memoryview"

# Field numbers of onnx.proto.
_MODEL_GRAPH, _MODEL_METADATA, _MODEL_FUNCTIONS = 7, 14, 25
_GRAPH_NODE, _GRAPH_INITIALIZER, _FUNCTION_NODE = 1, 5, 7
_TENSOR_NAME, _TENSOR_EXTERNAL = 8, 13
_TENSOR_RAW_DATA = 9
_TENSOR_DATA = frozenset({4, 5, 6, 7, 9, 10, 11})  # every field of a TensorProto that holds elements
# What a skeleton keeps: up to SMALL_TENSOR_BYTES in memory can take ten times that here, a varint for a byte.
_SMALL_TENSOR_DATA = 10 * SMALL_TENSOR_BYTES
_FUNCTION_NAME, _FUNCTION_DOMAIN, _FUNCTION_OVERLOAD = 1, 10, 13
_NODE_OUTPUT, _NODE_NAME, _NODE_ATTRIBUTE, _NODE_METADATA = 2, 3, 5, 9
_ATTRIBUTE_NAME, _ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS = 1, 6, 11
_ATTRIBUTE_TENSORS = frozenset({5, 10})  # one, or a list
_ENTRY_KEY, _ENTRY_VALUE = 1, 2

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_OURS = b"hieronnx."
_LOCATION = b"location"
_LARGE_FIELD = 1 << 20
_ONE_BYTE = tuple(bytes((value,)) for value in range(0x80))
_NOTHING = memoryview(b"")


class _Edits(NamedTuple):
    """What changes in a file."""

    metadata: Metadata
    moved: Mapping[str, str]


def write_annotated(
    stream: BinaryIO,
    model: _Chunk,
    metadata: Metadata,
    model_metadata: Mapping[str, str],
    moved: Mapping[str, str] | None = None,
) -> None:
    """Write a serialized model to a stream, with metadata on its nodes.

    What the nodes had under hieronnx's own keys is replaced; any other key stays, and is not set twice.

    Args:
        stream: Where to write.
        model: The serialized ModelProto, as bytes or mapped memory.
        metadata: What to put on each node, by its graph's key and its first output.
        model_metadata: What to put on the model itself.
        moved: The new locations of external data, by the old ones.

    Raises:
        HieronnxError: If the bytes are not an ONNX model; part of them may have been written by then.
    """
    try:
        _write_fields(stream, memoryview(model), _Edits(metadata, moved or {}))
    except (ValueError, IndexError) as error:
        raise HieronnxError(f"the bytes to annotate are not an ONNX model: {_reason(error)}") from error
    for key, value in model_metadata.items():
        stream.write(_field(_MODEL_METADATA, _entry(key, value)))


def _write_fields(stream: BinaryIO, model: memoryview, edits: _Edits) -> None:
    for number, whole, content in _fields(model):
        if number == _MODEL_GRAPH:
            stream.writelines(_framed(number, _graph(content, "", edits, _GRAPH_NODE)))
        elif number == _MODEL_FUNCTIONS:
            stream.writelines(_framed(number, _graph(content, _function_key(content), edits, _FUNCTION_NODE)))
        elif number != _MODEL_METADATA or not _is_ours(content):
            stream.write(whole)


def read_node_names(model: _Chunk) -> dict[tuple[str, str], str]:
    """Read the names of a serialized model's nodes, by their graphs' keys and their first outputs."""
    names: dict[tuple[str, str], str] = {}
    for number, _, content in _fields(memoryview(model)):
        if number == _MODEL_GRAPH:
            _read_names(content, "", _GRAPH_NODE, names)
        elif number == _MODEL_FUNCTIONS:
            _read_names(content, _function_key(content), _FUNCTION_NODE, names)
    return names


def read_node_keys(path: str | os.PathLike[str]) -> set[tuple[str, str]]:
    """Read what identifies the nodes of a file: their graphs' keys and their first outputs.

    Raises:
        HieronnxError: If the file is not an ONNX model.
    """
    failure = ""
    with open(path, "rb") as file, map_file(file) as view:
        try:
            return set(read_node_names(view))
        except (ValueError, IndexError) as error:
            failure = _reason(error)  # the exception itself would keep the mapped file in use
    raise HieronnxError(f"'{os.fspath(path)}' cannot be read as an ONNX model: {failure}")


def _read_names(graph: memoryview, key: str, node_field: int, names: dict[tuple[str, str], str]) -> None:
    for number, _, node in _fields(graph):
        if number != node_field:
            continue
        fields = [(field, content) for field, _, content in _fields(node)]
        output = next((str(c, "utf-8") for field, c in fields if field == _NODE_OUTPUT and len(c)), "")
        names[key, output] = next((str(c, "utf-8") for field, c in fields if field == _NODE_NAME), "")
        for field, attribute in fields:
            if field == _NODE_ATTRIBUTE:
                for body, label in _attribute_bodies(attribute):
                    _read_names(body, body_key(key, output, label), _GRAPH_NODE, names)


def _attribute_bodies(attribute: memoryview) -> Iterator[tuple[memoryview, str]]:
    """Yield the graphs of an attribute with their labels: the attribute's name, and its index in a list."""
    fields = [(field, content) for field, _, content in _fields(attribute)]
    name = next((str(content, "utf-8") for field, content in fields if field == _ATTRIBUTE_NAME), "")
    yield from ((content, name) for field, content in fields if field == _ATTRIBUTE_GRAPH)
    listed = (content for field, content in fields if field == _ATTRIBUTE_GRAPHS)
    yield from ((content, f"{name}.{index}") for index, content in enumerate(listed))


def read_skeleton(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Read a model without the contents of its main graph's initializers, but for small ones, whatever its size.

    The small ones say what the graph does: shapes, axes, indices.

    Raises:
        HieronnxError: If the file is not an ONNX model.
    """
    with open(path, "rb") as file, map_file(file) as view:
        model, failure = _decode_skeleton(view)
    if model is None:
        raise HieronnxError(f"'{os.fspath(path)}' cannot be read as an ONNX model: {failure}")
    return model


def locate_initializers(path: str | os.PathLike[str]) -> dict[str, tuple[int, int]]:
    """Find where in a file the main graph's initializers are: where each TensorProto begins, and its length.

    The file must be one that `read_skeleton` reads.
    """
    with open(path, "rb") as file, map_file(file) as view:
        return dict(_located_initializers(view))


def locate_raw_data(path: str | os.PathLike[str]) -> dict[str, tuple[int, int]]:
    """Find where in a file the elements of the main graph's initializers are, of those that have them as raw data.

    The file must be one that `read_skeleton` reads.
    """
    with open(path, "rb") as file, map_file(file) as view:
        return {
            name: (at, len(content))
            for name, (start, length) in _located_initializers(view)
            for number, at, content in _located_fields(view[start : start + length], start)
            if number == _TENSOR_RAW_DATA
        }


def _located_initializers(view: memoryview) -> Iterator[tuple[str, tuple[int, int]]]:
    for number, start, graph in _located_fields(view, 0):
        for field, position, tensor in _located_fields(graph, start) if number == _MODEL_GRAPH else ():
            if field == _GRAPH_INITIALIZER:
                names = [str(content, "utf-8") for n, _, content in _fields(tensor) if n == _TENSOR_NAME]
                yield (names[-1] if names else ""), (position, len(tensor))  # the last one counts


def _located_fields(view: memoryview, start: int) -> Iterator[tuple[int, int, memoryview]]:
    """Yield each field's number, where its content begins if the message itself begins at `start`, and the content."""
    position = start
    for number, whole, content in _fields(view):
        position += len(whole)
        yield number, position - len(content), content


def read_left_out(path: str | os.PathLike[str]) -> list[dict[str, int]]:
    """Read how many bytes of each kind of data a skeleton lacks, for each initializer of the main graph in order.

    The file must be one that `read_skeleton` reads.
    """
    with open(path, "rb") as file, map_file(file) as view:
        return [
            _left_out(tensor)
            for number, _, graph in _fields(view)
            if number == _MODEL_GRAPH
            for field, _, tensor in _fields(graph)
            if field == _GRAPH_INITIALIZER
        ]


def _left_out(tensor: memoryview) -> dict[str, int]:
    sizes: dict[str, int] = {}
    fields = list(_fields(tensor))
    kept = len(_skeleton_tensor(tensor)) == len(fields)
    for number, whole, content in () if kept else fields:
        if number in _TENSOR_DATA:
            name = onnx.TensorProto.DESCRIPTOR.fields_by_number[number].name
            sizes[name] = sizes.get(name, 0) + (len(content) or len(whole))
    return sizes


def _decode_skeleton(view: memoryview) -> tuple[onnx.ModelProto | None, str]:
    """Decode the skeleton, or say why not: an exception that got out would keep the mapped file in use."""
    try:
        model = onnx.ModelProto.FromString(b"".join(_skeleton_model(view)))
        _check_text(model)
    except (ValueError, IndexError, DecodeError) as error:
        return None, _reason(error)
    return (model, "") if model.HasField("graph") else (None, "it has no graph")


def _check_text(model: onnx.ModelProto) -> None:
    """Make sure that all names are text: protobuf hands out those that are not as bytes.

    Raises:
        ValueError: If one is not.
    """
    for text in _texts(model):
        if isinstance(text, bytes):
            raise ValueError(f"a name in it is not UTF-8: {text[:100]!r}")


def _texts(model: onnx.ModelProto) -> Iterator[str]:
    yield from (text for entry in model.metadata_props for text in (entry.key, entry.value))
    yield from (opset.domain for opset in model.opset_import)
    waiting: list[onnx.GraphProto | onnx.FunctionProto] = [model.graph, *model.functions]
    while waiting:
        graph = waiting.pop()
        if isinstance(graph, onnx.FunctionProto):
            yield from (graph.name, graph.domain, graph.overload, *graph.input, *graph.output)
        else:
            yield from (item.name for item in (*graph.input, *graph.output, *graph.value_info, *graph.initializer))
        for node in graph.node:
            yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
            for entry in node.metadata_props:
                yield entry.key
                yield entry.value
            for attribute in node.attribute:
                yield attribute.name
                waiting += attribute.graphs
                if attribute.HasField("g"):
                    waiting.append(attribute.g)


def find_locations(model: onnx.ModelProto) -> set[str]:
    """Return where a model says that it has its external data."""
    tensors = (*model.graph.initializer, *walk_inner_data(model))
    return {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}


def read_locations(path: str | os.PathLike[str]) -> set[str]:
    """Read where a file says that it has its external data, decoding nothing else.

    Raises:
        HieronnxError: If the file is not an ONNX model.
    """
    failure = ""
    with open(path, "rb") as file, map_file(file) as view:
        try:
            return set(_read_locations(view))
        except (ValueError, IndexError, DecodeError) as error:
            failure = _reason(error)  # the exception itself would keep the mapped file in use
    raise HieronnxError(f"'{os.fspath(path)}' cannot be read as an ONNX model: {failure}")


def _read_locations(view: memoryview) -> Iterator[str]:
    for number, _, content in _fields(view):
        if number == _MODEL_FUNCTIONS and _LOCATION in bytes(content):
            function = onnx.FunctionProto.FromString(bytes(content))
            yield from find_locations(onnx.ModelProto(functions=[function]))
        for field, _, item in _fields(content) if number == _MODEL_GRAPH else ():
            if field == _GRAPH_INITIALIZER:
                entries = [entry for n, _, entry in _fields(item) if n == _TENSOR_EXTERNAL]
                yield from (str(_entry_value(entry), "utf-8") for entry in entries if _entry_key(entry) == _LOCATION)
            elif field == _GRAPH_NODE and _LOCATION in bytes(item):
                node = onnx.NodeProto.FromString(bytes(item))
                yield from find_locations(onnx.ModelProto(graph=onnx.GraphProto(node=[node])))


def walk_inner_data(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors inside nodes that have their data in a file."""
    pending: list[Iterable[onnx.NodeProto]] = [model.graph.node, *(function.node for function in model.functions)]
    while pending:
        attributes = [attribute for node in pending.pop() for attribute in node.attribute]
        bodies = [body for attribute in attributes for body in (attribute.g, *attribute.graphs)]
        pending += (body.node for body in bodies)
        tensors = [tensor for attribute in attributes for tensor in (attribute.t, *attribute.tensors)]
        tensors += (tensor for body in bodies for tensor in body.initializer)
        yield from (tensor for tensor in tensors if tensor.data_location == onnx.TensorProto.EXTERNAL)


def _reason(error: Exception) -> str:
    return "it ends in the middle of a number" if isinstance(error, IndexError) else str(error)


@contextmanager
def map_file(file: BinaryIO) -> Iterator[memoryview]:
    """Map an open file into memory, to be read there."""
    if os.fstat(file.fileno()).st_size == 0:  # nothing to map
        yield _NOTHING
        return
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
        yield view


def _skeleton_model(view: memoryview) -> Iterator[bytes]:
    for number, whole, content in _fields(view):
        if number == _MODEL_GRAPH:
            yield from map(bytes, _framed(number, list(_skeleton_graph(content))))
        else:
            yield bytes(whole)


def _skeleton_graph(view: memoryview) -> Iterator[bytes]:
    for number, whole, content in _fields(view):
        if number == _GRAPH_INITIALIZER:
            yield from map(bytes, _framed(number, _skeleton_tensor(content)))
        else:
            yield bytes(whole)


def _skeleton_tensor(view: memoryview) -> list[memoryview]:
    fields = list(_fields(view))
    small = sum(len(whole) for number, whole, _ in fields if number in _TENSOR_DATA) <= _SMALL_TENSOR_DATA
    return [whole for number, whole, _ in fields if small or number not in _TENSOR_DATA]


def _graph(view: memoryview, key: str, edits: _Edits, node_field: int) -> Iterator[_Chunk]:
    for number, whole, content in _fields(view):
        if number == node_field:
            yield from _framed(number, _node(content, key, edits))
        elif edits.moved and number == _GRAPH_INITIALIZER and node_field == _GRAPH_NODE:
            yield from _framed(number, _tensor(content, edits.moved))
        else:
            yield whole


def _node(view: memoryview, graph: str, edits: _Edits) -> Iterator[_Chunk]:
    output, present = "", set()
    fields = list(_fields(view))
    for number, _, content in fields:
        if number == _NODE_OUTPUT and not output:
            output = str(content, "utf-8")
        elif number == _NODE_METADATA and not _is_ours(content):
            present.add(_entry_key(content))
    for number, whole, content in fields:
        if number == _NODE_ATTRIBUTE:
            yield from _attribute(whole, content, graph, output, edits)
        elif number != _NODE_METADATA or not _is_ours(content):
            yield whole
    for key, value in edits.metadata.get((graph, output), {}).items():
        if key.encode() not in present:
            yield _field(_NODE_METADATA, _entry(key, value))


def _attribute(whole: memoryview, view: memoryview, graph: str, output: str, edits: _Edits) -> Iterator[_Chunk]:
    fields = list(_fields(view))
    edited = {_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS} | (_ATTRIBUTE_TENSORS if edits.moved else set())
    if any(number in edited for number, _, _ in fields):
        yield from _framed(_NODE_ATTRIBUTE, _attribute_fields(fields, graph, output, edits))
    else:
        yield whole


def _attribute_fields(
    fields: list[tuple[int, memoryview, memoryview]], graph: str, output: str, edits: _Edits
) -> Iterator[_Chunk]:
    name = next((str(content, "utf-8") for number, _, content in fields if number == _ATTRIBUTE_NAME), "")
    index = 0
    for number, whole, content in fields:
        if number in (_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS):
            label = name if number == _ATTRIBUTE_GRAPH else f"{name}.{index}"
            index += number == _ATTRIBUTE_GRAPHS
            key = body_key(graph, output, label)
            yield from _framed(number, _graph(content, key, edits, _GRAPH_NODE))
        elif edits.moved and number in _ATTRIBUTE_TENSORS:
            yield from _framed(number, _tensor(content, edits.moved))
        else:
            yield whole


def _tensor(view: memoryview, moved: Mapping[str, str]) -> Iterator[_Chunk]:
    """Yield a tensor that tells where its data is now."""
    for number, whole, content in _fields(view):
        location = str(_entry_value(content), "utf-8") if number == _TENSOR_EXTERNAL else ""
        if location in moved and _entry_key(content) == _LOCATION:
            yield _field(number, _entry("location", moved[location]))
        else:
            yield whole


def _function_key(view: memoryview) -> str:
    parts = (_FUNCTION_NAME, _FUNCTION_DOMAIN, _FUNCTION_OVERLOAD)
    found = {number: str(content, "utf-8") for number, _, content in _fields(view) if number in parts}
    overload = found.get(_FUNCTION_OVERLOAD, "")
    key = f"{found.get(_FUNCTION_DOMAIN, '')}::{found.get(_FUNCTION_NAME, '')}"
    return f"{key}:{overload}" if overload else key


def _entry(key: str, value: str) -> bytes:
    return _field(_ENTRY_KEY, key.encode()) + _field(_ENTRY_VALUE, value.encode())


def _entry_key(view: memoryview) -> bytes:
    return next((bytes(content) for number, _, content in _fields(view) if number == _ENTRY_KEY), b"")


def _entry_value(view: memoryview) -> bytes:
    return next((bytes(content) for number, _, content in _fields(view) if number == _ENTRY_VALUE), b"")


def _is_ours(entry: memoryview) -> bool:
    return _entry_key(entry).startswith(_OURS)


def _framed(number: int, chunks: Iterable[_Chunk]) -> Iterator[_Chunk]:
    """Yield a length-delimited field around its content."""
    held = list(chunks)
    yield _varint(number << 3 | _BYTES) + _varint(sum(map(len, held)))
    yield from held


def frame(number: int, length: int) -> bytes:
    """Return what comes before the content of a length-delimited field."""
    return _varint(number << 3 | _BYTES) + _varint(length)


def _field(number: int, content: bytes) -> bytes:
    """Return a length-delimited field as one chunk, for what is short."""
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    if value <= 0x7F:
        return _ONE_BYTE[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _fields(view: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Yield each field's number, the field as a whole, and the content of a length-delimited one."""
    position, end = 0, len(view)
    while position < end:
        start = position
        tag, position = _read_varint(view, position)
        kind, content = tag & 7, _NOTHING
        if kind == _VARINT:
            _, position = _read_varint(view, position)
        elif kind == _BYTES:
            length, position = _read_varint(view, position)
            content = view[position : position + length]
            position += length
        elif kind in (_FIXED32, _FIXED64):
            position += 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"not a protobuf message: wire type {kind} at byte {start}")
        if position > end:
            raise ValueError(f"it ends in the middle of a field, at byte {end}")
        yield tag >> 3, view[start:position], content
        if position - start > _LARGE_FIELD:
            _let_go(view)


def _let_go(view: memoryview) -> None:
    """Give back the pages of a mapped file: looking at a few bytes can bring in megabytes around them."""
    if isinstance(view.obj, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        view.obj.madvise(mmap.MADV_DONTNEED)


def _read_varint(view: memoryview, position: int) -> tuple[int, int]:
    value = view[position]
    if value < 0x80:  # nearly always
        return value, position + 1
    value = shift = 0
    while True:
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
