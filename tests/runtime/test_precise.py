"""A coarse format undone, and weights moved by as much as it moves them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from hieronnx.runtime.precise import dither, find_unknown, make_precise

WEIGHT = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0].astype(np.float64)


def build(nodes: list[onnx.NodeProto], kind: int, **initializers: np.ndarray) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, [4, 8])],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(array, name) for name, array in initializers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def half() -> onnx.ModelProto:
    return build([helper.make_node("MatMul", ["x", "w"], ["y"])], TensorProto.FLOAT16, w=WEIGHT.astype(np.float16))


def dynamic() -> onnx.ModelProto:
    scale = np.float32(np.abs(WEIGHT).max() / 127)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z", "wz"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s", "ws"], ["sws"]),
        helper.make_node("Mul", ["f", "sws"], ["y"]),
    ]
    quantized = np.round(WEIGHT / scale).astype(np.int8)
    return build(nodes, TensorProto.FLOAT, w=quantized, ws=scale, wz=np.int8(0))


def static() -> onnx.ModelProto:
    scale = (np.abs(WEIGHT).max(0) / 127).astype(np.float32)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "xs", "xz"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=1),
        helper.make_node("MatMul", ["d", "wd"], ["y"]),
    ]
    quantized = np.round(WEIGHT / scale).astype(np.int8)
    scales = {"xs": np.float32(np.abs(X).max() / 127), "xz": np.int8(0), "ws": scale, "wz": np.zeros(8, np.int8)}
    return build(nodes, TensorProto.FLOAT, w=quantized, **scales)


@pytest.mark.parametrize("make", [half, dynamic, static])
def test_the_noise_is_as_large_as_the_error_that_the_format_makes(make: object) -> None:
    assert callable(make)
    model = make()
    x = X.astype(np.float16) if make is half else X
    precise = make_precise(model)
    assert not find_unknown(precise)
    actual, exact, moved = (run(m, x) for m in (model, precise, dither(precise, singles=False)))
    error = np.sqrt(np.mean((actual - X.astype(np.float64) @ WEIGHT) ** 2))
    noise = np.sqrt(np.mean((actual - exact) ** 2) + np.mean((moved - exact) ** 2))
    assert error > 0
    assert 0.3 < error / noise < 3


def test_single_floats_are_moved_by_a_rounding_if_asked() -> None:
    model = build([helper.make_node("MatMul", ["x", "w"], ["y"])], TensorProto.FLOAT, w=WEIGHT)
    exact = run(model, X)
    assert np.array_equal(run(dither(make_precise(model), singles=False), X), exact)
    moved = run(dither(make_precise(model), singles=True), X)
    assert 0 < np.abs(moved - exact).max() < 1e-5


@pytest.mark.parametrize("opset", [9, 18])
def test_a_whole_exponent_in_half_precision_stays_one(opset: int) -> None:
    """A negative number to another power is none, and nothing could be told of the noise."""
    node = helper.make_node("Pow", ["x", "e"], ["y"])
    model = build([node], TensorProto.FLOAT16, e=np.float16(2))
    model.opset_import[0].version = opset
    moved = run(dither(make_precise(model), singles=False), X.astype(np.float16))
    assert X.min() < 0
    assert np.isfinite(moved).all()


def test_each_draw_is_another_and_the_same_each_time() -> None:
    model = build([helper.make_node("MatMul", ["x", "w"], ["y"])], TensorProto.FLOAT, w=WEIGHT)
    first, again, second = (run(dither(model, singles=True, draw=draw), X) for draw in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_how_large_something_is_to_be_is_not_moved(kind: type[np.floating]) -> None:
    """A size of 2.9999998 would be one less."""
    resize = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest")
    model = build([resize], TensorProto.FLOAT, scales=np.array([3, 1.5], np.float32))
    if kind is np.float16:
        cast = helper.make_node("Cast", ["half"], ["x"], to=TensorProto.FLOAT)
        model.graph.node.insert(0, cast)
        model.graph.input[0].CopyFrom(helper.make_tensor_value_info("half", TensorProto.FLOAT16, [4, 8]))
    session = ort.InferenceSession(dither(make_precise(model), singles=True).SerializeToString())
    (found,) = session.run(None, {model.graph.input[0].name: X.astype(kind)})
    assert found.shape == (12, 12)


@pytest.mark.parametrize("axis", [0, 1])
def test_numbers_that_share_a_step_and_are_all_zero_were_not_rounded(axis: int) -> None:
    """A channel that is not used has a step, too, and that may be large."""
    model = static()
    weight, scale = (next(t for t in model.graph.initializer if t.name == name) for name in ("w", "ws"))
    array, steps = numpy_helper.to_array(weight).copy(), numpy_helper.to_array(scale).copy()
    steps[3] = 1.0
    array[(slice(None), 3) if axis else 3] = 0
    weight.CopyFrom(numpy_helper.from_array(array, "w"))
    scale.CopyFrom(numpy_helper.from_array(steps, "ws"))
    for node in model.graph.node:
        for attribute in node.attribute:
            attribute.i = axis
    exact, moved = (run(m, X) for m in (make_precise(model), dither(make_precise(model), singles=False)))
    assert 0 < np.abs(moved - exact).max() < 0.1


def test_a_bound_below_stays_one() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    model = build(nodes, TensorProto.FLOAT, s=np.float32(0.02), z=np.uint8(0))
    assert run(dither(make_precise(model), singles=False), X).min() >= -0.011


def test_what_cannot_be_undone_is_told() -> None:
    node = helper.make_node("QAttention", ["x"], ["y"], domain="com.microsoft")
    assert find_unknown(build([node], TensorProto.FLOAT)) == {"QAttention"}


@pytest.mark.parametrize("make", [half, dynamic, static])
def test_what_is_made_precise_or_moved_is_left_as_it_is(make: object) -> None:
    assert callable(make)
    model = make()
    before = model.SerializeToString()
    precise = make_precise(model)
    exact = precise.SerializeToString()
    assert dither(precise, singles=True).SerializeToString() != exact
    assert (model.SerializeToString(), precise.SerializeToString()) == (before, exact)


# -- constants that are no initializers ----------------------------------------------------------------------------


def as_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with Constants in place of initializers."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    held = [helper.make_node("Constant", [], [t.name], value=t) for t in model.graph.initializer]
    nodes = onnx.GraphProto(node=[*held, *model.graph.node])
    del made.graph.node[:], made.graph.initializer[:]
    made.graph.node.extend(nodes.node)
    return made


@pytest.mark.parametrize("singles", [False, True])
@pytest.mark.parametrize("make", [half, dynamic, static])
def test_constants_are_moved_as_weights_are(make: object, singles: bool) -> None:
    assert callable(make)
    x = X.astype(np.float16) if make is half else X
    model = make()
    exact = run(make_precise(model), x)
    np.testing.assert_array_equal(run(make_precise(as_constants(model)), x), exact)
    noises = []
    for form in (model, as_constants(model)):
        draws = [run(dither(make_precise(form), singles=singles, draw=draw), x) for draw in range(8)]
        noises.append(np.sqrt(np.mean((np.array(draws) - exact) ** 2)))
    assert noises[0] > 0
    assert 0.7 < noises[1] / noises[0] < 1.4


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.FLOAT])
def test_a_constant_that_is_given_back_is_moved_under_its_name(kind: int) -> None:
    value = numpy_helper.from_array(WEIGHT.astype(helper.tensor_dtype_to_np_dtype(kind)))
    model = build([helper.make_node("Constant", [], ["y"], value=value)], kind)
    x = X.astype(helper.tensor_dtype_to_np_dtype(kind))
    exact = run(make_precise(model), x)
    np.testing.assert_array_equal(exact, numpy_helper.to_array(value))
    assert 0 < np.abs(run(dither(make_precise(model), singles=True), x) - exact).max() < 2e-3


def test_a_single_number_in_a_constant_stays() -> None:
    for value in ({"value_float": 0.3}, {"value": numpy_helper.from_array(np.array([0.3], np.float32))}):
        nodes = [helper.make_node("Constant", [], ["e"], **value), helper.make_node("Mul", ["x", "e"], ["y"])]
        model = build(nodes, TensorProto.FLOAT, w=WEIGHT)
        model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.DOUBLE, [4, 8]))
        model.graph.node[1].input[0] = "single"
        model.graph.node.insert(0, helper.make_node("Cast", ["x"], ["single"], to=TensorProto.FLOAT))
        x = X.astype(np.float64)
        np.testing.assert_array_equal(run(dither(make_precise(model), singles=True), x), run(model, x))


def test_what_a_constant_must_not_become() -> None:
    """A mask of infinities, a whole exponent and a size stay as they are."""
    mask = np.where(WEIGHT > 0, np.float16(0), np.float16(-np.inf))
    nodes = [
        helper.make_node("Constant", [], ["m"], value=numpy_helper.from_array(mask[:4])),
        helper.make_node("Constant", [], ["e"], value=numpy_helper.from_array(np.float16(2))),
        helper.make_node("Constant", [], ["s"], value=numpy_helper.from_array(np.array([4, 8], np.int64))),
        helper.make_node("Pow", ["x", "e"], ["p"]),
        helper.make_node("Add", ["p", "m"], ["a"]),
        helper.make_node("Reshape", ["a", "s"], ["y"]),
    ]
    moved = run(dither(make_precise(build(nodes, TensorProto.FLOAT16)), singles=False), X.astype(np.float16))
    np.testing.assert_array_equal(np.isneginf(moved), np.isneginf(mask[:4]))
    assert not np.isnan(moved).any()


@pytest.mark.parametrize("inside", [False, True])
def test_a_constant_in_a_body_is_moved(inside: bool) -> None:
    table = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(WEIGHT.astype(np.float16)))
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [4, 8]) for name in ("h", "g")]
    condition = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("c", "d")]
    step = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    nodes = [helper.make_node("MatMul", ["h", "w"], ["g"]), helper.make_node("Identity", ["c"], ["d"])]
    body = helper.make_graph(
        [table, *nodes] if inside else nodes, "b", [step, condition[0], value[0]], [condition[1], value[1]]
    )
    loop = helper.make_node("Loop", ["n", "", "h0"], ["y"], body=body)
    cast = helper.make_node("Cast", ["x"], ["h0"], to=TensorProto.FLOAT16)
    model = build([cast, loop] if inside else [cast, table, loop], TensorProto.FLOAT, n=np.array(1, np.int64))
    exact, moved = (run(m, X) for m in (make_precise(model), dither(make_precise(model), singles=False)))
    np.testing.assert_allclose(exact, X.astype(np.float64) @ WEIGHT.astype(np.float16), rtol=1e-4, atol=1e-5)
    assert 0 < np.abs(moved - exact).max() < 1e-2
