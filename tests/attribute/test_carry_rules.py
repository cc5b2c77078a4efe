"""The rules of carry, one by one, on graphs of a few nodes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx import helper, numpy_helper, parser

from hieronnx.attribute.carried import Carried, carry_scopes
from hieronnx.graph.building import view_model
from hieronnx.graph.view import View, ViewGraph, ViewNode
from hieronnx.hierarchy.hierarchy import CallTree
from hieronnx.hierarchy.records import ROOT, Attribution, CallId

HEAD = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1, "com.microsoft.nchwc": 1]>'


def view(text: str) -> View:
    """View a model; what it declares and nobody makes are weights, each of other values."""
    model = parser.parse_model(HEAD + text)
    for number, value in enumerate(model.graph.value_info, 1):
        kind = value.type.tensor_type
        shape = [size.dim_value for size in kind.shape.dim]
        array = np.full(shape, number, helper.tensor_dtype_to_np_dtype(kind.elem_type))
        model.graph.initializer.append(numpy_helper.from_array(array, value.name))
    return view_model(ir.serde.deserialize_model(model))


def carry(before: str, after: str, calls: dict[str, str]) -> dict[str, tuple[set[str], str]]:
    """Carry the calls, given by output, and return for each output after its origins and its evidence."""
    return {output: summarize(found) for output, found in attribute(before, after, calls).items()}


def place(before: str, after: str, calls: dict[str, str]) -> dict[str, str]:
    """Carry the calls, given by output, and return for each output after the module of its scope."""
    return {output: found.scope.module for output, found in attribute(before, after, calls).items() if found}


def attribute(before: str, after: str, calls: dict[str, str]) -> dict[str, Attribution | None]:
    a, b = view(before), view(after)
    scopes = [CallId(calls[a.node_key(index)[1]], 0) for index in range(len(a.nodes))]
    parents = {s: CallId(s.module.rpartition(".")[0], 0) for s in sorted(scopes) if s != ROOT}
    tree = CallTree({ROOT: None, **parents})
    carried = carry_scopes(a, [Attribution(scope, (scope,), "captured") for scope in scopes], b, tree)
    return {b.node_key(index)[1]: found for index, found in enumerate(carried.nodes)}


def summarize(found: Attribution | None) -> tuple[set[str], str]:
    return (set(), "") if found is None else ({origin.module for origin in found.origins}, found.evidence)


TWO_LINEAR = """
    main (float[2, 4] x) => (float[2, 4] y)
    <float[4, 4] v, float[4, 4] w> {
        a = MatMul (x, v)
        r = Relu (a)
        y = MatMul (r, w)
    }
"""
TWO_CALLS = {"a": "first", "r": "first", "y": "second"}


def test_a_cast_of_an_activation_belongs_to_the_call_that_made_it() -> None:
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] v, float[4, 4] w> {
            a = MatMul (x, v)
            r = Relu (a)
            half = Cast <to = 10> (r)
            whole = Cast <to = 1> (half)
            y = MatMul (whole, w)
        }
    """
    found = carry(TWO_LINEAR, after, TWO_CALLS)
    assert found["half"] == found["whole"] == ({"first"}, "dataflow")
    assert found["y"] == ({"second"}, "captured")


def test_a_cast_of_an_input_belongs_to_those_who_read_it() -> None:
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] v, float[4, 4] w> {
            half = Cast <to = 10> (x)
            a = MatMul (half, v)
            r = Relu (a)
            y = MatMul (r, w)
        }
    """
    assert carry(TWO_LINEAR, after, TWO_CALLS)["half"] == ({"first"}, "dataflow")


def test_a_weight_that_is_dequantized_belongs_to_its_reader() -> None:
    after = """
        main (float[2, 4] x) => (float[2, 4] y)
        <float[4, 4] v, int8[4, 4] small, float scale = {1.0}, int8 zero = {0}> {
            a = MatMul (x, v)
            r = Relu (a)
            large = DequantizeLinear (small, scale, zero)
            y = MatMul (r, large)
        }
    """
    found = carry(TWO_LINEAR, after, TWO_CALLS)
    assert found["large"] == ({"second"}, "dataflow")
    assert found["y"][0] == {"second"}


def test_a_quantization_that_took_over_a_relu_has_its_calls_work() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] v> {
            a = MatMul (x, v)
            y = Relu (a)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] v, float scale = {1.0}, uint8 zero = {0}> {
            new = MatMul (x, v)
            small = QuantizeLinear (new, scale, zero)
            y = DequantizeLinear (small, scale, zero)
        }
    """
    found = carry(before, after, {"a": "linear", "y": "act"})
    assert "act" in found["small"][0]
    assert "act" in found["y"][0]


def test_what_quantizes_for_several_readers_belongs_to_the_lowest_call_above_them() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] q, float[4, 4] k, float[4, 4] v> {
            n = Relu (x)
            a = MatMul (n, q)
            b = MatMul (n, k)
            c = MatMul (n, v)
            d = Add (a, b)
            y = Add (c, d)
        }
    """
    products = "".join(
        f"""
            {name}0 = MatMulInteger (small, {weight}, zero)
            {name}1 = Cast <to = 1> ({name}0)
            {name} = Mul ({name}1, scale)"""
        for name, weight in zip("abc", "qkv", strict=True)
    )
    after = f"""
        main (float[2, 4] x) => (float[2, 4] y) <int8[4, 4] q, int8[4, 4] k, int8[4, 4] v> {{
            n = Relu (x)
            small, scale, zero = DynamicQuantizeLinear (n)
            {products}
            d = Add (a, b)
            y = Add (c, d)
        }}
    """
    attention = {"a": "attention.query", "b": "attention.key", "c": "attention.value", "d": "attention"}
    calls = {"n": "norm", **attention, "y": "attention"}
    assert place(before, after, calls)["small"] == "attention"


def test_what_is_quantized_and_turned_back_belongs_to_the_call_that_made_it() -> None:
    after = """
        main (float[2, 4] x) => (float[2, 4] y)
        <float[4, 4] v, float[4, 4] w, float scale = {1.0}, uint8 zero = {0}> {
            a = MatMul (x, v)
            r = Relu (a)
            small = QuantizeLinear (r, scale, zero)
            large = DequantizeLinear (small, scale, zero)
            y = MatMul (large, w)
        }
    """
    found = carry(TWO_LINEAR, after, TWO_CALLS)
    assert found["small"] == found["large"] == ({"first"}, "dataflow")


def test_products_that_were_merged_and_split_again_keep_all_their_calls() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] q, float[4, 4] k> {
            a = MatMul (x, q)
            b = MatMul (x, k)
            s = Relu (a)
            t = Relu (b)
            y = Mul (s, t)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 8] both> {
            all = MatMul (x, both)
            a, new = Split <axis = 1, num_outputs = 2> (all)
            s = Relu (a)
            t = Relu (new)
            y = Mul (s, t)
        }
    """
    found = carry(before, after, {"a": "query", "b": "key", "s": "", "t": "", "y": ""})
    assert found["all"][0] == found["a"][0] == {"query", "key"}
    assert found["t"] == ({""}, "captured")


def test_a_reshape_takes_over_no_arithmetic() -> None:
    before = """
        main (float[2, 2, 4] x) => (float[2, 2, 4] y)
        <float[4, 4] w, float[4] bias, float scale = {0.5}, int64[3] shape = {2, 2, 4}> {
            a = MatMul (x, w)
            b = Add (a, bias)
            c = Reshape (b, shape)
            y = Mul (c, scale)
        }
    """
    after = """
        main (float[2, 2, 4] x) => (float[2, 2, 4] y)
        <float[4, 4] new, float[4] other, int64[2] flat = {4, 4}, int64[3] shape = {2, 2, 4}> {
            p = Reshape (x, flat)
            g = Gemm (p, new, other)
            y = Reshape (g, shape)
        }
    """
    found = carry(before, after, {"a": "proj", "b": "proj", "c": "", "y": "scaling"})
    assert found["g"][0] >= {"proj", "scaling"}


def test_a_reshape_after_a_product_does_not_take_over_the_one_before_it() -> None:
    before = """
        main (float[2, 4, 2] x) => (float[2, 2, 4] y)
        <float[4, 4] w, float[4] bias, int64[3] shape = {2, 2, 4}> {
            p = Transpose <perm = [0, 2, 1]> (x)
            v = Reshape (p, shape)
            m = MatMul (v, w)
            l = Add (m, bias)
            y = Relu (l)
        }
    """
    after = """
        main (float[2, 4, 2] x) => (float[2, 2, 4] y)
        <float[4, 4] w, float[4] bias, int64[2] flat = {4, 4}, int64[3] shape = {2, 2, 4}> {
            p = Transpose <perm = [0, 2, 1]> (x)
            new = Reshape (p, flat)
            g = Gemm (new, w, bias)
            l = Reshape (g, shape)
            y = Relu (l)
        }
    """
    found = carry(before, after, {"p": "self", "v": "self", "m": "dense", "l": "dense", "y": "act"})
    assert found["new"][0] == {"self"}
    assert found["g"][0] == found["l"][0] == {"dense"}


def test_a_product_of_which_parts_are_not_read_any_more_keeps_all_its_calls() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] q, float[4, 4] k, float[4, 4] v, float zero = {0.0}> {
            a = MatMul (x, q)
            b = MatMul (x, k)
            c = MatMul (x, v)
            d = Mul (a, b)
            e = Mul (d, zero)
            y = Add (c, e)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 12] all> {
            new = MatMul (x, all)
            one, two, three = Split <axis = 1, num_outputs = 3> (new)
            y = Identity (three)
        }
    """
    found = carry(before, after, {"a": "query", "b": "key", "c": "value", "d": "", "e": "", "y": ""})
    assert found["new"][0] >= {"query", "key", "value"}


def test_a_residual_that_went_into_a_convolution_of_another_layout_keeps_its_calls() -> None:
    before = """
        main (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y)
        <float[8, 8, 1, 1] u, float[8, 8, 1, 1] v, float[8, 8, 1, 1] w> {
            s = Conv (x, u)
            c = Conv (x, v)
            r = Relu (c)
            d = Conv (r, w)
            e = Add (d, s)
            f = Relu (e)
            y = Sigmoid (f)
        }
    """
    after = """
        main (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y)
        <float[8, 8, 1, 1] n1, float[8, 8, 1, 1] n2, float[8, 8, 1, 1] n3, float[8] n4> {
            t1 = com.microsoft.nchwc.Conv (x, n1)
            t2 = com.microsoft.nchwc.Conv (x, n2)
            r = com.microsoft.nchwc.ReorderOutput (t2)
            t3 = com.microsoft.nchwc.Conv (t2, n3, n4, t1)
            f = com.microsoft.nchwc.ReorderOutput (t3)
            y = Sigmoid (f)
        }
    """
    calls = {"s": "shortcut", "c": "first", "r": "act", "d": "second", "e": "block", "f": "last", "y": "gate"}
    found = carry(before, after, calls)
    assert found["t1"][0] == {"shortcut"}
    assert found["t2"][0] == {"first", "act"}
    assert found["r"][0] == {"act"}
    assert found["t3"][0] == {"second", "block", "last"}
    assert found["f"][0] == {"last"}


def test_an_operator_that_was_made_of_several_is_found_between_those_around_it() -> None:
    before = """
        main (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) <float[8, 8, 1, 1] v, float[8, 8, 1, 1] w> {
            c = Conv (x, v)
            g = Sigmoid (c)
            m = Mul (c, g)
            y = Conv (m, w)
        }
    """
    after = """
        main (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) <float[8, 8, 1, 1] n1, float[8, 8, 1, 1] n2> {
            t1 = com.microsoft.nchwc.Conv (x, n1)
            t2 = com.microsoft.QuickGelu (t1)
            t3 = com.microsoft.nchwc.Conv (t2, n2)
            y = com.microsoft.nchwc.ReorderOutput (t3)
        }
    """
    found = carry(before, after, {"c": "first", "g": "act", "m": "act", "y": "second"})
    assert found["t1"][0] == {"first"}
    assert found["t2"][0] == {"act"}
    assert found["t3"][0] == found["y"][0] == {"second"}


def test_operators_of_the_same_kind_are_found_by_what_they_read() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] v, float[4, 4] w> {
            a = MatMul (x, v)
            r = Relu (a)
            b = MatMul (r, w)
            y = Sigmoid (b)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] y)
        <float s = {1.0}, uint8 z = {0}, uint8[4, 4] m, uint8[4, 4] n> {
            p = QuantizeLinear (x, s, z)
            a1 = QLinearMatMul (p, s, z, m, s, z, s, z)
            b1 = QLinearMatMul (a1, s, z, n, s, z, s, z)
            y1 = com.microsoft.QLinearSigmoid (b1, s, z, s, z)
            y = DequantizeLinear (y1, s, z)
        }
    """
    found = carry(before, after, {"a": "first", "r": "act", "b": "second", "y": "gate"})
    assert found["a1"][0] == {"first", "act"}
    assert found["b1"][0] == {"second"}
    assert found["y1"][0] == found["y"][0] == {"gate"}


def test_a_chain_of_inserted_nodes_is_walked_without_recursion() -> None:
    before, after = (build_chain(inserted) for inserted in (0, 30_000))
    tree = CallTree({ROOT: None, CallId("a", 0): ROOT})
    call = CallId("a", 0)
    carried: Carried = carry_scopes(before, [Attribution(call, (call,), "captured")] * 2, after, tree)
    assert all(found is not None and found.scope == call for found in carried.nodes)


def build_chain(inserted: int) -> View:
    made = View(graphs=[ViewGraph("", "", None, (), ())])
    given = made.add_tensor("x", 0)
    current = made.add_tensor("a", 0)
    made.add_node(ViewNode("Relu", "", 0, (given,), (current,), ()))
    for number in range(inserted):
        following = made.add_tensor(f"new{number}", 0)
        made.add_node(ViewNode("Cast", "", 0, (current,), (following,), (("to", ("INT", number % 2)),)))
        current = following
    last = made.add_tensor("y", 0)
    made.add_node(ViewNode("Neg", "", 0, (current,), (last,), ()))
    made.graphs[0] = ViewGraph("", "", None, (given,), (last,))
    return made
