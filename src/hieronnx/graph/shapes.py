"""Inferring the types and shapes of a model's tensors, by onnx, on a copy without weights.

In the copy standard operators stand in for those of ONNX Runtime, which writes what it optimized without types of inner
tensors, and what is computed of literals alone is computed, for onnx's inference follows only some of such numbers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from hieronnx.errors import HieronnxError
from hieronnx.graph.growth import LONGEST_SHAPE, MOST_NUMBERS, check_growth
from hieronnx.graph.operators import SIZE_JOINING_OPS, SIZE_PICKING_OPS
from hieronnx.graph.reached import InferredTypes, cut_reached
from hieronnx.graph.sizes import evaluate_size
from hieronnx.graph.stand_ins import replace_operators
from hieronnx.graph.view import INPUTS_ARE_NO_DEFAULTS, SMALL_TENSOR_BYTES
from hieronnx.graph.walks import first_name, node_bodies, proto_bodies, walk_bodies, walk_nodes

_LOG = logging.getLogger("hieronnx")
# What exporters compute with sizes and axes, which are short lists of whole numbers.
_FOLDED_OPS = (SIZE_PICKING_OPS | SIZE_JOINING_OPS) - {"Floor"}
_FOLDED_OPS |= {"Abs", "ConstantOfShape", "Range", "Transpose"}
_DIVISIONS = frozenset({"Div", "Mod"})
_LONGEST_FOLDED = 16  # numbers, in a list that is computed here
_MOST_VISITS = 100_000  # of nodes, by inference that is run again as sizes become known
_MOST_COMPUTED = _LONGEST_FOLDED**3  # by a Where, of three lists that are spread out along axes of their own


def bind_axes(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the sizes of a model's dynamic axes, by name, that inputs of these shapes give them."""
    sizes: dict[str, int] = {}
    for value in model.graph.inputs:
        for dim, size in zip(value.shape or (), shapes.get(value.name or "", ()), strict=False):
            if isinstance(dim, ir.SymbolicDim) and dim.value is not None and size > 0:
                sizes[dim.value] = size
    return sizes


def correct_declared(model: ir.Model) -> dict[ir.Value, onnx.ValueInfoProto]:
    """Return the tensors of the main graph whose declared sizes its inputs contradict, with sizes that hold.

    An exporter that saw one example may declare its size, here of a batch of one, behind an input that takes any:

        left [batch,3] ─ Sub ─ s [batch,3] ─ Div ─ d [1,3] ─ …

    Where it did so once, no declared number holds that is not inferred from the inputs.
    """
    axes = {dim.value for value in model.graph.inputs for dim in value.shape or () if isinstance(dim, ir.SymbolicDim)}
    if not axes - {None}:
        return {}
    try:
        copy, literals = _copy_structure(model, {})
        declared = {info.name: onnx.ValueInfoProto() for info in (*copy.graph.value_info, *copy.graph.output)}
        for info in (*copy.graph.value_info, *copy.graph.output):
            declared[info.name].CopyFrom(info)
            info.type.tensor_type.ClearField("shape")
        inferred = onnx.shape_inference.infer_shapes(copy, data_prop=check_growth(copy, literals))
    except (ir.serde.SerdeError, onnx.shape_inference.InferenceError, RuntimeError, ValueError, LookupError):
        return {}  # then nothing contradicts what is declared; who needs more than that infers it, and tells the reason
    found = {info.name: info for info in (*inferred.graph.value_info, *inferred.graph.output)}
    pairs = [(_list_dims(info), _list_dims(found.get(name))) for name, info in declared.items()]
    if not any(_contradicts(sizes, known, axes) for sizes, known in pairs):
        return {}
    for sizes, known in pairs:
        for place, size in enumerate(sizes):
            inferred_size = known[place] if len(known) == len(sizes) else onnx.TensorShapeProto.Dimension()
            if size.HasField("dim_value") and size != inferred_size:
                size.Clear()
                if inferred_size.dim_param in axes:
                    size.CopyFrom(inferred_size)
    values = (value for node in model.graph for value in node.outputs)
    return {value: declared[value.name] for value in values if value.name in declared}


def _list_dims(info: onnx.ValueInfoProto | None) -> Sequence[Any]:
    return () if info is None else info.type.tensor_type.shape.dim


def _contradicts(declared: Sequence[Any], inferred: Sequence[Any], axes: Collection[str | None]) -> bool:
    """Say whether a size is declared as a number that is inferred to be that of a dynamic axis of an input."""
    pairs = zip(declared, inferred, strict=False)
    return any(size.HasField("dim_value") and true.dim_param in axes for size, true in pairs if true.dim_param)


def infer_types(
    model: ir.Model,
    dims: Mapping[str, int],
    keep: Callable[[str], bool] = lambda _: True,
    corrected: Mapping[ir.Value, onnx.ValueInfoProto] | None = None,
) -> dict[ir.Value, onnx.ValueInfoProto]:
    """Infer the types of a model's tensors, of those in bodies too; what the file says of them is built upon.

    Args:
        model: The model; it is not changed, and none of its weights are read.
        dims: Sizes of dynamic axes, by the axes' names.
        keep: Says of the name of an axis whether it means something; another is inferred anew.
        corrected: What `correct_declared` found, if somebody asked already.

    Raises:
        HieronnxError: If it cannot be done, with onnx's reason.
    """
    try:
        copy, literals = _copy_structure(model, dims, correct_declared(model) if corrected is None else corrected)
        for info in (*copy.graph.value_info, *copy.graph.output):
            for dim in info.type.tensor_type.shape.dim:
                if dim.dim_param and not keep(dim.dim_param):
                    dim.Clear()
        follow = check_growth(copy, literals)
        inferred = onnx.shape_inference.infer_shapes(copy, data_prop=follow)
        if not follow:  # with these types it may be known to be few numbers
            follow = check_growth(inferred, literals)
            inferred = onnx.shape_inference.infer_shapes(inferred, data_prop=True) if follow else inferred
        if follow:
            inferred = _follow_sizes(copy, inferred, literals)
        else:
            _LOG.warning("lists of more than %s numbers are computed with: sizes are not followed there", MOST_NUMBERS)
    except (ir.serde.SerdeError, onnx.shape_inference.InferenceError, RuntimeError, ValueError, LookupError) as error:
        raise HieronnxError(f"the shapes that the file lacks cannot be inferred: {error}") from error
    return dict(_read_types(model.graph, inferred.graph))


def _follow_sizes(
    copy: onnx.ModelProto, inferred: onnx.ModelProto, literals: dict[str, npt.NDArray[Any]]
) -> onnx.ModelProto:
    """Infer types again as long as something can be computed from them that inference leaves open: a half of a size.

    That is done for what such a size reaches, however large the rest of the model is.
    """
    opsets = {item.domain: item.version for item in copy.opset_import}
    part, found, visits = copy, inferred, 0
    known, types = set(literals), None
    while _fold_sizes(part.graph, found.graph, opsets, literals) and check_growth(found, literals):
        part = cut_reached(part, found.graph, literals.keys() - known)
        known, visits = set(literals), visits + len(part.graph.node)
        if visits > _MOST_VISITS:
            _LOG.warning("sizes are computed from one another in too many steps: not all of them are followed")
            break
        found = onnx.shape_inference.infer_shapes(part, data_prop=True)
        types = types or InferredTypes(inferred.graph)
        types.add(part.graph, found.graph)
    return inferred


def _copy_structure(
    model: ir.Model, dims: Mapping[str, int], corrected: Mapping[ir.Value, onnx.ValueInfoProto] = MappingProxyType({})
) -> tuple[onnx.ModelProto, dict[str, npt.NDArray[Any]]]:
    """Copy a model: of its initializers the smallest have contents, and the others are inputs, for only types count.

    What is corrected is declared so. Also return the literals in it.
    """
    copy = onnx.ModelProto(ir_version=model.ir_version)
    # A node of a domain that the file does not name would end the inference.
    domains = dict.fromkeys((node.domain for _, node in walk_nodes(model)), 1)
    for domain, version in {**domains, **model.opset_imports}.items():
        copy.opset_import.add(domain=domain, version=version)
    copy.functions.extend(map(ir.serde.serialize_function, model.functions.values()))
    graph, initializers = copy.graph, model.graph.initializers.values()
    graph.name = "main"
    graph.input.extend(map(ir.serde.serialize_value, model.graph.inputs))
    graph.output.extend(corrected.get(v) or ir.serde.serialize_value(v) for v in model.graph.outputs)
    large = (v for v in initializers if not v.is_graph_input() and not _is_small(v))
    graph.input.extend(map(ir.serde.serialize_value, large))
    # What is an input too is a default, which others may be fed for; in old files all initializers are inputs.
    fixed = (v for v in initializers if not v.is_graph_input() or model.ir_version < INPUTS_ARE_NO_DEFAULTS)
    for value in filter(_is_small, fixed):
        assert value.const_value is not None
        graph.initializer.append(ir.serde.serialize_tensor(value.const_value))
        graph.initializer[-1].name = value.name or ""
    graph.node.extend(map(ir.serde.serialize_node, model.graph))
    typed = (v for node in model.graph for v in node.outputs if v.name and v.type and not v.is_graph_output())
    graph.value_info.extend(corrected.get(v) or ir.serde.serialize_value(v) for v in typed)
    shapes = {value.name: value.shape for value in initializers if value.name and value.shape is not None}
    replace_operators(graph, {name: shape.numpy() for name, shape in shapes.items() if shape.is_static()})
    _hide_long_lists(graph)
    literals = _fold_literals(graph, model.opset_imports, {})
    for info in (*graph.input, *graph.output, *graph.value_info) if dims else ():
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param and (size := evaluate_size(dim.dim_param, dims)) is not None:
                dim.dim_value = size
    return copy, literals


def _is_small(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None or isinstance(tensor, ir.ExternalTensor):
        return False
    return tensor.dtype not in (ir.DataType.STRING, ir.DataType.UNDEFINED) and tensor.nbytes <= SMALL_TENSOR_BYTES


def _hide_long_lists(graph: onnx.GraphProto) -> None:
    """Hide how long lists of numbers are that are no shapes, in bodies too.

    Inference takes every such list for a shape whose sizes it must follow, at hundreds of bytes each.
    """
    for _, part in walk_bodies(graph):
        for info in (*part.input, *part.output, *part.value_info):
            sizes = info.type.tensor_type.shape.dim
            if len(sizes) == 1 and sizes[0].dim_value > LONGEST_SHAPE:
                sizes[0].Clear()


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


def _fold_sizes(
    graph: onnx.GraphProto, inferred: onnx.GraphProto, opsets: Mapping[str, int], arrays: dict[str, npt.NDArray[Any]]
) -> bool:
    """Replace nodes that compute with sizes which were inferred by their results; say whether there were any."""
    known = len(arrays)
    sizes: dict[str, list[int | None]] = {}
    for info in (*inferred.input, *inferred.value_info, *inferred.output):
        kind = info.type.tensor_type
        if kind.HasField("shape"):
            sizes[info.name] = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
    shapes: dict[str, list[int | None]] = {}
    for node in graph.node:
        if node.op_type == "Shape" and not node.domain and node.input[0] in sizes:
            start, end = (_read_attribute(node, name) for name in ("start", "end"))
            shapes[node.output[0]] = sizes[node.input[0]][start:end]
        picked = _pick_sizes(node, shapes, arrays) if node.output and node.output[0] not in arrays else None
        if picked is not None:
            _hold(node, picked, arrays)
    found = len(arrays) > known
    if found:
        _fold_literals(graph, opsets, arrays)
    return found


def _pick_sizes(
    node: onnx.NodeProto, shapes: Mapping[str, Sequence[int | None]], arrays: Mapping[str, npt.NDArray[Any]]
) -> npt.NDArray[Any] | None:
    """Return the sizes of a shape, all or some, that a node gives, if they are known: others need not be."""
    if node.op_type == "Shape" and not node.domain:
        picked = np.array(shapes.get(node.output[0], [None]), dtype=object)
    elif node.op_type == "Gather" and not node.domain and node.input[0] in shapes and node.input[1] in arrays:
        given, indices = shapes[node.input[0]], arrays[node.input[1]]
        if indices.size and not -len(given) <= indices.min() <= indices.max() < len(given):
            return None
        picked = np.array(given, dtype=object)[indices]
    else:
        return None
    picked = np.asarray(picked)
    is_known = picked.size <= _LONGEST_FOLDED and all(size is not None for size in picked.flat)
    return picked.astype(np.int64) if is_known else None


def _fold_literals(
    graph: onnx.GraphProto, opsets: Mapping[str, int], arrays: dict[str, npt.NDArray[Any]]
) -> dict[str, npt.NDArray[Any]]:
    """Replace the nodes of a graph that compute a few whole numbers of others, all of them known, by their results.

    Return all that are known, those that were before among them.
    """
    arrays.update((tensor.name, numpy_helper.to_array(tensor)) for tensor in graph.initializer if _is_short(tensor))
    for node in graph.node:
        if node.op_type == "Constant" and not node.domain:
            tensors = (attribute.t for attribute in node.attribute if attribute.name == "value")
            arrays.update((node.output[0], numpy_helper.to_array(t)) for t in tensors if _is_short(t))
        elif node.op_type in _FOLDED_OPS and not node.domain and all(name in arrays for name in node.input if name):
            result = _compute(node, opsets, [arrays[name] if name else None for name in node.input])
            if result is not None and result.size <= _LONGEST_FOLDED and result.dtype.kind in "ib":
                _hold(node, result, arrays)
    return arrays


def _hold(node: onnx.NodeProto, result: npt.NDArray[Any], arrays: dict[str, npt.NDArray[Any]]) -> None:
    arrays[node.output[0]] = result
    node.CopyFrom(helper.make_node("Constant", [], node.output, value=numpy_helper.from_array(result)))


def _read_attribute(node: onnx.NodeProto, name: str) -> int | None:
    return next((attribute.i for attribute in node.attribute if attribute.name == name), None)


def _compute(
    node: onnx.NodeProto, opsets: Mapping[str, int], given: Sequence[npt.NDArray[Any] | None]
) -> npt.NDArray[Any] | None:
    """Compute what a node makes of literals; None where that is more than a few numbers, or cannot be computed."""
    from onnx.reference import ReferenceEvaluator

    sizes = [array.size for array in given if array is not None]
    spread = sum(sizes) if node.op_type == "Concat" else math.prod(sizes)
    if node.op_type in _DIVISIONS and any(array is not None and not array.all() for array in given[1:]):
        return None
    if spread > _MOST_COMPUTED or _measure_by_value(node.op_type, given) > _LONGEST_FOLDED:
        return None
    try:
        with np.errstate(all="ignore"):
            feeds = {name: array for name, array in zip(node.input, given, strict=True) if name}
            (computed,) = ReferenceEvaluator(node, opsets=dict(opsets)).run(None, feeds)
    except Exception as error:  # of any class: it is made for sound nodes
        raise ValueError(f"'{first_name(node.output)}' cannot be computed: {error}") from error
    return np.asarray(computed)


def _measure_by_value(op_type: str, given: Sequence[npt.NDArray[Any] | None]) -> float:
    """Return how many numbers an operator gives where the values that it reads say so; 0 where they do not."""
    if op_type == "ConstantOfShape":  # numpy refuses an empty array too, if its other axes are too long
        return math.prod(max(int(size), 1) for array in given if array is not None for size in array.flat)
    return _measure_range(given) if op_type == "Range" else 0


def _measure_range(given: Sequence[npt.NDArray[Any] | None]) -> float:
    """Return how many numbers a Range gives; infinitely many where it has no end."""
    if len(given) != 3 or any(array is None or array.size != 1 for array in given):
        return math.inf
    start, limit, step = (int(array.item()) for array in given if array is not None)
    return math.inf if step == 0 else (limit - start) / step


def _is_short(tensor: onnx.TensorProto) -> bool:
    is_whole = tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
    return is_whole and bool(np.prod(tensor.dims) <= _LONGEST_FOLDED)
