"""Sparse initializers, which onnx-ir does not have: they are copied from the file to the new one."""

from __future__ import annotations

import os
from pathlib import Path

import onnx

from hieronnx.errors import HieronnxError
from hieronnx.files.wire import read_skeleton
from hieronnx.graph.view import ModelLike
from hieronnx.graph.walks import walk_protos


def copy_sparse(model: ModelLike, name: str, target: onnx.ModelProto) -> None:
    """Copy the sparse initializers of a model's main graph to another.

    Raises:
        HieronnxError: If there are some in bodies, or their elements are in another file: these cannot be copied.
    """
    proto = read_skeleton(Path(model)) if isinstance(model, str | os.PathLike) else model
    if not isinstance(proto, onnx.ModelProto):
        return
    graphs = (graph for key, graph in walk_protos(proto) if key and isinstance(graph, onnx.GraphProto))
    external = onnx.TensorProto.EXTERNAL
    held = proto.graph.sparse_initializer
    elsewhere = any(external in (item.values.data_location, item.indices.data_location) for item in held)
    if elsewhere or any(graph.sparse_initializer for graph in graphs):
        raise HieronnxError(f"'{name}' has sparse initializers in bodies or in other files; make them dense first")
    target.graph.sparse_initializer.extend(held)
