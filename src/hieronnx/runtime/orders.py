"""Orders that a file leaves open, as a TopK does whose results need not be sorted: which axes of tensors have one.

Two runtimes may give the largest numbers in different orders, and both are right. What is computed of them has another
order then, or, where it is a sum, the same numbers. It is seen by computing both ways::

    x ─→ TopK (sorted=0) ─→ y              y is [5, 3, 4]
    x ─→ TopK (sorted=0) ─→ Slice ─→ y     y is [4, 3, 5]: the order along this axis is open
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
_MADE = "hieronnx reversed "
_LAST = -1


def has_open_orders(model: onnx.ModelProto) -> bool:
    """Say whether a model has a node that may give its results in any order."""
    return any(_leaves_order_open(node) for node in model.graph.node)


def reverse_open_orders(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in which results that may be in any order are in the reverse of the one they have."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    nodes: list[onnx.NodeProto] = []
    for node in made.graph.node:
        nodes.append(node)
        if _leaves_order_open(node):
            nodes.extend(_reverse(node, f"{_MADE}{len(nodes)} "))
    body = onnx.GraphProto(node=nodes)
    del made.graph.node[:]
    made.graph.node.extend(body.node)
    return made


def find_reversed_axis(array: Array, reversed_array: Array) -> int | None:
    """Find the axis along which a tensor is turned round where open orders are; None where its numbers stay."""
    if array.shape != reversed_array.shape or _is_alike(array, reversed_array):
        return None
    axes = (axis for axis in range(array.ndim) if _is_alike(np.flip(array, axis), reversed_array))
    return next(axes, None)


def _leaves_order_open(node: onnx.NodeProto) -> bool:
    is_sorted = next((attribute.i for attribute in node.attribute if attribute.name == "sorted"), 1)
    return bool(node.op_type == "TopK" and node.domain in ("", "ai.onnx") and not is_sorted)


def _reverse(node: onnx.NodeProto, made: str) -> list[onnx.NodeProto]:
    """Give a node's outputs other names; return what makes the old ones of them."""
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), _LAST)
    numbers = {"start": -1, "end": np.iinfo(np.int64).min, "axis": axis, "step": -1}
    held = {name: numpy_helper.from_array(np.array([number], np.int64)) for name, number in numbers.items()}
    steps = [helper.make_node("Constant", [], [f"{made}{name}"], value=tensor) for name, tensor in held.items()]
    for place, output in enumerate(node.output):
        if output:
            node.output[place] = f"{made}{place}"
            reads = [node.output[place], *(f"{made}{name}" for name in numbers)]
            steps.append(helper.make_node("Slice", reads, [output]))
    return steps


def _is_alike(a: Array, b: Array) -> bool:
    """Say whether two tensors have the same numbers at the same places, but for sums in another order."""
    if a.dtype.kind not in "fc":
        return bool(np.array_equal(a, b))
    finite = np.abs(a[np.isfinite(a)])
    # One number that stands for infinity, as in masks, says nothing of how large the others are.
    size = float(np.median(finite)) if finite.size else 0.0
    part = float(np.sqrt(np.finfo(a.dtype).eps))
    return bool(np.allclose(a, b, rtol=part, atol=part * size, equal_nan=True))
