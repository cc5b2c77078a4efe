"""Standard operators whose outputs have the types and shapes of ONNX Runtime's own: inference knows only the standard.

ONNX Runtime writes the models that it optimized without the shapes of inner tensors. In a copy of the graph that is
made for inference and for nothing else, each of its operators can be replaced by others that give the same type and
shape.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

import onnx
from onnx import helper

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


def replace_node(node: onnx.NodeProto, matrices: Collection[str]) -> Iterator[onnx.NodeProto]:
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
