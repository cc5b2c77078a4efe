"""The weights of a model: where each is, read one at a time or copied as bytes, so that no two are held at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy.typing as npt
import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError
from hieronnx.files.external import look_up, require_sound
from hieronnx.files.wire import TENSOR_NAME, TENSOR_RAW_DATA, frame, locate_initializers, walk_inner_data
from hieronnx.graph.view import View
from hieronnx.graph.walks import body_key, first_output, node_bodies, walk_nodes

if TYPE_CHECKING:
    from hieronnx.files.opening import OpenedModel

_CHUNK = 1 << 20
_LARGE_CHUNK = 1 << 26  # the system writes no more than 2 GB at once


# -- bytes of a file ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a file."""

    path: Path
    offset: int
    length: int

    def __len__(self) -> int:
        return self.length

    def read(self) -> bytes:
        """Read the bytes."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.length)

    def copy_to(self, target: BinaryIO) -> None:
        """Copy the bytes to the end of another file, without their passing through this process where it can be."""
        target.flush()
        with self.path.open("rb", buffering=0) as file:
            offset, left = self.offset, self.length
            while left and (done := _copy_in_kernel(file, target, offset, left)):
                offset, left = offset + done, left - done
            target.seek(0, os.SEEK_END)  # the kernel moved on without the stream
            file.seek(offset)
            while left:
                chunk = file.read(min(left, _CHUNK))
                if not chunk:
                    raise HieronnxError(f"'{self.path}' became shorter while it was read")
                target.write(chunk)
                left -= len(chunk)


def _copy_in_kernel(source: BinaryIO, target: BinaryIO, offset: int, length: int) -> int:
    """Copy where the system can; return how many bytes, 0 where it cannot."""
    if not hasattr(os, "copy_file_range"):
        return 0
    try:
        return os.copy_file_range(source.fileno(), target.fileno(), length, offset)
    except OSError:  # not between these two file systems, or into memory
        return 0


# -- files of weights ---------------------------------------------------------------------------------------


# -- weights to copy ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Weight:
    """An initializer that is to be written: what it is, and where its contents are, in one of three places.

    Attributes:
        header: name, type and shape.
        message: the whole TensorProto, in a model's file.
        data: the elements alone, in a file of external data.
        tensor: in memory.
        renamed: whether the model that it is from has it under another name.
    """

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
        return len(self.message or self.data or ())

    def serialize(self) -> list[bytes | Span]:
        """Return the whole TensorProto, its contents in it."""
        if self.tensor is not None:
            proto = ir.serde.serialize_tensor(self.tensor)
            proto.name = self.header.name
            return [proto.SerializeToString()]
        if self.data is not None:
            return [self.header.SerializeToString() + frame(TENSOR_RAW_DATA, len(self.data)), self.data]
        assert self.message is not None  # there is no fourth place
        name = self.header.name.encode()
        # Of a field that is there twice the last one counts.
        return [self.message, *([frame(TENSOR_NAME, len(name)) + name] if self.renamed else [])]

    def write_elements(self, stream: BinaryIO) -> None:
        """Write the elements alone, as external data has them."""
        if self.data is not None:
            self.data.copy_to(stream)
            return
        elements = memoryview(self.read_elements())
        for start in range(0, len(elements), _LARGE_CHUNK):
            stream.write(elements[start : start + _LARGE_CHUNK])

    def read_elements(self) -> bytes:
        """Read the elements alone, as external data has them; strings as a message has them."""
        if self.data is not None:
            return self.data.read()
        tensor = self.tensor
        if tensor is None:
            assert self.message is not None  # there is no fourth place
            proto = onnx.TensorProto.FromString(self.message.read())
            if proto.data_type == onnx.TensorProto.STRING:
                return b"\0".join(proto.string_data)
            tensor = ir.serde.TensorProtoTensor(proto)
        return tensor.tobytes()


InnerWeight: TypeAlias = tuple[onnx.TensorProto, Weight]
"""A tensor inside a node, and where its external data is."""


def find_weights(
    opened: OpenedModel,
    initializers: Iterable[ir.Value],
    located: Mapping[str, tuple[int, int]],
    names: Mapping[str, str],
) -> list[Weight]:
    """Find where initializers of a model have their contents.

    Args:
        opened: The model.
        initializers: Those of its main graph that are wanted.
        located: Where in the model's file they are; none for a model in memory.
        names: New names for some of them.

    Raises:
        HieronnxError: If one is in a file that is missing or too short.
    """
    weights = []
    for value in initializers:
        tensor, old = value.const_value, value.name or ""
        assert tensor is not None  # it is an initializer
        new = names.get(old, old)
        header = onnx.TensorProto(name=new, data_type=tensor.dtype.value, dims=tensor.shape.numpy())
        if isinstance(tensor, ir.ExternalTensor):
            weights.append(Weight(header, data=_locate_external(opened, tensor, old)))
        elif opened.path is not None and old in located:
            weights.append(Weight(header, message=Span(opened.path, *located[old]), renamed=old != new))
        else:
            weights.append(Weight(header, tensor=tensor))
    return weights


def find_inner_weights(opened: OpenedModel, part: onnx.ModelProto) -> list[InnerWeight]:
    """Find the external data that bodies and attributes of a part have, each with the tensor that it belongs to.

    Raises:
        HieronnxError: If it is in a file that is missing or too short.
    """
    protos = list(walk_inner_data(part))
    tensors = walk_external_tensors(opened.model) if protos else ()
    external = {(os.fspath(tensor.location), tensor.offset, tensor.length): tensor for tensor in tensors}
    inner = []
    for proto in protos:
        info = onnx.external_data_helper.ExternalDataInfo(proto)
        tensor = external[info.location, info.offset, info.length]
        header = onnx.TensorProto(name=proto.name, data_type=proto.data_type, dims=proto.dims)
        inner.append((proto, Weight(header, data=_locate_external(opened, tensor, proto.name))))
    return inner


def walk_external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    """Yield the tensors of a model that have their data in a file: initializers, and those in attributes."""
    graphs = [model.graph]
    for _, node in walk_nodes(model):
        graphs += (body for _, body in node_bodies(node))
        for attribute in node.attributes.values():
            tensors = attribute.value if attribute.type == ir.AttributeType.TENSORS else (attribute.value,)
            yield from (tensor for tensor in tensors or () if isinstance(tensor, ir.ExternalTensor))
    for graph in graphs:
        constants = (value.const_value for value in graph.initializers.values())
        yield from (tensor for tensor in constants if isinstance(tensor, ir.ExternalTensor))


def _locate_external(opened: OpenedModel, tensor: ir.ExternalTensor, name: str) -> Span:
    """Return where the elements of a tensor are in a file of external data."""
    if tensor.length is not None and tensor.length != tensor.nbytes:
        raise HieronnxError(
            f"initializer '{name}' of '{opened.name}' has {tensor.length} bytes of data where its type and "
            f"shape need {tensor.nbytes}; fix the model, or get the whole of it"
        )
    folder = Path(tensor.base_dir) if opened.path is None else opened.path.parent
    file = look_up(folder, os.fspath(tensor.location), opened.path)
    path, size = require_sound(file, f"the data of initializer '{name}' of '{opened.name}'").path, file.size
    offset, end = tensor.offset or 0, (tensor.offset or 0) + tensor.nbytes
    if offset < 0 or end > size:
        raise HieronnxError(
            f"'{path}' is too short: it has {size} bytes, and the data of initializer '{name}' should end at byte "
            f"{end}; get the whole file"
        )
    return Span(path, offset, tensor.nbytes)


def read_external(opened: OpenedModel, tensor: ir.ExternalTensor) -> bytes | None:
    """Read the elements of a tensor in a file of external data; None where they are not there."""
    try:
        return _locate_external(opened, tensor, tensor.name or "").read()
    except (HieronnxError, OSError):
        return None


# -- constants to read --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Contents:
    """The constants of a file, by their numbers in its view: initializers, and what Constant nodes hold."""

    opened: OpenedModel
    tensors: dict[int, ir.TensorProtocol]
    located: dict[int, tuple[int, int]]
    """Where in the file the main graph's initializers are."""

    @classmethod
    def of(cls, opened: OpenedModel, view: View) -> Contents:
        """Find the constants of an opened model."""
        constants = ((view.find_tensor(*key), tensor) for key, tensor in _walk_constants(opened.model))
        spans = {} if opened.path is None else locate_initializers(opened.path)
        located = ((view.find_tensor("", name), span) for name, span in spans.items())
        return cls(opened, {n: t for n, t in constants if n is not None}, {n: s for n, s in located if n is not None})

    def read(self, tensor: int) -> npt.NDArray[Any]:
        """Read one of the constants.

        Raises:
            HieronnxError: If its data cannot be read.
        """
        constant, path = self.tensors[tensor], self.opened.path
        try:
            if isinstance(constant, ir.ExternalTensor):
                name, shape = constant.name or "", constant.shape
                span = _locate_external(self.opened, constant, name)
                where = (span.path.name, span.offset, span.length)
                return ir.ExternalTensor(
                    *where, constant.dtype, shape=shape, name=name, base_dir=span.path.parent
                ).numpy()
            if path is None or tensor not in self.located:
                return constant.numpy()
            message = onnx.TensorProto.FromString(Span(path, *self.located[tensor]).read())
            return ir.serde.TensorProtoTensor(message).numpy()
        except (
            OSError,
            ValueError,
            TypeError,
            AssertionError,
        ) as error:  # onnx-ir only asserts that type and field fit
            what = f"initializer '{constant.name or ''}' of '{self.opened.name}'"
            raise HieronnxError(f"cannot read {what}: {error}") from error


def _walk_constants(model: ir.Model) -> Iterator[tuple[tuple[str, str], ir.TensorProtocol]]:
    """Yield each constant by its graph's key and its name."""
    graphs = [("", model.graph)]
    for key, node in walk_nodes(model):
        output = first_output(node)
        value = node.attributes.get("value") if node.op_type == "Constant" and not node.domain else None
        if value is not None and value.type == ir.AttributeType.TENSOR and not value.is_ref():
            yield (key, output), value.as_tensor()
        graphs += ((body_key(key, output, label), body) for label, body in node_bodies(node))
    for key, graph in graphs:
        for name, initializer in graph.initializers.items():
            if initializer.const_value is not None:
                yield (key, name), initializer.const_value
