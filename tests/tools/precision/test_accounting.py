"""What a quantizer did is counted by call: in 8 bits, in float and why, bytes before and after."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper, shape_inference
from torch import Tensor, nn

import hieronnx
from support.annotated import annotated
from support.cli import run
from support.exports import export_ours, quiet, shared_folder

MODELS = [("bert", "dynamo", "encoder.layer.0"), ("gpt2", "torchscript", "transformer.h.1")]
MODELS += [("conv_batch_norm_residual", "dynamo", "block")]


@cache
def quantized(name: str, exporter: str, tool: str, exclude: str) -> tuple[hieronnx.CarryResult, onnx.ModelProto]:
    output = Path(mkdtemp(prefix=f"{name}-{exporter}-{tool}-", dir=shared_folder())) / "out.onnx"
    drawn = 2 if tool == "static" else 0
    result = hieronnx.quantize(
        export_ours(name, exporter), output=output, tool=tool, exclude=exclude, random_calibration=drawn
    )
    return result, onnx.load(output)


def count_by_eye(tool: str, model: onnx.ModelProto) -> int:
    """Count the quantized nodes by their kinds and types, not by what hieronnx found."""
    if tool == "dynamic":
        bytes_ = {t.name for t in model.graph.initializer if t.data_type in (TensorProto.INT8, TensorProto.UINT8)}
        looked_up = [n for n in model.graph.node if n.op_type in ("Gather", "Transpose") and n.input[0] in bytes_]
        return len(looked_up) + sum(node.op_type.endswith("Integer") for node in model.graph.node)
    inferred = shape_inference.infer_shapes(model, strict_mode=True).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*inferred.value_info, *inferred.output)}
    made = [node for node in model.graph.node if not node.name.endswith("_cast_to_fp16_node")]
    return sum(any(types[name] == TensorProto.FLOAT16 for name in node.output if name) for node in made)


@pytest.mark.parametrize("tool", ["dynamic", "fp16"])
@pytest.mark.parametrize(("name", "exporter", "exclude"), MODELS)
def test_as_many_nodes_are_quantized_as_the_file_shows(name: str, exporter: str, exclude: str, tool: str) -> None:
    result, model = quantized(name, exporter, tool, exclude)
    assert result.precision.quantized == count_by_eye(tool, model)


@pytest.mark.parametrize("tool", ["dynamic", "static", "fp16"])
@pytest.mark.parametrize(("name", "exporter", "exclude"), MODELS)
def test_every_node_and_every_byte_is_counted(name: str, exporter: str, exclude: str, tool: str) -> None:
    result, model = quantized(name, exporter, tool, exclude)
    report, before = result.precision, hieronnx.load(export_ours(name, exporter))
    for call in report.calls:
        assert call.quantized + call.in_float + call.other == before.node_counts[call.id]
        assert sum(call.reasons.values()) == call.in_float
    assert sum(group.nodes for group in report.kept) == report.in_float
    source = onnx.load(export_ours(name, exporter))
    for graph, told in ((source.graph, report.bytes_before), (model.graph, report.bytes_after)):
        assert told == sum(numpy_helper.to_array(tensor).nbytes for tensor in graph.initializer)
    assert report.bytes_after < report.bytes_before or (tool, name) == ("dynamic", "conv_batch_norm_residual")


@pytest.mark.parametrize("tool", ["dynamic", "static", "fp16"])
@pytest.mark.parametrize(("name", "exporter", "exclude"), MODELS)
def test_what_was_excluded_is_in_float_for_that_reason(name: str, exporter: str, exclude: str, tool: str) -> None:
    result, _ = quantized(name, exporter, tool, exclude)
    calls = {str(call.id): call for call in result.precision.calls}
    assert calls[exclude].quantized == 0
    assert set(calls[exclude].reasons) == {"excluded"}
    before, after = calls[exclude].bytes_before, calls[exclude].bytes_after
    assert abs(after - before) < 100, "no more than scales of what others quantize, and constants that these share"
    assert before > 1000


TEXT = '<ir_version: 10, opset_import: ["" : 21]> net (float[4,4] x) => (float[4,8] y) {'
TEXT += " k = Constant<value_float = 2.0>()  a = MatMul(x, w)  b = MatMul(x, w)  t = Transpose<perm = [1, 0]>(a)"
TEXT += " c = MatMul(a, t)  d = Tanh(c)  e = Shape(d)  f = MatMul(d, b)  g = Mul(f, k)  z = Reshape(g, e)"
TEXT += " h = MatMul(z, v)  y = Gelu(h) }"
REASONS = {
    "dynamic": {
        ("no quantized kernel", "Tanh"),
        ("no quantized kernel", "Mul"),
        ("no quantized kernel", "Reshape"),
        ("no constant weight", "MatMul"),
        ("constant", "Constant"),
        ("input in float", "Transpose"),
        ("no quantized kernel", "Gelu"),
    },
    "static": {("no quantized kernel", "Tanh"), ("constant", "Constant"), ("no quantized kernel", "Gelu")},
    "fp16": set(),
}


def make_model() -> onnx.ModelProto:
    model = onnx.parser.parse_model(TEXT)
    random = np.random.default_rng(0)
    for name, shape in (("w", (4, 4)), ("v", (4, 8))):
        model.graph.initializer.append(numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name))
    return annotated(model, ["m"] * len(model.graph.node))


@pytest.mark.parametrize("tool", list(REASONS))
def test_the_reasons(tool: str, tmp_path: Path) -> None:
    drawn = 1 if tool == "static" else 0
    result = hieronnx.quantize(make_model(), output=tmp_path / "o.onnx", tool=tool, random_calibration=drawn)
    found = {(group.reason, group.op_type) for group in result.precision.kept}
    assert found >= REASONS[tool]
    assert {reason for reason, _ in found} <= {reason for reason, _ in REASONS[tool]} | {"constant"}
    assert result.precision.other == 1  # the Shape
    assert result.precision.bits == (16 if tool == "fp16" else 8)


@pytest.mark.parametrize(("second", "quantized"), [("b", 5), ("k", 2)])
def test_what_selects_values_is_in_float_where_one_of_them_is(second: str, quantized: int, tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["" : 21]> net (bool[4,4] c, float[4,4] x) => (float[4,4] y, float[4,4] z)'
    text += f" {{ a = MatMul(x, w)  b = MatMul(a, w)  s = Where(c, a, {second})  t = Relu(s)"
    text += "  y = Transpose<perm = [1, 0]>(t)  z = Neg(b) }"
    model = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    for name in ("w", "k"):
        model.graph.initializer.append(numpy_helper.from_array(random.standard_normal((4, 4)).astype(np.float32), name))
    source = annotated(model, ["m"] * len(model.graph.node))
    report = hieronnx.quantize(source, output=tmp_path / "o.onnx", tool="static", random_calibration=1).precision
    assert report.quantized == quantized
    followers = {group.op_type for group in report.kept if group.reason == "input in float"}
    assert followers == (set() if second == "b" else {"Where", "Relu", "Transpose"})


def test_operators_that_were_not_chosen_are_told(tmp_path: Path) -> None:
    options: dict[str, Any] = {"tool": "static", "random_calibration": 1, "operators": "MatMul"}
    report = hieronnx.quantize(make_model(), output=tmp_path / "o.onnx", **options).precision
    reasons = Counter({(group.reason, group.op_type): group.nodes for group in report.kept})
    assert reasons["operator not chosen", "Mul"] == 1
    assert report.quantized == 5
    assert all(operator != "MatMul" for _, operator in reasons)


def test_bodies_are_told(tmp_path: Path) -> None:
    report = hieronnx.quantize(export_ours("cond", "dynamo"), output=tmp_path / "o.onnx", tool="dynamic").precision
    assert any(group.reason == "in control flow" for group in report.kept)


def test_the_report_is_short_and_can_be_had_whole(tmp_path: Path) -> None:
    source = export_ours("bert", "dynamo")
    short = run("quantize", source, "-o", tmp_path / "o.onnx", "--with", "dynamic").stdout
    whole = run("quantize", source, "-o", tmp_path / "o.onnx", "--with", "dynamic", "--depth", 9).stdout
    assert "in 8 bits" in short
    assert "BertEncoder" in short
    assert "BertLayer.1 " not in short
    assert "deeper: --depth shows them" in short
    assert "BertLayer.1 " in whole
    assert "deeper" not in whole


def test_json_has_it(tmp_path: Path) -> None:
    source = export_ours("bert", "dynamo")
    told = json.loads(run("quantize", source, "-o", tmp_path / "o.onnx", "--with", "dynamic", "--json").stdout)
    result = hieronnx.quantize(source, output=tmp_path / "o.onnx", tool="dynamic")
    assert told["precision"] == result.precision.to_dict()
    assert told["precision"]["quantized"] == result.precision.calls[0].quantized > 0


def test_without_a_sidecar_the_totals_are_known(tmp_path: Path) -> None:
    model = onnx.load(export_ours("bert", "dynamo"))
    report = hieronnx.quantize(model, output=tmp_path / "o.onnx", tool="dynamic").precision
    assert report.bytes_after < report.bytes_before
    assert report.calls[1].bytes_before is None
    assert "?" in run("quantize", make_file(model, tmp_path), "-o", tmp_path / "p.onnx", "--with", "dynamic").stdout


def make_file(model: onnx.ModelProto, folder: Path) -> Path:
    onnx.save(model, folder / "alone.onnx")
    return folder / "alone.onnx"


class Shared(nn.Module):
    """A block with a normalization to fold in, called more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.block(x)) + self.block(x.flip(-1))


def test_weights_that_calls_of_a_module_share_are_the_modules(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Shared().eval()
    with quiet():
        hieronnx.export(model, (torch.randn(1, 8, 8, 8),), tmp_path / "m.onnx", exporter="torchscript")
    options: dict[str, Any] = {"tool": "static", "random_calibration": 2}
    report = hieronnx.quantize(tmp_path / "m.onnx", output=tmp_path / "q.onnx", **options).precision
    weights = [numpy_helper.to_array(t) for t in onnx.load(tmp_path / "q.onnx").graph.initializer]
    block = next(call for call in report.calls if call.module == "block")
    assert block.bytes_after >= sum(array.nbytes for array in weights if array.size >= 8 * 8 * 9)
