"""locate finds the module of a node or tensor by its name, and tree tells where work went that a call's nodes lack."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import onnx
import pytest

import hieronnx
import support.cli
from hieronnx.errors import InputError
from hieronnx.hierarchy.elsewhere import find_work_elsewhere
from hieronnx.report.location import render_location
from support.exports import exported

CASE = ("albert", "torchscript")  # one layer, called several times


@pytest.fixture(scope="module")
def path() -> Path:
    return exported(*CASE).result.path


def test_every_node_is_found_by_its_name_and_every_tensor_by_its_producer_and_readers(path: Path) -> None:
    model = onnx.load(path, load_external_data=False)
    scopes = {node.output: node.scope for node in hieronnx.load(path).nodes}
    readers = defaultdict(set)
    for node in model.graph.node:
        for name in node.input:
            readers[name].add(scopes[node.output[0]])
    for node in list(model.graph.node)[::9]:
        by_name = hieronnx.locate(model, node.name)
        assert [(item.role, item.node.scope) for item in by_name.nodes] == [("node", scopes[node.output[0]])]
        tensor = hieronnx.locate(model, node.output[0])
        assert [item.node.scope for item in tensor.nodes if item.role == "producer"] == [scopes[node.output[0]]]
        assert {item.node.scope for item in tensor.nodes if item.role == "reader"} == readers[node.output[0]]


def test_the_answer_has_all_that_is_known(path: Path) -> None:
    node = next(n for n in hieronnx.load(path).nodes if n.op_type == "MatMul" and n.scope.number == 1)
    shown = support.cli.run("tree", path, node.name)
    assert shown.exit_code == 0
    for text in ("MatMul", node.name, str(node.scope), hieronnx.load(path).tag_of(node.scope), "captured", "high"):
        assert text in shown.stdout
    entry = json.loads(support.cli.run("tree", path, node.name, "--json").stdout)
    assert entry == {**hieronnx.locate(path, node.name).to_dict(), "model": str(path)}
    assert entry["nodes"][0]["node"]["scope"] == {"module": node.scope.module, "call": 1}
    assert repr(hieronnx.locate(path, node.name)) == f"LocateResult({node.name!r}: {node.scope})"


def test_inputs_outputs_and_parameters_have_their_place(path: Path) -> None:
    model = onnx.load(path, load_external_data=False)
    fed = hieronnx.locate(path, model.graph.input[0].name)
    assert fed.input
    assert {item.role for item in fed.nodes} == {"reader"}
    assert "is an input of the model" in render_location(fed)
    assert hieronnx.locate(path, model.graph.output[0].name).output
    held = next(item for item in hieronnx.load(path).initializers if item.parameter)
    found = hieronnx.locate(path, held.name)
    assert found.initializers == (held,)
    assert f"it holds parameter '{held.parameter}'" in render_location(found)


def test_a_node_inside_a_body_is_found() -> None:
    path = exported("cond", "dynamo").result.path
    inner = next(node for node in hieronnx.load(path).nodes if node.graph)
    found = hieronnx.locate(path, inner.output)
    assert inner in [item.node for item in found.nodes]
    assert f"in {inner.graph}" in render_location(found)


def test_a_name_that_is_not_there_is_answered_with_names_that_are(path: Path) -> None:
    node = hieronnx.load(path).nodes[10]
    with pytest.raises(InputError, match="no node or tensor"):
        hieronnx.locate(path, f"{node.name}_quant")
    missing = support.cli.run("tree", path, f"{node.name}_quant")
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert repr(node.name) in missing.stderr
    assert support.cli.run("tree", path, "--node").exit_code == 2


def test_a_name_of_both_a_call_and_a_tensor_is_the_call_s_and_the_other_is_told() -> None:
    path = exported("two_module_lists", "dynamo").result.path
    hierarchy = hieronnx.load(path)
    model = onnx.load(path)
    module = next(call.id.module for call in hierarchy.calls if call.id.module)
    renamed = model.graph.node[0]
    renamed.name = module
    other = path.with_name("named.onnx")
    onnx.save(model, other)
    shown = support.cli.run("tree", other, module)
    assert shown.stderr == f"note: '{module}' is also a node or a tensor: --node shows its module\n"
    assert renamed.op_type in support.cli.run("tree", other, module, "--node").stdout


def test_a_file_without_a_hierarchy_cannot_tell(path: Path, tmp_path: Path) -> None:
    model = onnx.load(path)
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "plain.onnx")
    assert support.cli.run("tree", tmp_path / "plain.onnx", model.graph.node[0].name).exit_code == 2


# -- work elsewhere ---------------------------------------------------------------------------------------


def test_a_call_whose_work_is_fused_says_into_which_node() -> None:
    path = exported("conv_batch_norm", "dynamo").result.path
    hierarchy = hieronnx.load(path)
    fused = next(node for node in hierarchy.nodes if len(node.origins) > 1)
    elsewhere = find_work_elsewhere(hierarchy)
    for origin in fused.origins:
        assert [(work.how, work.name) for work in elsewhere[origin]] == [("fused", fused.name)]
    shown = support.cli.run("tree", path, "--all").stdout
    mark = f"fused: Conv {fused.name} in {str(fused.scope) or '(root)'}"
    lines = [line for line in shown.splitlines() if line.endswith(mark)]
    assert len(lines) == len(fused.origins)
    tree = json.loads(support.cli.run("tree", path, "--all", "--json").stdout)["tree"]
    found = [work for child in tree["children"] for work in child["elsewhere"]]
    assert {work["op_type"] for work in found} == {"Conv"}


def test_only_what_a_call_does_not_do_itself_is_marked() -> None:
    hierarchy = exported("mask_in_every_layer", "dynamo").hierarchy
    regions = {above for node in hierarchy.nodes for above in hierarchy.tree.ancestors(node.scope)}
    for call, works in find_work_elsewhere(hierarchy).items():
        assert works
        assert call not in regions or {work.how for work in works} == {"fused"}
        below = set(hierarchy.tree.below(call))
        assert all(work.scope not in below for work in works)
