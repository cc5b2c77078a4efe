"""A literal belongs to those who read it, however its file came to its hierarchy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
import transformers
from torch import nn

import hieronnx
from hieronnx.hierarchy.records import CallId
from support.exports import Exported, exported, quiet
from support.literals import misplaced_literals
from support.onnx_text import carry


def merge_equal_literals(path: Path, target: Path) -> None:
    """Write a model without its hierarchy, and with each literal once."""
    model = onnx.load(path)
    kept: dict[bytes, str] = {}
    merged: dict[str, str] = {}
    for node in model.graph.node:
        del node.metadata_props[:]
        if node.op_type == "Constant":
            value = node.attribute[0].SerializeToString()
            merged[node.output[0]] = kept.setdefault(value, node.output[0])
    for node in [node for node in model.graph.node if merged.get(node.output[0], node.output[0]) != node.output[0]]:
        model.graph.node.remove(node)
    for node in model.graph.node:
        node.input[:] = [merged.get(name, name) for name in node.input]
    del model.metadata_props[:]
    onnx.save(model, target)


def carry_merged(of: Exported, output: Path) -> None:
    merge_equal_literals(of.result.path, output.with_name("merged.onnx"))
    hieronnx.carry(of.result.path, output.with_name("merged.onnx"), output=output)


def annotate_by_value(of: Exported, output: Path) -> None:
    hieronnx.annotate(of.result.path, of.model, of.case.args(), of.case.kwargs(), output=output)


def annotate_by_usage(of: Exported, output: Path) -> None:
    hieronnx.annotate(of.result.path, of.model, strategy="usage_based", output=output)


@pytest.mark.parametrize("make", [carry_merged, annotate_by_value, annotate_by_usage])
def test_whatever_gave_a_file_its_hierarchy(make: Callable[[Exported, Path], None], tmp_path: Path) -> None:
    make(exported("mask_in_every_layer", "torchscript"), tmp_path / "model.onnx")
    hierarchy = hieronnx.load(tmp_path / "model.onnx")
    assert sum(node.op_type == "Constant" for node in hierarchy.nodes) > 5
    assert misplaced_literals(tmp_path / "model.onnx", hierarchy) == []
    assert hieronnx.validate(tmp_path / "model.onnx").passed


def test_what_torch_merged_with_a_literal_of_another_layer_is_its_readers() -> None:
    """The Gather of BERT's pooler picks the first token, by an index that the last layer's attention has, too."""
    hierarchy = exported("bert", "torchscript").hierarchy
    index = hierarchy.find("/embeddings/Constant_output_0")
    assert (index.scope, index.origins) == (CallId("pooler", 0), (CallId("pooler", 0),))
    assert (index.evidence, index.confidence, index.rule) == ("dataflow", "low", "consumers")


class Twins(nn.Module):
    """Two modules of equal weights that read the same tensor: the file has their weights once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(8), nn.LayerNorm(8)
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.left(self.first(x)) + self.right(self.second(x))


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_modules_of_equal_weights_are_told_apart(exporter: str, tmp_path: Path) -> None:
    result = hieronnx.export(Twins().eval(), (torch.randn(2, 8),), tmp_path / "m.onnx", exporter=exporter)
    found = {str(origin) for n in result.hierarchy.nodes if n.op_type == "LayerNormalization" for origin in n.origins}
    assert found == {"first", "second"}


@pytest.mark.parametrize("read", ["two", "other"])
def test_work_that_was_folded_is_its_calls_unless_others_read_an_equal_literal(read: str) -> None:
    before = f"""
        main (float[4] x) => (float[4] y) {{
            one = Constant <value = float {{1.0}}> ()
            two = Add (one, one)
            other = Constant <value = float {{2.0}}> ()
            p = Pow (x, {read})
            y = Mul (p, two)
        }}
    """
    after = "main (float[4] x) => (float[4] y) { l = Constant <value = float {2.0}> () p = Pow (x, l) y = Mul (p, l) }"
    calls = {"one": "own", "two": "own", "y": "own", "other": "early", "p": "early"}
    _, evidence = carry(before, after, calls)["l"]
    assert (evidence == "carried") == (read == "two")


def test_work_that_was_folded_is_not_that_of_the_literals_it_read() -> None:
    before = """
        main (int64[2] x) => (float[2, 4] y) <float[9, 4] v, float[3, 4] w> {
            zeros = Constant <value_ints = [0, 0]> ()
            t = Gather (w, zeros)
            g = Gather (v, x)
            c = Cast <to = 1> (t)
            y = Add (g, c)
        }
    """
    after = """
        main (int64[2] x) => (float[2, 4] y) <float[9, 4] v> {
            t = Constant <value_floats = [1.0, 2.0]> ()
            g = Gather (v, x)
            y = Add (g, t)
        }
    """
    calls = {"zeros": "", "t": "types", "g": "words", "c": "", "y": ""}
    assert carry(before, after, calls)["t"] == ({"types"}, "carried")


def test_a_literal_among_sizes_is_not_the_work_that_is_done_with_sizes(tmp_path: Path) -> None:
    """The index of the first token is one with the zeros that the embeddings compute sizes with."""
    torch.manual_seed(0)
    config = transformers.Dinov2Config(
        hidden_size=16, num_attention_heads=2, num_hidden_layers=1, image_size=16, patch_size=8
    )
    images = {"pixel_values": torch.randn(2, 3, 16, 16)}
    model = transformers.Dinov2Model(config).eval()
    with quiet():
        result = hieronnx.export(model, (), tmp_path / "m.onnx", images, exporter="torchscript")
    (gather,) = (n for n in onnx.load(result.path).graph.node if n.name == "/Gather")
    index = result.hierarchy.find(gather.input[1])
    assert (str(index.scope), index.evidence) == ("", "dataflow")
