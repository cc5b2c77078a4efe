"""Reading an ONNX file without parsing it: only the protobuf framing is read, and no weight is decoded.

An ONNX file is mostly weights. Names, locations and the structure of the graph are found by walking the fields of the
message in mapped memory; `hieronnx.files.splice` writes metadata in the same way.
"""

from __future__ import annotations

import mmap
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import BinaryIO, TypeAlias, TypeVar

import onnx
from google.protobuf.message import DecodeError

from hieronnx.errors import HieronnxError
from hieronnx.graph.view import SMALL_TENSOR_BYTES
from hieronnx.graph.walks import body_key, function_key, walk_attribute_tensors, walk_protos
from hieronnx.graph.wiring import Wired, Wiring, make_wiring

Field: TypeAlias = tuple[int, memoryview, memoryview]
"""A field's number, the field as a whole, and the content of a length-delimited one."""
_Result = TypeVar("_Result")

# Field numbers of onnx.proto.
MODEL_GRAPH, MODEL_METADATA, MODEL_FUNCTIONS = 7, 14, 25
GRAPH_NODE, GRAPH_INITIALIZER, FUNCTION_NODE = 1, 5, 7
TENSOR_NAME, TENSOR_RAW_DATA, TENSOR_EXTERNAL = 8, 9, 13
NODE_OUTPUT, NODE_NAME, NODE_ATTRIBUTE, NODE_METADATA = 2, 3, 5, 9
_NODE_INPUT, _NODE_OP_TYPE, _NODE_DOMAIN = 1, 4, 7
ATTRIBUTE_NAME, ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS = 1, 6, 11
ATTRIBUTE_TENSORS = frozenset({5, 10})  # one, or a list
ENTRY_KEY, ENTRY_VALUE = 1, 2
_FUNCTION_NAME, _FUNCTION_DOMAIN, _FUNCTION_OVERLOAD = 1, 10, 13
_TENSOR_DATA = frozenset({4, 5, 6, 7, 9, 10, 11})  # every field of a TensorProto that holds elements

LARGEST_MESSAGE = 2**31 - 1
"""The most bytes that an ONNX file can have: protobuf counts them with 31 bits."""
LOCATION = b"location"
"""The key of external data's file."""
# What a skeleton keeps: up to SMALL_TENSOR_BYTES in memory can take ten times that here, a varint for a byte.
_SMALL_TENSOR_DATA = 10 * SMALL_TENSOR_BYTES
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
_DEEPEST_BODY = 32  # of 100 messages in one another, that protobuf reads, each body takes three
_LARGE_FIELD = 1 << 20
_ONE_BYTE = tuple(bytes((value,)) for value in range(0x80))
_NOTHING = memoryview(b"")


# -- framing ------------------------------------------------------------------------------------------------


def walk_fields(view: memoryview) -> Iterator[Field]:
    """Yield the fields of a message.

    Raises:
        ValueError: If it is not one.
        IndexError: If it ends in the middle of a number.
    """
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
        if position - start > _LARGE_FIELD and isinstance(view.obj, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            view.obj.madvise(mmap.MADV_DONTNEED)  # looking at a few bytes can bring in megabytes around them


def _read_varint(view: memoryview, position: int) -> tuple[int, int]:
    value = view[position]
    if value < 0x80:  # nearly always
        return value, position + 1
    value = 0
    for shift in range(0, 7 * _LONGEST_VARINT, 7):
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError(f"not a protobuf message: a number of more than {_LONGEST_VARINT} bytes ends at byte {position}")


def frame(number: int, length: int) -> bytes:
    """Return what comes before the content of a length-delimited field."""
    return _varint(number << 3 | _BYTES) + _varint(length)


def _varint(value: int) -> bytes:
    if value <= 0x7F:
        return _ONE_BYTE[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_text(fields: Iterable[Field], number: int) -> str:
    """Return the first field of this number that is not empty, as text; nothing if there is none."""
    return next((str(content, "utf-8") for field, _, content in fields if field == number and len(content)), "")


def read_entry(entry: memoryview) -> tuple[bytes, bytes]:
    """Return key and value of an entry of metadata."""
    contents = {number: bytes(content) for number, _, content in walk_fields(entry)}
    return contents.get(ENTRY_KEY, b""), contents.get(ENTRY_VALUE, b"")


def read_function_key(function: memoryview) -> str:
    """Return the key of a serialized function's graph."""
    numbers = (_FUNCTION_DOMAIN, _FUNCTION_NAME, _FUNCTION_OVERLOAD)
    fields = [field for field in walk_fields(function) if field[0] in numbers]
    return function_key(*(read_text(fields, number) for number in numbers))


# -- files --------------------------------------------------------------------------------------------------


@contextmanager
def map_file(file: BinaryIO) -> Iterator[memoryview]:
    """Map an open file into memory, to be read there."""
    if os.fstat(file.fileno()).st_size == 0:  # nothing to map
        yield _NOTHING
        return
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    view = memoryview(mapped)
    try:
        yield view
    finally:
        with suppress(BufferError):  # an error on its way out holds parts of it, and must not be hidden by this one
            view.release()
            mapped.close()


def _read(path: str | os.PathLike[str], reader: Callable[[memoryview], _Result]) -> _Result:
    """Read something of a file in mapped memory."""
    with open(path, "rb") as file, map_file(file) as view:
        try:
            return reader(view)
        except (ValueError, IndexError, DecodeError, RecursionError) as error:
            failure = explain(error)  # the exception itself would keep the mapped file in use
    raise HieronnxError(f"'{os.fspath(path)}' cannot be read as an ONNX model: {failure}")


def explain(error: Exception) -> str:
    """Say what is wrong with a message that could not be read."""
    if isinstance(error, RecursionError) or "MaxDepth" in str(error):  # protobuf's word for it
        return f"its bodies are nested more than {_DEEPEST_BODY} deep, and protobuf reads no more"
    return "it ends in the middle of a number" if isinstance(error, IndexError) else str(error)


# -- nodes --------------------------------------------------------------------------------------------------


def read_node_names(model: bytes | memoryview) -> dict[tuple[str, str], str]:
    """Read the names of a serialized model's nodes, by their graphs' keys and their first outputs."""
    return {(key, read_text(node, NODE_OUTPUT)): read_text(node, NODE_NAME) for key, node in _walk_model(model)}


def read_wiring(path: str | os.PathLike[str]) -> Wiring:
    """Read what a sidecar must agree with, and no more of a file.

    Raises:
        HieronnxError: If the file is not an ONNX model.
    """
    return _read(path, lambda view: make_wiring(_read_wired(key, node) for key, node in _walk_model(view)))


def _read_wired(graph: str, node: Sequence[Field]) -> Wired:
    read_text(node, NODE_NAME)  # it does not count, but a file in which it is no text is not ONNX
    inputs, outputs = (
        [str(content, "utf-8") for field, _, content in node if field == number]
        for number in (_NODE_INPUT, NODE_OUTPUT)
    )
    return graph, read_text(node, _NODE_DOMAIN), read_text(node, _NODE_OP_TYPE), inputs, outputs


def _walk_model(model: bytes | memoryview) -> Iterator[tuple[str, list[Field]]]:
    """Yield the fields of each node with the key of its graph."""
    for number, _, content in walk_fields(memoryview(model)):
        if number == MODEL_GRAPH:
            yield from _walk_graph(content, "", GRAPH_NODE)
        elif number == MODEL_FUNCTIONS:
            yield from _walk_graph(content, read_function_key(content), FUNCTION_NODE)


def _walk_graph(graph: memoryview, key: str, node_field: int) -> Iterator[tuple[str, list[Field]]]:
    for number, _, node in walk_fields(graph):
        if number != node_field:
            continue
        fields = list(walk_fields(node))
        yield key, fields
        for field, _, attribute in fields:
            if field == NODE_ATTRIBUTE:
                for label, (_, _, body) in label_bodies(list(walk_fields(attribute))):
                    if label is not None:
                        yield from _walk_graph(body, body_key(key, read_text(fields, NODE_OUTPUT), label), GRAPH_NODE)


def label_bodies(attribute: Sequence[Field]) -> Iterator[tuple[str | None, Field]]:
    """Yield the fields of an attribute, those that are graphs with their labels: its name, and the index in a list."""
    name, index = read_text(attribute, ATTRIBUTE_NAME), 0
    for field in attribute:
        if field[0] == ATTRIBUTE_GRAPH:
            yield name, field
        elif field[0] == ATTRIBUTE_GRAPHS:
            yield f"{name}.{index}", field
            index += 1
        else:
            yield None, field


# -- initializers: the functions below read what `read_skeleton` reads ----------------------------------------


def locate_initializers(path: str | os.PathLike[str]) -> dict[str, tuple[int, int]]:
    """Find where in a file the main graph's initializers are: where each TensorProto begins, and its length."""
    return _read(path, lambda view: {_name(tensor): (start, len(tensor)) for start, tensor in _initializers(view)})


def locate_raw_data(path: str | os.PathLike[str]) -> dict[str, tuple[int, int]]:
    """Find where in a file the elements of the main graph's initializers are, of those that have them as raw data."""
    return _read(
        path,
        lambda view: {
            _name(tensor): (position, len(content))
            for start, tensor in _initializers(view)
            for number, position, content in _located_fields(tensor, start)
            if number == TENSOR_RAW_DATA
        },
    )


def _initializers(view: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield where each initializer of the main graph begins, and the initializer."""
    for number, start, graph in _located_fields(view, 0):
        for field, position, tensor in _located_fields(graph, start) if number == MODEL_GRAPH else ():
            if field == GRAPH_INITIALIZER:
                yield position, tensor


def _located_fields(view: memoryview, start: int) -> Iterator[tuple[int, int, memoryview]]:
    """Yield each field's number, where its content begins if the message itself begins at `start`, and the content."""
    position = start
    for number, whole, content in walk_fields(view):
        position += len(whole)
        yield number, position - len(content), content


def _name(tensor: memoryview) -> str:
    names = [str(content, "utf-8") for number, _, content in walk_fields(tensor) if number == TENSOR_NAME]
    return names[-1] if names else ""  # the last one counts


def read_left_out(path: str | os.PathLike[str]) -> list[dict[str, int]]:
    """Read how many bytes of each kind of data a skeleton lacks, for each initializer of the main graph in order."""
    return _read(path, lambda view: [_left_out(list(walk_fields(tensor))) for _, tensor in _initializers(view)])


def _left_out(tensor: Sequence[Field]) -> dict[str, int]:
    sizes: dict[str, int] = defaultdict(int)
    for number, whole, content in () if _is_small(tensor) else tensor:
        if number in _TENSOR_DATA:
            sizes[onnx.TensorProto.DESCRIPTOR.fields_by_number[number].name] += len(content) or len(whole)
    return sizes


# -- the skeleton -------------------------------------------------------------------------------------------


def read_skeleton(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Read a model without the contents of its main graph's initializers, but for small ones, whatever its size.

    The small ones say what the graph does: shapes, axes, indices.

    Raises:
        HieronnxError: If the file is not an ONNX model.
    """
    return _read(path, _decode_skeleton)


def _decode_skeleton(view: memoryview) -> onnx.ModelProto:
    shortened = _shorten(view, MODEL_GRAPH, lambda graph: _shorten(graph, GRAPH_INITIALIZER, _skeleton_tensor))
    model = onnx.ModelProto.FromString(shortened)
    for text in _walk_texts(model):
        if isinstance(text, bytes):  # so protobuf returns what is not UTF-8
            raise ValueError(f"a name in it is not UTF-8: {text[:100]!r}")
    if not model.HasField("graph"):
        raise ValueError("it has no graph")
    return model


def _shorten(message: memoryview, number: int, shorten: Callable[[memoryview], bytes]) -> bytes:
    """Return a message with the fields of one number shortened."""
    parts: list[bytes | memoryview] = []
    for field, whole, content in walk_fields(message):
        if field == number:
            short = shorten(content)
            parts += (frame(number, len(short)), short)
        else:
            parts.append(whole)
    return b"".join(parts)


def _skeleton_tensor(tensor: memoryview) -> bytes:
    """Return a tensor without its elements, unless they are few."""
    fields = list(walk_fields(tensor))
    small = _is_small(fields)
    return b"".join(whole for number, whole, _ in fields if small or number not in _TENSOR_DATA)


def _is_small(tensor: Sequence[Field]) -> bool:
    return sum(len(whole) for number, whole, _ in tensor if number in _TENSOR_DATA) <= _SMALL_TENSOR_DATA


def _walk_texts(model: onnx.ModelProto) -> Iterator[str]:
    """Yield every name and every entry of metadata."""
    yield from (text for entry in model.metadata_props for text in (entry.key, entry.value))
    yield from (opset.domain for opset in model.opset_import)
    for _, graph in walk_protos(model):
        if isinstance(graph, onnx.FunctionProto):
            yield from (graph.name, graph.domain, graph.overload, *graph.input, *graph.output)
        else:
            yield from (item.name for item in (*graph.input, *graph.output, *graph.value_info, *graph.initializer))
        for node in graph.node:
            yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
            yield from (text for entry in node.metadata_props for text in (entry.key, entry.value))
            yield from (attribute.name for attribute in node.attribute)


# -- external data ------------------------------------------------------------------------------------------


def find_locations(model: onnx.ModelProto) -> set[str]:
    """Return where a model says that it has its external data."""
    tensors = (*model.graph.initializer, *walk_inner_data(model))
    return {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}


def walk_inner_data(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors inside nodes that have their data in a file."""
    for key, graph in walk_protos(model):
        initializers = graph.initializer if key and isinstance(graph, onnx.GraphProto) else ()
        for tensor in (*walk_attribute_tensors(graph), *initializers):
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                yield tensor


def read_locations(path: str | os.PathLike[str]) -> set[str]:
    """Read where a file says that it has its external data, decoding nothing else.

    Raises:
        HieronnxError: If the file is not an ONNX model.
    """
    return _read(path, lambda view: set(_read_locations(view)))


def _read_locations(view: memoryview) -> Iterator[str]:
    for number, _, content in walk_fields(view):
        if number == MODEL_FUNCTIONS and LOCATION in bytes(content):
            function = onnx.FunctionProto.FromString(bytes(content))
            yield from find_locations(onnx.ModelProto(functions=[function]))
        for field, _, item in walk_fields(content) if number == MODEL_GRAPH else ():
            if field == GRAPH_INITIALIZER:
                entries = [read_entry(entry) for n, _, entry in walk_fields(item) if n == TENSOR_EXTERNAL]
                yield from (str(value, "utf-8") for key, value in entries if key == LOCATION)
            elif field == GRAPH_NODE and LOCATION in bytes(item):
                node = onnx.NodeProto.FromString(bytes(item))
                yield from find_locations(onnx.ModelProto(graph=onnx.GraphProto(node=[node])))
