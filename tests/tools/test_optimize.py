"""Running optimizers of others and keeping the hierarchy, in one step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import hieronnx
from hieronnx import HieronnxError, load
from hieronnx.cli import cli
from hieronnx.files.opening import sidecar_path
from hieronnx.files.wire import find_locations, read_skeleton
from hieronnx.runtime.inputs import draw_feeds, read_inputs
from hieronnx.tools.optimize import OPTIMIZERS
from support.annotated import annotated
from support.cli import run
from support.exports import export_ours

TOOLS = ["ort-basic", "ort-extended", "ort-all", "onnxsim", "onnxslim", "onnxscript"]
MODELS = [("bert", "dynamo"), ("gpt2", "torchscript"), ("conv_batch_norm_residual", "dynamo")]


def outputs(path: Path) -> list[np.ndarray]:
    feeds = draw_feeds(read_inputs(path), 1)[0]
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, dict(feeds))


def test_every_tool_is_offered() -> None:
    assert list(OPTIMIZERS) == TOOLS
    offered = next(option for option in cli.commands["optimize"].params if option.name == "tool").type
    assert list(offered.choices) == TOOLS


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(("name", "exporter"), MODELS)
def test_what_a_tool_makes_has_the_hierarchy(name: str, exporter: str, tool: str, tmp_path: Path) -> None:
    source, output = export_ours(name, exporter), tmp_path / "out.onnx"
    stages: list[str] = []
    result = hieronnx.optimize(source, output=output, tool=tool, progress=stages.append)
    assert result.hierarchy == load(output)
    assert result.hierarchy.coverage() == 1.0
    assert stages == [f"running {tool}", "carrying the hierarchy"]
    for ours, theirs in zip(outputs(output), outputs(source), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize("tool", TOOLS)
def test_weights_stay_in_a_file_of_their_own(tool: str, tmp_path: Path) -> None:
    source = export_ours("bert", "dynamo")
    assert find_locations(read_skeleton(source))
    hieronnx.optimize(source, output=tmp_path / "out.onnx", tool=tool)
    assert find_locations(read_skeleton(tmp_path / "out.onnx")) == {"out.onnx.data"}
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["out.onnx", "out.onnx.data", "out_hierarchy.json"]
    assert (tmp_path / "out.onnx.data").stat().st_mode == (tmp_path / "out.onnx").stat().st_mode


@pytest.mark.parametrize("tool", TOOLS)
def test_an_earlier_output_is_replaced(tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        hieronnx.optimize(export_ours("bert", "dynamo"), output="out.onnx", tool=tool)
    (data,) = tmp_path.glob("out*.data")
    assert set(tmp_path.iterdir()) == {tmp_path / "out.onnx", data, tmp_path / "out_hierarchy.json"}


@pytest.mark.parametrize("tool", TOOLS)
def test_weights_stay_inside(tool: str, tmp_path: Path) -> None:
    hieronnx.optimize(export_ours("gpt2", "torchscript"), output=tmp_path / "out.onnx", tool=tool)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.onnx", "out_hierarchy.json"]


def test_a_model_in_memory_is_optimized(tmp_path: Path) -> None:
    model = annotated("net (float[2] x) => (float[2] y) { a = Identity(x)  y = Relu(a) }", ["a", "b"])
    result = hieronnx.optimize(model, output=tmp_path / "out.onnx", tool="ort-basic")
    assert [(node.op_type, node.scope.module) for node in result.hierarchy.nodes] == [("Relu", "b")]
    assert [str(item.call) for item in result.lost] == ["a"]


def test_options_go_to_the_tool(tmp_path: Path) -> None:
    source = export_ours("conv_batch_norm_residual", "torchscript")
    kept = hieronnx.optimize(source, output=tmp_path / "a.onnx", tool="onnxsim", perform_optimization=False)
    assert kept.hierarchy.nodes
    with pytest.raises(HieronnxError, match=r"onnxsim could not transform the model .*nonsense"):
        hieronnx.optimize(source, output=tmp_path / "b.onnx", tool="onnxsim", nonsense=1)
    assert not (tmp_path / "b.onnx").exists()


def test_what_binds_a_file_to_a_runtime_is_noted(tmp_path: Path) -> None:
    source = export_ours("conv_batch_norm_residual", "dynamo")
    notes = {tool: hieronnx.optimize(source, output=tmp_path / "o.onnx", tool=tool).notes for tool in TOOLS}
    assert "operators of ONNX Runtime's own" in notes["ort-extended"][0]
    assert "the processor of this machine" in notes["ort-all"][0]
    assert {tool for tool in TOOLS if notes[tool]} == {"ort-extended", "ort-all"}


# --- what is refused ---


def test_an_unknown_tool_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HieronnxError, match="no tool 'onnxsym'; did you mean 'onnxsim'"):
        hieronnx.optimize(export_ours("gpt2", "torchscript"), output=tmp_path / "o.onnx", tool="onnxsym")


@pytest.mark.parametrize(
    ("package", "tool", "extra"),
    [
        ("onnxruntime", "ort-basic", "runtime"),
        ("onnxsim", "onnxsim", "optimizers"),
        ("onnxslim", "onnxslim", "optimizers"),
        ("onnxscript", "onnxscript", "torch"),
    ],
)
def test_a_missing_tool_names_the_command_that_installs_it(package: str, tool: str, extra: str, tmp_path: Path) -> None:
    code = f"import sys; sys.modules[{package!r}] = None\nfrom hieronnx.cli import main\nmain()"
    arguments = ["optimize", str(export_ours("gpt2", "torchscript")), "-o", str(tmp_path / "o.onnx"), "--with", tool]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"error: this needs {package}, which is not installed; run: pip install 'hieronnx[{extra}]'\n"
    assert list(tmp_path.iterdir()) == []


def test_a_tool_that_fails_is_told_in_one_line(tmp_path: Path) -> None:
    text = "net (float[2] x) => (float[2] y) { a = Relu(x)  y = nowhere.Odd(a) }"
    model = annotated(text.replace("nowhere.Odd", "Relu"), ["a", "b"])
    model.graph.node[1].domain, model.graph.node[1].op_type = "nowhere", "Odd"
    model.opset_import.add(domain="nowhere", version=1)
    onnx.save(model, tmp_path / "in.onnx")
    result = run("optimize", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", "--with", "ort-basic")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ort-basic could not transform the model (")
    assert result.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def write_without_first_node(source: Path, target: Path) -> None:
    model = onnx.load(source)
    del model.graph.node[0]
    onnx.save(model, target)


def test_a_broken_graph_that_a_tool_made_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMIZERS, "onnxscript", write_without_first_node)
    model = annotated("net (float[2] x) => (float[2] y) { a = Abs(x)  y = Relu(a) }", ["a", "b"])
    onnx.save(model, tmp_path / "in.onnx")
    result = run("optimize", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", "--with", "onnxscript")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: onnxscript made a broken graph of the model: node 'y': it reads 'a', which nothing makes; "
        "nothing is written; use another tool, or another version of this one\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def test_a_tool_is_not_blamed_for_a_graph_that_was_broken_before(tmp_path: Path) -> None:
    model = annotated("net (float[2] x) => (float[2] y) { a = Abs(x)  y = Relu(a) }", ["a", "b"])
    model.graph.node[0].input[0] = "gone"
    with pytest.raises(HieronnxError, match="the model is broken: node 'a': it reads 'gone', which nothing makes; fix"):
        hieronnx.optimize(model, output=tmp_path / "out.onnx", tool="onnxscript")


def test_a_model_without_a_hierarchy_is_refused_before_the_tool_runs(tmp_path: Path) -> None:
    model = onnx.load(export_ours("gpt2", "torchscript"))
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "in.onnx")
    with pytest.raises(HieronnxError, match="has no hierarchy"):
        hieronnx.optimize(tmp_path / "in.onnx", output=tmp_path / "out.onnx", tool="ort-basic")


def test_the_model_itself_is_not_overwritten(tmp_path: Path) -> None:
    source = export_ours("gpt2", "torchscript")
    before = source.read_bytes()
    with pytest.raises(HieronnxError, match="would overwrite"):
        hieronnx.optimize(source, output=source, tool="ort-basic")
    assert source.read_bytes() == before


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(HieronnxError, match="make it first"):
        hieronnx.optimize(export_ours("gpt2", "torchscript"), output=tmp_path / "no" / "o.onnx", tool="ort-basic")


# --- the command ---


def test_the_command_writes_notes_apart_from_its_result(tmp_path: Path) -> None:
    source = os.path.relpath(export_ours("conv_batch_norm_residual", "dynamo"))
    result = run("optimize", source, "-o", tmp_path / "o.onnx", "--with", "ort-extended")
    assert result.exit_code == 0, result.stderr
    assert result.stderr.startswith("note: the file has operators of ONNX Runtime's own")
    assert "FusedConv" in result.stdout
    assert f"next: hieronnx compare {source} {tmp_path / 'o.onnx'}" in result.stdout


def test_the_command_writes_json(tmp_path: Path) -> None:
    source = export_ours("gpt2", "torchscript")
    result = run("optimize", source, "-o", tmp_path / "o.onnx", "--with", "onnxslim", "--json", "--no-sidecar")
    told = json.loads(result.stdout)
    assert told["path"] == str(tmp_path / "o.onnx")
    assert told["nodes_before"] == 176
    assert not sidecar_path(tmp_path / "o.onnx").exists()


def test_compare_groups_by_module_what_the_optimizer_did(tmp_path: Path) -> None:
    source = export_ours("bert", "dynamo")
    hieronnx.optimize(source, output=tmp_path / "o.onnx", tool="ort-extended")
    result = run("compare", source, tmp_path / "o.onnx")
    assert result.exit_code == 1
    assert "encoder.layer.1.attention.output" in result.stdout
