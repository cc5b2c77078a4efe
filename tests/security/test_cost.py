"""What a file costs is bounded by its size."""

from __future__ import annotations

import time
from pathlib import Path

import onnx
import pytest
from onnx import helper

import hieronnx
from hieronnx.files.wire import GRAPH_NODE, MODEL_GRAPH, NODE_ATTRIBUTE, frame


def field(number: int, content: bytes) -> bytes:
    return frame(number, len(content)) + content


def nest(depth: int) -> bytes:
    """Return a model whose one node has a body, which has a node with a body, and so on."""
    graph = field(GRAPH_NODE, helper.make_node("Relu", ["x"], ["y"]).SerializeToString()) + field(2, b"g")
    for number in range(depth):
        body = onnx.AttributeProto(name="then_branch", type=onnx.AttributeProto.GRAPH).SerializeToString()
        node = onnx.NodeProto(op_type="If", input=["x"], output=[f"y{number}"]).SerializeToString()
        graph = field(GRAPH_NODE, node + field(NODE_ATTRIBUTE, body + field(6, graph))) + field(2, b"g")
    opset = helper.make_opsetid("", 20)
    return onnx.ModelProto(ir_version=10, opset_import=[opset]).SerializeToString() + field(MODEL_GRAPH, graph)


def test_a_megabyte_of_ones_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "ones.onnx"
    path.write_bytes(b"\xff" * (1 << 20))
    started = time.process_time()
    with pytest.raises(hieronnx.HieronnxError, match="a number of more than 10 bytes"):
        hieronnx.analyze(path)
    assert time.process_time() - started < 1


@pytest.mark.parametrize("depth", [33, 1000, 5000])
@pytest.mark.parametrize("command", [hieronnx.load, hieronnx.analyze, hieronnx.validate], ids=lambda f: f.__name__)
def test_bodies_that_are_nested_too_deep_are_one_line(command: object, depth: int, tmp_path: Path) -> None:
    path = tmp_path / "deep.onnx"
    path.write_bytes(nest(depth))
    assert callable(command)
    with pytest.raises(hieronnx.HieronnxError, match="nested more than 32 deep"):
        command(path)
