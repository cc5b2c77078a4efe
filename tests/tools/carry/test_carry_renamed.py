"""Carry onto files whose names are all gone and that a tool then rewrote: no node has a call that did nothing of it.

The truth is had in two steps that names lead through: onto the same graph under other names, which is known node for
node (`test_zoo.py`), and from there onto what the tool made of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.anonymize import anonymize_file

import hieronnx
from hieronnx.hierarchy.records import CallId, Node
from support.exports import exported
from support.zoo import CASES

# Of the nodes that carry knows for sure where names lead, at least this share is known for sure where none do.
TOOLS = {"onnxslim": 0.8, "ort-basic": 0.8, "ort-extended": 0.2}
MODELS = [("t5", "torchscript"), ("qwen", "torchscript"), ("mamba", "torchscript"), ("resnet", "dynamo")]
EXPORTS = [(name, exporter) for name, case in CASES.items() for exporter in case.exporters]


def carry_both_ways(
    name: str, exporter: str, tool: str, folder: Path
) -> Iterator[tuple[Node, Node, hieronnx.Hierarchy]]:
    """Yield each node that is known for sure by names, the same as known without them, and the hierarchy of that."""
    original = exported(name, exporter).result.path
    anonymize_file(original, folder / "bare.onnx")
    hieronnx.carry(original, folder / "bare.onnx", output=folder / "renamed.onnx")
    hieronnx.optimize(folder / "renamed.onnx", output=folder / "made.onnx", tool=tool)
    found = hieronnx.carry(original, folder / "made.onnx").hierarchy
    for node, same in zip(hieronnx.load(folder / "made.onnx").nodes, found.nodes, strict=True):
        assert node.output == same.output
        if node.confidence == "high":
            yield node, same, found


def can_be(found: CallId, node: Node, hierarchy: hieronnx.Hierarchy) -> bool:
    """Say whether a call is one of those whose work a node does, or above one."""
    calls = (node.scope, *node.origins)
    return any(found in hierarchy.tree.ancestors(call) for call in calls)


def assert_nothing_is_wrong(pairs: list[tuple[Node, Node, hieronnx.Hierarchy]]) -> None:
    for node, same, hierarchy in pairs:
        is_right = can_be(same.scope, node, hierarchy) or node.scope in same.origins
        assert is_right or same.confidence == "low", (node.output, str(node.scope), str(same.scope), same.evidence)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(("name", "exporter"), MODELS, ids=["-".join(pair) for pair in MODELS])
def test_without_names_weights_and_structure_tell_whose_nodes_are(
    name: str, exporter: str, tool: str, tmp_path: Path
) -> None:
    pairs = list(carry_both_ways(name, exporter, tool, tmp_path))
    assert_nothing_is_wrong(pairs)
    assert sum(same.confidence == "high" for _, same, _ in pairs) >= TOOLS[tool] * len(pairs)


@pytest.mark.long
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(("name", "exporter"), EXPORTS, ids=["-".join(pair) for pair in EXPORTS])
def test_without_names_nothing_is_wrong_over_the_zoo(name: str, exporter: str, tool: str, tmp_path: Path) -> None:
    assert_nothing_is_wrong(list(carry_both_ways(name, exporter, tool, tmp_path)))
