"""Writing metadata into an ONNX file without touching its weights, or anything else.

    node{op, inputs, outputs, …}   ->   node{op, inputs, outputs, …, metadata_props: hieronnx.tag, …}
    initializer{…}                 ->   the same bytes

Of the file only the protobuf framing is read. The bytes of all else are passed on as they are, so that nothing else can
change, and no weight is decoded or held twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple, TypeAlias

from hieronnx.errors import HieronnxError
from hieronnx.files import wire
from hieronnx.files.metadata import PREFIX
from hieronnx.files.weights import Span
from hieronnx.files.wire import Field, frame, label_bodies, read_entry, read_text, walk_fields
from hieronnx.graph.walks import body_key

Metadata: TypeAlias = Mapping[tuple[str, str], Mapping[str, str]]
Chunk: TypeAlias = "bytes | memoryview | Span"
_OURS = PREFIX.encode()
_BODIES = frozenset({wire.ATTRIBUTE_GRAPH, wire.ATTRIBUTE_GRAPHS})


class _Edits(NamedTuple):
    """What changes in a file, and which fields of attributes that can concern."""

    metadata: Metadata
    moved: Mapping[str, str]
    in_attributes: frozenset[int]
    replaced: frozenset[bytes]


def write_annotated(
    stream: BinaryIO,
    model: bytes | memoryview,
    metadata: Metadata,
    model_metadata: Mapping[str, str],
    moved: Mapping[str, str] | None = None,
    initializers: Sequence[Chunk] = (),
    replaced: Collection[str] = (),
) -> None:
    """Write a serialized model to a stream, with metadata on its nodes.

    What the nodes had under hieronnx's own keys is replaced; any other key stays, and is not set twice.

    Args:
        stream: Where to write.
        model: The serialized ModelProto, as bytes or mapped memory.
        metadata: What to put on each node, by its graph's key and its first output.
        model_metadata: What to put on the model itself.
        moved: The new locations of external data, by the old ones.
        initializers: Fields that the main graph gets at its end, each framed.
        replaced: Keys of others that nodes lose, or have in `metadata`.

    Raises:
        HieronnxError: If the bytes are not an ONNX model; part of them may have been written by then.
    """
    concerned = _BODIES | wire.ATTRIBUTE_TENSORS if moved else _BODIES
    edits = _Edits(metadata, moved or {}, concerned, frozenset(key.encode() for key in replaced))
    try:
        for chunk in _splice_model(memoryview(model), edits, initializers):
            if isinstance(chunk, Span):
                chunk.copy_to(stream)
            else:
                stream.write(chunk)
    except (ValueError, IndexError) as error:
        raise HieronnxError(f"the bytes to annotate are not an ONNX model: {wire.explain(error)}") from error
    for key, value in model_metadata.items():
        stream.write(_entry(wire.MODEL_METADATA, key, value))


def _splice_model(model: memoryview, edits: _Edits, initializers: Sequence[Chunk]) -> Iterator[Chunk]:
    for number, whole, content in walk_fields(model):
        if number == wire.MODEL_GRAPH:
            yield from framed(number, (*_splice_graph(content, "", edits, wire.GRAPH_NODE), *initializers))
        elif number == wire.MODEL_FUNCTIONS:
            key = wire.read_function_key(content)
            yield from framed(number, _splice_graph(content, key, edits, wire.FUNCTION_NODE))
        elif number != wire.MODEL_METADATA or not _is_ours(content):
            yield whole


def _splice_graph(graph: memoryview, key: str, edits: _Edits, node_field: int) -> Iterator[Chunk]:
    for number, whole, content in walk_fields(graph):
        if number == node_field:
            yield from framed(number, _splice_node(content, key, edits))
        elif edits.moved and number == wire.GRAPH_INITIALIZER and node_field == wire.GRAPH_NODE:
            yield from framed(number, _splice_tensor(content, edits.moved))
        else:
            yield whole


def _splice_node(node: memoryview, graph: str, edits: _Edits) -> Iterator[Chunk]:
    fields = [
        field
        for field in walk_fields(node)
        if field[0] != wire.NODE_METADATA or not (_is_ours(field[2]) or read_entry(field[2])[0] in edits.replaced)
    ]
    output = read_text(fields, wire.NODE_OUTPUT)
    for number, whole, content in fields:
        inner = list(walk_fields(content)) if number == wire.NODE_ATTRIBUTE else []
        if any(field[0] in edits.in_attributes for field in inner):
            yield from framed(number, _splice_attribute(inner, graph, output, edits))
        else:
            yield whole
    present = {read_entry(content)[0] for number, _, content in fields if number == wire.NODE_METADATA}
    for key, value in edits.metadata.get((graph, output), {}).items():
        if key.encode() not in present:
            yield _entry(wire.NODE_METADATA, key, value)


def _splice_attribute(fields: Sequence[Field], graph: str, output: str, edits: _Edits) -> Iterator[Chunk]:
    for label, (number, whole, content) in label_bodies(fields):
        if label is not None:
            key = body_key(graph, output, label)
            yield from framed(number, _splice_graph(content, key, edits, wire.GRAPH_NODE))
        elif edits.moved and number in wire.ATTRIBUTE_TENSORS:
            yield from framed(number, _splice_tensor(content, edits.moved))
        else:
            yield whole


def _splice_tensor(tensor: memoryview, moved: Mapping[str, str]) -> Iterator[Chunk]:
    """Yield a tensor that says where its data is now."""
    for number, whole, content in walk_fields(tensor):
        key, value = read_entry(content) if number == wire.TENSOR_EXTERNAL else (b"", b"")
        new = moved.get(str(value, "utf-8")) if key == wire.LOCATION else None
        yield whole if new is None else _entry(number, "location", new)


def framed(number: int, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Yield a length-delimited field around its content."""
    content = list(chunks)
    yield frame(number, sum(map(len, content)))
    yield from content


def _entry(number: int, key: str, value: str) -> bytes:
    """Return an entry of metadata as a field."""
    pairs = ((wire.ENTRY_KEY, key.encode()), (wire.ENTRY_VALUE, value.encode()))
    content = b"".join(frame(field, len(text)) + text for field, text in pairs)
    return frame(number, len(content)) + content


def _is_ours(entry: memoryview) -> bool:
    return read_entry(entry)[0].startswith(_OURS)
