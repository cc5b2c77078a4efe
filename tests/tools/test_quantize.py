"""Running quantizers of others on all but chosen modules, and keeping the hierarchy."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
import transformers
from onnx import TensorProto, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn

import hieronnx
from hieronnx import HieronnxError, load
from hieronnx.cli import cli
from hieronnx.runtime.inputs import draw_feeds, read_inputs
from hieronnx.tools.quantize import QUANTIZERS
from support.annotated import annotated
from support.cli import run
from support.exports import export_ours, quiet, shared_folder

TOOLS = ["dynamic", "static", "fp16", "int4"]
MODELS = [
    ("bert", "dynamo", "encoder.layer.0.*"),
    ("bert", "torchscript", "encoder.layer.0.*"),
    ("gpt2", "torchscript", "transformer.h.1"),
    ("conv_batch_norm_residual", "dynamo", "block.*"),
]


@cache
def quantized(name: str, exporter: str, tool: str, *exclude: str) -> tuple[hieronnx.CarryResult, onnx.ModelProto]:
    """Quantize a zoo model; return the result, and the file."""
    output = Path(mkdtemp(prefix=f"{name}-{exporter}-{tool}-", dir=shared_folder())) / "out.onnx"
    drawn = 2 if tool == "static" else 0
    result = hieronnx.quantize(
        export_ours(name, exporter), output=output, tool=tool, exclude=exclude, random_calibration=drawn
    )
    return result, onnx.load(output)


def outputs(path: Path) -> list[np.ndarray]:
    feeds = dict(draw_feeds(read_inputs(path), 1)[0])
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feeds)


# --- what stays in float: seen in the graph, not in what hieronnx says of it ---


def quantized_nodes(tool: str, model: onnx.ModelProto) -> set[str]:
    """Return the names that the quantized nodes had."""
    kinds = {"dynamic": in_integers, "static": on_quantized_weights, "fp16": in_half, "int4": in_four_bits}
    return kinds[tool](model)


def in_integers(model: onnx.ModelProto) -> set[str]:
    names = (node.name for node in model.graph.node if node.op_type.endswith("Integer"))
    return {name.removesuffix("_quant").removesuffix("_MatMul") for name in names}  # a Gemm becomes MatMul and Add


def in_four_bits(model: onnx.ModelProto) -> set[str]:
    names = (node.name for node in model.graph.node if node.op_type == "MatMulNBits")
    return {name.removesuffix("_Q4").removesuffix("_MatMul") for name in names}


def on_quantized_weights(model: onnx.ModelProto) -> set[str]:
    held = {tensor.name for tensor in model.graph.initializer}
    weights = {
        node.output[0] for node in model.graph.node if node.op_type == "DequantizeLinear" and node.input[0] in held
    }
    return {node.name for node in model.graph.node if weights.intersection(node.input)}


def in_half(model: onnx.ModelProto) -> set[str]:
    inferred = shape_inference.infer_shapes(model, strict_mode=True).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*inferred.value_info, *inferred.output)}
    return {
        node.name
        for node in model.graph.node
        if any(types[name] == TensorProto.FLOAT16 for name in node.output if name)
        and not node.name.endswith("_cast_to_fp16_node")
    }


def nodes_of(name: str, exporter: str, prefix: str) -> set[str]:
    """Return the names of the nodes that work for a module or one below it, as exported."""
    return {
        node.name
        for node in load(export_ours(name, exporter)).nodes
        if any(call.module.startswith(prefix) for call in (node.scope, *node.origins))
    }


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(("name", "exporter", "pattern"), MODELS)
def test_exactly_the_excluded_nodes_stay_in_float(name: str, exporter: str, pattern: str, tool: str) -> None:
    _, everything = quantized(name, exporter, tool)
    _, some = quantized(name, exporter, tool, pattern)
    inside = nodes_of(name, exporter, pattern.removesuffix(".*"))
    before, after = quantized_nodes(tool, everything), quantized_nodes(tool, some)
    assert before & inside or (name == "conv_batch_norm_residual" and tool in ("dynamic", "int4"))
    assert after == before - inside


@pytest.mark.parametrize(("name", "exporter", "pattern"), MODELS)
def test_nothing_is_rounded_between_excluded_nodes(name: str, exporter: str, pattern: str) -> None:
    _, model = quantized(name, exporter, "fp16", pattern)
    makers = {output: node for node in model.graph.node for output in node.output}
    back_to_float = [node for node in model.graph.node if node.name.endswith("_cast_to_fp32_node")]
    assert back_to_float
    for node in back_to_float:
        maker = makers.get(node.input[0])
        assert maker is None or not maker.name.endswith("_cast_to_fp16_node")


def test_large_values_survive_in_excluded_modules(tmp_path: Path) -> None:
    text = "net (float[2] x) => (float[2] y) <float k = {1000.0}, float s = {0.000001}> {"
    text += " a = Mul(x, k)  b = Mul(a, k)  c = Mul(b, s)  y = Relu(c) }"
    onnx.save(annotated(text, ["m", "m", "m", ""]), tmp_path / "in.onnx")
    for exclude, finite in (((), False), (("m",), True)):
        hieronnx.quantize(tmp_path / "in.onnx", output=tmp_path / "out.onnx", tool="fp16", exclude=exclude)
        # Not in ONNX Runtime, which computes in float where a processor has no half.
        (got,) = ReferenceEvaluator(str(tmp_path / "out.onnx")).run(None, {"x": np.ones(2, np.float16)})
        assert bool(np.isfinite(got).all()) is finite


@pytest.mark.parametrize("tool", TOOLS)
def test_a_weight_that_others_read_too_is_not_rounded_for_excluded_nodes(tool: str, tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["" : 21]> net (float[2,4] x) => (float[2,4] y)'
    model = onnx.parser.parse_model(text + " { a = MatMul(x, w)  y = MatMul(a, w) }")
    weight = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    output, drawn = tmp_path / "out.onnx", 1 if tool == "static" else 0
    source = annotated(model, ["kept", "b"])
    hieronnx.quantize(source, output=output, tool=tool, exclude=["kept"], random_calibration=drawn)
    made = onnx.load(output)
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
    node = next(node for node in made.graph.node if node.op_type == "MatMul" and node.input[1] in held)
    np.testing.assert_array_equal(held[node.input[1]], weight)
    assert load(output).nodes


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(("name", "exporter", "pattern"), MODELS)
def test_quantized_files_are_sound(name: str, exporter: str, pattern: str, tool: str) -> None:
    result, model = quantized(name, exporter, tool, pattern)
    assert result.path is not None
    onnx.checker.check_model(model)
    assert result.hierarchy == load(result.path)
    assert result.hierarchy.coverage() == 1.0
    assert hieronnx.validate(result.path).count("error") == 0
    expected = outputs(export_ours(name, exporter))
    for ours, theirs in zip(outputs(result.path), expected, strict=True):
        assert np.isfinite(ours).all()
        if tool != "static":  # which knows nothing better for a mask of the smallest float than to quantize it
            np.testing.assert_allclose(ours.astype(np.float32), theirs, atol=0.05 * np.abs(theirs).max() + 0.25)


def test_nodes_that_work_for_others_too_stay_in_float_and_are_named() -> None:
    result, _ = quantized("bert", "dynamo", "fp16", "encoder.layer.0.*")
    shared = [node for node in load(export_ours("bert", "dynamo")).nodes if len(node.origins) > 1]
    assert any(any(node.name in note for node in shared) for note in result.notes)
    assert any("work for other calls, too" in note for note in result.notes)


@pytest.mark.parametrize("tool", TOOLS)
def test_nodes_without_names_can_be_excluded(tool: str, tmp_path: Path) -> None:
    model = onnx.load(export_ours("bert", "torchscript"))
    for node in model.graph.node:
        node.name = "" if node.op_type != "Add" else "Add"
    onnx.save(model, tmp_path / "in.onnx")
    result = hieronnx.quantize(
        tmp_path / "in.onnx",
        output=tmp_path / "out.onnx",
        tool=tool,
        exclude=["encoder.layer.0.*"],
        random_calibration=1 if tool == "static" else 0,
    )
    assert f"{len(model.graph.node)} nodes had no name of their own" in " ".join(result.notes)
    named = {node.output: node.name for node in load(export_ours("bert", "torchscript")).nodes}
    inside = nodes_of("bert", "torchscript", "encoder.layer.0.")
    _, everything = quantized("bert", "torchscript", tool)
    found = quantized_nodes(tool, onnx.load(tmp_path / "out.onnx"))
    after = {named[output] for output in found}
    assert after == quantized_nodes(tool, everything) - inside


def test_names_stay_as_they_are_if_nothing_is_excluded(tmp_path: Path) -> None:
    text = "net (float[2] x) => (float[2] y) { a = Relu(x)  y = Neg(a) }"
    hieronnx.quantize(annotated(text, ["a", "b"]), output=tmp_path / "out.onnx", tool="fp16")
    assert [node.name for node in onnx.load(tmp_path / "out.onnx").graph.node] == ["", ""]


def test_a_path_stands_for_all_calls_of_a_module(tmp_path: Path) -> None:
    source = export_ours("called_in_loop", "torchscript")
    calls = {node.scope for node in load(source).nodes if node.op_type in ("Gemm", "MatMul")}
    module = next(iter(calls)).module
    assert len(calls) > 1
    assert {call.module for call in calls} == {module}
    hieronnx.quantize(source, output=tmp_path / "out.onnx", tool="fp16", exclude=[module])
    inside = nodes_of("called_in_loop", "torchscript", module)
    assert not in_half(onnx.load(tmp_path / "out.onnx")) & inside
    hieronnx.quantize(source, output=tmp_path / "out.onnx", tool="fp16", exclude=[f"{module}@1"])
    assert in_half(onnx.load(tmp_path / "out.onnx")) & inside


def test_nodes_in_bodies_cannot_stay_in_float(tmp_path: Path) -> None:
    source = export_ours("cond", "dynamo")
    inner = next(node for node in load(source).nodes if node.graph and node.scope.module)
    with pytest.raises(HieronnxError, match=f"in a body .* of '{inner.scope}' is; exclude other modules"):
        hieronnx.quantize(source, output=tmp_path / "o.onnx", tool="fp16", exclude=[inner.scope.module])
    hieronnx.quantize(source, output=tmp_path / "o.onnx", tool="dynamic", exclude=[inner.scope.module])


def test_a_tag_can_be_excluded() -> None:
    by_tag, _ = quantized("bert", "dynamo", "fp16", "/BertModel/BertEncoder/BertLayer.0")
    by_path, _ = quantized("bert", "dynamo", "fp16", "encoder.layer.0")
    assert by_tag.hierarchy.nodes == by_path.hierarchy.nodes


def test_a_pattern_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    source = export_ours("bert", "dynamo")
    result = run("quantize", source, "-o", tmp_path / "o.onnx", "--with", "fp16", "--exclude", "encoder.layr.0.*")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: no module call 'encoder.layr.0.*'; did you mean 'encoder.layer.0'")
    assert list(tmp_path.iterdir()) == []


# --- calibration ---


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    """Write a model with one input and a weight."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> net (float[n,4] x) => (float[n,4] y) { y = MatMul(x, w) }'
    )
    weight = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(annotated(model, ["a"]), tmp_path / "linear.onnx")
    return tmp_path / "linear.onnx"


def scale_of_input(path: Path) -> float:
    model = onnx.load(path)
    node = next(n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == "x")
    return float(numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == node.input[1])))


def test_calibration_comes_from_files(linear: Path, tmp_path: Path) -> None:
    folder = tmp_path / "inputs"
    folder.mkdir()
    np.savez(folder / "0.npz", x=np.full((2, 4), 10, np.float32))
    np.savez(folder / "1.npz", x=np.full((3, 4), -20, np.float64))
    np.save(tmp_path / "one.npy", np.full((1, 4), 5, np.float32))
    scales = []
    for given in (folder, folder / "0.npz", tmp_path / "one.npy", [{"x": np.full((1, 4), 5, np.float32)}]):
        result = hieronnx.quantize(linear, output=tmp_path / "o.onnx", tool="static", calibration=given)
        assert not any("random" in note for note in result.notes)
        scales.append(scale_of_input(tmp_path / "o.onnx"))
    assert scales == pytest.approx([30 / 255, 10 / 255, 5 / 255, 5 / 255], rel=0.02)


GENERATORS = """
import numpy as np
import torch

def by_name():
    import beside
    for _ in range(2):
        yield {"x": torch.full((1, 4), beside.VALUE)}

in_order = [(np.full((1, 4), 5.0),), [np.full((2, 4), 2.0)]]
alone = (np.full((1, 4), 5.0) for _ in range(2))

def broken():
    yield {"x": np.zeros((1, 4))}
    raise RuntimeError("no more data")

def one():
    return {"x": np.zeros((1, 4))}

pairs = [(1, 2)]
"""


def test_calibration_comes_from_python(linear: Path, tmp_path: Path) -> None:
    (tmp_path / "inputs_of_mine.py").write_text(GENERATORS)
    (tmp_path / "beside.py").write_text("VALUE = 5.0")
    for name in ("by_name", "in_order", "alone"):
        options = ["--with", "static", "--calibration", f"{tmp_path / 'inputs_of_mine.py'}:{name}"]
        made = run("quantize", linear, "-o", tmp_path / "o.onnx", *options)
        assert made.exit_code == 0, made.output
        assert scale_of_input(tmp_path / "o.onnx") == pytest.approx(5 / 255, rel=0.02)


SMALL = """
import numpy as np


def make():
    draw = np.random.default_rng(0)
    for _ in range(6):
        yield {"x": (0.01 * draw.standard_normal((1, 4))).astype(np.float32)}
"""


def test_what_was_calibrated_on_samples_is_verified_on_these(tmp_path: Path) -> None:
    """On inputs that are made up, numbers are outside of ranges that were found on others."""
    (tmp_path / "small.py").write_text(SMALL)
    with quiet():
        hieronnx.export(nn.Linear(4, 4), torch.zeros(1, 4), tmp_path / "net.onnx", input_names=["x"])
    options = ["--with", "static", "--calibration", f"{tmp_path / 'small.py'}:make", "--verify"]
    made = run("quantize", tmp_path / "net.onnx", "-o", tmp_path / "o.onnx", *options)
    assert (made.exit_code, made.stderr) == (0, "")
    assert "compared on 4 samples" in made.stdout


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", "raised RuntimeError: no more data"),
        ("one", "calibration inputs are one mapping for each run"),
        ("pairs", "run 0 of the calibration has 2 arrays; the model has inputs x"),
        ("by_nam", "has no attribute 'by_nam'; did you mean 'by_name'"),
    ],
)
def test_what_gives_no_inputs_is_told(name: str, said: str, linear: Path, tmp_path: Path) -> None:
    (tmp_path / "inputs_of_mine.py").write_text(GENERATORS)
    options = ["--with", "static", "--calibration", f"{tmp_path / 'inputs_of_mine.py'}:{name}"]
    made = run("quantize", linear, "-o", tmp_path / "o.onnx", *options)
    assert made.exit_code == 2
    assert said in made.stderr
    assert made.stderr.count("\n") == 1
    assert not (tmp_path / "o.onnx").exists()


def test_random_calibration_is_noted_and_the_same_each_time(linear: Path, tmp_path: Path) -> None:
    made = []
    for name in ("a", "b"):
        output = tmp_path / name / "o.onnx"
        output.parent.mkdir()
        result = hieronnx.quantize(linear, output=output, tool="static", random_calibration=3)
        assert "3 random inputs, not of your data" in result.notes[0]
        made.append(output.read_bytes())
    assert made[0] == made[1]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export a decoder with its past."""
    config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=32, vocab_size=40)
    path = tmp_path_factory.mktemp("decoder") / "model.onnx"
    with quiet(), torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(config).eval()
        hieronnx.export(model, (), path, exporter="torchscript", **hieronnx.with_past(model))
    return path


@pytest.mark.parametrize("named", [True, False])
def test_random_inputs_of_a_decoder_fit_one_another(named: bool, decoder: Path, tmp_path: Path) -> None:
    model = onnx.load(decoder)
    if not named:  # the file does not say that the mask is as long as past and text together
        mask = next(value for value in model.graph.input if value.name == "attention_mask")
        assert "+" in mask.type.tensor_type.shape.dim[1].dim_param
        mask.type.tensor_type.shape.dim[1].dim_param = "total"
    onnx.save(model, tmp_path / "model.onnx")
    result = hieronnx.quantize(
        tmp_path / "model.onnx", output=tmp_path / "int8.onnx", tool="static", random_calibration=2, operators="MatMul"
    )
    assert result.precision.quantized > 0
    assert hieronnx.verify(tmp_path / "int8.onnx", tmp_path / "model.onnx").calls


def test_static_needs_inputs(linear: Path, tmp_path: Path) -> None:
    with pytest.raises(HieronnxError, match="give --calibration, or --random-calibration"):
        hieronnx.quantize(linear, output=tmp_path / "o.onnx", tool="static")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"z": np.zeros((1, 4))}, "no input 'z'; the model has x"),
        ({}, "has no array for input 'x'"),
        ({"x": np.zeros((1, 5))}, r"input 'x' is \[1, 5\], and the model wants \['n', 4\]"),
        ({"x": np.zeros(4)}, r"input 'x' is \[4\]"),
    ],
)
def test_inputs_that_do_not_fit_are_told(
    arrays: dict[str, np.ndarray], message: str, linear: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "inputs.npz", **arrays)
    with pytest.raises(HieronnxError, match=message):
        hieronnx.quantize(linear, output=tmp_path / "o.onnx", tool="static", calibration=tmp_path / "inputs.npz")


def test_files_that_are_no_inputs_are_told(linear: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.npz").write_text("no arrays")
    for path, message in (
        ("empty", "no .npz or .npy files in"),
        ("text.npz", "cannot read"),
        ("none.npz", "cannot read"),
    ):
        with pytest.raises(HieronnxError, match=message):
            hieronnx.quantize(linear, output=tmp_path / "o.onnx", tool="static", calibration=tmp_path / path)


@pytest.mark.parametrize("tool", ["dynamic", "fp16", "int4"])
def test_other_tools_take_no_inputs(tool: str, linear: Path, tmp_path: Path) -> None:
    with pytest.raises(HieronnxError, match="takes no calibration inputs"):
        hieronnx.quantize(linear, output=tmp_path / "o.onnx", tool=tool, random_calibration=1)


# --- the tools ---


def test_every_tool_is_offered() -> None:
    assert list(QUANTIZERS) == TOOLS
    offered = next(option for option in cli.commands["quantize"].params if option.name == "tool").type
    assert list(offered.choices) == TOOLS


def test_options_go_to_the_tool(linear: Path, tmp_path: Path) -> None:
    run("quantize", linear, "-o", tmp_path / "o.onnx", "--with", "dynamic", "--per-channel")
    scale = next(t for t in onnx.load(tmp_path / "o.onnx").graph.initializer if t.name == "w_scale")
    assert list(scale.dims) == [4]
    run("quantize", linear, "-o", tmp_path / "h.onnx", "--with", "fp16", "--keep-io-types")
    assert onnx.load(tmp_path / "h.onnx").graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT


@pytest.mark.parametrize(
    "options",
    [
        ["--with", "dynamic", "--random-calibration", "1"],
        ["--with", "fp16", "--per-channel"],
        ["--with", "int4", "--per-channel"],
        ["--with", "dynamic", "--block-size", "32"],
        ["--with", "int4", "--block-size", "48"],
        ["--with", "static", "--keep-io-types"],
        ["--with", "static", "--random-calibration", "1", "--calibration", "x.npz"],
    ],
)
def test_options_of_another_tool_are_refused(options: list[str], linear: Path, tmp_path: Path) -> None:
    result = run("quantize", linear, "-o", tmp_path / "o.onnx", *options)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


def test_a_missing_tool_names_the_command_that_installs_it(linear: Path, tmp_path: Path) -> None:
    code = "import sys; sys.modules['onnxruntime'] = None\nfrom hieronnx.cli import main\nmain()"
    arguments = ["quantize", str(linear), "-o", str(tmp_path / "o.onnx"), "--with", "dynamic"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "error: this needs onnxruntime, which is not installed; run: pip install 'hieronnx[runtime]'\n"
    )


def test_weights_stay_in_a_file_of_their_own(tmp_path: Path) -> None:
    for tool in TOOLS:
        result, _ = quantized("bert", "dynamo", tool)
        assert result.path is not None
        names = sorted(path.name for path in result.path.parent.iterdir())
        assert names == ["out.onnx", "out.onnx.data", "out_hierarchy.json"]
        assert (result.path.parent / "out.onnx.data").stat().st_mode == result.path.stat().st_mode


@pytest.mark.parametrize("tool", TOOLS)
def test_an_earlier_output_is_replaced(tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    drawn = 1 if tool == "static" else 0
    for _ in range(2):
        hieronnx.quantize(export_ours("bert", "dynamo"), output="out.onnx", tool=tool, random_calibration=drawn)
    (data,) = tmp_path.glob("out*.data")
    assert set(tmp_path.iterdir()) == {tmp_path / "out.onnx", data, tmp_path / "out_hierarchy.json"}


@pytest.mark.parametrize("tool", TOOLS)
def test_a_layer_can_be_extracted_from_what_was_quantized(tool: str, tmp_path: Path) -> None:
    result, _ = quantized("bert", "dynamo", tool)
    assert result.path is not None
    part = hieronnx.extract(result.path, "encoder.layer.1", output=tmp_path / "part.onnx")
    assert part.nodes
    ort.InferenceSession(tmp_path / "part.onnx", providers=["CPUExecutionProvider"])


def test_what_was_quantized_can_be_optimized(tmp_path: Path) -> None:
    result, _ = quantized("bert", "dynamo", "dynamic", "encoder.layer.0.*")
    assert result.path is not None
    chained = hieronnx.optimize(result.path, output=tmp_path / "o.onnx", tool="ort-basic")
    assert chained.hierarchy.coverage() == 1.0


def test_the_command_writes_json(linear: Path, tmp_path: Path) -> None:
    result = run(
        "quantize", linear, "-o", tmp_path / "o.onnx", "--with", "static", "--random-calibration", "2", "--json"
    )
    told = json.loads(result.stdout)
    assert told["nodes_before"] == 1
    assert told["inserted"] >= 3
    assert "2 random inputs" in told["notes"][0]


def test_the_tool_gives_no_advice_that_loses_the_hierarchy(
    linear: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for tool in ("dynamic", "static"):
        drawn = 2 if tool == "static" else 0
        hieronnx.quantize(linear, output=tmp_path / f"{tool}.onnx", tool=tool, random_calibration=drawn)
    assert "pre-processing" not in caplog.text


def test_a_weight_that_two_products_share_is_quantized_for_each(tmp_path: Path) -> None:
    source = export_ours("shared_under_two_names", "torchscript")
    model = onnx.load(source)
    gemms = [node for node in model.graph.node if node.op_type == "Gemm"]
    assert len(gemms) == 2
    assert gemms[0].input[1] == gemms[1].input[1]
    hieronnx.quantize(source, output=tmp_path / "int8.onnx", tool="dynamic")
    before, after = outputs(source)[0], outputs(tmp_path / "int8.onnx")[0]
    # Transposed twice, or once for both, it gives something else altogether: as far away as it is large.
    assert np.linalg.norm(after - before) < 0.3 * np.linalg.norm(before)


@pytest.mark.parametrize("tool", ["dynamic", "int4"])
def test_a_call_in_float_has_its_own_floats_of_a_weight_that_others_have_in_few_bits(tool: str, tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(64, 32), nn.Linear(32, 64, bias=False)
            self.head.weight = self.words.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.words(ids))

    model = Tied().eval()
    with quiet():
        hieronnx.export(model, (torch.arange(8)[None],), tmp_path / "tied.onnx")
    made = tmp_path / "made.onnx"
    hieronnx.quantize(tmp_path / "tied.onnx", output=made, tool=tool, exclude="head")
    hieronnx.extract(made, "head", output=tmp_path / "head.onnx")
    session = ort.InferenceSession(tmp_path / "head.onnx", providers=["CPUExecutionProvider"])
    given = np.random.default_rng(0).standard_normal((1, 8, 32)).astype(np.float32)
    (got,) = session.run(None, {session.get_inputs()[0].name: given})
    np.testing.assert_allclose(got, model.head(torch.from_numpy(given)).detach(), rtol=1e-4, atol=1e-5)
    assert not any(n.op_type == "DequantizeLinear" for n in onnx.load(tmp_path / "head.onnx").graph.node)


def test_a_weight_that_products_in_bodies_share_is_transposed_for_each(tmp_path: Path) -> None:
    source = export_ours("nested_cond", "dynamo")
    hieronnx.quantize(source, output=tmp_path / "int8.onnx", tool="dynamic")
    before, after = outputs(source)[0], outputs(tmp_path / "int8.onnx")[0]
    assert np.linalg.norm(after - before) < 0.1 * np.linalg.norm(before)


@pytest.mark.parametrize("tool", ["dynamic", "static"])
def test_types_that_the_tool_cannot_infer_are_handed_over(tool: str, tmp_path: Path) -> None:
    source, drawn = export_ours("scaled_dot_product_attention", "torchscript"), 1 if tool == "static" else 0
    hieronnx.optimize(source, output=tmp_path / "fused.onnx", tool="ort-extended")
    assert any(node.domain == "com.microsoft" for node in onnx.load(tmp_path / "fused.onnx").graph.node)
    result = hieronnx.quantize(tmp_path / "fused.onnx", output=tmp_path / "q.onnx", tool=tool, random_calibration=drawn)
    assert result.precision.quantized > 3
    np.testing.assert_allclose(outputs(tmp_path / "q.onnx")[0], outputs(source)[0], atol=0.1)


@pytest.mark.parametrize("tool", ["dynamic", "static"])
def test_types_that_only_the_runtime_knows_are_handed_over(tool: str, tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]> net (float[4,4] x) => (float[4,4] y)'
    text += ' { d = com.microsoft.CDist<metric = "euclidean">(x, x)  m = MatMul(d, w)  y = MatMul(m, w) }'
    model = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    drawn = 1 if tool == "static" else 0
    source = annotated(model, ["a", "b", "c"])
    result = hieronnx.quantize(source, output=tmp_path / "q.onnx", tool=tool, random_calibration=drawn)
    assert result.precision.quantized == 2


def test_a_weight_that_is_computed_stays_in_float(tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["" : 21]> net (float[1,2,4] x) => (float[1,2,4] y)'
    text += " { w = Mul(v, g)  a = Conv(x, w, b)  c = Conv(a, u, b)  y = Relu(c) }"  # as weight normalization writes it
    model = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    for name, shape in (("v", (2, 2, 1)), ("g", (2, 1, 1)), ("u", (2, 2, 1)), ("b", (2,))):
        model.graph.initializer.append(numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name))
    source = annotated(model, ["a", "a", "b", ""])
    report = hieronnx.quantize(source, output=tmp_path / "q.onnx", tool="dynamic").precision
    assert report.quantized == 1
    assert ("no constant weight", "Conv") in {(group.reason, group.op_type) for group in report.kept}
    assert outputs(tmp_path / "q.onnx")[0].shape == (1, 2, 4)


@pytest.mark.parametrize("tool", ["dynamic", "static", "int4"])
def test_a_weight_is_quantized_where_a_product_reads_a_copy_of_it(tool: str, tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["" : 21]> net (float[2,16] x, bool q) => (float[2,16] y, float[16,16] e) {'
    text += " c = Identity(w)  d = Identity(c)  e = Identity(w)  a = MatMul(x, d)  b = MatMul(a, c)"
    text += " y = If(q) <then_branch = t () => (float[2,16] m) { m = MatMul(b, d) },"
    text += " else_branch = f () => (float[2,16] n) { n = Neg(b) }> }"
    model = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32) / 4
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(annotated(model, ["l", "l", "l", "l", "l", "r", "r", "r"]), tmp_path / "in.onnx")
    options = {"tool": tool, "random_calibration": 1 if tool == "static" else 0}
    report = hieronnx.quantize(tmp_path / "in.onnx", output=tmp_path / "q.onnx", **options).precision
    assert report.quantized >= 2
    assert "no constant weight" not in {group.reason for group in report.kept}
    before, after = (outputs(path) for path in (tmp_path / "in.onnx", tmp_path / "q.onnx"))
    assert 0 < np.linalg.norm(after[0] - before[0]) < 0.3 * np.linalg.norm(before[0])
    np.testing.assert_allclose(after[1], before[1], atol=0.0 if tool == "int4" else 0.02)


# --- weights in 4 bits ---


@pytest.mark.parametrize("symmetric", [False, True])
def test_weights_in_four_bits_are_near_what_they_were(symmetric: bool, tmp_path: Path) -> None:
    source = export_ours("bert", "torchscript")
    result = hieronnx.quantize(source, output=tmp_path / "q.onnx", tool="int4", symmetric=symmetric)
    before, after = outputs(source)[0], outputs(tmp_path / "q.onnx")[0]
    assert 0 < np.linalg.norm(after - before) < 0.3 * np.linalg.norm(before)
    report = result.precision
    assert report.bits == 4
    made = onnx.load(tmp_path / "q.onnx").graph.node
    assert report.quantized == sum(node.op_type == "MatMulNBits" for node in made) > 10
    layer = next(call for call in report.calls if call.module == "encoder.layer.0.intermediate.dense")
    assert layer.bytes_after < 0.3 * layer.bytes_before


def test_a_weight_that_two_products_share_is_there_once(tmp_path: Path) -> None:
    source = export_ours("shared_under_two_names", "torchscript")
    text = '<ir_version: 10, opset_import: ["" : 21]> net (float[2,16] x) => (float[2,16] y)'
    model = onnx.parser.parse_model(text + " { a = MatMul(x, w)  y = MatMul(a, w) }")
    weight = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(annotated(model, ["a", "b"]), tmp_path / "two.onnx")
    for path, largest in ((source, 0.3), (tmp_path / "two.onnx", 0.3)):
        result = hieronnx.quantize(path, output=tmp_path / "q.onnx", tool="int4")
        assert result.precision.quantized == 2
        before, after = outputs(path)[0], outputs(tmp_path / "q.onnx")[0]
        assert np.linalg.norm(after - before) < largest * np.linalg.norm(before)
    names = Counter(tensor.name for tensor in onnx.load(tmp_path / "q.onnx").graph.initializer)
    assert set(names.values()) == {1}


def test_embeddings_in_four_bits_if_asked_for(tmp_path: Path) -> None:
    source = export_ours("bert", "torchscript")
    options = ["--with", "int4", "--op", "MatMul", "--op", "Gather", "--block-size", "16"]
    made = run("quantize", source, "-o", tmp_path / "q.onnx", *options)
    assert made.exit_code == 0, made.output
    assert "in 4 bits" in made.stdout
    operators = Counter(node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node)
    assert operators["GatherBlockQuantized"] == 3
    assert np.isfinite(outputs(tmp_path / "q.onnx")[0]).all()


@pytest.mark.parametrize("operators", [["MatMul", "Gather"], ["MatMul"]])
def test_a_matrix_that_is_looked_up_as_well_is_in_four_bits_for_each(operators: list[str], tmp_path: Path) -> None:
    text = "net (int64[3] i, float[3, 32] x) => (float[3, 32] y) { r = Gather(w, i)  m = MatMul(x, w)  y = Add(r, m) }"
    model = annotated(text, ["words", "head", ""])
    weight = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    hieronnx.quantize(model, output=tmp_path / "q.onnx", tool="int4", operators=operators)
    feeds = {"i": np.array([3, 1, 2]), "x": np.eye(3, 32, dtype=np.float32)}
    (given,) = ort.InferenceSession(tmp_path / "q.onnx").run(None, feeds)
    assert np.abs(given - weight[[3, 1, 2]] - weight[:3]).max() < 0.5
    floats = {tensor.name for tensor in onnx.load(tmp_path / "q.onnx").graph.initializer if len(tensor.dims) == 2}
    assert ("w" in floats) == ("Gather" not in operators)


def test_what_is_in_four_bits_can_be_verified_and_searched(tmp_path: Path) -> None:
    source = export_ours("bert", "torchscript")
    result = hieronnx.quantize(source, output=tmp_path / "q.onnx", tool="int4", target="cosine>=0.5")
    assert result.search.met
    verified = hieronnx.verify(tmp_path / "q.onnx", source)
    assert verified.passed
    assert verified.calls


# --- options that people look for ---


def types_of(path: Path) -> Counter[int]:
    return Counter(tensor.data_type for tensor in onnx.load(path).graph.initializer if len(tensor.dims) == 2)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"tool": "dynamic", "weight_type": "uint8"}, TensorProto.UINT8),
        ({"tool": "static", "weight_type": "int16", "activation_type": "uint16"}, TensorProto.INT16),
        ({"tool": "static", "calibration_method": "percentile", "symmetric": True}, TensorProto.INT8),
    ],
)
def test_types_and_methods(options: dict[str, Any], wanted: int, tmp_path: Path) -> None:
    source = export_ours("vit", "torchscript")  # which has no mask: there is no histogram of what is infinite
    drawn = 2 if options["tool"] == "static" else 0
    hieronnx.quantize(source, output=tmp_path / "q.onnx", random_calibration=drawn, **options)
    assert types_of(tmp_path / "q.onnx")[wanted] > 5


def test_only_some_operators(tmp_path: Path) -> None:
    source = export_ours("bert", "torchscript")
    made = run(
        "quantize", source, "-o", tmp_path / "q.onnx", "--with", "dynamic", "--op", "MatMul", "--weight-type", "int8"
    )
    assert made.exit_code == 0, made.output
    operators = {node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node}
    assert "MatMulInteger" in operators
    assert "Gather" in operators
    assert types_of(tmp_path / "q.onnx")[TensorProto.FLOAT] > 0  # the embeddings


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tool": "dynamic", "activation_type": "int8"}, "is not for 'dynamic'"),
        ({"tool": "static", "weight_type": "int7"}, "no type 'int7'"),
        ({"tool": "fp16", "weight_type": "int8"}, "is not for 'fp16'"),
        ({"tool": "static", "calibration_method": "best"}, "no method of calibration 'best'"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(hieronnx.InputError, match=said):
        hieronnx.quantize(export_ours("bert", "torchscript"), output=tmp_path / "q.onnx", **options)


def test_rows_are_runs_of_a_file_with_a_fixed_batch(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    path, rows = tmp_path / "net.onnx", tmp_path / "rows.npz"
    hieronnx.export(model, (torch.zeros(1, 4),), path, exporter="torchscript")
    (name,) = (value.name for value in onnx.load(path).graph.input)
    samples = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    np.savez(rows, **{name: samples})
    made = {}
    for kind, given in {"rows": rows, "runs": [{name: sample[None]} for sample in samples]}.items():
        hieronnx.quantize(path, output=tmp_path / f"{kind}.onnx", tool="static", calibration=given)
        made[kind] = onnx.load(tmp_path / f"{kind}.onnx").graph.SerializeToString(deterministic=True)
    assert made["rows"] == made["runs"]
    assert hieronnx.sensitivity(path, tool="static", calibration=rows, inputs=rows).samples == 6


def test_multiply_adds_are_those_of_the_samples(tmp_path: Path) -> None:
    model, path = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval(), tmp_path / "net.onnx"
    axes = {"x": {0: "batch"}}
    hieronnx.export(model, (torch.zeros(2, 4),), path, exporter="torchscript", input_names=["x"], dynamic_axes=axes)
    ranked = hieronnx.sensitivity(path, inputs={"x": np.ones((5, 4), np.float32)})
    assert {item.module: item.multiply_adds for item in ranked.modules} == {"0": 5 * 32, "2": 5 * 16}
    searched = hieronnx.quantize(path, output=tmp_path / "q.onnx", tool="dynamic", target="snr>=80", best=True).search
    assert searched is not None
    assert {trial.multiply_adds for trial in searched.trials} > {1.0}
