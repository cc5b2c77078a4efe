"""Selecting nodes by module, and other tools that take the selection."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest
from onnxruntime.quantization import quantize_dynamic

import hieronnx
from hieronnx import InputError
from hieronnx.tools.select import FORMS
from support.annotated import annotated
from support.cli import run
from support.exports import export_ours

PATTERN = "encoder.layer.0.attention and op:MatMul"


def test_a_selection_is_of_modules_and_operators() -> None:
    path = export_ours("bert", "dynamo")
    hierarchy = hieronnx.load(path)
    selected = hieronnx.select(path, "encoder.layer.*.attention", op="MatMul", without="encoder.layer.1")
    by_hand = [n for n in hierarchy.nodes if n.op_type == "MatMul" and n.scope.module.startswith("encoder.layer.0.att")]
    assert by_hand
    assert selected.nodes == tuple(by_hand)
    assert selected.names == hieronnx.select(path, PATTERN).names
    everything = hieronnx.select(path)
    assert everything.nodes == hierarchy.nodes
    assert repr(everything) == f"Selection({len(hierarchy.nodes)} nodes of '{path}')"


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_the_whole_of_a_module_has_its_own_residual(exporter: str) -> None:
    path = export_ours("bert", exporter)
    one, other = (hieronnx.select(path, pattern).names for pattern in ("encoder.layer.0", "encoder.layer.0.*"))
    assert one == other
    layer = [node for node in hieronnx.select(path, "encoder.layer.0").nodes if node.op_type == "Add"]
    assert layer


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_the_quantizer_of_onnx_runtime_leaves_exactly_the_selected_nodes(exporter: str, tmp_path: Path) -> None:
    path = export_ours("bert", exporter)
    selection = hieronnx.select(path, "encoder.layer.0", "pooler")

    def quantized(**options: list[str]) -> set[str]:
        quantize_dynamic(path, tmp_path / "q.onnx", **options)
        names = [n.name for n in onnx.load(tmp_path / "q.onnx").graph.node if n.op_type.endswith("Integer")]
        return {name.removesuffix("_quant").removesuffix("_MatMul") for name in names}

    everything = quantized()
    assert everything.intersection(selection.names)
    assert quantized(**selection.for_tool("ort")) == everything.difference(selection.names)


def test_each_form_is_what_its_tool_takes() -> None:
    path = export_ours("bert", "torchscript")
    selection = hieronnx.select(path, PATTERN)
    assert selection.for_tool("names") == list(selection.names) == selection.render_for("names").splitlines()
    assert selection.for_tool("olive") == selection.for_tool("ort") == {"nodes_to_exclude": list(selection.names)}
    assert selection.for_tool("nncf") == {"names": list(selection.names)}
    every = [node.name for node in hieronnx.load(path).nodes]
    regexes = selection.for_tool("modelopt")["nodes_to_exclude"]
    assert [n for n in every if any(re.match(r, n) for r in regexes)] == list(selection.names)
    encodings = selection.for_tool("qnn")
    assert list(encodings["activation_encodings"]) == [node.output for node in selection.nodes]
    weights = {tensor.name for tensor in onnx.load(path).graph.initializer}
    assert encodings["param_encodings"].keys() == weights.intersection(selection.weights) != set()
    assert selection.for_tool("aimet") == [*encodings["activation_encodings"], *encodings["param_encodings"]]
    words = selection.render_for("polygraphy").split()
    assert words[1:-2] == [f"{name}:float32" for name in selection.names]
    for form in FORMS:
        assert selection.render_for(form)


def test_nodes_that_work_for_others_too_are_told() -> None:
    path = export_ours("bert", "dynamo")
    selection = hieronnx.select(path, "encoder.layer.1")
    shared = [node for node in selection.nodes if any("layer.1" not in origin.module for origin in node.origins)]
    assert list(selection.shared) == shared != []
    done = run("select", path, "encoder.layer.1")
    assert done.stdout.splitlines() == list(selection.names)
    assert "work for calls that were not selected" in done.stderr


def test_nodes_without_a_name_of_their_own_are_refused_for_tools_that_go_by_names(tmp_path: Path) -> None:
    model = annotated("net (float[2] x) => (float[2] y) { a = Relu(x)  y = Relu(a) }", ["m", "n"])
    for node in model.graph.node:
        node.name = "same"
    onnx.save(model, tmp_path / "m.onnx")
    done = run("select", tmp_path / "m.onnx", "m", "--for", "ort")
    assert done.exit_code == 2
    assert "1 selected node of" in done.stderr
    assert "--for json" in done.stderr
    assert json.loads(run("select", tmp_path / "m.onnx", "m", "--for", "json").stdout)["nodes"][0]["output"] == "a"


def test_what_names_nothing_is_refused() -> None:
    path = export_ours("bert", "torchscript")
    with pytest.raises(InputError, match="no operator 'Matmul'; did you mean 'MatMul'"):
        hieronnx.select(path, op="Matmul")
    with pytest.raises(InputError, match=r"no module call 'encoder\.layr\.0'; did you mean 'encoder\.layer\.0'"):
        hieronnx.select(path, "pooler", without="encoder.layr.0")
    with pytest.raises(InputError, match="no form 'onnx'"):
        hieronnx.select(path, "pooler").for_tool("onnx")
