"""The rules of carry, one by one, on graphs of a few nodes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx import helper, numpy_helper, parser

from hieronnx._scopes import Carried, carry_scopes
from hieronnx.graph import View, ViewGraph, ViewNode, view_model
from hieronnx.hierarchy import ROOT, Attribution, CallId, CallTree

HEAD = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>'


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
    a, b = view(before), view(after)
    scopes = [CallId(calls[a.node_key(index)[1]], 0) for index in range(len(a.nodes))]
    tree = CallTree({ROOT: None, **{scope: ROOT for scope in scopes if scope != ROOT}})
    carried = carry_scopes(a, [Attribution(scope, (scope,), "captured") for scope in scopes], b, tree)
    return {b.node_key(index)[1]: summary for index, summary in enumerate(map(summarize, carried.nodes))}


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
