"""Sizes that a file declares, and that its inputs contradict: an exporter saw one example, of a batch of one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

import hieronnx
from hieronnx.graph.shapes import correct_declared
from support.annotated import annotated

NET = """
net (float[batch,8,4] x) => (float[{batch},2,k] y) <float[batch,8,4] s, float[{batch},8,4] d, float[{batch},2,16] r> {{
  s = Sub (x, c)
  d = Div (s, c)
  r = Reshape (d, to)
  y = MatMul (r, w)
}}
"""
SCOPES = ["first", "first", "first", "second"]
PASSED = {"first": (["x=x"], ["=r"]), "second": (["x=r"], ["=y"])}


def write(folder: Path, batch: str) -> Path:
    """Write a net for any batch, which is declared to be so, or to be of the one of the example."""
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {NET.format(batch=batch)}')
    arrays = {
        "c": np.arange(1, 5, dtype=np.float32),
        "w": np.ones((16, 5), np.float32),
        "to": np.array([-1, 2, 16]),
    }
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    path = folder / "net.onnx"
    onnx.save(annotated(model, SCOPES, PASSED), path)
    return path


def declared(path: Path) -> dict[str, list[int | str | None]]:
    corrected = correct_declared(ir.load(path))
    return {
        info.name: [dim.dim_param or dim.dim_value or None for dim in info.type.tensor_type.shape.dim]
        for info in corrected.values()
    }


def test_what_is_right_is_left_as_it_is(tmp_path: Path) -> None:
    assert declared(write(tmp_path, "batch")) == {}


def test_what_inputs_contradict_is_corrected_and_what_they_do_not_tell_is_left_open(tmp_path: Path) -> None:
    found = declared(write(tmp_path, "1"))
    assert found["s"] == found["d"] == ["batch", 8, 4]
    assert found["r"][0] is None
    assert found["y"] == [None, 2, "k"]


@pytest.mark.parametrize("batch", ["1", "batch"])
@pytest.mark.parametrize("size", [1, 3])
def test_counts_are_those_of_the_sizes_that_inputs_have(batch: str, size: int, tmp_path: Path) -> None:
    path, work = write(tmp_path, batch), size * 2 * 16 * 5
    assert hieronnx.analyze(path, dims={"batch": size}).total.multiply_adds == work
    feeds = {"x": np.ones((size, 8, 4), np.float32)}
    assert hieronnx.profile(path, inputs=feeds, runs=2, roofline=False).calls[0].multiply_adds == work


def test_parts_and_stages_take_the_sizes_that_the_model_takes(tmp_path: Path) -> None:
    path, x = write(tmp_path, "1"), np.random.default_rng(0).random((3, 8, 4), np.float32)
    (whole,) = ort.InferenceSession(path).run(None, {"x": x})
    hieronnx.extract(path, "second", output=tmp_path / "part.onnx")
    given = (x - np.arange(1, 5)) / np.arange(1, 5)
    feeds = {"r": given.reshape(3, 2, 16).astype(np.float32)}
    assert np.allclose(ort.InferenceSession(tmp_path / "part.onnx").run(None, feeds)[0], whole)
    result = hieronnx.split(path, at="second", into=tmp_path / "stages", dims={"batch": 3})
    assert [cut.bytes for cut in result.cuts] == [3 * 2 * 16 * 4]
    assert np.allclose(hieronnx.Pipeline(tmp_path / "stages").run({"x": x})["y"], whole)
