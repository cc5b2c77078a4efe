"""Ranges in which 8 bits hold nothing: a mask's lowest number is in them, as far from the others as floats go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import numpy_helper

from hieronnx.errors import list_some
from hieronnx.files.wire import read_skeleton
from hieronnx.hierarchy.hierarchy import Hierarchy

_STEP = 1e30
"""Only what stands for infinity is so many steps away from other numbers."""
_NAMED = 3


def advise_on_ranges(quantized: Path, hierarchy: Hierarchy) -> Iterator[str]:
    """Tell of the tensors in whose range a mask's number is, and which operators to leave in float."""
    read = _find_wide(quantized)
    if not read:
        return
    names = set().union(*read.values())
    readers = [node for node in hierarchy.nodes if node.name in names or node.output in names]
    operators = " or ".join(sorted({f"op:{node.op_type}" for node in readers}))
    tensors, modules = (
        list_some([f"'{name}'" for name in found], _NAMED)
        for found in (read, sorted({node.scope.module or "the root" for node in readers}))
    )
    yield (
        f"a mask's number, as low as floats go, is in the range of {tensors}, so that 8 bits hold nothing else of it; "
        f"it is read in {modules}: --exclude '{operators}' leaves what reads it in float"
    )


def _find_wide(quantized: Path) -> dict[str, set[str]]:
    """Find the tensors that are quantized in steps that none of their other numbers reaches, and who reads them."""
    graph = read_skeleton(quantized).graph
    inside = (tensor for tensor in graph.initializer if tensor.data_location != onnx.TensorProto.EXTERNAL)
    scales = {tensor.name: tensor for tensor in inside if tensor.data_type == onnx.TensorProto.FLOAT}
    sources: dict[str, str] = {}
    for node in graph.node:
        if node.op_type == "QuantizeLinear" and node.input[1] in scales:
            if numpy_helper.to_array(scales[node.input[1]]).max(initial=0) >= _STEP:
                sources[node.output[0]] = node.input[0]
        elif node.op_type == "DequantizeLinear" and node.input[0] in sources:
            sources[node.output[0]] = sources[node.input[0]]
    read: dict[str, set[str]] = defaultdict(set)
    for node in graph.node:
        for name in node.input if node.op_type != "DequantizeLinear" else ():
            if name in sources:
                read[sources[name]].add(node.name)
    return read
