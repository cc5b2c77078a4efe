"""A quantized file with its rounding undone computes what it stands for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from hieronnx.files.opening import open_model
from hieronnx.runtime.sessions import open_runner
from hieronnx.runtime.unrounded import has_rounding, undo_rounding
from support.transformations import transform

NET = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1,3,8,8] x) => (float[1,5] y)
{
  c = Conv <pads = [1,1,1,1]> (x, w, b)
  r = Relu (c)
  p = MaxPool <kernel_shape = [2,2], strides = [2,2]> (r)
  s = Sigmoid (p)
  a = Add (p, s)
  g = GlobalAveragePool (a)
  f = Flatten (g)
  m = MatMul (f, v)
  y = Softmax (m)
}
"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    model, random = parser.parse_model(NET), np.random.default_rng(0)
    del model.graph.value_info[:]
    for name, shape in (("w", (4, 3, 3, 3)), ("b", (4,)), ("v", (4, 5))):
        array = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(model, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def run_inner(path: Path, x: np.ndarray, *, rounding: bool) -> dict[str, np.ndarray]:
    seen: dict[str, np.ndarray] = {}
    with open_runner(open_model(path), rounding=rounding) as runner:
        runner.run_exposed({"x": x}, lambda _, name, array: seen.update({name: array.copy()}))
    return seen


@pytest.mark.parametrize("column", ["int8-operators", "int8-static"])
def test_every_tensor_holds_what_it_stands_for(net: Path, column: str) -> None:
    random = np.random.default_rng(1)
    calibrated, other = (random.standard_normal((1, 3, 8, 8)).astype(np.float32) * scale for scale in (1, 3))
    made = net.with_name("int8.onnx")
    transform(column, net, made, {"x": calibrated})
    assert has_rounding(onnx.load(made))
    right, found = run_inner(net, other, rounding=True), run_inner(made, other, rounding=False)
    for name in ("p", "s", "a", "m", "y"):  # what is before them may have a Relu merged into it
        values = [array for made_name, array in found.items() if made_name in (name, f"{name}_quantized")]
        assert values, name
        assert all(np.linalg.norm(array - right[name]) <= 0.03 * np.linalg.norm(right[name]) for array in values), name
    rounded = run_inner(made, other, rounding=True)["y"]
    assert np.linalg.norm(rounded - right["y"]) > np.linalg.norm(found["y"] - right["y"])


def test_an_operator_without_a_plain_form_is_surrounded() -> None:
    kinds = {"s": np.float32(0.02), "z": np.uint8(128), "t": np.float32(0.05), "u": np.uint8(0)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("QLinearReduceMean", ["q", "s", "z", "t", "u"], ["p"], domain="com.microsoft", axes=[1]),
        helper.make_node("DequantizeLinear", ["p", "t", "u"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, size]) for name, size in (("x", 4), ("y", 1))]
    held = [numpy_helper.from_array(np.array(value), name) for name, value in kinds.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    made = undo_rounding(helper.make_model(graph, opset_imports=opsets, ir_version=9))
    assert [node.op_type for node in made.graph.node][-4:] == [
        "QuantizeLinear",
        "QLinearReduceMean",
        "DequantizeLinear",
        "Identity",
    ]


def test_what_is_not_quantized_stays_as_it_is(net: Path) -> None:
    model = onnx.load(net)
    assert not has_rounding(model)
    assert list(undo_rounding(model).graph.node) == list(model.graph.node)


def test_a_quantized_output_is_one_of_floats() -> None:
    held = [numpy_helper.from_array(np.array(v), n) for n, v in (("s", np.float32(0.5)), ("z", np.int8(-128)))]
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3]), helper.make_tensor_value_info("q", 3, [3])]
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    made = undo_rounding(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9))
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": np.array([-3.0, 0.3, 200.0], np.float32)})
    assert found.tolist() == pytest.approx([-0.25, 0.3, 200.0])


def test_what_is_rounded_to_the_last_number_of_a_range_is_not_outside_of_it() -> None:
    """A mask of the lowest float gives a range that ends at zero, in steps of which any other number is a part."""
    model = parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[3] x) => (float[3] y) <float s = {1000.0}, uint8 z = {255}> {
            q = QuantizeLinear (x, s, z)
            y = DequantizeLinear (q, s, z)
        }
        """
    )
    session = ort.InferenceSession(undo_rounding(model, keeps_ranges=True).SerializeToString())
    (found,) = session.run(None, {"x": np.array([0.3, 400.0, 2000.0], np.float32)})
    assert found.tolist() == pytest.approx([0.3, 400.0, 500.0])
