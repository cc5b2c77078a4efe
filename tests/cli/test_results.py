"""For every command: `--json` prints what the result of the function gives by `to_dict()`, and its repr is one line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import hieronnx
from hieronnx.capture.inputs import make_inputs
from hieronnx.capture.load import load_model
from hieronnx.capture.specs import InputSpec
from hieronnx.cli import cli

NET = """
import torch
from torch import nn


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.linear(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = Cell(), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.cell(self.cell(x)))


def make():
    torch.manual_seed(0)
    return Net().eval()
"""
INPUT = ("--input", "x=float32[1,4]")
# What torch keeps of the code that called it would differ.
EXPORT = {"exporter": "torchscript", "strip_torch_metadata": True, "input_names": ["x"]}


def load_net() -> tuple[Any, dict[str, Any]]:
    model = load_model("nets.py:make")
    return model, make_inputs(model, [InputSpec("x", "float32", (1, 4))])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("results")
    (path / "nets.py").write_text(NET)
    return path


@pytest.fixture(autouse=True)
def model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test beside a model, and what an optimizer made of it."""
    monkeypatch.chdir(folder)
    if not Path("model.onnx").exists():
        net, inputs = load_net()
        hieronnx.export(net, kwargs=inputs, output="model.onnx", **EXPORT)
        hieronnx.export(net, kwargs=inputs, output="plain.onnx", **EXPORT, embed=False, sidecar=False)
        hieronnx.optimize("model.onnx", output="fast.onnx", tool="ort-basic", embed=False, sidecar=False)
        hieronnx.extract("model.onnx", "cell", output="cell.onnx")
        hieronnx.fold("model.onnx", output="folded.onnx")
        Path("trace.json").write_text(json.dumps(list(make_trace(hieronnx.load("model.onnx").nodes))))


def make_trace(nodes: Iterable[hieronnx.Node]) -> Iterator[dict[str, Any]]:
    """Yield the events of a run in which one node after the other takes ten microseconds."""
    where = {"pid": 1, "tid": 1, "ph": "X", "args": {}}
    start = 0
    for start, node in enumerate(nodes):
        yield {"cat": "Node", "name": f"{node.name}_kernel_time", "ts": 10 * start, "dur": 10, **where}
    yield {"cat": "Session", "name": "model_run", "ts": 0, "dur": 10 * start + 10, **where}


def export() -> hieronnx.ExportResult:
    net, inputs = load_net()
    return hieronnx.export(net, kwargs=inputs, output="out.onnx", **EXPORT, verify_topology=True)


def annotate() -> hieronnx.AnnotateResult:
    net, inputs = load_net()
    return hieronnx.annotate(Path("plain.onnx"), net, (), inputs, output="out.onnx")


def replace() -> hieronnx.ReplaceResult:
    return hieronnx.replace("model.onnx", "cell", "cell.onnx", output="out.onnx")


OUT = ("-o", "out.onnx")
TORCHSCRIPT = ("--exporter", "torchscript", "--strip-torch-metadata")
COMMANDS: list[tuple[tuple[str, ...], Callable[[], Any]]] = [
    (("export", "nets.py:make", *OUT, *INPUT, *TORCHSCRIPT, "--verify-topology"), export),
    (("annotate", "plain.onnx", "--model", "nets.py:make", *OUT, *INPUT), annotate),
    (("analyze", "model.onnx"), lambda: hieronnx.analyze("model.onnx")),
    (("analyze", "plain.onnx"), lambda: hieronnx.analyze("plain.onnx")),
    (("analyze", "model.onnx", "--tensors"), lambda: hieronnx.analyze("model.onnx", tensors=True)),
    (("validate", "model.onnx", "--strict"), lambda: hieronnx.validate("model.onnx", strict=True)),
    (("validate", "plain.onnx"), lambda: hieronnx.validate("plain.onnx")),
    (("compare", "model.onnx", "fast.onnx"), lambda: hieronnx.compare("model.onnx", "fast.onnx")),
    (("extract", "model.onnx", "cell@1", *OUT), lambda: hieronnx.extract("model.onnx", "cell@1", output="out.onnx")),
    (("carry", "model.onnx", "fast.onnx", *OUT), lambda: hieronnx.carry("model.onnx", "fast.onnx", output="out.onnx")),
    (
        ("place", "model.onnx", *OUT, "--on", "cpu:cell"),
        lambda: hieronnx.place("model.onnx", on=["cpu:cell"], output="out.onnx"),
    ),
    (
        ("profile", "model.onnx", "--trace-from", "trace.json"),
        lambda: hieronnx.profile("model.onnx", trace_from="trace.json"),
    ),
    (
        ("optimize", "model.onnx", *OUT, "--with", "ort-basic"),
        lambda: hieronnx.optimize("model.onnx", output="out.onnx", tool="ort-basic"),
    ),
    (
        ("quantize", "model.onnx", *OUT, "--with", "dynamic", "--exclude", "head"),
        lambda: hieronnx.quantize("model.onnx", output="out.onnx", tool="dynamic", exclude=["head"]),
    ),
    (("select", "model.onnx", "cell", "--op", "Gemm"), lambda: hieronnx.select("model.onnx", "cell", op="Gemm")),
    (
        ("split", "model.onnx", "--at", "head", "--into", "stages", "--check"),
        lambda: hieronnx.split("model.onnx", at="head", into="stages", check=True),
    ),
    (("replace", "model.onnx", "cell", "cell.onnx", *OUT), replace),
    (
        ("fold", "model.onnx", *OUT, "--depth", "1"),
        lambda: hieronnx.fold("model.onnx", output="out.onnx", depth=1),
    ),
    (("unfold", "folded.onnx", *OUT), lambda: hieronnx.unfold("folded.onnx", output="out.onnx")),
]


def run(*command: str) -> Any:
    return json.loads(CliRunner().invoke(cli, [*command, "--json"]).stdout)


@pytest.mark.parametrize(("command", "call"), COMMANDS, ids=[" ".join(command[:2]) for command, _ in COMMANDS])
def test_json_is_the_result_as_a_dict(command: tuple[str, ...], call: Callable[[], Any]) -> None:
    printed = run(*command)
    result = call()
    assert printed == result.to_dict()  # which has builtins only, or it would not be equal
    assert repr(result).startswith(f"{type(result).__name__}(")
    assert "\n" not in repr(result)
    assert len(repr(result)) < 250


def test_lists_on_demand_and_many_parts_are_the_same() -> None:
    assert run("analyze", "model.onnx", "--detailed") == hieronnx.analyze("model.onnx").to_dict(detailed=True)
    parts = list(hieronnx.extract_all("model.onnx", "cell*", "parts"))
    assert run("extract", "model.onnx", "cell*", "--all", "parts")["extracted"] == [part.to_dict() for part in parts]


def test_another_model_is_told_as_a_dict() -> None:
    Path("other.py").write_text(NET.replace("manual_seed(0)", "manual_seed(1)"))
    printed = run("annotate", "plain.onnx", "--model", "other.py:make", *OUT, *INPUT)
    other = load_model("other.py:make")
    with pytest.raises(hieronnx.MismatchError) as caught:
        hieronnx.annotate("plain.onnx", other, (), make_inputs(other, [InputSpec("x", "float32", (1, 4))]))
    assert printed == caught.value.to_dict()


def test_a_part_in_memory_has_no_files() -> None:
    values = hieronnx.extract("model.onnx", "cell").to_dict()
    assert (values["model"], values["files"]) == (None, [])
    json.dumps(values)


def test_a_result_inside_a_result_is_told_as_by_itself(tmp_path: Path) -> None:
    model = load_model("demo")
    result = hieronnx.export(model, (), tmp_path / "demo.onnx", make_inputs(model), verify_topology=True, **EXPORT)
    assert result.topology is not None
    assert result.to_dict()["topology"] == result.topology.to_dict()
