"""Whether sums of products of bytes are clipped here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import parser

import hieronnx
import hieronnx.tools.quantize
import hieronnx.tools.verify.verifying
from hieronnx.runtime.saturation import clips_products
from support.exports import export_ours

NET = """<ir_version: 8, opset_import: ["" : 13]> net (uint8[4, 32] a, int8[32, 16] b) => (int32[4, 16] y)
{ y = MatMulInteger(a, b) }"""


def test_it_is_what_large_products_show() -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(200, 256, (4, 32)).astype(np.uint8)
    b = rng.integers(100, 128, (32, 16)).astype(np.int8)
    session = ort.InferenceSession(parser.parse_model(NET).SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"a": a, "b": b})
    assert clips_products() == bool((found != a.astype(np.int32) @ b.astype(np.int32)).any())


@pytest.mark.parametrize("clips", [False, True])
def test_it_is_told_of_signed_weights_alone(clips: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (hieronnx.tools.quantize, hieronnx.tools.verify.verifying):
        monkeypatch.setattr(module, "clips_products", lambda: clips)
    source = export_ours("vit", "torchscript")
    for options, said in (({}, clips), ({"weight_type": "uint8"}, False), ({"reduce_range": True}, False)):
        made = hieronnx.quantize(source, output=tmp_path / "int8.onnx", tool="dynamic", **options)
        assert any("clips sums of products" in note for note in made.notes) == said
    for kind in ("int8", "uint8"):
        hieronnx.quantize(source, output=tmp_path / "int8.onnx", tool="dynamic", weight_type=kind)
        notes = hieronnx.verify(tmp_path / "int8.onnx", source).notes
        assert any("clips sums of products" in note for note in notes) == (clips and kind == "int8")
