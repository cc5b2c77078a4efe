"""Whether sums of products of bytes are clipped here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import numpy_helper, parser
from torch import nn

import hieronnx
import hieronnx.tools.quantize
import hieronnx.tools.verify.verifying
from hieronnx.runtime.saturation import clips_products, undo_clipping
from support.exports import export_ours, quiet

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


CLIPPED = """<ir_version: 8, opset_import: ["" : 13]> net (uint8[4, 32] a, uint8 az) => (int32[4, 16] y)
<int8 bz = {3}> { y = MatMulInteger(a, b, az, bz) }"""


def test_a_model_that_clips_nothing_gives_what_integers_give() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(200, 256, (4, 32)).astype(np.uint8), rng.integers(100, 128, (32, 16)).astype(np.int8)
    model = parser.parse_model(CLIPPED)
    model.graph.initializer.append(numpy_helper.from_array(b, "b"))
    exact = undo_clipping(model)
    session = ort.InferenceSession(exact.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"a": a, "az": np.array(7, np.uint8)})
    assert (found == (a.astype(np.int32) - 7) @ (b.astype(np.int32) - 3)).all()


def test_what_is_lost_by_clipping_is_told_as_its_cause(tmp_path: Path) -> None:
    """Weights and inputs at the ends of their ranges: 8 bits hold them well, and their sums are clipped."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Sigmoid(), nn.Linear(64, 8)).eval()
    with torch.no_grad():
        model[0].weight.copy_(0.01 * (torch.rand(64, 64) > 0.3) - 0.004)
    with quiet():
        hieronnx.export(model, (torch.zeros(4, 64),), tmp_path / "model.onnx", exporter="torchscript")
    (name,) = (value.name for value in onnx.load(tmp_path / "model.onnx").graph.input)
    feeds = [{name: np.random.default_rng(1).uniform(0.8, 1, (4, 64)).astype(np.float32)}]
    causes = {}
    for kind in ("int8", "uint8"):
        path = tmp_path / f"{kind}.onnx"
        hieronnx.quantize(tmp_path / "model.onnx", output=path, tool="dynamic", weight_type=kind)
        result = hieronnx.verify(path, tmp_path / "model.onnx", inputs=feeds)
        causes[kind] = {call.module: call.cause for call in result.calls}
        lost = [note for note in result.notes if "is lost by that clipping" in note]
        assert bool(lost) == (kind == "int8" and clips_products())
    assert causes["int8"]["0"] == ("saturation" if clips_products() else "")
    assert set(causes["uint8"].values()) == {""}
