"""Planted wrong layers are found by what an execution cannot do; what an honest file may say is not called wrong."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch
from torch import nn

import hieronnx
from hieronnx.attribute.fill import fill_gaps
from hieronnx.files.opening import open_model
from hieronnx.graph.building import view_model
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import Attribution, CallId, Node
from hieronnx.tools.validate.boundaries import check_boundaries
from hieronnx.tools.validate.layers import check_layers
from support.annotated import annotated
from support.exports import exported, quiet

# Two layers with a residual each; the Constant is the first one's, the second projects in a module of its own.
CHAIN = """g (float[2] x) => (float[2] y) {
    k = Constant <value = float {2}> ()
    a = Mul (x, k)
    h = Add (x, a)
    b = Exp (h)
    c = Relu (b)
    y = Add (h, c)
}"""
SCOPES: list[str | tuple[str, ...]] = ["l0", "l0", "l0", "l1", "l1.act", "l1"]
PASSED = {"l0": (["x=x"], ["=h"]), "l1": (["x=h"], ["=y"]), "l1.act": (["x=b"], ["=c"])}


def found(
    scopes: Sequence[str | tuple[str, ...]],
    *,
    text: str = CHAIN,
    passed: Mapping[str, tuple[Sequence[str], Sequence[str]]] | None = PASSED,
    evidence: str = "captured",
) -> list[tuple[str, str, str]]:
    """Return severity, check and message of what is found if the nodes are in these calls, with this evidence."""
    model = annotated(text, list(scopes), passed)
    read = open_model(model)
    assert read.hierarchy is not None
    nodes = tuple(replace(node, evidence=evidence) for node in read.hierarchy.nodes)
    hierarchy, view = replace(read.hierarchy, nodes=nodes), view_model(ir.from_proto(model))
    findings = (*check_layers(hierarchy, view), *check_boundaries(hierarchy, view))
    return [(item.severity, item.check, item.message) for item in findings]


def planted(**scopes: str) -> list[str | tuple[str, ...]]:
    """Return the scopes of the chain with some nodes, by output, in other calls."""
    return [scopes.get(output, scope) for output, scope in zip("kahbcy", SCOPES, strict=True)]


def errors(scopes: Sequence[str | tuple[str, ...]], **options: Any) -> list[str]:
    return [message for severity, _, message in found(scopes, **options) if severity == "error"]


def test_the_true_layers_are_right() -> None:
    assert found(SCOPES) == []
    assert found(SCOPES, passed=None) == []


def test_the_residual_of_a_layer_is_not_made_by_the_next_one_which_received_it() -> None:
    wrong = planted(h="l1")
    assert "Add 'h' of 'l1' makes what 'l1' received: that was there before the call" in errors(wrong)
    assert "Add 'h' of 'l1' makes what 'l0' returned, and runs later" in errors(wrong)
    assert errors(wrong, passed=None) == []  # without what the calls passed on, a layer could end there


def test_a_later_call_feeds_no_earlier_one() -> None:
    options: dict[str, Any] = {"text": "g (float[2] x) => (float[2] y) { m = Exp (x) y = Relu (m) }", "passed": None}
    assert errors(["a", "b"], **options) == []
    assert errors(["b", "a"], **options) == ["Exp 'm' of 'b' feeds Relu 'y' of 'a', and runs later"]
    assert errors(["b", "a"], evidence="parameter", **options) == []  # without a run nobody knows which came first


def test_a_call_is_not_left_before_it_made_what_it_returned() -> None:
    (message,) = errors(planted(h=""))
    assert message.startswith("data leaves 'l0' and comes back: ")
    assert "Add 'h' of '' makes what 'l0' returned" in message


def test_a_literal_is_with_one_that_reads_it() -> None:
    (message,) = errors(planted(k="l1"))
    assert message == "it is a literal in 'l1', which has nothing to do with 'l0', where it is read"
    assert errors(planted(k="")) == []
    assert errors(planted(k="l1"), evidence="carried") == []  # work that was folded


@pytest.mark.parametrize("evidence", ["dataflow", "parameter"])
def test_what_is_known_to_be_in_or_below_a_call_may_be_below_it(evidence: str) -> None:
    assert errors(planted(h=""), evidence=evidence) == []
    assert errors(planted(h="l1"), evidence=evidence)  # but it is in no sibling


def test_names_do_not_tell_the_calls_of_a_module_apart() -> None:
    assert errors(planted(h="l1"), evidence="name") == []


def test_data_that_crosses_without_being_passed_is_a_warning() -> None:
    """It looks as if the first layer had computed it: nothing that ran says otherwise but what the calls passed on."""
    findings = found(planted(b="l0"))
    assert {(severity, check) for severity, check, _ in findings} == {("warning", "boundaries")}
    assert "it reads 'b' of Exp 'b' of 'l0', but 'l0' did not return it, and 'l1' did not receive it" in findings[0][2]
    (returned,) = found(SCOPES, passed=PASSED | {"l1.act": (["x=b"], ["0=c", "1=a"])})
    assert returned == ("warning", "boundaries", "it returned 'a' and did not receive it, but Mul 'a' of 'l0' makes it")
    assert found(planted(b="l0"), passed=None) == []
    assert found(planted(b="l0"), evidence="dataflow") == []


# -- every node of exports, moved ---------------------------------------------------------------------------------


EXPORTS = [("bert", "torchscript"), ("bert", "dynamo"), ("resnet", "dynamo"), ("t5", "torchscript")]
SAMPLE = 60
# The share that `layers` alone finds. Modules of a single node, one after the other, can trade theirs: only what they
# passed on tells, and ResNet has little else.
LEAST = {"bert": 0.9, "t5": 0.9, "resnet": 0.5}


def siblings(hierarchy: Hierarchy, node: Node) -> Iterator[CallId]:
    """Yield where a node could be mistaken to be: in the same place of another layer, or right beside its call."""
    for above in [*hierarchy.tree.ancestors(node.scope)][:-1]:
        parent = hierarchy.call_by_id[above].parent
        assert parent is not None
        for beside in hierarchy.tree.children[parent]:
            path = beside.module + node.scope.module.removeprefix(above.module)
            if beside != above:
                yield from (call for call in hierarchy.tree.below(beside) if call.module == path)


@pytest.mark.parametrize(("name", "exporter"), EXPORTS)
def test_a_node_that_is_moved_to_a_sibling_is_found(name: str, exporter: str) -> None:
    read = open_model(exported(name, exporter).result.path)
    assert read.hierarchy is not None
    hierarchy, view = read.hierarchy, view_model(read.model)
    literals = {view.node_keys[index] for index in view.literals}
    nodes = [node for node in hierarchy.nodes if len(node.origins) == 1 and node.key not in literals]
    moves = [(node, call) for node in nodes for call in siblings(hierarchy, node)]
    counts = Counter[str]()
    for node, call in random.Random(0).sample(moves, min(SAMPLE, len(moves))):
        moved = (replace(n, scope=call, origins=(call,)) if n is node else n for n in hierarchy.nodes)
        wrong = replace(hierarchy, nodes=tuple(moved))
        checks = {item.check for item in (*check_layers(wrong, view), *check_boundaries(wrong, view))}
        counts[min(checks, default="missed", key=("layers", "boundaries").index)] += 1
    total = counts.total()
    assert counts["missed"] <= 0.02 * total, counts
    assert counts["layers"] >= LEAST[name] * total, counts


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_no_residual_of_a_layer_can_be_given_to_another(exporter: str) -> None:
    result = exported("bert", exporter).result
    hierarchy, view = hieronnx.load(result.path), view_model(open_model(result.path).model)
    layer = "encoder.layer.0"
    of_layer = [node for node in hierarchy.nodes if node.scope.module.startswith(layer)]
    residuals = [node for node in of_layer if node.op_type == "Add" and node.scope.module.endswith(".output")]
    assert len(residuals) == 2
    for node in residuals:
        call = CallId(node.scope.module.replace(layer, "encoder.layer.1"), 0)
        moved = tuple(replace(n, scope=call, origins=(call,)) if n is node else n for n in hierarchy.nodes)
        assert any(item.severity == "error" for item in check_layers(replace(hierarchy, nodes=moved), view))


def test_an_export_says_so_if_nodes_are_in_calls_that_could_not_have_run_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def swap(*args: Any) -> list[Attribution]:
        """Attribute all, but what the first two layers did to each other."""
        first, second, *rest = fill_gaps(*args)
        return [second, first, *rest]

    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).eval(), torch.zeros(1, 4)
    with quiet():
        assert hieronnx.export(model, (x,), tmp_path / "model.onnx", exporter="torchscript").findings == ()
        monkeypatch.setattr("hieronnx.attribute.captured.fill_gaps", swap)
        result = hieronnx.export(model, (x,), tmp_path / "model.onnx", exporter="torchscript")
    assert {(item.check, item.severity) for item in result.findings} == {("layers", "error")}
    assert "nodes are in calls that could not have run them" in caplog.text
    assert "please report it" in caplog.text


def test_a_size_that_a_function_gives_is_no_data(tmp_path: Path) -> None:
    flat = annotated(
        """agraph (float[B, 4] x) => (float[B, 4] y) {
            h = Relu(x) s = Shape(h) t = Add(s, s) u = Sub(t, s) y = Reshape(h, u)
        }""",
        ["a", "a", "a", "a", ""],
        {"a": (["x=x"], ["=h"])},
    )
    hieronnx.fold(flat, output=tmp_path / "folded.onnx")
    assert ir.load(tmp_path / "folded.onnx").functions
    assert "boundaries" not in {finding.check for finding in hieronnx.validate(tmp_path / "folded.onnx").findings}
