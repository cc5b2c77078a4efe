"""The contents of a file's constants, read one at a time: of a model of any size no two are held at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError
from hieronnx.files.opening import OpenedModel
from hieronnx.files.wire import locate_initializers
from hieronnx.graph.view import View
from hieronnx.graph.walks import body_key, first_output, node_bodies, walk_nodes


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
        numbers = {(view.graphs[view.tensor_graphs[t]].key, view.names[t]): t for t in range(len(view.names))}
        found = {numbers[place]: tensor for place, tensor in _walk_constants(opened.model) if place in numbers}
        spans = {} if opened.path is None else locate_initializers(opened.path)
        return cls(opened, found, {numbers["", name]: span for name, span in spans.items() if ("", name) in numbers})

    def read(self, tensor: int) -> npt.NDArray[Any]:
        """Read one of the constants.

        Raises:
            HieronnxError: If its data cannot be read.
        """
        held = self.tensors[tensor]
        path, name = self.opened.path, held.name or ""
        try:
            if isinstance(held, ir.ExternalTensor):
                return _read_external(held, path)
            if path is None or tensor not in self.located:
                return held.numpy()
            return _read_message(path, *self.located[tensor])
        except (OSError, ValueError, TypeError) as error:
            raise HieronnxError(f"cannot read initializer '{name}' of '{self.opened.name}': {error}") from error


def _walk_constants(model: ir.Model) -> Iterator[tuple[tuple[str, str], ir.TensorProtocol]]:
    """Yield each constant by its graph's key and its name."""
    yield from _walk_initializers(model.graph, "")
    for key, node in walk_nodes(model):
        output = first_output(node)
        value = node.attributes.get("value") if node.op_type == "Constant" and not node.domain else None
        if value is not None and value.type == ir.AttributeType.TENSOR and not value.is_ref():
            yield (key, output), value.as_tensor()
        for label, body in node_bodies(node):
            yield from _walk_initializers(body, body_key(key, output, label))


def _walk_initializers(graph: ir.Graph, key: str) -> Iterator[tuple[tuple[str, str], ir.TensorProtocol]]:
    for name, value in graph.initializers.items():
        if value.const_value is not None:
            yield (key, name), value.const_value


def _read_external(tensor: ir.ExternalTensor, model: Path | None) -> npt.NDArray[Any]:
    """Read from the file of data; where the model is a file, that is in its folder."""
    if model is None:
        return tensor.numpy()
    placed = ir.ExternalTensor(
        tensor.location,
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=tensor.shape,
        name=tensor.name or "",
        base_dir=model.parent,
    )
    return placed.numpy()


def _read_message(path: Path, offset: int, length: int) -> npt.NDArray[Any]:
    with path.open("rb") as file:
        file.seek(offset)
        message = onnx.TensorProto.FromString(file.read(length))
    return ir.serde.TensorProtoTensor(message).numpy()
