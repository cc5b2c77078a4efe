"""Nodes placed on devices by module: what the file says, and what ONNX Runtime makes of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest

import hieronnx
from support.cli import run
from support.nets import export_stack


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_stack(tmp_path_factory.mktemp("place") / "stack.onnx", [64, 64])


def read_annotations(path: Path) -> dict[str, str]:
    nodes = onnx.load(path).graph.node
    return {node.output[0]: p.value for node in nodes for p in node.metadata_props if p.key == "layer_ann"}


def test_the_first_rule_that_fits_counts_and_onnx_runtime_takes_it(stack: Path, tmp_path: Path) -> None:
    result = hieronnx.place(stack, on=["cuda:blocks.1", "cpu:blocks.*"], output=tmp_path / "placed.onnx")
    written = read_annotations(tmp_path / "placed.onnx")
    for node in hieronnx.load(stack).nodes:
        inside = node.scope.module.split(".")[:2]
        expected = "cuda" if inside == ["blocks", "1"] else "cpu" if inside[0] == "blocks" else None
        assert written.get(node.output) == expected
    assert [(rule.device, rule.nodes) for rule in result.rules] == [
        (device, Counter(written.values())[device]) for device in ("cuda", "cpu")
    ]
    assert result.unplaced == len(result.hierarchy.nodes) - len(written)
    assert result.session_options == {"session.layer_assignment_settings": "cuda(=cuda); cpu(=cpu)"}
    # Here is only a CPU: every node that was asked for is seen to be given to it, and that is said.
    assert [dict(rule.providers) for rule in result.rules] == [
        {"CPUExecutionProvider": rule.nodes} for rule in result.rules
    ]
    assert any("'cuda'" in note for note in result.notes)
    options = ort.SessionOptions()
    for key, value in result.session_options.items():
        options.add_session_config_entry(key, value)
    ort.InferenceSession(str(tmp_path / "placed.onnx"), options, providers=["CPUExecutionProvider"])
    assert hieronnx.validate(tmp_path / "placed.onnx").passed


def test_placing_again_replaces_what_was_there_and_nothing_else_changes(stack: Path, tmp_path: Path) -> None:
    hieronnx.place(stack, on=["cuda:*"], output=tmp_path / "first.onnx")
    hieronnx.place(tmp_path / "first.onnx", on=["npu:head"], output=tmp_path / "second.onnx", check=False)
    written = read_annotations(tmp_path / "second.onnx")
    assert set(written.values()) == {"npu"}
    assert len(written) == len(hieronnx.load(stack).nodes_in("head"))
    assert hieronnx.compare(stack, tmp_path / "second.onnx", names=True, values=True).same


@pytest.mark.parametrize("rule", ["cuda", "cuda:", ":head", "cu(da:head", ""])
def test_a_rule_that_is_none_is_told(stack: Path, tmp_path: Path, rule: str) -> None:
    with pytest.raises(hieronnx.InputError, match="expected device:target"):
        hieronnx.place(stack, on=[rule], output=tmp_path / "placed.onnx")
    assert not (tmp_path / "placed.onnx").exists()


def test_the_command_prints_the_options_to_use(stack: Path, tmp_path: Path) -> None:
    printed = run("place", stack, "-o", tmp_path / "placed.onnx", "--on", "gpu:1:blocks.0", "--on", "cpu:*")
    assert printed.exit_code == 0, printed.output
    assert "add_session_config_entry('session.layer_assignment_settings', 'gpu:1(=gpu:1); cpu(=cpu)')" in printed.stdout
    wrong = run("place", stack, "-o", tmp_path / "other.onnx", "--on", "cpu:nothing")
    assert wrong.exit_code == 2
    assert "nothing" in wrong.stderr
