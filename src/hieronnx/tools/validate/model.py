"""The checks of any ONNX file: the ONNX checker, and the files that its weights are in. No weight is read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from hieronnx.files.claims import Finding
from hieronnx.files.external import BRING_IN, DataFile, look_up
from hieronnx.graph.soundness import WIDTHS
from hieronnx.graph.walks import walk_attribute_tensors, walk_protos

_REPAIR = "fix the model with what made it: hieronnx never changes a graph"
_WHOLE = "get the file again: what is there is not whole"
# What the checker names on stdout, whoever that belongs to: operators that ONNX had for a while.
_EXPERIMENTAL = {"ATen", "Affine", "ConstantFill", "Crop", "DynamicSlice", "GRUUnit", "GivenTensorFill", "ImageScaler"}
_EXPERIMENTAL |= {"ParametricSoftplus", "Scale", "ScaledTanh"}
_ELSEWHERE = "hieronnx.elsewhere"
_RUNTIME = "com.microsoft"  # ONNX Runtime declares it in each file that it writes
_FOR_RUNTIME = "run the file in ONNX Runtime; for other runtimes, optimize at a lower level"
_STANDARD = ("", "ai.onnx")
# One element for each field that can hold elements, enough for the widest type.
_ONE_ELEMENT: Mapping[str, Any] = {
    "int32_data": [0],
    "int64_data": [0],
    "uint64_data": [0],
    "float_data": [0.0, 0.0],
    "double_data": [0.0, 0.0],
    "string_data": [b""],
    "raw_data": bytes(16),
}
# Numbers of variable length could not be counted without reading them.
_BYTES_PER_ENTRY: Mapping[str, int] = {"float_data": 4, "double_data": 8}


def check_onnx(skeleton: onnx.ModelProto, left_out: Sequence[Mapping[str, int]]) -> list[Finding]:
    """Run the ONNX checker on a model without its large weights.

    Args:
        skeleton: The model; its tensors in other files need not be there.
        left_out: The bytes by kind that each initializer of the main graph would have.
    """
    findings: list[Finding] = []
    model = onnx.ModelProto()
    model.CopyFrom(skeleton)
    for tensor, sizes in zip(model.graph.initializer, left_out, strict=True):
        findings += _check_sizes(tensor, sizes)
        # One element stands for what was left out: the checker looks at each tensor by itself.
        tensor.MergeFrom(onnx.TensorProto(**{kind: _ONE_ELEMENT[kind] for kind in sizes}))
        if sizes and all(size > 0 for size in tensor.dims):
            tensor.dims[:] = [1]
    _empty_external(model)
    findings += _set_apart(model)
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, RuntimeError, ValueError) as error:
        findings.append(Finding("onnx", "error", "graph", " ".join(str(error).split()), _REPAIR))
    return findings


def _check_sizes(tensor: onnx.TensorProto, sizes: Mapping[str, int]) -> Iterator[Finding]:
    """Compare the bytes of an initializer with those that its shape and type need."""
    needed = {"raw_data": _nbytes(tensor)}
    needed |= {kind: math.prod(tensor.dims) * width for kind, width in _BYTES_PER_ENTRY.items()}
    for kind, size in sizes.items():
        if size < (needed.get(kind) or 0):
            message = f"it holds {size:,} bytes in {kind}; its shape and type need {needed[kind]:,}"
            yield Finding("onnx", "error", f"initializer '{tensor.name}'", message, _WHOLE)


def _nbytes(tensor: onnx.TensorProto) -> int | None:
    """Return the bytes that a tensor's shape and type need; None where they are not numbers of bytes."""
    width = WIDTHS.get(tensor.data_type)
    return None if width is None else (math.prod(tensor.dims) * width + 7) // 8


def _empty_external(model: onnx.ModelProto) -> None:
    """Let tensors in other files, if it is said in which, be empty ones: these files are no matter of the graph."""
    for sparse in _walk_sparse(model):
        if _is_elsewhere(sparse.values) or _is_elsewhere(sparse.indices):
            name, kind = sparse.values.name, sparse.values.data_type
            sparse.ClearField("indices")
            sparse.values.CopyFrom(onnx.TensorProto(name=name, data_type=kind, dims=[0]))
    for tensor in _walk_tensors(model):
        if _is_elsewhere(tensor):
            tensor.ClearField("data_location")
            tensor.ClearField("external_data")
            tensor.dims[:] = [0]


def _is_elsewhere(tensor: onnx.TensorProto) -> bool:
    external = tensor.data_location == onnx.TensorProto.EXTERNAL and _entries(tensor).get("location")
    return bool(external) and not any(getattr(tensor, kind) for kind in _ONE_ELEMENT)


def _set_apart(model: onnx.ModelProto) -> list[Finding]:
    """Move operators that are no fault of the graph to a domain that the checker passes without a word.

    They are those that it would name on stdout, and those that ONNX Runtime writes into ONNX's own domain.
    """
    local = {function.name for function in model.functions}
    of_runtime = any(entry.domain == _RUNTIME for entry in model.opset_import)
    findings: dict[str, Finding] = {}
    for node in (node for _, graph in walk_protos(model) for node in graph.node):
        operator, remedy = node.op_type, _REPAIR
        if operator in local or node.domain not in _STANDARD:
            continue
        if operator in _EXPERIMENTAL:
            message = f"{operator} was an experiment that ONNX gave up; the checker passes it as it is"
        elif of_runtime and not onnx.defs.has(operator):
            message = f"ONNX has no operator {operator}; ONNX Runtime may: it writes some of its own so"
            remedy = _FOR_RUNTIME
        else:
            continue
        place = f"node '{node.name or next(iter(node.output), '')}'"
        findings.setdefault(operator, Finding("onnx", "warning", place, message, remedy))
        node.domain = _ELSEWHERE
    if findings:
        for imports in (model.opset_import, *(function.opset_import for function in model.functions)):
            imports.add(domain=_ELSEWHERE, version=1)
    return list(findings.values())


def _walk_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor, the parts of sparse ones too."""
    for _, graph in walk_protos(model):
        if isinstance(graph, onnx.GraphProto):
            yield from graph.initializer
        yield from walk_attribute_tensors(graph)
    for sparse in _walk_sparse(model):
        yield sparse.values
        yield sparse.indices


def _walk_sparse(model: onnx.ModelProto) -> Iterator[onnx.SparseTensorProto]:
    for _, graph in walk_protos(model):
        if isinstance(graph, onnx.GraphProto):
            yield from graph.sparse_initializer
        for attribute in (attribute for node in graph.node for attribute in node.attribute):
            yield from attribute.sparse_tensors
            if attribute.HasField("sparse_tensor"):
                yield attribute.sparse_tensor


def check_external_data(skeleton: onnx.ModelProto, path: Path) -> Iterator[Finding]:
    """Check that the files with the model's weights are there and large enough; they are not opened."""
    files: dict[str, DataFile] = {}
    for tensor in _walk_tensors(skeleton):
        location = _entries(tensor).get("location", "")
        if tensor.data_location != onnx.TensorProto.EXTERNAL or not location:
            continue
        file = files.setdefault(location, look_up(path.parent, location, path))
        if file.problem:
            message = f"its data is in '{location}', which {file.problem}"
            yield Finding("external-data", "error", f"initializer '{tensor.name}'", message, BRING_IN)
        elif not file.missing:
            yield from _check_range(tensor, location, file.size)
    remedy = "put the file beside the model; the hierarchy can be used without it, the model cannot run"
    for location in (location for location, file in files.items() if file.missing):
        yield Finding("external-data", "warning", f"file '{location}'", "there is no such file", remedy)


def _entries(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _check_range(tensor: onnx.TensorProto, location: str, size: int) -> Iterator[Finding]:
    entries = _entries(tensor)
    place, needed = f"initializer '{tensor.name}'", _nbytes(tensor) or 0
    offset, length = entries.get("offset") or "0", entries.get("length") or str(needed)
    if not (offset.isdecimal() and length.isdecimal() and len(offset) < 20 and len(length) < 20):
        message = f"its place in '{location}' is not given in numbers: offset '{offset}', length '{length}'"
        yield Finding("external-data", "error", place, message, _REPAIR)
    elif int(offset) + int(length) > size:
        message = f"its data would end at byte {int(offset) + int(length):,} of '{location}', which has {size:,}"
        yield Finding("external-data", "error", place, message, _WHOLE)
    elif int(length) < needed:
        message = f"it has {int(length):,} bytes in '{location}'; its shape and type need {needed:,}"
        yield Finding("external-data", "error", place, message, _WHOLE)
