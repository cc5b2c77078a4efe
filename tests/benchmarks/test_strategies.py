"""How good the strategies are: the measure itself, and that `captured` and `htp` agree.

What one records while it exports, the other finds by value in a file without names; they count calls alike.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import torch
from benchmarks.__main__ import TIMED, main
from benchmarks.anonymize import anonymize_file
from benchmarks.score_report import render_scores, scores_to_json
from benchmarks.scores import OUTCOMES, judge, measure_strategies, score
from benchmarks.strategies import MEASURED, PAGE, write_page
from click import ClickException
from click.testing import CliRunner
from torch import Tensor, nn

from hieronnx.attribute.file import attribute_file
from hieronnx.attribute.request import Request
from hieronnx.files.opening import open_model
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import ROOT, CallId, Node
from hieronnx.hierarchy.tags import TagPolicy
from support.annotated import make_hierarchy
from support.exports import exported, quiet
from support.zoo import CASES

# -- the measure ----------------------------------------------------------------------------------------------

LAYER, INNER, SIBLING = CallId("layer", 0), CallId("layer.inner", 0), CallId("other", 0)


def make_node(scope: CallId, *more: CallId, evidence: str = "captured", op: str = "MatMul", output: str = "y") -> Node:
    return Node("", "", op, "", output, scope, (scope, *more), evidence)


def make(*nodes: Node) -> Hierarchy:
    return make_hierarchy({"layer.inner", "other"}, list(nodes))


@pytest.mark.parametrize(
    ("right", "given", "outcome"),
    [
        (make_node(INNER), make_node(INNER, evidence="value"), "exact"),
        (make_node(INNER, SIBLING), make_node(SIBLING, evidence="value"), "origin"),
        (make_node(INNER), make_node(LAYER, evidence="dataflow"), "coarse"),
        (make_node(INNER), make_node(SIBLING, evidence="value"), "wrong"),
        (make_node(INNER), make_node(CallId("layer.inner", 1), evidence="value"), "wrong"),
        (make_node(LAYER), make_node(INNER, evidence="value"), "wrong"),
        (make_node(INNER), make_node(ROOT, evidence="root"), "none"),
        (make_node(ROOT), make_node(ROOT, evidence="root"), "none"),
    ],
)
def test_a_node_is_judged_by_the_call_that_it_was_given(right: Node, given: Node, outcome: str) -> None:
    assert judge(make(right), right, given) == outcome


def test_nodes_are_counted_by_category_and_confidence() -> None:
    truth = make(make_node(INNER), make_node(SIBLING, op="Relu"), make_node(ROOT, evidence="root"))
    found = make(make_node(INNER, evidence="value"), make_node(INNER, op="Relu", evidence="dataflow"), make_node(INNER))
    result = score("htp", truth, found)
    assert result.total == dict.fromkeys(OUTCOMES, 0) | {"exact": 1, "wrong": 1}
    assert result.by_category["mathematical"]["exact"] == 1
    assert result.by_category["activation"]["wrong"] == 1
    assert (result.by_confidence["high"]["exact"], result.by_confidence["low"]["wrong"]) == (1, 1)
    assert "medium" not in result.by_confidence


class Loops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.relu(self.cell(x))
        return self.head(x)


def test_every_strategy_is_measured_on_a_model() -> None:
    torch.manual_seed(0)
    with quiet():
        scores = measure_strategies(Loops().eval(), (torch.randn(2, 8),), exporter="torchscript")
    assert (scores.exporter, scores.nodes) == ("torchscript", 7)
    by_value, by_use = scores.scores
    assert (by_value.strategy, by_use.strategy) == ("htp", "usage_based")
    assert by_value.total["exact"] == 7
    assert by_use.total["exact"] >= 2
    assert by_use.total["wrong"] == 0
    text = render_scores(scores)
    assert "htp, by category" in text
    assert "usage_based, by confidence" in text
    assert scores_to_json(scores)["strategies"]["htp"]["total"]["exact"] == 7


def test_the_command_measures_a_target() -> None:
    result = CliRunner().invoke(main, ["strategies", "demo", "--exporter", "torchscript", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert set(told["strategies"]) == {"htp", "usage_based"}
    assert sum(told["strategies"]["htp"]["total"].values()) == told["nodes"]


def test_every_measurement_is_a_command() -> None:
    assert set(main.commands) == {*TIMED, "strategies", "matrix"}
    assert all(hasattr(importlib.import_module(f"benchmarks.{name}"), "run") for name in TIMED)


@pytest.mark.parametrize("command", ["python -m benchmarks.strategies", "python -m benchmarks strategies"])
def test_the_tables_go_between_the_markers(command: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n<!-- begin: {command} -->\nold\n<!-- end -->\nafter\n")
    write_page(page, "new")
    assert page.read_text() == f"before\n<!-- begin: {command} -->\n\nnew\n\n<!-- end -->\nafter\n"
    page.write_text("no markers")
    with pytest.raises(ClickException, match="no markers"):
        write_page(page, "new")


def test_docs_have_the_markers() -> None:
    assert MEASURED.search(PAGE.read_text(encoding="utf-8"))


# -- the cross-check --------------------------------------------------------------------------------------------

EXPORTS = [(name, exporter) for name, case in CASES.items() for exporter in case.exporters]
FEW = [
    ("bert", "torchscript"),
    ("gpt2", "dynamo"),
    ("called_in_loop", "dynamo"),
    ("nested_repeated_calls", "torchscript"),
    ("shared_under_two_names", "dynamo"),
    ("mask_in_every_layer", "dynamo"),
    ("conv_batch_norm_residual", "torchscript"),
    ("root_slicing", "dynamo"),
    ("nested_cond", "dynamo"),
    ("scripted_loop", "torchscript"),
    ("lstm", "torchscript"),
    ("tied_weights", "dynamo"),
    ("transformer_encoder", "torchscript"),
]


def agree(right: Node, given: Node) -> bool:
    """Say whether two strategies mean the same call: one may know of more calls that the node stands for."""
    return given.scope in (right.scope, *right.origins) or right.scope in given.origins


def find_disagreements(name: str, exporter: str, folder: Path) -> tuple[int, list[str]]:
    """Return how many nodes both strategies give a call at high confidence, and those that get different calls.

    The file that `htp` sees has no names, so that it can have nothing from what was captured.
    """
    case, truth = CASES[name], exported(name, exporter)
    anonymize_file(truth.result.path, folder / "bare.onnx")
    opened = open_model(folder / "bare.onnx")
    request = Request(opened, truth.model, case.args(), case.kwargs())
    found = attribute_file(request, strategy="htp", policy=TagPolicy())
    pairs = zip(truth.hierarchy.nodes, found.hierarchy.nodes, strict=True)
    sure = [(right, given) for right, given in pairs if right.confidence == given.confidence == "high"]
    return len(sure), [
        f"{right.op_type} {right.output}: captured says {right.scope}, htp says {given.scope}"
        for right, given in sure
        if not agree(right, given)
    ]


@pytest.mark.parametrize(("name", "exporter"), FEW, ids=["-".join(pair) for pair in FEW])
def test_captured_and_htp_agree_where_both_are_sure(name: str, exporter: str, tmp_path: Path) -> None:
    sure, told = find_disagreements(name, exporter, tmp_path)
    assert sure
    assert not told, "\n".join(told)


@pytest.mark.long
@pytest.mark.parametrize(("name", "exporter"), EXPORTS, ids=["-".join(pair) for pair in EXPORTS])
def test_captured_and_htp_agree_on_the_whole_zoo(name: str, exporter: str, tmp_path: Path) -> None:
    _, told = find_disagreements(name, exporter, tmp_path)
    assert not told, "\n".join(told)
