"""Standard operators in place of ONNX Runtime's own, which onnx cannot infer the types of: they give the same types.

At its default level ONNX Runtime puts channels in blocks, of 8 or 16 as the machine has it, and fills the last one up::

    x [1, 12, h, w] ─→ ReorderInput ─→ [1, 16, h, w] ─→ Conv ─→ [1, 32, h, w] ─→ ReorderOutput ─→ y [1, 20, h, w]

How many there are after a ReorderInput is told by the weights of a Conv that reads it; a ReorderOutput tells it itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import onnx
from onnx import helper

from hieronnx.graph.operators import BLOCKED_DOMAIN
from hieronnx.graph.walks import walk_bodies

Shape: TypeAlias = tuple[int | None, ...]

_RUNTIME = "com.microsoft"
_SAMPLE = "hieronnx/sample"

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


def replace_operators(graph: onnx.GraphProto, constants: Mapping[str, Shape]) -> None:
    """Replace ONNX Runtime's own operators in a graph and its bodies; others that onnx does not know are left.

    The graph gets inputs for the sizes that are known from elsewhere than what a node reads.

    Args:
        graph: The graph; it is changed.
        constants: The shapes of its initializers, by name.
    """
    parts = [part for _, part in walk_bodies(graph)]
    stand_ins = _StandIns(constants, _count_blocked_channels(parts, constants))
    for part in reversed(parts):  # a body before the node that has it
        replaced = onnx.GraphProto()
        for node in part.node:
            replaced.node.extend(stand_ins.replace(node) or [node])
        part.ClearField("node")
        part.node.extend(replaced.node)
    graph.input.extend(stand_ins.samples.values())


def _count_blocked_channels(parts: Iterable[onnx.GraphProto], constants: Mapping[str, Shape]) -> dict[str, int]:
    """Return how many channels the tensors have that a Conv reads in blocks: its weights are for so many."""
    channels: dict[str, int] = {}
    for node in (node for part in parts for node in part.node):
        if node.domain == BLOCKED_DOMAIN and node.op_type == "Conv":
            _, in_group, *_ = (*constants.get(node.input[1], ()), None, None)
            if in_group is not None:
                channels[node.input[0]] = in_group * _read_int(node, "group", 1)
    return channels


class _StandIns:
    """Makes the nodes that stand in for others, and the samples that these read.

    Attributes:
        samples: inputs of given shapes, by these.
    """

    def __init__(self, constants: Mapping[str, Shape], channels: Mapping[str, int]) -> None:
        self._constants = constants
        self._channels = channels
        self.samples: dict[Shape, onnx.ValueInfoProto] = {}

    def replace(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return what stands in for a node: nodes that make the same tensors; none where it is to stay."""
        if node.domain == BLOCKED_DOMAIN:
            return self._replace_blocked(node)
        if node.domain == _RUNTIME or node.op_type == "SimplifiedLayerNormalization":
            return self._replace_runtime(node)
        return []

    def _replace_blocked(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        if node.op_type in _LIKE_BLOCKED:
            return _imitate(node, node.op_type, (0, 1, 2))
        channels_last = _read_int(node, "channels_last", 0)
        if node.op_type == "ReorderInput":
            given = "nhwc" if channels_last else "nchw"
            return self._set_channels(node, self._channels.get(node.output[0]), f"{given},b->nbhw")
        if node.op_type == "ReorderOutput":
            made = "nhwb" if channels_last else "nbhw"
            return self._set_channels(node, _read_int(node, "channels", 0) or None, f"nchw,b->{made}")
        scales = [n for attribute in node.attribute if attribute.name == "scales" for n in attribute.ints]
        if node.op_type == "Upsample" and scales:
            repeats = helper.make_node("Constant", [], [f"{node.output[0]}/scales"], value_ints=scales)
            return [repeats, helper.make_node("Tile", [node.input[0], *repeats.output], node.output[:1])]
        return []

    def _set_channels(self, node: onnx.NodeProto, channels: int | None, equation: str) -> list[onnx.NodeProto]:
        return [helper.make_node("Einsum", [node.input[0], self._sample(channels)], node.output[:1], equation=equation)]

    def _sample(self, *shape: int | None) -> str:
        """Return the name of an input that has a shape; None is any size."""
        name = f"{_SAMPLE}/{shape}"
        self.samples.setdefault(shape, helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
        return name

    def _replace_runtime(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        if node.op_type in _SAME_SHAPE:
            outputs = {node.output[o] for o in _SAME_SHAPE[node.op_type] if o < len(node.output)}
            return [helper.make_node("Identity", node.input[:1], [made]) for made in sorted(outputs) if made]
        if node.op_type in _LIKE:
            return _imitate(node, *_LIKE[node.op_type])
        if node.op_type in ("FusedMatMul", "TransposeMatMul"):
            return self._multiply(node)
        if node.op_type == "MatMulNBits":
            matrix = self._sample(_read_int(node, "K", 0), _read_int(node, "N", 0))
            return [helper.make_node("MatMul", [node.input[0], matrix], node.output[:1])]
        if node.op_type == "MatMulIntegerToFloat":
            return _rescale(_imitate(node, "MatMulInteger", (0, 1)), node, node.input[2:3])
        if node.op_type == "QGemm":
            return _rescale(_imitate(node, "Gemm", (0, 3)), node, node.input[1:2], node.input[7:9])
        if node.op_type == "MultiHeadAttention" and all(node.input[1:3]) and len(node.input) > 2:
            # Of the queries' length and the values' width.
            inputs, equation = [node.input[0], node.input[2]], "bsh,bkv->bsv"
            return [helper.make_node("Einsum", inputs, node.output[:1], equation=equation)]
        if node.op_type == "GroupQueryAttention" and node.input[1]:
            return [helper.make_node("Identity", node.input[:1], node.output[:1])]
        return []

    def _multiply(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Write a product of transposed matrices as a sum over indices."""
        flags = {attribute.name for attribute in node.attribute if attribute.i}
        terms = []
        for operand, axes, name in (("A", "ik", node.input[0]), ("B", "kj", node.input[1])):
            pair = axes[::-1] if f"trans{operand}" in flags else axes
            # Batch axes stand before the matrix, or between its rows and columns.
            term = f"{pair[0]}...{pair[1]}" if f"transBatch{operand}" in flags else f"...{pair}"
            # Inference wants as many axes under both ellipses.
            terms.append(pair if len(self._constants.get(name, ())) == 2 else term)
        equation = f"{','.join(terms)}->{'...' if '...' in ''.join(terms) else ''}ij"
        return [helper.make_node("Einsum", node.input[:2], node.output[:1], equation=equation)]


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


def _read_int(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == name), default)
