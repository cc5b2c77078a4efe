"""Sums of products of bytes that are clipped: whether they are here, and a model that gives what they should be.

Whether they are is found by computing one, whatever the processor says of itself.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper, parser

from hieronnx.graph.operators import INTEGER_PRODUCT_OPS, name_operator

_WIDTH = 64
_ZERO_POINTS = {"DynamicQuantizeMatMul": 3, "MatMulIntegerToFloat": 5}
"""Where the zero point of the weights is; in the standard operators behind that of the other factor."""
_STANDARD_ZERO_POINT = 3
_PRODUCT = f"""<ir_version: 8, opset_import: ["" : 13]>
product (uint8[1, {_WIDTH}] a, int8[{_WIDTH}, {_WIDTH}] b) => (int32[1, {_WIDTH}] y) {{ y = MatMulInteger(a, b) }}"""


@cache
def clips_products() -> bool:
    """Say whether ONNX Runtime clips sums of products of uint8 and int8, as it does on x86 processors without VNNI.

    Two products are added in 16 bits there, and what does not fit is lost.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    model = parser.parse_model(_PRODUCT).SerializeToString()
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = {"a": np.full((1, _WIDTH), 255, np.uint8), "b": np.full((_WIDTH, _WIDTH), 127, np.int8)}
    (found,) = session.run(None, feeds)
    return bool((found != 255 * 127 * _WIDTH).any())


def undo_clipping(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose products are exact: int8 weights are uint8 with a zero point that is higher by as much.

    Weights that are computed stay as they are.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    signed = {t.name: t for t in made.graph.initializer if t.data_type == TensorProto.INT8}
    moved: dict[str, str] = {}

    def move(name: str) -> str:
        if name not in moved:
            moved[name] = f"{name}/unsigned"
            array = numpy_helper.to_array(signed[name]).astype(np.int16) + 128
            made.graph.initializer.append(numpy_helper.from_array(array.astype(np.uint8), moved[name]))
        return moved[name]

    for node in made.graph.node:
        if name_operator(node.domain, node.op_type) in INTEGER_PRODUCT_OPS and node.input[1] in signed:
            place = _ZERO_POINTS.get(node.op_type, _STANDARD_ZERO_POINT)
            node.input.extend([""] * (place + 1 - len(node.input)))
            if node.input[place] in signed:
                node.input[1], node.input[place] = move(node.input[1]), move(node.input[place])
            elif not node.input[place]:
                zero = f"{node.input[1]}/zero"
                made.graph.initializer.append(numpy_helper.from_array(np.array(128, np.uint8), zero))
                node.input[1], node.input[place] = move(node.input[1]), zero
    return made


def has_signed_weights(model: onnx.ModelProto) -> bool:
    """Say whether a model has products that may be clipped: by weights in int8."""
    signed = {t.name for t in model.graph.initializer if t.data_type == TensorProto.INT8}
    return any(
        name_operator(node.domain, node.op_type) in INTEGER_PRODUCT_OPS and node.input[1] in signed
        for node in model.graph.node
    )
