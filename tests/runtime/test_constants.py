"""Constants of a model among its weights: what it computes stays the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from hieronnx.graph.walks import proto_bodies
from hieronnx.runtime.constants import hold_constants, read_constant

X = np.float32([1, 2])


def parse(text: str, *, version: int = 10) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: {version}, opset_import: ["" : 13]> {text}')


def run(model: onnx.ModelProto, **feeds: object) -> np.ndarray:
    onnx.checker.check_model(model)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": X, **{name: np.array(value) for name, value in feeds.items()}})[0]


def test_a_model_without_constants_is_not_copied() -> None:
    model = parse("main (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add (x, w) }")
    assert hold_constants(model) is model


def test_what_is_no_tensor_stays() -> None:
    model = parse("""main (float[2] x) => (int64 y, float[2] z) {
        y = Constant <value_int = 3> ()
        z = Neg (x)
    }""")
    assert hold_constants(model) is model


def test_a_model_with_constants_is_left_as_it_is() -> None:
    model = parse("main (float[2] x) => (float[2] y) { k = Constant <value_float = 2.0> ()  y = Add (x, k) }")
    before = model.SerializeToString()
    held = hold_constants(model)
    assert [node.op_type for node in held.graph.node] == ["Add"]
    assert model.SerializeToString() == before
    np.testing.assert_array_equal(run(held), X + 2)


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ({"value": numpy_helper.from_array(np.float16([1, 2]))}, np.float16([1, 2])),
        ({"value": numpy_helper.from_array(np.int64([1, 2]))}, np.int64([1, 2])),
        ({"value": numpy_helper.from_array(np.bool_(True))}, np.bool_(True)),
        ({"value_float": 0.5}, np.float32(0.5)),
        ({"value_floats": [0.5, 1.5]}, np.float32([0.5, 1.5])),
        ({"value_int": 1}, None),
        ({"value_ints": [1, 2]}, None),
        ({"value_string": "a"}, None),
    ],
)
def test_what_a_constant_gives_is_read(attribute: dict[str, object], expected: np.ndarray | None) -> None:
    tensor = read_constant(helper.make_node("Constant", [], ["k"], **attribute))
    assert (tensor is None) == (expected is None)
    if tensor is not None and expected is not None:
        array = numpy_helper.to_array(tensor)
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(array, expected)


def test_another_node_gives_no_constant() -> None:
    value = numpy_helper.from_array(X)
    assert read_constant(helper.make_node("Constant", [], ["k"], domain="local", value=value)) is None
    assert read_constant(helper.make_node("ConstantOfShape", ["x"], ["k"], value=value)) is None


@pytest.mark.parametrize("version", [3, 4, 10])
@pytest.mark.parametrize("choice", [True, False])
def test_a_constant_that_only_a_body_reads_is_held(version: int, choice: bool) -> None:
    """Before version 4 ONNX Runtime knows no initializer there that is not an input."""
    text = """main (float[2] x, bool c) => (float[2] y) {
        k = Constant <value = float[2] {3, 4}> ()
        y = If (c) <
            then_branch = yes () => (float[2] t) { i = Constant <value_floats = [5.0, 6.0]> ()  t = Add (x, i) },
            else_branch = no () => (float[2] e) { e = Add (x, k) }>
    }"""
    model = parse(text, version=version)
    held = hold_constants(model)
    assert {tensor.name for tensor in held.graph.initializer} == {"hieronnx held 1", "hieronnx held 2"}
    np.testing.assert_array_equal(run(held, c=choice), X + ([5, 6] if choice else [3, 4]))


@pytest.mark.parametrize("version", [3, 10])
def test_initializers_of_old_files_stay_constants(version: int) -> None:
    """A DequantizeLinear's scale for one: as an input that may be fed it would be none."""
    model = parse(
        """main (float[2] x, float[2] w) => (float[2] y) <float[2] w = {5, 6}> {
            k = Constant <value = float[2] {3, 4}> ()
            a = Add (x, k)
            y = Mul (a, w)
        }""",
        version=version,
    )
    held = hold_constants(model)
    assert [value.name for value in held.graph.input] == (["x"] if version == 3 else ["x", "w"])
    np.testing.assert_array_equal(run(held), (X + np.float32([3, 4])) * [5, 6])


@pytest.mark.parametrize("own", ["node", "input", "initializer"])
def test_a_name_that_a_body_has_again_is_its_own(own: str) -> None:
    """Shadowing is not allowed, and yet files have it: what a body calls `k` is not the constant outside."""
    model = parse("main (float[2] x, float[2] z) => (float[2] y) { k = Constant <value = float[2] {3, 4}> () }")
    body = helper.make_graph([helper.make_node("Neg", ["k"], ["o"])], "body", [], [])
    body.output.append(helper.make_tensor_value_info("o", TensorProto.FLOAT, [2]))
    if own == "node":
        body.node.insert(0, helper.make_node("Abs", ["x"], ["k"]))
    elif own == "input":
        body.input.append(helper.make_tensor_value_info("k", TensorProto.FLOAT, [2]))
    else:
        body.initializer.append(numpy_helper.from_array(X, "k"))
    model.graph.node.append(helper.make_node("Scan", ["z"], ["y"], num_scan_inputs=1, body=body))
    (node,) = hold_constants(model).graph.node
    ((_, made),) = proto_bodies(node)
    (neg,) = [inner for inner in made.node if inner.op_type == "Neg"]
    assert list(neg.input) == ["k"]
