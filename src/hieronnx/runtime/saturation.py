"""Sums of products of bytes that are clipped: whether they are here, and a model that gives what they should be.

Whether they are is found by computing one, whatever the processor says of itself.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

from hieronnx.graph.operators import INTEGER_PRODUCT_OPS, name_operator

_WIDTH = 64
_ZERO_POINTS = {"DynamicQuantizeMatMul": 3, "MatMulIntegerToFloat": 5}
"""Where the zero point of the weights is; in the standard operators behind that of the other factor."""
_MADE = "hieronnx exact "
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

    The model computes them itself, for its weights may be in a file of their own. Those that are computed stay as they
    are.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    signed = {tensor.name for tensor in made.graph.initializer if tensor.data_type == TensorProto.INT8}
    zero, shift = f"{_MADE}zero", f"{_MADE}shift"
    steps: dict[str, list[onnx.NodeProto]] = {}

    def move(name: str) -> str:
        """Return the name of what is higher by 128."""
        if not name:
            return zero
        wide, higher, moved = (f"{_MADE}{step} {name}" for step in ("wide", "higher", "moved"))
        steps[name] = [
            helper.make_node("Cast", [name], [wide], to=TensorProto.INT32),
            helper.make_node("Add", [wide, shift], [higher]),
            helper.make_node("Cast", [higher], [moved], to=TensorProto.UINT8),
        ]
        return moved

    for node in made.graph.node:
        if name_operator(node.domain, node.op_type) in INTEGER_PRODUCT_OPS and node.input[1] in signed:
            place = _ZERO_POINTS.get(node.op_type, _STANDARD_ZERO_POINT)
            node.input.extend([""] * (place + 1 - len(node.input)))
            if node.input[place] in {"", *signed}:
                node.input[1], node.input[place] = move(node.input[1]), move(node.input[place])
    first = onnx.GraphProto(node=[*(step for name in steps for step in steps[name]), *made.graph.node])
    del made.graph.node[:]
    made.graph.node.extend(first.node)
    made.graph.initializer.append(numpy_helper.from_array(np.array(128, np.uint8), zero))
    made.graph.initializer.append(numpy_helper.from_array(np.array(128, np.int32), shift))
    return made


def has_signed_weights(model: onnx.ModelProto) -> bool:
    """Say whether a model has products that may be clipped: by weights in int8."""
    signed = {t.name for t in model.graph.initializer if t.data_type == TensorProto.INT8}
    return any(
        name_operator(node.domain, node.op_type) in INTEGER_PRODUCT_OPS and node.input[1] in signed
        for node in model.graph.node
    )
