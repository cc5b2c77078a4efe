"""Opening the two models that a hierarchy is carried between, and viewing their graphs."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx_ir as ir

from hieronnx.errors import require
from hieronnx.files.opening import OpenedModel, open_model, require_hierarchy
from hieronnx.graph.building import view_model
from hieronnx.graph.view import SMALL_TENSOR_BYTES, ModelLike, View
from hieronnx.hierarchy.hierarchy import Hierarchy


@dataclass(frozen=True, slots=True)
class Pair:
    """The graph before, with its hierarchy, and the graph after."""

    before: OpenedModel
    after: OpenedModel
    hierarchy: Hierarchy
    a: View
    b: View
    known: Mapping[int, int] | None = None
    """Tensors of the graph after that hold the values of one before, where both were run to find out."""


def open_pair(original: ModelLike, transformed: ModelLike) -> Pair:
    """Open a model and what was made of it; of the weights only the smallest are read.

    Raises:
        HieronnxError: If one cannot be read, or the original has no hierarchy.
    """
    before, after = open_model(original), open_model(transformed)
    hierarchy = require_hierarchy(before.hierarchy, before.path, before.model)
    return Pair(before, after, hierarchy, _view(before), _view(after))


def run_pair(original: ModelLike, transformed: ModelLike, inputs: Mapping[str, Any] | None) -> Pair:
    """Open both, and run both on the same inputs to see which tensors hold the same.

    Raises:
        HieronnxError: If one cannot be read or run, or the original has no hierarchy.
    """
    require("onnxruntime", "runtime")
    from hieronnx.tools.carry.running import match_tensors_by_value

    pair = open_pair(original, transformed)
    return replace(pair, known=match_tensors_by_value(pair.before, pair.after, pair.a, pair.b, inputs))


def _view(opened: OpenedModel) -> View:
    """View a model so that small initializers are known by their contents, wherever these are."""
    return view_model(opened.model, content=partial(_content_key, opened))


def _content_key(opened: OpenedModel, tensor: ir.TensorProtocol | None, name: str | None) -> Hashable:
    if tensor is None or tensor.nbytes > SMALL_TENSOR_BYTES or tensor.dtype == ir.DataType.STRING:
        return "named", name
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes()
    path = Path(tensor.path) if opened.path is None else opened.path.parent / os.fspath(tensor.location)
    content = _read(path, tensor.offset or 0, tensor.nbytes)
    return ("named", name) if content is None else (tensor.dtype, tuple(tensor.shape.numpy()), content)


def _read(path: Path, offset: int, length: int) -> bytes | None:
    """Read a few bytes; None where they are not there: a hierarchy can be carried without the weights."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            content = file.read(length)
    except (OSError, ValueError):
        return None
    return content if len(content) == length else None
