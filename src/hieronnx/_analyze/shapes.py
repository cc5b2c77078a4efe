"""The shapes of a model's tensors: as the file has them, with axes fixed by name, inferred where they are missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

import onnx
import onnx_ir as ir

from hieronnx._analyze.stand_ins import replace_node
from hieronnx.errors import InputError
from hieronnx.graph import SMALL_TENSOR_BYTES, node_bodies, walk_nodes

__all__ = ["Shapes"]

_Sizes: TypeAlias = tuple[int | None, ...]


class Shapes:
    """The shapes of a model's tensors; inferring those that the file lacks is a step of its own, for it takes time."""

    def __init__(self, model: ir.Model, dims: Mapping[str, int]) -> None:
        """Begin with the shapes that the file has.

        Args:
            model: The model; it is not changed.
            dims: Sizes of dynamic axes, by the axes' names.

        Raises:
            InputError: If the model has no axis of such a name, or a size is not positive.
        """
        self._model = model
        self._dims = dims
        self._inferred: dict[ir.Value, _Sizes] = {}
        if dims:
            _check_dims(model, dims)

    def find(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """Return the shape of a tensor if it is wholly known; that of an absent one is empty."""
        if value is None:
            return ()
        known = self._sizes(value)
        guess = self._inferred.get(value)
        if known is None or None in known:
            known = _merge(known, guess)
        return None if known is None or None in known else known  # type: ignore[return-value]  # None was ruled out

    def could_be_inferred(self, value: ir.Value | None) -> bool:
        """Say whether inference may tell more of a tensor: a named axis stays unknown unless some are fixed."""
        if value is None:
            return False
        if value.shape is None:
            return True
        if self._dims:
            return self.find(value) is None
        return any(not isinstance(dim, int) and dim.value is None for dim in value.shape)

    def infer(self) -> str | None:
        """Infer the shapes that the file lacks, without weights; return what kept that from being done, if anything."""
        try:
            found = onnx.shape_inference.infer_shapes(_copy_structure(self._model, self._dims), data_prop=True)
        except (ir.serde.SerdeError, onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
            return f"the shapes that the file lacks cannot be inferred: {error}"
        self._inferred = dict(_read_shapes(self._model.graph, found.graph))
        return None

    def _sizes(self, value: ir.Value) -> _Sizes | None:
        if value.shape is None:
            return None
        sizes = (d if isinstance(d, int) else self._dims.get(d.value or "") for d in value.shape)
        return tuple(size if size is None or size >= 0 else None for size in sizes)  # some write -1 for unknown


def _merge(known: _Sizes | None, guess: _Sizes | None) -> _Sizes | None:
    if known is None or guess is None or len(known) != len(guess):
        return known if guess is None else guess
    return tuple(b if a is None else a for a, b in zip(known, guess, strict=True))


def _check_dims(model: ir.Model, dims: Mapping[str, int]) -> None:
    for name, size in dims.items():
        if size < 1:
            raise InputError(f"axis '{name}' cannot have size {size}; a size is 1 or more")
    names = {dim.value for value in _values(model) for dim in value.shape or () if isinstance(dim, ir.SymbolicDim)}
    known = sorted(name for name in names if name is not None)
    for name in dims:
        if name not in names:
            listed = f"; its dynamic axes are: {', '.join(known)}" if known else ": it has no dynamic axis with a name"
            raise InputError(f"the model has no dynamic axis '{name}'{listed}")


def _values(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.inputs
    for _, node in walk_nodes(model):
        yield from node.outputs


# -- inference --------------------------------------------------------------------------------------------


def _copy_structure(model: ir.Model, dims: Mapping[str, int]) -> onnx.ModelProto:
    """Copy a model for shape inference: of its initializers only the smallest have contents."""
    copy = onnx.ModelProto(ir_version=model.ir_version)
    # A node of a domain that the file does not name would end the inference.
    domains = dict.fromkeys((node.domain for _, node in walk_nodes(model)), 1)
    for domain, version in {**domains, **model.opset_imports}.items():
        copy.opset_import.add(domain=domain, version=version)
    copy.functions.extend(map(ir.serde.serialize_function, model.functions.values()))
    graph = copy.graph
    graph.name = "main"
    graph.input.extend(map(ir.serde.serialize_value, model.graph.inputs))
    graph.output.extend(map(ir.serde.serialize_value, model.graph.outputs))
    graph.initializer.extend(map(_copy_initializer, model.graph.initializers.values()))
    matrices = {tensor.name for tensor in graph.initializer if len(tensor.dims) == 2}
    graph.node.extend(made for node in model.graph for made in replace_node(ir.serde.serialize_node(node), matrices))
    typed = (v for node in model.graph for v in node.outputs if v.name and v.type and not v.is_graph_output())
    graph.value_info.extend(map(ir.serde.serialize_value, typed))
    if dims:
        _fix_dims((*graph.input, *graph.output, *graph.value_info), dims)
    return copy


def _copy_initializer(value: ir.Value) -> onnx.TensorProto:
    tensor = value.const_value
    if tensor is not None and _is_small(tensor):
        copy = ir.serde.serialize_tensor(tensor)
    else:
        shape, dtype = (value.shape, value.dtype) if tensor is None else (tensor.shape, tensor.dtype)
        copy = onnx.TensorProto(data_type=dtype or 0, dims=[d for d in shape or () if isinstance(d, int)])
    copy.name = value.name or ""
    return copy


def _is_small(tensor: ir.TensorProtocol) -> bool:
    if isinstance(tensor, ir.ExternalTensor) or tensor.dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        return False
    return tensor.nbytes <= SMALL_TENSOR_BYTES


def _fix_dims(infos: Iterable[onnx.ValueInfoProto], dims: Mapping[str, int]) -> None:
    for info in infos:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param in dims:
                dim.dim_value = dims[dim.dim_param]


def _read_shapes(graph: ir.Graph, inferred: onnx.GraphProto) -> Iterator[tuple[ir.Value, _Sizes]]:
    """Yield the inferred shapes of a graph's tensors and of those in bodies; both graphs have the same bodies."""
    waiting = [(graph, inferred)]
    while waiting:
        known, found = waiting.pop()
        infos = {info.name: info for info in (*found.input, *found.value_info, *found.output)}
        values = [*known.inputs, *(value for node in known for value in node.outputs)]
        for value in values:
            info = infos.get(value.name or "")
            if info is not None and info.type.tensor_type.HasField("shape"):
                yield value, tuple(_read_size(dim) for dim in info.type.tensor_type.shape.dim)
        bodies = (body for node in known for _, body in node_bodies(node))
        waiting += zip(bodies, _found_bodies(found), strict=True)


def _found_bodies(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    for node in graph.node:
        for attribute in node.attribute:
            yield from [attribute.g] if attribute.HasField("g") else attribute.graphs


def _read_size(dim: onnx.TensorShapeProto.Dimension) -> int | None:
    return dim.dim_value if dim.HasField("dim_value") else None
