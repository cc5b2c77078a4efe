"""Whether sums of products of bytes are clipped here: found by computing one, whatever the processor says of itself."""

from __future__ import annotations

from functools import cache

import numpy as np
from onnx import parser

_WIDTH = 64
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
