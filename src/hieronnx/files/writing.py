"""The one writer of models: a model as it is, with a hierarchy inside it and beside it.

No weight is parsed, nothing else changes, and the files appear whole or not at all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError, InputError, check_folder, writing
from hieronnx.files import wire
from hieronnx.files.document import describe_file, encode_sidecar
from hieronnx.files.external import find_data_file
from hieronnx.files.metadata import embed_in_nodes, embedded_model_metadata
from hieronnx.files.opening import reading_graph, sidecar_path
from hieronnx.files.splice import Chunk, framed, write_annotated
from hieronnx.files.staging import check_place, check_sidecar, data_name, is_sidecar, move_into_place, staging
from hieronnx.files.weights import InnerWeight, Weight, walk_external_tensors
from hieronnx.graph.building import view_model
from hieronnx.graph.view import SMALL_TENSOR_BYTES, ModelLike, View
from hieronnx.hierarchy.hierarchy import Hierarchy

_ALIGNMENT = 64
_MARGIN = 1 << 24  # for metadata and framing


@dataclass(frozen=True, slots=True)
class ModelPieces:
    """A model that is put together as it is written: its weights are copied as bytes from where they are.

    Attributes:
        structure: the model without its initializers.
        weights: these.
        inner: the external data inside its nodes.
        files: those that it is taken from.
    """

    structure: onnx.ModelProto
    weights: Sequence[Weight]
    inner: Sequence[InnerWeight]
    files: frozenset[Path]


def write(
    source: ModelLike | ModelPieces,
    hierarchy: Hierarchy,
    output: str | os.PathLike[str],
    *,
    exporter: str | None = None,
    embed: bool | None = True,
    sidecar: bool | None = True,
    temporary: bool = False,
    view: View | None = None,
    shown_as: Path | None = None,
    annotations: tuple[str, Mapping[tuple[str, str], str]] | None = None,
) -> Hierarchy:
    """Write a model as it is, with a hierarchy in place of the one that it may have; return it as it was written.

    Metadata of others stays. External data is copied beside the output, under the output's name. The output may be the
    model's own file; its data stays where it is then.

    Args:
        source: The model.
        hierarchy: Of this very model: it has a node for each of the file's.
        output: Where to write.
        exporter: What made the model, for the sidecar; None: as the hierarchy says.
        embed: Whether to write the hierarchy into the file. None, of the model's own file: it stays as it is.
        sidecar: Whether to write it beside the file. None, of the model's own file: what is beside it stays.
        temporary: Whether the model's own files are about to go, so that their data is moved rather than copied.
        view: Of the model, if it is at hand.
        shown_as: The file to name in errors, where the output is only on its way there.
        annotations: A key of others, and what nodes get under it, by their graphs' keys and their first outputs; others
            lose it.

    Raises:
        HieronnxError: If it cannot be written, or would destroy what it is made of. Nothing is left behind.
    """
    target = Path(output)
    in_place = is_same_file(source, target)
    if in_place and embed is not None:
        target = target.resolve()  # a link stays one
    kept = set() if in_place else list_own_files(source)
    check_output(target, kept)
    with staging(target) as staged, writing(shown_as or target):
        moved = {} if in_place else _bring_data(source, staged, temporary=temporary)
        if embed is not None:
            _write_model(source, staged, hierarchy if embed else None, moved, annotations or ("", {}))
        written = target if embed is None else staged
        skeleton = wire.read_skeleton(written)
        class_name = str(hierarchy.model.get("class", hierarchy.modules[""].class_name))
        made_by = str(hierarchy.model.get("exporter", "unknown")) if exporter is None else exporter
        about = describe_file(written, class_name, made_by, skeleton)
        described = replace(hierarchy, model={**about, "file": (shown_as or target).name})
        if sidecar:
            with reading_graph(f"'{written}'"):
                seen = view or view_model(ir.serde.deserialize_model(skeleton), content=lambda _, name: name)
            sidecar_path(staged).write_bytes(encode_sidecar(described, seen))
        move_into_place(staged, target, kept=kept, keep_sidecar=sidecar is None)
    if target != Path(output) and sidecar is not None and is_sidecar(stale := sidecar_path(Path(output))):
        stale.unlink()  # beside a link; the new one is beside the file, or there is to be none
    return described


def is_same_file(model: ModelLike | ModelPieces, path: Path) -> bool:
    """Say whether a model is the file that is at this path."""
    return isinstance(model, str | os.PathLike) and path.exists() and path.samefile(model)


def assemble(pieces: ModelPieces, hierarchy: Hierarchy) -> onnx.ModelProto:
    """Return a model in memory, with its weights and its hierarchy inside.

    Raises:
        HieronnxError: If it is too large for that.
    """
    weights = (*pieces.weights, *(weight for _, weight in pieces.inner))
    if sum(weight.size for weight in weights) + pieces.structure.ByteSize() > wire.LARGEST_MESSAGE:
        raise HieronnxError("the part is over 2 GB, more than an ONNX model in memory can have; give an output file")
    for tensor, weight in pieces.inner:
        assert weight.data is not None  # it is external
        tensor.CopyFrom(weight.header)
        tensor.raw_data = weight.data.read()
    stream = BytesIO()
    initializers = [chunk for weight in pieces.weights for chunk in framed(wire.GRAPH_INITIALIZER, weight.serialize())]
    nodes, about = embed_in_nodes(hierarchy), embedded_model_metadata(hierarchy)
    write_annotated(stream, pieces.structure.SerializeToString(), nodes, about, initializers=initializers)
    return onnx.ModelProto.FromString(stream.getvalue())


def _write_model(
    source: ModelLike | ModelPieces,
    path: Path,
    hierarchy: Hierarchy | None,
    moved: Mapping[str, str],
    annotations: tuple[str, Mapping[tuple[str, str], str]],
) -> None:
    """Write the model with the hierarchy inside, or without any."""
    nodes = {} if hierarchy is None else embed_in_nodes(hierarchy)
    key, values = annotations
    nodes = {**nodes, **{node: {**nodes.get(node, {}), key: value} for node, value in values.items()}}
    replaced = [key] if key else []
    about = {} if hierarchy is None else embedded_model_metadata(hierarchy)
    with path.open("wb") as stream:
        if isinstance(source, ModelPieces):
            initializers = _place_weights(source, _choose_external(source), path.with_name(data_name(path)))
            write_annotated(stream, source.structure.SerializeToString(), nodes, about, initializers=initializers)
        elif isinstance(source, str | os.PathLike):
            with open(source, "rb") as file, wire.map_file(file) as view:
                write_annotated(stream, view, nodes, about, moved, replaced=replaced)
        else:
            write_annotated(stream, serialize(source), nodes, about, replaced=replaced)
    if path.stat().st_size > wire.LARGEST_MESSAGE:
        raise HieronnxError(
            f"with its hierarchy inside, '{path.name}' would be over 2 GB, more than an ONNX file can have; "
            "leave it out (embed=False, --no-embed), or keep the weights in a file of their own"
        )


def serialize(model: onnx.ModelProto | ir.Model) -> bytes:
    """Serialize a model in memory.

    Raises:
        InputError: If it has weights in a file, or is too large.
    """
    proto = ir.serde.serialize_model(model) if isinstance(model, ir.Model) else model
    if locations := wire.find_locations(proto):
        raise InputError(
            f"the model in memory has weights in a file, '{min(locations)}'; save it, and give the path instead"
        )
    try:
        return bytes(proto.SerializeToString())
    except ValueError as error:  # protobuf's word for over 2 GB
        raise InputError(
            "the model in memory is over 2 GB; save it with external data, and give the path instead"
        ) from error


# -- the weights of pieces --------------------------------------------------------------------------------


def _choose_external(pieces: ModelPieces) -> list[Weight]:
    """Choose the weights that go into a file of their own: those that have been in one, or all where they must."""
    inside = sum(weight.size for weight in pieces.weights if weight.data is None) + pieces.structure.ByteSize()
    movable = pieces.weights if inside > wire.LARGEST_MESSAGE - _MARGIN else ()
    large = {id(w) for w in movable if w.size > SMALL_TENSOR_BYTES and w.header.data_type != onnx.TensorProto.STRING}
    chosen = (weight for weight in pieces.weights if weight.data is not None or id(weight) in large)
    return [*chosen, *(weight for _, weight in pieces.inner)]


def _place_weights(pieces: ModelPieces, outside: Sequence[Weight], data: Path) -> list[Chunk]:
    """Write the external data; return the initializers as fields of the graph, those with external data last."""
    headers = _write_data(data, outside)
    for tensor, weight in pieces.inner:
        tensor.CopyFrom(headers.pop(id(weight)))
    external = {id(weight) for weight in outside}
    contents = [weight.serialize() for weight in pieces.weights if id(weight) not in external]
    contents += ([header.SerializeToString()] for header in headers.values())
    return [chunk for content in contents for chunk in framed(wire.GRAPH_INITIALIZER, content)]


def _write_data(path: Path, weights: Sequence[Weight]) -> dict[int, onnx.TensorProto]:
    """Write the external data; return for each weight a tensor that says where in it its elements are."""
    headers: dict[int, onnx.TensorProto] = {}
    if not weights:
        return headers
    with path.open("wb", buffering=0) as stream:
        for weight in weights:
            stream.write(b"\0" * (-stream.tell() % _ALIGNMENT))
            offset = stream.tell()
            weight.write_elements(stream)
            header = headers[id(weight)] = onnx.TensorProto()
            header.CopyFrom(weight.header)
            header.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", path.name), ("offset", offset), ("length", stream.tell() - offset)):
                header.external_data.add(key=key, value=str(value))
    return headers


# -- files ------------------------------------------------------------------------------------------------


def list_own_files(model: ModelLike | ModelPieces) -> set[Path]:
    """Return the files that a model is made of: its own, those of its data, and its sidecar."""
    if isinstance(model, ModelPieces):
        return set(model.files)
    if isinstance(model, ir.Model):
        return {Path(tensor.path) for tensor in walk_external_tensors(model)}
    if not isinstance(model, str | os.PathLike):
        return set()
    path = Path(model)
    return {path, sidecar_path(path), *(path.parent / location for location in wire.read_locations(path))}


def check_output(output: Path, kept: Collection[Path]) -> None:
    """Make sure that a model can be written, and overwrites nothing that is not its own.

    Args:
        output: Where it is to go.
        kept: Files that must not be overwritten.

    Raises:
        HieronnxError: If it cannot be written there, or would overwrite something.
    """
    check_folder(output)
    check_kept(output, (output, sidecar_path(output)), kept, "which belongs to the model itself")
    check_place(output)
    check_sidecar(sidecar_path(output))


def check_kept(output: Path, targets: Iterable[Path], kept: Collection[Path], why: str) -> None:
    """Make sure that what is written overwrites nothing that is to be kept.

    Args:
        output: What was asked for, for the message.
        targets: The files that are written then.
        kept: Files that must not be overwritten.
        why: The reason, for the message.

    Raises:
        HieronnxError: If one would be.
    """
    for target in targets:
        for path in kept:
            if target.exists() and path.exists() and target.samefile(path):
                raise HieronnxError(f"writing '{output}' would overwrite '{path}', {why}; give another name")


def _bring_data(source: ModelLike | ModelPieces, staged: Path, *, temporary: bool) -> dict[str, str]:
    """Copy the files of external data under the output's name; return their names by the locations in the model."""
    if not isinstance(source, str | os.PathLike):
        return {}
    names: dict[str, str] = {}
    for number, location in enumerate(sorted(wire.read_locations(source))):
        names[location] = data_name(staged) + (f".{number}" if number else "")
        path = find_data_file(Path(source), location).path
        # Not as a link, which would be quick, too: onnx refuses data that has two names.
        (shutil.move if temporary else shutil.copyfile)(path, staged.with_name(names[location]))
    return names
