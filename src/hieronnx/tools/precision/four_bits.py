"""Weights in 4 bits: ONNX Runtime's quantizer of the constant matrices that a model multiplies with.

What it multiplies is not quantized: `MatMulNBits` reads a block of weights, makes floats of them, and multiplies these.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from hieronnx.errors import InputError, require
from hieronnx.files.wire import read_skeleton
from hieronnx.graph.walks import proto_bodies, walk_bodies
from hieronnx.runtime.inputs import Feeds
from hieronnx.tools.precision.own_weights import join_weights, separate_weights
from hieronnx.tools.running import calling, has_external_data, save_model

_BLOCK = 32
"""Weights that share a scale, if nothing else is asked for."""


def quantize_to_four_bits(
    source: Path, target: Path, excluded: list[str], feeds: list[Feeds], *, block_size: int = _BLOCK, **options: Any
) -> None:
    """Quantize the weights of a file to 4 bits, all but those of the nodes of these names."""
    require("onnxruntime", "runtime")
    if feeds:
        raise InputError("quantization to int4 is of weights alone; it takes no calibration inputs")
    if block_size < 16 or block_size & (block_size - 1):
        raise InputError(f"a block has {block_size} weights; it must be a power of two, and 16 at least")
    external = has_external_data(source)
    separate_transposed(source)
    # Rows that are looked up are quantized in another way than matrices, and would get the same name.
    copies = separate_weights(source, lambda node: node.op_type == "Gather", "rows")
    names = name_products(source, excluded)
    with calling("'int4'"):
        quantizer = _import_quantizer()
        from onnxruntime.quantization.onnx_model import ONNXModel

        model = ONNXModel(onnx.load(source))
        model.replace_gemm_with_matmul()
        made = quantizer(model.model, nodes_to_exclude=names, block_size=block_size, **options)
        made.process()
    _drop_repeated(made.model.model.graph)
    save_model(made.model.model, target, external=external)
    join_weights(target, copies)


def _import_quantizer() -> Any:
    """Import the quantizer, and undo what that does to the logging of the whole process."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    root.handlers[:] = handlers
    root.setLevel(level)
    return MatMulNBitsQuantizer


def _drop_repeated(graph: onnx.GraphProto) -> None:
    """Leave one of the initializers of each name: a weight that several products share is quantized for each."""
    for _, part in walk_bodies(graph):
        kept = {tensor.name: tensor for tensor in part.initializer}
        if len(kept) < len(part.initializer):
            single = onnx.GraphProto(initializer=kept.values())
            del part.initializer[:]
            part.initializer.extend(single.initializer)


# -- every Gemm becomes a MatMul and an Add ---------------------------------------------------------------


def name_products(source: Path, excluded: Sequence[str]) -> list[str]:
    """Return the names of nodes with those that a Gemm has after it became a MatMul and an Add.

    Tools make these of every Gemm before they look at their list.
    """
    chosen = set(excluded)
    gemms = (node.name for node in _walk(read_skeleton(source).graph) if node.op_type == "Gemm")
    return [*excluded, *(f"{name}_MatMul" for name in gemms if name in chosen)]


def separate_transposed(source: Path) -> None:
    """Give each Gemm that reads its weight transposed a weight of its own.

    The tool transposes that weight in its place, for each Gemm once, whoever else reads it.
    """
    model = onnx.load(source, load_external_data=False)
    readers = Counter(name for node in _walk(model.graph) for name in node.input)
    shared = [read for read in _list_transposed(model.graph, {}) if readers[read[0].input[1]] > 1]
    for number, (node, graph, weight) in enumerate(shared):
        copied = graph.initializer.add()
        copied.CopyFrom(weight)
        copied.name = f"{weight.name}/{number}"
        node.input[1] = copied.name
    if shared:
        source.write_bytes(model.SerializeToString())


def _walk(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    return (node for _, found in walk_bodies(graph) for node in found.node)


def _list_transposed(
    graph: onnx.GraphProto, outside: Mapping[str, tuple[onnx.GraphProto, onnx.TensorProto]]
) -> Iterator[tuple[onnx.NodeProto, onnx.GraphProto, onnx.TensorProto]]:
    """Yield every Gemm that reads a weight transposed, in bodies too; with the graph that has the weight, and it."""
    weights = {**outside, **{tensor.name: (graph, tensor) for tensor in graph.initializer}}
    for node in graph.node:
        for _, body in proto_bodies(node):
            yield from _list_transposed(body, weights)
        if node.op_type == "Gemm" and node.input[1] in weights and _is_transposed(node):
            yield node, *weights[node.input[1]]


def _is_transposed(node: onnx.NodeProto) -> bool:
    return any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
