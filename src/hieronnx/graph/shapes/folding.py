"""Computing what a copied graph makes of literals alone, for onnx's inference follows only some of such numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

# What exporters compute with sizes and axes, which are short lists of whole numbers.
_FOLDED = """
    Abs Add Cast Concat Equal Gather Identity Max Min Mod Mul Neg Range Reshape Slice Squeeze Sub Unsqueeze Where
"""
_MOST_NUMBERS = 16


def fold_literals(graph: onnx.GraphProto, opsets: Mapping[str, int]) -> None:
    """Replace the nodes of a graph that compute a few whole numbers of others, all of them known, by their results.

    Args:
        graph: The graph; it is changed.
        opsets: The version of each domain's operators.
    """
    known = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer if _is_short(tensor)}
    folded = frozenset(_FOLDED.split())
    for node in graph.node:
        if node.op_type == "Constant" and not node.domain:
            known.update((node.output[0], array) for array in _read_literal(node))
        elif node.op_type in folded and not node.domain and all(name in known for name in node.input if name):
            result = _compute(node, known, opsets)
            if result.size <= _MOST_NUMBERS and result.dtype.kind in "ib":
                known[node.output[0]] = result
                node.CopyFrom(helper.make_node("Constant", [], node.output, value=numpy_helper.from_array(result)))


def _is_short(tensor: onnx.TensorProto) -> bool:
    return (
        tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32) and np.prod(tensor.dims) <= _MOST_NUMBERS
    )


def _read_literal(node: onnx.NodeProto) -> list[np.ndarray]:
    tensors = (attribute.t for attribute in node.attribute if attribute.name == "value")
    return [numpy_helper.to_array(tensor) for tensor in tensors if _is_short(tensor)]


def _compute(node: onnx.NodeProto, known: Mapping[str, np.ndarray], opsets: Mapping[str, int]) -> np.ndarray:
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(node, opsets=dict(opsets))
    with np.errstate(all="ignore"):
        (result,) = evaluator.run(None, {name: known[name] for name in node.input if name})
    return np.asarray(result)
