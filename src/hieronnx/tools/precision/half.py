"""Half precision: ONNX Runtime's converter, and what it leaves to be repaired around nodes that stay in float."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from hieronnx.errors import InputError, require
from hieronnx.files.staging import data_name
from hieronnx.graph.view import SMALL_TENSOR_BYTES
from hieronnx.runtime.inputs import Feeds
from hieronnx.tools.running import calling, has_external_data, load_floats

_TO_HALF, _TO_FLOAT = "_cast_to_fp16_node", "_cast_to_fp32_node"


def convert_to_half(source: Path, target: Path, excluded: list[str], feeds: list[Feeds], **options: Any) -> None:
    """Convert a file to half precision, all but the nodes of these names."""
    require("onnxruntime", "runtime")
    from onnxruntime.transformers.float16 import convert_float_to_float16

    if feeds:
        raise InputError("conversion to half precision takes no calibration inputs")
    # As a string: of any other path it would take the model for one in memory.
    with calling("'fp16'"):
        converted = convert_float_to_float16(str(source), node_block_list=excluded, **options)
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
    floats = load_floats(source, set(casts.values()))
    for output, name in casts.items():
        restored = graph.initializer.add()
        restored.CopyFrom(floats[name])
        restored.name = output
    _replace_nodes(graph, [n for n in graph.node if not (n.name.endswith(_TO_FLOAT) and n.output[0] in casts)])


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
