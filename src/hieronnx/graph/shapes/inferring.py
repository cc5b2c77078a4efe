"""Inferring types and shapes on a copy of the structure: no weights, and nothing that onnx does not know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError
from hieronnx.graph.shapes.folding import fold_literals
from hieronnx.graph.shapes.stand_ins import replace_node
from hieronnx.graph.view import SMALL_TENSOR_BYTES
from hieronnx.graph.walks import node_bodies, walk_nodes

_LONGEST_SHAPE = 1 << 18
_DEFAULTS_SINCE = 4  # the first IR version in which an initializer need not be an input, and is a default if it is


def infer_types(model: ir.Model, dims: Mapping[str, int]) -> dict[ir.Value, onnx.ValueInfoProto]:
    """Infer the types of a model's tensors, of those in bodies too; what the file says of them is built upon.

    Args:
        model: The model; it is not changed, and none of its weights are read.
        dims: Sizes of dynamic axes, by the axes' names.

    Raises:
        HieronnxError: If it cannot be done, with onnx's reason.
    """
    try:
        found = onnx.shape_inference.infer_shapes(_copy_structure(model, dims), data_prop=True)
    except (ir.serde.SerdeError, onnx.shape_inference.InferenceError, RuntimeError, ValueError, LookupError) as error:
        raise HieronnxError(f"the shapes that the file lacks cannot be inferred: {error}") from error
    return dict(_read_types(model.graph, found.graph))


def _copy_structure(model: ir.Model, dims: Mapping[str, int]) -> onnx.ModelProto:
    """Copy a model: of its initializers the smallest have contents, and the others are inputs, for only types count."""
    copy = onnx.ModelProto(ir_version=model.ir_version)
    # A node of a domain that the file does not name would end the inference.
    domains = dict.fromkeys((node.domain for _, node in walk_nodes(model)), 1)
    for domain, version in {**domains, **model.opset_imports}.items():
        copy.opset_import.add(domain=domain, version=version)
    copy.functions.extend(map(ir.serde.serialize_function, model.functions.values()))
    graph, held = copy.graph, model.graph.initializers.values()
    graph.name = "main"
    graph.input.extend(map(ir.serde.serialize_value, model.graph.inputs))
    graph.output.extend(map(ir.serde.serialize_value, model.graph.outputs))
    graph.input.extend(_as_input(value) for value in held if not value.is_graph_input() and not _is_small(value))
    graph.initializer.extend(_copy_small(value) for value in held if _is_small(value) and _is_fixed(value, model))
    matrices = {value.name for value in held if value.name and len(value.shape or ()) == 2}
    graph.node.extend(made for node in model.graph for made in replace_node(ir.serde.serialize_node(node), matrices))
    typed = (v for node in model.graph for v in node.outputs if v.name and v.type and not v.is_graph_output())
    graph.value_info.extend(map(ir.serde.serialize_value, typed))
    fold_literals(graph, model.opset_imports)
    if dims:
        _fix_dims((*graph.input, *graph.output, *graph.value_info), dims)
    return copy


def _is_small(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None or isinstance(tensor, ir.ExternalTensor):
        return False
    return tensor.dtype not in (ir.DataType.STRING, ir.DataType.UNDEFINED) and tensor.nbytes <= SMALL_TENSOR_BYTES


def _is_fixed(value: ir.Value, model: ir.Model) -> bool:
    """Say whether nobody can feed something else: of what is an input too, in files of old all initializers."""
    return not value.is_graph_input() or model.ir_version < _DEFAULTS_SINCE


def _copy_small(value: ir.Value) -> onnx.TensorProto:
    assert value.const_value is not None  # it is small
    copy = ir.serde.serialize_tensor(value.const_value)
    copy.name = value.name or ""
    return copy


def _as_input(value: ir.Value) -> onnx.ValueInfoProto:
    """Return an initializer as an input; a long list of numbers without its length.

    Inference takes every such list for a shape whose sizes it must follow, at hundreds of bytes each.
    """
    info = ir.serde.serialize_value(value)
    shape = info.type.tensor_type.shape
    if len(shape.dim) == 1 and shape.dim[0].dim_value > _LONGEST_SHAPE:
        shape.dim[0].Clear()
    return info


def _fix_dims(infos: Iterable[onnx.ValueInfoProto], dims: Mapping[str, int]) -> None:
    for info in infos:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param in dims:
                dim.dim_value = dims[dim.dim_param]


def _read_types(graph: ir.Graph, inferred: onnx.GraphProto) -> Iterator[tuple[ir.Value, onnx.ValueInfoProto]]:
    """Yield what was found of a graph's tensors and of those in bodies; both graphs have the same bodies."""
    waiting = [(graph, inferred)]
    while waiting:
        known, found = waiting.pop()
        infos = {info.name: info for info in (*found.input, *found.value_info, *found.output)}
        for value in (*known.inputs, *(value for node in known for value in node.outputs)):
            info = infos.get(value.name or "")
            if info is not None and info.type.WhichOneof("value") is not None:
                yield value, info
        bodies = (body for node in known for _, body in node_bodies(node))
        waiting += zip(bodies, _found_bodies(found), strict=True)


def _found_bodies(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    for node in graph.node:
        for attribute in node.attribute:
            yield from [attribute.g] if attribute.HasField("g") else attribute.graphs
