"""Files that torch's dynamo exporter wrote without hieronnx: its own record of modules is read as a hierarchy."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

import hieronnx
from hieronnx.files.opening import read_structure
from hieronnx.files.torch_scopes import read_torch_scopes
from hieronnx.hierarchy.records import ROOT, CallId
from support.cli import run
from support.exports import exported, quiet

RECORDED = ["shared_under_two_names", "nested_repeated_calls", "conv_batch_norm", "cond", "bert"]
"""Shared and repeated modules, folded and merged nodes, bodies."""
NOTE = "torch's own record of modules; 'hieronnx annotate'"
SCOPES, CLASSES = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy"


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.linear(x)))


class Wrapper(nn.Module):
    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.out = nn.Linear(8, 8)
        self.borrowed = [cell]  # not a child: it is called under the name that it has elsewhere

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.borrowed[0](x))


class Net(nn.Module):
    """Calls a cell twice itself, and once through another module."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = Cell()
        self.wrapper = Wrapper(self.cell)

    def forward(self, x: Tensor) -> Tensor:
        return self.wrapper(self.cell(self.cell(x))) + x


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "plain.onnx"
    with quiet():
        torch.onnx.export(Net().eval(), (torch.randn(2, 8),), path, dynamo=True, verbose=False)
    return path


def edit(path: Path, output: Path, key: str, value: str | None) -> Path:
    """Change what every node says under a key; None takes it away."""
    model = onnx.load(path, load_external_data=False)
    for node in model.graph.node:
        for entry in [entry for entry in node.metadata_props if entry.key == key]:
            if value is None:
                node.metadata_props.remove(entry)
            else:
                entry.value = value
    onnx.save(model, output)
    return output


def test_nodes_are_in_the_modules_that_torch_names(plain: Path) -> None:
    hierarchy = hieronnx.load(plain)
    assert hierarchy.strategy == "torch_scopes"
    assert {node.evidence for node in hierarchy.nodes} == {"name"}
    assert [str(call.id) for call in hierarchy.calls if call.tagged] == [
        "",
        "cell",
        "cell.norm",
        "wrapper",
        "cell@1",
        "cell.norm@1",
    ]
    assert [node.op_type for node in hierarchy.nodes_in("cell@0")] == ["Gemm", "LayerNormalization", "Relu"] * 2
    assert hierarchy.tag_of("cell@1") == "/Net/Wrapper/Cell"
    assert hierarchy.call_by_id[CallId("cell", 1)].parent == CallId("wrapper", 0)
    assert hierarchy.modules["cell"].qualified_class == f"{Cell.__module__}.Cell"
    assert hierarchy.modules["cell"].parameter_count is None
    (last,) = (node for node in hierarchy.nodes if node.scope == ROOT)
    assert last.op_type == "Add"


@pytest.mark.parametrize("name", RECORDED)
def test_no_node_is_in_another_module_than_the_one_that_was_captured(name: str) -> None:
    result = exported(name, "dynamo").result
    hierarchy = read_torch_scopes(read_structure(result.path))
    assert hierarchy is not None
    captured = result.hierarchy.node_by_key
    assert captured.keys() == hierarchy.node_by_key.keys()
    for node in hierarchy.nodes:
        true = captured[node.key]
        names = {result.hierarchy.call_by_id[call].via for call in (true.scope, *true.origins)}
        assert node.evidence == "root" or node.scope.module in names, node


def test_every_command_that_reads_says_what_it_reads(plain: Path, tmp_path: Path) -> None:
    commands = [
        ("tree", plain),
        ("extract", plain, "wrapper", "-o", tmp_path / "part.onnx"),
        ("extract", plain, "cell*", "--all", tmp_path / "parts"),
        ("carry", plain, plain, "-o", tmp_path / "carried.onnx"),
        ("optimize", plain, "-o", tmp_path / "fast.onnx", "--with", "ort-basic"),
        ("quantize", plain, "-o", tmp_path / "int8.onnx", "--with", "dynamic", "--exclude", "wrapper"),
        ("compare", plain, plain),
    ]
    for command in commands:
        result = run(*command)
        assert result.exit_code == 0, result.output
        assert result.stderr.count(NOTE) == (2 if command[0] == "compare" else 1), command
    assert NOTE in run("analyze", plain).stdout
    for command in (("analyze", plain, "--quiet"), ("analyze", plain, "--csv"), ("profile", plain, "--csv")):
        result = run(*command)
        assert (NOTE in result.stderr, NOTE in result.stdout) == (True, False)
    tree = json.loads(run("tree", plain, "--json").stdout)
    assert tree["strategy"] == "torch_scopes"
    for name in ("carried", "fast", "int8"):
        hierarchy = hieronnx.load(tmp_path / f"{name}.onnx")
        assert (hierarchy.strategy, hierarchy.coverage()) == ("carried", 1.0)
        assert NOTE not in run("tree", tmp_path / f"{name}.onnx").stderr
        assert hieronnx.validate(tmp_path / f"{name}.onnx").passed
    assert not any("Integer" in node.op_type for node in hieronnx.load(tmp_path / "int8.onnx").nodes_in("wrapper"))


def test_validate_says_what_the_file_has(plain: Path) -> None:
    result = hieronnx.validate(plain)
    (finding,) = (item for item in result if item.check == "hierarchy")
    assert result.passed
    assert finding.severity == "warning"
    assert "torch's own record of modules" in finding.message
    assert "annotate" in finding.remedy


def test_an_export_or_an_annotation_of_such_a_file_says_nothing_of_torchs_record(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("import torch\nmodel = torch.nn.Sequential(torch.nn.Linear(2, 2)).eval()\n")
    target = f"{tmp_path / 'net.py'}:model"
    inputs = ("--input", "input=float32[1,2]")
    options = ("--no-embed", "--no-sidecar", "--strategy", "usage_based", "--exporter", "dynamo")
    result = run("export", target, "-o", tmp_path / "net.onnx", *inputs, *options)
    assert (result.exit_code, result.stderr) == (0, "")
    result = run("annotate", tmp_path / "net.onnx", "--model", target, "-o", tmp_path / "annotated.onnx", *inputs)
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (SCOPES, None),
        (SCOPES, "['linear']"),
        (SCOPES, "['', 'cell, 'linear']"),
        (SCOPES, "['cell', 'linear']"),
        (SCOPES, "['', 3, 'linear']"),
        (SCOPES, "('', 'cell', 'linear')"),
        (SCOPES, "[" * 10_000 + ", "),
        (CLASSES, None),
        (CLASSES, "['Net']"),
    ],
)
def test_what_torch_does_not_write_is_no_hierarchy(key: str, value: str | None, plain: Path, tmp_path: Path) -> None:
    path = edit(plain, tmp_path / "edited.onnx", key, value)
    with pytest.raises(hieronnx.HieronnxError, match="no metadata inside"):
        hieronnx.load(path)


def test_a_node_without_a_module_is_an_honest_fallback() -> None:
    result = exported("cond", "dynamo").result
    hierarchy = read_torch_scopes(read_structure(result.path))
    assert hierarchy is not None
    inside = [node for node in hierarchy.nodes if node.graph]
    assert inside
    assert all((node.scope, node.evidence) == (ROOT, "root") for node in inside)
    assert hierarchy.coverage() < 1
