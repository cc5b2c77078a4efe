"""What is in blocks of channels is read from its usual form, and the model computes the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from hieronnx.runtime.blocks import read_usual_forms
from support.callrecords import open_session


def make(channels: int, last: int, opset: int) -> onnx.ModelProto:
    """Return a model that reads a tensor in blocks before it has its usual form, and that again in blocks."""
    nchwc = "com.microsoft.nchwc"
    usual = f"channels = {channels}, channels_last = {last}"
    text = f"""
        <ir_version: 8, opset_import: ["" : {opset}, "{nchwc}" : 1]>
        main (float[2,8,4,5] x) => (float[a,b,c,d] y, float[e,f,g,h] z)
        {{
            t = {nchwc}.ReorderInput (x)
            p = {nchwc}.GlobalAveragePool (t)
            q = {nchwc}.GlobalAveragePool (p)
            z = {nchwc}.ReorderOutput <channels = {channels}> (q)
            y = {nchwc}.ReorderOutput <{usual}> (t)
        }}
        """
    return onnx.parser.parse_model(text)


@pytest.mark.parametrize("opset", [10, 17])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("channels", [5, 6, 8])
def test_what_is_in_blocks_is_read_from_its_usual_form(channels: int, last: int, opset: int) -> None:
    model = make(channels, last, opset)
    read = read_usual_forms(model)
    inputs = {node.output[0]: node.input[0] for node in read.graph.node}
    assert (inputs["p"], inputs["q"], inputs["y"]) == ("y/blocks", "p", "t")
    assert inputs["y/blocks"] == ("y" if channels == 8 else "y/filled")
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 8, 4, 5)).astype(np.float32)}
    found, expected = (open_session(m).run(None, feeds) for m in (read, model))
    assert expected[1].shape == (2, channels, 1, 1)
    assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))


def test_a_model_without_blocks_is_left_as_it_is() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> main (float[2] x) => (float[2] y) { y = Relu (x) }'
    )
    assert read_usual_forms(model) is model
