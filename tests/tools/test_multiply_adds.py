"""Multiply-adds are those that PyTorch counts, and those that can be worked out by hand; nothing is made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, parser
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from hieronnx import HieronnxError, analyze
from hieronnx.hierarchy.categories import DOMAINS, OPERATORS
from hieronnx.tools.analyze.multiply_adds import Operation, count_multiply_adds
from support.exports import exported, quiet
from support.zoo import CASES

Shape = tuple[int, ...]


def count(op_type: str, *inputs: Shape | None, output: Shape | None = None, domain: str = "", **attributes: Any) -> Any:
    return count_multiply_adds(Operation(op_type, domain, inputs, [output], attributes))


def count_runtime(op_type: str, *inputs: Shape | None, output: Shape | None = None, **attributes: Any) -> Any:
    return count(op_type, *inputs, output=output, domain="com.microsoft", **attributes)


# --- against PyTorch ---


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("name", ["bert", "resnet", "mixtral", "convnext", "tied_weights", "called_in_loop"])
def test_the_count_is_half_of_pytorchs_floating_point_operations(name: str, exporter: str) -> None:
    case, export = CASES[name], exported(name, exporter)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        export.model(*case.args(), **case.kwargs())
    total = analyze(export.result.path).total
    assert (2 * total.multiply_adds, total.uncounted) == (counter.get_total_flops(), 0)


@pytest.mark.parametrize("name", ["bert", "transformer_encoder", "resnet", "gpt2"])
def test_what_onnx_runtime_fused_counts_the_same_although_it_leaves_out_shapes(name: str, tmp_path: Path) -> None:
    path = exported(name, "torchscript").result.path
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    with quiet():
        ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    before, after = analyze(path).total, analyze(tmp_path / "optimized.onnx").total
    assert any(name.startswith("com.microsoft::Fused") for name in after.operators)
    assert (after.multiply_adds, after.uncounted) == (before.multiply_adds, 0)


# --- by hand ---


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((2, 3), (3, 4), 24),
        ((5, 2, 3), (3, 4), 120),
        ((5, 1, 2, 3), (7, 3, 4), 840),
        ((3,), (3, 4), 12),
        ((2, 3), (3,), 6),
        ((3,), (3,), 3),
        ((0, 3), (3, 4), 0),
    ],
)
def test_matrix_products(a: Shape, b: Shape, expected: int) -> None:
    made = np.matmul(np.zeros(a), np.zeros(b)).shape
    assert count("MatMul", a, b) == expected
    assert count("MatMul", a, None, output=made) == expected
    assert count("MatMul", None, b, output=made) == expected
    assert count("QLinearMatMul", a, (), (), b) == expected
    assert count_runtime("MatMulIntegerToFloat", a, b) == expected


def test_transposed_products() -> None:
    assert count("Gemm", (3, 2), (4, 3), transA=1, transB=1) == 24
    assert count_runtime("FusedGemm", (2, 3), (4, 3), transB=1) == 24
    assert count_runtime("FusedMatMul", (5, 3, 2), (5, 3, 4), transA=1) == 120
    assert count_runtime("FusedMatMul", (2, 5, 3), (5, 3, 4), transBatchA=1) == 120
    assert count_runtime("QGemm", (2, 3), (), (), (3, 4)) == 24
    assert count_runtime("MatMulNBits", (2, 5, 16), None, K=16, N=8) == 1280


@pytest.mark.parametrize(
    ("equation", "inputs", "expected"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)], 24),
        ("bhqd, bhkd -> bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)], 720),
        ("...ij,...jk", [(5, 2, 3), (1, 3, 4)], 120),
        ("ij->ji", [(2, 3)], 0),
        ("i,i,i->", [(4,), (4,), (4,)], 8),
        ("ij,jk->ik", [(2, 3), None], None),
        ("ij,jk->ik", [(2, 3), (3,)], None),
    ],
)
def test_sums_over_indices(equation: str, inputs: list[Shape | None], expected: int | None) -> None:
    assert count("Einsum", *inputs, equation=equation) == expected


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"dilations": [2, 1], "pads": [0, 2, 0, 2]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 3]},
        {"group": 2},
    ],
)
def test_a_convolution_counts_the_same_with_and_without_the_shape_of_its_output(options: dict[str, Any]) -> None:
    weight = (6, 4 // options.get("group", 1), 3, 3)
    node = helper.make_node("Conv", ["x", "w"], ["y"], **options)
    graph = helper.make_graph(
        [node],
        "main",
        [helper.make_tensor_value_info("x", 1, [2, 4, 9, 8]), helper.make_tensor_value_info("w", 1, weight)],
        [helper.make_tensor_value_info("y", 1, None)],
    )
    inferred = onnx.shape_inference.infer_shapes(helper.make_model(graph)).graph.output[0].type.tensor_type.shape
    made = tuple(dim.dim_value for dim in inferred.dim)
    expected = int(np.prod(made)) * weight[1] * 9
    assert count("Conv", (2, 4, 9, 8), weight, output=made, **options) == expected
    assert count("Conv", (2, 4, 9, 8), weight, **options) == expected
    assert count_runtime("FusedConv", (2, 4, 9, 8), weight, **options) == expected
    assert count("QLinearConv", (2, 4, 9, 8), (), (), weight, **options) == expected


def test_other_convolutions() -> None:
    assert count("ConvTranspose", (1, 4, 5, 5), (4, 6, 3, 3)) == 4 * 25 * 6 * 9
    assert count_runtime("NhwcFusedConv", (1, 5, 5, 4), (6, 3, 3, 4), output=(1, 3, 3, 6)) == 54 * 36
    assert count_runtime("NhwcFusedConv", (1, 5, 5, 4), (6, 3, 3, 4)) is None
    assert count("CausalConvWithState", (2, 4, 10), (4, 1, 3)) == 240


@pytest.mark.parametrize(("op_type", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_layers(op_type: str, gates: int) -> None:
    steps, batch, size, hidden, directions = 7, 2, 5, 3, 2
    weights = [(directions, gates * hidden, size), (directions, gates * hidden, hidden)]
    expected = steps * batch * directions * gates * hidden * (size + hidden)
    assert count(op_type, (steps, batch, size), *weights) == expected


def test_attention_is_scores_and_weighted_values() -> None:
    batch, heads, queries, keys, size = 2, 4, 3, 5, 8
    expected = 2 * batch * heads * queries * keys * size
    query, key = (batch, heads, queries, size), (batch, heads, keys, size)
    packed = [(batch, queries, heads * size), (batch, keys, heads * size), (batch, keys, heads * size)]
    assert count("Attention", query, key, key) == expected
    assert count("Attention", *packed, q_num_heads=heads, kv_num_heads=heads) == expected
    assert count_runtime("MultiHeadAttention", *packed, num_heads=heads) == expected
    assert count_runtime("MultiHeadAttention", (batch, keys, heads, 3, size)) == 2 * batch * heads * keys * keys * size
    half = (batch, queries, heads * size // 2)
    assert count_runtime("GroupQueryAttention", packed[0], half, half, num_heads=4, kv_num_heads=2) == (
        2 * batch * heads * queries * queries * size
    )


def test_attention_counts_what_came_before_and_is_unknown_where_that_is() -> None:
    query = (1, 2, 1, 4)
    assert count("Attention", query, query, query, (), (1, 2, 9, 4)) == 2 * 2 * 10 * 4
    assert count("Attention", query, query, query, (), None) is None


def test_attention_with_projections_counts_these_too() -> None:
    batch, length, size = 2, 3, 8
    inside = 2 * batch * length * length * size
    assert count_runtime("Attention", (batch, length, size), (size, 3 * size), (3 * size,), num_heads=2) == (
        batch * length * size * 3 * size + inside
    )


def test_experts_count_as_often_as_tokens_are_sent_to_them() -> None:
    assert count_runtime("MoE", (5, 8), (5, 4), (4, 16, 8), (), (4, 8, 16), k=2) == 5 * 2 * (128 + 128)


# --- what is not known ---


@pytest.mark.parametrize("op_type", ["Add", "Relu", "LayerNormalization", "MaxPool", "Softmax", "Reshape", "Loop"])
def test_pointwise_work_and_moving_data_count_as_none(op_type: str) -> None:
    assert count(op_type, None) == 0


@pytest.mark.parametrize("op_type", ["DFT", "Det", "SVMRegressor", "NoSuchOperator"])
def test_an_operator_without_a_formula_is_unknown(op_type: str) -> None:
    assert count(op_type, (2, 2), (2, 2)) is None


def test_an_operator_of_a_private_domain_is_unknown_whatever_its_name() -> None:
    assert count("MatMul", (2, 3), (3, 4), domain="mine") is None
    assert count("Add", (2, 3), (2, 3), domain="mine") is None


@pytest.mark.parametrize("domain", sorted(DOMAINS))
def test_shapes_that_do_not_fit_break_no_formula(domain: str) -> None:
    for op_type in (operator for operators in OPERATORS.values() for operator in operators):
        for shapes in ([], [None] * 9, [()] * 9, [(1,)] * 9, [(2, 2)] * 9, [(2, 2, 2)] * 9, [(1, 2, 2, 2)] * 9):
            found = count_multiply_adds(Operation(op_type, domain, shapes, shapes, {}))
            assert found is None or found >= 0


def test_attributes_that_do_not_fit_leave_the_count_unknown() -> None:
    assert count("Conv", (1, 1, 5), (1, 1, 3), strides=[0]) is None
    assert count("Conv", (1, 1, 5), (1, 1, 3), pads=["a", "b"]) is None
    assert count("Conv", (1, 1, 2), (1, 1, 9)) is None


# --- shapes ---

DYNAMIC = """
    <ir_version: 10, opset_import: ["" : 21]>
    main (float[batch, 4] x, float[n] unused) => (float[doubled, 8] y)
    <float[4, 8] w = {0}, float[m, 4] t>
    {
        t = Concat <axis = 0> (x, x)
        y = MatMul (t, w)
    }
"""


def dynamic() -> onnx.ModelProto:
    model = parser.parse_model(DYNAMIC.replace("float[4, 8] w = {0}, ", ""))
    model.graph.initializer.append(TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 8]))
    return model


def test_a_dynamic_axis_leaves_the_count_unknown_until_it_is_fixed() -> None:
    total = analyze(dynamic()).total
    assert (total.multiply_adds, total.uncounted) == (0, 1)
    fixed = analyze(dynamic(), dims={"batch": 3}).total
    assert (fixed.multiply_adds, fixed.uncounted) == (6 * 4 * 8, 0)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_an_export_with_dynamic_axes_counts_as_much_as_the_static_one_once_they_are_fixed(exporter: str) -> None:
    names, axes = CASES["bert"].kwargs(), {0: "batch", 1: "sequence"}
    if exporter == "dynamo":
        sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence", max=16)}
        options: dict[str, Any] = {"dynamic_shapes": dict.fromkeys(names, sizes)}
    else:
        options = {"dynamic_axes": dict.fromkeys(names, axes), "input_names": list(names)}
    path = exported.__wrapped__("bert", exporter, **options).result.path
    static = analyze(exported("bert", exporter).result.path).total
    batch, sequence = names["input_ids"].shape
    fixed = analyze(path, dims={"batch": batch, "sequence": sequence}).total
    assert (fixed.multiply_adds, fixed.uncounted) == (static.multiply_adds, 0)
    assert (
        analyze(path, dims={"batch": 2 * batch, "sequence": sequence}).total.multiply_adds == 2 * static.multiply_adds
    )


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"bach": 3}, "no dynamic axis 'bach'; its dynamic axes are: batch, doubled, m, n"),
        ({"batch": 0}, "axis 'batch' cannot have size 0"),
    ],
)
def test_an_axis_that_cannot_be_fixed_is_named(dims: dict[str, int], message: str) -> None:
    with pytest.raises(HieronnxError, match=message):
        analyze(dynamic(), dims=dims)


BODY = """
    <ir_version: 10, opset_import: ["" : 21]>
    main (float[2, 2] x, bool c, int64 n) => (float[2, 2] y)
    {
        y = Loop (n, c, x) <
            body = loop_body (int64 i, bool ci, float[2, 2] s) => (bool co, float[2, 2] so) {
                co = Identity (ci)
                t = Relu (s)
                u = Transpose (t)
                so = MatMul (t, u)
            }
        >
    }
"""


def test_the_nodes_of_a_body_count_once_with_shapes_inferred_inside() -> None:
    total = analyze(parser.parse_model(BODY)).total
    assert (total.multiply_adds, total.uncounted) == (8, 0)


FUNCTION = """
    <ir_version: 10, opset_import: ["" : 21, "local" : 1]>
    main (float[2, 2] x) => (float[2, 2] z) { y = local.square (x)  z = MatMul (y, x) }
    <domain: "local", opset_import: ["" : 21]>
    square (x) => (y) { y = MatMul (x, x) }
"""


def test_a_functions_nodes_are_counted_not_its_calls() -> None:
    analysis = analyze(parser.parse_model(FUNCTION))
    assert [(node.operator, node.multiply_adds) for node in analysis.nodes] == [
        ("local::square", 0),
        ("MatMul", 8),
        ("MatMul", None),  # a function has no shapes of its own
    ]


def test_the_model_in_memory_is_not_changed() -> None:
    model = dynamic()
    before = model.SerializeToString(deterministic=True)
    analyze(model, dims={"batch": 3})
    assert model.SerializeToString(deterministic=True) == before


def test_what_cannot_be_inferred_is_said() -> None:
    model = dynamic()
    del model.graph.value_info[:]
    model.graph.node.append(helper.make_node("Odd", ["y"], ["z"], domain="not.imported"))
    model.graph.node.append(helper.make_node("MatMul", ["z", "w"], ["q"]))
    analysis = analyze(model, dims={"batch": 3})
    assert (analysis.total.multiply_adds, analysis.total.uncounted) == (192, 2)
