"""The one table of what kind of work each ONNX operator does, and how much of it should be attributed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hieronnx.errors import InputError, check_known


@dataclass(frozen=True, slots=True)
class Category:
    """A kind of operator, and how much of it should be attributed.

    Attributes:
        name: as used in reports and options.
        threshold: percent of its nodes that should be attributed.
        critical: whether these nodes are the model's real work, not its plumbing.
    """

    name: str
    threshold: float
    critical: bool = False


# Critical work 95, structure 85. The rest depends on context: exporters and optimizers add such nodes of
# their own accord (constants, casts, quantizers), so that a lower share is no sign of a fault.
_CATEGORIES = (
    Category("mathematical", 95, critical=True),
    Category("neural_network_layers", 95, critical=True),
    Category("activation", 95, critical=True),
    Category("normalization", 95, critical=True),
    Category("reduction", 95, critical=True),
    Category("lookup_indexing", 95, critical=True),
    Category("tensor_manipulation", 85),
    Category("shape_metadata", 85),
    Category("parameter_constants", 70),
    Category("comparison_logic", 80),
    Category("type_conversion", 60),
    Category("control_flow", 80),
    Category("quantization", 60),
    Category("sequence_optional", 80),
    Category("random", 80),
    Category("other", 60),
)
CATEGORIES: Mapping[str, Category] = MappingProxyType({category.name: category for category in _CATEGORIES})

# The standard domains: ai.onnx, ai.onnx.ml, ai.onnx.preview and ai.onnx.preview.training. Their names do
# not clash. Deprecated operators stay, for old files have them.
_STANDARD: Mapping[str, str] = {
    "mathematical": """
        Abs Acos Acosh Add AffineGrid Asin Asinh Atan Atanh Ceil Clip Cos Cosh DFT Det Div Einsum Erf Exp
        Floor Gemm Log MatMul Max Mean Min Mod Mul Neg Pow Reciprocal Round STFT Sign Sin Sinh Sqrt Sub
        Sum Tan
    """,
    "neural_network_layers": """
        Attention AveragePool CausalConvWithState Conv ConvTranspose DeformConv Dropout FlexAttention GRU
        GlobalAveragePool GlobalLpPool GlobalMaxPool GridSample LSTM LinearAttention LinearClassifier
        LinearRegressor LpPool MaxPool MaxRoiPool MaxUnpool NegativeLogLikelihoodLoss RNN Resize RoiAlign
        RotaryEmbedding SVMClassifier SVMRegressor SoftmaxCrossEntropyLoss TreeEnsemble
        TreeEnsembleClassifier TreeEnsembleRegressor Upsample
    """,
    "activation": """
        Celu Elu Gelu HardSigmoid HardSwish Hardmax LeakyRelu LogSoftmax Mish PRelu Relu Selu Shrink
        Sigmoid Softmax Softplus Softsign SwiGLU Swish Tanh ThresholdedRelu
    """,
    "normalization": """
        BatchNormalization GroupNormalization InstanceNormalization LRN LayerNormalization LpNormalization
        MeanVarianceNormalization Normalizer RMSNormalization Scaler
    """,
    "reduction": """
        ArgMax ArgMin CumProd CumSum ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean
        ReduceMin ReduceProd ReduceSum ReduceSumSquare TopK
    """,
    "lookup_indexing": """
        ArrayFeatureExtractor CategoryMapper Compress DictVectorizer Gather GatherElements GatherND
        LabelEncoder NonMaxSuppression NonZero OneHot OneHotEncoder Scatter ScatterElements ScatterND
        TensorScatter TfIdfVectorizer Unique
    """,
    "tensor_manipulation": """
        CenterCropPad Col2Im Concat DepthToSpace Expand FeatureVectorizer Flatten Identity Imputer Pad
        Reshape ReverseSequence Slice SpaceToDepth Split Squeeze StringConcat StringNormalizer StringSplit
        Tile Transpose Trilu Unsqueeze
    """,
    "shape_metadata": "Shape Size",
    "parameter_constants": """
        BlackmanWindow Constant ConstantOfShape EyeLike HammingWindow HannWindow MelWeightMatrix Range
    """,
    "comparison_logic": """
        And Binarizer BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Equal Greater GreaterOrEqual
        IsInf IsNaN Less LessOrEqual Not Or RegexFullMatch Where Xor
    """,
    "type_conversion": "BitCast Cast CastLike CastMap ImageDecoder",
    "control_flow": "If Loop Scan",
    "quantization": """
        ConvInteger DequantizeLinear DynamicQuantizeLinear MatMulInteger QLinearConv QLinearMatMul
        QuantizeLinear
    """,
    "sequence_optional": """
        ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt SequenceConstruct
        SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap SplitToSequence ZipMap
    """,
    "random": "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
    "other": "Adagrad Adam Gradient Momentum",
}

# What ONNX Runtime's optimizers and quantizers write beyond the standard: mostly com.microsoft, some of it
# (SimplifiedLayerNormalization, MemcpyToHost) under the standard domain's name.
_RUNTIME: Mapping[str, str] = {
    "mathematical": """
        BiasAdd CDist ComplexMul ComplexMulConj FusedGemm FusedMatMul FusedMatMulActivation GatedAdd
        GemmFloat8 Inverse Irfft Rfft SparseToDenseMatMul TransposeMatMul
    """,
    "neural_network_layers": """
        AttnLSTM BeamSearch BiasDropout BitmaskBiasDropout BitmaskDropout ConvTransposeWithDynamicPads
        CropAndResize DecoderAttention DecoderMaskedMultiHeadAttention DecoderMaskedSelfAttention
        DynamicSparseAttention FusedConv GatedDeltaNet GatedRelativePositionBias
        GreedySearch GroupQueryAttention LinearAttentionGate MRotaryEmbedding
        MaxpoolWithMask MoE MultiHeadAttention NhwcConv NhwcFusedConv NhwcMaxPool PackedAttention
        PackedMultiHeadAttention PagedAttention RelativePositionBias Sampling SparseAttention
        SparsePagedAttention VarlenCausalConvWithState WordConvEmbedding
    """,
    "activation": """
        BiasGelu BiasSoftmax BiasSplitGelu FastGelu GemmFastGelu ParametricSoftplus QuickGelu ScaledSiLU
        ScaledTanh
    """,
    "normalization": """
        BranchwiseRMSNorm EmbedLayerNormalization GatedRMSNorm GroupNorm SimplifiedLayerNormalization
        SkipGroupNorm SkipLayerNormalization SkipSimplifiedLayerNormalization
    """,
    "lookup_indexing": "MurmurHash3 NGramHashMapping TorchEmbedding VarlenNGramHashMapping",
    "tensor_manipulation": """
        ExpandDims MemcpyFromHost MemcpyToHost NGramRepeatBlock RemovePadding ReorderInput ReorderOutput
        RestorePadding Tokenizer UnfoldTensor
    """,
    "comparison_logic": "IsAllFinite",
    "quantization": """
        DequantizeBFP DequantizeWithOrder DynamicQuantizeLSTM DynamicQuantizeMatMul GatherBlockQuantized
        MatMulBlockQuantizedFp4Weight MatMulBlockQuantizedFp8Weight MatMulBnb4 MatMulFpQ4 MatMulInteger16
        MatMulIntegerToFloat MatMulNBits MatMulNBitsMlp MatMulNBitsQkv MulInteger QAttention
        QEmbedLayerNormalization QGemm QLinearAdd QLinearAveragePool QLinearConcat QLinearConvTranspose
        QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul QLinearReduceMean QLinearSigmoid
        QLinearSoftmax QLinearWhere QMoE QOrderedAttention QOrderedGelu QOrderedLayerNormalization
        QOrderedMatMul QuantizeBFP QuantizeWithOrder ReduceSumInteger
    """,
    "other": "EPContext SampleOp Snpe",
}

# Private domains may reuse a name for something else, so that only these are looked up.
DOMAINS = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training"}
    | {"com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"}
)

OPERATORS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {name: tuple(f"{_STANDARD.get(name, '')} {_RUNTIME.get(name, '')}".split()) for name in CATEGORIES}
)
_CATEGORY_OF: Mapping[str, str] = MappingProxyType(
    {operator: category for category, operators in OPERATORS.items() for operator in operators}
)


def category_of(op_type: str, domain: str = "") -> str:
    """Return the name of an operator's category, `other` where the table does not know it."""
    return _CATEGORY_OF.get(op_type, "other") if domain in DOMAINS else "other"


def read_thresholds(given: Mapping[str, float]) -> dict[str, float]:
    """Return the threshold of every category: the one that is given, else its own.

    Raises:
        InputError: If a category is not known, or its threshold is no percentage.
    """
    for name, percent in given.items():
        check_threshold(name, percent)
    return {name: given.get(name, category.threshold) for name, category in CATEGORIES.items()}


def check_threshold(name: str, percent: float) -> None:
    """Make sure that a threshold is one.

    Raises:
        InputError: If there is no such category, or the number is no percentage.
    """
    check_known("category", name, CATEGORIES)
    if not 0 <= percent <= 100:
        raise InputError(f"the threshold of category '{name}' is {percent:g}; it must be between 0 and 100")
