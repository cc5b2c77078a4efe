"""Tensors in blocks of channels, read from their usual form: that is what a reference has values of.

    file   Conv ─→ t ─┬─→ Pool                  here   Conv ─→ t ─→ ReorderOutput ─→ y ─→ ReorderInput ─→ u ─→ Pool
                      └─→ ReorderOutput ─→ y

It computes the same, but for what fills up the last block, which nobody asks for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper

from hieronnx.graph.operators import BLOCKED_DOMAIN
from hieronnx.runtime.flattening import rename_node

_MULTIPLE = 4
"""ReorderInput takes so many channels, or a multiple of that."""
_PADS_ARE_INPUTS = 11
"""The version of the standard operators since which Pad reads its sizes."""


def read_usual_forms(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a flat model in which a tensor in blocks is read from its usual form, where it has one."""
    reorders = {node.input[0]: node for node in reversed(model.graph.node) if _is_to_usual(node)}
    if not reorders:
        return model
    read = onnx.ModelProto()
    read.CopyFrom(model)
    del read.graph.node[:]
    placed = {node.output[0] for node in reorders.values()}
    renamed: dict[str, str] = {}
    for node in model.graph.node:
        if _is_to_usual(node) and node.output[0] in placed:
            continue
        read.graph.node.append(rename_node(node, renamed) if renamed else node)
        for tensor in node.output:
            if tensor in reorders:
                reorder = reorders[tensor]
                renamed[tensor] = f"{reorder.output[0]}/blocks"
                read.graph.node.append(reorder)
                read.graph.node.extend(_put_into_blocks(read, reorder, renamed[tensor]))
    return read


def _is_to_usual(node: onnx.NodeProto) -> bool:
    return (node.domain, node.op_type) == (BLOCKED_DOMAIN, "ReorderOutput")


def _put_into_blocks(model: onnx.ModelProto, reorder: onnx.NodeProto, name: str) -> Iterator[onnx.NodeProto]:
    """Yield the nodes that undo a ReorderOutput."""
    numbers: dict[str, int] = defaultdict(int, {attribute.name: attribute.i for attribute in reorder.attribute})
    usual, last = reorder.output[0], numbers["channels_last"]
    missing = -numbers["channels"] % _MULTIPLE
    if missing:
        filled, sizes = f"{usual}/filled", [0] * 8
        sizes[7 if last else 5] = missing
        version = next(opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx"))
        if version < _PADS_ARE_INPUTS:
            yield helper.make_node("Pad", [usual], [filled], pads=sizes)
        else:
            held = numpy_helper.from_array(np.array(sizes, np.int64), f"{usual}/filling")
            model.graph.initializer.append(held)
            yield helper.make_node("Pad", [usual, held.name], [filled])
        usual = filled
    yield helper.make_node("ReorderInput", [usual], [name], domain=BLOCKED_DOMAIN, channels_last=last)
