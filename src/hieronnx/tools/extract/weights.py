"""The weights of a part: where each is, and copying it from there byte for byte, nothing else read."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError
from hieronnx.files.wire import walk_inner_data
from hieronnx.tools.extract.find import Part
from hieronnx.tools.extract.source import Source

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a file."""

    path: Path
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Weight:
    """An initializer of a part: what it is, and where its contents are, in one of three places.

    Attributes:
        name: in the part.
        header: name, type and shape.
        message: the whole TensorProto, in a model's file.
        data: the elements alone, in a file of external data.
        tensor: in memory.
        renamed: whether the whole model has it under another name.
    """

    name: str
    header: onnx.TensorProto
    message: Span | None = None
    data: Span | None = None
    tensor: ir.TensorProtocol | None = None
    renamed: bool = False

    @property
    def size(self) -> int:
        """How many bytes it takes, nearly."""
        if self.tensor is not None:
            return self.tensor.nbytes
        span = self.message or self.data
        return 0 if span is None else span.length


def find_weights(source: Source, part: Part, names: Mapping[str, str]) -> list[Weight]:
    """Find the initializers of a part.

    Args:
        source: The whole model.
        part: The part.
        names: New names for some of them.

    Raises:
        HieronnxError: If one is in a file that is missing or too short.
    """
    found = []
    for tensor in part.initializers:
        held, name = source.values[tensor].const_value, source.view.names[tensor]
        assert held is not None  # it is an initializer
        found.append(_find_weight(source, held, name, names.get(name, name)))
    return found


def _find_weight(source: Source, tensor: ir.TensorProtocol, old: str, new: str) -> Weight:
    header = onnx.TensorProto(name=new, data_type=tensor.dtype.value, dims=tensor.shape.numpy())
    if isinstance(tensor, ir.ExternalTensor):
        return Weight(new, header, data=_external_span(source, tensor, old))
    if source.opened.path is not None and old in source.located:
        return Weight(new, header, message=Span(source.opened.path, *source.located[old]), renamed=old != new)
    return Weight(new, header, tensor=tensor)


def find_inner_weights(source: Source, model: onnx.ModelProto) -> list[tuple[onnx.TensorProto, Weight]]:
    """Find the external data that bodies and attributes of a part have, each with the tensor that it belongs to.

    Raises:
        HieronnxError: If it is in a file that is missing or too short.
    """
    known = {(os.fspath(held.location), held.offset, held.length): held for held in source.inner_data}
    found = []
    for tensor in walk_inner_data(model) if known else ():
        info = onnx.external_data_helper.ExternalDataInfo(tensor)
        held = known[info.location, info.offset, info.length]
        header = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        found.append((tensor, Weight(tensor.name, header, data=_external_span(source, held, tensor.name))))
    return found


def _external_span(source: Source, tensor: ir.ExternalTensor, name: str) -> Span:
    location = Path(os.fspath(tensor.location))
    if location.is_absolute() or ".." in location.parts:
        raise HieronnxError(
            f"initializer '{name}' of '{source.opened.name}' has its data at '{location}', outside the model's folder; "
            "put the file beside the model, and its name alone into the model"
        )
    if tensor.length is not None and tensor.length != tensor.nbytes:
        raise HieronnxError(
            f"initializer '{name}' of '{source.opened.name}' has {tensor.length} bytes of data where its type and "
            f"shape need {tensor.nbytes}; mend the model, or get the whole of it"
        )
    path = _data_path(source, tensor)
    span = Span(path, tensor.offset or 0, tensor.nbytes)
    size = _size_of(path, name)
    if span.offset < 0 or span.offset + span.length > size:
        raise HieronnxError(
            f"'{path}' is too short: it has {size} bytes, and the data of initializer '{name}' should end at byte "
            f"{span.offset + span.length}; get the whole file"
        )
    return span


def _size_of(path: Path, name: str) -> int:
    """Return the size of a file that should have the data of an initializer."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:  # a ValueError for a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise HieronnxError(
            f"the data of initializer '{name}' should be in '{path}': {reason}; put the file there"
        ) from error
    if not stat.S_ISREG(found.st_mode):
        raise HieronnxError(f"the data of initializer '{name}' should be in '{path}', which is no file; mend the model")
    return found.st_size


def _data_path(source: Source, tensor: ir.ExternalTensor) -> Path:
    path = source.opened.path
    return Path(tensor.path) if path is None else path.parent / os.fspath(tensor.location)


def data_files(source: Source) -> set[Path]:
    """Return the files of external data that the whole model has."""
    held = (value.const_value for value in source.opened.model.graph.initializers.values())
    tensors = (tensor for tensor in (*held, *source.inner_data) if isinstance(tensor, ir.ExternalTensor))
    return {_data_path(source, tensor) for tensor in tensors}


def read_span(span: Span) -> bytes:
    """Read bytes of a file."""
    with span.path.open("rb") as file:
        file.seek(span.offset)
        return file.read(span.length)


def copy_span(span: Span, target: BinaryIO) -> None:
    """Copy bytes of a file to the end of another, which must not be buffered."""
    with span.path.open("rb", buffering=0) as file:
        offset, left = span.offset, span.length
        while left and (done := _copy_in_kernel(file, target, offset, left)):
            offset, left = offset + done, left - done
        file.seek(offset)
        while left:
            chunk = file.read(min(left, _CHUNK))
            if not chunk:
                raise HieronnxError(f"'{span.path}' became shorter while it was read")
            target.write(chunk)
            left -= len(chunk)


def _copy_in_kernel(source: BinaryIO, target: BinaryIO, offset: int, length: int) -> int:
    """Copy without the bytes passing through this process, where the system can; 0 where not."""
    if not hasattr(os, "copy_file_range"):
        return 0
    try:
        return os.copy_file_range(source.fileno(), target.fileno(), length, offset)
    except OSError:  # not between these two file systems
        return 0
