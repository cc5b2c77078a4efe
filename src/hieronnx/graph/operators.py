"""Every set of operators that a rule goes by, so that two rules cannot mean different sets by one word."""

from __future__ import annotations

from collections.abc import Mapping

RANDOM_OPS = frozenset(
    {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""They give something else each time."""

CAST_OPS = frozenset({"Cast", "CastLike"})
"""They give the values of their first input in a type that is asked for."""

COPY_OPS = CAST_OPS | {"Identity"}
"""They give the values of their first input, perhaps in another type."""

VARIADIC_OPS = frozenset({"Concat", "Max", "Mean", "Min", "Sum"})
"""They join any number of tensors; of one alone they give that."""

QUANTIZE_OPS = frozenset({"QuantizeLinear", "DynamicQuantizeLinear", "com.microsoft::QuantizeLinear"})
"""They give other numbers, which stand for the same values."""

DEQUANTIZE_OPS = frozenset({"DequantizeLinear", "com.microsoft::DequantizeLinear"})
"""They give the values that numbers in few bits stand for."""

BOUNDING_OPS = frozenset({"Clip", "Relu"})
"""They bound values, which a rounding may do as well: what is out of its range becomes the nearest that is in it."""

BLOCKED_DOMAIN = "com.microsoft.nchwc"
"""The domain of operators that read and write channels in blocks, the last one filled up with zeros."""

LAYOUT_OPS = frozenset({f"{BLOCKED_DOMAIN}::ReorderInput", f"{BLOCKED_DOMAIN}::ReorderOutput"})
"""They put their first input into another order in memory."""

PASSTHROUGH_OPS = COPY_OPS | QUANTIZE_OPS | LAYOUT_OPS | DEQUANTIZE_OPS
"""They pass their first input on as it is, but for its type, its precision or its layout in memory."""

RESHAPE_OPS = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
"""They keep the order of the elements, whatever sizes they give them."""

VIEW_OPS = COPY_OPS | RESHAPE_OPS | {"DequantizeLinear", "QuantizeLinear", "Transpose"}
"""They give all values of their first input, in another form."""

LOOKUP_OPS = frozenset({"Gather", "GatherElements", "GatherND"})
"""They give the values of their first input that are asked for."""

DATA_MOVEMENT_OPS = (
    PASSTHROUGH_OPS
    | RESHAPE_OPS
    | LOOKUP_OPS
    | {"Concat", "DepthToSpace", "Expand", "Pad", "Slice", "SpaceToDepth", "Split", "Tile", "Transpose"}
    | {"ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SplitToSequence"}
)
"""They compute nothing: they move elements, or pass them on."""

SIZE_OPS = frozenset({"Shape", "Size"})
"""They take sizes of a tensor."""

# What exporters compute with sizes: numbers and short lists of them. A tensor made to measure (Range, Expand, …) is no
# size itself: a module may well receive it.
SIZE_PICKING_OPS = frozenset({"Cast", "Gather", "Identity", "Neg", "Reshape", "Slice", "Squeeze", "Unsqueeze"})
SIZE_JOINING_OPS = frozenset({"Add", "Concat", "Div", "Equal", "Floor", "Max", "Min", "Mod", "Mul", "Sub", "Where"})

INTEGER_PRODUCT_OPS = frozenset(
    {"ConvInteger", "MatMulInteger", "com.microsoft::DynamicQuantizeMatMul", "com.microsoft::MatMulIntegerToFloat"}
)
"""They multiply bytes and add up integers; the second input is the weights."""

LOOP_OPS = frozenset({"Loop", "Scan"})
"""They run their body several times."""

SEQUENCE_OPS = frozenset(
    {"Optional", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceMap"}
    | {"SplitToSequence"}
)
"""What they give is no tensor."""

NEUTRAL_OPERANDS: Mapping[str, int] = {"Add": 0, "Mul": 1, "Sub": 0, "Div": 1}
"""With this as their second operand they change nothing; the commutative ones also with this as their first."""
COMMUTATIVE_OPS = frozenset({"Add", "Mul"})

AFFINE_INPUTS: Mapping[str, tuple[int, ...]] = {
    "Add": (0, 1),
    "BatchNormalization": (0,),
    "Div": (0,),
    "Mul": (0, 1),
    "Sub": (0, 1),
}
"""Each of these inputs they scale and shift, if all others are constants: that may be folded into a product."""
SCALING_OPS = frozenset({"Div", "Mul"})
"""Those of them that shift nothing."""

PRODUCT_OPS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""They multiply their first two inputs, and add the third if there is one."""

VALUE_FREE_INPUTS: Mapping[str, int] = {"Shape": 0, "Size": 0, "EyeLike": 0, "CastLike": 1}
"""The input of which only the shape or the element type counts, not the values."""


def name_domain(domain: str) -> str:
    """Return the name of a domain that operators are known by: nothing for ONNX's own, which has two."""
    return "" if domain == "ai.onnx" else domain


def name_operator(domain: str, op_type: str) -> str:
    """Name an operator as the sets above do: with its domain, unless that is ONNX's own."""
    return f"{domain}::{op_type}" if domain else op_type
