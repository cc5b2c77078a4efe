"""Verify: what it refuses, what it says of odd outputs, samples, optimization, and its command."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

import hieronnx
from hieronnx.hierarchy.records import CallId
from support.cli import run
from support.exports import quiet


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))


class TwoOutputs(nn.Module):
    """Two branches after one stem, each an output."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.right = Branch(), Branch(), Branch()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        stem = self.stem(x)
        return self.left(stem), self.right(stem)


def build(seed: int = 0) -> TwoOutputs:
    torch.manual_seed(seed)
    return TwoOutputs().eval()


X = torch.linspace(-2, 2, 24).reshape(3, 8)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "model.onnx"
    with quiet():
        hieronnx.export(build(), (X,), path, exporter="torchscript")
    return path


def alter(path: Path, output: Path, module: str, change: object) -> Path:
    """Write the file with the last node of a module changed."""
    model = onnx.load(path)
    hierarchy = hieronnx.load(path)
    node = next(n for n in model.graph.node if n.output[0] == hierarchy.nodes_in(module)[-1].output)
    assert callable(change)
    change(model, node)
    onnx.save(model, output)
    return output


def put_behind(op: str, *constants: float):
    """Return what puts an operator behind a node."""

    def change(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
        name, node.output[0] = node.output[0], "before"
        for number, value in enumerate(constants):
            model.graph.initializer.append(numpy_helper.from_array(np.float32(value), f"value{number}"))
        made = helper.make_node(op, ["before", *(f"value{n}" for n in range(len(constants)))], [name])
        made.metadata_props.extend(node.metadata_props)
        model.graph.node.insert(list(model.graph.node).index(node) + 1, made)

    return change


def test_of_two_outputs_the_wrong_one_is_told(plain: Path, tmp_path: Path) -> None:
    path = alter(plain, tmp_path / "wrong.onnx", "right", put_behind("Mul", 1.5))
    result = hieronnx.verify(path, build(), (X,))
    assert not result.passed
    assert [culprit.id for culprit in result.culprits] == [CallId("right", 0)]
    by_module = {call.module: call for call in result.calls}
    assert by_module["left"].verdict == by_module["stem"].verdict == "right"
    assert by_module["right"].introduced.relative == pytest.approx(0.5)
    left, right = result.outputs
    assert left.relative < 1e-6 < right.relative


def test_what_follows_has_the_error_and_does_not_make_it(plain: Path, tmp_path: Path) -> None:
    path = alter(plain, tmp_path / "wrong.onnx", "stem", put_behind("Mul", 1.5))
    result = hieronnx.verify(path, build(), (X,))
    assert [str(culprit.id) for culprit in result.culprits] == ["stem"]
    left = next(call for call in result.calls if call.module == "left")
    assert left.accumulated.relative > 0.01
    assert left.introduced.relative < 1e-6


def test_a_nan_names_its_module(plain: Path, tmp_path: Path) -> None:
    path = alter(plain, tmp_path / "nan.onnx", "left", put_behind("Log"))
    result = hieronnx.verify(path, build(), (X,))
    assert [str(culprit.id) for culprit in result.culprits] == ["left"]
    assert result.culprits[0].introduced.nans > 0
    assert result.culprits[0].excess == math.inf
    assert json.loads(json.dumps(result.to_dict()), parse_constant=pytest.fail)["culprits"][0]["excess"] is None


def test_another_file_is_a_reference_too(plain: Path, tmp_path: Path) -> None:
    path = alter(plain, tmp_path / "wrong.onnx", "left", put_behind("Mul", 1.001))
    assert hieronnx.verify(plain, plain).passed
    result = hieronnx.verify(path, plain, inputs={"x": X.numpy()})
    assert [str(culprit.id) for culprit in result.culprits] == ["left"]
    assert result.reference == str(plain)


def test_a_file_without_hierarchy_takes_that_of_its_reference(plain: Path, tmp_path: Path) -> None:
    model = onnx.load(alter(plain, tmp_path / "wrong.onnx", "left", put_behind("Mul", 1.5)))
    for node in model.graph.node:
        del node.metadata_props[:]
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "bare.onnx")
    result = hieronnx.verify(tmp_path / "bare.onnx", plain)
    (culprit,) = result.culprits
    assert culprit.id == CallId("", 0)  # `left` does what it should; who has put the Mul behind it is not known
    assert [node.op_type for node in culprit.nodes] == ["Mul"]


# --- what is refused ---


def test_another_model_is_refused(plain: Path) -> None:
    with pytest.raises(hieronnx.MismatchError, match="only 0% of its weights"):
        hieronnx.verify(plain, build(seed=1), (X,))
    with pytest.raises(hieronnx.MismatchError, match="has no 'stem'"):
        hieronnx.verify(plain, Branch(), (X,))


def test_a_missing_input_is_told(plain: Path) -> None:
    with pytest.raises(hieronnx.InputError, match="no array for input 'x'"):
        hieronnx.verify(plain, plain, inputs={})
    with pytest.raises(hieronnx.HieronnxError, match="nothing fits 'x=float32"):
        hieronnx.verify(plain, build(), (X.long(),))


def test_random_operators_are_refused(plain: Path, tmp_path: Path) -> None:
    path = alter(plain, tmp_path / "random.onnx", "left", put_behind("RandomUniformLike"))
    with pytest.raises(hieronnx.HieronnxError, match="draws random numbers"):
        hieronnx.verify(path, build(), (X,))


def test_what_is_no_reference_is_refused(plain: Path) -> None:
    with pytest.raises(hieronnx.InputError, match=r"give a torch\.nn\.Module"):
        hieronnx.verify(plain, 3, (X,))  # type: ignore[arg-type]
    with pytest.raises(hieronnx.InputError, match="0 samples are none"):
        hieronnx.verify(plain, build(), (X,), samples=0)


# --- samples, patterns, levels ---


def test_the_worst_sample_is_named(plain: Path, tmp_path: Path) -> None:
    small, large = np.zeros((3, 8), np.float32), np.full((3, 8), 40.0, np.float32)
    with torch.no_grad():
        bounds = [float(bound) for bound in torch.aminmax(build()(torch.from_numpy(small))[0])]
    path = alter(plain, tmp_path / "wrong.onnx", "left", put_behind("Clip", *bounds))
    result = hieronnx.verify(path, build(), inputs={"x": np.stack([small, large, small])})
    assert result.samples == 3
    assert [str(culprit.id) for culprit in result.culprits] == ["left"]
    assert result.culprits[0].introduced.sample == 1


def test_samples_are_made_like_those_given(plain: Path) -> None:
    result = hieronnx.verify(plain, build(), (X,), samples=3)
    assert result.samples == 3
    assert result.passed


def test_a_pattern_looks_into_a_part_alone(plain: Path, tmp_path: Path) -> None:
    path = alter(plain, tmp_path / "wrong.onnx", "left", put_behind("Mul", 1.5))
    right = hieronnx.verify(path, build(), (X,), module="right")
    assert right.passed
    assert {call.module for call in right.calls} == {"right", "right.linear"}
    assert not hieronnx.verify(path, build(), (X,), module="left").passed


@pytest.mark.parametrize("level", ["basic", "extended", "all"])
def test_what_onnx_runtime_makes_of_it_is_looked_at(level: str, plain: Path, tmp_path: Path) -> None:
    assert hieronnx.verify(plain, build(), (X,), optimization=level).passed
    path = alter(plain, tmp_path / "wrong.onnx", "left", put_behind("Mul", 1.5))
    result = hieronnx.verify(path, build(), (X,), optimization=level)
    assert [str(culprit.id) for culprit in result.culprits] == ["left"]


def test_tensors_in_blocks_of_channels_are_nobodys(tmp_path: Path) -> None:
    """Such a tensor can have the shape of the usual one, and has its numbers in another order."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.Conv2d(32, 8, 1)).eval()
    path, made = tmp_path / "model.onnx", tmp_path / "made.onnx"
    with quiet():
        hieronnx.export(model, (torch.randn(1, 3, 16, 16),), path, exporter="torchscript")
    hieronnx.optimize(path, output=made, tool="ort-all")
    blocked = {name for node in onnx.load(made).graph.node if node.domain.endswith("nchwc") for name in node.output}
    usual = {name for node in onnx.load(made).graph.node if node.op_type == "ReorderOutput" for name in node.output}
    bound = {item.tensor for call in hieronnx.load(made).calls for item in (*call.received, *call.returned)}
    assert not bound & (blocked - usual)
    assert hieronnx.verify(made, path).passed
    assert hieronnx.verify(path, model, (torch.randn(1, 3, 16, 16),), optimization="all").passed


def test_an_output_of_another_shape_does_not_pass(plain: Path, tmp_path: Path) -> None:
    def widen(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
        put_behind("Flatten")(model, node)
        model.graph.output[0].type.tensor_type.ClearField("shape")
        for attribute in (helper.make_attribute("axis", 0),):
            next(n for n in model.graph.node if n.op_type == "Flatten").attribute.append(attribute)

    result = hieronnx.verify(alter(plain, tmp_path / "flat.onnx", "left", widen), build(), (X,))
    assert not result.passed
    assert "its shape is" in result.outputs[0].mismatch


def test_little_memory_is_enough(plain: Path, tmp_path: Path) -> None:
    path = alter(plain, tmp_path / "wrong.onnx", "left", put_behind("Mul", 1.5))
    few, many = (hieronnx.verify(path, build(), (X,), memory_limit=limit) for limit in (1, 1 << 30))
    assert few.to_dict() == many.to_dict()


def test_the_model_is_left_as_it_was(plain: Path) -> None:
    model = build()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    call = nn.Module.__call__
    hieronnx.verify(plain, model, (X,))
    assert nn.Module.__call__ is call
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


# --- the command ---


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    assert run("export", "demo", "-o", path, "--exporter", "torchscript").exit_code == 0
    passed = run("verify", path, "--model", "demo")
    assert passed.exit_code == 0, passed.output
    assert "passed: 29 of 29 live calls compared on 1 sample, against DemoModel" in passed.output
    folded = run("verify", path, "--model", "demo", "--module", "embeddings.position")
    assert folded.exit_code == 2
    assert "can be compared" in folded.stderr
    wrong = alter(path, tmp_path / "wrong.onnx", "blocks.1.mlp.down", put_behind("Mul", 1.25))
    found = run("verify", wrong, "--model", "demo", "--markdown", tmp_path / "report.md", "--dump", tmp_path / "dump")
    assert found.exit_code == 1
    assert "1. blocks.1.mlp.down  Linear  /DemoModel/Block.1/Mlp" in found.output
    assert "| blocks.1.mlp.down | Linear |" in (tmp_path / "report.md").read_text()
    script = [sys.executable, "reproduce.py"]
    said = subprocess.run(
        script, cwd=tmp_path / "dump" / "blocks.1.mlp.down", capture_output=True, text=True, check=True
    )
    assert "max abs" in said.stdout
    printed = json.loads(run("verify", wrong, "--against", path, "--json").stdout)
    assert [culprit["module"] for culprit in printed["culprits"]] == ["blocks.1.mlp.down"]
    assert printed["passed"] is False


def test_other_commands_verify_what_they_wrote(plain: Path, tmp_path: Path) -> None:
    exported = run("export", "demo", "-o", tmp_path / "demo.onnx", "--exporter", "torchscript", "--verify")
    assert exported.exit_code == 0
    assert "passed: 29 of 29 live calls compared" in exported.output
    optimized = run("optimize", plain, "-o", tmp_path / "fast.onnx", "--with", "ort-extended", "--verify", "--json")
    assert json.loads(optimized.stdout)["verified"]["passed"] is True
    quantized = run("quantize", plain, "-o", tmp_path / "int8.onnx", "--with", "dynamic", "--verify")
    assert quantized.exit_code == 0
    assert f"against {plain}" in quantized.output


def test_the_provider_is_the_one_asked_for(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    make = ort.InferenceSession

    def note(*args: Any, providers: list[str], **kwargs: Any) -> ort.InferenceSession:
        asked.append(providers)
        return make(*args, providers=providers, **kwargs)

    monkeypatch.setattr(ort, "InferenceSession", note)
    other = next(name for name in ort.get_available_providers() if name != "CPUExecutionProvider")
    assert hieronnx.verify(plain, plain, providers=[other]).passed  # what it cannot run, the CPU does
    assert [other] in asked


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give what FILE is held to"),
        (("--model", "demo", "--against", "x.onnx"), "give what FILE is held to"),
        (("--against", "missing.onnx"), "no ONNX file at 'missing.onnx'"),
        (("--against", "{file}", "--input", "x=float32[1]"), "are for a PyTorch model"),
        (("--model", "demo", "--memory-limit", "much"), "cannot read the size 'much'"),
        (("--against", "{file}", "--providers", "npu"), "no execution provider 'npu'"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], said: str, plain: Path) -> None:
    result = run("verify", plain, *(argument.format(file=plain) for argument in arguments))
    assert result.exit_code == 2
    assert said in result.stderr


class Sums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        y: Tensor = self.linear(left) + right
        return y


@pytest.mark.parametrize("verb", ["verify", "annotate"])
def test_an_argument_that_is_missing_is_named(verb: str, tmp_path: Path) -> None:
    model, path = Sums().eval(), tmp_path / "model.onnx"
    with quiet():
        hieronnx.export(model, (X, X), path, exporter="torchscript")
    with pytest.raises(hieronnx.HieronnxError, match=r"right"):
        getattr(hieronnx, verb)(path, model, (X,))
