"""What must hold of any ONNX model before its graph is read: types known, sizes consistent, names told apart.

Whatever reads a graph may trust that. What onnx-ir, onnx or numpy would raise on a value that they did not expect,
far from the file, is told here with the node or tensor that has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import onnx
import onnx_ir as ir

from hieronnx.graph.walks import first_name, proto_bodies

WIDTHS = {kind.value: kind.bitwidth for kind in ir.DataType if kind not in (ir.DataType.UNDEFINED, ir.DataType.STRING)}
"""The bits of an element, by its data type; none for strings."""
_MOST_ELEMENTS = 2**62
_HIGHEST_OPSET = 2**31 - 1
_MOST_DIGITS = 18
_COMPLEX = frozenset({onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128})
_TYPED_DATA = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
_SINGLE: Mapping[int, str] = {  # the kinds of attributes that are messages, and the fields that these are in
    onnx.AttributeProto.TENSOR: "t",
    onnx.AttributeProto.GRAPH: "g",
    onnx.AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    onnx.AttributeProto.TYPE_PROTO: "tp",
}


class Fault(NamedTuple):
    """Something that makes a model unsound: where, and what."""

    place: str
    message: str


def find_faults(model: onnx.ModelProto) -> Iterator[Fault]:
    """Yield what makes a model unsound; its weights may be left out."""
    for entry in (*model.opset_import, *(entry for function in model.functions for entry in function.opset_import)):
        if not 0 < entry.version <= _HIGHEST_OPSET:
            yield Fault(f"opset '{entry.domain}'", f"{entry.version} is no version of an opset")
    yield from _check_graph(model.graph)
    for function in model.functions:
        yield from _check_nodes(function.node)
    yield from _check_recursion(model)


# -- graphs -------------------------------------------------------------------------------------------------


def _check_graph(graph: onnx.GraphProto) -> Iterator[Fault]:
    for tensor in graph.initializer:
        if reason := _explain_tensor(tensor):
            yield Fault(f"initializer '{tensor.name}'", reason)
    for sparse in graph.sparse_initializer:
        if reason := _explain_sparse(sparse):
            yield Fault(f"initializer '{sparse.values.name}'", reason)
    yield from _check_nodes(graph.node)


def _check_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[Fault]:
    made: set[str] = set()
    for node in nodes:
        place = f"node '{node.name or first_name(node.output) or node.op_type}'"
        if not node.op_type:
            yield Fault(place, "it has no operator")
        for name in node.output:
            if name and name in made:
                yield Fault(place, f"it makes '{name}', which another node makes, too")
            made.add(name)
        for attribute in node.attribute:
            if reason := _explain_attribute(attribute):
                yield Fault(place, f"its attribute '{attribute.name}' {reason}")
    for node in nodes:
        for _, body in proto_bodies(node):
            yield from _check_graph(body)


def _check_recursion(model: onnx.ModelProto) -> Iterator[Fault]:
    """Yield the functions that call themselves, by whatever way."""
    calls = {
        (f.domain, f.name, f.overload): {(n.domain, n.op_type, n.overload) for n in _walk_function(f.node)}
        for f in model.functions
    }
    settled: set[tuple[str, str, str]] = set()
    while ready := [key for key, called in calls.items() if key not in settled and called & calls.keys() <= settled]:
        settled.update(ready)
    for domain, name, _ in calls.keys() - settled:
        yield Fault(f"function '{domain}::{name}'", "it calls itself, or a function that does")


def _walk_function(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for _, body in proto_bodies(node):
            yield from _walk_function(body.node)


# -- attributes and tensors ---------------------------------------------------------------------------------


def _explain_attribute(attribute: onnx.AttributeProto) -> str:
    """Say what is wrong with an attribute; nothing if it is sound."""
    kind = attribute.type
    if attribute.ref_attr_name:
        return ""
    if not kind:
        return "has no type"
    if kind in _SINGLE and not attribute.HasField(_SINGLE[kind]):
        return f"is said to be a {onnx.AttributeProto.AttributeType.Name(kind)}, and is none"
    tensors = (attribute.t,) if kind == onnx.AttributeProto.TENSOR else attribute.tensors
    for tensor in tensors:
        if reason := _explain_tensor(tensor):
            return f"has a tensor that cannot be: {reason}"
    if kind == onnx.AttributeProto.SPARSE_TENSOR:
        return _explain_sparse(attribute.sparse_tensor)
    return ""


def _explain_sparse(sparse: onnx.SparseTensorProto) -> str:
    return _explain_tensor(sparse.values) or _explain_tensor(sparse.indices)


def _explain_tensor(tensor: onnx.TensorProto) -> str:
    """Say what is wrong with a tensor; nothing if it is sound."""
    width = WIDTHS.get(tensor.data_type)
    if width is None and tensor.data_type != onnx.TensorProto.STRING:
        return f"ONNX has no data type {tensor.data_type}"
    elements = math.prod(tensor.dims)
    if any(size < 0 for size in tensor.dims) or elements > _MOST_ELEMENTS:
        return f"no tensor has the shape {list(tensor.dims)}"
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return _explain_place(tensor)
    if tensor.HasField("raw_data"):
        needed = None if width is None else (elements * width + 7) // 8
        if needed != len(tensor.raw_data):
            return f"it has {len(tensor.raw_data):,} bytes where its shape and type need {needed or 0:,}"
        return ""
    if width is None:
        given, needed = len(tensor.string_data), elements
    else:
        given = max(len(getattr(tensor, name)) for name in _TYPED_DATA)
        needed = (
            elements * 2 if tensor.data_type in _COMPLEX else (elements * width + 7) // 8 if width < 8 else elements
        )
    # Without any contents it is a structure: those of weights are left out where nobody reads them.
    if given in (0, needed):
        return ""
    return f"it has {given:,} elements where its shape needs {needed:,}"


def _explain_place(tensor: onnx.TensorProto) -> str:
    """Say what is wrong with where a tensor has its external data."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if not entries.get("location"):
        return "it is said to be in a file, and in none"
    for key in ("offset", "length"):
        if not (value := entries.get(key) or "0").isdecimal() or len(value) > _MOST_DIGITS:
            return f"its {key} in '{entries['location']}' is '{value[:40]}'"
    return ""
