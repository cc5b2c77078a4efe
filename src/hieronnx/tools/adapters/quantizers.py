"""Quantizers of others: ONNX Runtime's to int8, dynamic and static, and its conversion to half precision."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import onnx
import onnx_ir as ir

from hieronnx.errors import InputError, require
from hieronnx.files.wire import read_skeleton
from hieronnx.graph.view import SMALL_TENSOR_BYTES
from hieronnx.tools.adapters.calibration import Feeds
from hieronnx.tools.adapters.running import copy_permissions, data_name, has_external_data

Quantizer: TypeAlias = Literal["dynamic", "static", "fp16"]

_TO_HALF, _TO_FLOAT = "_cast_to_fp16_node", "_cast_to_fp32_node"


def _quantize_dynamic(
    source: Path, target: Path, excluded: Sequence[str], feeds: Sequence[Feeds], **options: Any
) -> None:
    require("onnxruntime", "runtime")
    from onnxruntime.quantization import quantize_dynamic

    if feeds:
        raise InputError("dynamic quantization finds ranges as it runs; it takes no calibration inputs")
    external = has_external_data(source)
    names = _name_gemms(source, excluded)
    quantize_dynamic(source, target, nodes_to_exclude=names, use_external_data_format=external, **options)
    copy_permissions(target)


def _quantize_static(
    source: Path, target: Path, excluded: Sequence[str], feeds: Sequence[Feeds], **options: Any
) -> None:
    require("onnxruntime", "runtime")
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    if not feeds:
        raise InputError(
            "static quantization needs inputs to find ranges with: give --calibration, "
            "or --random-calibration if no better ones are at hand"
        )

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # its package has no types
        def __init__(self) -> None:
            self._left = iter(feeds)

        def get_next(self) -> dict[str, Any] | None:
            return dict(given) if (given := next(self._left, None)) is not None else None

    external = has_external_data(source)
    quantize_static(
        source, target, Reader(), nodes_to_exclude=list(excluded), use_external_data_format=external, **options
    )
    _restore_inputs(source, target, excluded)
    copy_permissions(target)


def _name_gemms(source: Path, excluded: Sequence[str]) -> list[str]:
    """Add the names that nodes get before the tool looks at its list: it makes a MatMul and an Add of every Gemm."""
    graph, names = read_skeleton(source).graph, set(excluded)
    gemms = [f"{node.name}_MatMul" for node in graph.node if node.op_type == "Gemm" and node.name in names]
    return [*excluded, *gemms]


def _restore_inputs(source: Path, target: Path, excluded: Sequence[str]) -> None:
    """Let nodes that stay in float read what they read before, where that is in float as well.

    The tool quantizes a tensor for one of its readers, and all of them read the result.
    """
    before, after = (onnx.load(path, load_external_data=False) for path in (source, target))
    names, initializers = set(excluded), {tensor.name for tensor in before.graph.initializer}
    old = {node.name: node for node in before.graph.node if node.name in names}
    restorable = initializers | {output for node in old.values() for output in node.output}
    restored = set()
    for node in after.graph.node:
        for position, name in enumerate(old[node.name].input if node.name in old else ()):
            if node.input[position] != name and name in restorable:
                node.input[position] = name
                restored.add(name)
    if not restored:
        return
    missing = (restored & initializers) - {tensor.name for tensor in after.graph.initializer}
    after.graph.initializer.extend(_load_floats(source, missing).values())
    target.write_bytes(after.SerializeToString())


def _load_floats(source: Path, names: Collection[str]) -> dict[str, onnx.TensorProto]:
    """Load initializers with their contents."""
    tensors = {}
    for tensor in onnx.load(source, load_external_data=False).graph.initializer if names else ():
        if tensor.name in names:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                onnx.external_data_helper.load_external_data_for_tensor(tensor, str(source.parent))
                tensor.ClearField("data_location")
                del tensor.external_data[:]
            tensors[tensor.name] = tensor
    return tensors


# -- half precision ---------------------------------------------------------------------------------------


def _convert_to_half(
    source: Path, target: Path, excluded: Sequence[str], feeds: Sequence[Feeds], **options: Any
) -> None:
    require("onnxruntime", "runtime")
    from onnxruntime.transformers.float16 import convert_float_to_float16

    if feeds:
        raise InputError("conversion to half precision takes no calibration inputs")
    # As a string: of any other path it would take the model for one in memory.
    converted = convert_float_to_float16(str(source), node_block_list=list(excluded), **options)
    _restore_weights(source, converted.graph)
    _join_casts(converted.graph)
    model = ir.serde.deserialize_model(converted)
    model.graph.sort()  # the converter puts its Casts at the end
    external = data_name(target) if has_external_data(source) else None
    ir.save(model, target, external_data=external, size_threshold_bytes=SMALL_TENSOR_BYTES)


def _restore_weights(source: Path, graph: onnx.GraphProto) -> None:
    """Put the weights themselves in place of the Casts that would make them float again, after they were rounded."""
    initializers = {tensor.name for tensor in graph.initializer}
    casts = {n.output[0]: n.input[0] for n in graph.node if n.name.endswith(_TO_FLOAT) and n.input[0] in initializers}
    floats = _load_floats(source, set(casts.values()))
    for output, name in casts.items():
        restored = graph.initializer.add()
        restored.CopyFrom(floats[name])
        restored.name = output
    kept = [node for node in graph.node if not (node.name.endswith(_TO_FLOAT) and node.output[0] in casts)]
    _replace_nodes(graph, kept)


def _join_casts(graph: onnx.GraphProto) -> None:
    """Repair what the converter leaves around nodes that stay in float.

    It makes a Cast for each of them that reads a tensor, all with one output; between two of them it rounds to half.
    """
    casts = [node for node in graph.node if node.name.endswith((_TO_HALF, _TO_FLOAT))]
    halved = {node.output[0]: node.input[0] for node in casts if node.name.endswith(_TO_HALF)}
    direct = {node.output[0]: halved[node.input[0]] for node in casts if node.input[0] in halved}
    for node in graph.node:
        for position, name in enumerate(node.input):
            node.input[position] = direct.get(name, name)
    read = {name for node in graph.node if not direct.keys() & set(node.output) for name in node.input}
    read |= {value.name for value in graph.output}
    kept: dict[str, onnx.NodeProto] = {}
    for number, node in enumerate(graph.node):
        if not node.name.endswith((_TO_HALF, _TO_FLOAT)):
            kept[f"node {number}"] = node
        elif node.output[0] in read:
            kept.setdefault(f"cast {node.output[0]}", node)
    _replace_nodes(graph, kept.values())


def _replace_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    kept = onnx.GraphProto(node=nodes)
    del graph.node[:]
    graph.node.extend(kept.node)


QUANTIZERS: Mapping[Quantizer, Callable[..., None]] = {
    "dynamic": _quantize_dynamic,
    "static": _quantize_static,
    "fp16": _convert_to_half,
}
"""Each takes the file to read, the file to write, the names of nodes to leave alone, inputs to run on, and options."""
