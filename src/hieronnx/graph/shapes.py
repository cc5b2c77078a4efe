"""Inferring the types and shapes of a model's tensors, by onnx, on a copy without weights.

The copy has nothing that onnx does not know: operators of ONNX Runtime, which writes what it optimized without shapes
of inner tensors, are replaced by standard ones that give the same shapes, and what is computed of literals alone is
computed, for onnx's inference follows only some of such numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from hieronnx.errors import HieronnxError
from hieronnx.graph.operators import SIZE_JOINING_OPS, SIZE_PICKING_OPS
from hieronnx.graph.view import SMALL_TENSOR_BYTES
from hieronnx.graph.walks import node_bodies, proto_bodies, walk_nodes

_LONGEST_SHAPE = 1 << 18
# What exporters compute with sizes and axes, which are short lists of whole numbers.
_FOLDED_OPS = (SIZE_PICKING_OPS | SIZE_JOINING_OPS | {"Abs", "Range"}) - {"Div", "Floor"}
_MOST_NUMBERS = 16
_DEFAULTS_SINCE = 4  # the first IR version in which an initializer need not be an input, and is a default if it is


def infer_types(
    model: ir.Model, dims: Mapping[str, int], keep: Callable[[str], bool] = lambda _: True
) -> dict[ir.Value, onnx.ValueInfoProto]:
    """Infer the types of a model's tensors, of those in bodies too; what the file says of them is built upon.

    Args:
        model: The model; it is not changed, and none of its weights are read.
        dims: Sizes of dynamic axes, by the axes' names.
        keep: Says of the name of an axis whether it means something; another is inferred anew.

    Raises:
        HieronnxError: If it cannot be done, with onnx's reason.
    """
    try:
        copy = _copy_structure(model, dims)
        for info in (*copy.graph.value_info, *copy.graph.output):
            for dim in info.type.tensor_type.shape.dim:
                if dim.dim_param and not keep(dim.dim_param):
                    dim.Clear()
        inferred = onnx.shape_inference.infer_shapes(copy, data_prop=True)
    except (ir.serde.SerdeError, onnx.shape_inference.InferenceError, RuntimeError, ValueError, LookupError) as error:
        raise HieronnxError(f"the shapes that the file lacks cannot be inferred: {error}") from error
    return dict(_read_types(model.graph, inferred.graph))


def _copy_structure(model: ir.Model, dims: Mapping[str, int]) -> onnx.ModelProto:
    """Copy a model: of its initializers the smallest have contents, and the others are inputs, for only types count."""
    copy = onnx.ModelProto(ir_version=model.ir_version)
    # A node of a domain that the file does not name would end the inference.
    domains = dict.fromkeys((node.domain for _, node in walk_nodes(model)), 1)
    for domain, version in {**domains, **model.opset_imports}.items():
        copy.opset_import.add(domain=domain, version=version)
    copy.functions.extend(map(ir.serde.serialize_function, model.functions.values()))
    graph, initializers = copy.graph, model.graph.initializers.values()
    graph.name = "main"
    graph.input.extend(map(ir.serde.serialize_value, model.graph.inputs))
    graph.output.extend(map(ir.serde.serialize_value, model.graph.outputs))
    graph.input.extend(_as_input(v) for v in initializers if not v.is_graph_input() and not _is_small(v))
    # What is an input too is a default, which others may be fed for; in old files all initializers are inputs.
    fixed = (v for v in initializers if not v.is_graph_input() or model.ir_version < _DEFAULTS_SINCE)
    for value in filter(_is_small, fixed):
        assert value.const_value is not None
        graph.initializer.append(ir.serde.serialize_tensor(value.const_value))
        graph.initializer[-1].name = value.name or ""
    matrices = {value.name for value in initializers if value.name and len(value.shape or ()) == 2}
    graph.node.extend(made for node in model.graph for made in _replace_node(ir.serde.serialize_node(node), matrices))
    typed = (v for node in model.graph for v in node.outputs if v.name and v.type and not v.is_graph_output())
    graph.value_info.extend(map(ir.serde.serialize_value, typed))
    _fold_literals(graph, model.opset_imports)
    for info in (*graph.input, *graph.output, *graph.value_info) if dims else ():
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param in dims:
                dim.dim_value = dims[dim.dim_param]
    return copy


def _is_small(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None or isinstance(tensor, ir.ExternalTensor):
        return False
    return tensor.dtype not in (ir.DataType.STRING, ir.DataType.UNDEFINED) and tensor.nbytes <= SMALL_TENSOR_BYTES


def _as_input(value: ir.Value) -> onnx.ValueInfoProto:
    """Return an initializer as an input; a long list of numbers without its length.

    Inference takes every such list for a shape whose sizes it must follow, at hundreds of bytes each.
    """
    info = ir.serde.serialize_value(value)
    shape = info.type.tensor_type.shape
    if len(shape.dim) == 1 and shape.dim[0].dim_value > _LONGEST_SHAPE:
        shape.dim[0].Clear()
    return info


def _read_types(graph: ir.Graph, inferred: onnx.GraphProto) -> Iterator[tuple[ir.Value, onnx.ValueInfoProto]]:
    """Yield what was inferred of a graph's tensors and of those in bodies; both graphs have the same bodies."""
    infos = {info.name: info for info in (*inferred.input, *inferred.value_info, *inferred.output)}
    for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
        info = infos.get(value.name or "")
        if info is not None and info.type.WhichOneof("value") is not None:
            yield value, info
    bodies = (body for node in graph for _, body in node_bodies(node))
    inferred_bodies = (body for node in inferred.node for _, body in proto_bodies(node))
    for body, inferred_body in zip(bodies, inferred_bodies, strict=True):
        yield from _read_types(body, inferred_body)


# -- computing with literals ------------------------------------------------------------------------------


def _fold_literals(graph: onnx.GraphProto, opsets: Mapping[str, int]) -> None:
    """Replace the nodes of a graph that compute a few whole numbers of others, all of them known, by their results."""
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer if _is_short(tensor)}
    for node in graph.node:
        if node.op_type == "Constant" and not node.domain:
            tensors = (attribute.t for attribute in node.attribute if attribute.name == "value")
            arrays.update((node.output[0], numpy_helper.to_array(t)) for t in tensors if _is_short(t))
        elif node.op_type in _FOLDED_OPS and not node.domain and all(name in arrays for name in node.input if name):
            from onnx.reference import ReferenceEvaluator

            evaluator = ReferenceEvaluator(node, opsets=dict(opsets))
            with np.errstate(all="ignore"):
                (computed,) = evaluator.run(None, {name: arrays[name] for name in node.input if name})
            result = np.asarray(computed)
            if result.size <= _MOST_NUMBERS and result.dtype.kind in "ib":
                arrays[node.output[0]] = result
                node.CopyFrom(helper.make_node("Constant", [], node.output, value=numpy_helper.from_array(result)))


def _is_short(tensor: onnx.TensorProto) -> bool:
    is_whole = tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
    return is_whole and bool(np.prod(tensor.dims) <= _MOST_NUMBERS)


# -- standard operators in place of ONNX Runtime's own ----------------------------------------------------

_RUNTIME = "com.microsoft"
_BLOCKED = "com.microsoft.nchwc"

_ALSO_LIKE_INPUT = {"SkipGroupNorm": 1, "SkipLayerNormalization": 3, "SkipSimplifiedLayerNormalization": 3}
# Their first output has the shape of their first input, and the one above too, where it is there.
_LIKE_INPUT = """
    BiasAdd BiasGelu BiasSoftmax FastGelu Gelu GroupNorm QLinearLeakyRelu QLinearSigmoid QLinearSoftmax QuickGelu
    RotaryEmbedding SimplifiedLayerNormalization SkipGroupNorm SkipLayerNormalization SkipSimplifiedLayerNormalization
"""
_SAME_SHAPE: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {name: (0, _ALSO_LIKE_INPUT.get(name, 0)) for name in _LIKE_INPUT.split()}
)

# The standard operator, and the inputs that it takes.
_LIKE: Mapping[str, tuple[str, tuple[int, ...]]] = MappingProxyType(
    {
        "FusedConv": ("Conv", (0, 1, 2)),
        "FusedGemm": ("Gemm", (0, 1, 2)),
        **dict.fromkeys(("DynamicQuantizeMatMul", "GemmFastGelu"), ("MatMul", (0, 1))),
        "QLinearAdd": ("Add", (0, 3)),
        "QLinearMul": ("Mul", (0, 3)),
    }
)
_LIKE_BLOCKED = frozenset({"AveragePool", "Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"})


def _replace_node(node: onnx.NodeProto, matrices: Collection[str]) -> Iterator[onnx.NodeProto]:
    """Yield what stands in for a node: one or more nodes that make the same tensors, or the node itself.

    `matrices` are the names of the initializers with two axes.
    """
    stand_ins: list[onnx.NodeProto] = []
    if node.domain == _BLOCKED and node.op_type in _LIKE_BLOCKED:
        stand_ins = _imitate(node, node.op_type, (0, 1, 2))
    elif node.domain == _BLOCKED and node.op_type == "ReorderInput" and not node.attribute:
        stand_ins = [helper.make_node("Identity", node.input[:1], node.output[:1])]
    elif node.domain == _RUNTIME or node.op_type == "SimplifiedLayerNormalization":
        stand_ins = _replace_runtime(node, matrices)
    yield from stand_ins or [node]


def _replace_runtime(node: onnx.NodeProto, matrices: Collection[str]) -> list[onnx.NodeProto]:
    if node.op_type in _SAME_SHAPE:
        outputs = {node.output[o] for o in _SAME_SHAPE[node.op_type] if o < len(node.output)}
        return [helper.make_node("Identity", node.input[:1], [made]) for made in sorted(outputs) if made]
    if node.op_type in _LIKE:
        return _imitate(node, *_LIKE[node.op_type])
    if node.op_type in ("FusedMatMul", "TransposeMatMul"):
        return _multiply(node, matrices)
    if node.op_type == "MatMulIntegerToFloat":
        return _rescale(_imitate(node, "MatMulInteger", (0, 1)), node, node.input[2:3])
    if node.op_type == "QGemm":
        return _rescale(_imitate(node, "Gemm", (0, 3)), node, node.input[1:2], node.input[7:9])
    if node.op_type == "MultiHeadAttention" and all(node.input[1:3]) and len(node.input) > 2:
        # Of the queries' length and the values' width.
        return [helper.make_node("Einsum", [node.input[0], node.input[2]], node.output[:1], equation="bsh,bkv->bsv")]
    if node.op_type == "GroupQueryAttention" and node.input[1]:
        return [helper.make_node("Identity", node.input[:1], node.output[:1])]
    return []


def _imitate(node: onnx.NodeProto, op_type: str, inputs: tuple[int, ...]) -> list[onnx.NodeProto]:
    taken = [node.input[position] for position in inputs if position < len(node.input)]
    made = helper.make_node(op_type, taken, node.output[:1])
    known = onnx.defs.get_schema(op_type).attributes
    made.attribute.extend(attribute for attribute in node.attribute if attribute.name in known)
    return [made]


def _rescale(
    made: list[onnx.NodeProto], node: onnx.NodeProto, scale: Sequence[str], result: Sequence[str] = ()
) -> list[onnx.NodeProto]:
    """Scale what is made of whole numbers to real ones, and to whole ones again where these result."""
    whole, real = f"{node.output[0]}/whole", f"{node.output[0]}/real"
    made[-1].output[0] = whole
    if not all(result) or not result:
        return [*made, helper.make_node("DequantizeLinear", [whole, *scale], node.output[:1])]
    made.append(helper.make_node("DequantizeLinear", [whole, *scale], [real]))
    return [*made, helper.make_node("QuantizeLinear", [real, *result], node.output[:1])]


def _multiply(node: onnx.NodeProto, matrices: Collection[str]) -> list[onnx.NodeProto]:
    """Write a product of transposed matrices as a sum over indices."""
    flags = {attribute.name for attribute in node.attribute if attribute.i}
    terms = []
    for operand, axes in (("A", "ik"), ("B", "kj")):
        pair = axes[::-1] if f"trans{operand}" in flags else axes
        # Batch axes stand before the matrix, or between its rows and columns.
        terms.append(f"{pair[0]}...{pair[1]}" if f"transBatch{operand}" in flags else f"...{pair}")
    left, right = terms
    if node.input[1] in matrices:  # inference wants as many axes under both ellipses
        right = right.replace("...", "")
    return [helper.make_node("Einsum", node.input[:2], node.output[:1], equation=f"{left},{right}->...ij")]
