"""Counting the multiply-adds of a model's nodes, by the shapes of its tensors.

These are as the file has them, with axes fixed by name, and inferred where they are missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError, InputError
from hieronnx.graph.shapes import correct_declared, infer_types
from hieronnx.graph.sizes import find_free
from hieronnx.graph.walks import walk_nodes
from hieronnx.tools.analyze.formulas import Size, read_size
from hieronnx.tools.analyze.multiply_adds import Operation, count_multiply_adds, needs_shapes

_Sizes: TypeAlias = tuple[Size | None, ...]


def count_nodes(
    model: ir.Model, nodes: Sequence[ir.Node], dims: Mapping[str, int]
) -> tuple[list[Size | None], list[str]]:
    """Count the multiply-adds of nodes; shapes are inferred only if some are missing that are needed.

    Returns the count of each node, a formula where it depends on dynamic axes and None where it is not known, and what
    kept shapes from being inferred, if anything.

    Raises:
        InputError: If the model has no axis of such a name, or a size is not positive.
    """
    shapes = _Shapes(model, dims)
    kinds = {node.op_identifier() for node in nodes}
    shaped = {kind for kind in kinds if kind not in model.functions and needs_shapes(kind[1], kind[0])}
    # A function's own nodes are counted, not its calls.
    bare = {kind: Operation(kind[1], kind[0], (), (), {}) for kind in kinds - shaped}
    fixed = {kind: 0 if kind in model.functions else count_multiply_adds(bare[kind]) for kind in bare}
    counts = [fixed.get(node.op_identifier()) for node in nodes]
    pending = [position for position, node in enumerate(nodes) if node.op_identifier() in shaped]
    for position in pending:
        counts[position] = _count(nodes[position], shapes)
    unknown = [position for position in pending if counts[position] is None]
    tensors = (value for position in unknown for value in (*nodes[position].inputs, *nodes[position].outputs))
    if not any(map(shapes.could_be_inferred, tensors)):
        return counts, []
    problem = shapes.infer()
    for position in unknown:
        counts[position] = _count(nodes[position], shapes)
    return counts, [] if problem is None else [problem]


def _count(node: ir.Node, shapes: _Shapes) -> Size | None:
    inputs, outputs = ([shapes.find(value) for value in values] for values in (node.inputs, node.outputs))
    attributes = {name: attribute.value for name, attribute in node.attributes.items() if not attribute.is_ref()}
    return count_multiply_adds(Operation(node.op_type, node.domain, inputs, outputs, attributes))


class _Shapes:
    """The shapes of a model's tensors; inferring those that the file lacks is a step of its own, for it takes time.

    The size of a dynamic axis is a formula: of the axes of the model's inputs, but for those whose sizes are given.
    """

    def __init__(self, model: ir.Model, dims: Mapping[str, int]) -> None:
        self._model = model
        self._dims = dims
        self._axes = list_axes(model)
        self._inferred: dict[ir.Value, _Sizes] = {}
        self._declared = correct_declared(model)
        self._corrected = {value: self._list(info) for value, info in self._declared.items()}
        if dims:
            _check_dims(model, dims)

    def find(self, value: ir.Value | None) -> tuple[Size, ...] | None:
        """Return the shape of a tensor if it is wholly known; that of an absent one is empty."""
        if value is None:
            return ()
        sizes, inferred = self._sizes(value), self._inferred.get(value)
        if sizes is None or (inferred is not None and None in sizes and len(sizes) != len(inferred)):
            sizes = inferred
        elif inferred is not None and None in sizes:
            sizes = tuple(b if a is None else a for a, b in zip(sizes, inferred, strict=True))
        return None if sizes is None or None in sizes else sizes  # type: ignore[return-value]  # None was ruled out

    def could_be_inferred(self, value: ir.Value | None) -> bool:
        """Say whether inference may tell more of a tensor."""
        return value is not None and self.find(value) is None

    def infer(self) -> str | None:
        """Infer the shapes that the file lacks, without weights; return what kept that from being done, if anything."""
        try:
            inferred = infer_types(self._model, self._dims, self._is_known, self._declared)
        except HieronnxError as error:
            return str(error)
        for value, info in inferred.items():
            if info.type.tensor_type.HasField("shape"):
                self._inferred[value] = self._list(info)
        return None

    def _list(self, info: onnx.ValueInfoProto) -> _Sizes:
        dims = info.type.tensor_type.shape.dim
        return tuple(d.dim_value if d.HasField("dim_value") else self._read(d.dim_param) for d in dims)

    def _sizes(self, value: ir.Value) -> _Sizes | None:
        if value in self._corrected:
            return self._corrected[value]
        if value.shape is None:
            return None
        sizes = (d if isinstance(d, int) else self._read(d.value or "") for d in value.shape)
        # Some write -1 for unknown.
        return tuple(None if isinstance(size, int) and size < 0 else size for size in sizes)

    def _is_known(self, axis: str) -> bool:
        return self._read(axis) is not None

    def _read(self, axis: str) -> Size | None:
        return read_size(axis, self._axes, self._dims) if axis else None


def _check_dims(model: ir.Model, dims: Mapping[str, int]) -> None:
    for name, size in dims.items():
        if size < 1:
            raise InputError(f"axis '{name}' cannot have size {size}; a size is 1 or more")
    values = (*model.graph.inputs, *(value for _, node in walk_nodes(model) for value in node.outputs))
    names = sorted({name for value in values for name in axis_names(value)})
    for name in dims:
        if name not in names:
            listed = f"; its dynamic axes are: {', '.join(names)}" if names else ": it has no dynamic axis with a name"
            raise InputError(f"the model has no dynamic axis '{name}'{listed}")


def list_axes(model: ir.Model) -> list[str]:
    """Return the names of the dynamic axes of a model's inputs that are no expressions of others."""
    return find_free(name for value in model.graph.inputs for name in axis_names(value))


def axis_names(value: ir.Value) -> Iterator[str]:
    """Yield the names of a tensor's dynamic axes."""
    yield from (dim.value for dim in value.shape or () if isinstance(dim, ir.SymbolicDim) and dim.value is not None)
