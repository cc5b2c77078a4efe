"""Writing a part: its structure, and its weights copied as bytes; external where they were, or where they must be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, TypeAlias

import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError, writing
from hieronnx.files.encoding import describe_file, encode_sidecar
from hieronnx.files.metadata import embed_in_nodes, embedded_model_metadata
from hieronnx.files.opening import sidecar_path
from hieronnx.files.staging import check_place, move_into_place, staging
from hieronnx.files.wire import find_locations, frame, read_skeleton, write_annotated
from hieronnx.graph.building import view_model
from hieronnx.graph.view import SMALL_TENSOR_BYTES, View
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.tools.extract.source import Source
from hieronnx.tools.extract.weights import Span, Weight, copy_span, data_files, read_span

InnerWeight: TypeAlias = tuple[onnx.TensorProto, Weight]
"""A tensor inside a node, and where its external data is."""

_LARGEST_MESSAGE = 2**31 - 1
_MODEL_GRAPH, _GRAPH_INITIALIZER, _TENSOR_NAME = 7, 5, 8
_ALIGNMENT = 64
_CHUNK = 1 << 26
_MARGIN = 1 << 24  # for metadata and framing


def check_output(source: Source, output: Path) -> None:
    """Make sure that writing a part would not destroy what it is taken from.

    Raises:
        HieronnxError: If it would, or there is no place to write.
    """
    with writing(output):
        if output.is_dir():
            inside = output / "part.onnx"
            raise HieronnxError(f"'{output}' is a folder; give the name of a file in it, such as {inside}")
        if not output.parent.is_dir():
            raise HieronnxError(f"no folder '{output.parent}' to write '{output.name}' into; make it first")
    own = data_files(source)
    if source.opened.path is not None:
        own |= {source.opened.path, sidecar_path(source.opened.path)}
    for target in (output, _data_path(output), sidecar_path(output)):
        check_place(target)
        for path in own:
            if target.exists() and path.exists() and target.samefile(path):
                raise HieronnxError(
                    f"writing '{output}' would overwrite '{path}', which belongs to the model itself; give another name"
                )


def _data_path(output: Path) -> Path:
    return output.with_name(f"{output.name}.data")


def annotate(model: onnx.ModelProto, hierarchy: Hierarchy) -> bytes:
    """Return a model serialized, with its hierarchy inside."""
    stream = BytesIO()
    write_annotated(stream, model.SerializeToString(), embed_in_nodes(hierarchy), embedded_model_metadata(hierarchy))
    return stream.getvalue()


def fill_model(
    model: onnx.ModelProto, weights: Sequence[Weight], inner: Sequence[InnerWeight], hierarchy: Hierarchy
) -> onnx.ModelProto:
    """Return a part as a model in memory, with its weights.

    Raises:
        HieronnxError: If it is too large for that.
    """
    if sum(weight.size for weight in (*weights, *(held for _, held in inner))) + model.ByteSize() > _LARGEST_MESSAGE:
        raise HieronnxError("the part is over 2 GB, more than an ONNX model in memory can have; give an output file")
    for tensor, weight in inner:
        assert weight.data is not None  # it is external
        tensor.CopyFrom(weight.header)
        tensor.raw_data = read_span(weight.data)
    filled: onnx.ModelProto = onnx.ModelProto.FromString(annotate(model, hierarchy))
    for weight in weights:
        held = filled.graph.initializer.add()
        if weight.tensor is not None:
            held.CopyFrom(_serialize(weight.tensor, weight.name))
        elif weight.message is not None:
            held.ParseFromString(read_span(weight.message))
            held.name = weight.name
        elif weight.data is not None:
            held.CopyFrom(weight.header)
            held.raw_data = read_span(weight.data)
    return filled


# -- files ------------------------------------------------------------------------------------------------


def write_part(
    model: onnx.ModelProto,
    weights: Sequence[Weight],
    inner: Sequence[InnerWeight],
    hierarchy: Hierarchy,
    output: Path,
    exporter: str,
) -> Hierarchy:
    """Write a part: the model, its data where that is external, and its sidecar; return what that says.

    Args:
        model: The part without its initializers.
        weights: These.
        inner: The external data inside its nodes.
        hierarchy: Of the part.
        output: Where to write.
        exporter: What made the whole model.

    Raises:
        HieronnxError: If it cannot be written. Nothing is left behind.
    """
    held, moved = _share_out(weights, model.ByteSize())
    data = _data_path(output)
    replaced = _has_data_there(output, data)
    if (moved or inner) and data.exists() and not replaced:
        raise HieronnxError(f"'{data}' is there and does not belong to '{output}'; move it, or give another name")
    with staging(output) as staged, writing(output):
        headers = _write_data(_data_path(staged), [*moved, *(weight for _, weight in inner)])
        for (tensor, _), header in zip(inner, headers[len(moved) :], strict=True):
            tensor.CopyFrom(header)
        del headers[len(moved) :]
        with staged.open("wb", buffering=0) as stream:
            _write_model(stream, annotate(model, hierarchy), held, headers)
        headers = [*(weight.header for weight in held), *headers]
        described = replace(hierarchy, model=describe_file(staged, hierarchy.modules[""].class_name, exporter))
        sidecar_path(staged).write_bytes(encode_sidecar(described, _view_of(model, headers)))
        move_into_place(staged, output)
        if replaced and not (moved or inner):
            data.unlink(missing_ok=True)
    return described


def _has_data_there(output: Path, data: Path) -> bool:
    """Say whether an earlier part has its data in a file, so that the file is of no use once the part is replaced."""
    if not output.is_file() or not data.is_file():
        return False
    try:
        return data.name in find_locations(read_skeleton(output))
    except HieronnxError:  # it is no model, so it has no data
        return False


def _share_out(weights: Sequence[Weight], structure: int) -> tuple[list[Weight], list[Weight]]:
    """Say which weights go into the model's file, and which beside it."""
    inside = sum(weight.size for weight in weights if weight.data is None) + structure
    too_large = inside > _LARGEST_MESSAGE - _MARGIN
    outside = [w for w in weights if w.data is not None or (too_large and _can_move(w))]
    names = {weight.name for weight in outside}
    return [weight for weight in weights if weight.name not in names], outside


def _can_move(weight: Weight) -> bool:
    return weight.size > SMALL_TENSOR_BYTES and weight.header.data_type != onnx.TensorProto.STRING


def _write_data(path: Path, weights: Sequence[Weight]) -> list[onnx.TensorProto]:
    """Write the external data; return the tensors that say where in it they are."""
    headers: list[onnx.TensorProto] = []
    if not weights:
        return headers
    with path.open("wb", buffering=0) as stream:
        for weight in weights:
            stream.write(b"\0" * (-stream.tell() % _ALIGNMENT))
            offset = stream.tell()
            _write_elements(stream, weight)
            header = onnx.TensorProto()
            header.CopyFrom(weight.header)
            header.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", path.name), ("offset", offset), ("length", stream.tell() - offset)):
                header.external_data.add(key=key, value=str(value))
            headers.append(header)
    return headers


def _write_elements(stream: BinaryIO, weight: Weight) -> None:
    if weight.data is not None:
        copy_span(weight.data, stream)
        return
    tensor = weight.tensor
    if tensor is None:
        assert weight.message is not None  # there is no fourth place
        tensor = ir.serde.TensorProtoTensor(onnx.TensorProto.FromString(read_span(weight.message)))
    elements = memoryview(tensor.tobytes())
    for start in range(0, len(elements), _CHUNK):  # the system writes no more than 2 GB at once
        stream.write(elements[start : start + _CHUNK])


def _serialize(tensor: ir.TensorProtocol, name: str) -> onnx.TensorProto:
    proto = ir.serde.serialize_tensor(tensor)
    proto.name = name
    return proto


def _write_model(
    stream: BinaryIO, model: bytes, weights: Sequence[Weight], headers: Sequence[onnx.TensorProto]
) -> None:
    """Write a serialized model that has no initializers, and the initializers at the end of its graph."""
    chunks: list[bytes | Span] = []
    for weight in weights:
        content = _message(weight)
        chunks += [frame(_GRAPH_INITIALIZER, sum(map(_length, content))), *content]
    for header in headers:
        written = header.SerializeToString()
        chunks += [frame(_GRAPH_INITIALIZER, len(written)), written]
    shell = onnx.ModelProto.FromString(model)
    graph = shell.graph.SerializeToString()
    shell.ClearField("graph")
    stream.write(shell.SerializeToString() + frame(_MODEL_GRAPH, len(graph) + sum(map(_length, chunks))) + graph)
    for chunk in chunks:
        if isinstance(chunk, Span):
            copy_span(chunk, stream)
        else:
            stream.write(chunk)


def _message(weight: Weight) -> list[bytes | Span]:
    if weight.tensor is not None:
        return [_serialize(weight.tensor, weight.name).SerializeToString()]
    assert weight.message is not None  # what is external goes elsewhere
    name = weight.name.encode()
    # Of a field that is there twice the last one counts.
    return [weight.message, *([frame(_TENSOR_NAME, len(name)) + name] if weight.renamed else [])]


def _length(chunk: bytes | Span) -> int:
    return chunk.length if isinstance(chunk, Span) else len(chunk)


def _view_of(model: onnx.ModelProto, initializers: Sequence[onnx.TensorProto]) -> View:
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    whole.graph.initializer.extend(initializers)
    return view_model(ir.serde.deserialize_model(whole), content=lambda _, name: name)
