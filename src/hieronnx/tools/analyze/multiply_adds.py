"""The multiply-adds of an operator, by the shapes of its tensors: one table of formulas.

What multiplies and sums is counted: matrix products, convolutions, recurrent layers, attention. Pointwise work,
normalization, pooling and moving data count as none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from types import MappingProxyType
from typing import Any, TypeAlias

from hieronnx.hierarchy.categories import DOMAINS, OPERATORS
from hieronnx.tools.analyze.formulas import Size, broadcast, multiply

Shape: TypeAlias = tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator with the shapes of its tensors: None where one is not wholly known, empty where it is absent."""

    op_type: str
    domain: str
    inputs: Sequence[Shape | None]
    outputs: Sequence[Shape | None]
    attributes: Mapping[str, Any]

    def input(self, position: int) -> Shape | None:
        """Return the shape of an input: None if it is not known, empty if there is none."""
        return self.inputs[position] if position < len(self.inputs) else ()

    def output(self, position: int) -> Shape | None:
        """Return the shape of an output: None if it is not known, empty if there is none."""
        return self.outputs[position] if position < len(self.outputs) else ()


_Formula: TypeAlias = Callable[[Operation], "Size | None"]


def needs_shapes(op_type: str, domain: str) -> bool:
    """Say whether the operator's count depends on shapes; if not, it is 0 or cannot be known."""
    return _find_formula(op_type, domain) is not None


def count_multiply_adds(operation: Operation) -> Size | None:
    """Return an operator's multiply-adds; None where its shapes do not tell or the operator is not known."""
    op_type, domain = operation.op_type, operation.domain
    formula = _find_formula(op_type, domain)
    if formula is None:
        return 0 if domain in DOMAINS and op_type in _WITHOUT else None
    try:
        count = formula(operation)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None  # what does not fit the operator (too few axes, a stride of 0) has no count
    return count if not isinstance(count, int) or count >= 0 else None


def _find_formula(op_type: str, domain: str) -> _Formula | None:
    if domain not in DOMAINS:
        return None
    return _DOMAIN_FORMULAS.get(domain, _FORMULAS).get(op_type) or _FORMULAS.get(op_type)


# -- matrix products --------------------------------------------------------------------------------------


def _matmul(op: Operation, other: int = 1) -> Size | None:
    """Count the product of the first input and another."""
    a = _transposed(op.input(0), op, "transA", "transBatchA")
    b = _transposed(op.input(other), op, "transB", "transBatchB")
    if a and b:
        batch = zip_longest(reversed(a[:-2]), reversed(b[:-2]), fillvalue=1)
        sizes = [broadcast(*pair) for pair in batch]  # it raises where they do not fit
        return multiply(*sizes, *a[-2:], b[-1] if len(b) > 1 else 1)
    output, inner = op.output(0), a[-1:] if a else (b or ())[-2:]
    return multiply(*output) * inner[0] if output is not None and inner else None


def _transposed(shape: Shape | None, op: Operation, matrix: str, batch: str) -> Shape | None:
    """Return the shape after the transpositions that ONNX Runtime's fused operators do themselves."""
    if shape is None or len(shape) < 2:
        return shape
    if op.attributes.get(batch):
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if op.attributes.get(matrix) else shape


def _packed_matmul(op: Operation) -> Size | None:
    """Count a product with weights in blocks: their size is an attribute, or the output's."""
    a, made = op.input(0), op.output(0)
    if not a:
        return None
    columns = op.attributes.get("N") or (made[-1] if made else None)
    return None if columns is None else multiply(*a) * columns


def _einsum(op: Operation) -> Size | None:
    """Count every combination of indices once for each product of two operands."""
    if any(shape is None for shape in op.inputs):
        return None
    terms = str(op.attributes.get("equation", "")).replace(" ", "").partition("->")[0].split(",")
    if len(terms) != len(op.inputs):
        return None
    sizes: dict[str, Size] = {}
    for term, shape in zip(terms, op.inputs, strict=True):
        labels = _label(term, len(shape or ()))
        if labels is None:
            return None
        for label, size in zip(labels, shape or (), strict=True):
            sizes[label] = broadcast(sizes.get(label, 1), size)
    return multiply(*sizes.values()) * (len(terms) - 1)


def _label(term: str, rank: int) -> list[str] | None:
    """Return a label for each axis; those under an ellipsis count from the right. None where they do not fit."""
    before, dots, after = term.partition("...")
    free = rank - len(before) - len(after)
    if free < 0 or (free and not dots):
        return None
    return [*before, *(f"...{position}" for position in range(free, 0, -1)), *after]


# -- convolutions -----------------------------------------------------------------------------------------


def _conv(op: Operation, weight_position: int = 1, *, channels_last: bool = False) -> Size | None:
    """Count a convolution with its weight (filters, channels of a group, sizes) at this input."""
    weight = op.input(weight_position)
    if not weight:
        return None
    output = op.output(0) or (None if channels_last else _convolve(op.input(0), weight, op.attributes))
    return multiply(*output) * multiply(*weight[1:]) if output else None


def _convolve(shape: Shape | None, weight: Shape, attributes: Mapping[str, Any]) -> Shape | None:
    """Return the shape of a convolution's output."""
    if shape is None or len(shape) != len(weight):
        return None
    axes = len(weight) - 2
    strides = attributes.get("strides") or (1,) * axes
    dilations = attributes.get("dilations") or (1,) * axes
    pads = attributes.get("pads") or (0,) * (2 * axes)
    same = str(attributes.get("auto_pad", "")).startswith("SAME")
    sizes = []
    for axis, (size, kernel) in enumerate(zip(shape[2:], weight[2:], strict=True)):
        reach = dilations[axis] * (kernel - 1) + 1
        room = size - 1 if same else size + pads[axis] + pads[axis + axes] - reach
        sizes.append(room // strides[axis] + 1)
    return (shape[0], weight[0], *sizes)


def _conv_transpose(op: Operation, weight_position: int = 1) -> Size | None:
    """Count a transposed convolution: every element of the input meets the kernel of its channel."""
    shape, weight = op.input(0), op.input(weight_position)
    return multiply(*shape) * multiply(*weight[1:]) if shape and weight else None


def _causal_conv(op: Operation) -> Size | None:
    shape, weight = op.input(0), op.input(1)
    return multiply(*shape) * weight[-1] if shape and weight else None


# -- layers -----------------------------------------------------------------------------------------------


def _recurrent(op: Operation) -> Size | None:
    """Count the products with the two weights at every step of every sequence."""
    shape, weight, recurrence = op.input(0), op.input(1), op.input(2)
    if shape is None or len(shape) != 3 or weight is None or recurrence is None:
        return None
    return shape[0] * shape[1] * (multiply(*weight) + multiply(*recurrence))


def _attend(batch: Size, queries: Size, keys: Size, width: Size, value_width: Size) -> Size:
    """Count scores and weighted values over all heads; what a causal mask hides is counted too."""
    return batch * queries * keys * (width + value_width)


def _attention(op: Operation) -> Size | None:
    """Count the standard operator's, with heads packed in three dimensions or apart in four."""
    query, key, value, past = op.input(0), op.input(1), op.input(2), op.input(4)
    if not (query and key and value) or past is None:
        return None
    if {len(query), len(key), len(value)} == {4}:
        _, heads, queries, size = query
        keys, value_size = key[2], value[3]
    elif {len(query), len(key), len(value)} == {3}:
        heads, key_heads = op.attributes.get("q_num_heads", 0), op.attributes.get("kv_num_heads", 0)
        if not heads or not key_heads:
            return None
        queries, size, keys, value_size = query[1], query[2] // heads, key[1], value[2] // key_heads
    else:
        return None
    return _attend(query[0], queries, keys + (past[2] if past else 0), heads * size, heads * value_size)


def _projected_attention(op: Operation, past_position: int = 4) -> Size | None:
    """Count ONNX Runtime's attention that projects its input itself."""
    shape, weight, past = op.input(0), op.input(1), op.input(past_position)
    if shape is None or len(shape) != 3 or weight is None or len(weight) != 2 or past is None:
        return None
    sizes = op.attributes.get("qkv_hidden_sizes") or (weight[1] // 3,) * 3
    keys = shape[1] + (past[3] if past else 0)
    return multiply(*shape) * weight[1] + _attend(shape[0], shape[1], keys, sizes[0], sizes[2])


def _multi_head_attention(op: Operation) -> Size | None:
    query, key, value, past = op.input(0), op.input(1), op.input(2), op.input(6)
    if query is None or key is None or value is None or past is None:
        return None
    before = past[2] if past else 0
    if len(query) == 5:  # (batch, sequence, heads, 3, size): keys and values are packed with the queries
        width = query[2] * query[4]
        return _attend(query[0], query[1], query[1] + before, width, width)
    if len(query) != 3:
        return None
    if len(key) == 5:  # (batch, sequence, heads, 2, size): values are packed with the keys
        return _attend(query[0], query[1], key[1] + before, query[2], key[2] * key[4])
    if len(key) != len(value) or len(key) not in (3, 4):
        return None
    keys, value_width = (key[1], value[2]) if len(value) == 3 else (key[2], value[1] * value[3])
    return _attend(query[0], query[1], keys + before, query[2], value_width)


def _group_query_attention(op: Operation) -> Size | None:
    query, past, present = op.input(0), op.input(3), op.output(1)
    heads, key_heads = op.attributes.get("num_heads"), op.attributes.get("kv_num_heads")
    if query is None or len(query) != 3 or not heads or not key_heads or (past is None and not present):
        return None
    packed = op.input(1) == ()
    width = heads * (query[2] // (heads + 2 * key_heads)) if packed else query[2]
    keys = present[2] if present else query[1] + (past[2] if past else 0)
    return _attend(query[0], query[1], keys, width, width)


def _experts(op: Operation) -> Size | None:
    """Count the experts that each token is sent to."""
    shape, first, second, gate = op.input(0), op.input(2), op.input(4), op.input(6)
    if not shape or not first or not second or gate is None:
        return None
    each = multiply(*first[1:]) + multiply(*second[1:]) + (multiply(*gate[1:]) if gate else 0)
    return multiply(*shape[:-1]) * int(op.attributes.get("k", 1)) * each


def _linear_model(op: Operation) -> Size | None:
    shape = op.input(0)
    return None if shape is None else multiply(*shape[:-1]) * len(op.attributes.get("coefficients", ()))


# -- the table --------------------------------------------------------------------------------------------

_FORMULAS: Mapping[str, _Formula] = MappingProxyType(
    {
        **dict.fromkeys(("MatMul", "MatMulInteger", "Gemm"), _matmul),
        "QLinearMatMul": partial(_matmul, other=3),
        "Einsum": _einsum,
        **dict.fromkeys(("Conv", "ConvInteger", "DeformConv"), _conv),
        "QLinearConv": partial(_conv, weight_position=3),
        "ConvTranspose": _conv_transpose,
        "CausalConvWithState": _causal_conv,
        **dict.fromkeys(("RNN", "GRU", "LSTM"), _recurrent),
        "Attention": _attention,
        **dict.fromkeys(("LinearClassifier", "LinearRegressor"), _linear_model),
    }
)

_RUNTIME_MATMULS = """
    DynamicQuantizeMatMul FusedGemm FusedMatMul FusedMatMulActivation GemmFastGelu GemmFloat8 MatMulInteger16
    MatMulIntegerToFloat TransposeMatMul
"""
_PACKED_MATMULS = "MatMulBlockQuantizedFp4Weight MatMulBlockQuantizedFp8Weight MatMulBnb4 MatMulFpQ4 MatMulNBits"

_NHWC_CONV = partial(_conv, channels_last=True)
_NHWC_QLINEAR_CONV = partial(_conv, weight_position=3, channels_last=True)

# Of ONNX Runtime; where it has an operator of a standard one's name, its own formula comes first.
_RUNTIME_FORMULAS: Mapping[str, _Formula] = MappingProxyType(
    {
        **dict.fromkeys(_RUNTIME_MATMULS.split(), _matmul),
        "QGemm": partial(_matmul, other=3),
        "QLinearMatMul": partial(_matmul, other=3),
        "QOrderedMatMul": partial(_matmul, other=2),
        **dict.fromkeys(_PACKED_MATMULS.split(), _packed_matmul),
        "FusedConv": _conv,
        **dict.fromkeys(("NhwcConv", "NhwcFusedConv"), _NHWC_CONV),
        "QLinearConv": _NHWC_QLINEAR_CONV,
        "ConvTransposeWithDynamicPads": _conv_transpose,
        "QLinearConvTranspose": partial(_conv_transpose, weight_position=3),
        "DynamicQuantizeLSTM": _recurrent,
        "Attention": _projected_attention,
        "QAttention": partial(_projected_attention, past_position=8),
        "MultiHeadAttention": _multi_head_attention,
        "GroupQueryAttention": _group_query_attention,
        "MoE": _experts,
    }
)

_DOMAIN_FORMULAS: Mapping[str, Mapping[str, _Formula]] = MappingProxyType(
    {
        "com.microsoft": _RUNTIME_FORMULAS,
        "com.ms.internal.nhwc": {
            "Conv": _NHWC_CONV,
            "QLinearConv": _NHWC_QLINEAR_CONV,
        },
    }
)

# These multiply and sum, and no formula here says how much.
_UNCOUNTED = """
    AffineGrid AttnLSTM BeamSearch CDist DFT DecoderAttention DecoderMaskedMultiHeadAttention
    DecoderMaskedSelfAttention Det DynamicSparseAttention EPContext FlexAttention GatedDeltaNet
    GatedRelativePositionBias Gradient GreedySearch Inverse Irfft LinearAttention LinearAttentionGate
    MatMulNBitsMlp MatMulNBitsQkv PackedAttention PackedMultiHeadAttention PagedAttention QMoE
    QOrderedAttention Rfft STFT SVMClassifier SVMRegressor SampleOp Sampling Snpe SparseAttention
    SparsePagedAttention SparseToDenseMatMul VarlenCausalConvWithState WordConvEmbedding
"""

_WITHOUT = (
    frozenset(operator for operators in OPERATORS.values() for operator in operators)
    - frozenset(_UNCOUNTED.split())
    - _FORMULAS.keys()
    - _RUNTIME_FORMULAS.keys()
)
