"""Carry through every tool: each node of what it made has a call that made its values, and no sibling's."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from benchmarks.anonymize import anonymize
from torch import nn

from hieronnx import export, load
from hieronnx.files.opening import open_model
from hieronnx.graph.building import view_model
from hieronnx.tools.carry import carry
from support.carry_matrix import Cell, Subject, add_up, attributed, measure, measure_file, subject, transformed
from support.carrycheck import Eager, judge
from support.transformations import COLUMNS
from support.zoo import CASES

MODELS = [
    ("bert", "torchscript"),
    ("gpt2", "torchscript"),
    ("t5", "torchscript"),
    ("convnext", "torchscript"),
    ("resnet", "torchscript"),
    ("conv_batch_norm_residual", "dynamo"),
    ("multihead_attention", "dynamo"),
    ("called_in_loop", "torchscript"),
    ("lstm", "dynamo"),
    ("cond", "dynamo"),
]
SMALL = [("bert", "torchscript"), ("conv_batch_norm_residual", "dynamo")]
CHAINS = [
    ("onnxsim", "ort-extended"),
    ("onnxslim", "int8-dynamic"),
    ("opset-onnx", "int8-static", "ort-extended"),
    ("ort-basic", "fp16", "onnxslim"),
]
EXPORTS = [(name, exporter) for name, case in CASES.items() for exporter in case.exporters]
# Fused nodes have more origins than those that they were made of; to name many is no way to be right.
LOOSEST = 2.5


@pytest.mark.parametrize(("name", "exporter"), MODELS, ids=["-".join(pair) for pair in MODELS])
def test_every_tool_leaves_nodes_with_their_calls(name: str, exporter: str) -> None:
    assert_holds({column: [("", measure(subject(name, exporter), column))] for column in COLUMNS})


@pytest.mark.long
def test_every_tool_leaves_nodes_with_their_calls_over_the_zoo() -> None:
    cells: dict[str, list[tuple[str, Cell]]] = {column: [] for column in COLUMNS}
    for name, exporter in EXPORTS:
        for column in COLUMNS:
            cells[column].append((f"{name}-{exporter}", measure(subject(name, exporter), column)))
        subject.cache_clear()
    assert_holds(cells)


def assert_holds(cells: dict[str, list[tuple[str, Cell]]]) -> None:
    """Hold each column against what carry promises of it."""
    for column, found in cells.items():
        total = add_up(found)
        assert not total.sibling, (column, total.sibling[:5])
        assert total.share >= COLUMNS[column].least, (column, total.share, total.wrong[:5])
        assert total.root_share < 0.01, (column, total.roots, total.nodes)
        assert total.looseness < LOOSEST, (column, total.origins, total.nodes)


class Heads(nn.Module):
    """Ends in a view, which a product follows: a tool that flattens the product's input merges the two."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.out = nn.Linear(16, 16), nn.Linear(16, 16)
        self.view = JoinHeads()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.out(self.view(self.value(x).view(2, 5, 2, 8).transpose(1, 2).softmax(-1)))


class JoinHeads(nn.Module):
    """Puts heads side by side."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).reshape(2, 5, 16)


class Gated(nn.Module):
    """A residual block with a shortcut of its own, whose sum and activations go into convolutions."""

    def __init__(self, activation: type[nn.Module]) -> None:
        super().__init__()
        self.shortcut, self.first, self.second = (nn.Conv2d(16, 16, 1) for _ in range(3))
        self.inner, self.outer = activation(), activation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.second(self.inner(self.first(x))) + self.shortcut(x))


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize(
    ("model", "shape", "columns"),
    [
        (nn.Sequential(Heads(), nn.LayerNorm(16), Heads()), (2, 5, 16), ("onnxsim", "onnxslim", "ort-extended")),
        (nn.Sequential(*(Gated(nn.ReLU) for _ in range(3))), (1, 16, 6, 6), ("ort-all",)),
        (nn.Sequential(*(Gated(nn.SiLU) for _ in range(3))), (1, 16, 6, 6), ("ort-all",)),
    ],
    ids=["heads", "residual", "gated"],
)
def test_work_stays_in_order_where_a_tool_renamed_all_between(
    model: nn.Module, shape: tuple[int, ...], columns: tuple[str, ...], exporter: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, args = model.eval(), (torch.randn(shape),)
    path = export(model, args, output=tmp_path / "model.onnx", exporter=exporter).path
    eager = Eager(model, args, {})
    of = Subject("plain", eager, path, eager.feeds(path), load(path))
    for column in columns:
        cell = measure(of, column)
        assert cell.verdicts is not None, cell.failure
        assert cell.verdicts.right, column
        assert not cell.verdicts.wrong, (column, cell.verdicts.wrong)
        assert not cell.roots, column


@pytest.mark.parametrize("columns", CHAINS, ids=["+".join(chain) for chain in CHAINS])
@pytest.mark.parametrize(("name", "exporter"), SMALL, ids=[name for name, _ in SMALL])
def test_carrying_tool_by_tool_loses_no_more_than_each_step(
    name: str, exporter: str, columns: tuple[str, ...], tmp_path: Path
) -> None:
    of = subject(name, exporter)
    target, source = transformed(of, *columns), of.path
    for number in range(len(columns)):
        carry(source, target.with_name(f"{number}.onnx"), output=tmp_path / f"{number}.onnx")
        source = tmp_path / f"{number}.onnx"
    precision = "int8" if any("int8" in column for column in columns) else "half" if "fp16" in columns else "float"
    stepwise = judge(of.eager.find_truth(target, of.feeds, precision), attributed(load(source)))
    assert not stepwise.sibling
    assert stepwise.share >= min(COLUMNS[column].least for column in columns), stepwise.wrong
    at_once = measure_file(of, target, precision).verdicts
    assert at_once is not None
    assert len(stepwise.wrong) <= len(at_once.wrong) + 1


@pytest.mark.parametrize(
    "column", ["ort-extended", "onnxsim", "onnxslim", "onnxscript", "fp16-keep-io", "int8-dynamic"]
)
@pytest.mark.parametrize(("name", "exporter"), SMALL, ids=[name for name, _ in SMALL])
def test_by_value_finds_the_calls_where_every_name_is_gone(
    name: str, exporter: str, column: str, tmp_path: Path
) -> None:
    of = subject(name, exporter)
    target, nameless = transformed(of, column), tmp_path / "nameless.onnx"
    onnx.save(anonymize(onnx.load(target)), nameless)
    after = carry(of.path, nameless, by_value=True).hierarchy
    found = {node.output: node for node in after.nodes}
    keys, views = view_model(open_model(target).model), view_model(open_model(nameless).model)
    named = {  # node i is still node i
        keys.node_key(index): frozenset({tuple(node.scope), *map(tuple, node.origins)})
        for index in range(len(keys.nodes))
        if (node := found[views.node_key(index)[1]])
    }
    verdicts = judge(of.eager.find_truth(target, of.feeds, COLUMNS[column].precision), named)
    assert not verdicts.sibling
    assert verdicts.share >= COLUMNS[column].least, verdicts.wrong
    origins = [sum(len(node.origins) for node in side.nodes) / len(side.nodes) for side in (of.hierarchy, after)]
    assert origins[1] < LOOSEST * origins[0]
