"""Writing a model as it is, with a hierarchy inside it and beside it: no weight is parsed, nothing else changes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError, InputError, writing
from hieronnx.files.encoding import describe_file, encode_sidecar
from hieronnx.files.metadata import embed_in_nodes, embedded_model_metadata
from hieronnx.files.opening import read_structure, sidecar_path
from hieronnx.files.staging import check_place, move_into_place, staging
from hieronnx.files.wire import find_locations, map_file, read_locations, write_annotated
from hieronnx.graph.building import view_model
from hieronnx.graph.view import ModelLike, View
from hieronnx.hierarchy.hierarchy import Hierarchy

_LARGEST_MESSAGE = 2**31 - 1


def write_with_hierarchy(
    source: ModelLike,
    hierarchy: Hierarchy,
    output: str | os.PathLike[str],
    *,
    exporter: str | None = None,
    embed: bool = True,
    sidecar: bool = True,
    temporary: bool = False,
    view: View | None = None,
) -> Hierarchy:
    """Write a model as it is, with a hierarchy in place of the one that it may have; return it as it was written.

    Metadata of others stays. External data is copied beside the output, under the output's name. The output may be the
    model's own file; its data stays where it is then.

    Args:
        source: The model.
        hierarchy: Of this very model: it has a node for each of the file's.
        output: Where to write.
        exporter: What made the model, for the sidecar; None: as the hierarchy tells.
        embed: Whether to write the hierarchy into the file.
        sidecar: Whether to write it beside the file.
        temporary: Whether the model's own files are about to go, so that their data is moved rather than copied.
        view: Of the model, if it is at hand.

    Raises:
        HieronnxError: If it cannot be written, or would destroy what it is made of. Nothing is left behind.
    """
    target = Path(output)
    in_place = _is_file(source, target)
    if in_place:
        target = target.resolve()  # a link stays one
    moved = {} if in_place else _name_data(source, target)
    check_output(target, () if in_place else list_own_files(source), moved.values())
    unused = set() if in_place else _find_unused(source, target, moved.values())
    with staging(target) as staged, writing(target):
        for old, new in moved.items():
            # Not as a link, which would be quick, too: onnx refuses data that has two names.
            (shutil.move if temporary else shutil.copyfile)(_folder(source) / old, staged.with_name(new))
        _write_model(source, staged, hierarchy if embed else None, moved)
        if in_place:
            shutil.copymode(target, staged)
        described = _describe(hierarchy, staged, exporter)
        if sidecar:
            seen = view or view_model(read_structure(staged), content=lambda _, name: name)
            sidecar_path(staged).write_bytes(encode_sidecar(described, seen))
        move_into_place(staged, target)
        for path in unused:
            path.unlink(missing_ok=True)
    return described


def _describe(hierarchy: Hierarchy, path: Path, exporter: str | None) -> Hierarchy:
    told = hierarchy.model
    class_name = str(told.get("class", hierarchy.modules[""].class_name))
    return replace(hierarchy, model=describe_file(path, class_name, exporter or str(told.get("exporter", "unknown"))))


def _write_model(source: ModelLike, path: Path, hierarchy: Hierarchy | None, moved: Mapping[str, str]) -> None:
    """Write the model with the hierarchy inside, or without any.

    Raises:
        HieronnxError: If it becomes too large.
    """
    nodes = {} if hierarchy is None else embed_in_nodes(hierarchy)
    about = {} if hierarchy is None else embedded_model_metadata(hierarchy)
    with path.open("wb") as stream:
        if isinstance(source, str | os.PathLike):
            with open(source, "rb") as file, map_file(file) as view:
                write_annotated(stream, view, nodes, about, moved)
        else:
            write_annotated(stream, _serialize(source), nodes, about)
    if path.stat().st_size > _LARGEST_MESSAGE:
        raise HieronnxError(
            f"with its hierarchy inside, '{path.name}' would be over 2 GB, more than an ONNX file can have; "
            "leave it out (embed=False, --no-embed), or keep the weights in a file of their own"
        )


def _serialize(model: onnx.ModelProto | ir.Model) -> bytes:
    """Serialize a model in memory.

    Raises:
        InputError: If that is not possible: it is too large, or its weights are elsewhere.
    """
    proto = ir.serde.serialize_model(model) if isinstance(model, ir.Model) else model
    if locations := find_locations(proto):
        raise InputError(
            f"the model in memory has weights in a file, '{min(locations)}'; save it, and give the path instead"
        )
    try:
        return bytes(proto.SerializeToString())
    except ValueError as error:  # protobuf's word for over 2 GB
        raise InputError(
            "the model in memory is over 2 GB; save it with external data, and give the path instead"
        ) from error


# -- its files --------------------------------------------------------------------------------------------


def list_own_files(model: ModelLike) -> set[Path]:
    """Return the files that a model is made of: its own, those of its data, and its sidecar."""
    if not isinstance(model, str | os.PathLike):
        return set()
    path = Path(model)
    return {path, sidecar_path(path), *(path.parent / location for location in read_locations(path))}


def check_output(output: Path, kept: Collection[Path], data: Iterable[str] = ()) -> None:
    """Make sure that a model can be written.

    Args:
        output: Where it is to go.
        kept: Files that must not be overwritten.
        data: The names of the files for its external data.

    Raises:
        HieronnxError: If it cannot be written there, or would overwrite something.
    """
    with writing(output):
        if output.is_dir():
            raise HieronnxError(
                f"'{output}' is a folder; give the name of a file in it, such as {output / 'model.onnx'}"
            )
        if not output.parent.is_dir():
            raise HieronnxError(f"no folder '{output.parent}' to write '{output.name}' into; make it first")
    beside = [output.with_name(name) for name in data]
    for target in (output, sidecar_path(output), *beside):
        check_place(target)
        for path in kept:
            if target.exists() and path.exists() and target.samefile(path):
                raise HieronnxError(
                    f"writing '{output}' would overwrite '{path}', which it is made of; give another name"
                )
    earlier = _data_of(output) if beside else set()
    for target in beside:
        if target.exists() and target not in earlier:
            raise HieronnxError(f"'{target}' is there and does not belong to '{output}'; move it, or give another name")


def _is_file(source: ModelLike, path: Path) -> bool:
    return isinstance(source, str | os.PathLike) and path.exists() and path.samefile(source)


def _folder(source: ModelLike) -> Path:
    assert isinstance(source, str | os.PathLike)  # what is in memory brings no files
    return Path(source).parent


def _name_data(source: ModelLike, output: Path) -> dict[str, str]:
    """Name the files of external data after the output; by the locations that the model gives.

    Raises:
        HieronnxError: If one is not there.
    """
    if not isinstance(source, str | os.PathLike):
        return {}
    moved: dict[str, str] = {}
    for number, location in enumerate(sorted(read_locations(source))):
        path = Path(source).parent / location
        if not path.is_file():
            raise HieronnxError(f"the weights of '{source}' should be in '{path}'; put the file there")
        moved[location] = f"{output.name}.data" + (f".{number}" if number else "")
    return moved


def _data_of(output: Path) -> set[Path]:
    """Return the files with the data of the model that is there before, if one is."""
    if not output.is_file():
        return set()
    try:
        return {output.parent / location for location in read_locations(output)}
    except HieronnxError:  # it is no model, so it has no data
        return set()


def _find_unused(source: ModelLike, output: Path, data: Collection[str]) -> set[Path]:
    """Find the data of an earlier model at the output that is of no use once the model is replaced."""
    named = {path for path in _data_of(output) if path.name.startswith(f"{output.name}.data")}
    kept = {*list_own_files(source), *(output.with_name(name) for name in data)}
    return {path for path in named if path.exists() and not any(k.exists() and k.samefile(path) for k in kept)}
